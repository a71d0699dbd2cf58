//! What the kernel holds, and what in it is ours.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use kernlink_dummylink::{AddressKey, HostAddress};
use kernlink_ipset::{Element, Entry, Set};
use kernlink_iptables_restore::Ruleset;
use kernlink_ipvs::{Protocol, RealServer, RealServerKey, Timeouts, VirtualServer, VirtualServerKey};

use crate::desired::{KernelVersion, SetId};
use crate::family::Family;
use crate::model::InterfaceAddress;
use crate::plan::{CONNTRACK_BUCKETS, Operation};

/// What the kernel holds, as far as it matters to a plan: read by [`observe`](crate::observe), then moved along by the
/// outcomes of operations.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ObservedState {
    /// All virtual servers, foreign ones too.
    pub virtual_servers: BTreeMap<VirtualServerKey, ObservedServer>,
    /// Virtual servers that this process wanted earlier and wants no more. Nothing else in the kernel says whose a node port is at
    /// an address that the node has lost.
    pub given_up: BTreeSet<VirtualServerKey>,
    /// The time-outs of idle IPVS connections.
    pub timeouts: Option<Timeouts>,
    /// Our sets that exist.
    pub sets: BTreeMap<(Family, SetId), ObservedSet>,
    /// The tables of each family. A family is missing where it was not read, or changed since.
    pub rules: BTreeMap<Family, Ruleset>,
    /// Whether the dummy link is there.
    pub has_link: bool,
    /// The addresses on the dummy link, without the IPv6 link-local one that the kernel adds.
    pub addresses: BTreeSet<AddressKey>,
    /// The addresses of all other links.
    pub node_addresses: BTreeSet<InterfaceAddress>,
    /// Kernel settings by name; those that the kernel does not have are missing.
    pub settings: BTreeMap<Box<str>, Box<str>>,
    /// The running kernel.
    pub kernel: KernelVersion,
    /// Number of processors, from which the limit of tracked connections is reckoned.
    pub processors: u32,
    /// Buckets of the table of tracked connections; `None` if unknown.
    pub conntrack_buckets: Option<u64>,
    /// Set when an operation failed: what is here may not be what the kernel holds.
    pub is_stale: bool,
}

/// A virtual server that exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedServer {
    /// Its key and settings.
    pub virtual_server: VirtualServer,
    /// Its real servers.
    pub real_servers: BTreeMap<RealServerKey, RealServer>,
}

/// One of our sets that exists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedSet {
    /// Name, type and options.
    pub definition: Set,
    /// Its entries.
    pub entries: BTreeSet<Entry>,
}

impl ObservedSet {
    /// Whether the set can serve as the one wanted: everything but its sizes is the same.
    #[must_use]
    pub fn serves(&self, wanted: &Set) -> bool {
        let (is, want) = (&self.definition.options, &wanted.options);
        self.definition.set_type == wanted.set_type
            && self.definition.family == wanted.family
            && (is.range, is.netmask, is.bitmask, is.markmask)
                == (want.range, want.netmask, want.bitmask, want.markmask)
            && (is.timeout, is.counters, is.comment, is.skbinfo, is.forceadd)
                == (
                    want.timeout,
                    want.counters,
                    want.comment,
                    want.skbinfo,
                    want.forceadd,
                )
            && want.maxelem.is_none_or(|wanted| is.maxelem == Some(wanted))
    }
}

impl ObservedState {
    /// Whether a virtual server is ours: its address lies on the dummy link, or it is a frontend in one of our sets, or it is
    /// on an address of this node with a port in a node-port set, or this process wanted it earlier.
    #[must_use]
    pub fn is_ours(&self, key: &VirtualServerKey) -> bool {
        let VirtualServerKey::Address {
            address,
            protocol,
            port,
        } = *key
        else {
            return false;
        };
        let bound = AddressKey::host(address).is_ok_and(|host| self.addresses.contains(&host));
        bound || self.given_up.contains(key) || self.marks(address, protocol, port).next().is_some()
    }

    /// The entries in our sets that say that a virtual server is ours.
    pub(crate) fn marks(
        &self,
        address: IpAddr,
        protocol: Protocol,
        port: u16,
    ) -> impl Iterator<Item = (SetId, Entry)> + '_ {
        let family = Family::of(address);
        let on_node = self.node_addresses.iter().any(|node| node.address == address);
        mark_candidates(address, protocol, port, on_node).filter(move |(set, entry)| {
            self.sets
                .get(&(family, *set))
                .is_some_and(|set| set.entries.contains(entry))
        })
    }

    /// Takes the addresses of the host apart by link.
    pub(crate) fn set_host_addresses(
        &mut self,
        link: &kernlink_dummylink::LinkName,
        addresses: Vec<HostAddress>,
    ) {
        self.addresses.clear();
        self.node_addresses.clear();
        for address in addresses {
            let key = address.address.key;
            if address.link != *link {
                let interface = address.link.to_string().into();
                self.node_addresses.insert(InterfaceAddress {
                    interface,
                    address: key.address(),
                });
            } else if !is_link_local_v6(key.address()) {
                self.addresses.insert(key);
            }
        }
    }

    /// Notes an operation that was done.
    pub(crate) fn record(&mut self, operation: &Operation) {
        match operation {
            Operation::Setting(operation) if &*operation.name == CONNTRACK_BUCKETS => {
                self.conntrack_buckets = operation.value.parse().ok();
            }
            Operation::Setting(operation) => {
                self.settings
                    .insert(operation.name.clone(), operation.value.clone());
            }
            Operation::Link(operation) => self.record_link(operation),
            Operation::Set(operation) => self.record_set(operation),
            // What iptables makes of an input is read back before it is needed again.
            Operation::Rules(operation) => {
                if let kernlink_iptables_restore::Operation::Restore(restore) = &**operation {
                    self.rules.remove(&Family::of_tables(restore.family));
                }
            }
            Operation::Ipvs(operation) => self.record_ipvs(operation),
        }
    }

    fn record_link(&mut self, operation: &kernlink_dummylink::Operation) {
        use kernlink_dummylink::Operation;
        match operation {
            Operation::AddLink(_) | Operation::EnsureLink(_) => self.has_link = true,
            Operation::DeleteLink(_) => {
                self.has_link = false;
                self.addresses.clear();
            }
            Operation::AddAddress(_, address) | Operation::EnsureAddress(_, address) => {
                self.addresses.insert(address.key);
            }
            Operation::DeleteAddress(_, key) => {
                self.addresses.remove(key);
            }
            // No plan holds another operation; should one, look again.
            _ => self.is_stale = true,
        }
    }

    fn record_set(&mut self, operation: &kernlink_ipset::Operation) {
        use kernlink_ipset::Operation;
        let Some(key) = SetId::of_name(operation.set()) else {
            self.is_stale = true;
            return;
        };
        match operation {
            Operation::Create { set, .. } => {
                self.sets.entry(key).or_insert_with(|| ObservedSet {
                    definition: (**set).clone(),
                    entries: BTreeSet::new(),
                });
            }
            Operation::Destroy { .. } => {
                self.sets.remove(&key);
            }
            Operation::Add { entry, .. } => {
                if let Some(set) = self.sets.get_mut(&key) {
                    set.entries.insert(entry.clone());
                }
            }
            Operation::Delete { entry, .. } => {
                if let Some(set) = self.sets.get_mut(&key) {
                    set.entries.remove(entry);
                }
            }
            _ => self.is_stale = true,
        }
    }

    fn record_ipvs(&mut self, operation: &kernlink_ipvs::Operation) {
        use kernlink_ipvs::Operation;
        match operation {
            Operation::AddVirtualServer(server) => {
                let observed = ObservedServer {
                    virtual_server: server.clone(),
                    real_servers: BTreeMap::new(),
                };
                self.virtual_servers.insert(server.key, observed);
            }
            Operation::UpdateVirtualServer(server) => {
                if let Some(observed) = self.virtual_servers.get_mut(&server.key) {
                    observed.virtual_server = server.clone();
                }
            }
            Operation::DeleteVirtualServer(key) => {
                self.virtual_servers.remove(key);
            }
            Operation::AddRealServer {
                virtual_server,
                real_server,
            }
            | Operation::UpdateRealServer {
                virtual_server,
                real_server,
            } => {
                if let Some(observed) = self.virtual_servers.get_mut(virtual_server) {
                    observed.real_servers.insert(real_server.key, real_server.clone());
                }
            }
            Operation::DeleteRealServer {
                virtual_server,
                real_server,
            } => {
                if let Some(observed) = self.virtual_servers.get_mut(virtual_server) {
                    observed.real_servers.remove(real_server);
                }
            }
            // Times of zero stay as they are, so what holds now is not what was sent.
            Operation::SetTimeouts(_) => self.timeouts = None,
            _ => self.is_stale = true,
        }
    }
}

/// The entries of which any one would say that a virtual server is ours.
pub(crate) fn mark_candidates(
    address: IpAddr,
    protocol: Protocol,
    port: u16,
    on_node: bool,
) -> impl Iterator<Item = (SetId, Entry)> {
    let set_protocol = match protocol {
        Protocol::Tcp => Some(kernlink_ipset::Protocol::TCP),
        Protocol::Udp => Some(kernlink_ipset::Protocol::UDP),
        Protocol::Sctp => Some(kernlink_ipset::Protocol::SCTP),
        _ => None,
    };
    let frontend = set_protocol
        .map(|protocol| Entry::ip_port(address, kernlink_ipset::ProtocolPort::new(protocol, port)));
    let frontends = frontend.clone().into_iter().flat_map(|entry| {
        [
            SetId::ClusterIp,
            SetId::ExternalIp,
            SetId::ExternalIpLocal,
            SetId::LoadBalancer,
        ]
        .map(|set| (set, entry.clone()))
    });
    let node_port = match protocol {
        Protocol::Tcp => Some((SetId::NodePortTcp, Entry::port(port))),
        Protocol::Udp => Some((SetId::NodePortUdp, Entry::port(port))),
        Protocol::Sctp => frontend.map(|entry| (SetId::NodePortSctp, entry)),
        _ => None,
    };
    frontends.chain(node_port.filter(|_| on_node))
}

/// The virtual servers that an entry marks as ours: by address, or any on this node with a port.
pub(crate) enum Marked {
    /// The one at this address, protocol and port.
    Server(VirtualServerKey),
    /// Those on addresses of this node with this protocol and port.
    NodePort(Protocol, u16),
}

/// What an entry marks, if it is one that marks.
pub(crate) fn marked(set: SetId, entry: &Entry) -> Option<Marked> {
    match (set, entry.element()) {
        (SetId::NodePortTcp, Element::Port(port)) => Some(Marked::NodePort(Protocol::Tcp, *port)),
        (SetId::NodePortUdp, Element::Port(port)) => Some(Marked::NodePort(Protocol::Udp, *port)),
        (
            SetId::ClusterIp
            | SetId::ExternalIp
            | SetId::ExternalIpLocal
            | SetId::LoadBalancer
            | SetId::NodePortSctp,
            Element::IpPort { ip, port },
        ) => {
            let protocol = Protocol::from_number(u16::from(port.protocol.0));
            Some(Marked::Server(VirtualServerKey::new(*ip, port.port, protocol)))
        }
        _ => None,
    }
}

/// The kernel gives a link that is up an IPv6 address of its own; kube-proxy passes it over, and so do we.
fn is_link_local_v6(address: IpAddr) -> bool {
    matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}
