//! Hand-overs from modes of these tests.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Mutex;
use std::time::Duration;

use kernlink_services::{Change, Config, Kind, ObjectChange, Port, Service, SourceId};

use super::member::{HELD_INTERVAL, READ_INTERVAL};
use super::*;
use crate::data_path::Class;
use crate::retire::{Retired, RetiredOutcome, RetiredStep};

/// What a mode left, which the test and the mode share.
#[derive(Debug, Default)]
struct Left {
    /// The last bytes of the addresses that it serves.
    served: BTreeSet<u8>,
    /// Its shared object, such as a chain.
    has_shared: bool,
    is_unreadable: bool,
    refuses: bool,
    /// The readings, in listings and rounds.
    readings: usize,
    compiled: usize,
}

#[derive(Clone, Debug, Default)]
struct Mode(Arc<Mutex<Left>>);

impl Mode {
    fn of(served: impl IntoIterator<Item = u8>) -> Self {
        let mode = Self::default();
        let mut left = mode.0.lock().unwrap();
        left.served = served.into_iter().collect();
        left.has_shared = true;
        drop(left);
        mode
    }
}

const SHARED: Name<'_> = Name {
    family: kernlink_services::Family::Ipv4,
    table: "nat",
    name: "SHARED",
};

impl Retire for Mode {
    fn mode(&self) -> &'static str {
        "another mode"
    }

    fn has(&self, name: &Name<'_>) -> bool {
        *name == SHARED
    }

    fn read(&mut self, _now: Instant, kept: Kept<'_>) -> Result<bool, String> {
        let mut left = self.0.lock().unwrap();
        left.readings += 1;
        if left.is_unreadable {
            return Err("a table cannot be read".to_owned());
        }
        Ok(!left.served.is_empty() || (left.has_shared && !kept(&SHARED)))
    }

    fn is_serving(&mut self) -> Result<bool, String> {
        Ok(!self.0.lock().unwrap().served.is_empty())
    }

    fn compile(&mut self, _services: &Services, changes: &Changes) {
        self.0.lock().unwrap().compiled += changes.frontends.len();
    }

    fn interim(&self) -> Vec<Interim> {
        let rules: Vec<String> = self.0.lock().unwrap().served.iter().map(u8::to_string).collect();
        vec![Interim {
            family: kernlink_services::Family::Ipv4,
            table: "nat",
            chain: "SHARED",
            rules,
        }]
    }

    fn retire(&mut self, round: &Round<'_>) -> Retired {
        let mut left = self.0.lock().unwrap();
        left.readings += 1;
        let mut retired = Retired::default();
        let is_held = |last: &u8| round.unserved.contains_key(&frontend(*last));
        retired.held = left
            .served
            .iter()
            .filter(|last| is_held(last))
            .map(|last| frontend(*last))
            .collect();
        let removed = left.served.iter().filter(|last| !is_held(last)).count();
        let removes_shared = retired.held.is_empty() && left.has_shared && !(round.kept)(&SHARED);
        if removed > 0 || removes_shared {
            let outcome = match (round.executes, left.refuses) {
                (false, _) => RetiredOutcome::Planned,
                (true, true) => RetiredOutcome::Failed("refused".to_owned()),
                (true, false) => {
                    left.served.retain(is_held);
                    left.has_shared &= !removes_shared;
                    RetiredOutcome::Done
                }
            };
            retired.steps.push(RetiredStep {
                class: Class {
                    kind: "leftovers",
                    family: None,
                    is_shared: false,
                },
                command: format!("remove {removed}\nand more"),
                outcome,
            });
        }
        retired.is_gone = retired.steps.is_empty();
        retired
    }
}

fn frontend(last: u8) -> FrontendKey {
    FrontendKey {
        address: IpAddr::from([10, 96, 0, last]),
        protocol: kernlink_services::Protocol::Tcp,
        port: 80,
    }
}

fn upsert(last: u8) -> Change {
    let service = Service::new(ObjectName::new("ns", format!("s{last}")))
        .with_cluster_ip(format!("10.96.0.{last}"))
        .with_port(Port::new("http", 80));
    Change::Services(ObjectChange::Upsert(service))
}

/// A hand-over from these modes, with the Services of a node.
struct Node {
    handover: Handover,
    services: Services,
    now: Instant,
    served: BTreeSet<u8>,
    /// The frontends that the serving mode can never serve.
    unservable: BTreeSet<FrontendKey>,
    /// Whether the serving mode has the shared object too.
    keeps: bool,
}

impl Node {
    fn new(modes: &[&Mode], desired: impl IntoIterator<Item = u8>) -> Self {
        let modes = modes
            .iter()
            .map(|mode| Box::new((*mode).clone()) as Box<dyn Retire>);
        let mut node = Self {
            handover: Handover::new(modes.collect()),
            services: Services::new(Config::new("node-a")),
            now: Instant::now(),
            served: BTreeSet::new(),
            unservable: BTreeSet::new(),
            keeps: false,
        };
        for last in desired {
            node.services.change(SourceId(0), upsert(last));
        }
        node.services.change(SourceId(0), Change::synced(Kind::Service));
        node
    }

    /// A sync in which the serving mode changes nothing.
    fn sync(&mut self, is_listing: bool) -> (Handed, Vec<Event>) {
        let keeps = self.keeps;
        let keeps = move |name: &Name<'_>| keeps && *name == SHARED;
        self.handover.set_time(self.now);
        let events = if is_listing {
            self.handover.observe(self.now, &keeps)
        } else {
            Vec::new()
        };
        self.services.update();
        let changes = self.services.take_changes();
        self.handover.compile(&self.services, &changes);
        let served = &self.served;
        let is_served = |key: &FrontendKey, _: &ObjectName| match key.address {
            IpAddr::V4(address) => served.contains(&address.octets()[3]),
            IpAddr::V6(_) => false,
        };
        let unservable = &self.unservable;
        let is_servable = |key: &FrontendKey| !unservable.contains(key);
        let handed = self.handover.retire(self.now, &keeps, is_served, is_servable);
        (handed, events)
    }
}

fn is_left(mode: &Mode) -> (Vec<u8>, bool) {
    let left = mode.0.lock().unwrap();
    (left.served.iter().copied().collect(), left.has_shared)
}

#[test]
fn each_frontend_is_removed_once_it_is_served_and_the_shared_objects_with_the_last_one() {
    let mode = Mode::of([1, 2, 3]);
    let mut node = Node::new(&[&mode], [1, 2]);
    assert!(!node.handover.may_have_leftovers());
    node.served.insert(1);
    let (handed, events) = node.sync(true);
    assert!(node.handover.may_have_leftovers());
    assert_eq!(events.len(), 1);
    // 3 is of no Service any more.
    assert_eq!(is_left(&mode), (vec![2], true));
    assert_eq!((handed.counts().done, handed.is_success()), (1, true));
    assert_eq!(handed.modes[0].steps[0].summary(), "remove 2");
    assert_eq!(
        handed.next,
        Some(node.now),
        "a round with steps is followed by another one"
    );
    assert_eq!(node.handover.interim()[0].rules, ["2"]);
    let (handed, _) = node.sync(false);
    assert_eq!(handed.next, Some(node.now + HELD_INTERVAL));
    // The event names what is held.
    let (_, events) = node.sync(true);
    let text = events[0].reason.to_string();
    assert!(text.contains("another mode still serves ns/s2"), "{text}");
    node.served.insert(2);
    node.now += HELD_INTERVAL;
    node.sync(false);
    assert_eq!(is_left(&mode), (vec![], false));
    let (handed, _) = node.sync(false);
    assert_eq!((handed.next, node.handover.may_have_leftovers()), (None, false));
    // It is not read again.
    let readings = mode.0.lock().unwrap().readings;
    node.sync(true);
    assert_eq!(mode.0.lock().unwrap().readings, readings);
}

#[test]
fn a_service_that_is_deleted_is_not_served_by_the_retiring_mode_until_the_next_round() {
    let mode = Mode::of([1, 2]);
    let mut node = Node::new(&[&mode], [1, 2]);
    node.sync(true);
    assert_eq!(is_left(&mode), (vec![1, 2], true));
    assert_eq!(
        mode.0.lock().unwrap().compiled,
        2,
        "the first changes name everything"
    );
    node.now += Duration::from_secs(1);
    let deleted = ObjectChange::Delete(ObjectName::new("ns", "s1"));
    node.services.change(SourceId(0), Change::Services(deleted));
    node.sync(false);
    assert_eq!(is_left(&mode), (vec![2], true));
}

#[test]
fn what_cannot_be_read_is_read_again_and_first_services_wait_for_it() {
    let mode = Mode::of([1]);
    mode.0.lock().unwrap().is_unreadable = true;
    let mut node = Node::new(&[&mode], [1]);
    node.served.insert(1);
    let (handed, events) = node.sync(true);
    assert_eq!(handed.modes, []);
    let text = events[0].reason.to_string();
    assert_eq!(
        text,
        "what another mode may have left cannot be read: a table cannot be read"
    );
    assert!(node.handover.may_have_leftovers());
    assert_eq!(handed.next, Some(node.now + READ_INTERVAL));
    mode.0.lock().unwrap().is_unreadable = false;
    node.now += READ_INTERVAL;
    node.sync(false);
    assert_eq!(is_left(&mode), (vec![], false));
}

#[test]
fn a_removal_that_fails_is_reported_once_and_tried_again_with_a_growing_delay() {
    let mode = Mode::of([1]);
    mode.0.lock().unwrap().refuses = true;
    let mut node = Node::new(&[&mode], [1]);
    node.served.insert(1);
    let mut reported = 0;
    let mut last = Duration::ZERO;
    for _ in 0..5 {
        let is_first = !node.handover.may_have_leftovers();
        let (handed, _) = node.sync(is_first);
        reported += handed.events.len();
        assert_eq!((handed.counts().failed, handed.waiting), (1, 1));
        let delay = handed.next.unwrap() - node.now;
        assert!(delay >= last, "{delay:?} after {last:?}");
        last = delay / 2;
        node.now = handed.next.unwrap();
    }
    assert_eq!(reported, 1);
    mode.0.lock().unwrap().refuses = false;
    let (handed, _) = node.sync(false);
    assert_eq!(handed.waiting, 0);
    let solved: Vec<String> = handed
        .events
        .iter()
        .map(|event| event.reason.to_string())
        .collect();
    assert!(solved.len() == 1 && solved[0].starts_with("solved"), "{solved:?}");
}

#[test]
fn an_object_that_the_serving_mode_or_another_retiring_one_has_stays() {
    let mode = Mode::of([1]);
    let mut node = Node::new(&[&mode], [1]);
    node.served.insert(1);
    node.keeps = true;
    for _ in 0..3 {
        node.sync(true);
    }
    assert_eq!(is_left(&mode), (vec![], true));
    assert!(!node.handover.may_have_leftovers());
    // Of two retiring modes the second one to leave removes it.
    let (first, second) = (Mode::of([1]), Mode::of([2]));
    let mut node = Node::new(&[&first, &second], [1, 2]);
    node.served.insert(1);
    node.sync(true);
    assert_eq!(
        (is_left(&first), is_left(&second)),
        ((vec![], true), (vec![2], true))
    );
    node.served.insert(2);
    node.now += HELD_INTERVAL;
    for _ in 0..3 {
        node.sync(true);
    }
    assert_eq!(is_left(&second), (vec![], false));
}

#[test]
fn a_plan_of_the_removal_changes_nothing() {
    let mode = Mode::of([1]);
    let mut node = Node::new(&[&mode], [1]);
    node.handover.observe(node.now, &|_| false);
    let planned = node.handover.planned(node.now, &|_| false);
    assert_eq!(
        planned[0].to_string(),
        "# leftovers of another mode\nremove 1\nand more\n"
    );
    assert_eq!(is_left(&mode), (vec![1], true));
}

#[test]
fn what_the_serving_mode_cannot_serve_is_removed_once_all_others_are_served_with_an_event() {
    let mode = Mode::of([1, 2, 3]);
    let mut node = Node::new(&[&mode], [1, 2, 3]);
    node.unservable.insert(frontend(3));
    node.served.insert(1);
    let mut events = Vec::new();
    for _ in 0..3 {
        let (handed, _) = node.sync(false);
        events.extend(handed.events);
        assert!(events.is_empty());
        node.sync(true);
        node.now += HELD_INTERVAL;
    }
    // The serving mode may yet serve 2.
    assert_eq!(is_left(&mode), (vec![2, 3], true));
    node.served.insert(2);
    for _ in 0..4 {
        let (handed, _) = node.sync(false);
        events.extend(handed.events);
        node.now = handed.next.unwrap_or(node.now);
    }
    assert_eq!(is_left(&mode), (vec![], false));
    assert!(!node.handover.may_have_leftovers());
    let texts: Vec<String> = events.iter().map(|event| event.reason.to_string()).collect();
    let text = "ns/s3: the configured mode cannot serve some of their addresses and ports, which another mode served; what it left for them is \
                removed";
    assert_eq!(texts, [text]);
}

#[test]
fn what_was_released_is_not_held_again_when_a_service_waits_to_be_programmed() {
    let mode = Mode::of([2]);
    let mut node = Node::new(&[&mode], [1, 2]);
    node.unservable.insert(frontend(2));
    node.served.insert(1);
    node.sync(true);
    mode.0.lock().unwrap().refuses = true;
    node.now += HELD_INTERVAL;
    let (handed, _) = node.sync(false);
    assert_eq!((handed.events.len(), handed.counts().failed), (2, 1));
    // 1 is not served for a moment while the removal is tried again.
    node.served.clear();
    node.now = handed.next.unwrap();
    let (handed, _) = node.sync(false);
    assert_eq!((handed.events.len(), handed.counts().failed), (0, 1));
    mode.0.lock().unwrap().refuses = false;
    node.now = handed.next.unwrap();
    node.sync(false);
    assert_eq!(is_left(&mode), (vec![], false));
}
