//! The names of ports of Services.

use std::fmt::{self, Write};
use std::sync::Arc;

use kernlink_base::Family;

use crate::escape::EscapeWriter;
use crate::source::{ObjectName, Protocol};

/// Identifies a port of a Service: namespace, name, port name and protocol.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServicePortName {
    /// The Service.
    pub service: ObjectName,
    /// The name of the port; empty for a port without a name.
    pub port: Arc<str>,
    /// The protocol.
    pub protocol: Protocol,
}

impl fmt::Display for ServicePortName {
    /// `namespace/name:port`, or `namespace/name` if the port has no name. The protocol is not printed.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.port.is_empty() {
            self.service.fmt(f)
        } else {
            write!(EscapeWriter(f), "{}:{}", self.service, self.port)
        }
    }
}

/// Identifies a port of a Service in one family.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ServicePortKey {
    /// The port.
    pub name: ServicePortName,
    /// The family.
    pub family: Family,
}

impl fmt::Display for ServicePortKey {
    /// `namespace/name:port (IPv4)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.name, self.family)
    }
}
