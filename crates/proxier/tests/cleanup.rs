//! Cleanup removes everything that is owned and nothing else; hand-back leaves what kube-proxy would have written.
#![cfg(feature = "fake")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test reports errors by panicking"
)]

#[path = "support/host.rs"]
mod host;
mod support;

use kernlink_ipset::{Operation as SetOperation, SetName};
use kernlink_iptables_restore::{Family as TablesFamily, Save, Table};
use kernlink_proxier::ipvs_mode::cleanup::{self, Removal, hand_back, remaining};
use kernlink_proxier::ipvs_mode::{Kernel, Operation, Proxier, SetId};
use kernlink_services::Family;
use proptest::collection::vec;
use proptest::prelude::*;

use crate::host::{config, host, now, state};
use crate::support::clusters::{Step, apply, step};

/// A host after a sync with these steps.
fn synced(steps: &[Step]) -> Kernel {
    let mut proxier = Proxier::new(&config(), host()).unwrap();
    apply(&mut proxier, steps);
    let synced = proxier.sync(now()).unwrap();
    assert!(synced.is_success(), "{synced}");
    proxier.into_kernel()
}

fn clean(kernel: Kernel) -> Kernel {
    let mut proxier = cleanup::without_services(config(), kernel).unwrap();
    let (synced, removal, outcomes) = cleanup::cleanup(&mut proxier, now()).unwrap();
    let synced = synced.unwrap();
    assert!(synced.is_success(), "{synced}");
    assert_eq!(removal.errors, []);
    for (operation, outcome) in removal.operations.iter().zip(outcomes) {
        assert_eq!(outcome, Ok(()), "{operation}");
    }
    proxier.into_kernel()
}

fn set_names(kernel: &mut Kernel) -> Vec<String> {
    let headers = kernel.sets.headers().unwrap().into_iter();
    headers.map(|header| header.set.name.to_string()).collect()
}

/// The state without tables that were created when they were read.
fn comparable(kernel: &mut Kernel) -> Vec<String> {
    for family in TablesFamily::ALL {
        for table in [Table::Nat, Table::Filter] {
            kernel.rules.save(&Save::table(family, table)).unwrap();
        }
    }
    let text = state(kernel);
    text.lines().map(str::to_owned).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn cleanup_leaves_the_host_as_it_was(steps in vec(step(), 0..30)) {
        let mut kernel = clean(synced(&steps));
        prop_assert_eq!(comparable(&mut kernel), comparable(&mut host()));
        // Again: nothing is left to do.
        let mut proxier = cleanup::without_services(config(), kernel).unwrap();
        prop_assert_eq!(cleanup::plan_cleanup(&mut proxier, now()).unwrap(), (None, Removal::default()));
    }

    #[test]
    fn hand_back_removes_the_sets_of_kernlink_only_and_kernlink_can_return(steps in vec(step(), 0..30)) {
        let mut kernel = synced(&steps);
        let before = set_names(&mut kernel);
        let removal = hand_back(&mut kernel);
        prop_assert!(removal.execute(&mut kernel).iter().all(Result::is_ok), "{}", removal);
        let kept: Vec<String> = before.into_iter().filter(|name| !name.starts_with("KERNLINK")).collect();
        prop_assert_eq!(set_names(&mut kernel), kept);
        let mut proxier = Proxier::new(&config(), kernel).unwrap();
        apply(&mut proxier, &steps);
        let plan = proxier.plan(now()).unwrap();
        for (_, step) in plan.steps() {
            let text = step.operation.to_string();
            prop_assert!(text.contains("KERNLINK"), "{}", plan);
        }
    }
}

#[test]
fn a_chain_that_a_foreign_rule_uses_stays_with_the_chains_that_it_uses() {
    let mut kernel = synced(&[]);
    let rules = "*nat\n-A PREROUTING -p tcp -m tcp --dport 8080 -j KUBE-LOAD-BALANCER\nCOMMIT\n";
    let ruleset: kernlink_iptables_restore::Ruleset =
        "*nat\n:PREROUTING ACCEPT [0:0]\nCOMMIT\n".parse().unwrap();
    assert!(ruleset.table(Table::Nat).is_some());
    let rule = rules.lines().nth(1).unwrap().trim_start_matches("-A PREROUTING ");
    let restore = kernlink_iptables_restore::Restore::new(Family::Ipv4).with(
        Table::Nat,
        kernlink_iptables_restore::Edit::append("PREROUTING".parse().unwrap(), rule.parse().unwrap()),
    );
    kernel.rules.restore(&restore).unwrap();
    let mut proxier = cleanup::without_services(config(), kernel).unwrap();
    let (synced, removal, outcomes) = cleanup::cleanup(&mut proxier, now()).unwrap();
    assert!(synced.unwrap().is_success());
    assert!(outcomes.iter().all(Result::is_ok), "{outcomes:?}");
    let kept: Vec<&str> = removal
        .kept_chains
        .iter()
        .map(|(_, _, chain)| chain.as_str())
        .collect();
    assert_eq!(kept, ["KUBE-LOAD-BALANCER", "KUBE-MARK-MASQ"]);
    assert!(
        removal.to_string().contains("stays: foreign rules use it"),
        "{removal}"
    );
    let saved = proxier
        .kernel_mut()
        .rules
        .save(&Save::table(Family::Ipv4, Table::Nat))
        .unwrap();
    let saved = saved.to_string();
    assert!(
        saved.contains("-A PREROUTING -p tcp -m tcp --dport 8080 -j KUBE-LOAD-BALANCER"),
        "{saved}"
    );
    assert!(
        saved.contains(":KUBE-MARK-MASQ") && !saved.contains("KUBE-SERVICES"),
        "{saved}"
    );
}

#[test]
fn hand_back_restores_the_size_of_an_enlarged_set() {
    let mut kernel = synced(&[]);
    let mut larger = SetId::ClusterIp.definition(Family::Ipv4);
    larger.options.maxelem = Some(131_072);
    let replace = kernlink_proxier::ipvs_mode::replacement::Replacement {
        set: larger,
        entries: Vec::new(),
    };
    kernel.execute(&Operation::ReplaceSet(Box::new(replace))).unwrap();
    let removal = hand_back(&mut kernel);
    assert!(
        removal.execute(&mut kernel).iter().all(Result::is_ok),
        "{removal}"
    );
    assert_eq!(removal.too_large, []);
    let header = kernel
        .sets
        .header(&SetName::new("KUBE-CLUSTER-IP").unwrap())
        .unwrap();
    assert_eq!(header.set.options.maxelem, Some(65_536));
    // An unknown set stays.
    assert!(set_names(&mut kernel).contains(&"blocked".to_owned()));
    assert!(!removal.operations.iter().any(|operation| {
        matches!(operation, Operation::Set(SetOperation::Destroy { set, .. }) if set.to_string().starts_with("KUBE"))
    }));
}

#[test]
fn the_plan_of_a_cleanup_prints_commands_and_changes_nothing() {
    let mut kernel = synced(&[]);
    let before = comparable(&mut kernel);
    let mut proxier = cleanup::without_services(config(), kernel).unwrap();
    let (plan, removal) = cleanup::plan_cleanup(&mut proxier, now()).unwrap();
    let plan = plan.unwrap();
    assert!(plan.is_empty(), "{plan}");
    let text = removal.to_string();
    assert!(text.contains("ipset destroy KUBE-CLUSTER-IP"), "{text}");
    assert!(text.contains("ip link delete kube-ipvs0"), "{text}");
    assert!(text.contains("-X KUBE-SERVICES"), "{text}");
    assert_eq!(comparable(&mut proxier.into_kernel()), before);
}

/// A host with the chains of iptables mode, on which IPVS mode did not run.
#[test]
fn a_cleanup_creates_nothing_where_ipvs_mode_is_not_in_use() {
    let mut kernel = host();
    let chain = kernlink_iptables_restore::Restore::new(Family::Ipv4).with(
        Table::Nat,
        kernlink_iptables_restore::Edit::declare("KUBE-SERVICES".parse().unwrap()),
    );
    kernel.rules.restore(&chain).unwrap();
    let mut before = comparable(&mut kernel);
    let mut proxier = cleanup::without_services(config(), kernel).unwrap();
    let (plan, removal) = cleanup::plan_cleanup(&mut proxier, now()).unwrap();
    assert_eq!(plan, None);
    assert_eq!(removal.operations.len(), 1, "{removal}");
    let (synced, _, outcomes) = cleanup::cleanup(&mut proxier, now()).unwrap();
    assert_eq!((synced, outcomes), (None, vec![Ok(())]));
    before.retain(|line| !line.contains("KUBE-SERVICES"));
    assert_eq!(comparable(&mut proxier.into_kernel()), before);
}

/// The rest of a cleanup that did not end.
#[test]
fn a_cleanup_removes_a_link_without_sets() {
    let mut kernel = synced(&[]);
    for operation in remaining(&mut kernel, &config()).operations {
        if !matches!(operation, Operation::Link(_)) {
            kernel.execute(&operation).unwrap();
        }
    }
    assert_eq!(set_names(&mut kernel), ["blocked"]);
    let mut kernel = clean(kernel);
    assert_eq!(comparable(&mut kernel), comparable(&mut host()));
}
