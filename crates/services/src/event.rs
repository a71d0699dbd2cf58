//! What a service proxy has to tell an operator about the objects it was given.

use std::fmt::{self, Write};
use std::net::IpAddr;

use kernlink_base::Family;

use crate::escape::EscapeWriter;
use crate::model::{FrontendKind, ServicePortName};
use crate::source::{Kind, ObjectName, Protocol, SourceId};

/// Something about one object, or about the configuration, that is not as its author may expect.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Event {
    /// What it is about.
    pub subject: Subject,
    /// What is not as expected, and what is done about it.
    pub reason: Reason,
}

/// What an [`Event`] is about.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Subject {
    /// An object.
    Object(Kind, ObjectName),
    /// The configuration.
    Configuration,
    /// The kernel, or a tool that programs it.
    Host,
}

/// The reason of an [`Event`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Reason {
    /// Two sources have an object of this name; the one with the lower id counts.
    MultipleSources {
        /// The source whose object counts.
        effective: SourceId,
        /// The source whose object does not.
        ignored: SourceId,
    },
    /// One list of a source has several objects of this name; the last one counts.
    DuplicateObject {
        /// The source.
        source: SourceId,
    },
    /// A field has a value that cannot be used.
    Invalid {
        /// The path of the field.
        field: String,
        /// The value as written.
        value: String,
        /// What is wrong, and what is done instead.
        problem: String,
    },
    /// An address is of a family that the Service has no cluster IP of, or that this field may not have here.
    FamilyMismatch {
        /// The path of the field.
        field: String,
        /// The address.
        address: IpAddr,
    },
    /// `loadBalancerSourceRanges` has ranges, but none that can be used in this family, which restricts nothing in it.
    NoSourceRange(Family),
    /// A source range of prefix length 0 lets everybody in, whatever the other ranges.
    SourceRangeAdmitsAll(Family),
    /// A virtual IP is an address of another node; serving it here would cut that node off.
    AddressOfOtherNode {
        /// The virtual IP.
        address: IpAddr,
        /// The node that has it.
        node: ObjectName,
    },
    /// A virtual IP that no Service may have.
    UnusableVirtualIp {
        /// The virtual IP.
        address: IpAddr,
        /// Why.
        scope: AddressScope,
    },
    /// An endpoint has an address that none can have; it is left out.
    UnusableEndpoint {
        /// The address.
        address: IpAddr,
        /// Why not.
        scope: AddressScope,
    },
    /// An endpoint has an address of another family than the slice; it is left out.
    EndpointFamilyMismatch {
        /// The address.
        address: IpAddr,
        /// The family of the slice.
        family: Family,
    },
    /// A port of a slice has no name, not even an empty one, so it belongs to no port of the Service.
    EndpointPortWithoutName {
        /// Its position in `ports`, from 0.
        position: usize,
    },
    /// A port of a slice has no number, so no endpoint has it.
    EndpointPortWithoutNumber {
        /// Its position in `ports`, from 0.
        position: usize,
    },
    /// An older Service owns this address, port and protocol.
    Conflict {
        /// The kind of the frontend that is left out.
        kind: FrontendKind,
        /// The address.
        address: IpAddr,
        /// The port.
        port: u16,
        /// The protocol.
        protocol: Protocol,
        /// The owner.
        owner: ServicePortName,
    },
    /// Another Service owns the health-check node port.
    HealthCheckConflict {
        /// The port.
        port: u16,
        /// The owner.
        owner: ObjectName,
    },
    /// `externalTrafficPolicy: Local` of a load balancer without a health-check node port.
    NoHealthCheckNodePort,
    /// No address of this node takes node ports in this family.
    NoNodePortAddress(Family),
    /// `nodePortAddresses` names no network of this family, so all addresses of it take node ports.
    NoNodePortNetwork(Family),
    /// `nodePortAddresses` is `primary`, and no address of this node is known, so no address accepts node ports.
    NodeAddressUnknown,
    /// Two ports of a Service are the same.
    DuplicatePort(ServicePortName),
    /// An option is given where it has no effect.
    OptionWithoutEffect {
        /// The annotation, or the field of the configuration.
        option: String,
        /// Why it has none.
        why: String,
    },
    /// An option works, with a consequence that is easily overlooked.
    OptionCaveat {
        /// The annotation.
        option: String,
        /// The consequence.
        consequence: String,
    },
    /// Reported by a data path, about how it serves the object.
    DataPath {
        /// Identifies the kind of event, such as `LocalPolicyFallsBack`; does not change between releases.
        code: &'static str,
        /// The message for the operator.
        text: String,
    },
}

/// Why an address can be neither a virtual IP nor an endpoint's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AddressScope {
    /// 127.0.0.0/8, ::1.
    Loopback,
    /// 169.254.0.0/16, fe80::/10.
    LinkLocal,
    /// 224.0.0.0/4, ff00::/8, and 255.255.255.255.
    Multicast,
    /// 0.0.0.0/8, ::.
    Unspecified,
}

impl AddressScope {
    /// Why this address can be neither, or `None` if it can.
    #[must_use]
    pub fn of(address: IpAddr) -> Option<Self> {
        if address.is_loopback() {
            return Some(AddressScope::Loopback);
        }
        if address.is_multicast() {
            return Some(AddressScope::Multicast);
        }
        match address {
            IpAddr::V4(v4) if v4.is_link_local() => Some(AddressScope::LinkLocal),
            IpAddr::V4(v4) if v4.is_broadcast() => Some(AddressScope::Multicast),
            // The whole of 0.0.0.0/8 means "this host on this network" (RFC 1122, 3.2.1.3).
            IpAddr::V4(v4) if v4.octets()[0] == 0 => Some(AddressScope::Unspecified),
            IpAddr::V6(v6) if v6.is_unicast_link_local() => Some(AddressScope::LinkLocal),
            IpAddr::V6(v6) if v6.is_unspecified() => Some(AddressScope::Unspecified),
            _ => None,
        }
    }
}

impl Event {
    /// An event about a Service.
    #[must_use]
    pub fn service(name: ObjectName, reason: Reason) -> Self {
        Self {
            subject: Subject::Object(Kind::Service, name),
            reason,
        }
    }

    /// An event about the kernel, or a tool that programs it.
    #[must_use]
    pub fn host(code: &'static str, text: impl Into<String>) -> Self {
        Self {
            subject: Subject::Host,
            reason: Reason::DataPath {
                code,
                text: text.into(),
            },
        }
    }

    /// An event about the configuration.
    #[must_use]
    pub fn configuration(reason: Reason) -> Self {
        Self {
            subject: Subject::Configuration,
            reason,
        }
    }
}

impl fmt::Display for Event {
    /// On one line, whatever the names in it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.subject, self.reason)
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Subject::Object(kind, name) => write!(f, "{kind} {name}"),
            Subject::Configuration => f.write_str("configuration"),
            Subject::Host => f.write_str("host"),
        }
    }
}

impl fmt::Display for Reason {
    /// On one line, whatever the names in it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut f = EscapeWriter(f);
        match self {
            Reason::DuplicateObject { source } => {
                write!(f, "{source} lists it more than once; the last one counts")
            }
            Reason::MultipleSources { effective, ignored } => {
                write!(f, "{ignored} has it as well as {effective}, whose object counts")
            }
            Reason::Invalid {
                field,
                value,
                problem,
            } => write!(f, "{field}: {value:?}: {problem}"),
            Reason::FamilyMismatch { field, address } => {
                let family = Family::of(*address);
                write!(
                    f,
                    "{field}: {address} is left out: the Service has no {family} cluster IP"
                )
            }
            Reason::NoSourceRange(family) => write!(
                f,
                "loadBalancerSourceRanges: no range is {family}, so {family} sources are not restricted"
            ),
            Reason::SourceRangeAdmitsAll(family) => {
                write!(
                    f,
                    "loadBalancerSourceRanges: a /0 range lets every {family} source in"
                )
            }
            Reason::AddressOfOtherNode { address, node } => write!(
                f,
                "{address} is an address of node {node}: it is not served, because that would cut the node off"
            ),
            Reason::UnusableVirtualIp { address, scope } => {
                write!(f, "{address} is {scope}: it is not served")
            }
            Reason::EndpointPortWithoutName { position } => write!(
                f,
                "ports[{position}].name: is missing, so no port of the Service leads to it (name: \"\" is the unnamed one)"
            ),
            Reason::EndpointPortWithoutNumber { position } => {
                write!(
                    f,
                    "ports[{position}].port: is missing or 0, so no port of the Service leads to it"
                )
            }
            Reason::EndpointFamilyMismatch { address, family } => {
                write!(f, "endpoints: {address} is not an {family} address: the endpoint is left out")
            }
            Reason::UnusableEndpoint { address, scope } => {
                write!(f, "endpoints: {address} is {scope}: the endpoint is left out")
            }
            Reason::Conflict {
                kind,
                address,
                port,
                protocol,
                owner,
            } => {
                let address = std::net::SocketAddr::new(*address, *port);
                write!(f, "{kind} {address}/{protocol} is left out: {owner} holds it")
            }
            Reason::HealthCheckConflict { port, owner } => {
                write!(f, "health-check node port {port} is left out: {owner} holds it")
            }
            Reason::NoHealthCheckNodePort => {
                f.write_str("healthCheckNodePort: is 0 although externalTrafficPolicy is Local")
            }
            Reason::NoNodePortAddress(family) => {
                write!(f, "nodePort: this node has no {family} address for node ports")
            }
            Reason::NoNodePortNetwork(family) => write!(
                f,
                "nodePortAddresses: no network is {family}, so all {family} addresses take node ports"
            ),
            Reason::NodeAddressUnknown => f.write_str(
                "nodePortAddresses: primary: no address of this node is known yet; no address accepts node ports",
            ),
            Reason::DuplicatePort(port) => {
                write!(f, "ports: {port} occurs twice; only the first is used")
            }
            Reason::OptionWithoutEffect { option, why } => write!(f, "{option}: has no effect: {why}"),
            Reason::OptionCaveat { option, consequence } => write!(f, "{option}: {consequence}"),
            Reason::DataPath { text, .. } => f.write_str(text),
        }
    }
}

impl fmt::Display for AddressScope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AddressScope::Loopback => "a loopback address",
            AddressScope::LinkLocal => "a link-local address",
            AddressScope::Multicast => "a multicast or broadcast address",
            AddressScope::Unspecified => "an unspecified address",
        })
    }
}
