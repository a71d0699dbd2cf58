//! Which endpoint replies to which client, and which source address it sees.

use std::net::{IpAddr, SocketAddr};

use kernlink_kernel_tests::expectations::{
    NO_PORTS, REQUESTS, assert_refused, assert_served, assert_silent, client_ips, gateway_ips, ips, node_ips,
    pod_ips, targets,
};
use kernlink_kernel_tests::kernel::Feature;
use kernlink_kernel_tests::manifests::{cluster_ips, service, slices};
use kernlink_kernel_tests::requires;
use kernlink_kernel_tests::tools;
use kernlink_kernel_tests::traffic::{Connection, Network, Protocol, ask_many};

use crate::support::{for_each_variant, proxier, replace_objects, sync, tool};

#[test]
fn traffic_to_a_cluster_ip_is_masqueraded_unless_it_comes_from_pods() {
    requires!(Feature::Iptables);
    for_each_variant(3, |variant, network| {
        let manifests = service("web", 1, "type: ClusterIP", NO_PORTS, &[])
            + &slices("web", &[(0, "node-a"), (1, "node-b")]);
        sync(&mut proxier(variant, &manifests));
        for (family, protocol, target) in targets(cluster_ips(1)) {
            let gateways = [gateway_ips(0)[family], gateway_ips(1)[family]];
            let both = ["pod0", "pod1"];
            assert_served(
                &network.pods[2],
                protocol,
                target,
                &both,
                &pod_ips(2)[family..=family],
            );
            assert_served(&network.client, protocol, target, &both, &gateways);
            assert_served(&network.node, protocol, target, &both, &gateways);
        }
    });
}

#[test]
fn a_pod_reaches_itself_through_its_service() {
    requires!(Feature::Iptables);
    for_each_variant(1, |variant, network| {
        let manifests =
            service("web", 1, "type: ClusterIP", NO_PORTS, &[]) + &slices("web", &[(0, "node-a")]);
        sync(&mut proxier(variant, &manifests));
        for (family, protocol, target) in targets(cluster_ips(1)) {
            let gateway = gateway_ips(0)[family];
            assert_served(&network.pods[0], protocol, target, &["pod0"], &[gateway]);
        }
    });
}

#[test]
fn external_traffic_is_masqueraded_with_policy_cluster_and_local_with_policy_local() {
    requires!(Feature::Iptables);
    for_each_variant(3, |variant, network| {
        let spec = |policy: &str, external: [&str; 2]| {
            format!(
                "type: LoadBalancer, externalTrafficPolicy: {policy}, externalIPs: ['{}', '{}']",
                external[0], external[1]
            )
        };
        let pods = [(0, "node-a"), (1, "node-b")];
        let wide = ["203.0.113.20", "2001:db8:ff::20"];
        let narrow = ["203.0.113.21", "2001:db8:ff::21"];
        let manifests = [
            service(
                "wide",
                1,
                &spec("Cluster", wide),
                [", nodePort: 30080", ", nodePort: 30053"],
                &["203.0.113.10", "2001:db8:ff::10"],
            ),
            slices("wide", &pods),
            service(
                "narrow",
                2,
                &(spec("Local", narrow) + ", healthCheckNodePort: 32000"),
                [", nodePort: 30081", ", nodePort: 30054"],
                &["203.0.113.11", "2001:db8:ff::11"],
            ),
            slices("narrow", &pods),
        ]
        .concat();
        sync(&mut proxier(variant, &manifests));
        for (family, protocol, target) in targets(node_ips()) {
            let gateways = [gateway_ips(0)[family], gateway_ips(1)[family]];
            let node_port = |offset: u16| {
                let port = if target.port() == 80 { 30080 } else { 30053 };
                SocketAddr::new(target.ip(), port + offset)
            };
            let at = |pair: [IpAddr; 2]| SocketAddr::new(pair[family], target.port());
            for target in [
                node_port(0),
                at(ips(wide[0], wide[1])),
                at(ips("203.0.113.10", "2001:db8:ff::10")),
            ] {
                assert_served(&network.client, protocol, target, &["pod0", "pod1"], &gateways);
            }
            let client = client_ips()[family];
            let pod = pod_ips(2)[family];
            for target in [
                node_port(1),
                at(ips(narrow[0], narrow[1])),
                at(ips("203.0.113.11", "2001:db8:ff::11")),
            ] {
                // The endpoint on this node sees the client. Pods and the node itself use all endpoints.
                assert_served(&network.client, protocol, target, &["pod0"], &[client]);
                assert_served(&network.pods[2], protocol, target, &["pod0", "pod1"], &[pod]);
                assert_served(&network.node, protocol, target, &["pod0", "pod1"], &gateways);
            }
        }
    });
}

#[test]
fn without_endpoints_connections_are_rejected_and_without_local_ones_dropped() {
    requires!(Feature::Iptables);
    for_each_variant(1, |variant, network| {
        tools::permit_icmp_errors();
        let ports = [", nodePort: 30080", ", nodePort: 30053"];
        let manifests = [
            service("empty", 1, "type: NodePort", ports, &[]),
            service(
                "elsewhere",
                2,
                "type: NodePort, externalTrafficPolicy: Local, internalTrafficPolicy: Local",
                [", nodePort: 30081", ", nodePort: 30054"],
                &[],
            ),
            slices("elsewhere", &[(0, "node-b")]),
        ]
        .concat();
        let mut proxier = proxier(variant, &manifests);
        sync(&mut proxier);
        let node_port = |target: SocketAddr, offset: u16, family: usize| {
            let port = if target.port() == 80 { 30080 } else { 30053 };
            SocketAddr::new(node_ips()[family], port + offset)
        };
        for (family, protocol, target) in targets(cluster_ips(1)) {
            for target in [target, node_port(target, 0, family)] {
                assert_refused(&network.client, protocol, target);
            }
        }
        for (family, protocol, target) in targets(cluster_ips(2)) {
            assert_silent(&network.client, protocol, target);
            assert_silent(&network.client, protocol, node_port(target, 1, family));
        }
        // The first endpoint.
        replace_objects(
            &mut proxier,
            &(service("empty", 1, "type: NodePort", ports, &[]) + &slices("empty", &[(0, "node-a")])),
        );
        sync(&mut proxier);
        for (family, protocol, target) in targets(cluster_ips(1)) {
            for target in [target, node_port(target, 0, family)] {
                ask_many(&network.client, protocol, target, 2).assert_balanced(&["pod0"], 0);
            }
        }
    });
}

#[test]
fn source_ranges_accept_the_sources_in_them_only() {
    requires!(Feature::Iptables);
    for_each_variant(1, |variant, network| {
        let manifests = |ranges: &str| {
            let spec = format!("type: LoadBalancer, loadBalancerSourceRanges: [{ranges}]");
            service("outer", 1, &spec, NO_PORTS, &["203.0.113.10", "2001:db8:ff::10"])
                + &slices("outer", &[(0, "node-a")])
        };
        let frontends = ips("203.0.113.10", "2001:db8:ff::10");
        let mut proxier = proxier(variant, &manifests("'192.0.2.0/24', '2001:db8:1::/64'"));
        sync(&mut proxier);
        for (_, protocol, target) in targets(frontends) {
            ask_many(&network.client, protocol, target, 2).assert_balanced(&["pod0"], 0);
        }
        replace_objects(&mut proxier, &manifests("'198.51.100.0/24', '2001:db8:5::/48'"));
        sync(&mut proxier);
        for (_, protocol, target) in targets(frontends) {
            assert_silent(&network.client, protocol, target);
        }
        // Ranges concern load-balancer IPs only.
        for (_, protocol, target) in targets(cluster_ips(1)) {
            ask_many(&network.client, protocol, target, 2).assert_balanced(&["pod0"], 0);
        }
    });
}

#[test]
fn node_ports_are_served_on_loopback_addresses_of_ipv4() {
    requires!(Feature::Iptables);
    for_each_variant(1, |variant, network| {
        let ports = [", nodePort: 30080", ", nodePort: 30053"];
        let manifests = service("web", 1, "type: NodePort", ports, &[]) + &slices("web", &[(0, "node-a")]);
        sync(&mut proxier(variant, &manifests));
        for (protocol, port) in [(Protocol::Tcp, 30080), (Protocol::Udp, 30053)] {
            let target = SocketAddr::new("127.0.0.1".parse().unwrap(), port);
            assert_served(&network.node, protocol, target, &["pod0"], &gateway_ips(0)[..1]);
            assert_refused(
                &network.node,
                protocol,
                SocketAddr::new("::1".parse().unwrap(), port),
            );
        }
        // Not from another host.
        network.client.run(|| {
            tools::set_sysctl("net.ipv4.conf.all.route_localnet", "1");
            tools::ip(&[
                "route",
                "add",
                "127.0.0.9/32",
                "via",
                &Network::node_ipv4().to_string(),
            ]);
            tools::ip(&["rule", "add", "pref", "1", "to", "127.0.0.9/32", "lookup", "main"]);
            tools::ip(&["rule", "del", "pref", "0"]);
        });
        let target = SocketAddr::new("127.0.0.9".parse().unwrap(), 30080);
        assert_silent(&network.client, Protocol::Tcp, target);
    });
}

#[test]
fn with_session_affinity_a_client_keeps_its_endpoint() {
    requires!(Feature::Iptables);
    for_each_variant(3, |variant, network| {
        let sticky = "type: ClusterIP, sessionAffinity: ClientIP, \
                      sessionAffinityConfig: {clientIP: {timeoutSeconds: 900}}";
        let manifests = service("sticky", 1, sticky, NO_PORTS, &[])
            + &slices("sticky", &[(0, "node-a"), (1, "node-a"), (2, "node-a")]);
        sync(&mut proxier(variant, &manifests));
        for (_, protocol, target) in targets(cluster_ips(1)) {
            let tally = ask_many(&network.client, protocol, target, REQUESTS);
            assert_eq!((tally.answers.len(), tally.failures.len()), (1, 0), "{tally:#?}");
            // Also after a restart.
            sync(&mut proxier(variant, &manifests));
            let again = ask_many(&network.client, protocol, target, 3);
            assert!(
                again.answers.keys().eq(tally.answers.keys()),
                "{tally:#?} {again:#?}"
            );
        }
    });
}

#[test]
fn connections_go_on_while_services_change_and_new_ones_reach_the_new_endpoints() {
    requires!(Feature::Iptables);
    for_each_variant(3, |variant, network| {
        let manifests = |pods: &[(u8, &str)], others: u8| {
            let web = service("web", 1, "type: ClusterIP", NO_PORTS, &[]) + &slices("web", pods);
            (2..2 + others).fold(web, |text, number| {
                let name = format!("other{number}");
                text + &service(&name, number, "type: ClusterIP", NO_PORTS, &[])
                    + &slices(&name, &[(2, "node-a")])
            })
        };
        let mut proxier = proxier(variant, &manifests(&[(0, "node-a")], 3));
        sync(&mut proxier);
        let [v4, v6] = cluster_ips(1).map(|address| SocketAddr::new(address, 80));
        let mut connections =
            [v4, v6].map(|target| Connection::open(&network.client, Protocol::Tcp, target).unwrap());
        for (pods, others) in [
            (&[(0, "node-a"), (1, "node-a")][..], 3),
            (&[(1, "node-a")], 0),
            (&[(1, "node-a"), (2, "node-a")], 6),
        ] {
            replace_objects(&mut proxier, &manifests(pods, others));
            sync(&mut proxier);
            for connection in &mut connections {
                assert_eq!(connection.ask().unwrap().server, "pod0");
            }
            let names: Vec<String> = pods.iter().map(|(pod, _)| format!("pod{pod}")).collect();
            let names: Vec<&str> = names.iter().map(String::as_str).collect();
            for target in [v4, v6] {
                let tally = ask_many(&network.client, Protocol::Tcp, target, REQUESTS);
                tally.assert_balanced(&names, REQUESTS);
            }
        }
    });
}

#[test]
fn foreign_rules_stay_and_a_flush_by_another_program_is_repaired() {
    requires!(Feature::Iptables);
    for_each_variant(1, |variant, network| {
        let tool = |name: &str| tool(variant, name);
        for name in ["iptables", "ip6tables"] {
            let run = |arguments: &[&str]| _ = tools::must(&tool(name), &[&["-w"], arguments].concat());
            run(&["-t", "nat", "-N", "FOREIGN"]);
            run(&[
                "-t", "nat", "-A", "FOREIGN", "-p", "tcp", "--dport", "9", "-j", "RETURN",
            ]);
            run(&["-t", "nat", "-A", "PREROUTING", "-j", "FOREIGN"]);
        }
        let manifests =
            service("web", 1, "type: ClusterIP", NO_PORTS, &[]) + &slices("web", &[(0, "node-a")]);
        let mut proxier = proxier(variant, &manifests);
        sync(&mut proxier);
        // A firewall reload: everything in table nat is flushed, then the foreign rules are written.
        for name in ["iptables", "ip6tables"] {
            let run = |arguments: &[&str]| _ = tools::must(&tool(name), &[&["-w"], arguments].concat());
            run(&["-t", "nat", "-F"]);
            run(&[
                "-t", "nat", "-A", "FOREIGN", "-p", "tcp", "--dport", "9", "-j", "RETURN",
            ]);
            run(&["-t", "nat", "-A", "PREROUTING", "-j", "FOREIGN"]);
        }
        proxier.resync();
        sync(&mut proxier);
        for (_, protocol, target) in targets(cluster_ips(1)) {
            ask_many(&network.client, protocol, target, 2).assert_balanced(&["pod0"], 0);
        }
        for name in ["iptables-save", "ip6tables-save"] {
            let saved = tools::must(&tool(name), &["-t", "nat"]);
            assert!(
                saved.contains("-A FOREIGN -p tcp -m tcp --dport 9 -j RETURN"),
                "{saved}"
            );
            assert!(saved.contains("-A PREROUTING -j FOREIGN"), "{saved}");
        }
    });
}

#[test]
fn a_terminating_endpoint_keeps_its_connections_and_gets_no_new_ones() {
    requires!(Feature::Iptables);
    for_each_variant(2, |variant, network| {
        let web = |slices: String| service("web", 1, "type: ClusterIP", NO_PORTS, &[]) + &slices;
        let mut proxier = proxier(variant, &web(slices("web", &[(0, "node-a")])));
        sync(&mut proxier);
        let [v4, v6] = cluster_ips(1).map(|address| SocketAddr::new(address, 80));
        let mut connections =
            [v4, v6].map(|target| Connection::open(&network.client, Protocol::Tcp, target).unwrap());
        let terminating = "nodeName: node-a, conditions: {ready: false, serving: true, terminating: true}";
        let both = slices("web", &[(0, "leaving"), (1, "node-a")]).replace("nodeName: leaving", terminating);
        for manifests in [web(both), web(slices("web", &[(1, "node-a")]))] {
            replace_objects(&mut proxier, &manifests);
            sync(&mut proxier);
            for connection in &mut connections {
                assert_eq!(connection.ask().unwrap().server, "pod0");
            }
            for target in [v4, v6] {
                ask_many(&network.client, Protocol::Tcp, target, 10).assert_balanced(&["pod1"], 10);
            }
        }
    });
}

#[test]
fn packets_are_counted_by_accounting_objects() {
    requires!(Feature::Iptables);
    for_each_variant(1, |variant, network| {
        let ports = [", nodePort: 30080", ", nodePort: 30053"];
        let manifests = service("web", 1, "type: NodePort", ports, &[]) + &slices("web", &[(0, "node-a")]);
        let mut proxier = proxier(variant, &manifests);
        sync(&mut proxier);
        let mut counted = |name: &str| {
            let accounting = &mut proxier.kernel_mut().accounting;
            accounting
                .packets(name)
                .unwrap()
                .unwrap_or_else(|| panic!("{name}"))
        };
        assert_eq!(counted("ct_state_invalid_dropped_pkts"), 0);
        assert_eq!(counted("localhost_nps_accepted_pkts"), 0);
        let loopback = SocketAddr::new("127.0.0.1".parse().unwrap(), 30080);
        ask_many(&network.node, Protocol::Tcp, loopback, 5).assert_balanced(&["pod0"], 0);
        // The first packet of each connection.
        assert_eq!(counted("localhost_nps_accepted_pkts"), 5);
    });
}
