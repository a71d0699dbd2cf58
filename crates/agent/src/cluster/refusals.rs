//! Watches that the server refuses.

use std::time::Duration;

use kernlink_kubernetes::watch::Status;

use super::backoff::Backoff;

/// The number of refusals in a row after which the list is read again.
const MAX_REFUSALS: u32 = 5;

/// The refusals of watches since the last event of a watch. Lists in between do not count: they must not be read again and again at the
/// shortest delay if they are permitted and watches are not.
#[derive(Debug, Default)]
pub(super) struct Refusals {
    count: u32,
    backoff: Backoff,
}

impl Refusals {
    /// Counts a refusal. Returns whether the list must be read again; otherwise the watch is repeated at its version.
    ///
    /// - The credentials do not permit the watch (401, 403), or the server has too many requests (429): a list changes nothing.
    /// - Other errors of the request (4xx): the version may be the reason, also without `410 Gone`.
    /// - Errors of the server (5xx): it may need a moment. After some of them the version may be the reason.
    pub(super) fn needs_list(&mut self, status: &Status) -> bool {
        self.count = self.count.saturating_add(1);
        match status.code {
            _ if status.needs_list() => true,
            401 | 403 | 429 => false,
            400..500 => true,
            _ => self.count.is_multiple_of(MAX_REFUSALS),
        }
    }

    /// The delay before the next attempt.
    pub(super) fn delay(&mut self) -> Duration {
        self.backoff.next()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// A watch has sent an event.
    pub(super) fn reset(&mut self) {
        self.count = 0;
        self.backoff.reset();
    }
}

#[cfg(test)]
mod tests {
    use kernlink_kubernetes::watch::read_status;

    use super::*;

    #[test]
    fn the_list_is_read_again_if_the_version_may_be_the_reason() {
        let status = |code| read_status(code, b"");
        for code in [400, 404, 405, 410, 422] {
            assert!(Refusals::default().needs_list(&status(code)), "{code}");
        }
        for code in [401, 403, 429] {
            let mut refusals = Refusals::default();
            assert!((0..100).all(|_| !refusals.needs_list(&status(code))), "{code}");
        }
        for code in [500, 503, 504] {
            let mut refusals = Refusals::default();
            let decisions = [(); 10].map(|()| refusals.needs_list(&status(code)));
            let lists: Vec<_> = decisions.iter().filter(|needs_list| **needs_list).collect();
            assert_eq!(
                (lists.len(), decisions[4], decisions[9]),
                (2, true, true),
                "{code}"
            );
            refusals.needs_list(&status(code));
            refusals.reset();
            assert!(refusals.is_empty());
            assert!((0..4).all(|_| !refusals.needs_list(&status(code))), "{code}");
        }
    }
}
