//! A proxier on a thread of its own.

use std::collections::BTreeSet;
use std::fmt;
use std::io;
use std::num::NonZeroUsize;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, TryRecvError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Instant, SystemTime};

use kernlink_services::{
    Change, EndpointSlice, Event, Family, HealthCheck, Kind, MergedChanges, Service, SourceId,
};

use crate::broadcast::{Broadcaster, Subscriber, Subscription};
use crate::data_path::{DataPath, SyncErrorOf, SyncedOf};
use crate::error::InvalidConfig;
use crate::proxier::Proxier;
use crate::schedule::{Due, Schedule};
use crate::status::{Recorder, Status};

/// What happened on the thread of a [`Runner`].
#[derive(Debug)]
#[non_exhaustive]
pub enum Notice<M: DataPath> {
    /// New events about objects that a source delivered, or those of [`Runner::report`]. Other events are in
    /// [`Synced::events`](crate::Synced::events); [`Notice::events`] has both.
    Events(Vec<Event>),
    /// A sync ended. Its report may contain failures, which are retried. If it [is partial](crate::Synced::is_partial), another one follows at once,
    /// regardless of the intervals of the schedule.
    Synced(Box<SyncedOf<M>>),
    /// A sync did nothing. It is repeated after a delay.
    Failed(SyncErrorOf<M>),
    /// A configuration was refused; the previous one stays.
    InvalidConfig(InvalidConfig),
}

impl<M: DataPath> Notice<M> {
    /// The new events of this notice, about objects, conflicts, frontends and the node: all that there are. Their order is that of their occurrence.
    #[must_use]
    pub fn events(&self) -> &[Event] {
        match self {
            Notice::Events(events) => events,
            Notice::Synced(synced) => &synced.events,
            Notice::Failed(_) | Notice::InvalidConfig(_) => &[],
        }
    }
}

type Read<M> = Box<dyn FnOnce(&Proxier<M>) + Send>;

enum Command<M: DataPath> {
    Changes(Batch),
    RegisterSource(SourceId, Kind),
    RemoveSource(SourceId),
    SetConfig(Box<M::Config>),
    KernelChanges,
    Read(Read<M>),
    Subscribe(Subscriber),
    Report(Vec<Event>),
    Stop,
}

/// Changes that wait for the thread; `None` after it took them. Later changes are added as long as no other call came in between, so that
/// they need memory for each object, not for each change.
type Batch = Arc<Mutex<Option<MergedChanges>>>;

/// What other programs changed in the kernel, until the thread takes it.
struct KernelChanges<M: DataPath> {
    needs_listing: bool,
    addresses: bool,
    keys: BTreeSet<M::Key>,
}

impl<M: DataPath> KernelChanges<M> {
    fn none() -> Self {
        Self {
            needs_listing: false,
            addresses: false,
            keys: BTreeSet::new(),
        }
    }
}

/// A value that calls and the thread share. A panic while it was locked leaves it valid.
fn lock<T>(value: &Mutex<T>) -> MutexGuard<'_, T> {
    value.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs a [`Proxier`] on a thread, when its [`Schedule`] is due. Two syncs never overlap.
///
/// Calls return at once; the thread handles them in order, up to 10 000 before a sync that is due. Changes of objects that wait, for example during
/// a sync, are merged: the last one of each object is applied ([`MergedChanges`]). Dropping the runner stops the thread
/// after the sync in progress, and leaves the kernel as it is.
pub struct Runner<M: DataPath> {
    commands: Sender<Command<M>>,
    /// The last batch of changes, until another command is sent.
    open: Mutex<Option<Batch>>,
    kernel_changes: Arc<Mutex<Option<KernelChanges<M>>>>,
    thread: Option<JoinHandle<Proxier<M>>>,
    recorder: Shared<M>,
}

/// The status, which callers read and write while a sync is in progress.
struct Shared<M: DataPath>(Arc<Mutex<Recorder<M::Totals>>>);

impl<M: DataPath> Clone for Shared<M> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

impl<M: DataPath> Shared<M> {
    fn lock(&self) -> MutexGuard<'_, Recorder<M::Totals>> {
        // A panic while it was locked leaves numbers that are too low at worst.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<M: DataPath> fmt::Debug for Runner<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Runner").finish_non_exhaustive()
    }
}

/// The thread of a runner panicked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the thread of the proxier panicked")]
pub struct RunnerPanicked;

impl<M> Runner<M>
where
    M: DataPath + 'static,
    Proxier<M>: Send,
    M::Config: Send,
{
    /// Starts the thread, in the network namespace of the calling thread. `notify` is called on it; the next sync waits until it returns.
    ///
    /// # Errors
    /// If the system cannot start a thread.
    pub fn start(
        proxier: Proxier<M>,
        schedule: Schedule,
        mut notify: impl FnMut(Notice<M>) + Send + 'static,
    ) -> io::Result<Self> {
        Self::start_with(proxier, schedule, move |_, notice| notify(notice))
    }

    /// As [`start`](Self::start); `notify` can also read the proxier, such as the health-check node ports of its Services.
    ///
    /// # Errors
    /// If the system cannot start a thread.
    pub fn start_with(
        mut proxier: Proxier<M>,
        schedule: Schedule,
        notify: impl FnMut(&Proxier<M>, Notice<M>) + Send + 'static,
    ) -> io::Result<Self> {
        proxier.set_clock(Instant::now);
        let families = proxier.services().config().families.iter().copied();
        let recorder = Shared(Arc::new(Mutex::new(Recorder::new(families, SystemTime::now()))));
        let shared = recorder.clone();
        let (commands, received) = mpsc::channel();
        let kernel_changes = Arc::new(Mutex::new(None));
        let of_thread = Arc::clone(&kernel_changes);
        let thread = thread::Builder::new()
            .name("kernlink-proxier".to_owned())
            .spawn(move || run(proxier, schedule, &received, &of_thread, &shared, notify))?;
        Ok(Self {
            commands,
            open: Mutex::new(None),
            kernel_changes,
            thread: Some(thread),
            recorder,
        })
    }
}

impl<M: DataPath> Runner<M> {
    /// Applies a change of a source, as [`Proxier::change`].
    pub fn change(&self, source: SourceId, change: Change) {
        self.change_all(source, vec![change]);
    }

    /// Applies changes that belong together: no sync begins between them.
    pub fn change_all(&self, source: SourceId, changes: Vec<Change>) {
        {
            let (now, time) = (Instant::now(), SystemTime::now());
            let mut recorder = self.recorder.lock();
            changes
                .iter()
                .for_each(|change| recorder.on_change(change, now, time));
        }
        self.send_changes(source, changes);
    }

    /// Makes these the Services and EndpointSlices of a source, which has delivered its first full lists with this call; see [`Change::replace_all`].
    /// Later changes need not be complete lists.
    pub fn replace_all(&self, source: SourceId, services: Vec<Service>, slices: Vec<EndpointSlice>) {
        self.change_all(source, Change::replace_all(services, slices).into());
    }

    /// Adds changes to those that wait, or sends them.
    fn send_changes(&self, source: SourceId, changes: Vec<Change>) {
        let mut open = lock(&self.open);
        if let Some(batch) = &*open
            && let Some(merged) = &mut *lock(batch)
        {
            changes.into_iter().for_each(|change| merged.add(source, change));
            return;
        }
        let mut merged = MergedChanges::default();
        changes.into_iter().for_each(|change| merged.add(source, change));
        let batch = Arc::new(Mutex::new(Some(merged)));
        *open = Some(Arc::clone(&batch));
        self.send_now(Command::Changes(batch));
    }

    /// Adds what other programs changed to what waits, or sends it.
    fn send_kernel_changes(&self, changes: KernelChanges<M>) {
        let mut waiting = lock(&self.kernel_changes);
        if let Some(waiting) = &mut *waiting {
            waiting.needs_listing |= changes.needs_listing;
            waiting.addresses |= changes.addresses;
            waiting.keys.extend(changes.keys);
            return;
        }
        *waiting = Some(changes);
        // It is not applied to the Services: changes may be merged across it.
        self.send_now(Command::KernelChanges);
    }

    /// Declares that a source delivers a kind of object, as [`Proxier::register_source`].
    pub fn register_source(&self, source: SourceId, kind: Kind) {
        self.send(Command::RegisterSource(source, kind));
    }

    /// Removes a source with all its objects, as [`Proxier::remove_source`].
    pub fn remove_source(&self, source: SourceId) {
        self.send(Command::RemoveSource(source));
    }

    /// Replaces the configuration, as [`Proxier::set_config`], and the intervals of the schedule with [`DataPath::intervals`].
    pub fn set_config(&self, config: M::Config) {
        self.send(Command::SetConfig(Box::new(config)));
    }

    /// Reads the whole kernel at the next sync, which is due now, or at [`Synced::no_listing_before`](crate::Synced::no_listing_before). Call it when
    /// another program changed the kernel.
    pub fn resync(&self) {
        self.send_kernel_changes(KernelChanges {
            needs_listing: true,
            ..KernelChanges::none()
        });
    }

    /// Reads these objects again at the next sync, which is due now unless none is recorded as existing; see [`Proxier::recheck`]. Call it
    /// when another program may have removed or changed them.
    pub fn recheck(&self, keys: Vec<M::Key>) {
        self.send_kernel_changes(KernelChanges {
            keys: keys.into_iter().collect(),
            ..KernelChanges::none()
        });
    }

    /// Reads the addresses of this node's interfaces again at the next sync, which is due now. Call it when one may have been added or removed.
    pub fn recheck_addresses(&self) {
        self.send_kernel_changes(KernelChanges {
            addresses: true,
            ..KernelChanges::none()
        });
    }

    /// A listener that receives what the data path receives, beginning with a snapshot; see [`broadcast`](crate::broadcast). At most
    /// `capacity` updates wait to be received; further ones are merged. Returns at once; the snapshot is made after a sync in progress.
    #[must_use]
    pub fn subscribe(&self, capacity: NonZeroUsize) -> Subscription {
        let (subscriber, subscription) = Broadcaster::pair(capacity);
        self.send(Command::Subscribe(subscriber));
        subscription
    }

    /// Calls a function with the proxier, on its thread: after a sync in progress. `None` if the thread panicked.
    pub fn read<T: Send + 'static>(&self, read: impl FnOnce(&Proxier<M>) -> T + Send + 'static) -> Option<T> {
        let (sender, receiver) = mpsc::channel();
        self.send(Command::Read(Box::new(move |proxier| {
            // The receiver waits for it.
            let _ = sender.send(read(proxier));
        })));
        receiver.recv().ok()
    }

    /// Calls a function with the proxier, on its thread: after a sync in progress. Returns at once. The function is dropped if the thread ends
    /// before.
    pub fn start_read(&self, read: impl FnOnce(&Proxier<M>) + Send + 'static) {
        self.send(Command::Read(Box::new(read)));
    }

    /// Passes events of the embedding program to `notify` and to the [status](Self::status), as those of the proxier: after a sync in progress.
    pub fn report(&self, events: Vec<Event>) {
        // They do not separate the changes before from those after.
        self.send_now(Command::Report(events));
    }

    /// The present status. Does not wait for a sync in progress.
    #[must_use]
    pub fn status(&self) -> Status<M::Totals> {
        self.recorder.lock().status().clone()
    }

    /// Calls a function with the present status, which is not copied. Does not wait for a sync in progress; its end waits for the function.
    pub fn with_status<T>(&self, read: impl FnOnce(&Status<M::Totals>) -> T) -> T {
        read(self.recorder.lock().status())
    }

    /// The health-check node port with this number, as of the last sync. `None` if no Service has it. Does not wait for a sync in
    /// progress.
    #[must_use]
    pub fn health_check(&self, family: Family, port: u16) -> Option<HealthCheck> {
        self.recorder.lock().health_check(family, port).cloned()
    }

    /// Whether the thread has ended although the runner was not stopped: it panicked.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Ends the thread after the sync in progress, and returns the proxier. Calls before this one are applied to its objects, but not
    /// to the kernel. The kernel stays as it is.
    ///
    /// # Errors
    /// [`RunnerPanicked`].
    pub fn stop(mut self) -> Result<Proxier<M>, RunnerPanicked> {
        self.send(Command::Stop);
        let thread = self.thread.take().ok_or(RunnerPanicked)?;
        thread.join().map_err(|_| RunnerPanicked)
    }

    /// Sends a command that is handled after the changes before it, and before those after it.
    fn send(&self, command: Command<M>) {
        let mut open = lock(&self.open);
        *open = None;
        self.send_now(command);
    }

    fn send_now(&self, command: Command<M>) {
        // It fails only if the thread panicked, which `has_ended` and `stop` report.
        let _ = self.commands.send(command);
    }
}

impl<M: DataPath> Drop for Runner<M> {
    fn drop(&mut self) {
        self.send(Command::Stop);
        if let Some(thread) = self.thread.take() {
            // The panic was printed by its hook.
            let _ = thread.join();
        }
    }
}

/// The maximum number of commands that are handled before a sync that is due.
const COMMANDS_BEFORE_SYNC: u32 = 10_000;

/// Handles commands and syncs until it is told to stop.
fn run<M: DataPath>(
    mut proxier: Proxier<M>,
    mut schedule: Schedule,
    commands: &Receiver<Command<M>>,
    kernel_changes: &Mutex<Option<KernelChanges<M>>>,
    recorder: &Shared<M>,
    mut notify: impl FnMut(&Proxier<M>, Notice<M>),
) -> Proxier<M> {
    schedule.set_pace(proxier.state().pace());
    if proxier.services().has_synced() {
        schedule.on_synced(Instant::now());
    }
    while let Some(command) = receive(commands, next(&proxier, &schedule)) {
        let mut received = command;
        let mut handled = 0;
        while let Some(command) = received {
            if matches!(command, Command::Stop) {
                return proxier;
            }
            if matches!(command, Command::KernelChanges) {
                if let Some(changes) = lock(kernel_changes).take() {
                    handle_kernel_changes(changes, &mut proxier, &mut schedule);
                }
            } else {
                handle(command, &mut proxier, &mut schedule, recorder, &mut notify);
            }
            handled += 1;
            if handled == COMMANDS_BEFORE_SYNC {
                break;
            }
            received = match commands.try_recv() {
                Ok(command) => Some(command),
                Err(TryRecvError::Empty) => None,
                Err(TryRecvError::Disconnected) => return proxier,
            };
        }
        if !proxier.services().has_synced() {
            continue;
        }
        let now = Instant::now();
        schedule.on_synced(now);
        let Some(due) = schedule.take(now) else {
            continue;
        };
        if due == Due::Resync {
            proxier.resync();
        }
        recorder.lock().on_started();
        let outcome = match proxier.sync(now) {
            Ok(partial) if partial.is_partial => {
                recorder.lock().on_synced(&proxier, &partial, SystemTime::now());
                notify(&proxier, Notice::Synced(Box::new(partial)));
                proxier.sync(Instant::now())
            }
            outcome => outcome,
        };
        match outcome {
            Ok(synced) => {
                recorder.lock().on_synced(&proxier, &synced, SystemTime::now());
                schedule.delay_listing(synced.no_listing_before);
                schedule.set_listing_time(proxier.state().listing_time());
                if !synced.plan.is_empty() {
                    schedule.on_written(now);
                }
                schedule.on_report(Instant::now(), synced.next);
                notify(&proxier, Notice::Synced(Box::new(synced)));
            }
            Err(error) => {
                recorder.lock().on_error(&error, SystemTime::now());
                schedule.on_error(Instant::now());
                notify(&proxier, Notice::Failed(error));
            }
        }
    }
    proxier
}

/// When to sync if no command arrives before.
fn next<M: DataPath>(proxier: &Proxier<M>, schedule: &Schedule) -> Option<Instant> {
    schedule.next().filter(|_| proxier.services().has_synced())
}

/// Waits for a command, at most until `time`. `Some(None)` at that time; `None` if the runner is gone.
fn receive<T>(commands: &Receiver<T>, time: Option<Instant>) -> Option<Option<T>> {
    let Some(time) = time else {
        return commands.recv().ok().map(Some);
    };
    match commands.recv_timeout(time.saturating_duration_since(Instant::now())) {
        Ok(command) => Some(Some(command)),
        Err(RecvTimeoutError::Timeout) => Some(None),
        Err(RecvTimeoutError::Disconnected) => None,
    }
}

fn handle_kernel_changes<M: DataPath>(
    changes: KernelChanges<M>,
    proxier: &mut Proxier<M>,
    schedule: &mut Schedule,
) {
    let now = Instant::now();
    if changes.needs_listing {
        schedule.on_kernel_change(now);
    }
    if changes.addresses {
        proxier.recheck_addresses();
    }
    if proxier.recheck(changes.keys) || changes.addresses {
        schedule.on_change(now);
    }
}

fn handle<M: DataPath>(
    command: Command<M>,
    proxier: &mut Proxier<M>,
    schedule: &mut Schedule,
    recorder: &Shared<M>,
    notify: &mut impl FnMut(&Proxier<M>, Notice<M>),
) {
    let now = Instant::now();
    let events = match command {
        Command::Changes(batch) => {
            let changes = lock(&batch).take().unwrap_or_default();
            for (source, kind) in changes.registered() {
                proxier.register_source(source, kind);
            }
            let changes = changes.into_changes();
            changes
                .flat_map(|(source, change)| proxier.change(source, change))
                .collect()
        }
        Command::RemoveSource(source) => proxier.remove_source(source),
        Command::RegisterSource(source, kind) => {
            proxier.register_source(source, kind);
            Vec::new()
        }
        Command::SetConfig(config) => {
            // A new configuration makes the next sync read the whole kernel.
            match proxier.set_config(&config) {
                Ok(()) => {
                    if let Some(intervals) = M::intervals(&config) {
                        schedule.set_intervals(intervals);
                    }
                    schedule.set_pace(proxier.state().pace());
                    schedule.on_change(now);
                }
                Err(error) => notify(proxier, Notice::InvalidConfig(error)),
            }
            return;
        }
        Command::Read(read) => {
            read(proxier);
            return;
        }
        Command::Subscribe(subscriber) => {
            proxier.add_subscriber(subscriber);
            return;
        }
        Command::Report(events) => return report(events, proxier, recorder, notify),
        Command::KernelChanges | Command::Stop => return,
    };
    if proxier.take_urgent() {
        schedule.on_urgent_change(now);
    } else {
        schedule.on_change(now);
    }
    report(events, proxier, recorder, notify);
}

fn report<M: DataPath>(
    events: Vec<Event>,
    proxier: &Proxier<M>,
    recorder: &Shared<M>,
    notify: &mut impl FnMut(&Proxier<M>, Notice<M>),
) {
    if !events.is_empty() {
        recorder.lock().on_events(&events, SystemTime::now());
        notify(proxier, Notice::Events(events));
    }
}
