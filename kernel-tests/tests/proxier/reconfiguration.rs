//! The configuration changes while the proxier runs: objects of the earlier one are moved or removed, and clients are served.

use std::net::SocketAddr;

use kernlink_kernel_tests::tools;
use kernlink_kernel_tests::traffic::{Network, Protocol, Server, ask_many};
use kernlink_proxier::ipvs_mode::Kernel;
use kernlink_services::Family;

use crate::clusters::WEB_PORTS;
use crate::support::{State, cluster_ips, config, load_balancer, proxier_on, service, slices, state, sync};

/// A load balancer with restricted sources, and a node port.
fn manifests() -> String {
    let balanced = "type: LoadBalancer, loadBalancerSourceRanges: ['192.0.2.0/24', '2001:db8:1::/64'], \
                    ports: [{name: web, port: 80, nodePort: 30443, protocol: TCP}]";
    let node_port = "type: NodePort, ports: [{name: web, port: 80, nodePort: 30080, protocol: TCP}]";
    [
        load_balancer("outer", 1, balanced, ["203.0.113.10", "2001:db8:ff::10"]),
        slices("outer", WEB_PORTS, &[(0, "node-a"), (1, "node-b")]),
        service("shop", 2, node_port, ""),
        slices("shop", WEB_PORTS, &[(0, "node-a"), (1, "node-b")]),
    ]
    .concat()
}

fn network() -> (Network, Vec<Server>) {
    let network = Network::new(2);
    let servers = network.serve(Protocol::Tcp, 8080);
    (network, servers)
}

/// Every frontend of a family answers.
fn assert_served(network: &Network, family: Family) {
    let index = family.index();
    let frontend = ["203.0.113.10", "2001:db8:ff::10"][index];
    let node = [Network::node_ipv4().into(), Network::node_ipv6().into()][index];
    for (address, port) in [
        (frontend.parse().unwrap(), 80),
        (cluster_ips(1)[index], 80),
        (cluster_ips(2)[index], 80),
        (node, 30080),
        (node, 30443),
    ] {
        let tally = ask_many(&network.client, Protocol::Tcp, SocketAddr::new(address, port), 2);
        tally.assert_balanced(&["pod0", "pod1"], 0);
    }
}

/// A state without the addresses of the links of these names.
fn without(state: &State, links: &[&str]) -> State {
    let mut state = state.clone();
    state.retain(|section, _| {
        !links
            .iter()
            .any(|link| *section == format!("addresses of {link}"))
    });
    state
}

#[test]
fn a_renamed_dummy_link_gets_the_addresses_of_the_former_one_and_nothing_else_changes() {
    kernlink_kernel_tests::requires_ipvs_mode!();
    let (network, _servers) = network();
    let _on_node = network.node.enter();
    let mut config = config();
    let mut proxier = proxier_on(Kernel::open().unwrap(), &manifests());
    sync(&mut proxier);
    let before = state();

    "services0".clone_into(&mut config.dummy_link);
    proxier.set_config(&config).unwrap();
    sync(&mut proxier);
    let after = state();
    assert!(tools::run("ip", &["link", "show", "kube-ipvs0"]).is_err());
    assert_eq!(after["addresses of services0"], before["addresses of kube-ipvs0"]);
    // The addresses of the earlier link are not addresses of the node: no node port is served at a virtual IP.
    let links = ["kube-ipvs0", "services0"];
    assert_eq!(without(&after, &links), without(&before, &links));
    for family in Family::ALL {
        assert_served(&network, family);
    }
    proxier.resync();
    assert!(sync(&mut proxier).plan.is_empty());

    // The earlier name again, with an existing link of that name.
    tools::ip(&["link", "add", "kube-ipvs0", "type", "dummy"]);
    "kube-ipvs0".clone_into(&mut config.dummy_link);
    proxier.set_config(&config).unwrap();
    sync(&mut proxier);
    assert!(tools::run("ip", &["link", "show", "services0"]).is_err());
    assert_eq!(without(&state(), &[]), before);
    assert_served(&network, Family::Ipv4);
}

#[test]
fn a_family_that_is_no_longer_served_is_removed_and_can_be_served_again() {
    kernlink_kernel_tests::requires_ipvs_mode!();
    let (network, _servers) = network();
    let _on_node = network.node.enter();
    let mut config = config();
    let mut proxier = proxier_on(Kernel::open().unwrap(), &manifests());
    sync(&mut proxier);
    let both = state();

    config.services.families = [Family::Ipv4].into();
    proxier.set_config(&config).unwrap();
    sync(&mut proxier);
    let one = state();
    let of_v6 = |lines: &[String]| -> Vec<String> {
        let lines = lines
            .iter()
            .filter(|line| line.contains("::") || line.starts_with("add KUBE-6-"));
        lines.cloned().collect()
    };
    for section in ["ipvs", "ipset", "addresses of kube-ipvs0"] {
        assert!(!of_v6(&both[section]).is_empty(), "{section}: {both:#?}");
        assert_eq!(of_v6(&one[section]), Vec::<String>::new(), "{section}");
        let of_v4 = |state: &State| -> Vec<String> {
            let v6 = of_v6(&state[section]);
            state[section]
                .iter()
                .filter(|line| !v6.contains(line))
                .cloned()
                .collect()
        };
        assert_eq!(of_v4(&one), of_v4(&both), "{section}");
    }
    assert_served(&network, Family::Ipv4);
    proxier.resync();
    assert!(sync(&mut proxier).plan.is_empty());

    config.services.families = Family::ALL.into();
    proxier.set_config(&config).unwrap();
    sync(&mut proxier);
    assert_eq!(state(), both);
    for family in Family::ALL {
        assert_served(&network, family);
    }
}
