//! iptables mode on the fake kernel, while restores fail: at every moment each Service leads to its endpoints, and retries alone bring all of
//! them in place.
#![cfg(feature = "fake")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a test reports errors by panicking"
)]

#[path = "support/iptables_node.rs"]
mod iptables_node;

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kernlink_iptables_restore::{
    Error as RulesError, Fake, Iptables, Operation as RulesOperation, Ruleset, Save,
};
use kernlink_proxier::iptables_mode::Proxier;
use kernlink_services::Family;
use proptest::prelude::*;

use crate::iptables_node::{FOREIGN, change_endpoints, deliver_numbered, kernel, proxier_on, saved, sync};

/// What happens to one operation on the rules.
#[derive(Clone, Copy, Debug)]
enum Fault {
    None,
    /// Another program holds the lock of the tools.
    Locked,
    /// The tool is killed before it changes anything.
    Killed,
    /// The tool is killed after it changed everything.
    KilledLate,
}

/// Tables whose next operations fail.
struct Rules {
    fake: Fake,
    faults: Arc<Mutex<VecDeque<Fault>>>,
}

impl Iptables for Rules {
    fn execute(&mut self, operations: &[RulesOperation]) -> Vec<Result<(), RulesError>> {
        let execute = |operation: &RulesOperation| {
            let killed = || RulesError::TimedOut {
                tool: "iptables-restore".into(),
                timeout: Duration::from_secs(1),
            };
            let fault = self.faults.lock().unwrap().pop_front().unwrap_or(Fault::None);
            match fault {
                Fault::None => self.fake.execute(std::slice::from_ref(operation)).remove(0),
                Fault::Locked => Err(RulesError::Locked {
                    waited: Duration::from_secs(5),
                    holder: None,
                }),
                Fault::Killed => Err(killed()),
                Fault::KilledLate => {
                    self.fake.execute(std::slice::from_ref(operation)).remove(0)?;
                    Err(killed())
                }
            }
        };
        operations.iter().map(execute).collect()
    }

    fn save(&mut self, request: &Save) -> Result<Ruleset, RulesError> {
        self.fake.save(request)
    }
}

/// The endpoints that a client of each Service can reach, and whether each of its connections reaches one.
fn endpoints(text: &str, number: u16) -> Result<BTreeSet<String>, String> {
    let last = |line: &str| line.rsplit_once(' ').map(|(_, word)| word.to_owned());
    let rules_of = |chain: &str| -> Vec<&str> {
        let begins = format!("-A {chain} ");
        text.lines().filter(|line| line.starts_with(&begins)).collect()
    };
    let label = format!("\"ns/s{number}:web cluster IP\"");
    let services = rules_of("KUBE-SERVICES");
    let jump = services
        .iter()
        .find(|line| line.contains(&label) && line.contains("-j KUBE-SVC-"));
    let chain = jump
        .and_then(|line| last(line))
        .ok_or("no rule in KUBE-SERVICES")?;
    let mut found = BTreeSet::new();
    for rule in rules_of(&chain) {
        let Some(target) = last(rule).filter(|target| target.starts_with("KUBE-SEP-")) else {
            continue;
        };
        let rules = rules_of(&target);
        let translated = rules.iter().find_map(|rule| rule.split_once("--to-destination "));
        let (_, endpoint) = translated.ok_or_else(|| format!("{chain} leads to {target}, which is empty"))?;
        found.insert(endpoint.to_owned());
    }
    if found.is_empty() {
        return Err(format!("{chain} leads to no endpoint"));
    }
    Ok(found)
}

fn assert_served(proxier: &mut Proxier, services: u16, when: &str) {
    let text = saved(proxier, Family::Ipv4).to_string();
    for number in 0..services {
        let reached = endpoints(&text, number);
        assert!(reached.is_ok(), "s{number} {when}: {reached:?}\n{text}");
    }
}

fn fault() -> impl Strategy<Value = Fault> {
    prop_oneof![
        2 => Just(Fault::None),
        3 => Just(Fault::Locked),
        1 => Just(Fault::Killed),
        1 => Just(Fault::KilledLate),
    ]
}

const SERVICES: u16 = 20;

fn retries_bring_all_endpoints_in_place(faults: Vec<Fault>, also: &BTreeSet<u16>) {
    let pending = Arc::new(Mutex::new(VecDeque::new()));
    let mut kernel = kernel();
    let mut fake = Fake::new();
    fake.set_ruleset(Family::Ipv4, FOREIGN.parse().unwrap());
    kernel.rules = Box::new(Rules {
        fake,
        faults: Arc::clone(&pending),
    });
    let mut proxier = proxier_on(kernel);
    deliver_numbered(&mut proxier, SERVICES, &[1, 2]);
    sync(&mut proxier);

    let listings = proxier.cost().listings;
    for number in 0..SERVICES {
        change_endpoints(&mut proxier, number, &[3, 4]);
    }
    *pending.lock().unwrap() = faults.into();
    let mut now = Instant::now();
    let synced = proxier.sync(now).unwrap();
    assert_served(&mut proxier, SERVICES, "after the restores failed");
    // Some change again before their retry.
    for number in also {
        change_endpoints(&mut proxier, *number, &[5, 6]);
    }
    let mut next = if also.is_empty() { synced.next } else { Some(now) };
    let mut syncs = 0;
    while let Some(at) = next {
        now = at.max(now);
        let synced = proxier.sync(now).unwrap();
        assert_served(&mut proxier, SERVICES, &format!("after\n{}{synced}", synced.plan));
        next = synced.next;
        syncs += 1;
        assert!(syncs < 2_000, "{}", synced.plan);
    }
    assert_eq!(proxier.cost().listings, listings, "retries need no listing");

    let text = saved(&mut proxier, Family::Ipv4).to_string();
    for number in 0..SERVICES {
        let last = if also.contains(&number) { [5, 6] } else { [3, 4] };
        let expected = last.map(|endpoint| format!("10.244.{number}.{endpoint}:8080"));
        assert_eq!(endpoints(&text, number).unwrap(), expected.into());
    }
    // Nothing of the earlier endpoints is left.
    assert_eq!(
        text.matches(":KUBE-SEP-").count(),
        usize::from(SERVICES) * 2,
        "{}",
        text
    );
    proxier.resync();
    let synced = proxier.sync(now).unwrap();
    assert!(synced.plan.is_empty(), "{}", synced.plan);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn a_service_whose_restore_failed_keeps_its_endpoints_until_the_retry_gives_it_the_new_ones(
        faults in prop_oneof![
            Just(vec![Fault::Locked; 4]),
            prop::collection::vec(fault(), 1..12),
        ],
        also in prop::collection::btree_set(0..SERVICES, 0..4),
    ) {
        retries_bring_all_endpoints_in_place(faults, &also);
    }
}

/// Which of the chains is tried again first depends on random delays.
#[test]
fn a_chain_that_could_not_be_emptied_is_emptied_although_another_one_is_tried_again_before() {
    use Fault::{KilledLate, Locked, None};

    for _ in 0..8 {
        let faults = vec![
            KilledLate, Locked, None, None, KilledLate, Locked, None, KilledLate,
        ];
        retries_bring_all_endpoints_in_place(faults, &BTreeSet::from([8, 14]));
    }
}
