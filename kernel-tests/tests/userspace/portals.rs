//! Portal rules lead to the listening ports.

use std::net::{IpAddr, SocketAddr};

use kernlink_kernel_tests::kernel::Feature;
use kernlink_kernel_tests::traffic::{Connection, Protocol, ask_many};
use kernlink_kernel_tests::{requires, tools};

use super::support::*;

/// As many requests as reach every endpoint in turn.
const REQUESTS: usize = 4;

const PODS: [&str; 2] = ["pod0", "pod1"];

#[test]
fn cluster_ips_are_served_in_turn_to_other_machines_and_to_the_node() {
    requires!(Feature::Iptables);
    for variant in VARIANTS {
        let place = Place::new(2);
        let mut process = Process::serving(variant, web(), &[0, 1]);
        process.sync();
        for ip in cluster_ips() {
            for (protocol, target) in targets(ip, 80, 53) {
                for namespace in [place.client(), place.node()] {
                    ask_many(namespace, protocol, target, REQUESTS).assert_balanced(&PODS, 0);
                }
            }
        }
    }
}

#[test]
fn node_ports_external_ips_and_load_balancers_are_served() {
    requires!(Feature::Iptables);
    for variant in VARIANTS {
        let place = Place::new(2);
        let mut process = Process::serving(variant, with_external_addresses(), &[0, 1]);
        process.sync();
        let parse = |ip: &str| ip.parse::<IpAddr>().unwrap();
        for ip in node_ips() {
            for (protocol, target) in targets(ip, 30_080, 30_053) {
                for namespace in [place.client(), place.node()] {
                    ask_many(namespace, protocol, target, REQUESTS).assert_balanced(&PODS, 0);
                }
            }
        }
        for ip in EXTERNAL.into_iter().chain(BALANCER).map(parse) {
            for (protocol, target) in targets(ip, 80, 53) {
                ask_many(place.client(), protocol, target, REQUESTS).assert_balanced(&PODS, 0);
            }
        }
        for ip in BALANCER.map(parse) {
            for (protocol, target) in targets(ip, 80, 53) {
                ask_many(place.node(), protocol, target, REQUESTS).assert_balanced(&PODS, 0);
            }
        }
    }
}

#[test]
fn the_listening_port_itself_serves_no_tcp_client() {
    requires!(Feature::Iptables);
    let place = Place::new(1);
    let mut process = Process::serving(VARIANTS[1], web(), &[0]);
    process.sync();
    let saved = tools::must("iptables-nft-save", &["-t", "nat"]);
    let rule = saved
        .lines()
        .find(|line| line.contains("REDIRECT") && line.contains("--dport 80 "))
        .unwrap();
    let port: u16 = rule.rsplit(' ').next().unwrap().parse().unwrap();
    let target = SocketAddr::new(node_ips()[0], port);
    let mut direct = Connection::open(place.client(), Protocol::Tcp, target);
    let answer = direct.as_mut().map(Connection::ask);
    assert!(!matches!(answer, Ok(Ok(_))), "{answer:?}");
}

#[test]
fn after_a_change_of_endpoints_new_connections_go_to_living_ones_and_old_ones_live() {
    requires!(Feature::Iptables);
    let place = Place::new(2);
    let mut process = Process::serving(VARIANTS[1], web(), &[0]);
    process.sync();
    let [ip, _] = cluster_ips();
    let [(_, tcp), (_, udp)] = targets(ip, 80, 53);
    let mut old_tcp = Connection::open(place.client(), Protocol::Tcp, tcp).unwrap();
    let mut old_udp = Connection::open(place.client(), Protocol::Udp, udp).unwrap();
    assert_eq!(old_tcp.ask().unwrap().server, "pod0");
    assert_eq!(old_udp.ask().unwrap().server, "pod0");
    process.endpoints(&[1]);
    // Listening ports only: no rule changes.
    assert_eq!(process.sync(), 4);
    assert_eq!(old_tcp.ask().unwrap().server, "pod0");
    assert_eq!(old_udp.ask().unwrap().server, "pod1");
    for (protocol, target) in targets(ip, 80, 53) {
        ask_many(place.client(), protocol, target, 2).assert_balanced(&["pod1"], 0);
    }
}

#[test]
fn rules_are_restored_after_a_firewall_flush_and_the_connections_live() {
    requires!(Feature::Iptables);
    let place = Place::new(1);
    for variant in VARIANTS {
        let mut process = Process::serving(variant, web(), &[0]);
        process.sync();
        let [ip, _] = cluster_ips();
        let [(_, tcp), _] = targets(ip, 80, 53);
        let mut old = Connection::open(place.client(), Protocol::Tcp, tcp).unwrap();
        old.ask().unwrap();
        for tool in ["iptables", "ip6tables"] {
            for table in ["nat", "filter"] {
                let tool = format!("{tool}-{}", if variant == VARIANTS[0] { "legacy" } else { "nft" });
                tools::must(&tool, &["-w", "-t", table, "-F"]);
                tools::must(&tool, &["-w", "-t", table, "-X"]);
            }
        }
        process.proxier.resync();
        assert!(process.sync() > 0);
        old.ask().unwrap();
        ask_many(place.client(), Protocol::Tcp, tcp, 1).assert_balanced(&["pod0"], 0);
        clean(variant);
    }
}

#[test]
fn a_deleted_service_refuses_and_cleanup_leaves_foreign_rules() {
    requires!(Feature::Iptables);
    for variant in VARIANTS {
        let place = Place::new(1);
        let suffix = if variant == VARIANTS[0] { "legacy" } else { "nft" };
        let rules = || -> Vec<String> {
            let mut lines = Vec::new();
            for tool in ["iptables", "ip6tables"] {
                for table in ["nat", "filter"] {
                    let saved = tools::must(&format!("{tool}-{suffix}-save"), &["-t", table]);
                    // Without comments and counters.
                    let saved = saved.lines().filter(|line| !line.starts_with('#'));
                    lines.extend(saved.map(|line| line.split(" [").next().unwrap().to_owned()));
                }
            }
            lines
        };
        for tool in ["iptables", "ip6tables"] {
            let tool = format!("{tool}-{suffix}");
            tools::must(&tool, &["-w", "-t", "nat", "-N", "KUBE-FOREIGN"]);
            tools::must(
                &tool,
                &["-w", "-t", "nat", "-A", "PREROUTING", "-j", "KUBE-FOREIGN"],
            );
            tools::must(
                &tool,
                &["-w", "-A", "INPUT", "-p", "tcp", "--dport", "9", "-j", "DROP"],
            );
        }
        let before = rules();
        let mut process = Process::serving(variant, web(), &[0]);
        process.sync();
        assert_ne!(rules(), before);
        process.delete();
        process.sync();
        assert!(rules().iter().all(|rule| !rule.contains("default/web")));
        clean(variant);
        assert_eq!(rules(), before);
        drop(place);
    }
}
