//! The cost of a change.

use super::Fixture;
use super::cluster::Cluster;
use super::process::{Process, cluster_of, converged};
use crate::proxier::Cost;
use crate::table::visited_keys;

/// The numbers of Services that are compared.
const SIZES: [u16; 2] = [20, 200];

/// The cost of work of a process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Work {
    visited_keys: u64,
    changes: usize,
    readings: usize,
    cost: Cost,
}

impl Work {
    fn of<F: Fixture>(process: &mut Process<'_, F>, work: impl FnOnce(&mut Process<'_, F>)) -> Self {
        process.take_calls();
        let (keys, cost) = (visited_keys(), process.proxier.cost());
        work(process);
        let [changes, readings] = process.take_calls();
        let now = process.proxier.cost();
        Self {
            visited_keys: visited_keys() - keys,
            changes,
            readings,
            cost: Cost {
                listings: now.listings - cost.listings,
                rereads: now.rereads - cost.rereads,
                resolved: now.resolved - cost.resolved,
                map_entries: now.map_entries - cost.map_entries,
            },
        }
    }
}

/// A sync without a change, one after a change of endpoints, and one after a Service was added and deleted visit the same number of keys,
/// and make the same number of calls, with 20 and with 200 Services.
pub fn a_change_costs_the_same_at_any_size<F: Fixture>(fixture: &mut F) {
    let work = SIZES.map(|size| {
        let mut services = cluster_of(fixture, |families| Cluster::of_size(families, size));
        let mut process = converged(fixture, &services, &format!("{size} Services"));
        let idle = Work::of(&mut process, |process| _ = process.sync_successfully());
        let mut works = vec![("no change", idle)];
        for (what, pods) in [
            ("one endpoint less", &[41][..]),
            ("other endpoints", &[45, 46]),
            ("no endpoint", &[]),
            ("endpoints again", &[41, 42]),
        ] {
            let work = Work::of(&mut process, |process| {
                process.deliver(services.move_endpoints(7, pods));
                process.sync_successfully();
                process.converge();
            });
            works.push((what, work));
        }
        works
    });
    let [few, many] = work;
    let [small, large] = SIZES;
    for ((what, few), (_, many)) in few.iter().zip(&many) {
        assert_eq!(
            few, many,
            "{what}: the sync visits other numbers of keys, or makes other calls, with {small} Services (left) than with {large} (right)"
        );
    }
    for (what, work) in few.iter().skip(1) {
        assert_ne!(work.changes, 0, "{what}: the sync changes nothing in the kernel");
    }
}
