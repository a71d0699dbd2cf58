//! The thread that receives events.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use kernlink_dummylink::{Event as LinkEvent, Events as LinkEvents};
use kernlink_netlink::nftables::NFNLGRP_NFTABLES;
use kernlink_netlink::{Protocol, Subscription};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

use super::changes::Changes;
use super::error::WatchError;
use super::failures::{Failures, Reported};
use super::notification::{Decode, RulesNotification, decode_for};
use super::{Changed, RulesSource, WatchEvent, WatchOptions, Watchable, Watched};

type RulesEvents = kernlink_netlink::Events<RulesNotification, Decode>;

/// Notices changes that other programs make, on a thread of its own. Dropping it stops the thread.
///
/// Start it before the first sync: a change between the sync and the start is not noticed. It does not follow changes of the configuration:
/// start another one with the new name of the link or the new families, and drop this one. Stop it before removing the link on purpose.
pub struct Watcher {
    /// The thread ends when this is closed.
    stop: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
    reported: Reported,
}

impl fmt::Debug for Watcher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watcher").finish_non_exhaustive()
    }
}

impl Watcher {
    /// Starts the thread. It watches the network namespace of the calling thread. `notify` is called on the thread; events that arrive
    /// before it returns are combined.
    ///
    /// If nf_tables cannot be watched, that is the first event, and the rules are read at intervals. Needs `CAP_NET_ADMIN` for nf_tables.
    ///
    /// # Errors
    /// [`WatchError::Links`], [`WatchError::InvalidLink`], [`WatchError::Thread`].
    pub fn start<C: Watchable>(
        config: &C,
        options: &WatchOptions,
        notify: impl FnMut(WatchEvent<C::Key>) + Send + 'static,
    ) -> Result<Self, WatchError> {
        Self::start_after(None, config, options, notify)
    }

    /// As [`start`](Self::start), for a watcher that replaces another one: failures that the other one reported are not reported again, and that
    /// they ended is.
    pub(super) fn start_after<C: Watchable>(
        former: Option<&Self>,
        config: &C,
        options: &WatchOptions,
        mut notify: impl FnMut(WatchEvent<C::Key>) + Send + 'static,
    ) -> Result<Self, WatchError> {
        let Watched { link, tables, key } = config.watched()?;
        let failed = |error: io::Error| WatchError::Thread {
            call: "start",
            kind: error.kind(),
        };
        let (stop, stopped) = UnixStream::pair().map_err(failed)?;
        let reported = former.map(|former| former.reported.copy()).unwrap_or_default();
        let mut sources = Sources {
            changes: Changes::new(link, tables, options),
            own_ports: options.own_ports.clone(),
            links: Source::default(),
            rules: Source::default(),
            needs_rules: options
                .rules
                .values()
                .any(|source| *source == RulesSource::Events),
            failures: Failures::new(reported.clone()),
            notify: move |event: WatchEvent<Changed>| notify(event.map(&*key)),
        };
        let now = Instant::now();
        sources.open_links()?;
        sources.changes.set_rules_events(false, now);
        sources.open_rules(now);
        let thread = thread::Builder::new()
            .name("kernlink-watch".to_owned())
            .spawn(move || sources.run(&stopped))
            .map_err(failed)?;
        Ok(Self {
            stop: Some(stop),
            thread: Some(thread),
            reported,
        })
    }

    /// Whether the thread has ended although it was not stopped: `notify` panicked.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // The panic was printed by its hook.
            let _ = thread.join();
        }
    }
}

/// After which time a source that failed is opened again.
const REOPEN: Duration = Duration::from_secs(5);
/// The maximum number of events that are read from one source before the other one.
const EVENTS_IN_A_ROW: usize = 10_000;

/// A source of events, or when to open it again.
struct Source<T> {
    events: Option<T>,
    reopen: Option<Instant>,
}

impl<T> Default for Source<T> {
    fn default() -> Self {
        Self {
            events: None,
            reopen: None,
        }
    }
}

impl<T> Source<T> {
    fn fail(&mut self, now: Instant) {
        self.events = None;
        self.reopen = now.checked_add(REOPEN);
    }

    /// Whether it is to be opened again at `now`.
    fn take_reopen(&mut self, now: Instant) -> bool {
        let is_due = self.reopen.is_some_and(|reopen| reopen <= now);
        if is_due {
            self.reopen = None;
        }
        is_due
    }
}

struct Sources<N> {
    changes: Changes,
    own_ports: BTreeSet<u32>,
    links: Source<LinkEvents>,
    rules: Source<RulesEvents>,
    /// Whether rules are watched by events.
    needs_rules: bool,
    failures: Failures<Changed>,
    notify: N,
}

impl<N: FnMut(WatchEvent<Changed>)> Sources<N> {
    fn run(mut self, stopped: &UnixStream) {
        loop {
            let now = Instant::now();
            self.reopen(now);
            for event in self.failures.take() {
                (self.notify)(event);
            }
            while let Some(event) = self.changes.take(now) {
                (self.notify)(event);
            }
            match self.wait(stopped) {
                Ok(false) => self
                    .failures
                    .end(|error| matches!(error, WatchError::Thread { .. })),
                Ok(true) => return,
                Err(error) => {
                    self.failures.fail(error);
                    // Without this, an error that persists would occupy a processor.
                    thread::sleep(Duration::from_millis(100));
                }
            }
            self.read_links();
            self.read_rules();
        }
    }

    /// Waits for an event or the next time. Returns whether the watcher was stopped.
    fn wait(&self, stopped: &UnixStream) -> Result<bool, WatchError> {
        let times = [self.changes.next(), self.links.reopen, self.rules.reopen];
        let timeout = times
            .into_iter()
            .flatten()
            .min()
            .map_or(PollTimeout::NONE, |time| {
                let left = time.saturating_duration_since(Instant::now());
                // The next millisecond: not a moment before the time.
                let left = left.saturating_add(Duration::from_micros(999));
                PollTimeout::try_from(left.as_millis()).unwrap_or(PollTimeout::MAX)
            });
        let mut files = vec![PollFd::new(stopped.as_fd(), PollFlags::POLLIN)];
        let links = self.links.events.as_ref().map(AsFd::as_fd);
        let rules = self.rules.events.as_ref().map(AsFd::as_fd);
        files.extend(
            [links, rules]
                .into_iter()
                .flatten()
                .map(|file| PollFd::new(file, PollFlags::POLLIN)),
        );
        match poll(&mut files, timeout) {
            Ok(_) => Ok(files.first().is_some_and(|stopped| stopped.any() == Some(true))),
            Err(Errno::EINTR) => Ok(false),
            Err(errno) => Err(WatchError::Thread {
                call: "wait in",
                kind: io::Error::from(errno).kind(),
            }),
        }
    }

    fn read_links(&mut self) {
        let Some(events) = &mut self.links.events else {
            return;
        };
        let mut failed = None;
        for event in events.by_ref().take(EVENTS_IN_A_ROW) {
            let now = Instant::now();
            match event {
                Ok(LinkEvent::Overrun) => failed = Some(None),
                Ok(event) => self.changes.on_link_event(&event, now),
                Err(error) => failed = Some(Some(error)),
            }
            if failed.is_some() {
                break;
            }
        }
        let now = Instant::now();
        let error = match failed {
            None => return,
            // The listing replaces the lost events.
            Some(None) => match events.resync() {
                Ok(snapshot) => {
                    self.changes.start(&snapshot);
                    return self.changes.request_resync(now);
                }
                Err(error) => error,
            },
            Some(Some(error)) => error,
        };
        self.links.fail(now);
        self.failures.fail(WatchError::Links(error));
    }

    fn read_rules(&mut self) {
        let Some(events) = &mut self.rules.events else {
            return;
        };
        let mut failed = None;
        for event in events.by_ref().take(EVENTS_IN_A_ROW) {
            match event {
                Ok(event) => self.changes.on_rules_event(&event, Instant::now()),
                Err(error) => {
                    failed = Some(error);
                    break;
                }
            }
        }
        if let Some(error) = failed {
            self.fail_rules(error, Instant::now());
        }
    }

    fn fail_rules(&mut self, error: kernlink_netlink::Error, now: Instant) {
        self.rules.fail(now);
        self.changes.set_rules_events(false, now);
        self.failures.fail(WatchError::Rules(error));
    }

    /// Opens sources that failed again.
    fn reopen(&mut self, now: Instant) {
        if self.links.take_reopen(now) {
            match self.open_links() {
                Ok(()) => self.changes.request_resync(now),
                Err(error) => {
                    self.links.fail(now);
                    self.failures.fail(error);
                }
            }
        }
        if self.rules.take_reopen(now) {
            self.open_rules(now);
            // Notifications may have been lost.
            self.changes
                .on_rules_event(&kernlink_netlink::Event::Overrun, now);
        }
    }

    fn open_links(&mut self) -> Result<(), WatchError> {
        let mut events = LinkEvents::open(Some(Duration::ZERO)).map_err(WatchError::Links)?;
        let snapshot = events.resync().map_err(WatchError::Links)?;
        self.changes.start(&snapshot);
        self.links.events = Some(events);
        self.failures.end(|error| matches!(error, WatchError::Links(_)));
        Ok(())
    }

    fn open_rules(&mut self, now: Instant) {
        if !self.needs_rules {
            return;
        }
        match Subscription::open(Protocol::Netfilter, &[NFNLGRP_NFTABLES]) {
            Ok(subscription) => {
                let events = subscription.events(Some(Duration::ZERO), decode_for(self.own_ports.clone()));
                self.rules.events = Some(events);
                self.changes.set_rules_events(true, now);
                self.failures.end(|error| matches!(error, WatchError::Rules(_)));
            }
            Err(error) => self.fail_rules(error, now),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn that_links_are_watched_again_is_an_event() {
        let (now, options) = (Instant::now(), WatchOptions::new([]));
        let mut sources = Sources {
            changes: Changes::new(None, Vec::new(), &options),
            own_ports: BTreeSet::new(),
            links: Source::default(),
            rules: Source::default(),
            needs_rules: false,
            failures: Failures::new(Reported::default()),
            notify: |_: WatchEvent<Changed>| {},
        };
        let error = kernlink_dummylink::Error::Invalid {
            operation: "dump".into(),
            reason: "interrupted",
        };
        sources.links.fail(now);
        sources.failures.fail(WatchError::Links(error.clone()));
        // Not before its time.
        sources.reopen(now);
        assert_eq!(
            sources.failures.take(),
            [WatchEvent::Failed(WatchError::Links(error.clone()))]
        );
        assert!(sources.links.events.is_none());
        sources.reopen(now + REOPEN);
        assert_eq!(
            sources.failures.take(),
            [WatchEvent::Recovered(WatchError::Links(error))]
        );
        assert!(sources.links.events.is_some());
    }
}
