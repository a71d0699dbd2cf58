//! Another program changes back what was written: it is repaired, reported after the third time in a row, and then repaired less often.
#![cfg(feature = "fake")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test reports errors by panicking"
)]

#[path = "support/faulty.rs"]
mod faulty;
#[path = "support/node.rs"]
mod node;

use std::time::{Duration, Instant};

use kernlink_ipvs::{Operation as IpvsOperation, Scheduler, VirtualServer};
use kernlink_proxier::ipvs_mode::{Key, Operation, Proxier, Synced};
use kernlink_proxier::{Intervals, Schedule};

use crate::faulty::Faults;
use crate::node::{delete, endpoints, ipv4_config, kernel, key, proxier, service, upsert, virtual_servers};

const PERIOD: Duration = Duration::from_secs(30);

/// Deletes a virtual server, as another program does.
fn delete_server(proxier: &mut Proxier, address: &str) {
    let operation = IpvsOperation::DeleteVirtualServer(key(address, 80));
    proxier.kernel_mut().execute(&Operation::Ipvs(operation)).unwrap();
}

fn listing(proxier: &mut Proxier, at: Instant) -> Synced {
    proxier.resync();
    proxier.sync(at).unwrap()
}

/// The events about other programs in the outcome of a sync.
fn reports(synced: &Synced) -> Vec<String> {
    let events = synced.events.iter().map(ToString::to_string);
    events
        .filter(|event| event.contains("another program, such as kube-proxy"))
        .collect()
}

/// A proxier with the Services `a` and `b` after its first sync.
fn two_services(now: Instant) -> Proxier {
    let mut proxier = proxier(ipv4_config(), kernel());
    upsert(&mut proxier, service("a", "10.96.0.1"));
    upsert(&mut proxier, service("b", "10.96.0.2"));
    endpoints(&mut proxier, "a", &[1, 2]);
    assert!(proxier.sync(now).unwrap().is_success());
    proxier
}

#[test]
fn an_object_that_is_removed_three_times_in_a_row_is_reported_and_repaired_each_time() {
    let mut now = Instant::now();
    let mut proxier = two_services(now);
    for round in 1..=5 {
        now += PERIOD;
        delete_server(&mut proxier, "10.96.0.1");
        let synced = listing(&mut proxier, now);
        assert!(synced.is_success(), "{synced}");
        assert_eq!(virtual_servers(proxier.kernel_mut()).len(), 2);
        let delay = synced.no_listing_before.map(|time| (time - now).as_secs());
        let (report, expected) = match round {
            3 => (1, Some(1)),
            4 => (0, Some(2)),
            5 => (0, Some(4)),
            _ => (0, None),
        };
        assert_eq!(
            (reports(&synced).len(), delay),
            (report, expected),
            "round {round}"
        );
        if round == 3 {
            assert!(
                reports(&synced)[0].contains(
                    "virtual server -t 10.96.0.1:80, real server 10.244.0.1:8080 of -t 10.96.0.1:80, real server \
                     10.244.0.2:8080 of -t 10.96.0.1:80 3 times in a row"
                ),
                "{:?}",
                reports(&synced)
            );
        }
    }
}

#[test]
fn chains_that_another_program_rewrites_are_reported_as_the_rules_of_their_family() {
    let mut now = Instant::now();
    let mut proxier = two_services(now);
    let mut events = Vec::new();
    for _ in 0..3 {
        now += PERIOD;
        proxier.kernel_mut().rules = Box::new(kernlink_iptables_restore::Fake::new());
        let synced = listing(&mut proxier, now);
        assert!(synced.is_success() && !synced.plan.is_empty(), "{synced}");
        events.extend(reports(&synced));
    }
    assert_eq!(events.len(), 1, "{events:?}");
    assert!(
        events[0].contains("changed or removed IPv4 rules 3 times"),
        "{events:?}"
    );
}

#[test]
fn own_changes_and_failures_are_not_taken_for_those_of_another_program() {
    let mut now = Instant::now();
    let (kernel, faults) = Faults::of_kernel(kernel());
    let mut proxier = proxier(ipv4_config(), kernel);
    upsert(&mut proxier, service("kept", "10.96.0.9"));
    // The replies of each operation on one Service are lost, and another Service comes and goes, in the syncs that read the kernel and
    // in those that do not.
    faults.lose_reply("10.96.0.3");
    for round in 0..12_u32 {
        now += PERIOD;
        if round % 2 == 0 {
            upsert(&mut proxier, service("a", "10.96.0.1"));
            upsert(&mut proxier, service("lost", "10.96.0.3"));
        } else {
            delete(&mut proxier, "a");
            delete(&mut proxier, "lost");
        }
        if round % 3 == 0 {
            proxier.sync(now).unwrap();
        }
        let synced = listing(&mut proxier, now);
        assert_eq!(reports(&synced), [""; 0]);
        assert_eq!(synced.no_listing_before, None);
    }
}

#[test]
fn a_new_configuration_is_not_taken_for_another_program() {
    let mut now = Instant::now();
    let mut proxier = two_services(now);
    for round in 0..8 {
        now += PERIOD;
        let mut config = ipv4_config();
        config.dummy_link = format!("vips{}", round % 2);
        config.masquerade_all = round % 2 == 0;
        proxier.set_config(&config).unwrap();
        let synced = proxier.sync(now).unwrap();
        assert!(synced.is_success() && !synced.plan.is_empty());
        assert_eq!((reports(&synced).len(), synced.no_listing_before), (0, None));
    }
}

#[test]
fn a_recheck_counts_too_and_waits_while_repairs_are_delayed() {
    let mut now = Instant::now();
    let mut proxier = two_services(now);
    let changed = Key::VirtualServer(key("10.96.0.1", 80));
    let mut until = None;
    for round in 1..=3 {
        now += PERIOD;
        delete_server(&mut proxier, "10.96.0.1");
        assert!(proxier.recheck([changed.clone()]));
        let synced = proxier.sync(now).unwrap();
        assert_eq!(virtual_servers(proxier.kernel_mut()).len(), 2);
        assert_eq!(reports(&synced).len(), usize::from(round == 3), "round {round}");
        assert_eq!(synced.next, Some(now), "the whole kernel is read next");
        until = synced.no_listing_before;
        // The listing that follows finds everything intact. That is no reason to forget what happened.
        assert!(proxier.sync(now).unwrap().plan.is_empty());
    }
    assert_eq!(until, Some(now + Duration::from_secs(1)));
    // Now it waits, and other changes do not.
    delete_server(&mut proxier, "10.96.0.1");
    proxier.recheck([changed]);
    upsert(&mut proxier, service("c", "10.96.0.3"));
    now += Duration::from_millis(500);
    let synced = proxier.sync(now).unwrap();
    assert_eq!(synced.next, until);
    assert_eq!(
        virtual_servers(proxier.kernel_mut()),
        ["-t 10.96.0.2:80", "-t 10.96.0.3:80"]
    );
    let synced = proxier.sync(until.unwrap()).unwrap();
    assert!(synced.is_success(), "{synced}");
    assert_eq!(virtual_servers(proxier.kernel_mut()).len(), 3);
    assert_eq!(
        synced.no_listing_before,
        until.map(|until| until + Duration::from_secs(2))
    );
}

#[test]
fn while_repairs_of_one_object_are_delayed_others_are_repaired_at_once() {
    let mut now = Instant::now();
    let mut proxier = two_services(now);
    let fought = Key::VirtualServer(key("10.96.0.1", 80));
    let other = Key::VirtualServer(key("10.96.0.2", 80));
    let mut until = None;
    for _ in 0..3 {
        now += PERIOD;
        delete_server(&mut proxier, "10.96.0.1");
        proxier.recheck([fought.clone()]);
        until = proxier.sync(now).unwrap().no_listing_before;
        proxier.sync(now).unwrap();
    }
    assert!(until.is_some());
    delete_server(&mut proxier, "10.96.0.1");
    delete_server(&mut proxier, "10.96.0.2");
    assert!(proxier.recheck([fought, other]));
    now += Duration::from_millis(500);
    let listings = proxier.cost().listings;
    let synced = proxier.sync(now).unwrap();
    assert_eq!(virtual_servers(proxier.kernel_mut()), ["-t 10.96.0.2:80"]);
    assert_eq!(synced.next, until, "the whole kernel is not read before");
    assert_eq!(proxier.sync(now).unwrap().plan.len(), 0);
    assert_eq!(proxier.cost().listings, listings);
    proxier.sync(until.unwrap()).unwrap();
    assert_eq!(
        proxier.cost().listings,
        listings + 1,
        "where one was changed, others may be"
    );
    assert_eq!(virtual_servers(proxier.kernel_mut()).len(), 2);
}

#[test]
fn a_schedule_reads_the_kernel_less_often_while_another_program_changes_it_back() {
    let start = Instant::now();
    let mut proxier = proxier(ipv4_config(), kernel());
    upsert(&mut proxier, service("a", "10.96.0.1"));
    let mut schedule = Schedule::new(Intervals::default());
    schedule.on_synced(start);
    let mut listings = Vec::new();
    // The other program acts before each sync, for an hour.
    while let Some(now) = schedule
        .next()
        .filter(|now| *now < start + Duration::from_secs(3_600))
    {
        if schedule.take(now) == Some(kernlink_proxier::schedule::Due::Resync) {
            delete_server(&mut proxier, "10.96.0.1");
            proxier.resync();
            listings.push((now - start).as_secs());
        }
        let synced = proxier.sync(now).unwrap();
        schedule.delay_listing(synced.no_listing_before);
        schedule.on_report(now, synced.next);
    }
    let expected = [30, 60, 90, 120, 150, 180, 210, 240, 272, 336, 464, 720, 1_020];
    assert_eq!(listings[..13], expected);
    // It ends: the next listings are at the usual interval again.
    let now = schedule.next().unwrap();
    schedule.take(now);
    proxier.resync();
    let synced = proxier.sync(now).unwrap();
    assert_eq!((synced.plan.len(), synced.no_listing_before), (0, None));
    schedule.delay_listing(synced.no_listing_before);
    schedule.on_report(now, synced.next);
    assert_eq!(schedule.next(), Some(now + PERIOD));
}

#[test]
fn what_another_program_removes_every_few_minutes_is_repaired_when_it_is_noticed() {
    let mut now = Instant::now();
    let mut proxier = two_services(now);
    let mut events = 0;
    for round in 0..20 {
        now += Duration::from_secs(240);
        delete_server(&mut proxier, "10.96.0.1");
        proxier.recheck([Key::VirtualServer(key("10.96.0.1", 80))]);
        let synced = proxier.sync(now).unwrap();
        assert_eq!(virtual_servers(proxier.kernel_mut()).len(), 2, "round {round}");
        events += reports(&synced).len();
        // The listing that follows.
        proxier.sync(now + Duration::from_secs(1)).unwrap();
    }
    assert_eq!(events, 1);
}

#[test]
fn what_another_program_removes_seldom_after_a_fight_is_repaired_when_it_is_noticed() {
    let mut now = Instant::now();
    let mut proxier = two_services(now);
    // It is removed at once after each repair, and found when the delay has passed.
    for _ in 0..20 {
        delete_server(&mut proxier, "10.96.0.1");
        let synced = listing(&mut proxier, now);
        now = synced.no_listing_before.unwrap_or(now + PERIOD);
    }
    for round in 0..3 {
        proxier.sync(now).unwrap();
        now += Duration::from_secs(240);
        delete_server(&mut proxier, "10.96.0.1");
        proxier.recheck([Key::VirtualServer(key("10.96.0.1", 80))]);
        let synced = proxier.sync(now).unwrap();
        assert_eq!(virtual_servers(proxier.kernel_mut()).len(), 2, "round {round}");
        let delay = synced.no_listing_before.map(|time| time - now);
        assert_eq!(delay, Some(Duration::from_secs(1)));
        now += Duration::from_secs(1);
    }
}

#[test]
fn a_virtual_server_of_another_program_at_another_key_is_not_counted() {
    let mut now = Instant::now();
    let mut proxier = two_services(now);
    for round in 0..5_u16 {
        now += PERIOD;
        let foreign = VirtualServer::new(key("198.51.100.7", 1000 + round), Scheduler::RR);
        let add = Operation::Ipvs(IpvsOperation::AddVirtualServer(foreign));
        proxier.kernel_mut().execute(&add).unwrap();
        let synced = listing(&mut proxier, now);
        assert!(synced.plan.is_empty(), "{}", synced.plan);
        assert_eq!((reports(&synced).len(), synced.no_listing_before), (0, None));
    }
}
