//! A process of a data path on a host, and what is compared after its syncs.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use kernlink_services::{Change, Family, FrontendKey, SourceId};

use super::calls::{Calls, Kind};
use super::cluster::Cluster;
use super::random::Random;
use super::{Fixture, Host, Request};
use crate::data_path::{DataPath, SyncedOf};
use crate::plan::StepId;
use crate::proxier::Proxier;
use crate::report::Outcome;

const SOURCE: SourceId = SourceId(0);
/// The time until a listing that failed is tried again.
const PAUSE: Duration = Duration::from_secs(60);
/// The number of syncs after which a process must have reached the desired state.
const MOST_SYNCS: usize = 200;

/// A process on a host.
pub(super) struct Process<'a, F: Fixture> {
    fixture: &'a F,
    pub(super) proxier: Proxier<F::DataPath>,
    pub(super) host: F::Host,
    pub(super) calls: Calls,
    pub(super) now: Instant,
    /// What is checked, for messages.
    about: String,
}

impl<'a, F: Fixture> Process<'a, F> {
    /// A process on a new host.
    pub(super) fn new(fixture: &'a F, cluster: &Cluster, about: &str) -> Self {
        let calls = Calls::default();
        let host = fixture.host(&calls);
        Self::on(fixture, host, calls, cluster, about, Instant::now())
    }

    fn on(fixture: &'a F, host: F::Host, calls: Calls, cluster: &Cluster, about: &str, now: Instant) -> Self {
        let proxier = match Proxier::new(&fixture.config(), host.kernel()) {
            Ok(proxier) => proxier,
            Err(error) => panic!("the configuration of the fixture: {error}"),
        };
        let mut process = Self {
            fixture,
            proxier,
            host,
            calls,
            now,
            about: about.to_owned(),
        };
        process.deliver(cluster.all());
        process
    }

    /// Ends this process. Returns a new one on its host.
    pub(super) fn restart(self, cluster: &Cluster) -> Self {
        let Self {
            fixture,
            host,
            calls,
            now,
            about,
            ..
        } = self;
        host.end_process();
        calls.disarm();
        Self::on(fixture, host, calls, cluster, &about, now)
    }

    pub(super) fn deliver(&mut self, changes: impl IntoIterator<Item = Change>) {
        for change in changes {
            self.proxier.change(SOURCE, change);
        }
    }

    /// A sync; `None` if the kernel could not be read.
    pub(super) fn sync(&mut self) -> Option<SyncedOf<F::DataPath>> {
        let synced = self.proxier.sync(self.now).ok();
        if let Some(synced) = &synced {
            self.check_needs(synced);
        }
        self.check_problems();
        synced
    }

    /// Syncs at the times that the syncs return, until the process ends.
    pub(super) fn sync_until_end(&mut self) {
        for _ in 0..MOST_SYNCS {
            let next = self.sync().and_then(|synced| synced.next);
            if self.calls.has_ended() {
                return;
            }
            self.now = next.unwrap_or(self.now).max(self.now);
        }
    }

    /// A sync that must succeed.
    #[track_caller]
    pub(super) fn sync_successfully(&mut self) -> SyncedOf<F::DataPath> {
        let Some(synced) = self.sync() else {
            panic!("{}: the kernel was not read", self.about);
        };
        assert!(synced.is_success(), "{}: {synced}", self.about);
        synced
    }

    /// Syncs at the times that the syncs return, until there is nothing to do. No operation fails, since no call has a fault any more.
    #[track_caller]
    pub(super) fn converge(&mut self) {
        self.sync_until_done(false);
    }

    /// The same, but operations may fail first, such as those that were planned without a reading.
    #[track_caller]
    pub(super) fn recover(&mut self) {
        self.sync_until_done(true);
    }

    #[track_caller]
    fn sync_until_done(&mut self, may_fail: bool) {
        let mut last = String::new();
        for _ in 0..MOST_SYNCS {
            let Some(synced) = self.sync() else {
                self.now += PAUSE;
                continue;
            };
            let is_allowed = may_fail || synced.counts().failed == 0;
            assert!(
                is_allowed,
                "{}: without a fault\n{}{synced}",
                self.about, synced.plan
            );
            let is_due = synced.next.is_some_and(|next| next <= self.now);
            if synced.is_success() && synced.draining == 0 && synced.plan.is_empty() && !is_due {
                return;
            }
            last = format!("{}\n{synced}", synced.plan);
            self.now = synced.next.unwrap_or(self.now).max(self.now);
        }
        panic!("{}: after {MOST_SYNCS} syncs there is still\n{last}", self.about);
    }

    /// A step is executed if and only if what it needs was done.
    fn check_needs(&self, synced: &SyncedOf<F::DataPath>) {
        let is_done = |step: &StepId| matches!(synced.report.outcome(*step), Some(Outcome::Done));
        for ((id, step), outcome) in synced.plan.steps().zip(synced.report.outcomes()) {
            let has_all = step.needs.iter().all(is_done);
            let has_any = step.needs_any.is_empty() || step.needs_any.iter().any(is_done);
            let is_skipped = matches!(outcome, Outcome::Skipped { .. });
            assert_eq!(
                is_skipped,
                !(has_all && has_any),
                "{}: step {id}\n{}{synced}",
                self.about,
                synced.plan
            );
        }
    }

    /// Nothing that must not be the case was found after a change of the kernel.
    pub(super) fn check_problems(&self) {
        if let Some(problem) = self.calls.problem() {
            panic!("{}: {problem}", self.about);
        }
    }

    /// From now on, after each change of the kernel the requests are served as they must be, and the fixture finds no problem.
    pub(super) fn observe(&self, expected: &Expected) {
        let (host, expected) = (self.host.clone(), expected.clone());
        self.calls.set_observer(move || expected.problem(&host));
    }

    /// The requests are served as they must be now.
    #[track_caller]
    pub(super) fn check_served(&self, expected: &Expected) {
        if let Some(problem) = expected.problem(&self.host) {
            panic!("{}: {problem}", self.about);
        }
    }

    /// The owned objects are these.
    #[track_caller]
    pub(super) fn check_owned(&self, expected: &str) {
        same(&self.about, expected, &self.host.owned());
    }

    /// The commands that a plan would execute now, without those about objects that end with the process.
    #[track_caller]
    pub(super) fn plan(&mut self) -> String {
        let fixture = self.fixture;
        let plan = match self.proxier.plan(self.now) {
            Ok(plan) => plan,
            Err(error) => panic!("{}: {error}", self.about),
        };
        let steps = plan.steps().map(|(_, step)| step);
        let lasting = steps.filter(|step| {
            let class = <F::DataPath as DataPath>::class(&step.key);
            !fixture.ends_with_process(&class)
        });
        lasting.fold(String::new(), |mut text, step| {
            let _ = writeln!(text, "{}", step.operation);
            text
        })
    }

    /// The number of calls of each kind since the last time: changes, readings.
    pub(super) fn take_calls(&self) -> [usize; 2] {
        let calls = self.calls.take();
        let changes = super::calls::count(&calls, Kind::Change);
        [changes, calls.len() - changes]
    }

    /// The frontends, and whether they are restricted: every frontend with the key has source ranges.
    pub(super) fn frontends(&self) -> Vec<(FrontendKey, bool)> {
        let frontends = self.proxier.services().frontends();
        let of = frontends.map(|of| {
            let is_restricted = of.frontends().all(|frontend| !frontend.source_ranges.is_empty());
            (of.key, is_restricted)
        });
        of.collect()
    }
}

/// A process with these Services on a new host, which reached the desired state.
#[track_caller]
pub(super) fn converged<'a, F: Fixture>(fixture: &'a F, cluster: &Cluster, about: &str) -> Process<'a, F> {
    let mut process = Process::new(fixture, cluster, about);
    process.converge();
    process
}

/// The requests that must be served, each with its endpoints.
#[derive(Clone, Debug)]
pub(super) struct Expected {
    requests: Vec<Request>,
    endpoints: Vec<BTreeSet<SocketAddr>>,
    /// Those that must be served by any of these endpoints, and by no other.
    kept: Vec<(Request, BTreeSet<SocketAddr>)>,
}

impl Expected {
    /// Those to the Services that never change.
    pub(super) fn stable<F: Fixture>(fixture: &F) -> Self {
        let services = <F::DataPath as DataPath>::services_config(&fixture.config()).clone();
        let expected = Cluster::stable(&services.families).expected().into_iter();
        let (requests, endpoints) = expected.filter(|(request, _)| fixture.serves(request)).unzip();
        Self {
            requests,
            endpoints,
            kept: Vec::new(),
        }
    }

    /// Those that must not be served, and none else.
    pub(super) fn denied(&self) -> Self {
        let all = self.requests.iter().zip(&self.endpoints);
        let (requests, endpoints) = all
            .filter(|(_, endpoints)| endpoints.is_empty())
            .map(|(request, _)| (*request, BTreeSet::new()))
            .unzip();
        Self {
            requests,
            endpoints,
            kept: Vec::new(),
        }
    }

    /// Also that a client is not served that the frontend does not admit: one that is restricted after a change, and was not open before it.
    pub(super) fn deny<F: Fixture>(&mut self, before: Option<&Process<'_, F>>, after: &Process<'_, F>) {
        let before = before.map(Process::frontends).unwrap_or_default();
        let open: BTreeSet<FrontendKey> = before
            .into_iter()
            .filter(|(_, is_restricted)| !is_restricted)
            .map(|(key, _)| key)
            .collect();
        for (key, _) in after
            .frontends()
            .into_iter()
            .filter(|(key, is_restricted)| *is_restricted && !open.contains(key))
        {
            let request = Cluster::denied(key);
            if after.fixture.serves(&request) {
                self.requests.push(request);
                self.endpoints.push(BTreeSet::new());
            }
        }
    }

    /// Also that a frontend that changes is served during the change by endpoints that serve it before or after it, if any do before and after it.
    pub(super) fn keep<F: Fixture>(&mut self, before: &Process<'_, F>, after: &Process<'_, F>) {
        let later = after.proxier.services();
        for frontend in before.proxier.services().frontends() {
            let later = later.frontend(&frontend.key);
            let is_changed = later.is_some_and(|later| frontend.owner != later.owner);
            if !is_changed {
                continue;
            }
            for request in Cluster::requests(frontend.key) {
                let hosts = [&before.host, &after.host];
                let [before, after] = hosts.map(|host| host.served(&[request]).pop().unwrap_or_default());
                if !before.is_empty() && !after.is_empty() {
                    self.kept.push((request, &before | &after));
                }
            }
        }
    }

    /// The first request that is not served as it must be, or what the fixture found.
    fn problem(&self, host: &impl Host) -> Option<String> {
        let kept = self.kept.iter().map(|(request, _)| *request);
        let requests: Vec<Request> = self.requests.iter().copied().chain(kept).collect();
        let exact = self.endpoints.iter().map(|endpoints| (endpoints, true));
        let permitted = self.kept.iter().map(|(_, endpoints)| (endpoints, false));
        let served = host.served(&requests);
        let mut requests = requests.iter().zip(exact.chain(permitted)).zip(&served);
        let wrong = requests.find(|((_, (endpoints, is_exact)), served)| {
            if *is_exact {
                endpoints != served
            } else {
                served.is_empty() || !served.is_subset(endpoints)
            }
        });
        let wrong = wrong.map(|((request, (endpoints, is_exact)), served)| {
            let of = if is_exact { "" } else { "some of " };
            format!("{request}: served by {served:?} instead of {of}{endpoints:?}")
        });
        wrong.or_else(|| host.problems().into_iter().next())
    }
}

/// Random Services, and the random numbers that follow.
pub(super) fn cluster<F: Fixture>(fixture: &F, seed: u64) -> (Cluster, Random) {
    let mut random = Random::new(seed);
    (
        cluster_of(fixture, |families| Cluster::random(families, &mut random)),
        random,
    )
}

/// Services of the families of the fixture.
pub(super) fn cluster_of<F: Fixture>(
    fixture: &F,
    make: impl FnOnce(&BTreeSet<Family>) -> Cluster,
) -> Cluster {
    let config = fixture.config();
    make(&<F::DataPath as DataPath>::services_config(&config).families)
}

/// Panics with the lines in which two listings differ.
#[track_caller]
pub(super) fn same(about: &str, expected: &str, actual: &str) {
    if expected == actual {
        return;
    }
    let mut text = String::new();
    for (sign, of, others) in [("-", expected, actual), ("+", actual, expected)] {
        let others: BTreeSet<&str> = others.lines().collect();
        for line in of.lines().filter(|line| !others.contains(line)) {
            let _ = writeln!(text, "{sign} {line}");
        }
    }
    if text.is_empty() {
        let lines = expected.lines().zip(actual.lines());
        let first = lines
            .enumerate()
            .find(|(_, (expected, actual))| expected != actual);
        text = format!("the order or the number of lines differs, first {first:#?}");
    }
    panic!("{about}: the objects differ (- expected, + actual)\n{text}");
}
