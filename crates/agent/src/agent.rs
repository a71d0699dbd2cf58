//! Keeps the kernel in step with the folder and the API server until a signal ends the process.

use std::collections::BTreeSet;
use std::error::Error;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant, SystemTime};

use ipnet::IpNet;
use kernlink_base::{Backoff, ErrorChain};
use kernlink_proxier::retire::Retire;
use kernlink_proxier::runner::Notice;
use kernlink_proxier::watch::{WatchOptions, Watchable, Watcher};
use kernlink_proxier::{Proxier, Runner, Schedule};
use kernlink_services::{Change, Kind};
use nix::sys::prctl;
use tokio::runtime::Runtime;

use crate::cluster::{Cluster, Traffic, Update};
use crate::cluster_objects::{ClusterObjects, KINDS};
use crate::exit::Exit;
use crate::folder::{Folder, Problem, Reading, Watch};
use crate::http::Servers;
use crate::inbox::{Delivered, Inbox};
use crate::kernel_events;
use crate::lock;
use crate::log;
use crate::message::Message;
use crate::modes::{self, Mode, Opened, Served, Task};
use crate::once::{self, CLUSTER, FOLDER};
use crate::pending::Pending;
use crate::print;
use crate::query;
use crate::query::status::AfterSync;
use crate::query::support::StartedWith;
use crate::report;
use crate::reporter::Reporter;
use crate::service_manager::{self, EXTENSION, NotifyState, PROGRESS_INTERVAL};
use crate::settings::Settings;
use crate::signals;
use crate::state::{self, State};

/// Runs until SIGTERM or SIGINT. The kernel stays as it is then.
#[must_use]
pub fn run(settings: Settings) -> Exit {
    disable_huge_pages();
    let _lock = match lock::acquire() {
        Ok(lock) => lock,
        Err(exit) => return exit,
    };
    let (sender, messages) = mpsc::channel();
    let state = match State::new(&settings.config) {
        Ok(state) => Arc::new(Mutex::new(state)),
        Err(error) => {
            print::error(&error);
            return Exit::Failure;
        }
    };
    if settings.cluster.is_some() {
        let mut state = state::lock(&state);
        state.has_api_server = true;
        state.stale.follow(KINDS);
    }
    let servers = match Servers::start(&settings, Arc::clone(&state), sender.clone()) {
        Ok(servers) => servers,
        Err(error) => {
            print::error(&error);
            return Exit::Failure;
        }
    };
    let _queries = settings.socket.as_ref().and_then(|socket| {
        let started =
            query::server::Server::start(socket.clone(), Arc::clone(&state), StartedWith::new(&settings));
        started
            .map_err(|error| tracing::error!("questions to the agent are not answered: {error}"))
            .ok()
    });
    let mode = settings.config.mode();
    tracing::info!(node = &*settings.config.services().node_name, %mode, "started");
    let inbox = Arc::new(Inbox::default());
    let sources = match start_sources(&settings, state::lock(&state).traffic(), &sender, &inbox) {
        Ok(sources) => sources,
        Err(error) => {
            print::error(&*error);
            return Exit::Failure;
        }
    };
    let reporter = Reporter::new(sources.1.as_ref().map(|cluster| cluster.events().clone()));
    if let Err(error) = start_ticks(&sender) {
        print::error(&error);
        return Exit::Failure;
    }
    reporter.starting(format!(
        "kernlink-agent {}, mode {mode}",
        env!("CARGO_PKG_VERSION")
    ));
    let options = settings.cluster.as_ref();
    let cluster = ClusterObjects::new(options.is_some_and(|options| options.has_service_cidrs));
    let agent = Agent {
        settings,
        reporter,
        state,
        sender,
        servers,
        changes: Pending::default(),
        reading: Summary::default(),
        inbox,
        cluster,
        watcher: None,
        runtime: None,
        has_nodes: false,
        is_announced: false,
        started: Instant::now(),
        is_progress_reported: false,
    };
    let exit = agent.run(&messages);
    service_manager::notify(&[NotifyState::Stopping]);
    drop(sources);
    signals::has_ended();
    tracing::info!("stopped; the kernel stays as it is");
    exit
}

/// Has the kernel use pages of the normal size for this process and the programs that it starts. Where `transparent_hugepage/enabled` is
/// `always`, as on Debian, each part of the heap and each thread's stack would occupy 2 MiB or more.
fn disable_huge_pages() {
    if let Err(error) = prctl::set_thp_disable(true) {
        tracing::debug!(%error, "transparent huge pages of this process cannot be disabled");
    }
}

/// Starts the threads that read the folder and the API server. They end when the result is dropped.
fn start_sources(
    settings: &Settings,
    traffic: &Traffic,
    sender: &Sender<Message>,
    inbox: &Arc<Inbox>,
) -> Result<(Option<Watch>, Option<Cluster>), Box<dyn Error>> {
    let mut watch = None;
    if let Some(folder) = &settings.folder {
        tracing::info!(folder = %folder.display(), "a source is a folder");
        let (sender, inbox) = (EndsFolder(sender.clone()), Arc::clone(inbox));
        watch = Some(Watch::start(Folder::new(folder), move |reading| {
            if inbox.add_reading(reading) {
                // It fails only when the agent ends.
                let _ = sender.0.send(Message::Delivered);
            }
        })?);
    }
    let mut cluster = None;
    if let Some(options) = &settings.cluster {
        tracing::info!(access = %options.access, "a source is an API server");
        let (sender, inbox) = (sender.clone(), Arc::clone(inbox));
        cluster = Some(Cluster::start(options, traffic, move |update| {
            if inbox.add(update) {
                let _ = sender.send(Message::Delivered);
            }
        })?);
    }
    Ok((watch, cluster))
}

/// What the last reading of the folder found.
#[derive(Default)]
struct Summary {
    problems: BTreeSet<Problem>,
    ignored: BTreeSet<String>,
    is_complete: bool,
    files: usize,
    objects: usize,
}

struct Agent {
    settings: Settings,
    state: Arc<Mutex<State>>,
    reporter: Reporter,
    sender: Sender<Message>,
    servers: Servers,
    /// Changes of the folder that the proxier has not received.
    changes: Pending,
    reading: Summary,
    /// What the sources delivered and this has not received.
    inbox: Arc<Inbox>,
    /// What the API server delivered.
    cluster: ClusterObjects,
    /// Receives the kernel's events while the runner exists.
    watcher: Option<Watcher>,
    /// The threads of the proxy of userspace mode, which end after its sockets were closed.
    runtime: Option<Runtime>,
    /// Whether the folder had a Node object.
    has_nodes: bool,
    /// Whether the service manager was notified that the agent runs.
    is_announced: bool,
    started: Instant,
    /// Whether the log has a line that the first lists take long.
    is_progress_reported: bool,
}

/// The time after which the log has a line that the agent still waits for its first sync.
const PROGRESS_AFTER: Duration = Duration::from_secs(30);

/// Sends a message every few seconds, as often as the service manager needs one, until the agent ends.
fn start_ticks(sender: &Sender<Message>) -> std::io::Result<()> {
    let watchdog = service_manager::watchdog_interval();
    let interval = watchdog.map_or(PROGRESS_INTERVAL, |watchdog| watchdog.min(PROGRESS_INTERVAL));
    let sender = sender.clone();
    let run = move || {
        while sender.send(Message::Tick).is_ok() {
            thread::sleep(interval);
        }
    };
    let builder = thread::Builder::new().name("kernlink-ticks".to_owned());
    builder.spawn(run).map(drop)
}

/// The delays between attempts to open the kernel APIs.
const DELAYS: Backoff = Backoff {
    initial: Duration::from_secs(1),
    max: Duration::from_secs(60),
};

/// How often it is read whether the kernel serves Services, while the sources are awaited for the same reason.
const SERVING_INTERVAL: Duration = Duration::from_secs(5);

/// The kernel APIs of the configured mode, and all other modes.
type OpenedWith<M> = (Opened<M>, Vec<Box<dyn Retire>>);

/// Starts the agent in the configured mode.
struct Start<'a> {
    agent: &'a mut Agent,
    messages: &'a Receiver<Message>,
}

impl Task for Start<'_> {
    type Output = Result<(), Exit>;

    fn run<M: Served>(self, settings: &M::Settings) -> Result<(), Exit> {
        self.agent.start::<M>(settings, self.messages)
    }
}

impl Agent {
    fn run(mut self, messages: &Receiver<Message>) -> Exit {
        let config = self.settings.config.clone();
        let agent = &mut self;
        if let Err(exit) = modes::run(&config, Start { agent, messages }) {
            return exit;
        }
        let exit = loop {
            match messages.recv() {
                Ok(message) => match self.receive(message) {
                    Some(exit) => break exit,
                    None => self.deliver(),
                },
                // Does not occur: this has a sender too.
                Err(_) => break Exit::Failure,
            }
        };
        self.watcher = None;
        // The thread of the proxier may wait for the state.
        let runner = state::lock(&self.state).runner.take();
        match runner.map(|runner| runner.stop()) {
            Some(Err(error)) => {
                print::error(&error);
                Exit::Failure
            }
            _ => exit,
        }
    }

    /// Opens the kernel APIs, waits for the sources, and starts the thread of the proxier in the configured mode.
    fn start<M: Served>(&mut self, settings: &M::Settings, messages: &Receiver<Message>) -> Result<(), Exit> {
        let (mut proxier, runtime, watched) = self.open_proxier::<M>(settings, messages)?;
        self.runtime = runtime;
        let mut reported = String::new();
        let mut read: Option<Instant> = None;
        let is_partial = loop {
            match self.may_start() {
                Ok(is_partial) => break is_partial,
                Err(Some(why)) => {
                    // What an earlier process programmed is still served. Large tables take long to read.
                    let is_due = read.is_none_or(|read| read.elapsed() >= SERVING_INTERVAL);
                    if why != reported || is_due {
                        let mode = self.settings.config.mode();
                        // Rules of userspace mode lead to ports at which nothing listens before the first sync.
                        let is_serving = mode != Mode::Userspace
                            && modes::has_services(&self.settings.config).unwrap_or(false);
                        state::lock(&self.state).is_serving = is_serving;
                        read = Some(Instant::now());
                    }
                    if why != reported {
                        state::lock(&self.state).awaited = Some(format!("nothing is synced: {why}"));
                        tracing::error!("nothing is synced: {why}");
                        self.announce(&format!("nothing is synced: {why}"));
                        if state::lock(&self.state).stale.describe().is_none() {
                            self.reporter.not_started("NothingSynced", why.clone());
                        }
                        reported = why;
                    }
                }
                Err(None) => {}
            }
            let message = messages.recv().map_err(|_| Exit::Failure)?;
            // With all that arrived meanwhile: the kernel is not read for each of them.
            for message in std::iter::once(message).chain(messages.try_iter()) {
                if let Some(exit) = self.receive(message) {
                    return Err(exit);
                }
            }
        };
        let mut settings = settings.clone();
        if let Some(networks) = M::service_cidrs_mut(&mut settings)
            && let Some(known) = self.take_service_cidrs()
        {
            *networks = Some(known);
            proxier.set_config(M::of_settings(&settings)).map_err(|error| {
                print::error(&error);
                Exit::Usage
            })?;
        }
        let mut changes = self.changes.take();
        self.has_nodes = changes.iter().any(|change| change.kind() == Kind::Node);
        if self.settings.folder.is_some() {
            changes.extend(once::synced(self.has_nodes));
        }
        let schedule = Schedule::new(self.settings.config.intervals());
        let listener = self.listener::<M>();
        // Until the runner is there: events of the watcher wait for it.
        let mut state = state::lock(&self.state);
        // Before the first sync, so that no change is missed.
        self.watcher = kernel_events::watch::<M>(M::of_settings(&settings), &watched, &self.state);
        state.is_partial = is_partial;
        state.awaited = None;
        match Runner::start_with(proxier, schedule, listener) {
            Ok(runner) => {
                // Through the runner, whose status depends on them too. It syncs nothing before it has the objects of all sources.
                for (source, kind) in once::registered(&self.settings, self.has_nodes) {
                    if source == FOLDER || !is_partial {
                        runner.register_source(source, kind);
                    }
                }
                runner.change_all(FOLDER, changes);
                if !is_partial {
                    runner.change_all(CLUSTER, self.cluster.take());
                }
                state.runner = Some(Box::new(runner));
                Ok(())
            }
            Err(error) => {
                print::error(&error);
                Err(Exit::Failure)
            }
        }
    }

    /// Tries until the kernel APIs are available: modules may be loaded later.
    fn open_kernel<M: Served>(
        &mut self,
        settings: &M::Settings,
        messages: &Receiver<Message>,
    ) -> Result<OpenedWith<M>, Exit> {
        let mut failures: u32 = 0;
        let mut reported: Option<String> = None;
        loop {
            failures = failures.saturating_add(1);
            let delay = DELAYS.delay(failures, u64::MAX);
            let outcome = modes::retiring(&self.settings.config)
                .and_then(|retiring| Ok((M::open(settings)?, retiring)));
            let error = outcome.as_ref().err().map(|error| ErrorChain(error).to_string());
            let is_new = report::kernel(&mut reported, error.as_deref(), delay);
            if let Some(text) = error {
                state::lock(&self.state).awaited = Some(format!("the kernel cannot be used: {text}"));
                if is_new {
                    self.announce(&format!("the kernel cannot be used: {text}"));
                }
                // Also if it is not new: the API server forgets events, and the reporter writes this one again once an hour.
                self.reporter.not_started("KernelUnavailable", text);
            }
            if let Ok(opened) = outcome {
                return Ok(opened);
            }
            let end = Instant::now() + delay;
            loop {
                match messages.recv_timeout(end.saturating_duration_since(Instant::now())) {
                    Ok(message) => {
                        if let Some(exit) = self.receive(message) {
                            return Err(exit);
                        }
                    }
                    Err(RecvTimeoutError::Timeout) => break,
                    Err(RecvTimeoutError::Disconnected) => return Err(Exit::Failure),
                }
            }
        }
    }

    /// The proxier of a mode with all others as retiring modes, the threads that must outlive it, and how the kernel is watched.
    fn open_proxier<M: Served>(
        &mut self,
        settings: &M::Settings,
        messages: &Receiver<Message>,
    ) -> Result<(Proxier<M>, Option<Runtime>, WatchOptions), Exit> {
        let (opened, retiring) = self.open_kernel::<M>(settings, messages)?;
        let mut state = state::lock(&self.state);
        if let Some(accounting) = opened.accounting {
            let added = state.add_accounting(accounting);
            added.unwrap_or_else(|error| tracing::warn!("no metrics of accounting objects: {error}"));
        }
        state.proxy = opened.stats;
        drop(state);
        let options = M::of_settings(settings).watch_options();
        let watched = options.with_own_ports(M::Config::own_ports(&opened.kernel));
        let mut proxier = Proxier::new(M::of_settings(settings), opened.kernel).map_err(|error| {
            print::error(&error);
            Exit::Usage
        })?;
        proxier.set_retiring(retiring);
        Ok((proxier, opened.runtime, watched))
    }

    /// Whether it is safe to sync, since nothing that the kernel serves can belong to an object that was not read: the lists of the API
    /// server were read, and the folder is complete or the kernel serves no Service. True if only the folder may be synced: the API server cannot be read, and the kernel serves no Service, as
    /// after a boot. `None` before the folder was read, and before a list has failed.
    fn may_start(&self) -> Result<bool, Option<String>> {
        if let Some(cluster) = &self.settings.cluster
            && let Err(why) = self.cluster.may_start()
        {
            // Without the pod network of the Node, what is local is not known. Objects of the folder that could not be read are programmed later, as
            // those of the API server: nothing that the kernel serves can belong to them.
            let has_static = self.settings.folder.is_some() && self.reading.objects > 0;
            let may_be_partial = has_static && self.cluster.has_failed() && !cluster.needs_pod_cidr;
            if may_be_partial && modes::has_services(&self.settings.config).is_ok_and(|serves| !serves) {
                let why = why.unwrap_or_default();
                tracing::warn!(
                    "the Services of the folder are programmed without those of the API server: {why}"
                );
                return Ok(true);
            }
            return Err(why);
        }
        self.may_start_folder().map(|()| false)
    }

    /// Whether what is known of the folder cannot delete a Service that is only unknown.
    fn may_start_folder(&self) -> Result<(), Option<String>> {
        if self.settings.folder.is_none() || self.reading.is_complete {
            return Ok(());
        }
        if self.reading.files == 0 {
            let is_read = !self.reading.problems.is_empty();
            return Err(is_read.then(|| "there is no manifest".to_owned()));
        }
        match modes::has_services(&self.settings.config) {
            Ok(false) => {
                tracing::warn!("some objects of the folder are not known; the others are programmed");
                Ok(())
            }
            Ok(true) => Err(Some(
                "some objects of the folder are not known, and the kernel serves Services that may be theirs"
                    .to_owned(),
            )),
            Err(error) => Err(Some(format!(
                "some objects of the folder are not known, and what the kernel serves cannot be read: {error}"
            ))),
        }
    }

    /// Receives what the proxier does, on its thread.
    fn listener<M: Served>(&mut self) -> impl FnMut(&Proxier<M>, Notice<M>) + Send + use<M> + 'static {
        let state = Arc::clone(&self.state);
        let mut checks = self.servers.checks();
        let config = self.settings.config.services().clone();
        let sender = EndsRunner(self.sender.clone());
        let reporter = self.reporter.clone();
        let mut last_failure = None;
        let mut syncs = report::Syncs::new(log::has_syncs(self.settings.file.log_verbosity));
        let mut limit = report::Limit::default();
        move |proxier, notice| {
            if let Notice::Synced(synced) = &notice {
                let after_sync = AfterSync::new(synced, proxier.failing());
                state::lock(&state).after_sync = after_sync;
            }
            match notice {
                Notice::Events(events) => {
                    report::events(&events, &mut limit);
                    return reporter.events(&events);
                }
                Notice::Synced(synced) if synced.is_partial => {
                    // The rest follows at once: the node is not ready before.
                    syncs.log(&synced, &mut limit);
                    return reporter.events(&synced.events);
                }
                Notice::Synced(synced) => {
                    let mut state = state::lock(&state);
                    state.is_serving = !state.is_partial;
                    drop(state);
                    report::failed(&mut last_failure, None);
                    syncs.log(&synced, &mut limit);
                    reporter.events(&synced.events);
                    if let Some(checks) = &mut checks {
                        checks.set(&config, proxier.services(), &synced.health_checks);
                    }
                }
                Notice::Failed(error) => {
                    report::failed(&mut last_failure, Some(&error));
                    reporter.failed(&error);
                }
                Notice::InvalidConfig(error) => tracing::error!("{error}"),
                _ => {}
            }
            // It fails only when the agent ends.
            let _ = sender.0.send(Message::Synced);
        }
    }

    /// Handles a message. `Some` if the agent has to end.
    fn receive(&mut self, message: Message) -> Option<Exit> {
        match message {
            Message::Delivered => return self.receive_delivered(),
            Message::FolderEnded => {
                tracing::error!("the thread that reads the folder ended");
                return Some(Exit::Failure);
            }
            Message::Synced => self.announce("running"),
            Message::RunnerEnded => {
                tracing::error!("the thread of the proxier ended");
                return Some(Exit::Failure);
            }
            Message::Tick => self.tick(),
            Message::Signal(name) => {
                tracing::info!("{name}");
                return Some(Exit::Success);
            }
            Message::ServerFailed(problem) => {
                print::text(&problem);
                return Some(Exit::Failure);
            }
        }
        None
    }

    /// Handles what the sources delivered. `Some` if the agent has to end.
    fn receive_delivered(&mut self) -> Option<Exit> {
        let Delivered { reading, updates } = self.inbox.take();
        if let Some(reading) = reading {
            self.read(reading);
        }
        for update in updates {
            if update == Update::Ended {
                tracing::error!("the thread that reads the API server ended");
                return Some(Exit::Failure);
            }
            self.show(&update);
            if let Update::ServiceCidrsFailed(Some(problem)) = &update {
                self.reporter.service_cidrs_unreadable(problem);
            }
            self.cluster.receive(update);
        }
        None
    }

    /// Reports new problems of the folder, and those that are solved.
    fn read(&mut self, reading: Reading) {
        report::problems(&self.reading.problems, &reading.problems);
        for ignored in reading.ignored.difference(&self.reading.ignored) {
            tracing::info!("{ignored}");
        }
        let (changes, files, objects) = (reading.changes.len(), reading.files, reading.objects);
        tracing::debug!(changes, files, objects, "the folder was read");
        self.reading = Summary {
            problems: reading.problems,
            ignored: reading.ignored,
            is_complete: reading.is_complete,
            files,
            objects,
        };
        self.changes.extend(reading.changes);
    }

    /// The networks that cluster IPs are allocated from, if others are known than before. They are part of the configuration.
    fn take_service_cidrs(&mut self) -> Option<Vec<IpNet>> {
        let known = self.cluster.take_service_cidrs()?;
        let networks = self.settings.config.service_cidrs_mut()?;
        *networks = Some(known.clone());
        Some(known)
    }

    /// Passes the changes of the sources on to the proxier.
    fn deliver(&mut self) {
        let has_runner = state::lock(&self.state).runner.is_some();
        let has_networks = has_runner && self.take_service_cidrs().is_some();
        let mut state = state::lock(&self.state);
        let State {
            runner, is_partial, ..
        } = &mut *state;
        let Some(runner) = runner else {
            return;
        };
        if has_networks {
            modes::set_config(&**runner, &self.settings.config);
        }
        if *is_partial && self.cluster.may_start().is_ok() {
            // All at once: a Service without its endpoints would be refused.
            *is_partial = false;
            for (source, kind) in once::registered(&self.settings, self.has_nodes) {
                if source == CLUSTER {
                    runner.register_source(source, kind);
                }
            }
        }
        if !*is_partial {
            let of_cluster = self.cluster.take();
            if !of_cluster.is_empty() {
                runner.change_all(CLUSTER, of_cluster);
            }
        }
        let mut changes = self.changes.take();
        if changes.is_empty() {
            return;
        }
        let is_node = |change: &Change| change.kind() == Kind::Node;
        if !self.has_nodes && changes.iter().any(is_node) {
            self.has_nodes = true;
            changes.push(Change::synced(Kind::Node));
        }
        runner.change_all(FOLDER, changes);
    }

    /// Keeps for the servers which kinds cannot be read from the API server, and notifies the service manager of it.
    fn show(&self, update: &Update) {
        let mut state = state::lock(&self.state);
        let is_changed = match update {
            Update::Failed { kind, received, .. } => {
                let since = received.unwrap_or_else(SystemTime::now);
                state.stale.on_failed(*kind, since)
            }
            Update::Recovered(kind) => state.stale.on_recovered(*kind),
            _ => false,
        };
        if is_changed && self.is_announced {
            let running = if state.runner.is_some() {
                "running"
            } else {
                "waiting"
            };
            let status = state.stale.describe();
            service_manager::notify(&[NotifyState::Status(status.as_deref().unwrap_or(running))]);
        }
    }

    /// Notifies the service manager that the agent works, and before it is ready, that it needs more time. After some time the log has a line about
    /// what is awaited.
    fn tick(&mut self) {
        if service_manager::watchdog_interval().is_some() {
            service_manager::notify(&[NotifyState::Watchdog]);
        }
        if self.is_announced {
            return;
        }
        let status = match &self.settings.cluster {
            Some(_) => self.cluster.progress(),
            None => "waiting for the first sync".to_owned(),
        };
        state::lock(&self.state).awaited = Some(status.clone());
        service_manager::notify_status(EXTENSION, &status);
        if self.started.elapsed() >= PROGRESS_AFTER
            && !std::mem::replace(&mut self.is_progress_reported, true)
        {
            tracing::info!("no sync yet after {PROGRESS_AFTER:?}: {status}");
        }
    }

    /// Notifies the service manager, once, that the agent runs, and of its state.
    fn announce(&mut self, status: &str) {
        if !std::mem::replace(&mut self.is_announced, true) {
            service_manager::notify_status(NotifyState::Ready, status);
        }
    }
}

/// Reports when the thread that owns it ends: that of the folder.
struct EndsFolder(Sender<Message>);

impl Drop for EndsFolder {
    fn drop(&mut self) {
        let _ = self.0.send(Message::FolderEnded);
    }
}

/// Reports when the thread that owns it ends: that of the proxier.
struct EndsRunner(Sender<Message>);

impl Drop for EndsRunner {
    fn drop(&mut self) {
        let _ = self.0.send(Message::RunnerEnded);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_of_the_thread_that_reads_the_folder_is_noticed() {
        let folder = tempfile::tempdir().unwrap();
        let (sender, messages) = mpsc::channel();
        let sender = EndsFolder(sender);
        let _watch = Watch::start(Folder::new(folder.path()), move |_| {
            let _sender = &sender;
            panic!("a defect");
        });
        let message = messages.recv().unwrap();
        assert!(matches!(message, Message::FolderEnded), "{message:?}");
    }
}
