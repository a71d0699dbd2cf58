//! Events: warnings and information for the operator about objects and the configuration.

use std::fmt::{self, Write};
use std::net::IpAddr;

use kernlink_base::Family;

use crate::escape::{EscapeWriter, MAX_TEXT, excerpt, excerpt_of};
use crate::model::annotation::{annotation_field, known_annotations};
use crate::model::{FrontendKind, ServicePortName};
use crate::source::{Kind, ObjectName, Protocol, SourceId};

/// A warning or information for the operator.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Event {
    /// The object, or other part, that the event is about.
    pub subject: Subject,
    /// What happened, and with which consequence.
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
    /// Two sources deliver an object of this name. The object of the source with the lower id is used.
    MultipleSources {
        /// The source whose object is used.
        effective: SourceId,
        /// The source whose object is ignored.
        ignored: SourceId,
    },
    /// A list of a source has several objects of this name. The last one is used.
    DuplicateObject {
        /// The source.
        source: SourceId,
    },
    /// A field has an invalid value.
    Invalid {
        /// The path of the field.
        field: String,
        /// The value as written; cut if it is long, see [`Reason::invalid`].
        value: String,
        /// What is valid, and what is used instead.
        problem: String,
    },
    /// The configuration does not permit what a Service requests. It is ignored.
    NotPermitted {
        /// The path of the field, or of the annotation.
        field: String,
        /// The reason, with the field of the configuration.
        why: String,
    },
    /// A Service has an annotation with the prefix `kernlink.io/` that does not exist.
    UnknownAnnotation {
        /// The name without the prefix.
        name: String,
    },
    /// The object has further events, which are not kept.
    Others {
        /// Their number.
        count: usize,
    },
    /// An external or load-balancer IP has a family in which the Service has no cluster IP. The address is not programmed.
    FamilyMismatch {
        /// The path of the field.
        field: String,
        /// The address.
        address: IpAddr,
    },
    /// `loadBalancerSourceRanges` is not empty but has no valid range of this family, so sources of the family are not restricted.
    NoSourceRange(Family),
    /// `loadBalancerSourceRanges` has a range of prefix length 0, so sources of this family are not restricted.
    SourceRangeAdmitsAll(Family),
    /// A virtual IP is an address of another node. It is not programmed, because that node would become unreachable from this one.
    AddressOfOtherNode {
        /// The virtual IP.
        address: IpAddr,
        /// The node that has it.
        node: ObjectName,
    },
    /// A virtual IP is not valid for a Service. It is not programmed.
    UnusableVirtualIp {
        /// The virtual IP.
        address: IpAddr,
        /// Why it is not valid.
        scope: AddressScope,
    },
    /// The address of an endpoint is not valid for an endpoint. The endpoint is ignored.
    UnusableEndpoint {
        /// The address.
        address: IpAddr,
        /// Why it is not valid.
        scope: AddressScope,
    },
    /// The address of an endpoint has another family than its EndpointSlice. The endpoint is ignored.
    EndpointFamilyMismatch {
        /// The address.
        address: IpAddr,
        /// The family of the slice.
        family: Family,
    },
    /// A port of an EndpointSlice has no name, so it does not belong to a port of the Service. The name of an unnamed port is the
    /// empty string.
    EndpointPortWithoutName {
        /// The position in `ports`, from 0.
        position: usize,
    },
    /// A port of an EndpointSlice has no number, or 0. It is ignored.
    EndpointPortWithoutNumber {
        /// The position in `ports`, from 0.
        position: usize,
    },
    /// Another service port owns this address, port and protocol. The frontend is not programmed.
    Conflict {
        /// The kind of the frontend that is not programmed.
        kind: FrontendKind,
        /// The address.
        address: IpAddr,
        /// The port.
        port: u16,
        /// The protocol.
        protocol: Protocol,
        /// The owner.
        owner: ServicePortName,
        /// Why the owner owns it.
        precedence: Precedence,
    },
    /// Another Service owns the health-check node port. It is not served for this Service.
    HealthCheckConflict {
        /// The port.
        port: u16,
        /// The owner.
        owner: ObjectName,
        /// Why the owner owns it.
        precedence: Precedence,
    },
    /// More service ports define an address, port and protocol of this Service than are reported in a [`Conflict`](Self::Conflict). The
    /// frontends are not programmed.
    MoreConflicts {
        /// The address.
        address: IpAddr,
        /// The port.
        port: u16,
        /// The protocol.
        protocol: Protocol,
        /// Their number, rounded down to a power of two.
        at_least: usize,
    },
    /// More Services have the health-check node port of this Service than are reported in a
    /// [`HealthCheckConflict`](Self::HealthCheckConflict). It is not served for them.
    MoreHealthCheckConflicts {
        /// The port.
        port: u16,
        /// Their number, rounded down to a power of two.
        at_least: usize,
    },
    /// A Service of type `LoadBalancer` with `externalTrafficPolicy: Local` has no health-check node port.
    NoHealthCheckNodePort,
    /// No address of this node in this family accepts node ports, except loopback addresses in modes that serve node ports at them.
    NoNodePortAddress(Family),
    /// `nodePortAddresses` has no network of this family, so all addresses of the family accept node ports.
    NoNodePortNetwork(Family),
    /// `nodePortAddresses` is `primary`, and the node has an address in another family only, so no address of this family accepts node ports.
    NoPrimaryAddress(Family),
    /// `nodePortAddresses` is `primary`, and no address of this node is known, so no address accepts node ports.
    NodeAddressUnknown,
    /// Two ports of a Service have the same name and protocol. The first one is used.
    DuplicatePort(ServicePortName),
    /// An option of a Service or of the configuration has no effect.
    OptionWithoutEffect {
        /// The annotation, or the field of the configuration.
        option: String,
        /// The reason.
        why: String,
    },
    /// An option has a consequence that is easily overlooked.
    OptionCaveat {
        /// The annotation.
        option: String,
        /// The consequence.
        consequence: String,
    },
    /// An event of a data path.
    DataPath {
        /// Identifies the kind of event, such as `LocalPolicyFallsBack`; does not change between releases.
        code: &'static str,
        /// The message for the operator.
        text: String,
    },
}

/// Why a service port owns what another one defines too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Precedence {
    /// The owner has it as a frontend of this kind, which takes precedence, see [`FrontendKind::precedence`].
    Kind(FrontendKind),
    /// The Service of the owner is older.
    Age,
    /// The Services are of equal age, and the owner has the lower namespace, name, port name or protocol.
    Name,
    /// The owner is the same service port, and has it as a frontend of this kind with another traffic policy or forwarding method.
    SamePort(FrontendKind),
}

impl fmt::Display for Precedence {
    /// The end of "is already used by NAME".
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Precedence::Kind(kind) => write!(f, " as {kind}, which takes precedence"),
            Precedence::Age => f.write_str(", which is older"),
            Precedence::Name => f.write_str(", which is as old and has the lower name"),
            Precedence::SamePort(kind) => {
                write!(f, " as {kind} with another traffic policy or forwarding method")
            }
        }
    }
}

/// The scopes of addresses that are valid neither for a virtual IP nor for an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum AddressScope {
    /// `127.0.0.0/8` and `::1`.
    Loopback,
    /// `169.254.0.0/16` and `fe80::/10`.
    LinkLocal,
    /// `224.0.0.0/4`, `ff00::/8` and the broadcast address `255.255.255.255`.
    Multicast,
    /// `0.0.0.0/8` and `::`.
    Unspecified,
}

impl AddressScope {
    /// The scope of an address. `None` if the address is valid.
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

impl Reason {
    /// A field has an invalid value. Of a long value, and of a problem that quotes it, only the beginning is kept.
    #[must_use]
    pub fn invalid(field: impl Into<String>, value: &str, problem: &str) -> Self {
        Reason::Invalid {
            field: field.into(),
            value: excerpt(value).into_owned(),
            problem: excerpt_of(problem, MAX_PROBLEM).into_owned(),
        }
    }
}

/// The largest number of bytes of a problem in an event: it may quote several values.
const MAX_PROBLEM: usize = 4 * MAX_TEXT;

/// The largest number of events about one object that are kept.
pub const MAX_EVENTS: usize = 10;

/// Sorts the events of one object, with each once, and replaces those that are too many by their number ([`Reason::Others`]). Any user who
/// may write the object could otherwise fill memory and log of all nodes.
pub fn limit(events: &mut Vec<Event>) {
    events.sort();
    events.dedup();
    let Some(count) = events.len().checked_sub(MAX_EVENTS).filter(|count| *count > 0) else {
        return;
    };
    events.truncate(MAX_EVENTS);
    if let Some(subject) = events.last().map(|event| event.subject.clone()) {
        let reason = Reason::Others { count };
        events.push(Event { subject, reason });
    }
    events.shrink_to_fit();
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
    /// `Service shop/web: reason`, on one line.
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
    /// The message, on one line; control characters in names and values are escaped.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut f = EscapeWriter(f);
        match self {
            Reason::DuplicateObject { source } => {
                write!(f, "{source} lists this object more than once; the last one is used")
            }
            Reason::MultipleSources { effective, ignored } => {
                write!(
                    f,
                    "both {effective} and {ignored} deliver this object; that of {effective} is used"
                )
            }
            Reason::Invalid {
                field,
                value,
                problem,
            } => write!(f, "{field}: invalid value {value:?}: {problem}"),
            Reason::NotPermitted { field, why } => write!(f, "{field}: {why}; ignored"),
            Reason::UnknownAnnotation { name } => write!(
                f,
                "{}: unknown annotation; known: {}; ignored",
                annotation_field(name),
                known_annotations()
            ),
            Reason::Others { count: 1 } => f.write_str("1 more event about this object"),
            Reason::Others { count } => write!(f, "{count} more events about this object"),
            Reason::FamilyMismatch { field, address } => {
                let family = Family::of(*address);
                write!(
                    f,
                    "{field}: the Service has no {family} cluster IP; {address} is not programmed"
                )
            }
            Reason::NoSourceRange(family) => write!(
                f,
                "spec.loadBalancerSourceRanges: no valid {family} range; {family} sources are not restricted"
            ),
            Reason::SourceRangeAdmitsAll(family) => {
                write!(
                    f,
                    "spec.loadBalancerSourceRanges: a /0 range matches all addresses; {family} sources are not restricted"
                )
            }
            Reason::AddressOfOtherNode { address, node } => write!(
                f,
                "{address} is an address of node {node}, which would become unreachable from this node; not programmed"
            ),
            Reason::UnusableVirtualIp { address, scope } => {
                write!(f, "{address} is {scope}; not programmed")
            }
            Reason::EndpointPortWithoutName { position } => write!(
                f,
                "ports[{position}].name: missing; the port is ignored (an unnamed port has the name \"\")"
            ),
            Reason::EndpointPortWithoutNumber { position } => {
                write!(
                    f,
                    "ports[{position}].port: missing or 0; the port is ignored"
                )
            }
            Reason::EndpointFamilyMismatch { address, family } => {
                write!(f, "endpoints: {address} is not an {family} address; the endpoint is ignored")
            }
            Reason::UnusableEndpoint { address, scope } => {
                write!(f, "endpoints: {address} is {scope}; the endpoint is ignored")
            }
            Reason::Conflict {
                kind,
                address,
                port,
                protocol,
                owner,
                precedence,
            } => {
                let address = std::net::SocketAddr::new(*address, *port);
                write!(
                    f,
                    "{kind} {address}/{protocol} is already used by {owner}{precedence}; not programmed"
                )
            }
            Reason::HealthCheckConflict {
                port,
                owner,
                precedence,
            } => write!(
                f,
                "health-check node port {port} is already used by {owner}{precedence}; not served for this Service"
            ),
            Reason::MoreConflicts {
                address,
                port,
                protocol,
                at_least,
            } => {
                let address = std::net::SocketAddr::new(*address, *port);
                write!(
                    f,
                    "{address}/{protocol} is defined by more Services than are reported one by one, at least {at_least}; not programmed for them"
                )
            }
            Reason::MoreHealthCheckConflicts { port, at_least } => write!(
                f,
                "health-check node port {port} is defined by more Services than are reported one by one, at least {at_least}; not served for them"
            ),
            Reason::NoHealthCheckNodePort => {
                f.write_str("spec.healthCheckNodePort: 0 is not valid with type LoadBalancer and externalTrafficPolicy Local")
            }
            Reason::NoNodePortAddress(family) => {
                write!(f, "no {family} address of this node other than loopback accepts node ports")
            }
            Reason::NoNodePortNetwork(family) => write!(
                f,
                "nodePortAddresses: no {family} network; all {family} addresses accept node ports"
            ),
            Reason::NoPrimaryAddress(family) => write!(
                f,
                "nodePortAddresses: primary: the node has no {family} address; no {family} address accepts node ports"
            ),
            Reason::NodeAddressUnknown => f.write_str(
                "nodePortAddresses: primary: no address of this node is known yet; no address accepts node ports",
            ),
            Reason::DuplicatePort(port) => {
                write!(f, "spec.ports: {port} occurs more than once; the first one is used")
            }
            Reason::OptionWithoutEffect { option, why } => write!(f, "{option} has no effect: {why}"),
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
