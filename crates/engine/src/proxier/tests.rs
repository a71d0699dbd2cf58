//! What a sync reads after an operation whose outcome is not known, and after a failed reading.

use std::time::{Duration, Instant};

use kernlink_services::{Change, Config, Kind, SourceId};

use super::Proxier;
use crate::scripted::{Script, Scripted};

/// Longer than the first delay of a retry.
const LATER: Duration = Duration::from_secs(10);

/// A proxier without operations before its first sync. No listing reads object `a`.
fn proxier() -> Proxier<Scripted> {
    let mut proxier = Proxier::<Scripted>::new(&Config::new("node-a"), Script::default()).unwrap();
    for kind in [Kind::Service, Kind::EndpointSlice] {
        proxier.change(SourceId(0), Change::synced(kind));
    }
    proxier.state.unlisted = vec!["a"];
    proxier
}

/// One of which the outcomes of the operations on `a` and `b` are not known. They are not needed any more.
fn uncertain(now: Instant) -> Proxier<Scripted> {
    let mut proxier = proxier();
    let kernel = proxier.kernel_mut();
    kernel.steps = vec![(0, "a", "write"), (0, "b", "write")];
    let synced = proxier.sync(now).unwrap();
    assert_eq!((synced.counts().failed, proxier.waiting().count()), (2, 2));
    proxier.kernel_mut().steps.clear();
    proxier.resync();
    proxier
}

#[test]
fn what_a_listing_does_not_read_is_read_after_an_operation_with_an_unknown_outcome() {
    // Before the retry is due, and when it is.
    for delay in [Duration::ZERO, LATER] {
        let now = Instant::now();
        let mut proxier = uncertain(now);
        proxier.sync(now + delay).unwrap();
        assert_eq!(proxier.state.read, ["a"], "after {delay:?}");
        proxier.sync(now + 2 * LATER).unwrap();
        assert_eq!(proxier.waiting().count(), 0);
    }
}

#[test]
fn an_operation_with_an_unknown_outcome_that_is_not_planned_again_waits_for_its_retry() {
    let now = Instant::now();
    let mut proxier = uncertain(now);
    proxier.state.clean = vec!["a", "b"];
    proxier.sync(now).unwrap();
    assert_eq!((proxier.state.read.len(), proxier.waiting().count()), (0, 2));
    proxier.resync();
    proxier.sync(now + LATER).unwrap();
    assert_eq!((proxier.state.read, proxier.retries.len()), (vec!["a"], 0));
}

#[test]
fn an_operation_with_an_unknown_outcome_is_not_forgotten_if_its_object_cannot_be_read() {
    for delay in [Duration::ZERO, LATER] {
        let now = Instant::now();
        let mut proxier = uncertain(now);
        proxier.needs_listing = false;
        proxier.state.is_unreadable = true;
        // The first one reads single objects, and the next ones are listings.
        for _ in 0..3 {
            assert!(proxier.sync(now + delay).is_err());
        }
        proxier.state.is_unreadable = false;
        proxier.sync(now + delay).unwrap();
        assert_eq!(proxier.state.read, ["a"], "after {delay:?}");
        assert!(!proxier.needs_listing);
    }
}

#[test]
fn a_recheck_that_failed_is_repeated_if_a_listing_does_not_read_the_object() {
    let now = Instant::now();
    let mut proxier = proxier();
    proxier.sync(now).unwrap();
    proxier.recheck(["a", "b"]);
    proxier.state.is_unreadable = true;
    for _ in 0..2 {
        assert!(proxier.sync(now).is_err());
    }
    proxier.state.is_unreadable = false;
    proxier.sync(now).unwrap();
    proxier.sync(now).unwrap();
    assert_eq!(proxier.state.read, ["a"]);
}
