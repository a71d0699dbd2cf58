//! What the API server delivered, until the proxier receives it.

use std::collections::BTreeSet;
use std::time::Instant;

use ipnet::IpNet;
use kernlink_services::escape::excerpt_of;
use kernlink_services::{Change, Kind};

use crate::cluster::{Problems, SERVICE_CIDRS_TIMEOUT, Update};
use crate::pending::Pending;

/// The largest number of invalid fields of one update that have a line each.
pub(crate) const MAX_PROBLEMS: usize = 20;
/// The longest text about one of them, in bytes.
const MAX_PROBLEM: usize = 1_000;

/// What the API server delivered, and what is wrong with it.
#[derive(Debug, Default)]
pub(crate) struct ClusterObjects {
    changes: Pending,
    /// The kinds whose first list was received.
    synced: BTreeSet<Kind>,
    /// The kinds that cannot be read, and why, in the order in which they failed.
    failed: Vec<(Kind, String)>,
    /// Whether a kind was read again since the last line about one that cannot be read: what the log says of the others is then not true of it.
    has_recovered: bool,
    /// What the Node lacks, as long as its kind is not synced.
    node: Option<String>,
    /// Whether ServiceCIDR objects are read.
    has_service_cidrs: bool,
    /// The networks of all of them, as they were delivered.
    service_cidrs: Option<Vec<IpNet>>,
    /// Whether the server answered a request for them, also with a refusal.
    are_service_cidrs_answered: bool,
    /// Since when the first lists of all kinds are known.
    complete_since: Option<Instant>,
    /// Whether they were delivered since the last call of `take_service_cidrs`.
    has_new_service_cidrs: bool,
}

impl ClusterObjects {
    /// Nothing was delivered yet. `has_service_cidrs` is whether ServiceCIDR objects are read too.
    pub(crate) fn new(has_service_cidrs: bool) -> Self {
        Self {
            has_service_cidrs,
            ..Self::default()
        }
    }

    /// Logs what is wrong, and keeps changes.
    pub(crate) fn receive(&mut self, update: Update) {
        match update {
            Update::Changes(changes) => {
                for kind in KINDS {
                    if changes.contains(&Change::synced(kind)) {
                        self.synced.insert(kind);
                    }
                }
                if self.synced.contains(&Kind::Node) {
                    self.node = None;
                }
                if self.synced.len() == KINDS.len() {
                    self.complete_since.get_or_insert_with(Instant::now);
                }
                self.changes.extend(changes);
            }
            Update::Invalid(problems) => {
                for problem in problems.texts.iter().take(MAX_PROBLEMS) {
                    tracing::error!("{}; it stays as it was", excerpt_of(problem, MAX_PROBLEM));
                }
                if let Some(others) = others(&problems) {
                    tracing::error!("{others} more invalid fields; their objects stay as they were");
                }
            }
            Update::Ignored(problems) => {
                for problem in problems.texts.iter().take(MAX_PROBLEMS) {
                    tracing::warn!(
                        "{}; the rest of the object is used",
                        excerpt_of(problem, MAX_PROBLEM)
                    );
                }
                if let Some(others) = others(&problems) {
                    tracing::warn!(
                        "{others} more invalid parts or unknown values; the rest of their objects is used"
                    );
                }
            }
            Update::Failed { kind, problem, .. } => {
                if self.fail(kind, &problem) {
                    tracing::error!(%kind, "cannot be read from the API server, what is known stays: {problem}; tried again");
                } else {
                    tracing::debug!(%kind, "cannot be read from the API server for the same reason: {problem}");
                }
            }
            Update::Recovered(kind) => {
                let rest = self.recover(kind);
                tracing::info!(%kind, "read from the API server again{rest}");
            }
            Update::Node(problem) => {
                tracing::warn!("{problem}");
                // It may be taken after a change that was sent later.
                if !self.synced.contains(&Kind::Node) {
                    self.node = Some(problem);
                }
            }
            Update::ServiceCidrs(networks) => {
                tracing::debug!(?networks, "the networks of the ServiceCIDR objects");
                self.service_cidrs = Some(networks);
                self.are_service_cidrs_answered = true;
                self.has_new_service_cidrs = true;
            }
            Update::ServiceCidrsFailed(Some(problem)) => {
                self.are_service_cidrs_answered = true;
                tracing::warn!(
                    "ServiceCIDR objects cannot be read, what is known stays: {problem}; tried again"
                );
            }
            Update::ServiceCidrsFailed(None) => tracing::info!("ServiceCIDR objects are read again"),
            Update::Ended => {}
        }
    }

    /// The networks of the ServiceCIDR objects, if others were delivered since the last call.
    pub(crate) fn take_service_cidrs(&mut self) -> Option<Vec<IpNet>> {
        let is_new = std::mem::take(&mut self.has_new_service_cidrs);
        self.service_cidrs.clone().filter(|_| is_new)
    }

    /// Whether the first list of ServiceCIDR objects, or a failure of it, is awaited.
    fn awaits_service_cidrs(&self) -> bool {
        let is_early = self
            .complete_since
            .is_none_or(|since| since.elapsed() < SERVICE_CIDRS_TIMEOUT);
        self.has_service_cidrs && !self.are_service_cidrs_answered && is_early
    }

    /// A kind cannot be read. Returns whether the log does not say so yet: of kinds that fail for one cause, such as a server that cannot be
    /// reached, it has one line.
    fn fail(&mut self, kind: Kind, problem: &str) -> bool {
        self.failed.retain(|(failed, _)| *failed != kind);
        let is_known = self.failed.iter().any(|(_, known)| known == problem);
        self.failed.push((kind, problem.to_owned()));
        let has_recovered = std::mem::take(&mut self.has_recovered);
        !is_known || has_recovered
    }

    /// A kind was read again. Returns which others were not: the log may not have named them.
    fn recover(&mut self, kind: Kind) -> String {
        self.failed.retain(|(failed, _)| *failed != kind);
        self.has_recovered = !self.failed.is_empty();
        let others: Vec<String> = self.failed.iter().map(|(kind, _)| kind.to_string()).collect();
        if others.is_empty() {
            return String::new();
        }
        format!("; not yet: {}", others.join(", "))
    }

    /// Which first lists were received, for the operator.
    pub(crate) fn progress(&self) -> String {
        let (synced, awaited): (Vec<_>, Vec<_>) = KINDS.iter().partition(|kind| self.synced.contains(kind));
        let names = |kinds: &[&Kind]| {
            let names: Vec<String> = kinds.iter().map(ToString::to_string).collect();
            names.join(", ")
        };
        match (synced.as_slice(), awaited.as_slice()) {
            (_, []) if self.awaits_service_cidrs() => "waiting for the first list of ServiceCIDR".to_owned(),
            (_, []) => "the first lists were received; the first sync follows".to_owned(),
            ([], awaited) => format!("waiting for the first lists of {}", names(awaited)),
            (synced, awaited) => format!(
                "waiting for the first lists of {}; received: {}",
                names(awaited),
                names(synced)
            ),
        }
    }

    /// The changes since the last call.
    pub(crate) fn take(&mut self) -> Vec<Change> {
        self.changes.take()
    }

    /// Whether a kind cannot be read.
    pub(crate) fn has_failed(&self) -> bool {
        !self.failed.is_empty()
    }

    /// Whether the first list of every kind was received.
    ///
    /// # Errors
    /// The reason, if there is one other than that it takes time.
    pub(crate) fn may_start(&self) -> Result<(), Option<String>> {
        if self.synced.len() == KINDS.len() && !self.awaits_service_cidrs() {
            return Ok(());
        }
        let failed = self.failed.first();
        Err(match (failed, &self.node) {
            (Some((kind, problem)), _) => Some(format!("{kind} objects cannot be read: {problem}")),
            (None, Some(problem)) => Some(problem.clone()),
            (None, None) => None,
        })
    }
}

/// The kinds that are read from an API server.
pub(crate) const KINDS: [Kind; 3] = [Kind::Service, Kind::EndpointSlice, Kind::Node];

/// The number of problems that have no line of their own.
fn others(problems: &Problems) -> Option<usize> {
    let others = problems.texts.len().saturating_sub(MAX_PROBLEMS) + problems.others;
    (others > 0).then_some(others)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kind_that_failed_first_is_the_reason_until_it_is_read_again() {
        let mut objects = ClusterObjects::default();
        let problem = || "refused".to_owned();
        for kind in [Kind::Node, Kind::Service] {
            objects.receive(Update::Failed {
                kind,
                problem: problem(),
                received: None,
            });
            let reason = Some("Node objects cannot be read: refused".to_owned());
            assert_eq!(objects.may_start(), Err(reason));
        }
        objects.receive(Update::Recovered(Kind::Node));
        let reason = Some("Service objects cannot be read: refused".to_owned());
        assert_eq!(objects.may_start(), Err(reason));
    }

    #[test]
    fn the_progress_names_the_first_lists_that_are_missing() {
        let mut objects = ClusterObjects::default();
        let waiting = "waiting for the first lists of Service, EndpointSlice, Node";
        assert_eq!(objects.progress(), waiting);
        objects.receive(Update::Changes(vec![Change::synced(Kind::Node)]));
        let waiting = "waiting for the first lists of Service, EndpointSlice; received: Node";
        assert_eq!(objects.progress(), waiting);
    }

    #[test]
    fn kinds_that_fail_for_one_reason_are_logged_once_and_none_is_lost_when_another_is_read_again() {
        let mut objects = ClusterObjects::default();
        assert!(objects.fail(Kind::Service, "refused"));
        assert!(!objects.fail(Kind::EndpointSlice, "refused"));
        assert!(!objects.fail(Kind::Node, "refused"));
        assert!(objects.fail(Kind::Node, "forbidden"));
        assert_eq!(objects.recover(Kind::Service), "; not yet: EndpointSlice, Node");
        assert!(
            objects.fail(Kind::Service, "refused"),
            "the log says that it is read"
        );
        assert!(!objects.fail(Kind::Node, "refused"));
        assert_eq!(objects.recover(Kind::EndpointSlice), "; not yet: Service, Node");
        assert_eq!(objects.recover(Kind::Service), "; not yet: Node");
        assert_eq!(objects.recover(Kind::Node), "");
        assert!(objects.fail(Kind::Service, "refused"));
        assert!(!objects.fail(Kind::Node, "refused"));
    }

    #[test]
    fn a_sync_may_start_when_the_networks_of_cluster_ips_are_known_too() {
        let mut objects = ClusterObjects::new(true);
        objects.receive(Update::Changes(KINDS.map(Change::synced).into()));
        assert_eq!(objects.may_start(), Err(None));
        assert_eq!(objects.progress(), "waiting for the first list of ServiceCIDR");
        // It is not served, or cannot be read: it has no networks.
        objects.receive(Update::ServiceCidrs(Vec::new()));
        assert_eq!(objects.may_start(), Ok(()));
        assert_eq!(objects.take_service_cidrs(), Some(Vec::new()));
        assert_eq!(objects.take_service_cidrs(), None);
        // A server that does not answer does not hold up the start for long.
        let mut objects = ClusterObjects::new(true);
        objects.receive(Update::Changes(KINDS.map(Change::synced).into()));
        assert_eq!(objects.may_start(), Err(None));
        objects.complete_since = Instant::now().checked_sub(SERVICE_CIDRS_TIMEOUT);
        assert_eq!(objects.may_start(), Ok(()));
        let networks = vec!["10.96.0.0/12".parse().unwrap()];
        objects.receive(Update::ServiceCidrs(networks.clone()));
        objects.receive(Update::ServiceCidrsFailed(Some("forbidden".to_owned())));
        assert_eq!(objects.take_service_cidrs(), Some(networks));
        assert_eq!(objects.take_service_cidrs(), None);
    }

    #[test]
    fn what_the_node_lacked_is_no_reason_after_it_was_synced() {
        let mut objects = ClusterObjects::default();
        let lacks = "waiting: the Node n has no address";
        objects.receive(Update::Node(lacks.to_owned()));
        objects.receive(Update::Changes(vec![Change::synced(Kind::Service)]));
        assert_eq!(objects.may_start(), Err(Some(lacks.to_owned())));
        objects.receive(Update::Changes(vec![Change::synced(Kind::Node)]));
        assert_eq!(objects.may_start(), Err(None));
        objects.receive(Update::Node(lacks.to_owned()));
        assert_eq!(objects.may_start(), Err(None));
    }

    #[test]
    fn a_sync_may_start_when_all_kinds_were_listed() {
        let mut objects = ClusterObjects::default();
        assert_eq!(objects.may_start(), Err(None));
        objects.receive(Update::Node("waiting: the Node n does not exist".to_owned()));
        let waiting = Some("waiting: the Node n does not exist".to_owned());
        assert_eq!(objects.may_start(), Err(waiting));
        objects.receive(Update::Failed {
            kind: Kind::Service,
            problem: "forbidden".to_owned(),
            received: None,
        });
        let failed = Some("Service objects cannot be read: forbidden".to_owned());
        assert_eq!(objects.may_start(), Err(failed));
        objects.receive(Update::Recovered(Kind::Service));
        for kind in KINDS {
            assert!(objects.may_start().is_err());
            objects.receive(Update::Changes(vec![Change::synced(kind)]));
        }
        assert_eq!(objects.may_start(), Ok(()));
        assert_eq!(objects.take().len(), 3);
        assert!(objects.take().is_empty());
    }
}
