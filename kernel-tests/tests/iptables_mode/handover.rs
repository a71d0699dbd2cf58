//! A node passes from kube-proxy's iptables mode to kernlink and back: the rules that kube-proxy writes are loaded by the standard tools, and
//! the proxier syncs the same objects.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use kernlink_iptables_restore::Variant;
use kernlink_kernel_tests::kernel::Feature;
use kernlink_kernel_tests::listings::{jump, without_accounting};
use kernlink_kernel_tests::load::Load;
use kernlink_kernel_tests::netns::NetNs;
use kernlink_kernel_tests::traffic::{Connection, Protocol, ask_many};
use kernlink_kernel_tests::udp_clients::keep_flows;
use kernlink_kernel_tests::{requires, tools};
use kernlink_proxier::iptables_mode::cleanup::remaining;
use kernlink_proxier::iptables_mode::{Kernel, Operation, Proxier};

use crate::oracle::{self, read};
use crate::support::{for_each_variant, kernel, replace_objects};

/// The folder of the objects of the fixtures, and that of what kube-proxy wrote in iptables mode.
fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../crates/proxier/tests")
        .join(name)
}

/// What other programs wrote: a firewall, host ports that are masqueraded, and the kubelet.
const FOREIGN: &str = "*filter
:FOREIGN - [0:0]
:KUBE-KUBELET-CANARY - [0:0]
-A INPUT -j FOREIGN
-A FOREIGN -p tcp -m tcp --dport 9 -j DROP
COMMIT
*nat
:CNI-HOSTPORT-DNAT - [0:0]
:KUBE-MARK-DROP - [0:0]
-A PREROUTING -m addrtype --dst-type LOCAL -j CNI-HOSTPORT-DNAT
-A CNI-HOSTPORT-DNAT -p tcp -m tcp --dport 9 -j RETURN
-A KUBE-MARK-DROP -j MARK --set-xmark 0x8000/0x8000
COMMIT
*mangle
:KUBE-IPTABLES-HINT - [0:0]
:KUBE-KUBELET-CANARY - [0:0]
COMMIT
";

/// The canaries of kube-proxy, which notices by them that a table was flushed.
const CANARIES: &str = "*mangle
:KUBE-PROXY-CANARY - [0:0]
COMMIT
*nat
:KUBE-PROXY-CANARY - [0:0]
COMMIT
*filter
:KUBE-PROXY-CANARY - [0:0]
COMMIT
";

fn program(variant: Variant, family: &str, suffix: &str) -> String {
    let variant = match variant {
        Variant::Nft => "nft",
        _ => "legacy",
    };
    format!("{family}-{variant}{suffix}")
}

fn restore(variant: Variant, family: &str, input: &str) {
    let program = program(variant, family, "-restore");
    tools::run_with_input(&program, &["-w", "30", "--noflush"], input)
        .unwrap_or_else(|error| panic!("{error}\n{input}"));
}

/// The input that kube-proxy passes to the tool at each start.
fn rules_of(fixture: &str, family: &str) -> String {
    let fixture = folder("oracle_iptables").join(fixture);
    without_accounting(&read(&fixture.join(format!("{family}.txt"))))
}

/// Loads what kube-proxy left into the calling thread's namespace.
fn load(variant: Variant, fixture: &str) {
    for family in ["iptables", "ip6tables"] {
        let mut input = rules_of(fixture, family);
        let fixture = folder("oracle_iptables").join(fixture);
        let has_firewall = input.contains("\n:KUBE-FIREWALL ");
        for table in ["filter", "nat"] {
            input += &format!("*{table}\n");
            if table == "filter" && !has_firewall {
                // The command that inserts a jump is preceded by one that creates the chain.
                input += ":KUBE-FIREWALL - [0:0]\n";
            }
            for line in read(&fixture.join("jumps.txt")).lines() {
                input += &jump(family, table, line).unwrap_or_default();
            }
            input += "COMMIT\n";
        }
        restore(variant, family, &(input + CANARIES));
    }
    let fixture = folder("oracle_iptables").join(fixture);
    for line in read(&fixture.join("sysctl.txt")).lines() {
        let (name, value) = line.split_once(" = ").unwrap();
        if name.ends_with("route_localnet") {
            tools::set_sysctl(name, value);
        }
    }
}

fn proxier_of(variant: Variant, fixture: &str) -> Proxier {
    let mut config = oracle::iptables_config(
        &folder("oracle_iptables").join(fixture),
        &folder("oracle").join(fixture),
    );
    // All namespaces share the sysctls of connection tracking.
    let be_liberal = config.conntrack.tcp_be_liberal;
    config.conntrack = crate::support::config().conntrack;
    config.conntrack.tcp_be_liberal = be_liberal;
    let mut proxier = Proxier::new(&config, kernel(variant)).unwrap();
    replace_objects(
        &mut proxier,
        &read(&folder("oracle").join(fixture).join("objects.yaml")),
    );
    proxier
}

/// The rules of all tables by family, table and chain, in order, without counters, without the rules of accounting objects, and without
/// built-in chains that have no rules.
fn listing(variant: Variant) -> BTreeMap<String, Vec<String>> {
    let mut chains: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for family in ["iptables", "ip6tables"] {
        let saved = without_accounting(&tools::must(&program(variant, family, "-save"), &[]));
        let mut table = "";
        for line in saved.lines() {
            if let Some(name) = line.strip_prefix('*') {
                table = name;
            } else if let Some(chain) = line.strip_prefix(':') {
                let (name, policy) = chain.split_once(' ').unwrap();
                if policy.starts_with('-') {
                    chains.entry(format!("{family} {table} {name}")).or_default();
                }
            } else if let Some(rule) = line.strip_prefix("-A ") {
                let chain = rule.split(' ').next().unwrap();
                chains
                    .entry(format!("{family} {table} {chain}"))
                    .or_default()
                    .push(rule.to_owned());
            }
        }
    }
    chains
}

/// What cleanup leaves of kube-proxy's and kernlink's rules: the chain that the kubelet has too.
fn without_firewall(mut chains: BTreeMap<String, Vec<String>>) -> BTreeMap<String, Vec<String>> {
    chains.retain(|chain, _| !chain.ends_with(" KUBE-FIREWALL"));
    for rules in chains.values_mut() {
        rules.retain(|rule| !rule.ends_with("-j KUBE-FIREWALL"));
    }
    chains.retain(|chain, rules| !rules.is_empty() || !is_built_in(chain));
    chains
}

fn is_built_in(chain: &str) -> bool {
    let names = ["INPUT", "OUTPUT", "FORWARD", "PREROUTING", "POSTROUTING"];
    names.iter().any(|name| chain.ends_with(&format!(" {name}")))
}

fn clean(kernel: &mut Kernel) {
    let removal = remaining(&mut *kernel.rules);
    assert_eq!(removal.errors, []);
    assert_eq!(removal.kept_chains, []);
    let outcomes = removal.execute(&mut *kernel.rules);
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}\n{removal}");
    assert_eq!(remaining(&mut *kernel.rules).operations, []);
}

#[test]
fn after_kube_proxy_nothing_is_written_and_cleanup_leaves_what_is_foreign() {
    requires!(Feature::Iptables);
    for variant in [Variant::Legacy, Variant::Nft] {
        for fixture in [
            "dual_stack",
            "external_ips",
            "load_balancers",
            "node_ports_narrow",
            "policies",
        ] {
            let namespace = NetNs::new();
            let peer = NetNs::new();
            namespace.connect("eth0", &peer, "eth0");
            namespace.connect("eth1", &peer, "eth1");
            namespace.run(|| {
                tools::ip_batch(
                    "address add 192.0.2.1/24 dev eth0
address add 2001:db8::1/64 dev eth0 nodad
address add 198.51.100.7/24 dev eth1
",
                );
                for family in ["iptables", "ip6tables"] {
                    restore(variant, family, FOREIGN);
                }
                let bare = listing(variant);
                load(variant, fixture);
                let loaded = listing(variant);
                let mut proxier = proxier_of(variant, fixture);
                let synced = proxier.sync(Instant::now()).unwrap();
                assert!(synced.is_success(), "{synced}");
                for (_, step) in synced.plan.steps() {
                    // Only rules with accounting objects, if kernlink writes them on this host, may differ.
                    let text = step.operation.to_string();
                    let edits = text
                        .lines()
                        .filter(|line| line.starts_with('-') || line.starts_with(':'));
                    let is_known =
                        |line: &str| ["nfacct", "KUBE-FORWARD"].iter().any(|word| line.contains(word));
                    let is_rules = matches!(step.operation, Operation::Write(_));
                    assert!(
                        !is_rules || edits.clone().all(is_known),
                        "{variant} {fixture}: {text}"
                    );
                }
                // For kube-proxy that starts again there is nothing to hand back: the listing is its own.
                assert_eq!(listing(variant), loaded, "{variant} {fixture}");
                clean(proxier.kernel_mut());
                assert_eq!(without_firewall(listing(variant)), bare, "{variant} {fixture}");
            });
        }
    }
}

#[test]
fn connections_through_kube_proxy_survive_the_handover_and_the_cleanup() {
    requires!(Feature::Iptables);
    for_each_variant(2, |variant, network| {
        let _servers = network.serve_ordinary_fixture();
        load(variant, "ordinary");
        keep_flows();
        let (web, dns) = (
            "10.96.11.12:80".parse().unwrap(),
            "10.96.0.10:53".parse().unwrap(),
        );
        let targets = [
            (Protocol::Tcp, web),
            (Protocol::Tcp, web),
            (Protocol::Tcp, dns),
            (Protocol::Udp, dns),
        ];
        let mut open: Vec<Connection> = targets
            .into_iter()
            .map(|(protocol, target)| Connection::open(&network.client, protocol, target).unwrap())
            .collect();
        let mut ask_open = || -> Vec<_> {
            open.iter_mut()
                .map(|connection| connection.ask().unwrap())
                .collect()
        };
        let before = ask_open();

        // New connections all the time.
        let requests = Load::start(&[(&network.client, Protocol::Tcp, web)]);
        let mut proxier = proxier_of(variant, "ordinary");
        for _ in 0..3 {
            proxier.resync();
            let synced = proxier.sync(Instant::now()).unwrap();
            assert!(synced.is_success(), "{synced}");
        }
        // kube-proxy starts again: it finds its jumps and writes its chains. Then kernlink does.
        let of_kernlink = listing(variant);
        for family in ["iptables", "ip6tables"] {
            restore(variant, family, &rules_of("ordinary", family));
        }
        let of_kube_proxy = listing(variant);
        let changed = |(chain, rules): &(&String, &Vec<String>)| of_kernlink.get(*chain) != Some(*rules);
        let changed: Vec<_> = of_kube_proxy.iter().filter(changed).collect();
        assert_eq!(changed, [], "kube-proxy finds its chains");
        proxier = proxier_of(variant, "ordinary");
        let synced = proxier.sync(Instant::now()).unwrap();
        assert!(synced.is_success(), "{synced}");
        assert_eq!(listing(variant), of_kernlink);
        requests.assert_all_served();
        assert_eq!(ask_open(), before, "the same servers see the same sources");
        ask_many(&network.client, Protocol::Udp, dns, 40).assert_balanced(&["10.244.1.3", "10.244.2.3"], 40);

        // Established connections need no rules.
        clean(proxier.kernel_mut());
        assert_eq!(ask_open(), before, "the same servers see the same sources");
    });
}
