//! A node on which kube-proxy has run is handed over: what it left is loaded by the standard tools, then the proxier syncs the
//! same objects. It finds nearly all of it as it should be, and connections go on.

use std::path::{Path, PathBuf};

use crate::oracle::{config, read};
use crate::support::{assert_holds_what_is_wanted, hand_in, load, sync};
use kernlink_kernel_tests::netns::NetNs;
use kernlink_kernel_tests::tools;
use kernlink_kernel_tests::traffic::{Connection, Network, Protocol, Server, ask_many};
use kernlink_proxier::ipvs_mode::{Kernel, Operation, Plan, Proxier};

/// What kube-proxy itself wrote, see the README there.
fn worlds() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/proxier/tests/oracle")
}

/// Makes the calling thread's namespace what kube-proxy left.
fn load_world(world: &Path) {
    let text = |file: &str| read(&world.join(file));
    load(
        &text("ipvs.txt"),
        &text("ipset.txt"),
        [&text("iptables.txt"), &text("ip6tables.txt")],
        &text("jumps.txt"),
        &text("addresses.txt"),
    );
    // The settings of connection tracking are shared by all namespaces.
    for line in text("sysctl.txt").lines() {
        let (name, value) = line.split_once(" = ").unwrap();
        if name.starts_with("net.ipv4.") {
            tools::set_sysctl(name, value);
        }
    }
}

fn proxier_of(world: &Path) -> Proxier {
    let mut proxier = Proxier::new(config(world), Kernel::open().unwrap()).unwrap();
    hand_in(&mut proxier, &read(&world.join("objects.yaml")));
    proxier
}

/// Nothing is planned but new contents of these two chains: in `KUBE-SERVICES` the jump to the node ports is last here; in
/// `KUBE-IPVS-OUT-FILTER` kube-proxy leaves the order to chance.
fn assert_only_these_chains(plan: &Plan, world: &str) {
    for (_, step) in plan.steps() {
        assert!(matches!(step.operation, Operation::Rules(_)), "{world}: {plan}");
        let input = step.operation.to_string();
        for line in input.lines() {
            let chain = line.strip_prefix(':').and_then(|rest| rest.split(' ').next());
            let chain = chain.or_else(|| line.strip_prefix("-A ").and_then(|rest| rest.split(' ').next()));
            let is_known =
                chain.is_none_or(|chain| ["KUBE-SERVICES", "KUBE-IPVS-OUT-FILTER"].contains(&chain));
            assert!(is_known && !line.starts_with("-I "), "{world}: {line}\n{plan}");
        }
    }
    assert!(plan.len() <= 2, "{world}: {plan}");
}

#[test]
fn what_kube_proxy_left_is_taken_over_and_only_the_chains_that_differ_are_written() {
    requires_the_kernel!();
    for name in [
        "dual_stack",
        "external_ips",
        "load_balancers",
        "node_ports_narrow",
        "policies",
    ] {
        let world = worlds().join(name);
        NetNs::new().run(|| {
            let links = "link add eth0 type dummy
link add eth1 type dummy
link set eth0 up
link set eth1 up
address add 192.0.2.1/24 dev eth0
address add 2001:db8::1/64 dev eth0 nodad
address add 198.51.100.7/24 dev eth1
";
            tools::ip_batch(links);
            load_world(&world);
            let mut proxier = proxier_of(&world);
            let synced = sync(&mut proxier);
            assert_only_these_chains(&synced.plan, name);
            assert_holds_what_is_wanted(&proxier);
            proxier.resync();
            let again = sync(&mut proxier);
            assert!(again.plan.is_empty(), "{name}: {}", again.plan);
        });
    }
}

#[test]
fn connections_through_kube_proxy_go_on_through_the_hand_over() {
    requires_the_kernel!();
    let world = worlds().join("ordinary");
    let network = Network::new(2);
    // The world's pods, two here and two there.
    let mut servers = Vec::new();
    for (pod, address, ports) in [
        (0, "10.244.1.3", [(Protocol::Udp, 53), (Protocol::Tcp, 53)]),
        (0, "10.244.1.21", [(Protocol::Tcp, 8080), (Protocol::Tcp, 8443)]),
        (0, "10.244.1.22", [(Protocol::Tcp, 8080), (Protocol::Tcp, 8443)]),
        (1, "10.244.2.3", [(Protocol::Udp, 53), (Protocol::Tcp, 53)]),
        (1, "10.244.2.21", [(Protocol::Tcp, 8080), (Protocol::Tcp, 8443)]),
    ] {
        let host = format!("{address}/32");
        let via = Network::pod_ipv4(pod).to_string();
        network
            .node
            .run(|| tools::ip(&["route", "add", &host, "via", &via]));
        let namespace = &network.pods[usize::from(pod)];
        namespace.run(|| tools::ip(&["address", "add", &host, "dev", "lo"]));
        for (protocol, port) in ports {
            let at = format!("{address}:{port}").parse().unwrap();
            servers.push(Server::start(namespace, address, protocol, at));
        }
    }
    let _on_node = network.node.enter();
    load_world(&world);

    let (web, dns) = (
        "10.96.11.12:80".parse().unwrap(),
        "10.96.0.10:53".parse().unwrap(),
    );
    let mut open: Vec<Connection> = [
        (Protocol::Tcp, web),
        (Protocol::Tcp, web),
        (Protocol::Tcp, dns),
        (Protocol::Udp, dns),
    ]
    .into_iter()
    .map(|(protocol, target)| Connection::open(&network.client, protocol, target).unwrap())
    .collect();
    let ask_open = |open: &mut Vec<Connection>| -> Vec<_> {
        open.iter_mut()
            .map(|connection| connection.ask().unwrap())
            .collect()
    };
    let before = ask_open(&mut open);

    let mut proxier = proxier_of(&world);
    let synced = sync(&mut proxier);
    assert_only_these_chains(&synced.plan, "ordinary");
    assert_eq!(
        ask_open(&mut open),
        before,
        "the same servers see the same sources"
    );
    let tally = ask_many(&network.client, Protocol::Tcp, web, 6);
    tally.assert_balanced(&["10.244.1.21", "10.244.1.22", "10.244.2.21"], 0);
    ask_many(&network.client, Protocol::Udp, dns, 4).assert_balanced(&["10.244.1.3", "10.244.2.3"], 0);
    assert_eq!(
        ask_open(&mut open),
        before,
        "the same servers see the same sources"
    );
}
