//! A single sync, and the plan of one.

use std::error::Error;
use std::fmt;
use std::io;
use std::thread;
use std::time::Instant;

use ipnet::IpNet;
use kernlink_proxier::data_path::SyncedOf;
use kernlink_proxier::ipvs_mode::iptables_restore::end_tools;
use kernlink_proxier::unreadable::is_unreadable;
use kernlink_proxier::{DataPath, Proxier};
use kernlink_services::{Change, Event, Kind, SourceId};
use tokio::runtime::{Builder, Runtime};

use crate::cluster;
use crate::exit::Exit;
use crate::folder::Folder;
use crate::lock;
use crate::modes::{self, Mode, Served, Task};
use crate::print;
use crate::report::{self, Limit, Syncs};
use crate::settings::Settings;
use crate::signals;

/// The source of the folder. Its version of an object takes precedence over that of the API server.
pub(crate) const FOLDER: SourceId = SourceId(0);
/// The source of the API server.
pub(crate) const CLUSTER: SourceId = SourceId(1);

/// The changes after the first full list. Without a Node object the source is not one of Nodes: then the facts of the node come from the
/// command line, and the node is eligible for traffic of load balancers.
pub(crate) fn synced(has_nodes: bool) -> impl Iterator<Item = Change> {
    let kinds = [Kind::Service, Kind::EndpointSlice, Kind::Node];
    let kinds = kinds
        .into_iter()
        .filter(move |kind| has_nodes || *kind != Kind::Node);
    kinds.map(Change::synced)
}

/// The sources with the kinds that each one delivers.
pub(crate) fn registered(settings: &Settings, has_nodes: bool) -> Vec<(SourceId, Kind)> {
    let mut registered = Vec::new();
    if settings.folder.is_some() {
        registered.extend(synced(has_nodes).map(|change| (FOLDER, change.kind())));
    }
    if settings.cluster.is_some() {
        registered.extend(synced(true).map(|change| (CLUSTER, change.kind())));
    }
    registered
}

/// `--dry-run`: prints the plan of a sync as commands. Needs no lock, because it changes nothing. Fails if a part of the kernel could not be
/// read: the plan is then made without knowing what this part contains.
#[must_use]
pub fn dry_run(settings: &Settings) -> Exit {
    modes::run(&settings.config, DryRun(settings))
}

struct DryRun<'a>(&'a Settings);

impl Task for DryRun<'_> {
    type Output = Exit;

    fn run<M: Served>(self, settings: &M::Settings) -> Exit {
        let Some((_runtime, mut proxier)) = proxier::<M>(self.0, settings, Err) else {
            return Exit::Failure;
        };
        let now = Instant::now();
        match proxier.plan(now) {
            Ok(plan) => {
                let mut text = plan.to_string();
                for mode in proxier.plan_handover(now) {
                    text += &mode.to_string();
                }
                let unknown = proxier.pending_events().filter(|event| is_unreadable(event));
                let unknown: Vec<String> = unknown.map(|event| event.reason.to_string()).collect();
                print::commands(&text, &unknown)
            }
            Err(error) => {
                print::error(&error);
                Exit::Failure
            }
        }
    }
}

/// `--once`: syncs once, and prints the report if something failed.
#[must_use]
pub fn once(settings: &Settings) -> Exit {
    sync(settings, Err, Shown::Text)
}

/// `--init-only`: the sync of a process that ends before the agent, and has rights that the agent does not have. It waits for the API server.
/// What fails, the agent reports and tries again; only a namespace that another process programs is an error.
#[must_use]
pub fn init_only(settings: &Settings) -> Exit {
    if settings.config.mode() == Mode::Userspace {
        tracing::info!("nothing to do in userspace mode");
        return Exit::Success;
    }
    if let Err(error) = end_on_signals() {
        tracing::warn!("SIGTERM and SIGINT cannot be received: {error}");
    }
    let on_failure = |problem| {
        tracing::error!("API server: {problem}; tried again");
        Ok(())
    };
    // Its output is a log, which may be in JSON.
    match sync(settings, on_failure, Shown::Log) {
        Exit::Locked => Exit::Locked,
        _ => Exit::Success,
    }
}

/// Ends the process at SIGTERM and SIGINT, with exit status 1. Process 1 of a container has no default actions of signals.
fn end_on_signals() -> io::Result<()> {
    let runtime = Builder::new_current_thread().enable_io().build()?;
    let [(_, mut terminate), (_, mut interrupt)] = signals::register(&runtime)?;
    let wait = move || {
        runtime.block_on(async {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        });
        end_tools();
        std::process::exit(i32::from(Exit::Failure.code()));
    };
    thread::Builder::new()
        .name("kernlink-signals".to_owned())
        .spawn(wait)
        .map(drop)
}

/// How reports are shown.
#[derive(Clone, Copy)]
enum Shown {
    Text,
    Log,
}

impl Shown {
    fn show<M: DataPath>(self, synced: &SyncedOf<M>) -> Exit {
        match self {
            Shown::Text => {
                report::events(&synced.events, &mut Limit::default());
                let part = if synced.is_partial { "first Services: " } else { "" };
                print::line(&format!("{part}{synced}"))
            }
            Shown::Log => {
                Syncs::new(true).log(synced, &mut Limit::default());
                Exit::Success
            }
        }
    }
}

fn sync(settings: &Settings, on_failure: impl FnMut(String) -> Result<(), String>, shown: Shown) -> Exit {
    let _lock = match lock::acquire() {
        Ok(lock) => lock,
        Err(exit) => return exit,
    };
    let task = Sync {
        settings,
        on_failure,
        shown,
    };
    modes::run(&settings.config, task)
}

struct Sync<'a, F> {
    settings: &'a Settings,
    on_failure: F,
    shown: Shown,
}

/// A sync may be followed by others that are due at once and complete it: all Services after the first ones, and what replaces rules of a
/// mode that served the node before.
const MOST_SYNCS: usize = 4;

impl<F: FnMut(String) -> Result<(), String>> Task for Sync<'_, F> {
    type Output = Exit;

    fn run<M: Served>(self, settings: &M::Settings) -> Exit {
        let Some((_runtime, mut proxier)) = proxier::<M>(self.settings, settings, self.on_failure) else {
            return Exit::Failure;
        };
        let mut is_success = true;
        for _ in 0..MOST_SYNCS {
            let synced = match proxier.sync(Instant::now()) {
                Ok(synced) => synced,
                Err(error) => {
                    print::error(&error);
                    return Exit::Failure;
                }
            };
            let exit = self.shown.show::<M>(&synced);
            if exit != Exit::Success {
                return exit;
            }
            is_success = synced.is_success();
            if !synced.is_partial && !synced.is_continued {
                break;
            }
        }
        if is_success { Exit::Success } else { Exit::Failure }
    }
}

/// What the sources have now.
#[derive(Debug, Default)]
pub(crate) struct Objects {
    changes: Vec<(SourceId, Change)>,
    /// The networks that cluster IPs are allocated from, if they could be read.
    service_cidrs: Option<Vec<IpNet>>,
}

impl Objects {
    /// No object, as if a source without any had been read: for what does not depend on them.
    pub(crate) fn none() -> Self {
        Self {
            changes: synced(false).map(|change| (FOLDER, change)).collect(),
            service_cidrs: None,
        }
    }
}

/// Why the sources could not be read. The problems of a folder are in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Unread {
    Folder,
    Cluster(String),
}

impl fmt::Display for Unread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Unread::Folder => f.write_str("Services that are not known would be deleted"),
            Unread::Cluster(problem) => write!(f, "API server: {problem}"),
        }
    }
}

/// Reads the sources. `on_failure` decides whether a failed attempt to read the API server is the last one.
pub(crate) fn objects(
    settings: &Settings,
    on_failure: impl FnMut(String) -> Result<(), String>,
) -> Result<Objects, Unread> {
    let mut objects = Objects::default();
    if let Some(folder) = &settings.folder {
        let reading = Folder::new(folder).read();
        for problem in &reading.problems {
            tracing::error!("{problem}");
        }
        for ignored in &reading.ignored {
            tracing::info!("{ignored}");
        }
        if !reading.is_complete {
            return Err(Unread::Folder);
        }
        let has_nodes = reading.changes.iter().any(|change| change.kind() == Kind::Node);
        let of_folder = reading.changes.into_iter().chain(synced(has_nodes));
        objects.changes.extend(of_folder.map(|change| (FOLDER, change)));
    }
    if let Some(options) = &settings.cluster {
        let read = cluster::read(options, |problem| tracing::error!("{problem}"), on_failure);
        let read = read.map_err(Unread::Cluster)?;
        objects
            .changes
            .extend(read.changes.into_iter().map(|change| (CLUSTER, change)));
        objects.service_cidrs = read.service_cidrs;
    }
    Ok(objects)
}

/// A proxier that has the objects of the sources, and knows the modes that may have served the node before.
pub(crate) struct Prepared<M: Served> {
    /// The threads that must outlive it.
    pub(crate) runtime: Option<Runtime>,
    pub(crate) proxier: Proxier<M>,
    /// The events about the objects.
    pub(crate) events: Vec<Event>,
}

/// Opens the kernel APIs as the agent does when it starts.
pub(crate) fn prepare<M: Served>(
    settings: &Settings,
    of_mode: &M::Settings,
    objects: Objects,
) -> Result<Prepared<M>, Box<dyn Error>> {
    let mut of_mode = of_mode.clone();
    if let (Some(networks), Some(read)) = (M::service_cidrs_mut(&mut of_mode), objects.service_cidrs) {
        *networks = Some(read);
    }
    let opened = M::open(&of_mode)?;
    let retiring = modes::retiring(&settings.config)?;
    let mut proxier = Proxier::new(M::of_settings(&of_mode), opened.kernel)?;
    proxier.set_retiring(retiring);
    let changes = objects.changes.into_iter();
    let events = changes
        .flat_map(|(source, change)| proxier.change(source, change))
        .collect();
    Ok(Prepared {
        runtime: opened.runtime,
        proxier,
        events,
    })
}

/// A proxier with the objects of the sources. `None`, after it was reported, if one of them is not complete or the kernel cannot be used.
/// With the threads that must outlive it. `on_failure` decides whether a failed attempt to read the API server is the last one.
fn proxier<M: Served>(
    settings: &Settings,
    of_mode: &M::Settings,
    on_failure: impl FnMut(String) -> Result<(), String>,
) -> Option<(Option<Runtime>, Proxier<M>)> {
    let objects = match objects(settings, on_failure) {
        Ok(objects) => objects,
        Err(unread) => {
            match &unread {
                Unread::Folder => tracing::error!("nothing is done: {unread}"),
                Unread::Cluster(_) => print::text(&unread.to_string()),
            }
            return None;
        }
    };
    match prepare::<M>(settings, of_mode, objects) {
        Ok(prepared) => {
            report::events(&prepared.events, &mut Limit::default());
            Some((prepared.runtime, prepared.proxier))
        }
        Err(error) => {
            print::error(&*error);
            None
        }
    }
}
