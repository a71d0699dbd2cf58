//! The cleanup of iptables mode removes everything that is owned and nothing else.
#![cfg(feature = "fake")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test reports errors by panicking"
)]

mod support;

use std::collections::BTreeSet;
use std::time::Instant;

use kernlink_iptables_restore::{ChainName, Edit, Fake, Iptables, Restore, Ruleset, Save, Table};
use kernlink_proxier::iptables_mode::cleanup::remaining;
use kernlink_proxier::iptables_mode::{Config, Kernel, Proxier};
use kernlink_services::{Change, Family};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::support::clusters::{Step, apply, step};

const TABLES: [Table; 3] = [Table::Filter, Table::Nat, Table::Mangle];

/// What other programs wrote: a firewall, host ports of a CNI plugin, and the kubelet.
const FOREIGN: &str = "*filter
:INPUT ACCEPT [0:0]
:FORWARD DROP [0:0]
:OUTPUT ACCEPT [0:0]
:FOREIGN - [0:0]
:KUBE-FIREWALL - [0:0]
:KUBE-KUBELET-CANARY - [0:0]
-A INPUT -j FOREIGN
-A INPUT -j KUBE-FIREWALL
-A OUTPUT -j KUBE-FIREWALL
-A FOREIGN -s 192.0.2.66/32 -j DROP
-A KUBE-FIREWALL -m comment --comment \"of the kubelet\" -m mark --mark 0x8000/0x8000 -j DROP
COMMIT
*nat
:PREROUTING ACCEPT [0:0]
:INPUT ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
:CNI-HOSTPORT - [0:0]
:KUBE-KUBELET-CANARY - [0:0]
:KUBE-MARK-DROP - [0:0]
-A PREROUTING -j CNI-HOSTPORT
-A CNI-HOSTPORT -p tcp -m tcp --dport 8080 -j DNAT --to-destination 10.244.0.9:80
-A KUBE-MARK-DROP -j MARK --or-mark 0x8000
COMMIT
*mangle
:PREROUTING ACCEPT [0:0]
:INPUT ACCEPT [0:0]
:FORWARD ACCEPT [0:0]
:OUTPUT ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
:KUBE-IPTABLES-HINT - [0:0]
:KUBE-KUBELET-CANARY - [0:0]
COMMIT
";

fn kernel() -> Kernel {
    let mut kernel = Kernel::fake();
    let mut rules = Fake::new();
    rules.set_ruleset(Family::Ipv4, FOREIGN.parse().unwrap());
    rules.set_ruleset(
        Family::Ipv6,
        FOREIGN
            .replace("192.0.2.66/32", "2001:db8::66/128")
            .parse()
            .unwrap(),
    );
    kernel.rules = Box::new(rules);
    kernel
}

fn saved(kernel: &mut Kernel, family: Family) -> Ruleset {
    let mut rules = Ruleset::new();
    for table in TABLES {
        rules.merge(kernel.rules.save(&Save::table(family, table)).unwrap());
    }
    rules
}

/// Chains and rules, each chain in order. `KUBE-FIREWALL` belongs to the kubelet too: what iptables mode adds to it stays.
fn lines(kernel: &mut Kernel) -> BTreeSet<String> {
    let mut lines = BTreeSet::new();
    for family in Family::ALL {
        for (table, rules) in saved(kernel, family).tables() {
            for (name, chain) in rules.chains() {
                lines.insert(format!("{family} {table} {name}"));
                let kept = chain.rules().map(ToString::to_string);
                let kept = kept.filter(|rule| !rule.contains("block incoming localnet connections"));
                let kept = kept.filter(|rule| !rule.ends_with("-j KUBE-FIREWALL"));
                for (position, rule) in kept.enumerate() {
                    lines.insert(format!("{family} {table} {name} {position} {rule}"));
                }
            }
        }
    }
    lines
}

fn proxier(steps: &[Step], kernel: Kernel) -> Proxier {
    let mut config = Config::new("node-a");
    config.conntrack.max_per_core = 0;
    let mut proxier = Proxier::new(&config, kernel).unwrap();
    apply(&mut proxier, steps);
    proxier
}

/// The kernel after a sync with these steps.
fn synced(steps: &[Step]) -> Kernel {
    let mut proxier = proxier(steps, kernel());
    let synced = proxier.sync(Instant::now()).unwrap();
    assert!(synced.is_success(), "{synced}");
    proxier.into_kernel()
}

/// Adds the chains by which kube-proxy notices that a table was flushed.
fn add_canaries(kernel: &mut Kernel) {
    for table in TABLES {
        let edit = Edit::declare("KUBE-PROXY-CANARY".parse().unwrap());
        kernel
            .rules
            .restore(&Restore::new(Family::Ipv4).with(table, edit))
            .unwrap();
    }
}

fn add_foreign_rule(kernel: &mut Kernel, table: Table, chain: &str, rule: &str) {
    let edit = Edit::append(chain.parse().unwrap(), rule.parse().unwrap());
    kernel
        .rules
        .restore(&Restore::new(Family::Ipv4).with(table, edit))
        .unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn cleanup_leaves_the_tables_as_they_were(steps in vec(step(), 0..30)) {
        let mut kernel = synced(&steps);
        add_canaries(&mut kernel);
        let removal = remaining(&mut *kernel.rules);
        prop_assert_eq!(&removal.errors, &[]);
        prop_assert_eq!(&removal.kept_chains, &[]);
        let outcomes = removal.execute(&mut *kernel.rules);
        prop_assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}\n{removal}");
        prop_assert_eq!(lines(&mut kernel), lines(&mut self::kernel()));
        // Again: nothing is left to do.
        prop_assert_eq!(remaining(&mut *kernel.rules).operations, []);
        // kernlink can return.
        let mut proxier = proxier(&steps, kernel);
        let synced = proxier.sync(Instant::now()).unwrap();
        prop_assert!(synced.is_success(), "{}", synced);
    }
}

fn service() -> Vec<Step> {
    use kernlink_services::{Endpoint, EndpointPort, EndpointSlice, ObjectChange, ObjectName, Port, Service};
    let service = |number: u8| {
        Service::new(ObjectName::new("ns", format!("s{number}")))
            .with_cluster_ip(format!("10.96.0.{number}"))
            .with_port(Port::new("web", 80))
    };
    let slice = |number: u8| {
        let mut slice = EndpointSlice::new(
            ObjectName::new("ns", format!("s{number}-x")),
            format!("s{number}"),
            Family::Ipv4,
        );
        slice.ports = vec![EndpointPort::new("web", 8080)];
        slice.endpoints = vec![Endpoint::new([10, 244, 0, number].into())];
        slice
    };
    let services =
        [1, 2].map(|number| Step::Change(0, Change::Services(ObjectChange::Upsert(service(number)))));
    let slices =
        [1, 2].map(|number| Step::Change(0, Change::EndpointSlices(ObjectChange::Upsert(slice(number)))));
    services.into_iter().chain(slices).collect()
}

/// The chains of table `nat` that begin with a prefix.
fn chains(kernel: &mut Kernel, prefix: &str) -> Vec<ChainName> {
    let saved = saved(kernel, Family::Ipv4);
    let chains = saved.table(Table::Nat).unwrap().chains();
    let names = chains.map(|(name, _)| *name);
    names.filter(|name| name.as_str().starts_with(prefix)).collect()
}

#[test]
fn a_chain_that_a_foreign_rule_uses_stays_with_the_chains_that_it_uses_and_nothing_else_does() {
    let mut kernel = synced(&service());
    add_canaries(&mut kernel);
    let chain = chains(&mut kernel, "KUBE-SVC-")[0];
    let rule = format!("-p tcp -m tcp --dport 9090 -j {chain}");
    add_foreign_rule(&mut kernel, Table::Nat, "PREROUTING", &rule);
    let removal = remaining(&mut *kernel.rules);
    let outcomes = removal.execute(&mut *kernel.rules);
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}\n{removal}");
    let kept: BTreeSet<&str> = removal
        .kept_chains
        .iter()
        .map(|(_, _, chain)| chain.as_str())
        .collect();
    let endpoint = chains(&mut kernel, "KUBE-SEP-");
    assert_eq!(endpoint.len(), 1, "{removal}");
    let expected = BTreeSet::from([chain.as_str(), endpoint[0].as_str(), "KUBE-MARK-MASQ"]);
    assert_eq!(kept, expected);
    assert!(
        removal
            .to_string()
            .contains(&format!("{chain} of table nat stays: foreign rules use it"))
    );
    let text = saved(&mut kernel, Family::Ipv4).to_string();
    assert!(text.contains(&format!("-A PREROUTING {rule}")), "{text}");
    assert!(text.contains("-j DNAT --to-destination 10.244.0."), "{text}");
    for chain in [
        "KUBE-SERVICES",
        "KUBE-POSTROUTING",
        "KUBE-PROXY-CANARY",
        "KUBE-NODEPORTS",
    ] {
        assert!(!text.contains(chain), "{chain}\n{text}");
    }
}

#[test]
fn a_foreign_rule_in_one_table_does_not_keep_the_chains_of_another() {
    let mut kernel = synced(&service());
    add_foreign_rule(&mut kernel, Table::Filter, "FOREIGN", "-j KUBE-SERVICES");
    let removal = remaining(&mut *kernel.rules);
    assert!(
        removal.execute(&mut *kernel.rules).iter().all(Result::is_ok),
        "{removal}"
    );
    let saved = saved(&mut kernel, Family::Ipv4);
    let kept = |table: Table| {
        let chains = saved.table(table).unwrap().chains();
        let owned = chains.filter(|(name, _)| name.as_str() == "KUBE-SERVICES");
        owned.count()
    };
    assert_eq!((kept(Table::Filter), kept(Table::Nat)), (1, 0));
}

#[test]
fn two_copies_of_a_jump_are_both_removed() {
    let mut kernel = synced(&[]);
    let jump = "-m comment --comment \"kubernetes service portals\" -j KUBE-SERVICES";
    add_foreign_rule(&mut kernel, Table::Nat, "PREROUTING", jump);
    let removal = remaining(&mut *kernel.rules);
    assert!(
        removal.execute(&mut *kernel.rules).iter().all(Result::is_ok),
        "{removal}"
    );
    assert_eq!(removal.kept_chains, []);
    assert_eq!(lines(&mut kernel), lines(&mut self::kernel()));
}

#[test]
fn the_removal_prints_as_commands_and_is_one_operation_for_each_table() {
    let mut kernel = synced(&service());
    let before = lines(&mut kernel);
    let removal = remaining(&mut *kernel.rules);
    let text = removal.to_string();
    assert!(
        text.contains("-X KUBE-SERVICES") && text.contains("-D POSTROUTING"),
        "{text}"
    );
    assert!(!text.contains("-X KUBE-FIREWALL"), "{text}");
    assert_eq!(removal.operations.len(), 4, "{text}");
    assert_eq!(lines(&mut kernel), before);
}
