//! iptables mode on the fake kernel: random clusters reach the desired state, a change writes only what it concerns, and nothing foreign
//! is changed.
#![cfg(feature = "fake")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test reports errors by panicking"
)]

#[path = "support/iptables_node.rs"]
mod iptables_node;
mod support;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kernlink_iptables_restore::{Edit, Iptables, Ruleset, Save, Style, Table};
use kernlink_proxier::Outcome;
use kernlink_proxier::iptables_mode::{IptablesMode, Key, Operation, Proxier, Synced};
use kernlink_services::{
    Change, Endpoint, EndpointPort, EndpointSlice, Family, Kind, ObjectChange, ObjectName,
};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::iptables_node::{
    FOREIGN, SOURCE, change_endpoints, config, deliver, deliver_numbered, filled, kernel, proxier_on, saved,
    service, slice, sync,
};
use crate::support::clusters::{apply, step};

/// The lines of a listing and of the kernel that are comparable: rules of owned chains in their normal form, sorted within the chains
/// that Services share.
fn owned_lines(text: &str, family: Family) -> BTreeSet<String> {
    let ruleset: Ruleset = text.parse().unwrap();
    let mut lines = BTreeSet::new();
    for (table, rules) in ruleset.tables() {
        for (name, chain) in rules
            .chains()
            .filter(|(name, _)| name.as_str().starts_with("KUBE-"))
        {
            let is_shared = !name.as_str().starts_with("KUBE-S") || name.as_str() == "KUBE-SERVICES";
            lines.insert(format!("{table} {name}"));
            for (position, rule) in chain.rules().enumerate() {
                let text = rule.normal_form(family).render(Style::SAVE);
                // The tools print two spaces before the name of an accounting object.
                let text = text.replace("  ", " ");
                if text.contains("of the kubelet") {
                    continue;
                }
                let position = if is_shared { 0 } else { position };
                lines.insert(format!("{table} {name} {position} {text}"));
            }
        }
    }
    lines
}

fn assert_in_desired_state(proxier: &mut Proxier) {
    let listings = proxier.state().listings(1);
    for (family, text) in [
        (Family::Ipv4, listings.iptables),
        (Family::Ipv6, listings.ip6tables),
    ] {
        let kernel = saved(proxier, family);
        let observed = owned_lines(&kernel.to_string(), family);
        let mut desired = owned_lines(&text, family);
        if family == Family::Ipv6 {
            // Created for the jumps to it.
            desired.insert("filter KUBE-FIREWALL".to_owned());
        }
        assert_eq!(
            observed.difference(&desired).collect::<Vec<_>>(),
            Vec::<&String>::new(),
            "{family}: not desired"
        );
        assert_eq!(
            desired.difference(&observed).collect::<Vec<_>>(),
            Vec::<&String>::new(),
            "{family}: missing"
        );
        let services = kernel
            .chain(Table::Nat, &"KUBE-SERVICES".parse().unwrap())
            .unwrap();
        let last = services.rules().last().unwrap().to_string();
        assert!(last.contains("this must be the last rule"), "{last}");
    }
}

fn assert_foreign_unchanged(proxier: &mut Proxier) {
    let rules = saved(proxier, Family::Ipv4).to_string();
    for line in FOREIGN
        .lines()
        .filter(|line| line.starts_with("-A") || line.starts_with(":FOREIGN"))
    {
        assert!(rules.contains(line), "{line} is missing in\n{rules}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn random_clusters_reach_the_desired_state_and_foreign_rules_stay(
        before in vec(step(), 0..25),
        after in vec(step(), 0..25),
    ) {
        let mut proxier = proxier_on(kernel());
        apply(&mut proxier, &before);
        sync(&mut proxier);
        assert_in_desired_state(&mut proxier);
        apply(&mut proxier, &after);
        sync(&mut proxier);
        assert_in_desired_state(&mut proxier);
        assert_foreign_unchanged(&mut proxier);
        proxier.resync();
        let plan = proxier.plan(Instant::now()).unwrap();
        prop_assert!(plan.is_empty(), "{}", plan);
        // Another process finds nothing to do.
        let mut next = proxier_on(proxier.into_kernel());
        apply(&mut next, &[before, after].concat());
        let plan = next.plan(Instant::now()).unwrap();
        prop_assert!(plan.is_empty(), "{}", plan);
    }
}

/// The chains that the steps of a sync change.
fn changed_chains(synced: &Synced) -> BTreeSet<String> {
    let mut chains = BTreeSet::new();
    for (_, step) in synced.plan.steps() {
        let Operation::Write(write) = &step.operation else {
            panic!("{}", step.operation)
        };
        for (_, edits) in write.restore().tables() {
            chains.extend(edits.iter().map(|edit| edit.chain().to_string()));
        }
    }
    chains
}

#[test]
fn a_changed_endpoint_writes_the_chains_of_its_service_only() {
    for services in [3, 60] {
        let mut proxier = filled(services);
        change_endpoints(&mut proxier, 1, &[1, 3]);
        let synced = sync(&mut proxier);
        // One to write, and the deletion of the earlier endpoint's chain, in one input.
        assert_eq!(synced.plan.len(), 2);
        let chains = changed_chains(&synced);
        // The selection, the new and the earlier endpoint.
        assert_eq!(chains.len(), 3, "{chains:?}");
        assert!(
            chains.iter().all(|chain| chain.starts_with("KUBE-S")),
            "{chains:?}"
        );
        assert_in_desired_state(&mut proxier);
    }
}

#[test]
fn a_new_service_does_not_write_the_rules_of_others() {
    let mut proxier = filled(5);
    proxier.change(SOURCE, Change::Services(ObjectChange::Upsert(service(9))));
    change_endpoints(&mut proxier, 9, &[1]);
    let synced = sync(&mut proxier);
    let edits: Vec<Edit> = synced
        .plan
        .steps()
        .flat_map(|(_, step)| match &step.operation {
            Operation::Write(write) => {
                let restore = write.restore();
                let edits = restore.tables().flat_map(|(_, edits)| edits);
                edits.cloned().collect()
            }
            _ => Vec::new(),
        })
        .collect();
    let shared: Vec<&Edit> = edits
        .iter()
        .filter(|edit| edit.chain().as_str() == "KUBE-SERVICES")
        .collect();
    assert!(matches!(shared[..], [Edit::Insert { .. }]), "{shared:?}");
    assert_in_desired_state(&mut proxier);
}

#[test]
fn a_deleted_service_leaves_nothing() {
    let mut proxier = filled(2);
    let name = ObjectName::new("ns", "s1");
    proxier.change(SOURCE, Change::Services(ObjectChange::Delete(name)));
    sync(&mut proxier);
    let rules = saved(&mut proxier, Family::Ipv4).to_string();
    assert!(!rules.contains("ns/s1"), "{rules}");
    assert!(rules.contains("ns/s0"));
}

#[test]
fn a_sync_without_changes_reads_nothing_and_does_nothing() {
    let mut proxier = filled(3);
    let cost = proxier.cost();
    let synced = sync(&mut proxier);
    assert!(synced.plan.is_empty());
    assert_eq!(proxier.cost().listings, cost.listings);
    assert_eq!(proxier.cost().rereads, cost.rereads);
}

#[test]
fn chains_that_another_program_flushed_are_written_again() {
    let mut proxier = filled(3);
    let mut flushed = kernlink_iptables_restore::Fake::new();
    flushed.set_ruleset(Family::Ipv4, FOREIGN.parse().unwrap());
    proxier.kernel_mut().rules = Box::new(flushed);
    proxier.resync();
    sync(&mut proxier);
    assert_in_desired_state(&mut proxier);
}

#[test]
fn a_rule_that_another_program_removed_or_added_twice_is_repaired() {
    let mut proxier = filled(3);
    let text = saved(&mut proxier, Family::Ipv4).to_string();
    let rule = text
        .lines()
        .find(|line| line.starts_with("-A KUBE-SERVICES") && line.contains("ns/s1"))
        .unwrap();
    for replacement in [String::new(), format!("{rule}\n{rule}\n")] {
        let changed = text.replacen(&format!("{rule}\n"), &replacement, 1);
        assert_ne!(changed, text);
        let mut rules = kernlink_iptables_restore::Fake::new();
        rules.set_ruleset(Family::Ipv4, changed.parse().unwrap());
        proxier.kernel_mut().rules = Box::new(rules);
        proxier.resync();
        sync(&mut proxier);
        assert_in_desired_state(&mut proxier);
        let services = saved(&mut proxier, Family::Ipv4);
        let services = services
            .chain(Table::Nat, &"KUBE-SERVICES".parse().unwrap())
            .unwrap();
        assert_eq!(services.rules().len(), 4);
    }
}

/// Refuses every input that contains a text, naming the edit or only the table.
struct Refusing {
    rules: kernlink_iptables_restore::Fake,
    text: &'static str,
    names_edit: bool,
}

impl Iptables for Refusing {
    fn execute(
        &mut self,
        operations: &[kernlink_iptables_restore::Operation],
    ) -> Vec<Result<(), kernlink_iptables_restore::Error>> {
        use kernlink_iptables_restore::{Error, Operation, Refused, RefusedKind};
        let execute = |operation: &Operation| {
            let Operation::Restore(restore) = operation else {
                return self.rules.execute(std::slice::from_ref(operation)).remove(0);
            };
            let found = restore.tables().find_map(|(table, edits)| {
                let edit = edits.iter().find(|edit| {
                    edit.rule()
                        .is_some_and(|rule| rule.to_string().contains(self.text))
                })?;
                Some((table, edit.clone()))
            });
            let Some((table, edit)) = found else {
                return self.rules.execute(std::slice::from_ref(operation)).remove(0);
            };
            // The tables before the refused one are changed.
            let mut before = kernlink_iptables_restore::Restore::new(restore.family);
            let mut applied = Vec::new();
            for (of, edits) in restore.tables().take_while(|(of, _)| *of != table) {
                before.table_mut(of).extend(edits.iter().cloned());
                applied.push(of);
            }
            self.rules.restore(&before)?;
            let refused = if self.names_edit {
                Refused::Edit { table, edit }
            } else {
                Refused::Table(table)
            };
            Err(Error::Refused {
                tool: "iptables-restore".into(),
                refused: Box::new(refused),
                kind: RefusedKind::Other,
                text: "refused by the test".into(),
                status: Some(1),
                applied,
            })
        };
        operations.iter().map(execute).collect()
    }

    fn save(&mut self, request: &Save) -> Result<Ruleset, kernlink_iptables_restore::Error> {
        self.rules.save(request)
    }
}

#[test]
fn a_service_that_is_refused_affects_no_other_and_is_retried() {
    for names_edit in [true, false] {
        let mut kernel = kernel();
        let mut rules = kernlink_iptables_restore::Fake::new();
        rules.set_ruleset(Family::Ipv4, FOREIGN.parse().unwrap());
        kernel.rules = Box::new(Refusing {
            rules,
            text: "10.244.3.1",
            names_edit,
        });
        let mut proxier = proxier_on(kernel);
        deliver_numbered(&mut proxier, 9, &[1]);
        let start = Instant::now();
        let synced = proxier.sync(start).unwrap();
        let failed: Vec<Key> = synced
            .plan
            .steps()
            .zip(synced.report.outcomes())
            .filter(|(_, outcome)| matches!(outcome, Outcome::Failed(_)))
            .map(|((_, step), _)| step.key.clone())
            .collect();
        assert_eq!(
            failed,
            [Key::Service(Family::Ipv4, ObjectName::new("ns", "s3"))],
            "{synced}"
        );
        let rules = saved(&mut proxier, Family::Ipv4).to_string();
        assert!(rules.contains("ns/s2") && rules.contains("ns/s8") && !rules.contains("10.244.3.1"));
        // The cause is gone: the retry writes it.
        change_endpoints(&mut proxier, 3, &[2]);
        let synced = proxier.sync(start + Duration::from_secs(400)).unwrap();
        assert!(synced.is_success(), "{synced}");
        assert_in_desired_state(&mut proxier);
    }
}

#[test]
fn tables_that_cannot_be_read_are_written_nevertheless() {
    let mut kernel = kernel();
    let mut rules = kernlink_iptables_restore::Fake::new();
    rules.set_ruleset(Family::Ipv4, FOREIGN.parse().unwrap());
    rules.set_unreadable(Family::Ipv4, Table::Filter);
    rules.set_unreadable(Family::Ipv4, Table::Nat);
    kernel.rules = Box::new(rules);
    let mut proxier = proxier_on(kernel);
    deliver(&mut proxier, vec![service(1)], vec![slice(1, &[1])]);
    let synced = sync(&mut proxier);
    assert!(!synced.events.is_empty());
    assert!(
        synced
            .plan
            .steps()
            .any(|(_, step)| matches!(step.operation, Operation::EnsureJump { .. }))
    );
    // A change writes no more than otherwise.
    change_endpoints(&mut proxier, 1, &[2]);
    let synced = sync(&mut proxier);
    assert_eq!(synced.plan.len(), 2, "{}", synced.plan);
}

#[test]
fn the_data_path_can_run_on_a_thread() {
    fn is_send<T: Send>() {}
    is_send::<kernlink_proxier::Proxier<IptablesMode>>();
}

#[test]
fn a_family_that_an_earlier_process_served_and_this_one_does_not_has_no_rules_of_services() {
    let mut service = service(1);
    service.cluster_ips = vec![service.cluster_ip.clone(), "fd00:96::1".to_owned()];
    service.ip_families = vec![Family::Ipv4, Family::Ipv6];
    let slice = EndpointSlice::new(
        ObjectName::new("ns", "six"),
        Arc::clone(&service.name.name),
        Family::Ipv6,
    )
    .with_port(EndpointPort::new(Arc::clone(&service.ports[0].name), 8080))
    .with_endpoint(Endpoint::new("fd01::1".parse().unwrap()));
    let deliver = |proxier: &mut Proxier| {
        proxier.change(SOURCE, Change::Services(ObjectChange::Upsert(service.clone())));
        proxier.change(
            SOURCE,
            Change::EndpointSlices(ObjectChange::Upsert(slice.clone())),
        );
        for kind in [Kind::Service, Kind::EndpointSlice, Kind::Node] {
            proxier.change(SOURCE, Change::synced(kind));
        }
    };
    let saved = |proxier: &mut Proxier| {
        let request = Save::table(Family::Ipv6, Table::Nat);
        proxier.kernel_mut().rules.save(&request).unwrap().to_string()
    };
    let mut before = proxier_on(kernel());
    deliver(&mut before);
    sync(&mut before);
    assert!(saved(&mut before).contains("fd00:96::1"));
    let mut without = config();
    without.services.families = [Family::Ipv4].into();
    let mut proxier = Proxier::new(&without, before.into_kernel()).unwrap();
    deliver(&mut proxier);
    sync(&mut proxier);
    let rules = saved(&mut proxier);
    assert!(
        !rules.contains("KUBE-SVC-") && !rules.contains("fd00:96::1"),
        "{rules}"
    );
    proxier.resync();
    assert!(sync(&mut proxier).plan.is_empty());
    // Where there was nothing, nothing is created.
    let mut fresh = Proxier::new(&without, kernel()).unwrap();
    deliver(&mut fresh);
    sync(&mut fresh);
    assert!(!saved(&mut fresh).contains("KUBE-"));
}

#[test]
fn a_family_that_is_not_served_is_searched_until_its_tables_can_be_printed() {
    let mut before = filled(2);
    let tables = |unreadable: Option<Table>, ruleset: Ruleset| {
        let mut rules = kernlink_iptables_restore::Fake::new();
        rules.set_ruleset(Family::Ipv4, ruleset);
        if let Some(table) = unreadable {
            rules.set_unreadable(Family::Ipv4, table);
        }
        Box::new(rules)
    };
    let left = saved(&mut before, Family::Ipv4);
    let mut without = config();
    without.services.families = [Family::Ipv6].into();
    let mut kernel = kernel();
    kernel.rules = tables(Some(Table::Nat), left.clone());
    let mut proxier = Proxier::new(&without, kernel).unwrap();
    deliver_numbered(&mut proxier, 2, &[1, 2]);
    sync(&mut proxier);
    proxier.kernel_mut().rules = tables(None, left);
    assert!(
        saved(&mut proxier, Family::Ipv4)
            .to_string()
            .contains("KUBE-SVC-")
    );
    proxier.resync();
    sync(&mut proxier);
    assert!(
        !saved(&mut proxier, Family::Ipv4)
            .to_string()
            .contains("KUBE-SVC-")
    );
}

/// It has no chain, only a rule that rejects its clients.
#[test]
fn a_family_that_is_not_served_any_more_does_not_reject_the_clients_of_services_without_endpoints() {
    let mut service = service(1);
    service.cluster_ips = vec![service.cluster_ip.clone(), "fd00:96::1".to_owned()];
    service.ip_families = vec![Family::Ipv4, Family::Ipv6];
    let deliver =
        |proxier: &mut Proxier| crate::iptables_node::deliver(proxier, vec![service.clone()], Vec::new());
    let rejects = |proxier: &mut Proxier| {
        let request = Save::table(Family::Ipv6, Table::Filter);
        let saved = proxier.kernel_mut().rules.save(&request).unwrap();
        saved.to_string().contains("fd00:96::1")
    };
    let mut before = proxier_on(kernel());
    deliver(&mut before);
    sync(&mut before);
    assert!(rejects(&mut before));
    let mut without = config();
    without.services.families = [Family::Ipv4].into();
    let mut proxier = Proxier::new(&without, before.into_kernel()).unwrap();
    deliver(&mut proxier);
    sync(&mut proxier);
    assert!(!rejects(&mut proxier));
    proxier.resync();
    assert!(sync(&mut proxier).plan.is_empty());
}
