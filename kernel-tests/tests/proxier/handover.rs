//! A node passes from kube-proxy to kernlink: the state that kube-proxy left is loaded by the standard tools, and the proxier syncs the
//! same objects. Nearly all of the state is the desired one, and connections continue.

use std::path::{Path, PathBuf};
use std::time::Instant;

use kernlink_kernel_tests::netns::NetNs;
use kernlink_kernel_tests::tools;
use kernlink_kernel_tests::traffic::{Connection, Network, Protocol, ask_many};
use kernlink_kernel_tests::udp_clients::keep_flows;
use kernlink_proxier::ipvs_mode::hand_back::HandBack;
use kernlink_proxier::ipvs_mode::retire::Retiring;
use kernlink_proxier::ipvs_mode::{Kernel, Key, Operation, Plan, Proxier, SetId};
use kernlink_proxier::retire::remove_all;

use crate::oracle::{config, read};
use crate::support::{
    assert_in_desired_state, assert_same, load, replace_objects, state_without_rules, sync,
};

/// The folder of the fixtures recorded from kube-proxy; see its README.
fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/proxier/tests/oracle")
}

/// Loads the state that kube-proxy left into the calling thread's namespace.
fn load_fixture(fixture: &Path) {
    let text = |file: &str| read(&fixture.join(file));
    load(
        &text("ipvs.txt"),
        &text("ipset.txt"),
        [&text("iptables.txt"), &text("ip6tables.txt")],
        &text("jumps.txt"),
        &text("addresses.txt"),
    );
    // The sysctls of connection tracking are shared by all namespaces.
    for line in text("sysctl.txt").lines() {
        let (name, value) = line.split_once(" = ").unwrap();
        if name.starts_with("net.ipv4.") {
            tools::set_sysctl(name, value);
        }
    }
}

fn proxier_of(fixture: &Path) -> Proxier {
    let mut proxier = Proxier::new(&config(fixture), Kernel::open().unwrap()).unwrap();
    replace_objects(&mut proxier, &read(&fixture.join("objects.yaml")));
    proxier
}

/// Asserts that the plan writes the ledgers and changes only two chains: in `KUBE-SERVICES` the jump to `KUBE-NODE-PORT` is the last rule of kernlink; in
/// `KUBE-IPVS-OUT-FILTER` the order of kube-proxy is random.
fn assert_only_these_chains(plan: &Plan, fixture: &str) {
    let mut chains = 0;
    for (_, step) in plan.steps() {
        if matches!(step.key, Key::Set(_, SetId::Ledger)) {
            continue;
        }
        chains += 1;
        assert!(matches!(step.operation, Operation::Rules(_)), "{fixture}: {plan}");
        let input = step.operation.to_string();
        for line in input.lines() {
            let chain = line.strip_prefix(':').and_then(|rest| rest.split(' ').next());
            let chain = chain.or_else(|| line.strip_prefix("-A ").and_then(|rest| rest.split(' ').next()));
            let is_known =
                chain.is_none_or(|chain| ["KUBE-SERVICES", "KUBE-IPVS-OUT-FILTER"].contains(&chain));
            assert!(is_known && !line.starts_with("-I "), "{fixture}: {line}\n{plan}");
        }
    }
    assert!(chains <= 2, "{fixture}: {plan}");
}

#[test]
fn after_kube_proxy_only_the_chains_that_differ_are_written() {
    kernlink_kernel_tests::requires_ipvs_mode!();
    for name in [
        "dual_stack",
        "external_ips",
        "load_balancers",
        "node_ports_narrow",
        "policies",
    ] {
        let fixture = fixtures().join(name);
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
            let bare = state_without_rules();
            load_fixture(&fixture);
            let loaded = state_without_rules();
            let mut proxier = proxier_of(&fixture);
            let synced = sync(&mut proxier);
            assert_only_these_chains(&synced.plan, name);
            assert_in_desired_state(&proxier);
            proxier.resync();
            let again = sync(&mut proxier);
            assert!(again.plan.is_empty(), "{name}: {}", again.plan);

            // Back to kube-proxy: the same listings.
            let removal = HandBack::plan(proxier.kernel_mut());
            let outcomes = removal.execute(proxier.kernel_mut());
            assert!(outcomes.iter().all(Result::is_ok), "{name}: {outcomes:?}");
            assert_same(&state_without_rules(), &loaded, name);

            // Nothing of either is left.
            let config = proxier.state().config().clone();
            let links = Box::new(kernlink_dummylink::Client::open().unwrap());
            let retiring = Retiring::new(config, links).unwrap();
            let retiring = retiring.with_kernel(proxier.into_kernel());
            let removed = remove_all(&mut [Box::new(retiring)], Instant::now());
            assert_eq!(removed.failures, [""; 0], "{name}");
            assert_eq!(removed.kept, [""; 0], "{name}");
            assert_same(&state_without_rules(), &bare, name);
            for tool in ["iptables-save", "ip6tables-save"] {
                let saved = tools::must(tool, &[]);
                assert!(!saved.contains("KUBE-"), "{name}: {saved}");
            }
        });
    }
}

#[test]
fn connections_through_kube_proxy_survive_the_handover() {
    kernlink_kernel_tests::requires_ipvs_mode!();
    let fixture = fixtures().join("ordinary");
    let network = Network::new(2);
    let _servers = network.serve_ordinary_fixture();
    let _on_node = network.node.enter();
    load_fixture(&fixture);
    // A flow of UDP that ended and began again would have another source port.
    keep_flows();

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

    let mut proxier = proxier_of(&fixture);
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
