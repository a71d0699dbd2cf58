//! Which events about the Node are written, and how many.

use std::collections::BTreeMap;
use std::error::Error;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use kernlink_base::ErrorChain;
use kernlink_proxier::{OPERATION_FAILED, SOLVED};
use kernlink_services::{Event, Reason, Subject};

use crate::cluster::{NodeEvent, NodeEvents};

/// The number of events at once, as in client-go.
const BURST: u32 = 25;
/// The number of events at once up to which a failure that comes and goes is written again: the others are for new ones.
const BURST_OF_REPEATED: u32 = 12;
/// The time after which there may be another one, as in client-go.
const INTERVAL: Duration = Duration::from_secs(300);
/// The same event is written again after this time, or when the opposite one was written: a failure after it was solved.
const REPEAT: Duration = Duration::from_secs(3600);

/// The operations of Services may fail on all nodes, for a reason that any user who may write a Service causes: of their events one is written in
/// this time, and not that they are solved.
const SERVICES_INTERVAL: Duration = Duration::from_secs(3600);

/// Writes events about this node to its Node object: that the agent starts, and what an operator must know. Events about Services are in
/// the log only, because every node has them, except one an hour about failed operations.
#[derive(Clone, Debug)]
pub(crate) struct Reporter {
    /// `None`: there is no API server.
    events: Option<NodeEvents>,
    limit: Arc<Mutex<Limit>>,
}

impl Reporter {
    pub(crate) fn new(events: Option<NodeEvents>) -> Self {
        Self {
            events,
            limit: Arc::default(),
        }
    }

    /// The agent starts.
    pub(crate) fn starting(&self, note: String) {
        self.write(false, "Starting", "Start", note);
    }

    /// Something prevents the agent from starting to sync.
    pub(crate) fn not_started(&self, reason: &str, note: String) {
        self.write(true, reason, "Start", note);
    }

    /// ServiceCIDR objects cannot be read.
    pub(crate) fn service_cidrs_unreadable(&self, problem: &str) {
        let note = format!("traffic to cluster IPs without a Service may be forwarded: {problem}");
        self.write(true, "ServiceCIDRsUnreadable", "Sync", note);
    }

    /// A sync did nothing.
    pub(crate) fn failed(&self, error: &(dyn Error + 'static)) {
        self.write(
            true,
            "SyncFailed",
            "Sync",
            format!("nothing was synced: {}", ErrorChain(error)),
        );
    }

    /// Events about the host or the configuration, and failures of operations: each cause once.
    pub(crate) fn events(&self, events: &[Event]) {
        for event in events {
            let reason = match (&event.subject, &event.reason) {
                (Subject::Host, Reason::DataPath { code, .. }) => code,
                (Subject::Host, _) => "Host",
                (Subject::Configuration, _) => "Configuration",
                (_, Reason::DataPath { code, .. }) if [OPERATION_FAILED, SOLVED].contains(code) => code,
                _ => continue,
            };
            if let Subject::Object(..) = &event.subject {
                if reason != SOLVED && self.limit().permits_services(Instant::now()) {
                    let note = format!("{}: {}{OTHERS}", event.subject, event.reason);
                    self.send(true, reason, "Sync", note);
                }
                continue;
            }
            self.write(reason != SOLVED, reason, "Sync", event.reason.to_string());
        }
    }

    fn limit(&self) -> MutexGuard<'_, Limit> {
        self.limit.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, is_warning: bool, reason: &str, action: &'static str, note: String) {
        if self.events.is_some() && self.limit().permits(reason, &note, Instant::now()) {
            self.send(is_warning, reason, action, note);
        }
    }

    fn send(&self, is_warning: bool, reason: &str, action: &'static str, note: String) {
        if let Some(events) = &self.events {
            events.write(NodeEvent {
                is_warning,
                reason: reason.to_owned(),
                action,
                note,
                time: SystemTime::now(),
            });
        }
    }
}

/// The end of an event about an operation of a Service.
const OTHERS: &str =
    "; other Services may be affected: their failures, and when they are solved, are in the log only";

/// Limits the number of events: the API server stores each of them.
#[derive(Debug, Default)]
struct Limit {
    /// The events that were written. It has no more entries than events that may be written within [`REPEAT`].
    written: BTreeMap<(String, String), Written>,
    used: u32,
    /// The time up to which what was used has become available again.
    since: Option<Instant>,
    /// When an event about the operations of Services was last written.
    services: Option<Instant>,
}

/// An event that was written.
#[derive(Debug)]
struct Written {
    time: Instant,
    /// Whether the opposite event was written after it.
    has_ended: bool,
}

impl Limit {
    /// Whether an event about the operations of Services is written. They have a limit of their own, so that the events about the host are not
    /// affected.
    fn permits_services(&mut self, now: Instant) -> bool {
        let is_due = |last: Instant| now.saturating_duration_since(last) >= SERVICES_INTERVAL;
        let is_permitted = self.services.is_none_or(is_due);
        if is_permitted {
            self.services = Some(now);
        }
        is_permitted
    }

    fn permits(&mut self, reason: &str, note: &str, now: Instant) -> bool {
        self.written
            .retain(|_, written| now.saturating_duration_since(written.time) < REPEAT);
        let key = (reason.to_owned(), note.to_owned());
        let burst = match self.written.get(&key) {
            None => BURST,
            // The last one is the failure.
            Some(written) if written.has_ended => BURST_OF_REPEATED - u32::from(reason == SOLVED),
            Some(_) => return false,
        };
        let since = self.since.get_or_insert(now);
        while self.used > 0 && now.saturating_duration_since(*since) >= INTERVAL {
            *since += INTERVAL;
            self.used -= 1;
        }
        if self.used == 0 {
            *since = now;
        }
        if self.used >= burst {
            return false;
        }
        self.used += 1;
        for (other, written) in &mut self.written {
            written.has_ended |= is_opposite(&key, other);
        }
        let written = Written {
            time: now,
            has_ended: false,
        };
        self.written.insert(key, written);
        true
    }
}

/// Whether one of two events says that the other one is solved: its text ends with that of the other one.
fn is_opposite(first: &(String, String), second: &(String, String)) -> bool {
    let is_solved_by = |failure: &(String, String), solved: &(String, String)| {
        failure.0 != SOLVED && solved.0 == SOLVED && solved.1.ends_with(&failure.1)
    };
    is_solved_by(first, second) || is_solved_by(second, first)
}

#[cfg(test)]
mod tests {
    use kernlink_services::ObjectName;

    use super::*;
    use crate::cluster::NodeEvents;

    #[test]
    fn failed_operations_of_services_leave_the_events_about_the_host() {
        let (events, mut written) = NodeEvents::for_test();
        let reporter = Reporter::new(Some(events));
        for round in 0..100 {
            let name = ObjectName::new("shop", round.to_string());
            for code in [OPERATION_FAILED, SOLVED] {
                let text = format!("failure {round}");
                let reason = Reason::DataPath { code, text };
                reporter.events(&[Event::service(name.clone(), reason)]);
            }
        }
        reporter.events(&[Event::host("MissingModule", "ip_vs")]);
        let written: Vec<_> = std::iter::from_fn(|| written.try_recv().ok())
            .map(|event| (event.is_warning, event.reason, event.note))
            .collect();
        let of_services = format!("Service shop/0: failure 0{OTHERS}");
        assert_eq!(
            written,
            [
                (true, OPERATION_FAILED.to_owned(), of_services),
                (true, "MissingModule".to_owned(), "ip_vs".to_owned())
            ]
        );
    }

    #[test]
    fn there_is_one_event_an_hour_about_failed_operations_of_services() {
        let (mut limit, start) = (Limit::default(), Instant::now());
        assert!(limit.permits_services(start));
        assert!(!limit.permits_services(start + SERVICES_INTERVAL - Duration::from_secs(1)));
        assert!(limit.permits_services(start + SERVICES_INTERVAL));
    }

    #[test]
    fn the_same_event_is_written_once_an_hour() {
        let mut limit = Limit::default();
        let start = Instant::now();
        assert!(limit.permits("A", "x", start));
        assert!(!limit.permits("A", "x", start + REPEAT - Duration::from_secs(1)));
        assert!(limit.permits("A", "y", start));
        assert!(limit.permits("B", "x", start));
        assert!(limit.permits("A", "x", start + REPEAT));
        assert_eq!(limit.written.len(), 1);
    }

    #[test]
    fn a_failure_after_it_was_solved_is_written_again_and_so_is_that_it_is_solved() {
        let (events, mut written) = NodeEvents::for_test();
        let reporter = Reporter::new(Some(events));
        let failure = Event::host("WatchFailed", "no events");
        let other = Event::host("WatchFailed", "no changes");
        let solved = Event::host(SOLVED, "solved: no events");
        for event in [
            &failure, &other, &failure, &solved, &solved, &other, &failure, &solved,
        ] {
            reporter.events(std::slice::from_ref(event));
        }
        let reasons = std::iter::from_fn(|| written.try_recv().ok()).map(|event| (event.reason, event.note));
        let reasons: Vec<_> = reasons.collect();
        let expected = [&failure, &other, &solved, &failure, &solved].map(|event| {
            let Reason::DataPath { code, text } = &event.reason else {
                panic!("{event}");
            };
            ((*code).to_owned(), text.clone())
        });
        assert_eq!(reasons, expected);
    }

    #[test]
    fn a_failure_that_comes_and_goes_leaves_events_for_others() {
        let (mut limit, start) = (Limit::default(), Instant::now());
        let mut number = 0;
        for _ in 0..100 {
            number += u32::from(limit.permits("WatchFailed", "no events", start));
            number += u32::from(limit.permits(SOLVED, "solved: no events", start));
        }
        assert_eq!(number, BURST_OF_REPEATED - 1);
        assert!(limit.permits("MissingModule", "ip_vs", start));
        assert_eq!(limit.written.len(), 3);
    }

    #[test]
    fn there_are_25_events_at_once_and_one_more_every_5_minutes() {
        let mut limit = Limit::default();
        let start = Instant::now();
        let mut number = 0;
        let mut written = |limit: &mut Limit, now: Instant| {
            let mut count = 0;
            for _ in 0..100 {
                number += 1;
                count += u32::from(limit.permits("A", &number.to_string(), now));
            }
            count
        };
        assert_eq!(written(&mut limit, start), BURST);
        assert_eq!(written(&mut limit, start + INTERVAL - Duration::from_secs(1)), 0);
        assert_eq!(written(&mut limit, start + INTERVAL * 2), 2);
        assert_eq!(written(&mut limit, start + INTERVAL * 3), 1);
        assert_eq!(
            written(&mut limit, start + INTERVAL * 1_000),
            BURST,
            "no more after a long time"
        );
        assert_eq!(limit.written.len() as u32, BURST);
    }
}
