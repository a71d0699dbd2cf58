//! What the API server delivered, until the proxier receives it.

use std::collections::{BTreeMap, BTreeSet};

use kernlink_services::{Change, Kind};

use crate::cluster::Update;
use crate::pending::Pending;

/// What the API server delivered, and what is wrong with it.
#[derive(Debug, Default)]
pub(crate) struct ClusterObjects {
    changes: Pending,
    /// The kinds whose first list was received.
    synced: BTreeSet<Kind>,
    /// Why a kind cannot be read.
    failed: BTreeMap<Kind, String>,
    /// What the Node lacks.
    node: Option<String>,
}

impl ClusterObjects {
    /// Logs what is wrong, and keeps changes.
    pub(crate) fn receive(&mut self, update: Update) {
        match update {
            Update::Changes(changes) => {
                for kind in KINDS {
                    if changes.contains(&Change::synced(kind)) {
                        self.synced.insert(kind);
                    }
                }
                self.changes.extend(changes);
            }
            Update::Invalid(problems) => {
                for problem in problems {
                    tracing::error!("{problem}; it stays as it was");
                }
            }
            Update::Failed { kind, problem } => {
                tracing::error!(%kind, "cannot be read from the API server, what is known stays: {problem}; tried again");
                self.failed.insert(kind, problem);
            }
            Update::Recovered(kind) => {
                tracing::info!(%kind, "read from the API server again");
                self.failed.remove(&kind);
            }
            Update::Node(problem) => {
                tracing::warn!("{problem}");
                self.node = Some(problem);
            }
            Update::Ended => {}
        }
    }

    /// The changes since the last call.
    pub(crate) fn take(&mut self) -> Vec<Change> {
        self.changes.take()
    }

    /// Whether the first list of every kind was received.
    ///
    /// # Errors
    /// The reason, if there is one other than that it takes time.
    pub(crate) fn may_start(&self) -> Result<(), Option<String>> {
        if self.synced.len() == KINDS.len() {
            return Ok(());
        }
        let failed = self.failed.iter().next();
        Err(match (failed, &self.node) {
            (Some((kind, problem)), _) => Some(format!("{kind} objects cannot be read: {problem}")),
            (None, Some(problem)) => Some(problem.clone()),
            (None, None) => None,
        })
    }
}

const KINDS: [Kind; 3] = [Kind::Service, Kind::EndpointSlice, Kind::Node];

#[cfg(test)]
mod tests {
    use super::*;

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
