//! Hand-overs from modes of these tests.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::sync::Mutex;
use std::time::Duration;

use ipnet::IpNet;
use kernlink_services::{Change, Config, Ingress, Kind, ObjectChange, Port, Service, ServiceType, SourceId};

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
    is_read_again: bool,
    refuses: bool,
    /// The operations that failed before, if no round makes them again yet.
    waiting: usize,
    /// When the mode itself has a round, and the endpoints that drain until then.
    next: Option<Instant>,
    draining: usize,
    readings: usize,
    rounds: usize,
    compiled: usize,
    /// What the last round received.
    had_served: bool,
    ranges: BTreeMap<FrontendKey, Vec<IpNet>>,
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

const UNREADABLE: &str = "a table cannot be read";

const SHARED: Name<'_> = Name {
    family: Family::Ipv4,
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

    fn is_read_again(&self) -> bool {
        self.0.lock().unwrap().is_read_again
    }

    fn read(&mut self, _now: Instant, kept: Kept<'_>) -> Result<bool, String> {
        let mut left = self.0.lock().unwrap();
        left.readings += 1;
        if left.is_unreadable {
            return Err(UNREADABLE.to_owned());
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
            family: Family::Ipv4,
            table: "nat",
            chain: "SHARED",
            rules,
        }]
    }

    fn has_virtual_ips(&self, family: Family) -> bool {
        let left = self.0.lock().unwrap();
        family == Family::Ipv4 && (left.is_unreadable || !left.served.is_empty())
    }

    fn retire(&mut self, round: &Round<'_>) -> Retired {
        let mut left = self.0.lock().unwrap();
        left.rounds += 1;
        left.had_served = round.has_served;
        let ranges = round.unserved.iter();
        left.ranges = ranges
            .map(|(frontend, unserved)| (*frontend, unserved.source_ranges.to_vec()))
            .collect();
        let mut retired = Retired {
            next: left.next,
            waiting: left.waiting,
            draining: left.draining,
            ..Retired::default()
        };
        if left.is_unreadable {
            retired.problems.push(UNREADABLE.to_owned());
            return retired;
        }
        if left.waiting > 0 {
            return retired;
        }
        // Without the Services it does not know of which frontends it has an object.
        let knows_services = left.compiled > 0;
        let is_held = |last: &u8| knows_services && round.unserved.contains_key(&frontend(*last));
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
        retired.is_gone = retired.steps.is_empty() && left.next.is_none();
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

fn texts(events: &[Event]) -> Vec<String> {
    events.iter().map(|event| event.reason.to_string()).collect()
}

impl Mode {
    /// The numbers of readings, of rounds, and of frontends that were passed to it.
    fn counts(&self) -> (usize, usize, usize) {
        let left = self.0.lock().unwrap();
        (left.readings, left.rounds, left.compiled)
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
    let mode = Mode::of([1, 2]);
    mode.0.lock().unwrap().is_unreadable = true;
    let mut node = Node::new(&[&mode], [1, 2]);
    node.served.insert(1);
    assert_eq!(node.handover.virtual_ips(), BTreeSet::new());
    let (handed, events) = node.sync(true);
    assert_eq!(handed.modes, []);
    assert_eq!(
        texts(&events),
        ["what another mode may have left cannot be read: a table cannot be read"]
    );
    assert!(node.handover.may_have_leftovers());
    assert_eq!(node.handover.virtual_ips(), BTreeSet::from([Family::Ipv4]));
    assert_eq!(handed.next, Some(node.now + READ_INTERVAL));
    node.now += READ_INTERVAL;
    let (handed, _) = node.sync(false);
    assert_eq!(handed.next, Some(node.now + READ_INTERVAL));
    // The Services are passed to it before its first round.
    mode.0.lock().unwrap().is_unreadable = false;
    node.now += READ_INTERVAL;
    let (handed, _) = node.sync(false);
    assert_eq!(handed.next, Some(node.now));
    assert_eq!((mode.counts(), is_left(&mode)), ((3, 0, 0), (vec![1, 2], true)));
    let (handed, _) = node.sync(false);
    assert_eq!((mode.counts(), is_left(&mode)), ((3, 1, 2), (vec![2], true)));
    assert_eq!(handed.counts().done, 1);
}

#[test]
fn a_round_that_cannot_read_is_made_again_after_a_minute_and_what_is_known_stays() {
    let mode = Mode::of([1]);
    let mut node = Node::new(&[&mode], [1]);
    node.sync(true);
    mode.0.lock().unwrap().is_unreadable = true;
    node.served.insert(1);
    node.now += HELD_INTERVAL;
    let (handed, _) = node.sync(false);
    assert_eq!(
        (&handed.modes[..], handed.next),
        (&[][..], Some(node.now + READ_INTERVAL))
    );
    assert!(node.handover.may_have_leftovers());
    assert_eq!(node.handover.interim()[0].rules, ["1"]);
    let (handed, events) = node.sync(true);
    assert_eq!(
        texts(&events),
        ["another mode served this node before; what it left cannot be read: a table cannot be read"]
    );
    assert_eq!(handed.next, Some(node.now + READ_INTERVAL));
    mode.0.lock().unwrap().is_unreadable = false;
    node.now += READ_INTERVAL;
    node.sync(false);
    assert_eq!(is_left(&mode), (vec![], false));
    // Everything was passed once.
    assert_eq!(mode.counts(), (2, 3, 1));
}

#[test]
fn a_round_is_not_made_before_it_is_due_and_reads_nothing_in_addition() {
    let mode = Mode::of([1, 2]);
    let mut node = Node::new(&[&mode], [1, 2]);
    node.sync(true);
    let had_served = || mode.0.lock().unwrap().had_served;
    assert_eq!((mode.counts(), had_served()), ((1, 1, 2), false));
    node.now += HELD_INTERVAL.checked_sub(Duration::from_secs(1)).unwrap();
    node.served.insert(1);
    node.sync(false);
    assert_eq!(mode.counts(), (1, 1, 2));
    node.now += Duration::from_secs(1);
    node.sync(false);
    assert_eq!((mode.counts(), had_served()), ((1, 2, 2), true));
    node.served.insert(2);
    node.sync(false);
    assert_eq!((mode.counts(), had_served()), ((1, 3, 2), true));
    assert_eq!(is_left(&mode), (vec![], false));
}

#[test]
fn a_round_of_the_mode_itself_is_due_at_its_time_also_after_a_failure() {
    let mode = Mode::of([1]);
    let mut node = Node::new(&[&mode], [1]);
    node.served.insert(1);
    let later = node.now + Duration::from_secs(100);
    let mut left = mode.0.lock().unwrap();
    (left.next, left.draining, left.refuses) = (Some(later), 3, true);
    drop(left);
    let (handed, _) = node.sync(true);
    assert_eq!((handed.counts().failed, handed.next), (1, Some(later)));
    mode.0.lock().unwrap().refuses = false;
    node.now = later;
    let later = node.now + Duration::from_secs(100);
    mode.0.lock().unwrap().next = Some(later);
    let (handed, _) = node.sync(false);
    assert_eq!((handed.counts().done, handed.next), (1, Some(node.now)));
    let (handed, _) = node.sync(false);
    assert_eq!((handed.draining, handed.next), (3, Some(later)));
    assert!(node.handover.may_have_leftovers());
    let mut left = mode.0.lock().unwrap();
    (left.next, left.draining) = (None, 0);
    drop(left);
    node.now = later;
    let (handed, _) = node.sync(false);
    assert_eq!((handed.draining, handed.next), (0, None));
    assert!(!node.handover.may_have_leftovers());
}

#[test]
fn the_sources_that_a_frontend_admits_are_passed_with_it() {
    let mode = Mode::of([1]);
    let mut node = Node::new(&[&mode], [1]);
    let mut service = Service::new(ObjectName::new("ns", "restricted"))
        .with_cluster_ip("10.96.0.2")
        .with_port(Port::new("http", 80));
    service.service_type = ServiceType::LoadBalancer;
    service.ingress = vec![Ingress {
        ip: "10.96.0.3".to_owned(),
        ..Ingress::default()
    }];
    service.load_balancer_source_ranges = vec!["198.51.100.0/24".to_owned()];
    let change = Change::Services(ObjectChange::Upsert(service));
    node.services.change(SourceId(0), change);
    node.sync(true);
    let admitted = vec!["198.51.100.0/24".parse().unwrap()];
    let expected = [(1, Vec::new()), (2, Vec::new()), (3, admitted)];
    let expected = expected.map(|(last, ranges)| (frontend(last), ranges));
    assert_eq!(mode.0.lock().unwrap().ranges, BTreeMap::from(expected));
}

#[test]
fn a_mode_that_serves_again_later_gets_all_services_of_that_time() {
    let mode = Mode::default();
    mode.0.lock().unwrap().is_read_again = true;
    let mut node = Node::new(&[&mode], [1, 2]);
    node.served.insert(1);
    node.sync(true);
    assert!(!node.handover.may_have_leftovers());
    assert_eq!(mode.counts(), (1, 0, 0));
    mode.0.lock().unwrap().served = [1, 2, 3].into();
    node.sync(false);
    assert_eq!(mode.counts(), (1, 0, 0));
    let (_, events) = node.sync(true);
    assert_eq!(events.len(), 1);
    assert_eq!((mode.counts(), is_left(&mode)), ((2, 1, 2), (vec![2], false)));
    node.served.insert(2);
    node.now += HELD_INTERVAL;
    node.sync(false);
    node.sync(false);
    assert!(!node.handover.may_have_leftovers());
    // What changes while nothing is left is not passed before it serves once more.
    let deleted = ObjectChange::Delete(ObjectName::new("ns", "s1"));
    node.services.change(SourceId(0), Change::Services(deleted));
    node.services.change(SourceId(0), upsert(4));
    node.sync(true);
    mode.0.lock().unwrap().served = [1, 4].into();
    node.sync(true);
    assert_eq!((mode.counts(), is_left(&mode)), ((4, 4, 4), (vec![4], false)));
}

#[test]
fn virtual_ips_are_those_of_modes_of_which_anything_is_left() {
    let mode = Mode::of([1, 2]);
    let mut node = Node::new(&[&mode], [1, 2]);
    assert_eq!(node.handover.virtual_ips(), BTreeSet::new());
    node.sync(true);
    assert_eq!(node.handover.virtual_ips(), BTreeSet::from([Family::Ipv4]));
    node.served = [1, 2].into();
    for _ in 0..2 {
        node.now += HELD_INTERVAL;
        node.sync(false);
    }
    assert!(!node.handover.may_have_leftovers());
    // It is not asked any more.
    mode.0.lock().unwrap().is_unreadable = true;
    assert_eq!(node.handover.virtual_ips(), BTreeSet::new());
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
    // While no round makes the operation again, the failure is not solved.
    mode.0.lock().unwrap().waiting = 2;
    let (handed, _) = node.sync(true);
    assert_eq!((handed.waiting, handed.events.len()), (2, 0));
    assert!(!handed.is_success());
    mode.0.lock().unwrap().waiting = 0;
    let (handed, _) = node.sync(true);
    assert_eq!((handed.waiting, handed.is_success()), (0, true));
    let solved = texts(&handed.events);
    assert!(solved.len() == 1 && solved[0].starts_with("solved"), "{solved:?}");
}

#[test]
fn the_delay_after_a_failure_is_the_configured_one() {
    let mode = Mode::of([1]);
    mode.0.lock().unwrap().refuses = true;
    let mut node = Node::new(&[&mode], [1]);
    node.served.insert(1);
    let longest = Duration::from_secs(1_000);
    node.handover.set_backoff(Backoff {
        initial: longest,
        max: longest,
    });
    let (handed, _) = node.sync(true);
    let delay = handed.next.unwrap() - node.now;
    assert!(delay >= longest / 2 && delay <= longest, "{delay:?}");
}

#[test]
fn a_hand_over_counts_its_steps_and_succeeds_if_all_are_done_and_none_waits() {
    let handed = |outcomes: &[RetiredOutcome], waiting| {
        let steps = outcomes.iter().map(|outcome| RetiredStep {
            class: Class {
                kind: "leftovers",
                family: None,
                is_shared: false,
            },
            command: "remove".to_owned(),
            outcome: outcome.clone(),
        });
        let mode = RetiredMode {
            mode: "another mode",
            steps: steps.collect(),
        };
        Handed {
            modes: vec![mode],
            waiting,
            ..Handed::default()
        }
    };
    let (done, skipped) = (RetiredOutcome::Done, RetiredOutcome::Skipped);
    let failed = RetiredOutcome::Failed("refused".to_owned());
    let planned = RetiredOutcome::Planned;
    let all = [
        vec![planned],
        vec![done.clone(); 2],
        vec![failed.clone(); 3],
        vec![skipped.clone(); 4],
    ];
    let counts = handed(&all.concat(), 0).counts();
    assert_eq!((counts.done, counts.failed, counts.skipped), (2, 3, 4));
    assert!(handed(&[done.clone(), done.clone()], 0).is_success());
    assert!(handed(&[], 0).is_success());
    assert!(!handed(std::slice::from_ref(&done), 1).is_success());
    assert!(!handed(&[done.clone(), failed], 0).is_success());
    assert!(!handed(&[done, skipped], 0).is_success());
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
