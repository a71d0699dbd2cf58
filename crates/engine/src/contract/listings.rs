//! Readings that fail, and listings that lack objects.

use super::calls::{Fault, Kind, count};
use super::process::{Expected, Process, cluster, converged, same};
use super::{Fixture, Host};

/// The largest number of readings of one sync that have a fault, each in a run of its own; of more readings, random ones have.
const MOST_READINGS: usize = 10;

/// Each reading of a listing fails in turn, in a process that served before and in a new one. What could not be read is not taken for
/// removed: everything is served. Retries lead to the desired state, for a new process together with the next listing.
pub fn a_failed_reading_removes_nothing<F: Fixture>(fixture: &mut F) {
    each_reading(fixture, &[Kind::Reading, Kind::Listing], Fault::Refuse);
}

/// Each listing is torn in turn: it lacks objects, and reports this. What it lacks is not taken for removed.
pub fn a_torn_listing_is_not_used_as_complete<F: Fixture>(fixture: &mut F) {
    if fixture.has_torn_listings() {
        each_reading(fixture, &[Kind::Listing], Fault::Tear);
    }
}

fn each_reading<F: Fixture>(fixture: &F, kinds: &[Kind], fault: Fault) {
    let mut all_hits = 0;
    for seed in fixture.seeds() {
        let (services, mut random) = cluster(fixture, seed);
        let mut after = services.clone();
        let changes: Vec<_> = (0..2).map(|_| after.change(&mut random)).collect();
        let expected = Expected::stable(fixture);
        for (is_restarted, has_changed) in [(false, false), (true, false), (false, true), (true, true)] {
            let cluster = if has_changed { &after } else { &services };
            let begin = |about: &str| {
                let mut process: Process<'_, F> = converged(fixture, &services, about);
                if is_restarted {
                    process = process.restart(cluster);
                } else if has_changed {
                    process.deliver(changes.clone());
                }
                process.calls.take();
                process.proxier.resync();
                process
            };
            let about = format!("seed {seed}, restarted: {is_restarted}, changed: {has_changed}");
            let rebuilt = converged(fixture, cluster, &about);
            let (owned, foreign) = (rebuilt.host.owned(), rebuilt.host.foreign());
            let mut process = begin(&about);
            process.sync();
            let calls = process.calls.take();
            let readings = kinds.iter().flat_map(|kind| {
                let of_kind = 0..count(&calls, *kind);
                of_kind.map(|before| (*kind, before))
            });
            let mut readings: Vec<(Kind, usize)> = readings.collect();
            while readings.len() > MOST_READINGS {
                readings.swap_remove(random.below(readings.len()));
            }
            let mut hits = 0;
            for &(kind, before) in &readings {
                let about = format!("{about}, {fault:?} of {kind:?} {before}");
                let mut process = begin(&about);
                let before_sync = process.host.owned();
                let is_served = fixture.serves_without_process() || !is_restarted;
                if is_served {
                    process.observe(&expected);
                }
                process.calls.arm(kind, before, fault);
                let synced = process.sync();
                hits += process.calls.hits();
                if let Some(synced) = synced.filter(|_| fault == Fault::Tear) {
                    // Such as to add what exists.
                    assert_eq!(synced.counts().failed, 0, "{about}\n{}{synced}", synced.plan);
                }
                if is_served {
                    process.check_served(&expected);
                }
                if !is_restarted && !has_changed {
                    same(&about, &before_sync, &process.host.owned());
                }
                process.calls.disarm();
                process.converge();
                if is_restarted {
                    // What a new process could not read may be programmed without it until the next listing.
                    process.proxier.resync();
                    process.converge();
                }
                process.check_owned(&owned);
                process.check_served(&expected);
                same(&about, &foreign, &process.host.foreign());
            }
            assert_eq!(hits, readings.len(), "{about}: readings with a fault");
            all_hits += hits;
        }
    }
    assert_ne!(all_hits, 0, "no reading had a fault");
}
