//! Faults of single calls that change the kernel, and the end of a process after one.

use kernlink_services::Change;

use super::calls::{Fault, Kind, count};
use super::cluster::Cluster;
use super::process::{Expected, Process, cluster, converged, same};
use super::random::Random;
use super::{Fixture, Host, times};
use crate::report::Outcome;

/// The largest number of calls of one sync that have a fault, each in a run of its own; of more calls, random ones have.
const MOST_CALLS: usize = 16;

/// Each call that changes the kernel is refused in turn: nothing that depends on it is executed, everything else is, and a retry leads to the
/// desired state.
pub fn all_but_a_refused_change_is_executed<F: Fixture>(fixture: &mut F) {
    each_call(fixture, Fault::Refuse);
}

/// Each call that changes the kernel is executed in turn without a reply. Then no operation fails, also if the Services change before the retry.
pub fn lost_replies_are_read_again<F: Fixture>(fixture: &mut F) {
    each_call(fixture, Fault::LoseReply);
}

/// Each call that changes the kernel is lost in turn. Then no operation fails, also if the Services change before the retry.
pub fn lost_requests_are_sent_again<F: Fixture>(fixture: &mut F) {
    each_call(fixture, Fault::LoseRequest);
}

/// The process ends after each call of a change of the Services in turn. A new one reaches the desired state.
pub fn any_change_may_be_the_last_of_a_process<F: Fixture>(fixture: &mut F) {
    each_call(fixture, Fault::End);
}

/// The process ends after each call of the first syncs of a host in turn. A new one reaches the desired state.
pub fn any_first_change_may_be_the_last_of_a_process<F: Fixture>(fixture: &mut F) {
    for seed in fixture.seeds() {
        let (services, mut random) = cluster(fixture, seed);
        let about = format!("seed {seed}");
        let rebuilt = converged(fixture, &services, &about);
        let (owned, foreign) = (rebuilt.host.owned(), rebuilt.host.foreign());
        let mut expected = Expected::stable(fixture);
        expected.deny(None, &rebuilt);
        let [calls, _] = {
            let mut process = Process::new(fixture, &services, &about);
            process.converge();
            process.take_calls()
        };
        let mut hits = 0;
        let positions = positions(calls, &mut random);
        for &before in &positions {
            let about = format!("seed {seed}, the process ends after change {}", before + 1);
            let mut process = Process::new(fixture, &services, &about);
            process.observe(&expected.denied());
            process.calls.arm(Kind::Change, before, Fault::End);
            process.sync_until_end();
            hits += process.calls.hits();
            assert!(process.calls.has_ended(), "{about}: {before} of {calls} calls");
            process = process.restart(&services);
            process.converge();
            process.check_owned(&owned);
            process.check_served(&expected);
            same(&about, &foreign, &process.host.foreign());
        }
        assert_eq!(hits, positions.len(), "seed {seed}: calls with a fault");
    }
}

/// Calls fail at random while Services change, processes end and the kernel is read. When all calls succeed again, retries and one listing lead
/// to the desired state.
pub fn after_random_faults_the_kernel_reaches_the_desired_state<F: Fixture>(fixture: &mut F) {
    let mut hits = 0;
    for seed in times(&fixture.seeds(), 2) {
        let (mut services, mut random) = cluster(fixture, seed);
        let about = format!("seed {seed}");
        let expected = Expected::stable(fixture);
        let mut process = converged(fixture, &services, &about);
        process.observe(&expected);
        for _ in 0..30 {
            match random.below(10) {
                0..=5 => {
                    let change = services.change(&mut random);
                    process.deliver([change]);
                }
                6 => {
                    let percent = 1 + random.below(30);
                    let numbers = Random::new(seed * 1_000 + random.below(1_000) as u64);
                    process.calls.fail_at_random(percent, numbers);
                }
                7 => process.calls.disarm(),
                8 => process.proxier.resync(),
                _ if !fixture.serves_without_process() => {}
                _ => process = process.restart(&services),
            }
            if random.chance(60)
                && let Some(synced) = process.sync()
                && random.chance(50)
            {
                process.now = synced.next.unwrap_or(process.now).max(process.now);
            }
        }
        hits += process.calls.hits();
        process.calls.disarm();
        process.recover();
        // As at intervals: what could not be read since may be others than recorded.
        process.proxier.resync();
        process.converge();
        process.proxier.resync();
        assert_eq!(process.plan(), "", "{about}");
        let rebuilt = converged(fixture, &services, &about);
        process.check_owned(&rebuilt.host.owned());
        process.check_served(&expected);
        same(&about, &rebuilt.host.foreign(), &process.host.foreign());
    }
    assert_ne!(hits, 0, "no call had a fault");
}

/// A change of the Services: those before, those after it, and the changes.
struct Episode {
    before: Cluster,
    after: Cluster,
    changes: Vec<Change>,
}

impl Episode {
    fn new<F: Fixture>(fixture: &F, seed: u64) -> (Self, Random) {
        let (before, mut random) = cluster(fixture, seed);
        let mut after = before.clone();
        let changes = (0..3).map(|_| after.change(&mut random)).collect();
        let episode = Self {
            before,
            after,
            changes,
        };
        (episode, random)
    }

    /// A process that reached the desired state before the changes, and received them.
    fn begin<'a, F: Fixture>(&self, fixture: &'a F, about: &str) -> Process<'a, F> {
        let mut process = converged(fixture, &self.before, about);
        process.take_calls();
        process.deliver(self.changes.clone());
        process
    }
}

fn each_call<F: Fixture>(fixture: &F, fault: Fault) {
    let mut all_hits = 0;
    for seed in fixture.seeds() {
        let (episode, mut random) = Episode::new(fixture, seed);
        let about = format!("seed {seed}");
        let rebuilt = converged(fixture, &episode.after, &about);
        let (owned, foreign) = (rebuilt.host.owned(), rebuilt.host.foreign());
        let mut expected = Expected::stable(fixture);
        let owned_before;
        let commands = {
            let before = converged(fixture, &episode.before, &about);
            owned_before = before.host.owned();
            expected.deny(Some(&before), &rebuilt);
            expected.keep(&before, &rebuilt);
            let mut process = episode.begin(fixture, &about);
            process.sync();
            process.calls.take()
        };
        let calls = count(&commands, Kind::Change);
        let positions = positions(calls, &mut random);
        let mut hits = 0;
        for &before in &positions {
            let about = format!("seed {seed}, {fault:?} at change {} of {calls}", before + 1);
            let mut process = episode.begin(fixture, &about);
            process.observe(&expected);
            process.calls.arm(Kind::Change, before, fault);
            let synced = process.sync();
            hits += process.calls.hits();
            if fault == Fault::Refuse
                && let Some(synced) = &synced
            {
                // One that is part of several operations is made again for each of them.
                let failed = synced.plan.steps().zip(synced.report.outcomes());
                let failed = failed.filter(|((_, step), outcome)| {
                    matches!(outcome, Outcome::Failed(_)) && !fixture.is_safe_without_needs(&step.operation)
                });
                let failed: Vec<String> = failed
                    .map(|((id, step), _)| format!("step {id}: {}", step.operation))
                    .collect();
                assert!(
                    failed.len() <= 1,
                    "{about}: one call was refused, and {} operations failed: the kernel refused the others because of it, and their steps \
                     lack a need of its step\n{}\n{synced}",
                    failed.len(),
                    failed.join("\n")
                );
            }
            if fault == Fault::End {
                if !fixture.serves_without_process() {
                    process.calls.remove_observer();
                }
                process = process.restart(&episode.after);
            } else if random.chance(50) {
                process.deliver(episode.before.all());
                process.observe(&Expected::stable(fixture));
                process.sync();
                process.check_served(&Expected::stable(fixture));
                process.converge();
                process.check_owned(&owned_before);
                process.deliver(episode.after.all());
            }
            process.converge();
            process.check_owned(&owned);
            process.check_served(&expected);
            same(&about, &foreign, &process.host.foreign());
        }
        assert_eq!(hits, positions.len(), "seed {seed}: calls with a fault");
        all_hits += hits;
    }
    assert_ne!(all_hits, 0, "no call had a fault");
}

/// The calls that have a fault: all, or random ones of many.
fn positions(calls: usize, random: &mut Random) -> Vec<usize> {
    let mut positions: Vec<usize> = (0..calls).collect();
    while positions.len() > MOST_CALLS {
        positions.swap_remove(random.below(positions.len()));
    }
    positions
}
