//! Which kernel objects are owned. Decided here only, from what the kernel holds; in addition, a desired virtual server is owned.
//!
//! | object | owned if |
//! | --- | --- |
//! | a link | it is a dummy link with the configured name |
//! | an address | it is on that link, and is not an IPv6 link-local address |
//! | a set, a chain | its name is one of those of kube-proxy's IPVS mode, or the set has one of the names `KERNLINK-DRAIN` and `KERNLINK-6-DRAIN` |
//! | a temporary set | its name is that of such a set, cut to 30 bytes, and `~` |
//! | a jump | it leads from a built-in chain to such a chain, with kube-proxy's comment |
//! | a virtual server | its address, protocol and port are an entry of a frontend set |
//! | | or its address is on the dummy link, and no frontend set has an entry with that address, outside the excluded networks |
//! | | or it is on an address of this node with a port of a node-port set, outside the excluded networks |
//!
//! The second rule for virtual servers covers sets that were flushed, and a kube-proxy that ended before it wrote them. An entry is added
//! before its virtual server and removed after it. So a virtual server is foreign if entries with its address exist, but none with its
//! protocol and port.
//!
//! A virtual server with a firewall mark is foreign. The decision about a virtual server is made when it is listed for the first time, and
//! before anything is changed: an address that is bound later does not make it owned. It holds as long as the virtual server exists:
//! an owned node port at an address that the node loses is still deleted.

use std::net::IpAddr;

use ipnet::IpNet;
use kernlink_ipset::{Element, Entry, ProtocolPort};
use kernlink_ipvs::{Protocol, VirtualServerKey};
use kernlink_services::Family;

use super::sets::SetId;

/// The part of the kernel's state that ownership depends on.
pub(super) trait KernelFacts {
    /// Whether a set holds an entry.
    fn has_entry(&self, family: Family, set: SetId, entry: &Entry) -> bool;
    /// Whether the dummy link has an address, with the full prefix length.
    fn is_bound(&self, address: IpAddr) -> bool;
    /// Whether one of the [`FRONTEND_SETS`] has an entry with an address.
    fn is_frontend_address(&self, address: IpAddr) -> bool;
    /// Whether another link of this node has an address.
    fn is_node_address(&self, address: IpAddr) -> bool;
}

/// Whether a virtual server that was not listed before is owned.
pub(super) fn is_owned(facts: &impl KernelFacts, exclude_cidrs: &[IpNet], key: &VirtualServerKey) -> bool {
    let VirtualServerKey::Address {
        address,
        protocol,
        port,
    } = *key
    else {
        return false;
    };
    let family = Family::of(address);
    if is_frontend_entry(facts, family, address, protocol, port) {
        return true;
    }
    let is_excluded = exclude_cidrs.iter().any(|net| net.contains(&address));
    let is_leftover = facts.is_bound(address) && !facts.is_frontend_address(address);
    !is_excluded && (is_leftover || is_node_port(facts, family, address, protocol, port))
}

/// The sets whose entries are frontends: address, protocol and port.
pub(super) const FRONTEND_SETS: [SetId; 5] = [
    SetId::ClusterIp,
    SetId::ExternalIp,
    SetId::ExternalIpLocal,
    SetId::LoadBalancer,
    SetId::NodePortSctp,
];

fn is_frontend_entry(
    facts: &impl KernelFacts,
    family: Family,
    address: IpAddr,
    protocol: Protocol,
    port: u16,
) -> bool {
    let Some(protocol) = set_protocol(protocol) else {
        return false;
    };
    let entry = Entry::ip_port(address, ProtocolPort::new(protocol, port));
    FRONTEND_SETS
        .iter()
        .any(|set| facts.has_entry(family, *set, &entry))
}

fn is_node_port(
    facts: &impl KernelFacts,
    family: Family,
    address: IpAddr,
    protocol: Protocol,
    port: u16,
) -> bool {
    let set = match protocol {
        Protocol::Tcp => SetId::NodePortTcp,
        Protocol::Udp => SetId::NodePortUdp,
        _ => return false,
    };
    facts.is_node_address(address) && facts.has_entry(family, set, &Entry::port(port))
}

fn set_protocol(protocol: Protocol) -> Option<kernlink_ipset::Protocol> {
    match protocol {
        Protocol::Tcp => Some(kernlink_ipset::Protocol::TCP),
        Protocol::Udp => Some(kernlink_ipset::Protocol::UDP),
        Protocol::Sctp => Some(kernlink_ipset::Protocol::SCTP),
        _ => None,
    }
}

/// The virtual servers that an entry identifies as owned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Identified {
    /// The one with this key.
    VirtualServer(VirtualServerKey),
    /// Those on addresses of this node with this protocol and port.
    NodePort(Protocol, u16),
}

/// The virtual servers that an entry identifies; `None` if the entry is not that of a frontend.
pub(super) fn identified(set: SetId, entry: &Entry) -> Option<Identified> {
    match (set, entry.element()) {
        (SetId::NodePortTcp, Element::Port(port)) => Some(Identified::NodePort(Protocol::Tcp, *port)),
        (SetId::NodePortUdp, Element::Port(port)) => Some(Identified::NodePort(Protocol::Udp, *port)),
        (set, Element::IpPort { ip, port }) if FRONTEND_SETS.contains(&set) => {
            let protocol = Protocol::from_number(u16::from(port.protocol.0));
            let key = VirtualServerKey::new(*ip, port.port, protocol);
            Some(Identified::VirtualServer(key))
        }
        _ => None,
    }
}
