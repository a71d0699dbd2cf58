//! One change of a kernel object: what one of the kernel APIs takes.

use std::fmt;

/// What a step does, by kernel API.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Operation {
    /// Writes a sysctl.
    Sysctl(SysctlOperation),
    /// Changes the dummy link or its addresses.
    Link(kernlink_dummylink::Operation),
    /// Changes a set or its entries.
    Set(kernlink_ipset::Operation),
    /// Writes chains, rules or jumps of one family.
    Rules(Box<kernlink_iptables_restore::Operation>),
    /// Changes a virtual server or a real server.
    Ipvs(kernlink_ipvs::Operation),
}

/// The kernel API that executes an operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Api {
    Sysctl,
    Link,
    Set,
    Rules,
    Ipvs,
}

impl Operation {
    pub(super) fn api(&self) -> Api {
        match self {
            Operation::Sysctl(_) => Api::Sysctl,
            Operation::Link(_) => Api::Link,
            Operation::Set(_) => Api::Set,
            Operation::Rules(_) => Api::Rules,
            Operation::Ipvs(_) => Api::Ipvs,
        }
    }
}

/// The writing of one sysctl.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SysctlOperation {
    /// The name as `sysctl` takes it, such as `net.ipv4.vs.conntrack`. A parameter of a module is named by its path.
    pub name: Box<str>,
    /// The value as it is written.
    pub value: Box<str>,
}

impl From<SysctlOperation> for Operation {
    fn from(operation: SysctlOperation) -> Self {
        Operation::Sysctl(operation)
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

impl fmt::Display for Operation {
    /// The command that does the same. A restore is followed by its standard input.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Operation::Sysctl(operation) => operation.fmt(f),
            Operation::Link(operation) => write!(f, "ip {operation}"),
            Operation::Set(operation) => write!(f, "ipset {operation}"),
            Operation::Rules(operation) => operation.fmt(f),
            Operation::Ipvs(operation) => write!(f, "ipvsadm {operation}"),
        }
    }
}

impl fmt::Display for SysctlOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.name.starts_with('/') {
            write!(f, "echo {} > {}", self.value, self.name)
        } else {
            write!(f, "sysctl -w {}={}", self.name, self.value)
        }
    }
}
