//! The failures of sources that are reported, each once, and that they ended.

use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::{WatchError, WatchEvent};

/// The errors of sources that do not work, and what is to be reported of them.
#[derive(Debug)]
pub(super) struct Failures<K> {
    reported: Reported,
    events: Vec<WatchEvent<K>>,
}

/// The errors that were reported and did not end yet. A watcher that replaces another one continues with those of the other one.
#[derive(Clone, Debug, Default)]
pub(super) struct Reported(Arc<Mutex<Vec<WatchError>>>);

impl Reported {
    /// The same errors, for another watcher.
    pub(super) fn copy(&self) -> Self {
        Self(Arc::new(Mutex::new(self.lock().clone())))
    }

    fn lock(&self) -> MutexGuard<'_, Vec<WatchError>> {
        // No list is invalid after a panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K> Failures<K> {
    pub(super) fn new(reported: Reported) -> Self {
        Self {
            reported,
            events: Vec::new(),
        }
    }

    /// Reports an error, unless it is reported.
    pub(super) fn fail(&mut self, error: WatchError) {
        let mut reported = self.reported.lock();
        if !reported.contains(&error) {
            reported.push(error.clone());
            self.events.push(WatchEvent::Failed(error));
        }
    }

    /// What had the errors of a kind works: reports that they ended.
    pub(super) fn end(&mut self, is_of_kind: impl Fn(&WatchError) -> bool) {
        let mut reported = self.reported.lock();
        let (ended, others) = mem::take(&mut *reported).into_iter().partition(is_of_kind);
        *reported = others;
        let ended: Vec<WatchError> = ended;
        self.events.extend(ended.into_iter().map(WatchEvent::Recovered));
    }

    /// What was not taken before, in order.
    pub(super) fn take(&mut self) -> Vec<WatchEvent<K>> {
        mem::take(&mut self.events)
    }
}

#[cfg(test)]
mod tests {
    use std::io::ErrorKind;

    use super::*;

    fn error(kind: ErrorKind) -> WatchError {
        WatchError::Thread {
            call: "wait in",
            kind,
        }
    }

    fn is_thread(error: &WatchError) -> bool {
        matches!(error, WatchError::Thread { .. })
    }

    #[test]
    fn each_failure_is_reported_once_and_that_it_ended() {
        let mut failures: Failures<()> = Failures::new(Reported::default());
        failures.end(is_thread);
        assert_eq!(failures.take(), []);
        let [first, second] = [ErrorKind::OutOfMemory, ErrorKind::PermissionDenied].map(error);
        let link = WatchError::InvalidLink("a/b".into());
        for error in [&first, &second, &link, &first, &link] {
            failures.fail(error.clone());
        }
        let failed = [&first, &second, &link].map(|error| WatchEvent::Failed(error.clone()));
        assert_eq!(failures.take(), failed);
        failures.fail(first.clone());
        assert_eq!(failures.take(), []);
        failures.end(is_thread);
        failures.end(is_thread);
        failures.fail(link);
        failures.fail(first.clone());
        let expected = [
            WatchEvent::Recovered(first.clone()),
            WatchEvent::Recovered(second),
            WatchEvent::Failed(first),
        ];
        assert_eq!(failures.take(), expected);
    }

    #[test]
    fn a_watcher_that_replaces_another_one_reports_that_its_failures_ended() {
        let mut former: Failures<()> = Failures::new(Reported::default());
        let failure = error(ErrorKind::OutOfMemory);
        former.fail(failure.clone());
        let mut failures: Failures<()> = Failures::new(former.reported.copy());
        failures.fail(failure.clone());
        assert_eq!(failures.take(), [], "it is reported");
        failures.end(is_thread);
        assert_eq!(failures.take(), [WatchEvent::Recovered(failure)]);
    }
}
