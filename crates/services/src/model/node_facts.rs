//! The facts of this node on which Services depend.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

use ipnet::IpNet;
use kernlink_base::Family;

use crate::config::{Config, NodePortAddresses};
use crate::source::{Node, NodeAddressType};

/// An address of an interface of this node.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InterfaceAddress {
    /// The interface.
    pub interface: Arc<str>,
    /// The address.
    pub address: IpAddr,
}

impl InterfaceAddress {
    /// An address of an interface.
    #[must_use]
    pub fn new(interface: impl Into<Arc<str>>, address: IpAddr) -> Self {
        Self {
            interface: interface.into(),
            address,
        }
    }
}

/// The facts of this node on which Services depend: zone, addresses, pod networks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeFacts {
    zone: Option<Arc<str>>,
    node_ips: [Option<IpAddr>; 2],
    pod_cidrs: [Option<IpNet>; 2],
    interface_addresses: BTreeSet<IpAddr>,
    node_port_addresses: [Vec<IpAddr>; 2],
    loopback_node_port_addresses: [Vec<IpAddr>; 2],
    /// Whether every address of a family accepts node ports.
    accepts_all_node_ports: [bool; 2],
    primary: Option<Family>,
    /// Whether an address of the node is known, from the configuration or the Node object.
    is_known: bool,
}

impl NodeFacts {
    /// Determines the facts from the configuration, the Node object of this node, and the addresses of its interfaces.
    pub(crate) fn new(config: &Config, node: Option<&Node>, interfaces: &[InterfaceAddress]) -> Self {
        let mut this = NodeFacts {
            zone: config
                .zone
                .clone()
                .or_else(|| node.and_then(|node| node.zone.clone())),
            ..NodeFacts::default()
        };
        let cidrs: &[IpNet] = if config.pod_cidrs.is_empty() {
            node.map_or(&[], |node| &node.pod_cidrs)
        } else {
            &config.pod_cidrs
        };
        for family in Family::ALL {
            this.pod_cidrs[family.index()] =
                cidrs.iter().find(|net| Family::of(net.addr()) == family).copied();
        }
        this.set_node_ips(config, node);
        this.interface_addresses = interfaces
            .iter()
            .map(|interface| interface.address)
            .filter(|address| is_node_address(*address))
            .collect();
        for family in Family::ALL {
            this.find_node_port_addresses(config, family, interfaces);
        }
        this
    }

    /// In order of preference: the bind address, the configured addresses, internal and then external addresses of the Node. The
    /// addresses of the Node are used only if none is configured.
    fn set_node_ips(&mut self, config: &Config, node: Option<&Node>) {
        let mut candidates: Vec<IpAddr> = Vec::new();
        candidates.extend(config.bind_address.filter(|address| !address.is_unspecified()));
        candidates.extend(&config.node_ips);
        if let Some(node) = node.filter(|_| config.node_ips.is_empty()) {
            let mut addresses = node.addresses.clone();
            addresses.sort_by_key(|address| address.address_type);
            debug_assert!(NodeAddressType::Internal < NodeAddressType::External);
            candidates.extend(addresses.iter().map(|address| address.address));
        }
        self.is_known = !candidates.is_empty();
        self.primary = candidates.first().map(|&address| Family::of(address));
        for family in Family::ALL {
            let first = candidates.iter().find(|&&address| Family::of(address) == family);
            self.node_ips[family.index()] = first.copied();
        }
    }

    fn find_node_port_addresses(&mut self, config: &Config, family: Family, interfaces: &[InterfaceAddress]) {
        let nets: Vec<IpNet> = match &config.node_port_addresses {
            NodePortAddresses::All => Vec::new(),
            NodePortAddresses::Networks(nets) => nets
                .iter()
                .filter(|net| Family::of(net.addr()) == family)
                .copied()
                .collect(),
            // Until an address of the node is known, no address accepts node ports.
            NodePortAddresses::Primary if !self.is_known => return,
            NodePortAddresses::Primary => self.node_ips[family.index()]
                .into_iter()
                .filter(|address| !address.is_loopback())
                .map(IpNet::from)
                .collect(),
        };
        let accepts_all = match &config.node_port_addresses {
            // A node with an address in the other family only has no primary one in this family.
            NodePortAddresses::Primary => self.node_ips.iter().flatten().all(IpAddr::is_loopback),
            _ => nets.is_empty() || nets.iter().any(|net| net.prefix_len() == 0),
        };
        let own = interfaces
            .iter()
            .map(|interface| interface.address)
            .filter(|address| Family::of(*address) == family);
        let (loopback, addresses): (BTreeSet<IpAddr>, BTreeSet<IpAddr>) = if accepts_all {
            own.filter(|address| address.is_loopback() || is_node_address(*address))
                .partition(IpAddr::is_loopback)
        } else {
            own.filter(|address| nets.iter().any(|net| net.contains(address)))
                .partition(IpAddr::is_loopback)
        };
        self.accepts_all_node_ports[family.index()] = accepts_all;
        self.node_port_addresses[family.index()] = addresses.into_iter().collect();
        self.loopback_node_port_addresses[family.index()] = loopback.into_iter().collect();
    }

    /// The zone, if known.
    #[must_use]
    pub fn zone(&self) -> Option<&str> {
        self.zone.as_deref()
    }

    /// The node's address in a family; the loopback address if none is known.
    #[must_use]
    pub fn node_ip(&self, family: Family) -> IpAddr {
        self.node_ips[family.index()].unwrap_or(match family {
            Family::Ipv4 => IpAddr::V4(Ipv4Addr::LOCALHOST),
            Family::Ipv6 => IpAddr::V6(Ipv6Addr::LOCALHOST),
        })
    }

    /// The family of the node's first address; IPv4 if none is known.
    #[must_use]
    pub fn primary_family(&self) -> Family {
        self.primary.unwrap_or(Family::Ipv4)
    }

    /// The pod network of the node in a family; the first one if there are several.
    #[must_use]
    pub fn pod_cidr(&self, family: Family) -> Option<IpNet> {
        self.pod_cidrs[family.index()]
    }

    /// Whether the address is one of [`interface_addresses`](Self::interface_addresses).
    #[must_use]
    pub fn has_address(&self, address: IpAddr) -> bool {
        self.interface_addresses.contains(&address)
    }

    /// Whether an address of the node is known, from the configuration or the Node object.
    #[must_use]
    pub fn is_known(&self) -> bool {
        self.is_known
    }

    /// Whether an address of the node in this family is known and is not a loopback address.
    #[must_use]
    pub fn has_node_ip(&self, family: Family) -> bool {
        self.node_ips[family.index()].is_some_and(|address| !address.is_loopback())
    }

    /// The addresses of this node's interfaces, without loopback and IPv6 link-local addresses.
    #[must_use]
    pub fn interface_addresses(&self) -> &BTreeSet<IpAddr> {
        &self.interface_addresses
    }

    /// The addresses that accept node ports, sorted; without loopback addresses.
    #[must_use]
    pub fn node_port_addresses(&self, family: Family) -> &[IpAddr] {
        &self.node_port_addresses[family.index()]
    }

    /// The loopback addresses of interfaces that the configuration permits for node ports, sorted. A data path that cannot serve node
    /// ports there ignores them.
    #[must_use]
    pub fn loopback_node_port_addresses(&self, family: Family) -> &[IpAddr] {
        &self.loopback_node_port_addresses[family.index()]
    }

    /// Whether the configuration permits node ports at every address of the family.
    #[must_use]
    pub fn accepts_all_node_ports(&self, family: Family) -> bool {
        self.accepts_all_node_ports[family.index()]
    }
}

/// Whether an address of an interface is neither a loopback nor an IPv6 link-local address. IPv4 link-local addresses are included.
fn is_node_address(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => !v4.is_loopback(),
        IpAddr::V6(v6) => !v6.is_loopback() && !v6.is_unicast_link_local(),
    }
}
