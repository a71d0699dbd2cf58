//! Elements of sets: the dimensions of an entry.

use std::fmt;
use std::net::IpAddr;

use kernlink_base::Protocol;

use crate::mac::MacAddress;
use crate::name::{InterfaceName, SetName};
use crate::network::{Address, Network};
use crate::protocol_port::ProtocolPort;
use crate::set_family::SetFamily;
use crate::set_type::{Dimension, SetType};

/// The dimensions of an entry, by which the entries of a set are distinguished. [`SetType::dimensions`] lists the dimensions of
/// each set type. All addresses must be of the set's family.
///
/// Printed as `ipset save` prints it: `10.0.0.1,tcp:80,10.0.0.2`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Element {
    /// Of `hash:ip` and `bitmap:ip`. A set with a netmask or bitmask stores the masked address.
    Ip(IpAddr),
    /// Of `hash:ip,mac` and `bitmap:ip,mac`.
    IpMac {
        /// The address.
        ip: IpAddr,
        /// Its Ethernet address. `None` is valid in `bitmap:ip,mac` only, where the first matching packet sets it.
        mac: Option<MacAddress>,
    },
    /// Of `hash:ip,mark`.
    IpMark {
        /// The address.
        ip: IpAddr,
        /// The packet mark. A set with a markmask stores the masked mark.
        mark: u32,
    },
    /// Of `hash:ip,port`.
    IpPort {
        /// The address.
        ip: IpAddr,
        /// Protocol and port.
        port: ProtocolPort,
    },
    /// Of `hash:ip,port,ip`.
    IpPortIp {
        /// The first address.
        ip: IpAddr,
        /// Protocol and port.
        port: ProtocolPort,
        /// The second address.
        second: IpAddr,
    },
    /// Of `hash:ip,port,net`.
    IpPortNet {
        /// The address.
        ip: IpAddr,
        /// Protocol and port.
        port: ProtocolPort,
        /// The network; a prefix length of 0 is invalid.
        net: Network,
    },
    /// Of `hash:mac`.
    Mac(MacAddress),
    /// Of `hash:net`; a prefix length of 0 is invalid.
    Net(Network),
    /// Of `hash:net,net`.
    NetNet {
        /// The first network.
        net: Network,
        /// The second network.
        second: Network,
    },
    /// Of `hash:net,port`; a prefix length of 0 is invalid.
    NetPort {
        /// The network.
        net: Network,
        /// Protocol and port.
        port: ProtocolPort,
    },
    /// Of `hash:net,port,net`.
    NetPortNet {
        /// The first network.
        net: Network,
        /// Protocol and port.
        port: ProtocolPort,
        /// The second network.
        second: Network,
    },
    /// Of `hash:net,iface`.
    NetIface {
        /// The network.
        net: Network,
        /// The interface.
        interface: Interface,
    },
    /// Of `bitmap:port`: a port number without protocol.
    Port(u16),
    /// Of `list:set`: a member set.
    Set(SetName),
}

/// The interface of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Interface {
    /// The name, or the prefix of the names that match.
    pub name: InterfaceName,
    /// Which of a packet's interfaces is compared.
    pub side: InterfaceSide,
    /// How names are compared.
    pub matching: InterfaceMatching,
}

/// Which of a packet's interfaces is compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum InterfaceSide {
    /// The interface by which the packet arrived or leaves.
    #[default]
    Device,
    /// The bridge port by which it arrived or leaves; printed `physdev:`.
    #[doc(alias = "IPSET_FLAG_PHYSDEV")]
    BridgePort,
}

/// How interface names are compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum InterfaceMatching {
    /// The whole name.
    #[default]
    Exact,
    /// A prefix of the name. Since Linux 5.5.
    #[doc(alias = "wildcard")]
    #[doc(alias = "IPSET_FLAG_IFACE_WILDCARD")]
    Prefix,
}

impl Interface {
    /// The interface with this name, compared exactly with the packet's device.
    #[must_use]
    pub fn new(name: InterfaceName) -> Self {
        Interface {
            name,
            side: InterfaceSide::Device,
            matching: InterfaceMatching::Exact,
        }
    }

    /// With the interface of the packet that is compared.
    #[must_use]
    pub fn with_side(mut self, side: InterfaceSide) -> Self {
        self.side = side;
        self
    }

    /// With the way in which the name is compared.
    #[must_use]
    pub fn with_matching(mut self, matching: InterfaceMatching) -> Self {
        self.matching = matching;
        self
    }
}

/// Why an element cannot be in a set of a type and family.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Mismatch {
    /// The type of the set.
    pub set_type: SetType,
    /// The invalid dimension, counted from 0, and its kind in the set type; `None` if the number of dimensions is invalid or the
    /// set type is unknown.
    pub dimension: Option<(usize, Dimension)>,
    /// The reason.
    pub reason: String,
}

impl fmt::Display for Mismatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "set of type {}: {}", self.set_type, self.without_type())
    }
}

impl Mismatch {
    /// The text without the set type.
    pub(crate) fn without_type(&self) -> String {
        match self.dimension {
            Some((index, dimension)) => format!("dimension {} ({dimension}): {}", index + 1, self.reason),
            None => self.reason.clone(),
        }
    }
}

impl Element {
    /// The kinds of the dimensions, in order.
    #[must_use]
    pub fn dimensions(&self) -> &'static [Dimension] {
        match self {
            Element::Ip(_) => SetType::HashIp,
            Element::IpMac { .. } => SetType::HashIpMac,
            Element::IpMark { .. } => SetType::HashIpMark,
            Element::IpPort { .. } => SetType::HashIpPort,
            Element::IpPortIp { .. } => SetType::HashIpPortIp,
            Element::IpPortNet { .. } => SetType::HashIpPortNet,
            Element::Mac(_) => SetType::HashMac,
            Element::Net(_) => SetType::HashNet,
            Element::NetNet { .. } => SetType::HashNetNet,
            Element::NetPort { .. } => SetType::HashNetPort,
            Element::NetPortNet { .. } => SetType::HashNetPortNet,
            Element::NetIface { .. } => SetType::HashNetIface,
            Element::Port(_) => SetType::BitmapPort,
            Element::Set(_) => SetType::ListSet,
        }
        .dimensions()
    }

    /// Whether a set of this type and family can hold the element. The options and entries of the set are not considered.
    ///
    /// # Errors
    ///
    /// The first invalid dimension with the reason.
    pub fn check(&self, set_type: SetType, family: SetFamily) -> Result<(), Mismatch> {
        if self.is_certainly_valid(set_type, family) {
            return Ok(());
        }
        if self.dimensions() != set_type.dimensions() {
            return Err(self.dimension_mismatch(set_type));
        }
        self.addresses(&mut |index, address| match family {
            SetFamily::Inet | SetFamily::Inet6 if SetFamily::of(address) != family => Err(mismatch(
                set_type,
                index,
                format!("{} is not an address of family {family}", Address(address)),
            )),
            _ => Ok(()),
        })?;
        self.networks(&mut |index, network| {
            if network.prefix_len() == 0 && !takes_prefix_0(set_type) {
                let reason = format!(
                    "{network}: the set type does not support prefix length 0; use an `EntryRange`, which is split into two networks of prefix length 1"
                );
                return Err(mismatch(set_type, index, reason));
            }
            Ok(())
        })?;
        if let Some(port) = self.port() {
            self.check_port(set_type, port, family)?;
        }
        match self {
            Element::IpMac { mac: None, .. } if set_type == SetType::HashIpMac => Err(mismatch(
                set_type,
                1,
                "an Ethernet address is required".to_owned(),
            )),
            _ => Ok(()),
        }
    }

    /// A fast check of the most frequent kinds: whether the element is certainly valid.
    fn is_certainly_valid(&self, set_type: SetType, family: SetFamily) -> bool {
        let is_of_family = |ip: &IpAddr| SetFamily::of(*ip) == family;
        match (self, set_type) {
            (Element::Ip(ip), SetType::HashIp) => is_of_family(ip),
            (Element::IpPort { ip, port }, SetType::HashIpPort) => is_of_family(ip) && port.has_port(),
            (Element::IpPortIp { ip, port, second }, SetType::HashIpPortIp) => {
                is_of_family(ip) && port.has_port() && is_of_family(second)
            }
            (Element::IpPortNet { ip, port, net }, SetType::HashIpPortNet) => {
                is_of_family(ip) && port.has_port() && is_of_family(&net.address()) && net.prefix_len() > 0
            }
            _ => false,
        }
    }

    fn check_port(&self, set_type: SetType, port: ProtocolPort, family: SetFamily) -> Result<(), Mismatch> {
        let dimensions = set_type.dimensions().iter();
        let index = dimensions
            .take_while(|dimension| **dimension != Dimension::Port)
            .count();
        let icmp_of_family = match family {
            SetFamily::Inet6 => Protocol::ICMPV6,
            _ => Protocol::ICMP,
        };
        if port.protocol.0 == 0 {
            return Err(mismatch(
                set_type,
                index,
                "protocol 0 is not supported".to_owned(),
            ));
        }
        if port.port != 0 && !port.has_port() && port.protocol != icmp_of_family {
            let reason = format!(
                "the port must be 0, because the kernel stores no port for {} in family {family}",
                port.protocol
            );
            return Err(mismatch(set_type, index, reason));
        }
        Ok(())
    }

    /// The difference between the dimensions of the element and those of a set type.
    fn dimension_mismatch(&self, set_type: SetType) -> Mismatch {
        let (expected, given) = (set_type.dimensions(), self.dimensions());
        if expected.is_empty() {
            return Mismatch {
                set_type,
                dimension: None,
                reason: format!("set type {set_type} is not supported"),
            };
        }
        let differing = expected
            .iter()
            .zip(given)
            .position(|(expected, given)| expected != given);
        match differing {
            Some(index) => {
                let given = given.get(index).copied().unwrap_or(Dimension::Set);
                mismatch(set_type, index, format!("found {given}"))
            }
            None => Mismatch {
                set_type,
                dimension: None,
                reason: format!(
                    "the entry has {} dimensions; the type has {}",
                    given.len(),
                    expected.len()
                ),
            },
        }
    }

    /// Protocol and port of an element that has both.
    pub(crate) fn port(&self) -> Option<ProtocolPort> {
        match self {
            Element::IpPort { port, .. }
            | Element::IpPortIp { port, .. }
            | Element::IpPortNet { port, .. }
            | Element::NetPort { port, .. }
            | Element::NetPortNet { port, .. } => Some(*port),
            _ => None,
        }
    }

    /// Calls `each` with the index of the dimension and the address, for all addresses up to the first failure.
    fn addresses(&self, each: &mut dyn FnMut(usize, IpAddr) -> Result<(), Mismatch>) -> Result<(), Mismatch> {
        match self {
            Element::Ip(ip)
            | Element::IpMac { ip, .. }
            | Element::IpMark { ip, .. }
            | Element::IpPort { ip, .. } => each(0, *ip),
            Element::IpPortIp { ip, second, .. } => {
                each(0, *ip)?;
                each(2, *second)
            }
            Element::IpPortNet { ip, net, .. } => {
                each(0, *ip)?;
                each(2, net.address())
            }
            Element::Mac(_) | Element::Port(_) | Element::Set(_) => Ok(()),
            _ => self.networks(&mut |index, network| each(index, network.address())),
        }
    }

    /// Calls `each` with the index of the dimension and the network, for all networks up to the first failure.
    fn networks(&self, each: &mut dyn FnMut(usize, Network) -> Result<(), Mismatch>) -> Result<(), Mismatch> {
        match self {
            Element::Net(net) | Element::NetPort { net, .. } | Element::NetIface { net, .. } => each(0, *net),
            Element::IpPortNet { net, .. } => each(2, *net),
            Element::NetNet { net, second } => {
                each(0, *net)?;
                each(1, *second)
            }
            Element::NetPortNet { net, second, .. } => {
                each(0, *net)?;
                each(2, *second)
            }
            _ => Ok(()),
        }
    }

    /// The option ` wildcard` for a prefix of interface names, otherwise nothing.
    pub(crate) fn wildcard(&self) -> &'static str {
        match self {
            Element::NetIface { interface, .. } if interface.matching == InterfaceMatching::Prefix => {
                " wildcard"
            }
            _ => "",
        }
    }
}

/// Whether a set type supports networks of prefix length 0: `IP_SET_HASH_WITH_NET0` in the kernel.
pub(crate) fn takes_prefix_0(set_type: SetType) -> bool {
    matches!(set_type, SetType::HashNetIface | SetType::HashNetPortNet)
}

fn mismatch(set_type: SetType, index: usize, reason: String) -> Mismatch {
    let dimension = set_type
        .dimensions()
        .get(index)
        .map(|dimension| (index, *dimension));
    Mismatch {
        set_type,
        dimension,
        reason,
    }
}

impl fmt::Display for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Element::Ip(ip) => write!(f, "{}", Address(*ip)),
            Element::IpMac { ip, mac: None } => write!(f, "{}", Address(*ip)),
            Element::IpMac { ip, mac: Some(mac) } => write!(f, "{},{mac}", Address(*ip)),
            Element::IpMark { ip, mark } => write!(f, "{},{mark:#010x}", Address(*ip)),
            Element::IpPort { ip, port } => write!(f, "{},{port}", Address(*ip)),
            Element::IpPortIp { ip, port, second } => {
                write!(f, "{},{port},{}", Address(*ip), Address(*second))
            }
            Element::IpPortNet { ip, port, net } => write!(f, "{},{port},{net}", Address(*ip)),
            Element::Mac(mac) => write!(f, "{mac}"),
            Element::Net(net) => write!(f, "{net}"),
            Element::NetNet { net, second } => write!(f, "{net},{second}"),
            Element::NetPort { net, port } => write!(f, "{net},{port}"),
            Element::NetPortNet { net, port, second } => write!(f, "{net},{port},{second}"),
            Element::NetIface { net, interface } => write!(f, "{net},{interface}"),
            Element::Port(port) => write!(f, "{port}"),
            Element::Set(name) => write!(f, "{name}"),
        }
    }
}

impl fmt::Debug for Element {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}{}", self.wildcard())
    }
}

/// The name, with `physdev:` in front where it applies; `wildcard` is printed among the options of the entry.
impl fmt::Display for Interface {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.side {
            InterfaceSide::Device => write!(f, "{}", self.name),
            InterfaceSide::BridgePort => write!(f, "physdev:{}", self.name),
        }
    }
}
