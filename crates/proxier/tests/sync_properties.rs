//! Properties of plans on random clusters, executed on the fake kernel: the desired state is reached by one sync, in an order that
//! works, and no foreign object is changed.
#![cfg(feature = "fake")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test reports errors by panicking"
)]

#[path = "support/faulty.rs"]
mod faulty;
#[path = "support/host.rs"]
mod host;
mod support;

use std::collections::{BTreeMap, BTreeSet};

use kernlink_ipset::Element;
use kernlink_iptables_restore::{Family as TablesFamily, Save};
use kernlink_ipvs::{Protocol, RealServer, Scheduler, VirtualServer, VirtualServerKey};
use kernlink_proxier::ipvs_mode::{Kernel, Key, Operation, Phase, Proxier, SetId};
use kernlink_services::{Change, Family, ObjectChange, ObjectName};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::faulty::Faults;
use crate::host::{config, foreign_servers, host, listed, now, state};
use crate::support::clusters::{Step, apply, step};

/// The desired virtual servers, sets and addresses, as text.
fn owned_state(proxier: &Proxier) -> Vec<String> {
    let listings = proxier.state().listings(Default::default(), 1);
    let mut lines: Vec<String> = [&listings.ipvs, &listings.ipset, &listings.ledger]
        .into_iter()
        .flat_map(|text| text.lines().map(str::to_owned))
        .collect();
    lines.extend(
        listings
            .addresses
            .lines()
            .map(|line| format!("kube-ipvs0 {line}")),
    );
    lines.sort();
    lines
}

/// The number of rules that look up each set.
fn rules_by_set(kernel: &mut Kernel) -> BTreeMap<String, usize> {
    let mut sets = BTreeMap::new();
    for family in TablesFamily::ALL {
        let rules = kernel.rules.save(&Save::all(family)).unwrap().to_string();
        for rest in rules.split("--match-set ").skip(1) {
            let name = rest.split(' ').next().unwrap_or_default();
            *sets.entry(name.to_owned()).or_default() += 1;
        }
    }
    sets
}

/// The virtual servers whose clients are restricted: they are entries of the set, and rules look it up.
fn restricted_servers(kernel: &mut Kernel) -> BTreeSet<VirtualServerKey> {
    let rules = rules_by_set(kernel);
    let names = Family::ALL.map(|family| SetId::LoadBalancerFirewall.name(family));
    let mut servers = BTreeSet::new();
    for contents in kernel.sets.list().unwrap() {
        let name = contents.header.set.name;
        if !names.contains(&name) || !rules.contains_key(&name.to_string()) {
            continue;
        }
        for entry in &contents.entries {
            let Element::IpPort { ip, port } = entry.element() else {
                panic!("{entry}");
            };
            let protocol = Protocol::from_number(u16::from(port.protocol.0));
            servers.insert(VirtualServerKey::new(*ip, port.port, protocol));
        }
    }
    servers
}

/// The kernel after a sync of a proxier with these steps, when no real server drains any more.
fn synced(kernel: Kernel, steps: &[Step]) -> Kernel {
    let mut proxier = Proxier::new(&config(), kernel).unwrap();
    apply(&mut proxier, steps);
    settle(&mut proxier);
    proxier.into_kernel()
}

/// Syncs until no real server drains any more. Each sync must succeed.
fn settle(proxier: &mut Proxier) {
    let mut at = now();
    for _ in 0..3 {
        let synced = proxier.sync(at).unwrap();
        assert!(synced.is_success(), "{synced}");
        match synced.next {
            Some(next) => at = next,
            None => return,
        }
    }
    panic!("real servers without connections still drain");
}

/// A proxier with these steps, before its first sync.
fn proxier(kernel: Kernel, steps: &[Step]) -> Proxier {
    let mut proxier = Proxier::new(&config(), kernel).unwrap();
    apply(&mut proxier, steps);
    proxier
}

/// The kernel without the ledgers, as kube-proxy leaves it.
fn without_ledger(mut kernel: Kernel) -> Kernel {
    for family in Family::ALL {
        kernel.sets.destroy(&SetId::Ledger.name(family)).unwrap();
    }
    kernel
}

/// Adds a virtual server that no process of kernlink wrote, with another scheduler if it `differs`.
fn add_foreign(kernel: &mut Kernel, mut server: VirtualServer, real_servers: &[RealServer], differs: bool) {
    if differs {
        server.scheduler = Scheduler::LBLC;
    }
    let key = server.key;
    kernel.ipvs.add_virtual_server(&server).unwrap();
    for real_server in real_servers {
        kernel.ipvs.add_real_server(&key, real_server).unwrap();
    }
}

/// The virtual servers with these keys, and their real servers.
fn of_keys(kernel: &mut Kernel, keys: &BTreeSet<VirtualServerKey>) -> Vec<String> {
    let listed = kernel.ipvs.list_all().unwrap().into_iter();
    let listed = listed.filter(|(server, _)| keys.contains(&server.key));
    listed
        .map(|(server, real_servers)| format!("{server} {real_servers:?}"))
        .collect()
}

/// The steps without annotated weights: whether a real server that has weight 0 before it is removed has connections is known only
/// after it was read, so a plan after a listing deletes it at once, and any other plan lets it drain.
fn without_weights(mut steps: Vec<Step>) -> Vec<Step> {
    for step in &mut steps {
        let services = match step {
            Step::Change(_, Change::Services(ObjectChange::Upsert(service))) => std::slice::from_mut(service),
            Step::Change(_, Change::Services(ObjectChange::ReplaceAll(services))) => services,
            _ => continue,
        };
        for service in services {
            service.annotations.remove("kernlink.io/weights");
        }
    }
    steps
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn every_step_succeeds_and_the_kernel_reaches_the_desired_state(
        before in vec(step(), 0..25),
        after in vec(step(), 0..25),
    ) {
        let kernel = synced(host(), &before);
        let mut proxier = proxier(kernel, &[before, after].concat());
        settle(&mut proxier);
        // The kernel contains the desired state and the foreign objects.
        let bare = state(&mut host());
        let foreign: BTreeSet<&str> = bare.lines().filter(|line| !line.starts_with(' ') && !line.starts_with("Ipv")).collect();
        let desired = owned_state(&proxier);
        let observed = listed(proxier.kernel_mut());
        let owned: Vec<&String> = observed.iter().filter(|line| !foreign.contains(line.as_str())).collect();
        prop_assert_eq!(owned, desired.iter().collect::<Vec<_>>());
        proxier.resync();
        let plan = proxier.plan(now()).unwrap();
        prop_assert!(plan.is_empty(), "{}", plan);
    }

    #[test]
    fn a_sync_that_programs_some_services_first_ends_in_the_same_state(
        steps in vec(step(), 0..40),
        first in vec(0..5_u8, 1..3),
    ) {
        let mut config = config();
        config.first_services = first.iter().map(|n| ObjectName::new("ns", format!("s{n}"))).collect();
        let mut proxier = Proxier::new(&config, host()).unwrap();
        apply(&mut proxier, &steps);
        let mut synced = proxier.sync(now()).unwrap();
        if synced.is_partial {
            prop_assert!(synced.report.is_success(), "{}", synced);
            synced = proxier.sync(now()).unwrap();
        }
        prop_assert!(synced.is_success(), "{}", synced);
        let mut whole = self::proxier(host(), &steps);
        let plan = whole.plan(now()).unwrap();
        prop_assert!(whole.apply(&plan, now()).unwrap().is_success());
        prop_assert_eq!(state(proxier.kernel_mut()), state(whole.kernel_mut()));
        proxier.resync();
        let plan = proxier.plan(now()).unwrap();
        prop_assert!(plan.is_empty(), "{}", plan);
    }

    #[test]
    fn a_second_sync_and_a_new_process_have_nothing_to_do(steps in vec(step(), 0..30)) {
        let mut proxier = proxier(host(), &steps);
        proxier.sync(now()).unwrap();
        prop_assert!(proxier.sync(now()).unwrap().plan.is_empty());
        let kernel = proxier.into_kernel();
        let mut restarted = self::proxier(kernel, &steps);
        let plan = restarted.plan(now()).unwrap();
        prop_assert!(plan.is_empty(), "{}", plan);
    }

    #[test]
    fn observed_values_recorded_from_outcomes_equal_those_read_from_the_kernel(
        before in vec(step(), 0..20),
        after in vec(step(), 0..20),
    ) {
        let (before, after) = (without_weights(before), without_weights(after));
        // The same plan from recorded values and from a new listing.
        let mut recording = proxier(host(), &before);
        recording.sync(now()).unwrap();
        let mut listing = proxier(host(), &before);
        listing.sync(now()).unwrap();
        apply(&mut recording, &after);
        apply(&mut listing, &after);
        listing.resync();
        let (recorded, listed) = (recording.plan(now()).unwrap(), listing.plan(now()).unwrap());
        prop_assert_eq!(recorded.to_string(), listed.to_string());
    }

    #[test]
    fn random_failures_end_in_the_desired_state_once_they_stop(
        before in vec(step(), 0..20),
        after in vec(step(), 0..20),
        seed in 1..u64::MAX,
        percent in 1..60_u64,
    ) {
        let whole = [before.clone(), after].concat();
        let undisturbed = state(&mut synced(synced(host(), &before), &whole));
        let (mut kernel, faults) = Faults::of_kernel(host());
        kernel.rules = faults.tables(kernel.rules);
        faults.fail_at_random(percent, seed);
        let mut proxier = self::proxier(kernel, &before);
        let mut at = now();
        let (mut listings, mut created) = (0, 0);
        for round in 0..400 {
            if round == 3 {
                apply(&mut proxier, &whole);
            }
            if round == 8 {
                faults.end();
                listings = proxier.cost().listings;
            }
            let synced = proxier.sync(at).unwrap();
            prop_assert!(round < 9 || synced.counts().failed == 0, "{}", synced);
            if round >= 8 {
                created += synced.plan.steps().filter(|(_, step)| matches!(step.key, Key::Set(..))).count();
            }
            match synced.next {
                Some(next) => at = next,
                None if round > 8 => break,
                None => {}
            }
        }
        prop_assert!(proxier.sync(at).unwrap().is_success());
        // The kernel was listed again only for sets that could not be created before.
        prop_assert!(proxier.cost().listings <= listings + 1 + created);
        let mut kernel = proxier.into_kernel();
        prop_assert_eq!(state(&mut kernel), undisturbed);
    }

    #[test]
    fn random_failures_of_readings_and_operations_end_in_the_desired_state_and_touch_nothing_foreign_or_desired(
        before in vec(step(), 0..20),
        after in vec(step(), 0..20),
        seed in 1..u64::MAX,
        percent in 0..40_u64,
        reading_percent in 1..60_u64,
        is_restarted in any::<bool>(),
    ) {
        let whole = [before.clone(), after].concat();
        let mut first = synced(host(), &before);
        let servers_before: BTreeSet<VirtualServerKey> =
            first.ipvs.list_all().unwrap().iter().map(|(server, _)| server.key).collect();
        let restricted_before = restricted_servers(&mut first);
        let mut undisturbed = synced(first, &whole);
        let kept: BTreeSet<VirtualServerKey> = undisturbed
            .ipvs
            .list_all()
            .unwrap()
            .iter()
            .map(|(server, _)| server.key)
            .filter(|key| servers_before.contains(key))
            .collect();
        // A load balancer that was open to all clients is withdrawn while its new source ranges cannot be applied. One that was restricted before
        // is not.
        let mut newly_restricted = restricted_servers(&mut undisturbed);
        newly_restricted.retain(|key| !restricted_before.contains(key));
        let mut withdrawn = BTreeSet::new();
        let undisturbed = state(&mut undisturbed);
        let (mut kernel, faults) = Faults::of_kernel(synced(host(), &before));
        kernel.rules = faults.tables(kernel.rules);
        let mut proxier = self::proxier(kernel, &before);
        if !is_restarted {
            prop_assert!(proxier.sync(now()).unwrap().is_success());
        }
        faults.fail_at_random(percent, seed);
        faults.fail_readings_at_random(reading_percent);
        apply(&mut proxier, &whole);
        let mut at = now();
        for round in 0..400 {
            if round == 8 {
                faults.end();
            }
            if round % 3 == 0 && round < 8 {
                proxier.resync();
            }
            faults.take_executed();
            let mut is_last = false;
            match proxier.sync(at) {
                Ok(synced) => {
                    let events: Vec<String> = synced.events.iter().map(ToString::to_string).collect();
                    let is_reported = |key: &&VirtualServerKey| {
                        let text = format!("load balancer {key} is not served, because its source ranges cannot be applied");
                        events.iter().any(|event| event.contains(&text))
                    };
                    withdrawn.extend(newly_restricted.iter().filter(is_reported).copied());
                    match synced.next {
                        Some(next) => at = next,
                        None => is_last = round > 8,
                    }
                }
                Err(_) => prop_assert!(round < 8),
            }
            for command in faults.take_executed() {
                let is_deleted = |key: &VirtualServerKey| command == format!("-D {key}");
                let mut served = kept.iter().filter(|key| !withdrawn.contains(key));
                prop_assert!(!served.any(is_deleted), "{}", command);
                prop_assert!(!foreign_servers().iter().any(is_deleted), "{}", command);
            }
            if is_last {
                break;
            }
        }
        proxier.resync();
        let synced = proxier.sync(at).unwrap();
        prop_assert!(synced.is_success(), "{}", synced);
        settle(&mut proxier);
        let mut kernel = proxier.into_kernel();
        prop_assert_eq!(state(&mut kernel), undisturbed);
    }

    #[test]
    fn without_services_foreign_objects_are_unchanged_and_owned_ones_are_removed(steps in vec(step(), 0..30)) {
        let bare = state(&mut synced(host(), &[]));
        let kernel = synced(host(), &steps);
        let mut emptied = synced(kernel, &[]);
        prop_assert_eq!(state(&mut emptied), bare);
        let mut untouched = host();
        let foreign = |line: &&str| {
            ["198.51.100", "blocked", "192.0.2.1:5060", "-f 7", "eth0", "mine"].iter().any(|part| line.contains(part))
        };
        let bare = state(&mut emptied);
        let host = state(&mut untouched);
        prop_assert_eq!(bare.lines().filter(foreign).collect::<Vec<_>>(), host.lines().filter(foreign).collect::<Vec<_>>());
    }

    #[test]
    fn after_a_process_ended_at_any_step_the_next_one_reaches_the_desired_state(
        before in vec(step(), 0..20),
        after in vec(step(), 0..20),
        at in any::<prop::sample::Index>(),
    ) {
        let whole = [before.clone(), after].concat();
        let undisturbed = state(&mut synced(synced(host(), &before), &whole));
        let mut ended = proxier(synced(host(), &before), &whole);
        let plan = ended.plan(now()).unwrap();
        let mut kernel = ended.into_kernel();
        for (_, step) in plan.steps().take(at.index(plan.len() + 1)) {
            kernel.execute(&step.operation).unwrap();
        }
        prop_assert_eq!(state(&mut synced(kernel, &whole)), undisturbed);
    }

    #[test]
    fn after_a_process_ended_at_any_step_one_without_services_removes_all_owned_objects(
        steps in vec(step(), 0..20),
        at in any::<prop::sample::Index>(),
    ) {
        let bare = state(&mut synced(host(), &[]));
        let mut ended = proxier(host(), &steps);
        let plan = ended.plan(now()).unwrap();
        let mut kernel = ended.into_kernel();
        for (_, step) in plan.steps().take(at.index(plan.len() + 1)) {
            kernel.execute(&step.operation).unwrap();
        }
        prop_assert_eq!(state(&mut synced(kernel, &[])), bare);
    }

    #[test]
    fn after_a_process_ended_at_any_step_of_the_takeover_from_kube_proxy_the_next_one_identifies_all_objects(
        before in vec(step(), 0..20),
        after in vec(step(), 0..20),
        at in any::<prop::sample::Index>(),
    ) {
        let whole = [before.clone(), after].concat();
        let undisturbed = state(&mut synced(synced(host(), &before), &whole));
        let bare = state(&mut synced(host(), &[]));
        let mut ended = proxier(without_ledger(synced(host(), &before)), &whole);
        let plan = ended.plan(now()).unwrap();
        let steps = at.index(plan.len() + 1);
        for (next, expected) in [(&whole, &undisturbed), (&Vec::new(), &bare)] {
            let mut kernel = without_ledger(synced(host(), &before));
            for (_, step) in plan.steps().take(steps) {
                kernel.execute(&step.operation).unwrap();
            }
            prop_assert_eq!(&state(&mut synced(kernel, next)), expected);
        }
    }

    #[test]
    fn foreign_virtual_servers_with_desired_keys_are_adopted_if_equal_and_in_no_step_otherwise(
        before in vec(step(), 0..20),
        after in vec(step(), 1..20),
        choices in vec(0..3_u8, 16),
    ) {
        let whole = [before.clone(), after].concat();
        let desired = synced(host(), &whole).ipvs.list_all().unwrap();
        let mut kernel = synced(host(), &before);
        let owned: BTreeSet<VirtualServerKey> =
            kernel.ipvs.list_all().unwrap().iter().map(|(server, _)| server.key).collect();
        let mut different = BTreeSet::new();
        let mut equal = BTreeSet::new();
        for ((server, real_servers), choice) in desired.into_iter().zip(choices) {
            let key = server.key;
            if owned.contains(&key) || choice == 0 {
                continue;
            }
            let differs = choice == 1;
            add_foreign(&mut kernel, server, &real_servers, differs);
            if differs { different.insert(key); } else { equal.insert(key); }
        }
        let foreign_before = of_keys(&mut kernel, &different);
        let mut proxier = self::proxier(kernel, &whole);
        let synced = proxier.sync(now()).unwrap();
        prop_assert!(synced.is_success(), "{}", synced);
        for (_, step) in synced.plan.steps() {
            if let Key::VirtualServer(key) | Key::RealServer(key, _) = &step.key {
                prop_assert!(!different.contains(key) && !equal.contains(key), "{}", synced.plan);
            }
        }
        let reported = synced.events.iter().filter(|event| event.to_string().contains("differs from the desired one"));
        prop_assert_eq!(reported.count(), different.len());
        prop_assert_eq!(of_keys(proxier.kernel_mut(), &different), foreign_before.clone());
        settle(&mut proxier);
        proxier.resync();
        prop_assert!(proxier.plan(now()).unwrap().is_empty());
        // A new process without Services removes what was adopted, and nothing else.
        let mut emptied = self::synced(proxier.into_kernel(), &[]);
        prop_assert_eq!(of_keys(&mut emptied, &different), foreign_before);
        prop_assert_eq!(of_keys(&mut emptied, &equal), Vec::<String>::new());
    }

    #[test]
    fn the_rules_of_a_set_are_kept_while_it_has_entries(
        before in vec(step(), 0..20),
        after in vec(step(), 0..20),
    ) {
        let kernel = synced(host(), &before);
        let mut proxier = proxier(kernel, &[before, after].concat());
        let plan = proxier.plan(now()).unwrap();
        let mut kernel = proxier.into_kernel();
        let rules_before = rules_by_set(&mut kernel);
        for (_, step) in plan.steps() {
            kernel.execute(&step.operation).unwrap();
            if !matches!(step.operation, Operation::Rules(_)) {
                continue;
            }
            let rules = rules_by_set(&mut kernel);
            for contents in kernel.sets.list().unwrap().iter().filter(|set| !set.entries.is_empty()) {
                let name = contents.header.set.name.to_string();
                prop_assert!(rules.get(&name) >= rules_before.get(&name), "{}: {}\n{}", name, step.operation, plan);
            }
        }
    }

    #[test]
    fn steps_need_only_earlier_steps(before in vec(step(), 0..20), after in vec(step(), 0..20)) {
        let kernel = synced(host(), &before);
        let mut proxier = proxier(kernel, &[before, after].concat());
        let plan = proxier.plan(now()).unwrap();
        let phase_of: Vec<Phase> =
            plan.phases().iter().flat_map(|phase| vec![phase.kind; phase.steps.len()]).collect();
        for (id, step) in plan.steps() {
            for need in step.needs.iter().chain(&step.needs_any) {
                let (of, own) = (phase_of[need.index()], phase_of[id.index()]);
                // Removing a restriction precedes the removal of its allow-list in the same phase.
                let within = [Phase::AddEntries, Phase::Rules, Phase::RemoveEntries];
                prop_assert!(of < own || (of == own && within.contains(&own) && *need < id), "{} {}", step.operation, own);
            }
        }
        prop_assert_eq!(phase_of.len(), plan.len());
    }
}
