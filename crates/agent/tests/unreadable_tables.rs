//! iptables mode on the fake kernel, with tables that cannot be read: what serves is not taken away, and what is written stays.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test reports errors by panicking"
)]

#[path = "support/any_proxier.rs"]
mod any_proxier;
#[path = "../../proxier/tests/support/iptables_node.rs"]
mod iptables_node;
#[path = "../../proxier/tests/support/refusing_tables.rs"]
mod refusing_tables;
#[path = "../../proxier/tests/support/shared_ipvs.rs"]
mod shared_ipvs;
#[path = "support/shared_kernel.rs"]
mod shared_kernel;

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kernlink_agent::modes::{Config, Mode};
use kernlink_iptables_restore::{
    Edit, Error as RulesError, Fake, Iptables, Operation as RulesOperation, Restore, Ruleset, Save, Table,
};
use kernlink_services::{Change, Family, Kind, ObjectChange};

use crate::iptables_node::{
    FOREIGN, SOURCE, change_endpoints, deliver_numbered, filled, proxier_on, saved, service, slice, sync,
};
use crate::refusing_tables::{Behaviour, Rules, kernel_with};
use crate::shared_kernel::{Kernel, Proxier, Shared, SharedKernel};

/// Tables of which `nat` cannot be printed.
fn unreadable(ipv4: &str) -> Fake {
    let mut fake = Fake::new();
    fake.set_ruleset(Family::Ipv4, ipv4.parse().unwrap());
    fake.set_unreadable(Family::Ipv4, Table::Nat);
    fake
}

/// How many rules of Services an input leaves in `KUBE-SERVICES`, if it empties this chain.
fn left(restore: &Restore) -> Option<usize> {
    let edits = restore
        .tables()
        .filter(|(table, _)| *table == Table::Nat)
        .flat_map(|(_, edits)| edits);
    let of_chain: Vec<&Edit> = edits
        .filter(|edit| edit.chain().as_str() == "KUBE-SERVICES")
        .collect();
    let empties = of_chain.iter().any(|edit| matches!(edit, Edit::Declare { .. }));
    let rules = of_chain.iter().filter_map(|edit| edit.rule());
    let of_services = rules.filter(|rule| rule.to_string().contains("10.96.0."));
    empties.then(|| of_services.count())
}

/// What the inputs for IPv4 since the last call left in `KUBE-SERVICES` when they emptied it.
fn emptied(behaviour: &Mutex<Behaviour>) -> Vec<usize> {
    let restores = std::mem::take(&mut behaviour.lock().unwrap().restores);
    let of_family = restores.iter().filter(|restore| restore.family == Family::Ipv4);
    of_family.filter_map(left).collect()
}

#[test]
fn a_table_that_cannot_be_printed_is_written_once_and_only_its_jumps_at_each_listing() {
    let (kernel, behaviour) = kernel_with(unreadable(FOREIGN));
    let mut proxier = proxier_on(kernel);
    deliver_numbered(&mut proxier, 3, &[1, 2]);
    let mut now = Instant::now();
    assert!(proxier.sync(now).unwrap().is_success());
    assert_eq!(emptied(&behaviour), [3]);
    for _ in 0..4 {
        now += Duration::from_secs(30);
        proxier.resync();
        let synced = proxier.sync(now).unwrap();
        assert!(synced.is_success(), "{synced}");
        assert_eq!(behaviour.lock().unwrap().restores, []);
        let events: Vec<String> = synced.events.iter().map(ToString::to_string).collect();
        assert!(
            events.iter().all(|event| !event.contains("another program")),
            "{events:?}"
        );
    }
    change_endpoints(&mut proxier, 1, &[3]);
    sync(&mut proxier);
    assert_eq!(behaviour.lock().unwrap().restores.len(), 1);
}

#[test]
fn a_node_that_serves_is_taken_over_by_one_input_if_its_tables_cannot_be_read() {
    let text = saved(&mut filled(3), Family::Ipv4).to_string();
    for fails in [false, true] {
        let fake = if fails {
            let mut fake = Fake::new();
            fake.set_ruleset(Family::Ipv4, text.parse().unwrap());
            fake
        } else {
            unreadable(&text)
        };
        let (kernel, behaviour) = kernel_with(fake);
        behaviour.lock().unwrap().is_unreadable = fails;
        let mut proxier = proxier_on(kernel);
        deliver_numbered(&mut proxier, 3, &[1, 2]);
        let synced = proxier.sync(Instant::now()).unwrap();
        assert!(synced.is_success(), "{synced}");
        assert_eq!(emptied(&behaviour), [3]);
        // A Service that is refused affects no other.
        let (kernel, behaviour) = {
            let mut fake = Fake::new();
            fake.set_ruleset(Family::Ipv4, text.parse().unwrap());
            kernel_with(fake)
        };
        behaviour.lock().unwrap().is_unreadable = fails;
        behaviour.lock().unwrap().refused = vec!["10.244.9.1".to_owned()];
        let mut proxier = proxier_on(kernel);
        deliver_numbered(&mut proxier, 3, &[1, 2]);
        proxier.change(SOURCE, Change::Services(ObjectChange::Upsert(service(9))));
        proxier.change(
            SOURCE,
            Change::EndpointSlices(ObjectChange::Upsert(slice(9, &[1]))),
        );
        let synced = proxier.sync(Instant::now()).unwrap();
        assert_eq!(synced.counts().failed, 1, "{synced}");
        assert!(emptied(&behaviour).iter().all(|left| *left >= 3));
    }
}

#[test]
fn a_table_that_becomes_unprintable_is_not_written_again() {
    let (kernel, behaviour) = kernel_with({
        let mut fake = Fake::new();
        fake.set_ruleset(Family::Ipv4, FOREIGN.parse().unwrap());
        fake
    });
    let mut proxier = proxier_on(kernel);
    deliver_numbered(&mut proxier, 3, &[1, 2]);
    sync(&mut proxier);
    let mut fake = Fake::new();
    for family in Family::ALL {
        let text = saved(&mut proxier, family).to_string();
        fake.set_ruleset(family, text.parse().unwrap());
    }
    fake.set_unreadable(Family::Ipv4, Table::Nat);
    let rules = Rules {
        fake,
        behaviour: Arc::clone(&behaviour),
    };
    proxier.kernel_mut().rules = Box::new(rules);
    emptied(&behaviour);
    proxier.resync();
    sync(&mut proxier);
    assert_eq!(behaviour.lock().unwrap().restores, []);
}

#[test]
fn a_table_that_cannot_be_printed_is_written_again_when_its_chains_are_gone() {
    let (kernel, behaviour) = kernel_with(unreadable(FOREIGN));
    let mut proxier = proxier_on(kernel);
    deliver_numbered(&mut proxier, 3, &[1, 2]);
    let now = Instant::now();
    assert!(proxier.sync(now).unwrap().is_success());
    emptied(&behaviour);
    // `nft flush ruleset`, and the same foreign rules again.
    let rules = Rules {
        fake: unreadable(FOREIGN),
        behaviour: Arc::clone(&behaviour),
    };
    proxier.kernel_mut().rules = Box::new(rules);
    proxier.resync();
    let mut at = now + Duration::from_secs(30);
    for _ in 0..10 {
        let Some(next) = proxier.sync(at).unwrap().next else {
            break;
        };
        at = next.max(at);
    }
    proxier.resync();
    let synced = proxier.sync(at).unwrap();
    assert!(synced.is_success(), "{synced}");
    assert_eq!(emptied(&behaviour), [3]);
}

/// A host without ip6tables.
struct NoIpv6(Shared<Fake>);

fn not_started() -> RulesError {
    RulesError::NotStarted {
        tool: "ip6tables-restore".into(),
        kind: std::io::ErrorKind::NotFound,
        text: "no such file".into(),
    }
}

impl Iptables for NoIpv6 {
    fn execute(&mut self, operations: &[RulesOperation]) -> Vec<Result<(), RulesError>> {
        let execute = |operation: &RulesOperation| match operation.family() {
            Family::Ipv4 => self.0.execute(std::slice::from_ref(operation)).remove(0),
            Family::Ipv6 => Err(not_started()),
        };
        operations.iter().map(execute).collect()
    }

    fn save(&mut self, request: &Save) -> Result<Ruleset, RulesError> {
        match request.family {
            Family::Ipv4 => self.0.save(request),
            Family::Ipv6 => Err(not_started()),
        }
    }
}

fn without_ipv6() -> (SharedKernel, Kernel) {
    let shared = SharedKernel::new();
    let (of_ipvs, of_iptables) = (shared.clone(), shared.clone());
    let kernel = shared.apis().with_ipvs(move || {
        let mut ipvs = of_ipvs.ipvs();
        ipvs.rules = Box::new(NoIpv6(of_ipvs.rules.clone()));
        ipvs
    });
    let kernel = kernel.with_iptables(move || {
        let mut iptables = of_iptables.iptables();
        iptables.rules = Box::new(NoIpv6(of_iptables.rules.clone()));
        iptables
    });
    (shared, kernel)
}

fn config(mode: Mode) -> Config {
    let mut config = Config::new(mode, "node-a");
    match &mut config {
        Config::Ipvs(config) => config.conntrack.max_per_core = 0,
        Config::Iptables(iptables) => iptables.config.conntrack.max_per_core = 0,
        Config::Nftables(_) | Config::Userspace(_) => {
            unreachable!("the tests of this file are about the other modes")
        }
    }
    config
}

#[test]
fn a_host_without_ip6tables_serves_ipv4_and_the_other_mode_is_removed() {
    let (shared, kernel) = without_ipv6();
    let mut proxier = Proxier::new(&config(Mode::Ipvs), kernel);
    let mut changes = vec![
        Change::Services(ObjectChange::ReplaceAll(vec![service(1)])),
        Change::EndpointSlices(ObjectChange::ReplaceAll(vec![slice(1, &[1])])),
    ];
    changes.extend([Kind::Service, Kind::EndpointSlice].map(Change::synced));
    for change in changes {
        proxier.change(SOURCE, change);
    }
    let mut now = Instant::now();
    proxier.sync(now).unwrap();
    proxier.restart(&config(Mode::Iptables));
    for _ in 0..20 {
        let synced = proxier.sync(now).unwrap();
        assert!(synced.is_success(), "{synced}");
        let Some(next) = synced.next else { break };
        now = next.max(now);
    }
    assert!(!shared.has_ipvs_link());
    // A Service that needs IPv6 fails, and is tried again.
    let mut dual = service(2);
    dual.cluster_ips = vec!["10.96.0.2".into(), "fd00::2".into()];
    dual.ip_families = vec![Family::Ipv4, Family::Ipv6];
    proxier.change(SOURCE, Change::Services(ObjectChange::Upsert(dual)));
    let synced = proxier.sync(now).unwrap();
    assert!(!synced.is_success() && synced.next.is_some(), "{synced}");
}
