//! The present objects, for programs that do not follow changes.

use std::sync::mpsc;

use kernlink_services::{Change, Kind};

use super::{Cluster, Options, Traffic, Update};

/// Reads the full list of each kind. Texts about invalid objects are passed to `on_problem`, reasons why a list cannot be read to
/// `on_failure`: it is tried again unless this returns an error.
///
/// # Errors
/// That of `on_failure`.
pub fn read(
    options: &Options,
    mut on_problem: impl FnMut(String),
    mut on_failure: impl FnMut(String) -> Result<(), String>,
) -> Result<Vec<Change>, String> {
    let (sender, updates) = mpsc::channel();
    let traffic = Traffic::new().map_err(|error| error.to_string())?;
    let cluster = Cluster::start(options, &traffic, move |update| {
        // It fails only after the last list was received.
        let _ = sender.send(update);
    });
    let _cluster = cluster.map_err(|error| error.to_string())?;
    let mut changes = Vec::new();
    let mut missing = vec![Kind::Service, Kind::EndpointSlice, Kind::Node];
    while !missing.is_empty() {
        match updates.recv() {
            Ok(Update::Changes(received)) => {
                for change in received {
                    missing.retain(|kind| change != Change::synced(*kind));
                    changes.push(change);
                }
            }
            Ok(Update::Invalid(problems) | Update::Ignored(problems)) => {
                problems.into_iter().for_each(&mut on_problem);
            }
            Ok(Update::Node(problem)) => on_problem(problem),
            Ok(Update::Failed { kind, problem, .. }) => on_failure(format!("{kind}: {problem}"))?,
            Ok(Update::Recovered(_)) => {}
            Ok(Update::Ended) | Err(_) => return Err("the thread that reads the API server ended".to_owned()),
        }
    }
    Ok(changes)
}
