//! What the embedder decides: everything that shapes the desired state and is not an object of the cluster.

use std::collections::BTreeSet;
use std::fmt;
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use ipnet::IpNet;
use kernlink_iptables_restore::InterfacePattern;

use crate::family::Family;
use crate::model::Options;

/// The configuration of a proxier. [`Config::new`] has kube-proxy's defaults.
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// The name of this node, as in `nodeName` of endpoints. With an empty name no endpoint counts as local.
    pub node_name: Arc<str>,
    /// The address families to serve; both by default.
    pub families: BTreeSet<Family>,
    /// This node's zone. `None` takes it from the Node object.
    pub zone: Option<Arc<str>>,
    /// This node's addresses, the first being primary. Empty takes them from the Node object.
    pub node_ips: Vec<IpAddr>,
    /// The networks of this node's pods. Empty takes them from the Node object.
    pub pod_cidrs: Vec<IpNet>,
    /// Takes this as the node's address of its family, and its family as primary. An unspecified address says nothing.
    pub bind_address: Option<IpAddr>,
    /// Only Services whose label `service.kubernetes.io/service-proxy-name` has this value are served; `None` serves those
    /// without the label.
    pub service_proxy_name: Option<String>,
    /// What Services get that ask for nothing else: scheduler and the like.
    pub defaults: Options,
    /// Marks all traffic to cluster IPs for masquerading, wherever it comes from.
    pub masquerade_all: bool,
    /// The bit of the packet mark that asks for masquerading.
    pub masquerade_bit: MasqueradeBit,
    /// How traffic from this node's pods is recognised.
    pub local_detection: LocalDetection,
    /// Which addresses of this node take node ports.
    pub node_port_addresses: NodePortAddresses,
    /// Virtual servers in these networks are left alone if they are not ours.
    pub exclude_cidrs: Vec<IpNet>,
    /// Keeps the node from answering ARP for addresses on the dummy link.
    pub strict_arp: bool,
    /// How long IPVS keeps idle connections.
    pub ipvs_timeouts: IpvsTimeouts,
    /// Limits and timeouts of connection tracking.
    pub conntrack: Conntrack,
    /// The longest time without a sync.
    pub sync_period: Duration,
    /// The shortest time between two syncs; 0 is no limit.
    pub min_sync_period: Duration,
    /// The link that carries virtual IPs.
    pub dummy_link: Arc<str>,
    /// Picks source ports at random when masquerading (`--random-fully`); needs iptables 1.6.2.
    pub random_fully: bool,
}

impl Config {
    /// kube-proxy's defaults for a node.
    pub fn new(node_name: impl Into<Arc<str>>) -> Self {
        Self {
            node_name: node_name.into(),
            families: Family::ALL.into(),
            zone: None,
            node_ips: Vec::new(),
            pod_cidrs: Vec::new(),
            bind_address: None,
            service_proxy_name: None,
            defaults: Options::default(),
            masquerade_all: false,
            masquerade_bit: MasqueradeBit::default(),
            local_detection: LocalDetection::ClusterCidr(Vec::new()),
            node_port_addresses: NodePortAddresses::All,
            exclude_cidrs: Vec::new(),
            strict_arp: false,
            ipvs_timeouts: IpvsTimeouts::default(),
            conntrack: Conntrack::default(),
            sync_period: Duration::from_secs(30),
            min_sync_period: Duration::ZERO,
            dummy_link: "kube-ipvs0".into(),
            random_fully: true,
        }
    }
}

/// A bit of the packet mark, 0 to 31.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MasqueradeBit(u8);

impl MasqueradeBit {
    /// The bit of this number.
    ///
    /// # Errors
    /// [`InvalidMasqueradeBit`] for numbers above 31: a packet mark has 32 bits.
    pub fn new(bit: u8) -> Result<Self, InvalidMasqueradeBit> {
        if bit < 32 {
            Ok(Self(bit))
        } else {
            Err(InvalidMasqueradeBit { bit })
        }
    }

    /// The mark with only this bit set.
    #[must_use]
    pub fn mark(self) -> u32 {
        1 << self.0
    }
}

impl Default for MasqueradeBit {
    /// Bit 14, as in kube-proxy.
    fn default() -> Self {
        Self(14)
    }
}

impl fmt::Display for MasqueradeBit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A bit that a packet mark does not have.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("masquerade bit {bit} is not one of 0 to 31")]
pub struct InvalidMasqueradeBit {
    /// The number given.
    pub bit: u8,
}

/// How traffic from this node's pods is recognised; other traffic to a cluster IP is masqueraded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LocalDetection {
    /// By the network of all pods, the first of each family. Without one of a family, traffic of that family is not
    /// recognised.
    ClusterCidr(Vec<IpNet>),
    /// By the network of this node's pods.
    NodeCidr,
    /// By the bridge it comes in from.
    BridgeInterface(InterfacePattern),
    /// By the beginning of the name of the interface it comes in from; the pattern ends in `+`.
    InterfacePrefix(InterfacePattern),
}

impl LocalDetection {
    /// By the beginning of the name of the interface it comes in from.
    ///
    /// # Errors
    /// Where an interface name cannot begin like this.
    pub fn interface_prefix(prefix: &str) -> Result<Self, kernlink_iptables_restore::Error> {
        InterfacePattern::new(&format!("{prefix}+")).map(LocalDetection::InterfacePrefix)
    }

    /// By the bridge it comes in from.
    ///
    /// # Errors
    /// Where an interface cannot have this name.
    pub fn bridge_interface(name: &str) -> Result<Self, kernlink_iptables_restore::Error> {
        InterfacePattern::new(name).map(LocalDetection::BridgeInterface)
    }
}

/// Which addresses of this node take node ports. Loopback addresses never do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum NodePortAddresses {
    /// All.
    #[default]
    All,
    /// Those in these networks. In a family without a network here, all.
    Networks(Vec<IpNet>),
    /// The node's own address in each family, if it has one.
    Primary,
}

/// How long IPVS keeps idle connections; whole seconds, zero leaves the kernel's value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IpvsTimeouts {
    /// Established TCP connections.
    pub tcp: Duration,
    /// TCP connections after a FIN.
    pub tcp_fin: Duration,
    /// UDP.
    pub udp: Duration,
}

impl IpvsTimeouts {
    /// Whether every value is left to the kernel.
    #[must_use]
    pub fn is_unset(&self) -> bool {
        *self == Self::default()
    }
}

/// Limits and timeouts of connection tracking. Zero leaves the kernel's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conntrack {
    /// Entries per processor.
    pub max_per_core: u32,
    /// The fewest entries; only where `max_per_core` is set.
    pub min: u32,
    /// How long an established TCP connection is remembered.
    pub tcp_established: Duration,
    /// How long a TCP connection in CLOSE_WAIT is remembered.
    pub tcp_close_wait: Duration,
    /// Whether packets outside the TCP window still belong to their connection.
    pub tcp_be_liberal: bool,
    /// How long a UDP packet without an answer is remembered.
    pub udp: Duration,
    /// How long a UDP stream is remembered.
    pub udp_stream: Duration,
}

impl Default for Conntrack {
    /// kube-proxy's defaults.
    fn default() -> Self {
        Self {
            max_per_core: 32_768,
            min: 131_072,
            tcp_established: Duration::from_secs(86_400),
            tcp_close_wait: Duration::from_secs(3_600),
            tcp_be_liberal: false,
            udp: Duration::ZERO,
            udp_stream: Duration::ZERO,
        }
    }
}
