//! A runner of which the kernel objects are watched.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use kernlink_base::ErrorChain;
use kernlink_engine::runner::{Notice, RunnerPanicked};
use kernlink_engine::{DataPath, InvalidConfig, Proxier, Runner, SOLVED, Schedule};
use kernlink_netlink::Namespace;
use kernlink_services::Event;

use super::{WatchError, WatchEvent, WatchOptions, Watchable, Watcher};

/// The code of the event that says why changes by other programs are not noticed.
pub const WATCH_FAILED: &str = "WatchFailed";

impl<K> WatchEvent<K> {
    /// Calls the function of a runner that is meant for this event. [`Failed`](Self::Failed) becomes an event of the runner with the code
    /// [`WATCH_FAILED`], and [`Recovered`](Self::Recovered) one with the code [`SOLVED`] and the same text after `solved: `.
    pub fn pass_to<M: DataPath<Key = K>>(self, runner: &Runner<M>) {
        match self {
            Self::Recheck(keys) => runner.recheck(keys),
            Self::Addresses => runner.recheck_addresses(),
            Self::Resync => runner.resync(),
            Self::Failed(error) => runner.report(vec![failure(&error)]),
            Self::Recovered(error) => runner.report(vec![solved(&failure(&error))]),
        }
    }
}

fn failure(error: &WatchError) -> Event {
    let (what, then) = match error {
        WatchError::Links(_) => (
            "changes of links and addresses by other programs are found by full listings only",
            "; opened again every 5 seconds",
        ),
        WatchError::Rules(_) => (
            "changes of rules by other programs are found by readings at intervals only",
            "; opened again every 5 seconds",
        ),
        _ => ("changes by other programs may be noticed late", ""),
    };
    Event::host(WATCH_FAILED, format!("{what}: {}{then}", ErrorChain(error)))
}

/// The event that a failure ended.
fn solved(failure: &Event) -> Event {
    Event::host(SOLVED, format!("solved: {}", failure.reason))
}

/// The event about a watcher that was not started.
fn not_started(error: &dyn std::error::Error) -> Event {
    let error = ErrorChain(error);
    Event::host(
        WATCH_FAILED,
        format!("changes by other programs are found by full listings only: {error}"),
    )
}

/// A [`Runner`] with its [`Watcher`]: what another program removes or changes is repaired when the kernel reports it. With a `Runner` alone,
/// it is repaired by the next full listing, which is 30 seconds later by default.
///
/// All functions of the runner are available. Call [`set_config`](Self::set_config) of this type: that of the runner alone does not change what is watched.
/// Dropping it stops both threads, and leaves the kernel as it is.
///
/// If the kernel cannot be watched, the proxier runs all the same, and an event with the code [`WATCH_FAILED`] reports it; when it can be watched
/// again, one with the code [`SOLVED`] does. If the configuration changed meanwhile, that one may be missing.
pub struct WatchedRunner<M: DataPath> {
    /// Dropped first: it calls the runner. If it could not be started, the event that was reported about it.
    watcher: Mutex<Result<Watcher, Event>>,
    runner: Arc<Runner<M>>,
    target: Arc<Mutex<Target<M>>>,
    own_ports: BTreeSet<u32>,
    /// That of the thread that started the runner.
    namespace: Namespace,
}

/// Where events of the watcher go.
enum Target<M: DataPath> {
    /// The runner is not started yet.
    Waiting(Vec<WatchEvent<M::Key>>),
    Running(Weak<Runner<M>>),
}

fn lock<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    // No value is invalid after a panic.
    value.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<M> WatchedRunner<M>
where
    M: DataPath + 'static,
    M::Config: Watchable<Key = M::Key, Kernel = M::Kernel>,
    Proxier<M>: Send,
{
    /// Starts both threads, in the network namespace of the calling thread. `config` is that of the proxier. `notify` is called on the thread of the
    /// runner, see [`Runner::start`].
    ///
    /// # Errors
    /// If the system cannot start a thread, or the network namespace cannot be opened.
    pub fn start(
        proxier: Proxier<M>,
        config: &M::Config,
        schedule: Schedule,
        mut notify: impl FnMut(Notice<M>) + Send + 'static,
    ) -> io::Result<Self> {
        Self::start_with(proxier, config, schedule, move |_, notice| notify(notice))
    }

    /// As [`start`](Self::start); `notify` can also read the proxier, see [`Runner::start_with`].
    ///
    /// # Errors
    /// As [`start`](Self::start).
    pub fn start_with(
        mut proxier: Proxier<M>,
        config: &M::Config,
        schedule: Schedule,
        notify: impl FnMut(&Proxier<M>, Notice<M>) + Send + 'static,
    ) -> io::Result<Self> {
        let namespace = Namespace::current().map_err(io::Error::other)?;
        let own_ports = M::Config::own_ports(proxier.kernel_mut());
        let target = Arc::new(Mutex::new(Target::Waiting(Vec::new())));
        // Before the first sync, so that no change is missed.
        let watcher = watch::<M>(None, config, &own_ports, &target);
        let runner = Arc::new(Runner::start_with(proxier, schedule, notify)?);
        let running = Target::Running(Arc::downgrade(&runner));
        if let Target::Waiting(events) = std::mem::replace(&mut *lock(&target), running) {
            events.into_iter().for_each(|event| event.pass_to(&runner));
        }
        if let Err(failure) = &watcher {
            runner.report(vec![failure.clone()]);
        }
        Ok(Self {
            watcher: Mutex::new(watcher),
            runner,
            target,
            own_ports,
            namespace,
        })
    }

    /// Replaces the configuration, as [`Runner::set_config`], and watches what it names. Can be called in any network namespace.
    ///
    /// # Errors
    /// [`InvalidConfig`]. The former configuration stays.
    pub fn set_config(&self, config: M::Config) -> Result<(), InvalidConfig> {
        M::validate(&config)?;
        // The configuration and what is watched are replaced together.
        let mut watcher = lock(&self.watcher);
        let (own_ports, target, watched) = (&self.own_ports, &self.target, config.clone());
        let former = watcher.as_ref().ok();
        let replacing = self
            .namespace
            .run(move || watch::<M>(former, &watched, own_ports, target))
            .unwrap_or_else(|error| Err(not_started(&error)));
        self.runner.set_config(config);
        if let (Err(former), Ok(_)) = (&*watcher, &replacing) {
            self.runner.report(vec![solved(former)]);
        }
        if let Err(failure) = &replacing {
            self.runner.report(vec![failure.clone()]);
        }
        // Dropping the former one waits for its thread, which waits for nothing.
        *watcher = replacing;
        Ok(())
    }
}

impl<M: DataPath> WatchedRunner<M> {
    /// Whether a thread has ended although the runner was not stopped: it panicked.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.runner.has_ended() || lock(&self.watcher).as_ref().is_ok_and(Watcher::has_ended)
    }

    /// Ends both threads after the sync in progress, and returns the proxier; see [`Runner::stop`].
    ///
    /// # Errors
    /// [`RunnerPanicked`].
    pub fn stop(self) -> Result<Proxier<M>, RunnerPanicked> {
        // Its thread has the runner for a moment at each event.
        drop(self.watcher);
        Arc::into_inner(self.runner).ok_or(RunnerPanicked)?.stop()
    }
}

/// Watches what a configuration names, instead of what a former watcher does. The error is the event about it.
fn watch<M>(
    former: Option<&Watcher>,
    config: &M::Config,
    own_ports: &BTreeSet<u32>,
    target: &Arc<Mutex<Target<M>>>,
) -> Result<Watcher, Event>
where
    M: DataPath + 'static,
    M::Config: Watchable<Key = M::Key>,
{
    let options: WatchOptions = config.watch_options().with_own_ports(own_ports.iter().copied());
    let target = Arc::clone(target);
    Watcher::start_after(former, config, &options, move |event| {
        let runner = match &mut *lock(&target) {
            Target::Waiting(events) => return events.push(event),
            Target::Running(runner) => runner.upgrade(),
        };
        if let Some(runner) = runner {
            event.pass_to(&runner);
        }
    })
    .map_err(|error| not_started(&error))
}

impl<M: DataPath> Deref for WatchedRunner<M> {
    type Target = Runner<M>;

    fn deref(&self) -> &Runner<M> {
        &self.runner
    }
}

impl<M: DataPath> fmt::Debug for WatchedRunner<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WatchedRunner").finish_non_exhaustive()
    }
}
