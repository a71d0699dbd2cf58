//! The sets: their names and types, and the entries that a frontend needs.
//!
//! Names and types are those of kube-proxy, so that kernlink and kube-proxy can replace each other while traffic flows. In addition there
//! is the ledger, which kube-proxy does not have: the keys of the owned virtual servers.

use std::fmt;
use std::net::IpAddr;

use kernlink_ipset::{Entry, Network, ProtocolPort, Set, SetName, SetType};
use kernlink_ipvs::{Protocol as IpvsProtocol, VirtualServerKey};
use kernlink_services::{Family, Frontend, FrontendKind, Protocol, ServicePort, TrafficPolicy};

use super::drain;
use super::forwarding::Forwarding;

/// One of the sets, in either family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SetId {
    /// Hairpin traffic: connections of an endpoint on this node to itself through its Service.
    LoopBack,
    /// Cluster IPs.
    ClusterIp,
    /// External IPs.
    ExternalIp,
    /// External IPs whose traffic stays on this node.
    ExternalIpLocal,
    /// Load-balancer IPs.
    LoadBalancer,
    /// Load-balancer IPs with restricted sources.
    LoadBalancerFirewall,
    /// Load-balancer IPs whose traffic stays on this node.
    LoadBalancerLocal,
    /// Load-balancer IPs with restricted sources that processes of this node may use.
    LoadBalancerSourceIp,
    /// The sources that may use a load-balancer IP.
    LoadBalancerSourceCidr,
    /// TCP node ports.
    NodePortTcp,
    /// TCP node ports whose traffic stays on this node.
    NodePortLocalTcp,
    /// UDP node ports.
    NodePortUdp,
    /// UDP node ports whose traffic stays on this node.
    NodePortLocalUdp,
    /// SCTP node ports, with address.
    NodePortSctp,
    /// SCTP node ports whose traffic stays on this node, with address.
    NodePortLocalSctp,
    /// Health-check node ports.
    HealthCheckNodePort,
    /// The addresses on the dummy link.
    IpvsIps,
    /// The ledger: address, protocol and port of each virtual server that was written or adopted. No rule reads it.
    Ledger,
}

impl SetId {
    /// The sets of kube-proxy, in its order. Rules read no other sets.
    pub const KUBE_PROXY: &[SetId] = &[
        SetId::LoopBack,
        SetId::ClusterIp,
        SetId::ExternalIp,
        SetId::ExternalIpLocal,
        SetId::LoadBalancer,
        SetId::LoadBalancerFirewall,
        SetId::LoadBalancerLocal,
        SetId::LoadBalancerSourceIp,
        SetId::LoadBalancerSourceCidr,
        SetId::NodePortTcp,
        SetId::NodePortLocalTcp,
        SetId::NodePortUdp,
        SetId::NodePortLocalUdp,
        SetId::NodePortSctp,
        SetId::NodePortLocalSctp,
        SetId::HealthCheckNodePort,
        SetId::IpvsIps,
    ];

    /// All sets: those of kube-proxy, then the ledger.
    pub const ALL: &[SetId] = &[
        SetId::LoopBack,
        SetId::ClusterIp,
        SetId::ExternalIp,
        SetId::ExternalIpLocal,
        SetId::LoadBalancer,
        SetId::LoadBalancerFirewall,
        SetId::LoadBalancerLocal,
        SetId::LoadBalancerSourceIp,
        SetId::LoadBalancerSourceCidr,
        SetId::NodePortTcp,
        SetId::NodePortLocalTcp,
        SetId::NodePortUdp,
        SetId::NodePortLocalUdp,
        SetId::NodePortSctp,
        SetId::NodePortLocalSctp,
        SetId::HealthCheckNodePort,
        SetId::IpvsIps,
        SetId::Ledger,
    ];

    /// Whether an entry exempts a frontend from masquerading, because its traffic stays on this node or keeps its addresses.
    pub(super) fn is_local(self) -> bool {
        matches!(
            self,
            SetId::ExternalIpLocal
                | SetId::LoadBalancerLocal
                | SetId::NodePortLocalTcp
                | SetId::NodePortLocalUdp
                | SetId::NodePortLocalSctp
        )
    }

    /// The set that holds every frontend of the kind, for a local-policy set whose entries are a part of it.
    pub(super) fn whole(self) -> Option<Self> {
        match self {
            SetId::LoadBalancerLocal => Some(SetId::LoadBalancer),
            SetId::NodePortLocalTcp => Some(SetId::NodePortTcp),
            SetId::NodePortLocalUdp => Some(SetId::NodePortUdp),
            SetId::NodePortLocalSctp => Some(SetId::NodePortSctp),
            // An external IP is in one of two sets.
            SetId::ExternalIpLocal => Some(SetId::ExternalIp),
            _ => None,
        }
    }

    /// The position in [`SetId::ALL`].
    #[must_use]
    pub fn index(self) -> usize {
        self as usize
    }

    /// The name in a family. Two names are too long for IPv6; they are truncated to the 31 characters that the kernel accepts, as in
    /// kube-proxy.
    #[must_use]
    pub fn text(self, family: Family) -> &'static str {
        let (v4, v6) = match self {
            SetId::LoopBack => ("KUBE-LOOP-BACK", "KUBE-6-LOOP-BACK"),
            SetId::ClusterIp => ("KUBE-CLUSTER-IP", "KUBE-6-CLUSTER-IP"),
            SetId::ExternalIp => ("KUBE-EXTERNAL-IP", "KUBE-6-EXTERNAL-IP"),
            SetId::ExternalIpLocal => ("KUBE-EXTERNAL-IP-LOCAL", "KUBE-6-EXTERNAL-IP-LOCAL"),
            SetId::LoadBalancer => ("KUBE-LOAD-BALANCER", "KUBE-6-LOAD-BALANCER"),
            SetId::LoadBalancerFirewall => ("KUBE-LOAD-BALANCER-FW", "KUBE-6-LOAD-BALANCER-FW"),
            SetId::LoadBalancerLocal => ("KUBE-LOAD-BALANCER-LOCAL", "KUBE-6-LOAD-BALANCER-LOCAL"),
            SetId::LoadBalancerSourceIp => ("KUBE-LOAD-BALANCER-SOURCE-IP", "KUBE-6-LOAD-BALANCER-SOURCE-IP"),
            SetId::LoadBalancerSourceCidr => (
                "KUBE-LOAD-BALANCER-SOURCE-CIDR",
                "KUBE-6-LOAD-BALANCER-SOURCE-CID",
            ),
            SetId::NodePortTcp => ("KUBE-NODE-PORT-TCP", "KUBE-6-NODE-PORT-TCP"),
            SetId::NodePortLocalTcp => ("KUBE-NODE-PORT-LOCAL-TCP", "KUBE-6-NODE-PORT-LOCAL-TCP"),
            SetId::NodePortUdp => ("KUBE-NODE-PORT-UDP", "KUBE-6-NODE-PORT-UDP"),
            SetId::NodePortLocalUdp => ("KUBE-NODE-PORT-LOCAL-UDP", "KUBE-6-NODE-PORT-LOCAL-UDP"),
            SetId::NodePortSctp => ("KUBE-NODE-PORT-SCTP-HASH", "KUBE-6-NODE-PORT-SCTP-HASH"),
            SetId::NodePortLocalSctp => (
                "KUBE-NODE-PORT-LOCAL-SCTP-HASH",
                "KUBE-6-NODE-PORT-LOCAL-SCTP-HAS",
            ),
            SetId::HealthCheckNodePort => ("KUBE-HEALTH-CHECK-NODE-PORT", "KUBE-6-HEALTH-CHECK-NODE-PORT"),
            SetId::IpvsIps => ("KUBE-IPVS-IPS", "KUBE-6-IPVS-IPS"),
            SetId::Ledger => ("KERNLINK-VS", "KERNLINK-6-VS"),
        };
        match family {
            Family::Ipv4 => v4,
            Family::Ipv6 => v6,
        }
    }

    /// The name in a family, as the kernel takes it.
    #[must_use]
    pub fn name(self, family: Family) -> SetName {
        // The names above have at most 31 characters and no NUL.
        #[expect(clippy::expect_used, reason = "constants that a test checks")]
        SetName::new(self.text(family)).expect("a name of at most 31 characters")
    }

    /// The set that has this name in one of the families.
    #[must_use]
    pub fn of_name(name: &SetName) -> Option<(Family, Self)> {
        let mut all = Family::ALL
            .into_iter()
            .flat_map(|family| Self::ALL.iter().map(move |&set| (family, set)));
        all.find(|(family, set)| name.as_bytes() == set.text(*family).as_bytes())
    }

    /// The type of the set.
    #[must_use]
    pub fn set_type(self) -> SetType {
        match self {
            SetId::LoopBack | SetId::LoadBalancerSourceIp => SetType::HashIpPortIp,
            SetId::LoadBalancerSourceCidr => SetType::HashIpPortNet,
            SetId::NodePortTcp
            | SetId::NodePortLocalTcp
            | SetId::NodePortUdp
            | SetId::NodePortLocalUdp
            | SetId::HealthCheckNodePort => SetType::BitmapPort,
            SetId::IpvsIps => SetType::HashIp,
            _ => SetType::HashIpPort,
        }
    }

    /// The set as it is created, with kube-proxy's sizes; the ledger can have more entries than any set of kube-proxy. The memory of a set
    /// depends on its entries, not on the maximum. Bitmaps have no family, but each family has its own copy.
    #[must_use]
    pub fn definition(self, family: Family) -> Set {
        let set = Set::new(self.name(family), self.set_type());
        if self.set_type() == SetType::BitmapPort {
            return set;
        }
        let maxelem = if self == SetId::Ledger { 1_048_576 } else { 65_536 };
        set.with_family(family).with_hashsize(1_024).with_maxelem(maxelem)
    }

    /// The comment of the rules that read the set. No rule reads the ledger.
    #[must_use]
    pub fn comment(self) -> &'static str {
        match self {
            SetId::LoopBack => "Kubernetes endpoints dst ip:port, source ip for solving hairpin purpose",
            SetId::ClusterIp => "Kubernetes service cluster ip + port for masquerade purpose",
            SetId::ExternalIp => "Kubernetes service external ip + port for masquerade and filter purpose",
            SetId::ExternalIpLocal => {
                "Kubernetes service external ip + port with externalTrafficPolicy=local"
            }
            SetId::LoadBalancer => "Kubernetes service lb portal",
            SetId::LoadBalancerFirewall => {
                "Kubernetes service load balancer ip + port for load balancer with sourceRange"
            }
            SetId::LoadBalancerLocal => {
                "Kubernetes service load balancer ip + port with externalTrafficPolicy=local"
            }
            SetId::LoadBalancerSourceIp => {
                "Kubernetes service load balancer ip + port + source IP for packet filter purpose"
            }
            SetId::LoadBalancerSourceCidr => {
                "Kubernetes service load balancer ip + port + source cidr for packet filter purpose"
            }
            SetId::NodePortTcp => "Kubernetes nodeport TCP port for masquerade purpose",
            SetId::NodePortLocalTcp => "Kubernetes nodeport TCP port with externalTrafficPolicy=local",
            SetId::NodePortUdp => "Kubernetes nodeport UDP port for masquerade purpose",
            SetId::NodePortLocalUdp => "Kubernetes nodeport UDP port with externalTrafficPolicy=local",
            SetId::NodePortSctp => {
                "Kubernetes nodeport SCTP port for masquerade purpose with type 'hash ip:port'"
            }
            SetId::NodePortLocalSctp => {
                "Kubernetes nodeport SCTP port with externalTrafficPolicy=local with type 'hash ip:port'"
            }
            SetId::HealthCheckNodePort => "Kubernetes health check node port",
            SetId::IpvsIps => "Addresses on the ipvs interface",
            SetId::Ledger => "Virtual servers of kernlink",
        }
    }
}

impl fmt::Display for SetId {
    /// The IPv4 name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text(Family::Ipv4))
    }
}

/// The entry with the address, protocol and port of a virtual server, as the ledger and the frontend sets have it. `None` for a firewall
/// mark and for protocols that Services do not have.
pub(super) fn of_virtual_server(key: &VirtualServerKey) -> Option<Entry> {
    let VirtualServerKey::Address {
        address,
        protocol,
        port,
    } = *key
    else {
        return None;
    };
    let protocol = match protocol {
        IpvsProtocol::Tcp => kernlink_ipset::Protocol::TCP,
        IpvsProtocol::Udp => kernlink_ipset::Protocol::UDP,
        IpvsProtocol::Sctp => kernlink_ipset::Protocol::SCTP,
        _ => return None,
    };
    Some(Entry::ip_port(address, ProtocolPort::new(protocol, port)))
}

/// Whether a set is one of IPVS mode: of kube-proxy, the ledger, or the one of deadlines.
#[must_use]
pub fn is_owned(name: &SetName) -> bool {
    SetId::of_name(name).is_some() || drain::family_of_set(name).is_some()
}

/// The entries that exist only as long as a frontend is served.
pub(super) fn of_frontend(frontend: &Frontend, forwarding: Forwarding) -> Vec<(SetId, Entry)> {
    let port = protocol_port(frontend.protocol, frontend.port);
    let own = Entry::ip_port(frontend.address, port);
    // The rules for the sets of local traffic accept packets without masquerading. Packets to an endpoint whose host replies directly
    // must not be masqueraded either: the reply would go to this node, which does not expect it.
    let local = frontend.policy == TrafficPolicy::Local || forwarding.keeps_addresses();
    match frontend.kind {
        FrontendKind::ClusterIp => one(SetId::ClusterIp, own),
        FrontendKind::ExternalIp if local => one(SetId::ExternalIpLocal, own),
        FrontendKind::ExternalIp => one(SetId::ExternalIp, own),
        FrontendKind::LoadBalancer => load_balancer(frontend, port, own, local),
        FrontendKind::NodePort => {
            let (all, stays, entry) = match frontend.protocol {
                Protocol::Tcp => (
                    SetId::NodePortTcp,
                    SetId::NodePortLocalTcp,
                    Entry::port(frontend.port),
                ),
                Protocol::Udp => (
                    SetId::NodePortUdp,
                    SetId::NodePortLocalUdp,
                    Entry::port(frontend.port),
                ),
                Protocol::Sctp => (SetId::NodePortSctp, SetId::NodePortLocalSctp, own),
            };
            if local {
                vec![(all, entry.clone()), (stays, entry)]
            } else {
                vec![(all, entry)]
            }
        }
    }
}

/// One entry, with capacity for those of the ledger and the address.
fn one(set: SetId, entry: Entry) -> Vec<(SetId, Entry)> {
    let mut entries = Vec::with_capacity(3);
    entries.push((set, entry));
    entries
}

fn load_balancer(frontend: &Frontend, port: ProtocolPort, own: Entry, local: bool) -> Vec<(SetId, Entry)> {
    let mut entries = vec![(SetId::LoadBalancer, own.clone())];
    if local {
        entries.push((SetId::LoadBalancerLocal, own.clone()));
    }
    if !frontend.source_ranges.is_empty() {
        entries.push((SetId::LoadBalancerFirewall, own));
        for range in frontend.source_ranges.iter() {
            let entry = Entry::ip_port_net(frontend.address, port, Network::from(*range));
            entries.push((SetId::LoadBalancerSourceCidr, entry));
        }
        if frontend.admits_node {
            // The kernel selects the virtual IP itself as the source address of packets from this node to it.
            let entry = Entry::ip_port_ip(frontend.address, port, frontend.address);
            entries.push((SetId::LoadBalancerSourceIp, entry));
        }
    }
    entries
}

/// The entries of a service port that belong to no frontend: hairpin traffic of its endpoints on this node.
pub(super) fn of_endpoints(port: &ServicePort) -> Vec<(SetId, Entry)> {
    let protocol = port.key.name.protocol;
    let hairpin = |&(address, port): &(IpAddr, u16)| {
        (
            SetId::LoopBack,
            Entry::ip_port_ip(address, protocol_port(protocol, port), address),
        )
    };
    port.local_endpoints.iter().map(hairpin).collect()
}

pub(super) fn protocol_port(protocol: Protocol, port: u16) -> ProtocolPort {
    ProtocolPort::new(protocol.into(), port)
}

/// Whether an observed set that cannot be used as it is can be replaced by the desired one while rules look it up: the kernel swaps only sets of one
/// type and family.
pub(super) fn is_replaceable(observed: &Set, desired: &Set) -> bool {
    (observed.set_type, observed.family) == (desired.set_type, desired.family)
}

/// Whether an observed set can be used as the desired one: it differs at most in its hash size and in the number of entries that it can
/// have. A set that is larger than that of kube-proxy is used as it is.
pub(super) fn is_usable(observed: &Set, desired: &Set) -> bool {
    let (actual, required) = (&observed.options, &desired.options);
    observed.set_type == desired.set_type
        && observed.family == desired.family
        && (actual.range, actual.netmask, actual.bitmask, actual.markmask)
            == (
                required.range,
                required.netmask,
                required.bitmask,
                required.markmask,
            )
        && (
            actual.timeout,
            actual.counters,
            actual.comment,
            actual.skbinfo,
            actual.forceadd,
        ) == (
            required.timeout,
            required.counters,
            required.comment,
            required.skbinfo,
            required.forceadd,
        )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_at_most_31_characters_and_are_truncated_as_by_kube_proxy() {
        assert_eq!(&SetId::ALL[..SetId::KUBE_PROXY.len()], SetId::KUBE_PROXY);
        for &set in SetId::ALL {
            assert_eq!(SetId::ALL[set.index()], set);
        }
        for &set in SetId::KUBE_PROXY {
            let six = set.text(Family::Ipv4).replacen("KUBE-", "KUBE-6-", 1);
            assert_eq!(set.text(Family::Ipv6), &six[..six.len().min(31)]);
            for family in Family::ALL {
                assert_eq!(set.name(family).to_string(), set.text(family));
            }
        }
    }
}
