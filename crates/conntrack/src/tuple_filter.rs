//! Conditions on one tuple.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::port_range::PortRange;
use crate::tuple::{ProtocolPart, Tuple};

/// Conditions on one tuple of a flow.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct TupleFilter {
    /// The source address is in this network. The kernel compares whole addresses only.
    pub source: Option<IpNet>,
    /// The destination address is in this network.
    pub destination: Option<IpNet>,
    /// Source port (or GRE key); flows without ports do not match. The kernel does not compare ranges.
    pub source_port: Option<PortRange>,
    /// Destination port (or GRE key); flows without ports do not match.
    pub destination_port: Option<PortRange>,
    /// ICMP type; flows of other protocols do not match.
    pub icmp_type: Option<u8>,
    /// ICMP code; flows of other protocols do not match.
    pub icmp_code: Option<u8>,
    /// ICMP identifier; flows of other protocols do not match.
    pub icmp_identifier: Option<u16>,
}

impl TupleFilter {
    /// Conditions that every tuple fulfils.
    #[must_use]
    pub fn new() -> Self {
        TupleFilter::default()
    }

    /// Requires a source address in this network.
    #[must_use]
    pub fn with_source(mut self, network: impl Into<IpNet>) -> Self {
        self.source = Some(network.into());
        self
    }

    /// Requires a destination address in this network.
    #[must_use]
    pub fn with_destination(mut self, network: impl Into<IpNet>) -> Self {
        self.destination = Some(network.into());
        self
    }

    /// Requires a source port, or one of a range.
    #[must_use]
    pub fn with_source_port(mut self, port: impl Into<PortRange>) -> Self {
        self.source_port = Some(port.into());
        self
    }

    /// Requires a destination port, or one of a range.
    #[must_use]
    pub fn with_destination_port(mut self, port: impl Into<PortRange>) -> Self {
        self.destination_port = Some(port.into());
        self
    }

    /// The conditions that both have in common.
    pub(crate) fn common(self, other: TupleFilter) -> TupleFilter {
        fn same<T: PartialEq>(one: Option<T>, other: Option<T>) -> Option<T> {
            one.filter(|one| other.as_ref() == Some(one))
        }
        TupleFilter {
            source: same(self.source, other.source),
            destination: same(self.destination, other.destination),
            source_port: same(self.source_port, other.source_port),
            destination_port: same(self.destination_port, other.destination_port),
            icmp_type: same(self.icmp_type, other.icmp_type),
            icmp_code: same(self.icmp_code, other.icmp_code),
            icmp_identifier: same(self.icmp_identifier, other.icmp_identifier),
        }
    }

    /// Whether a tuple fulfils every condition.
    #[must_use]
    pub fn matches(&self, tuple: &Tuple) -> bool {
        fn inside(network: &Option<IpNet>, address: &IpAddr) -> bool {
            network.as_ref().is_none_or(|network| network.contains(address))
        }
        let ports = match tuple.part {
            ProtocolPart::Ports { source, destination } => [Some(source), Some(destination)],
            _ => [None; 2],
        };
        let icmp = match tuple.part {
            ProtocolPart::Icmp {
                kind,
                code,
                identifier,
            } => Some((kind, code, identifier)),
            _ => None,
        };
        let [source_port, destination_port] = ports;
        let in_range = |range: Option<PortRange>, port: Option<u16>| {
            range.is_none_or(|range| port.is_some_and(|port| range.contains(port)))
        };
        inside(&self.source, &tuple.source)
            && inside(&self.destination, &tuple.destination)
            && in_range(self.source_port, source_port)
            && in_range(self.destination_port, destination_port)
            && (self.icmp_type.is_none() || self.icmp_type == icmp.map(|icmp| icmp.0))
            && (self.icmp_code.is_none() || self.icmp_code == icmp.map(|icmp| icmp.1))
            && (self.icmp_identifier.is_none() || self.icmp_identifier == icmp.map(|icmp| icmp.2))
    }
}
