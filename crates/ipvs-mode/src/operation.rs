//! `Operation`: one change of a kernel object, executed by one of the kernel APIs.

use std::fmt;

use kernlink_host::DeleteFlows;

use super::replacement::Replacement;
use super::sysctls::Sysctl;

/// A change of a kernel object.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Operation {
    /// Writes a sysctl.
    Sysctl(Sysctl),
    /// Changes the dummy link or its addresses.
    Link(kernlink_dummylink::Operation),
    /// Changes a set or its entries.
    Set(kernlink_ipset::Operation),
    /// Replaces a set by one with other parameters.
    ReplaceSet(Box<Replacement>),
    /// Writes chains, rules or jumps of one family.
    Rules(Box<kernlink_iptables_restore::Operation>),
    /// Changes a virtual server or a real server.
    Ipvs(kernlink_ipvs::Operation),
    /// Deletes stale UDP flows of one family.
    Flows(DeleteFlows),
}

/// The kernel API that executes an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Api {
    Sysctl,
    Link,
    Set,
    ReplaceSet,
    Rules,
    Ipvs,
    Flows,
}

impl Operation {
    pub(super) fn api(&self) -> Api {
        match self {
            Operation::Sysctl(_) => Api::Sysctl,
            Operation::Link(_) => Api::Link,
            Operation::Set(_) => Api::Set,
            Operation::ReplaceSet(_) => Api::ReplaceSet,
            Operation::Rules(_) => Api::Rules,
            Operation::Ipvs(_) => Api::Ipvs,
            Operation::Flows(_) => Api::Flows,
        }
    }
}

impl From<Sysctl> for Operation {
    fn from(sysctl: Sysctl) -> Self {
        Operation::Sysctl(sysctl)
    }
}

impl From<kernlink_dummylink::Operation> for Operation {
    fn from(operation: kernlink_dummylink::Operation) -> Self {
        Operation::Link(operation)
    }
}

impl From<kernlink_ipset::Operation> for Operation {
    fn from(operation: kernlink_ipset::Operation) -> Self {
        Operation::Set(operation)
    }
}

impl From<Replacement> for Operation {
    fn from(replacement: Replacement) -> Self {
        Operation::ReplaceSet(Box::new(replacement))
    }
}

impl From<kernlink_iptables_restore::Operation> for Operation {
    fn from(operation: kernlink_iptables_restore::Operation) -> Self {
        Operation::Rules(Box::new(operation))
    }
}

impl From<kernlink_ipvs::Operation> for Operation {
    fn from(operation: kernlink_ipvs::Operation) -> Self {
        Operation::Ipvs(operation)
    }
}

impl From<DeleteFlows> for Operation {
    fn from(operation: DeleteFlows) -> Self {
        Operation::Flows(operation)
    }
}

impl fmt::Display for Operation {
    /// The equivalent command. A restore of rules or of a set is followed by its standard input. The deletion of flows has no equivalent
    /// command and is a comment.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Operation::Sysctl(sysctl) if sysctl.name.starts_with('/') => {
                write!(f, "echo {} > {}", sysctl.value, sysctl.name)
            }
            Operation::Sysctl(sysctl) => write!(f, "sysctl -w {}={}", sysctl.name, sysctl.value),
            Operation::Link(operation) => write!(f, "ip {operation}"),
            Operation::Set(operation) => write!(f, "ipset {operation}"),
            Operation::ReplaceSet(replacement) => write!(f, "ipset {replacement}"),
            Operation::Rules(operation) => operation.fmt(f),
            Operation::Ipvs(operation) => write!(f, "ipvsadm {operation}"),
            Operation::Flows(operation) => operation.fmt(f),
        }
    }
}
