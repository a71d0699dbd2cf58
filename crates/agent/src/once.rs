//! A single sync, and the plan of one.

use std::io;
use std::thread;
use std::time::Instant;

use kernlink_proxier::ipvs_mode::iptables_restore::end_tools;
use kernlink_proxier::unreadable::is_unreadable;
use kernlink_services::{Change, Kind, SourceId};
use tokio::runtime::Builder;

use crate::all_modes::{Kernel, Mode, Proxier, Synced};
use crate::cluster;
use crate::exit::Exit;
use crate::folder::Folder;
use crate::lock;
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
    let Some(mut proxier) = proxier(settings, Err) else {
        return Exit::Failure;
    };
    match proxier.plan(Instant::now()) {
        Ok(plan) => {
            let unknown = proxier.pending_events().filter(|event| is_unreadable(event));
            print::commands(
                &plan.to_string(),
                &unknown.map(|event| event.reason.to_string()).collect::<Vec<_>>(),
            )
        }
        Err(error) => {
            print::error(&error);
            Exit::Failure
        }
    }
}

/// `--once`: syncs once, and prints the report if something failed.
#[must_use]
pub fn once(settings: &Settings) -> Exit {
    sync(settings, Err, |synced| {
        report::events(&synced.events, &mut Limit::default());
        let part = if synced.is_partial { "first Services: " } else { "" };
        print::line(&format!("{part}{synced}"))
    })
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
    let exit = sync(settings, on_failure, |synced| {
        Syncs::new(true).log(synced, &mut Limit::default());
        Exit::Success
    });
    match exit {
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

/// `on_synced` shows the report.
fn sync(
    settings: &Settings,
    on_failure: impl FnMut(String) -> Result<(), String>,
    mut on_synced: impl FnMut(&Synced) -> Exit,
) -> Exit {
    let _lock = match lock::acquire() {
        Ok(lock) => lock,
        Err(exit) => return exit,
    };
    let Some(mut proxier) = proxier(settings, on_failure) else {
        return Exit::Failure;
    };
    let mut outcome = proxier.sync(Instant::now());
    if let Ok(first) = &outcome
        && first.is_partial
    {
        let exit = on_synced(first);
        if exit != Exit::Success {
            return exit;
        }
        outcome = proxier.sync(Instant::now());
    }
    match outcome {
        Ok(synced) => {
            let exit = on_synced(&synced);
            if synced.is_success() { exit } else { Exit::Failure }
        }
        Err(error) => {
            print::error(&error);
            Exit::Failure
        }
    }
}

/// A proxier with the objects of the sources. `None`, after it was reported, if one of them is not complete or the kernel cannot be used.
/// `on_failure` decides whether a failed attempt to read the API server is the last one.
fn proxier(settings: &Settings, on_failure: impl FnMut(String) -> Result<(), String>) -> Option<Proxier> {
    let mut changes = Vec::new();
    if let Some(folder) = &settings.folder {
        let reading = Folder::new(folder).read();
        for problem in &reading.problems {
            tracing::error!("{problem}");
        }
        for ignored in &reading.ignored {
            tracing::info!("{ignored}");
        }
        if !reading.is_complete {
            tracing::error!("nothing is done: Services that are not known would be deleted");
            return None;
        }
        let has_nodes = reading.changes.iter().any(|change| change.kind() == Kind::Node);
        let of_folder = reading.changes.into_iter().chain(synced(has_nodes));
        changes.extend(of_folder.map(|change| (FOLDER, change)));
    }
    if let Some(options) = &settings.cluster {
        match cluster::read(options, |problem| tracing::error!("{problem}"), on_failure) {
            Ok(of_cluster) => changes.extend(of_cluster.into_iter().map(|change| (CLUSTER, change))),
            Err(problem) => {
                print::text(&format!("API server: {problem}"));
                return None;
            }
        }
    }
    let kernel = match Kernel::open(&settings.config) {
        Ok(kernel) => kernel,
        Err(error) => {
            print::error(&error);
            return None;
        }
    };
    let mut proxier = match Proxier::new(&settings.config, kernel) {
        Ok(proxier) => proxier,
        Err(error) => {
            print::error(&error);
            return None;
        }
    };
    let mut limit = Limit::default();
    for (source, change) in changes {
        report::events(&proxier.change(source, change), &mut limit);
    }
    Some(proxier)
}
