//! Tuples.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use kernlink_base::{Family, Protocol};

use crate::error::InvalidOperation;

/// One of the two directions of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[doc(alias = "IP_CT_DIR_ORIGINAL")]
#[doc(alias = "IP_CT_DIR_REPLY")]
pub enum Direction {
    /// The direction of the first packet.
    Original,
    /// The direction of replies. With address translation its tuple is not the inverse of the original tuple.
    Reply,
}

/// Addresses, protocol, and ports or ICMP fields of the packets of one direction of a flow.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[doc(alias = "nf_conntrack_tuple")]
pub struct Tuple {
    /// Source address.
    pub source: IpAddr,
    /// Destination address, of the same family as the source.
    pub destination: IpAddr,
    /// Transport protocol.
    pub protocol: Protocol,
    /// Ports or ICMP fields.
    pub part: ProtocolPart,
}

/// The part of a tuple that depends on the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum ProtocolPart {
    /// No fields: the kernel tracks the protocol by addresses only. This can be a protocol with ports, such as DCCP from Linux 6.16
    /// on.
    None,
    /// Ports of TCP, UDP, SCTP, DCCP (up to Linux 6.15) and UDP-Lite, keys of GRE.
    Ports {
        /// Source port.
        source: u16,
        /// Destination port.
        destination: u16,
    },
    /// Fields of ICMP and ICMPv6.
    Icmp {
        /// Type, for example 8 for an echo request.
        kind: u8,
        /// Code.
        code: u8,
        /// Identifier.
        identifier: u16,
    },
}

impl Tuple {
    /// A tuple of a protocol with ports.
    #[must_use]
    pub fn with_ports(protocol: Protocol, source: SocketAddr, destination: SocketAddr) -> Self {
        Tuple {
            source: source.ip(),
            destination: destination.ip(),
            protocol,
            part: ProtocolPart::Ports {
                source: source.port(),
                destination: destination.port(),
            },
        }
    }

    /// A UDP tuple.
    #[must_use]
    pub fn udp(source: SocketAddr, destination: SocketAddr) -> Self {
        Self::with_ports(Protocol::UDP, source, destination)
    }

    /// A TCP tuple.
    #[must_use]
    pub fn tcp(source: SocketAddr, destination: SocketAddr) -> Self {
        Self::with_ports(Protocol::TCP, source, destination)
    }

    /// A tuple of an echo request, of ICMP or ICMPv6 depending on the family of the source.
    #[must_use]
    pub fn echo_request(source: IpAddr, destination: IpAddr, identifier: u16) -> Self {
        let (protocol, kind) = match Family::of(source) {
            Family::Ipv4 => (Protocol::ICMP, 8),
            Family::Ipv6 => (Protocol::ICMPV6, 128),
        };
        let code = 0;
        let part = ProtocolPart::Icmp {
            kind,
            code,
            identifier,
        };
        Tuple {
            source,
            destination,
            protocol,
            part,
        }
    }

    /// Family of the addresses.
    #[must_use]
    pub fn family(&self) -> Family {
        Family::of(self.source)
    }

    /// Source address and port; port 0 if the tuple has none.
    #[must_use]
    pub fn source_socket(&self) -> SocketAddr {
        let port = match self.part {
            ProtocolPart::Ports { source, .. } => source,
            _ => 0,
        };
        SocketAddr::new(self.source, port)
    }

    /// Destination address and port; port 0 if the tuple has none.
    #[must_use]
    pub fn destination_socket(&self) -> SocketAddr {
        let port = match self.part {
            ProtocolPart::Ports { destination, .. } => destination,
            _ => 0,
        };
        SocketAddr::new(self.destination, port)
    }

    /// The tuple of replies without address translation: source and destination are swapped, and an ICMP request type is replaced
    /// by its reply type. `None` for an ICMP type without a reply type, which the kernel does not track.
    #[doc(alias = "nf_ct_invert_tuple")]
    #[must_use]
    pub fn inverted(&self) -> Option<Self> {
        let part = match self.part {
            ProtocolPart::None => ProtocolPart::None,
            ProtocolPart::Ports { source, destination } => ProtocolPart::Ports {
                source: destination,
                destination: source,
            },
            ProtocolPart::Icmp {
                kind,
                code,
                identifier,
            } => ProtocolPart::Icmp {
                kind: inverse_icmp_type(self.protocol, kind)?,
                code,
                identifier,
            },
        };
        Some(Tuple {
            source: self.destination,
            destination: self.source,
            protocol: self.protocol,
            part,
        })
    }

    /// Returns an error for a tuple that the kernel would misinterpret.
    pub(crate) fn check(&self, field: &'static str) -> Result<(), InvalidOperation> {
        if Family::of(self.destination) != self.family() {
            return Err(InvalidOperation::MixedFamilies { field });
        }
        let fits = match self.part {
            ProtocolPart::Ports { .. } => can_have_ports(self.protocol),
            ProtocolPart::Icmp { .. } => self.protocol.is_icmp(),
            ProtocolPart::None => !is_always_tracked_with_ports(self.protocol) && !self.protocol.is_icmp(),
        };
        if fits {
            Ok(())
        } else {
            Err(InvalidOperation::ProtocolPartMismatch {
                field,
                protocol: self.protocol,
            })
        }
    }
}

/// Whether every kernel tracks the ports of a protocol.
fn is_always_tracked_with_ports(protocol: Protocol) -> bool {
    matches!(protocol, Protocol::TCP | Protocol::UDP)
}

/// Whether tuples of a protocol have two ports (or keys), on kernels that track it.
fn can_have_ports(protocol: Protocol) -> bool {
    matches!(
        protocol,
        Protocol::TCP | Protocol::UDP | Protocol::DCCP | Protocol::GRE | Protocol::SCTP | Protocol::UDPLITE
    )
}

/// The reply type of an ICMP request type, and the request type of a reply type
/// ([`invmap`](https://github.com/torvalds/linux/blob/v6.18/net/netfilter/nf_conntrack_proto_icmp.c#L49)).
pub(crate) fn inverse_icmp_type(protocol: Protocol, kind: u8) -> Option<u8> {
    let pairs: &[(u8, u8)] = if protocol == Protocol::ICMP {
        &[(8, 0), (13, 14), (15, 16), (17, 18)]
    } else {
        &[(128, 129), (139, 140)]
    };
    pairs.iter().find_map(|&(request, reply)| {
        (kind == request)
            .then_some(reply)
            .or((kind == reply).then_some(request))
    })
}

impl fmt::Display for Tuple {
    /// As `conntrack -L` prints it: `src=10.0.0.1 dst=10.0.0.2 sport=1024 dport=53`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "src={} dst={}", self.source, self.destination)?;
        match self.part {
            ProtocolPart::None => Ok(()),
            ProtocolPart::Ports { source, destination } if self.protocol == Protocol::GRE => {
                write!(f, " srckey={source:#x} dstkey={destination:#x}")
            }
            ProtocolPart::Ports { source, destination } => write!(f, " sport={source} dport={destination}"),
            ProtocolPart::Icmp {
                kind,
                code,
                identifier,
            } => write!(f, " type={kind} code={code} id={identifier}"),
        }
    }
}

impl fmt::Debug for Tuple {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {self}", self.protocol)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_inverse_of_the_inverse_is_the_tuple() {
        let echo = Tuple::echo_request("fd00::1".parse().unwrap(), "fd00::2".parse().unwrap(), 0x1234);
        let reply = echo.inverted().unwrap();
        assert_eq!(
            reply.to_string(),
            "src=fd00::2 dst=fd00::1 type=129 code=0 id=4660"
        );
        assert_eq!(reply.inverted(), Some(echo));
        let udp = Tuple::udp("10.0.0.1:4660".parse().unwrap(), "10.0.0.2:53".parse().unwrap());
        assert_eq!(
            udp.inverted().unwrap().to_string(),
            "src=10.0.0.2 dst=10.0.0.1 sport=53 dport=4660"
        );
    }

    #[test]
    fn an_invalid_tuple_is_refused_with_its_field() {
        let mixed = Tuple::udp("10.0.0.1:1".parse().unwrap(), "[::1]:2".parse().unwrap());
        assert_eq!(
            mixed.check("original tuple").unwrap_err().to_string(),
            "original tuple: addresses of different families"
        );
        let mut icmp = Tuple::echo_request("10.0.0.1".parse().unwrap(), "10.0.0.2".parse().unwrap(), 1);
        icmp.protocol = Protocol::UDP;
        assert_eq!(
            icmp.check("reply tuple").unwrap_err().to_string(),
            "reply tuple: ports or ICMP fields do not match protocol udp"
        );
    }
}
