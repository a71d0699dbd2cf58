//! `Operation`: one change of sockets or rules.

use std::fmt;

use kernlink_host::DeleteFlows;
use kernlink_iptables_restore::{Operation as RulesOperation, Restore};
use kernlink_services::Family;

use super::chains::PortalChain;
use super::key::Key;
use super::state::PresentRules;
use crate::proxy::{ListenerKey, Serving};

/// A change of sockets or rules.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum Operation {
    /// Opens a listening port, or changes what an open one serves.
    Listen {
        /// The protocol, address and port.
        key: ListenerKey,
        /// The portal, for display.
        portal: Box<str>,
        /// What it serves.
        serving: Serving,
    },
    /// Closes a listening port.
    Close(ListenerKey),
    /// Keeps a port free of other programs.
    Claim(ListenerKey),
    /// Releases a claim.
    Release(ListenerKey),
    /// Writes chains and rules of one table. Consecutive ones of a family and table are passed to one `iptables-restore`.
    Write(Box<Write>),
    /// Deletes stale UDP flows from connection tracking.
    DeleteFlows(DeleteFlows),
}

/// Chains and rules of one table that are written together.
#[derive(Clone, Debug, PartialEq)]
pub struct Write {
    /// The input of `iptables-restore`.
    pub restore: Restore,
    pub(super) key: Key,
    /// The rules of the key after it.
    pub(super) rules: PresentRules,
    /// The chains that it creates or empties.
    pub(super) chains: Vec<PortalChain>,
    /// The chains whose jumps it adds.
    pub(super) jumps: Vec<PortalChain>,
}

impl Write {
    /// The family.
    #[must_use]
    pub fn family(&self) -> Family {
        self.restore.family
    }
}

impl From<Write> for Operation {
    fn from(write: Write) -> Self {
        Operation::Write(Box::new(write))
    }
}

impl From<DeleteFlows> for Operation {
    fn from(pass: DeleteFlows) -> Self {
        Operation::DeleteFlows(pass)
    }
}

impl fmt::Display for Operation {
    /// The equivalent command for rules, a description for sockets. A restore is followed by its standard input.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Operation::Listen { key, portal, serving } => {
                write!(f, "listen {key} for {portal}, endpoints")?;
                if serving.backends.is_empty() {
                    f.write_str(" none")?;
                }
                for backend in &serving.backends {
                    write!(f, " {}", backend.address)?;
                    if backend.weight != 1 {
                        write!(f, "*{}", backend.weight)?;
                    }
                }
                if let Some(affinity) = serving.affinity {
                    write!(f, ", affinity {} s", affinity.timeout.as_secs())?;
                }
                if !serving.source_ranges.is_empty() {
                    f.write_str(", sources")?;
                    for range in serving.source_ranges.iter() {
                        write!(f, " {range}")?;
                    }
                }
                Ok(())
            }
            Operation::Close(key) => write!(f, "close {key}"),
            Operation::Claim(key) => write!(f, "claim {key}"),
            Operation::Release(key) => write!(f, "release {key}"),
            Operation::Write(write) => RulesOperation::Restore(write.restore.clone()).fmt(f),
            Operation::DeleteFlows(pass) => pass.fmt(f),
        }
    }
}
