//! Which kernel objects are owned. Decided here only, from what the kernel holds.
//!
//! | object | owned if |
//! | --- | --- |
//! | a link | it is a dummy link with the configured name |
//! | an address | it is on that link, and is not an IPv6 link-local address |
//! | a set, a chain | its name is one of those of kube-proxy's IPVS mode, or the set is the ledger or `KERNLINK-DRAIN` (`KERNLINK-6-DRAIN`) |
//! | a temporary set | its name is that of such a set, cut to 30 bytes, and `~` |
//! | a jump | it leads from a built-in chain to such a chain, with kube-proxy's comment |
//! | a virtual server | the ledger of its family has entries, and one of them names it |
//!
//! If the ledger of a family is empty or missing, no kernlink ran before, or it served nothing. Then the virtual servers of kube-proxy are
//! owned, outside the excluded networks:
//!
//! | a virtual server is kube-proxy's if |
//! | --- |
//! | its address, protocol and port are an entry of a frontend set |
//! | or its address is on the dummy link, and no frontend set has an entry with that address |
//! | or it is on an address of this node with a port of a node-port set |
//!
//! The second of these rules covers sets that were flushed, and a kube-proxy that ended before it wrote them. The first plan writes all
//! virtual servers that are owned by these rules into the ledger, in one step: a process that ends before this step leaves the ledger empty,
//! and the next one decides by the same rules.
//!
//! A virtual server with a firewall mark is foreign. The decision about a virtual server is made when it is listed for the first time, and
//! before anything is changed: an address that is bound later does not make it owned. It holds as long as the virtual server exists, also
//! if the ledger is flushed.
//!
//! A foreign virtual server is not changed. If a Service needs its key, it is adopted if it is equal to the desired one, or if an entry of a
//! frontend set named it when it was listed for the first time: it becomes owned when its entry is in the ledger. Otherwise the frontend is
//! not served, unless [`adopt_foreign`](super::Config::adopt_foreign) is set.
//!
//! A frontend that is not served because of a foreign virtual server has no entry in a frontend set. So an entry shows that kernlink, or
//! kube-proxy, served the frontend with this virtual server, and that its entry in the ledger was lost. Entries of node ports do not
//! show it: they have no address.

use std::net::IpAddr;

use ipnet::IpNet;
use kernlink_ipset::{Element, Entry};
use kernlink_ipvs::{Protocol, VirtualServerKey};
use kernlink_services::Family;

use super::sets::{self, SetId};

/// The part of the kernel's state that ownership depends on.
pub(super) trait KernelFacts {
    /// Whether the ledger of a family exists and has an entry.
    fn has_ledger(&self, family: Family) -> bool;
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
    let (Some(address), Some(entry)) = (key.address(), sets::of_virtual_server(key)) else {
        return false;
    };
    let family = Family::of(address);
    if facts.has_ledger(family) {
        return facts.has_entry(family, SetId::Ledger, &entry);
    }
    if exclude_cidrs.iter().any(|net| net.contains(&address)) {
        return false;
    }
    is_leftover(facts, address)
        || is_served_frontend(facts, exclude_cidrs, key)
        || is_node_port(facts, family, key)
}

/// Whether an address, in a family without a ledger, alone identifies its virtual servers as owned.
pub(super) fn is_leftover(facts: &impl KernelFacts, address: IpAddr) -> bool {
    facts.is_bound(address) && !facts.is_frontend_address(address)
}

/// The sets whose entries identify virtual servers as owned, in a family with or without a ledger.
pub(super) fn identifying_sets(has_ledger: bool) -> &'static [SetId] {
    if has_ledger {
        return &[SetId::Ledger];
    }
    const SETS: [SetId; 7] = [
        SetId::ClusterIp,
        SetId::ExternalIp,
        SetId::ExternalIpLocal,
        SetId::LoadBalancer,
        SetId::NodePortSctp,
        SetId::NodePortTcp,
        SetId::NodePortUdp,
    ];
    &SETS
}

/// Whether an entry of a frontend set names a virtual server. Virtual servers in the excluded networks are those of other programs, except for
/// what the ledger names.
pub(super) fn is_served_frontend(
    facts: &impl KernelFacts,
    exclude_cidrs: &[IpNet],
    key: &VirtualServerKey,
) -> bool {
    let (Some(address), Some(entry)) = (key.address(), sets::of_virtual_server(key)) else {
        return false;
    };
    let family = Family::of(address);
    !exclude_cidrs.iter().any(|net| net.contains(&address))
        && FRONTEND_SETS
            .iter()
            .any(|set| facts.has_entry(family, *set, &entry))
}

/// The sets whose entries are frontends: address, protocol and port.
pub(super) const FRONTEND_SETS: [SetId; 5] = [
    SetId::ClusterIp,
    SetId::ExternalIp,
    SetId::ExternalIpLocal,
    SetId::LoadBalancer,
    SetId::NodePortSctp,
];

fn is_node_port(facts: &impl KernelFacts, family: Family, key: &VirtualServerKey) -> bool {
    let (Some(address), Some(port)) = (key.address(), key.port()) else {
        return false;
    };
    let set = match key.protocol() {
        Some(Protocol::Tcp) => SetId::NodePortTcp,
        Some(Protocol::Udp) => SetId::NodePortUdp,
        _ => return false,
    };
    facts.is_node_address(address) && facts.has_entry(family, set, &Entry::port(port))
}

/// The virtual servers that an entry identifies as owned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Identified {
    /// The one with this key.
    VirtualServer(VirtualServerKey),
    /// Those on addresses of this node with this protocol and port.
    NodePort(Protocol, u16),
}

/// The virtual servers that an entry identifies; `None` if the entry is not that of a frontend or of the ledger.
pub(super) fn identified(set: SetId, entry: &Entry) -> Option<Identified> {
    match (set, entry.element()) {
        (SetId::NodePortTcp, Element::Port(port)) => Some(Identified::NodePort(Protocol::Tcp, *port)),
        (SetId::NodePortUdp, Element::Port(port)) => Some(Identified::NodePort(Protocol::Udp, *port)),
        (set, Element::IpPort { ip, port }) if set == SetId::Ledger || FRONTEND_SETS.contains(&set) => {
            let protocol = Protocol::from_number(u16::from(port.protocol.0));
            let key = VirtualServerKey::new(*ip, port.port, protocol);
            Some(Identified::VirtualServer(key))
        }
        _ => None,
    }
}
