//! The present objects, for programs that do not follow changes.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use ipnet::IpNet;
use kernlink_services::{Change, Kind};

use super::{Cluster, Options, Traffic, Update};

/// How long the first sync waits for the ServiceCIDR objects after all others are known, if the server does not answer.
pub(crate) const SERVICE_CIDRS_TIMEOUT: Duration = Duration::from_secs(10);

/// The present objects.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Objects {
    /// The objects of all kinds that the proxier receives.
    pub changes: Vec<Change>,
    /// The networks of the ServiceCIDR objects. `None`: they are not read, or cannot be.
    pub service_cidrs: Option<Vec<IpNet>>,
}

/// Reads the full list of each kind. Texts about invalid objects are passed to `on_problem`, reasons why a list cannot be read to
/// `on_failure`: it is tried again unless this returns an error.
///
/// # Errors
/// That of `on_failure`.
pub fn read(
    options: &Options,
    mut on_problem: impl FnMut(String),
    mut on_failure: impl FnMut(String) -> Result<(), String>,
) -> Result<Objects, String> {
    let (sender, updates) = mpsc::channel();
    let traffic = Traffic::new().map_err(|error| error.to_string())?;
    let cluster = Cluster::start(options, &traffic, move |update| {
        // It fails only after the last list was received.
        let _ = sender.send(update);
    });
    let _cluster = cluster.map_err(|error| error.to_string())?;
    let mut objects = Objects::default();
    let mut has_service_cidrs = !options.has_service_cidrs;
    let mut missing = vec![Kind::Service, Kind::EndpointSlice, Kind::Node];
    // Since only the networks of cluster IPs are missing.
    let mut complete: Option<Instant> = None;
    while !missing.is_empty() || !has_service_cidrs {
        let update = if missing.is_empty() {
            let elapsed = complete.get_or_insert_with(Instant::now).elapsed();
            match updates.recv_timeout(SERVICE_CIDRS_TIMEOUT.saturating_sub(elapsed)) {
                Err(RecvTimeoutError::Timeout) => {
                    on_problem("ServiceCIDR: the server does not answer".to_owned());
                    break;
                }
                update => update.ok(),
            }
        } else {
            updates.recv().ok()
        };
        match update {
            Some(Update::Changes(received)) => {
                for change in received {
                    missing.retain(|kind| change != Change::synced(*kind));
                    objects.changes.push(change);
                }
            }
            Some(Update::Invalid(problems) | Update::Ignored(problems)) => {
                problems.texts.into_iter().for_each(&mut on_problem);
            }
            Some(Update::Node(problem)) => on_problem(problem),
            // A watch after the lists.
            Some(Update::Failed { .. }) if missing.is_empty() => {}
            Some(Update::Failed { kind, problem, .. }) => on_failure(format!("{kind}: {problem}"))?,
            Some(Update::ServiceCidrs(networks)) => {
                objects.service_cidrs = Some(networks);
                has_service_cidrs = true;
            }
            Some(Update::ServiceCidrsFailed(Some(problem))) => {
                on_problem(format!("ServiceCIDR: {problem}"));
                has_service_cidrs = true;
            }
            Some(Update::ServiceCidrsFailed(None) | Update::Recovered(_)) => {}
            Some(Update::Ended) | None => return Err("the thread that reads the API server ended".to_owned()),
        }
    }
    Ok(objects)
}
