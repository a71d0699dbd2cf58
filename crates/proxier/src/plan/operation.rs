//! One operation of a plan: exactly what one of the backends takes.

use std::fmt;

/// What a step does, for one of the backends.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Operation {
    /// Writes a kernel setting.
    Setting(SettingOperation),
    /// Changes the dummy link or its addresses.
    Link(kernlink_dummylink::Operation),
    /// Changes a set or its entries.
    Set(kernlink_ipset::Operation),
    /// Loads chains, rules and jumps of one family.
    Rules(Box<kernlink_iptables_restore::Operation>),
    /// Changes a virtual server or a real server.
    Ipvs(kernlink_ipvs::Operation),
}

/// Writing of one kernel setting.
#[doc(alias = "sysctl")]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettingOperation {
    /// The name as `sysctl` takes it, `net.ipv4.vs.conntrack`; a module's parameter is named by its path.
    pub name: Box<str>,
    /// The value, as it is written.
    pub value: Box<str>,
}

impl From<SettingOperation> for Operation {
    fn from(operation: SettingOperation) -> Self {
        Operation::Setting(operation)
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
    /// The command that does the same. That of rules is followed by its standard input.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Operation::Setting(operation) => operation.fmt(f),
            Operation::Link(operation) => write!(f, "ip {operation}"),
            Operation::Set(operation) => write!(f, "ipset {operation}"),
            Operation::Rules(operation) => operation.fmt(f),
            Operation::Ipvs(operation) => write!(f, "ipvsadm {operation}"),
        }
    }
}

impl fmt::Display for SettingOperation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.name.starts_with('/') {
            write!(f, "echo {} > {}", self.value, self.name)
        } else {
            write!(f, "sysctl -w {}={}", self.name, self.value)
        }
    }
}

impl Operation {
    /// The operation in one line: of rules only the command, without its standard input.
    #[must_use]
    pub fn summary(&self) -> String {
        let text = self.to_string();
        text.lines().next().unwrap_or_default().to_owned()
    }
}
