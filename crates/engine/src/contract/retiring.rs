//! What a mode leaves on a node is removed, with a serving mode and without one, and nothing else is.

use std::collections::BTreeMap;
use std::time::Duration;

use kernlink_services::{FrontendKey, Services};

use super::calls::{Calls, Fault, Kind};
use super::cluster::Cluster;
use super::process::{Expected, Process, cluster, cluster_of, converged, same};
use super::{Fixture, Host};
use crate::retire::{Retire, Round, Unserved, leftovers, remove_all};

/// The rounds after which everything must be removed that can be.
const MOST_ROUNDS: usize = 60;
/// The time between rounds. After it what failed is tried again, and connections are read again.
const PAUSE: Duration = Duration::from_secs(120);

/// A data path, and what it leaves on a node.
pub trait RetireFixture: Fixture {
    /// The mode in a new process, on a host that it does not serve any more. Its kernel APIs make all calls through those of the host.
    fn retiring(&self, host: &Self::Host) -> Box<dyn Retire>;

    /// Whether an object, a line of [`Host::owned`], stays after a removal, such as a chain that other programs have too. Default: none does.
    fn stays(&self, _line: &str) -> bool {
        false
    }
}

/// The objects that a removal must remove.
fn removable<F: RetireFixture>(fixture: &F, host: &F::Host) -> String {
    let owned = host.owned();
    let lines = owned.lines().filter(|line| !fixture.stays(line));
    lines.map(|line| format!("{line}\n")).collect()
}

/// A host that a process with these Services served until it ended. From now on each change must leave the objects of other programs.
fn left<'a, F: RetireFixture>(fixture: &'a F, services: &Cluster, about: &str) -> Process<'a, F> {
    let process = converged(fixture, services, about);
    process.host.end_process();
    let (host, foreign) = (process.host.clone(), process.host.foreign());
    process.calls.set_observer(move || {
        (host.foreign() != foreign).then(|| "the objects of other programs are others".to_owned())
    });
    process
}

#[track_caller]
fn check_nothing_left<F: RetireFixture>(fixture: &F, process: &Process<'_, F>, about: &str) {
    process.check_problems();
    let empty = fixture.host(&Calls::default());
    same(
        about,
        &removable(fixture, &empty),
        &removable(fixture, &process.host),
    );
}

/// All frontends of the process.
fn unserved(services: &Services) -> BTreeMap<FrontendKey, Unserved> {
    let frontends = services.frontends().map(|of| {
        let mut ranges = of.frontends().map(|frontend| &frontend.source_ranges);
        let restricted = ranges.find(|ranges| !ranges.is_empty());
        let unserved = Unserved {
            service: of.owner.key.name.service.clone(),
            source_ranges: restricted.cloned().unwrap_or_default(),
        };
        (of.key, unserved)
    });
    frontends.collect()
}

/// The rounds of a hand-over, until nothing is left, the process ends, or there were so many. Returns whether nothing is left.
fn rounds<F: RetireFixture>(
    process: &mut Process<'_, F>,
    mode: &mut dyn Retire,
    unserved: &BTreeMap<FrontendKey, Unserved>,
    most: usize,
) -> bool {
    for _ in 0..most {
        process.now += PAUSE;
        match mode.read(process.now, &|_| false) {
            Ok(true) => {}
            Ok(false) => return true,
            Err(_) if process.calls.has_ended() => return false,
            Err(_) => continue,
        }
        let services = process.proxier.services();
        mode.compile(services, &services.everything());
        let retired = mode.retire(&Round {
            now: process.now,
            has_serving_mode: true,
            unserved,
            has_served: true,
            kept: &|_| false,
            executes: true,
        });
        process.check_problems();
        if process.calls.has_ended() {
            return false;
        }
        let is_unknown = retired.held.iter().any(|held| !unserved.contains_key(held));
        assert!(!is_unknown, "held, but not unserved: {:?}", retired.held);
    }
    false
}

/// A host that the mode never served has nothing of it, and a removal changes nothing there.
pub fn a_host_that_it_did_not_serve_has_nothing_of_it<F: RetireFixture>(fixture: &mut F) {
    let host = fixture.host(&Calls::default());
    let before = (host.owned(), host.foreign());
    let mut mode = fixture.retiring(&host);
    assert_eq!(mode.is_serving(), Ok(false));
    assert_eq!(mode.read(std::time::Instant::now(), &|_| false), Ok(false));
    let removed = remove_all(&mut [mode], std::time::Instant::now());
    assert!(removed.done.is_empty(), "{:?}", removed.done);
    assert_eq!(removed.failures, Vec::<String>::new());
    assert_eq!((host.owned(), host.foreign()), before);
}

/// While another mode serves the node, what it does not serve yet stays served; at the end nothing is left.
pub fn what_is_not_served_yet_stays_and_at_the_end_nothing_is_left<F: RetireFixture>(fixture: &mut F) {
    let services = cluster_of(fixture, Cluster::stable);
    let mut process = left(fixture, &services, "a hand-over");
    let mut mode = fixture.retiring(&process.host);
    assert_eq!(mode.read(process.now, &|_| false), Ok(true));
    assert_eq!(mode.is_serving(), Ok(true));
    if fixture.serves_without_process() {
        let all = unserved(process.proxier.services());
        assert!(!rounds(&mut process, &mut *mode, &all, 4), "frontends are held");
        process.check_served(&Expected::stable(fixture));
    }
    let is_gone = rounds(&mut process, &mut *mode, &BTreeMap::new(), MOST_ROUNDS);
    assert!(
        is_gone,
        "after {MOST_ROUNDS} rounds there is still\n{}",
        process.host.owned()
    );
    check_nothing_left(fixture, &process, "at the end");
    assert_eq!(mode.is_serving(), Ok(false));
}

/// Without a serving mode one removal removes everything, and its plan changes nothing.
pub fn without_a_serving_mode_one_removal_leaves_nothing<F: RetireFixture>(fixture: &mut F) {
    for seed in fixture.seeds() {
        let about = format!("seed {seed}");
        let (services, _) = cluster(fixture, seed);
        let process = left(fixture, &services, &about);
        let mut modes = [fixture.retiring(&process.host)];
        let before = process.host.owned();
        let planned = leftovers(&mut modes, process.now);
        same(&about, &before, &process.host.owned());
        assert!(!planned.commands.is_empty(), "{about}");
        assert_eq!(planned.problems, Vec::<String>::new(), "{about}");
        let removed = remove_all(&mut modes, process.now);
        assert_eq!(removed.failures, Vec::<String>::new(), "{about}");
        assert_eq!(removed.kept, Vec::<String>::new(), "{about}");
        check_nothing_left(fixture, &process, &about);
        let again = remove_all(&mut modes, process.now);
        assert!(again.done.is_empty(), "{about}: {:?}", again.done);
        assert_eq!(leftovers(&mut modes, process.now).commands, "", "{about}");
    }
}

/// Any change of a removal may be refused, be lost, or be the last one of the process: the next rounds, or the next process, remove the rest.
pub fn any_change_of_a_removal_may_fail_or_be_the_last<F: RetireFixture>(fixture: &mut F) {
    let services = cluster_of(fixture, Cluster::stable);
    for has_serving_mode in [true, false] {
        for fault in [Fault::Refuse, Fault::LoseRequest, Fault::LoseReply, Fault::End] {
            for before in 0.. {
                let mode = if has_serving_mode { "with" } else { "without" };
                let about = format!("{mode} a serving mode, {fault:?} after {before} changes");
                let mut process = left(fixture, &services, &about);
                let mut retiring = [fixture.retiring(&process.host)];
                process.calls.arm(Kind::Change, before, fault);
                let [mode] = &mut retiring;
                if has_serving_mode {
                    rounds(&mut process, &mut **mode, &BTreeMap::new(), MOST_ROUNDS);
                } else {
                    remove_all(&mut retiring, process.now);
                }
                let is_hit = process.calls.hits() > 0;
                process.calls.disarm();
                if fault == Fault::End || !has_serving_mode {
                    retiring = [fixture.retiring(&process.host)];
                }
                let [mode] = &mut retiring;
                if has_serving_mode {
                    let is_gone = rounds(&mut process, &mut **mode, &BTreeMap::new(), MOST_ROUNDS);
                    assert!(is_gone, "{about}: there is still\n{}", process.host.owned());
                } else {
                    let removed = remove_all(&mut retiring, process.now);
                    assert_eq!(removed.failures, Vec::<String>::new(), "{about}");
                }
                check_nothing_left(fixture, &process, &about);
                if !is_hit {
                    assert!(before > 0, "{about}: nothing was changed");
                    break;
                }
            }
        }
    }
}
