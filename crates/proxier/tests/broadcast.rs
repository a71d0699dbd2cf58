//! Listeners receive what the data path receives: random clusters, random listeners, and listeners on other threads.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::num::NonZeroUsize;
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::Instant;

use kernlink_proxier::broadcast::{Disconnected, Subscription, Update};
use kernlink_proxier::ipvs_mode::{Config, Kernel, Proxier};
use kernlink_proxier::runner::Notice;
use kernlink_proxier::{Intervals, Runner, Schedule, SyncError};
use kernlink_services::{
    Change, Endpoint, EndpointPort, EndpointSlice, Family, Kind, ObjectChange, ObjectName, Port, Service,
    Services, SourceId,
};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::support::clusters::{Step, apply, step};

fn capacity(capacity: usize) -> NonZeroUsize {
    NonZeroUsize::new(capacity).unwrap()
}

fn proxier() -> Proxier {
    let mut config = Config::new("node-a");
    config.conntrack.max_per_core = 0;
    Proxier::new(&config, Kernel::fake()).unwrap()
}

/// Everything that listeners receive, as text.
fn state(services: &Services) -> String {
    let frontends = services.frontends();
    let frontends: BTreeMap<_, _> = frontends.map(|frontend| (frontend.key, frontend.owner)).collect();
    let checks: Vec<_> = Family::ALL
        .into_iter()
        .flat_map(|family| {
            services
                .health_checks(family)
                .into_iter()
                .map(move |check| (family, check))
        })
        .collect();
    format!("{frontends:?} {checks:?} {:?}", services.node_facts())
}

/// The state that a snapshot has, as [`state`].
fn state_of(snapshot: &Update) -> String {
    let frontends = snapshot.frontends.iter();
    let frontends: BTreeMap<_, _> = frontends
        .map(|(key, owner)| (key, owner.as_ref().unwrap()))
        .collect();
    let checks = snapshot.health_checks.iter();
    let checks: Vec<_> = checks
        .map(|((family, _), check)| (family, check.as_ref().unwrap()))
        .collect();
    format!("{frontends:?} {checks:?} {:?}", snapshot.node.as_ref().unwrap())
}

/// A listener that keeps the present state.
struct Listener {
    subscription: Subscription,
    /// The number of updates that it can hold.
    capacity: usize,
    /// The number of changes since it received something.
    missed: usize,
    known: Option<Update>,
}

impl Listener {
    /// Receives everything, and compares the state after each update with the one of its number.
    fn receive(&mut self, states: &BTreeMap<u64, String>) {
        let mut received = 0;
        while let Some(update) = self.subscription.try_recv().unwrap() {
            received += 1;
            match &mut self.known {
                None => {
                    assert!(update.is_snapshot, "{update:?}");
                    self.known = Some(Update::clone(&update));
                }
                Some(known) => {
                    assert!(!update.is_snapshot, "{update:?}");
                    assert!(update.revision > known.revision);
                    if self.missed < self.capacity {
                        assert_eq!(update.revision, known.revision + 1, "nothing is merged");
                    }
                    known.merge(&update);
                }
            }
            let known = self.known.as_ref().unwrap();
            assert_eq!(state_of(known), states[&known.revision]);
        }
        assert!(received <= self.capacity);
        self.missed = 0;
        assert_eq!(
            self.known.as_ref().map(|known| known.revision),
            states.last_key_value().map(|(revision, _)| *revision)
        );
    }
}

#[derive(Clone, Debug)]
enum Action {
    Change(Vec<Step>),
    Sync(Vec<Step>),
    Subscribe(usize),
    Receive(usize),
    Drop(usize),
}

fn action() -> impl Strategy<Value = Action> {
    prop_oneof![
        3 => vec(step(), 0..4).prop_map(Action::Change),
        6 => vec(step(), 0..4).prop_map(Action::Sync),
        2 => (1..4_usize).prop_map(Action::Subscribe),
        4 => (0..4_usize).prop_map(Action::Receive),
        1 => (0..4_usize).prop_map(Action::Drop),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn each_listener_has_a_state_that_existed_after_each_update(actions in vec(action(), 1..30)) {
        let mut proxier = proxier();
        let probe = proxier.subscribe(capacity(2));
        let mut states = BTreeMap::new();
        let mut listeners: Vec<Listener> = Vec::new();
        for action in actions {
            match action {
                Action::Change(steps) => apply(&mut proxier, &steps),
                Action::Sync(steps) => {
                    apply(&mut proxier, &steps);
                    proxier.sync(Instant::now()).unwrap();
                    let now = state(proxier.services());
                    match probe.try_recv().unwrap() {
                        Some(update) => {
                            prop_assert_eq!(update.revision, states.len() as u64 + 1);
                            states.insert(update.revision, now);
                            listeners.iter_mut().for_each(|listener| listener.missed += 1);
                        }
                        None => prop_assert_eq!(Some(&now), states.values().last(), "nothing changed"),
                    }
                    prop_assert!(probe.try_recv().unwrap().is_none());
                }
                Action::Subscribe(size) => listeners.push(Listener {
                    subscription: proxier.subscribe(capacity(size)),
                    capacity: size,
                    missed: usize::from(!states.is_empty()),
                    known: None,
                }),
                Action::Receive(place) => {
                    if let Some(listener) = listeners.get_mut(place) {
                        listener.receive(&states);
                    }
                }
                Action::Drop(place) => {
                    if place < listeners.len() {
                        listeners.remove(place);
                    }
                }
            }
        }
        for listener in &mut listeners {
            listener.receive(&states);
        }
        drop(proxier);
        for listener in listeners {
            prop_assert_eq!(listener.subscription.try_recv(), Err(Disconnected));
        }
    }
}

fn address(number: u8) -> IpAddr {
    IpAddr::from([10, 96, 0, number])
}

/// The addresses of all frontends.
fn addresses(services: &Services) -> BTreeSet<IpAddr> {
    services
        .frontends()
        .map(|frontend| frontend.key.address)
        .collect()
}

fn service(number: u8) -> Change {
    let service = Service::new(ObjectName::new("shop", format!("s{number}")));
    let service = service
        .with_cluster_ip(address(number).to_string())
        .with_port(Port::new("http", 80));
    Change::Services(ObjectChange::Upsert(service))
}

fn slice(number: u8, endpoint: u8) -> Change {
    let service = format!("s{number}");
    let slice = EndpointSlice::new(
        ObjectName::new("shop", format!("{service}-x")),
        &*service,
        Family::Ipv4,
    );
    let slice = slice
        .with_port(EndpointPort::new("http", 8080))
        .with_endpoint(Endpoint::new([10, 244, 1, endpoint].into()));
    Change::EndpointSlices(ObjectChange::Upsert(slice))
}

#[test]
fn nothing_is_sent_before_every_source_has_delivered_its_first_list() {
    let mut proxier = proxier();
    let early = proxier.subscribe(capacity(8));
    proxier.change(SourceId(0), service(1));
    assert!(matches!(
        proxier.sync(Instant::now()),
        Err(SyncError::NotSynced(_))
    ));
    assert_eq!(early.try_recv(), Ok(None));
    proxier.change(SourceId(0), Change::synced(Kind::Service));
    proxier.change(SourceId(0), Change::synced(Kind::EndpointSlice));
    proxier.sync(Instant::now()).unwrap();
    let snapshot = early.recv().unwrap();
    assert_eq!((snapshot.is_snapshot, snapshot.frontends.len()), (true, 1));
    // A Service that is resolved again with the same result is no change.
    proxier.change(SourceId(0), service(1));
    proxier.sync(Instant::now()).unwrap();
    assert_eq!(early.try_recv(), Ok(None));
    // What is not in the kernel yet is sent too: a plan gives it to the data path.
    proxier.change(SourceId(0), slice(1, 7));
    proxier.plan(Instant::now()).unwrap();
    let update = early.recv().unwrap();
    let (_, owner) = update.frontends.first_key_value().unwrap();
    assert_eq!(
        owner.as_ref().unwrap().endpoints.cluster[0].address.to_string(),
        "10.244.1.7"
    );
}

/// Listeners begin on other threads while Services change; one of them never receives. The proxier executes every sync.
#[test]
fn listeners_on_other_threads_follow_and_one_that_does_not_receive_stops_nothing() {
    let (sender, notices) = mpsc::channel();
    let intervals = Intervals {
        min: std::time::Duration::ZERO,
        max: std::time::Duration::ZERO,
    };
    let runner = Runner::start(proxier(), Schedule::new(intervals), move |notice| {
        let _ = sender.send(notice);
    });
    let runner = Arc::new(runner.unwrap());
    let idle = runner.subscribe(capacity(1));
    for change in [Change::synced(Kind::Service), Change::synced(Kind::EndpointSlice)] {
        runner.change(SourceId(0), change);
    }
    let followers: Vec<_> = (0..4)
        .map(|_| {
            let runner = Arc::clone(&runner);
            thread::spawn(move || {
                let subscription = runner.subscribe(capacity(4));
                drop(runner);
                let mut known = Update::clone(&subscription.recv().unwrap());
                assert!(known.is_snapshot);
                while let Ok(update) = subscription.recv() {
                    assert!(!update.is_snapshot && update.revision > known.revision);
                    known.merge(&update);
                }
                known
            })
        })
        .collect();
    for number in 1..=200 {
        runner.change(SourceId(0), service(number));
        runner.change(SourceId(0), slice(number, number));
        if number > 100 {
            let name = ObjectName::new("shop", format!("s{}", number - 100));
            runner.change(SourceId(0), Change::Services(ObjectChange::Delete(name)));
        }
    }
    // The last Services are in the kernel. Other ones may have been as many.
    while runner.read(|proxier| addresses(proxier.services())) != Some((101..=200).map(address).collect()) {
        assert!(matches!(notices.recv().unwrap(), Notice::Synced(_)));
    }
    let expected = runner.read(|proxier| state(proxier.services())).unwrap();
    let late = runner.subscribe(capacity(1)).recv().unwrap();
    assert_eq!(state_of(&late), expected);
    // The last owner ends the thread of the proxier.
    drop(runner);
    for follower in followers {
        assert_eq!(state_of(&follower.join().unwrap()), expected);
    }
    let merged = idle.recv().unwrap();
    assert!(merged.is_snapshot);
    assert_eq!((merged.revision, state_of(&merged)), (late.revision, expected));
    assert_eq!(idle.recv(), Err(Disconnected));
}
