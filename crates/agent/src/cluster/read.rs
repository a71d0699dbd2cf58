//! The present objects, for programs that do not follow changes.

use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
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
    on_problem: impl FnMut(String),
    on_failure: impl FnMut(String) -> Result<(), String>,
) -> Result<Objects, String> {
    let (sender, updates) = mpsc::channel();
    let traffic = Traffic::new().map_err(|error| error.to_string())?;
    let cluster = Cluster::start(options, &traffic, move |update| {
        // It fails only after the last list was received.
        let _ = sender.send(update);
    });
    let _cluster = cluster.map_err(|error| error.to_string())?;
    collect(&updates, options.has_service_cidrs, on_problem, on_failure)
}

/// Receives updates until each list is complete. `awaits_service_cidrs` is whether ServiceCIDR objects are read too.
fn collect(
    updates: &Receiver<Update>,
    awaits_service_cidrs: bool,
    mut on_problem: impl FnMut(String),
    mut on_failure: impl FnMut(String) -> Result<(), String>,
) -> Result<Objects, String> {
    let mut objects = Objects::default();
    let mut has_service_cidrs = !awaits_service_cidrs;
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
            // A watch after the list.
            Some(Update::Failed { kind, .. }) if !missing.contains(&kind) => {}
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

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(kind: Kind) -> Update {
        Update::Failed {
            kind,
            problem: "refused".to_owned(),
            received: None,
        }
    }

    fn synced(kind: Kind) -> Update {
        Update::Changes(vec![Change::synced(kind)])
    }

    /// What is read after these updates, if the first failure is the last one.
    fn read(list: impl IntoIterator<Item = Update>) -> Result<Objects, String> {
        let (sender, updates) = mpsc::channel();
        for update in list {
            sender.send(update).unwrap();
        }
        drop(sender);
        collect(&updates, false, |_| {}, Err)
    }

    #[test]
    fn only_a_kind_whose_list_is_not_complete_can_fail() {
        let [first, second, third] = [Kind::Service, Kind::EndpointSlice, Kind::Node];
        let objects = read([
            synced(first),
            failed(first),
            synced(second),
            failed(first),
            synced(third),
        ]);
        let changes = [first, second, third].map(Change::synced).to_vec();
        assert_eq!(objects.unwrap().changes, changes);
        let objects = read([synced(first), failed(second), synced(second), synced(third)]);
        assert_eq!(objects, Err("EndpointSlice: refused".to_owned()));
    }
}
