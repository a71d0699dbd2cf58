//! What the other kernel tests stand on: namespaces, traffic, modules and tools. Needs no crate of the workspace.

use std::{collections::BTreeSet, fs, net::SocketAddr};

use kernlink_kernel_tests::{
    kernel::{self, Feature},
    netns::NetNs,
    requires, since, tools,
    traffic::{Connection, Network, Protocol, Server, ask_many},
    wait,
};

fn links() -> BTreeSet<String> {
    let text = tools::must("ip", &["-o", "link", "show"]);
    text.lines()
        .filter_map(|line| Some(line.split(": ").nth(1)?.to_owned()))
        .collect()
}

#[test]
fn a_new_namespace_has_only_a_loopback_device_and_that_is_up() {
    let namespace = NetNs::new();
    namespace.run(|| {
        assert_eq!(links(), BTreeSet::from(["lo".to_owned()]));
        assert!(tools::ip_addresses().contains("127.0.0.1"));
    });
}

#[test]
fn what_is_made_in_a_namespace_is_not_seen_outside() {
    let before = links();
    let namespace = NetNs::new();
    let entered = namespace.enter();
    tools::ip(&[
        "link",
        "add",
        "inside",
        "type",
        "veth",
        "peer",
        "name",
        "inside-peer",
    ]);
    tools::set_sysctl("net.ipv4.ip_forward", "1");
    assert!(links().iter().any(|name| name.starts_with("inside@")));
    drop(entered);
    assert_eq!(links(), before);
    // The setting is the namespace's too.
    let other = NetNs::new();
    assert_eq!(other.run(|| tools::sysctl("net.ipv4.ip_forward")), "0");
    assert_eq!(namespace.run(|| tools::sysctl("net.ipv4.ip_forward")), "1");
}

#[test]
fn a_namespace_ends_with_its_last_holder() {
    let inode = |namespace: &NetNs| namespace.run(|| fs::read_link("/proc/thread-self/ns/net").unwrap());
    let (near, far) = (NetNs::new(), NetNs::new());
    near.connect("gone", &far, "left");
    assert_ne!(inode(&near), inode(&far));
    drop(near);
    // The other end of the pair goes with the namespace, when the kernel has come to that: it takes one lot of namespaces apart
    // after the other.
    wait::until(|| {
        let left = far.run(links);
        if left.iter().any(|name| name.starts_with("left@")) {
            Err(format!("the other end of the pair is still there: {left:?}"))
        } else {
            Ok(())
        }
    });
}

#[test]
fn packets_flow_between_client_and_pods_in_both_protocols_and_families() {
    let network = Network::new(2);
    for protocol in [Protocol::Tcp, Protocol::Udp] {
        let _servers = network.serve(protocol, 0x1234);
        for number in 0..2 {
            let targets: [(SocketAddr, _); 2] = [
                (
                    (Network::pod_ipv4(number), 0x1234).into(),
                    Network::client_ipv4().into(),
                ),
                (
                    (Network::pod_ipv6(number), 0x1234).into(),
                    Network::client_ipv6().into(),
                ),
            ];
            for (target, client) in targets {
                let tally = ask_many(&network.client, protocol, target, 5);
                tally.assert_balanced(&[&format!("pod{number}")], 0);
                assert_eq!(tally.of(&format!("pod{number}")), 5);
                assert_eq!(tally.sources, BTreeSet::from([client]), "{protocol} to {target}");
            }
        }
    }
}

#[test]
fn a_connection_lasts_over_several_requests() {
    let network = Network::new(1);
    let target = (Network::pod_ipv4(0), 80).into();
    let _server = Server::start(&network.pods[0], "only", Protocol::Tcp, target);
    let mut connection = Connection::open(&network.client, Protocol::Tcp, target).unwrap();
    let first = connection.ask().unwrap();
    assert_eq!(first.source, connection.local_address().unwrap());
    assert_eq!(connection.ask().unwrap(), first);
}

#[test]
fn a_udp_flow_keeps_the_source_that_was_chosen() {
    let network = Network::new(1);
    let target = (Network::pod_ipv6(0), 53).into();
    let source = (Network::client_ipv6(), 0x4321).into();
    let _server = Server::start(&network.pods[0], "only", Protocol::Udp, target);
    let mut flow = Connection::open_udp_from(&network.client, source, target).unwrap();
    assert_eq!(flow.ask().unwrap().source, source);
}

#[test]
fn a_request_to_nobody_is_counted_as_failed() {
    let network = Network::new(1);
    let tally = ask_many(
        &network.client,
        Protocol::Tcp,
        (Network::pod_ipv4(0), 9).into(),
        2,
    );
    assert_eq!((tally.answers.len(), tally.failures.len()), (0, 2), "{tally:?}");
}

#[test]
fn ipvs_balances_requests_as_its_own_tool_tells_it_to() {
    requires!(Feature::Ipvs);
    let network = Network::new(3);
    let _servers = network.serve(Protocol::Tcp, 80);
    let address: SocketAddr = (Network::node_ipv4(), 8080).into();
    network.node.run(|| {
        tools::must("ipvsadm", &["-A", "-t", &address.to_string(), "-s", "rr"]);
        for number in 0..3 {
            let real = format!("{}:80", Network::pod_ipv4(number));
            tools::must("ipvsadm", &["-a", "-t", &address.to_string(), "-r", &real, "-m"]);
        }
        assert_eq!(tools::ipvsadm_save().lines().count(), 4);
    });
    let tally = ask_many(&network.client, Protocol::Tcp, address, 30);
    tally.assert_balanced(&["pod0", "pod1", "pod2"], 0);
}

#[test]
fn sets_and_rules_are_listed_by_their_tools() {
    requires!(Feature::IpSet, Feature::Iptables);
    NetNs::new().run(|| {
        tools::must("ipset", &["create", "HARNESS", "hash:ip,port"]);
        tools::must("ipset", &["add", "HARNESS", "192.0.2.7,tcp:4660"]);
        assert!(tools::ipset_save_one("HARNESS").contains("add HARNESS 192.0.2.7,tcp:4660"));
        assert!(tools::ipset_save().starts_with("create HARNESS hash:ip,port "));
        tools::must("iptables", &["-w", "-t", "nat", "-N", "HARNESS"]);
        assert!(tools::iptables_save("nat").contains(":HARNESS - [0:0]"));
        tools::must("ip6tables", &["-w", "-t", "nat", "-N", "HARNESS6"]);
        assert!(tools::ip6tables_save("nat").contains(":HARNESS6 - [0:0]"));
    });
}

#[test]
fn flows_are_listed_once_something_tracks_them() {
    requires!(Feature::Conntrack, Feature::Iptables);
    let network = Network::new(1);
    let _servers = network.serve(Protocol::Udp, 0x1234);
    // A rule that asks for the state of a connection is what turns tracking on.
    network.node.run(|| {
        let rule = [
            "-w",
            "-A",
            "FORWARD",
            "-m",
            "conntrack",
            "--ctstate",
            "NEW",
            "-j",
            "ACCEPT",
        ];
        tools::must("iptables", &rule);
    });
    let target = (Network::pod_ipv4(0), 0x1234).into();
    assert_eq!(ask_many(&network.client, Protocol::Udp, target, 1).of("pod0"), 1);
    let flows = network.node.run(|| tools::conntrack_list("ipv4"));
    assert!(
        flows.contains("src=192.0.2.2 dst=10.244.0.2") && flows.contains("dport=4660"),
        "{flows}"
    );
}

#[test]
fn a_dummy_device_can_be_made() {
    requires!(Feature::DummyLink);
    NetNs::new().run(|| {
        tools::ip(&["link", "add", "kube-test0", "type", "dummy"]);
        assert!(links().contains("kube-test0"));
    });
}

#[test]
fn the_kernel_is_at_least_the_oldest_that_is_supported() {
    since!(5, 4);
    assert!(kernel::release() >= "5.4".parse().unwrap());
}
