//! Virtual servers and real servers.

use std::net::Ipv4Addr;
use std::sync::Arc;

use ipnet::Ipv4Net;
use kernlink_ipvs::{
    ForwardingMethod, Granularity, Persistence, Protocol as IpvsProtocol, RealServer, RealServerKey,
    Scheduler, SchedulerFlags, VirtualServer, VirtualServerKey, Weight,
};
use kernlink_services::{
    ChosenEndpoint, ChosenEndpoints, Family, Frontend, FrontendKey, Protocol, ServicePort, TrafficPolicy,
};

use super::forwarding::Forwarding;
use super::options::IpvsOptions;

/// The key of the virtual server of a frontend.
pub(super) fn key(frontend: &Frontend) -> VirtualServerKey {
    key_of(&FrontendKey::of(frontend))
}

/// The key of the virtual server of the frontend with this key.
#[must_use]
pub fn key_of(frontend: &FrontendKey) -> VirtualServerKey {
    let protocol = kernlink_base::Protocol::from(frontend.protocol);
    VirtualServerKey::new(frontend.address, frontend.port, protocol.into())
}

/// The frontend of a virtual server. `None` if it has no address, or a protocol that no Service has.
#[must_use]
pub fn frontend_of(key: &VirtualServerKey) -> Option<FrontendKey> {
    let protocol = match key.protocol()? {
        IpvsProtocol::Tcp => Protocol::Tcp,
        IpvsProtocol::Udp => Protocol::Udp,
        IpvsProtocol::Sctp => Protocol::Sctp,
        _ => return None,
    };
    Some(FrontendKey {
        address: key.address()?,
        protocol,
        port: key.port()?,
    })
}

/// The virtual server of a frontend.
pub(super) fn virtual_server(
    port: &ServicePort,
    frontend: &Frontend,
    options: &IpvsOptions,
) -> VirtualServer {
    let mut server = VirtualServer::new(key(frontend), options.scheduler);
    server.scheduler_flags = scheduler_flags(options.scheduler, options.scheduler_flags);
    server.one_packet = options.one_packet && frontend.protocol == Protocol::Udp;
    server.persistence = frontend.affinity.and_then(|timeout| {
        let persistence = Persistence::new(timeout).ok()?;
        let granularity = granularity(port.key.family, port.options.affinity_mask.of(port.key.family));
        Some(persistence.with_granularity(granularity))
    });
    server
}

/// The network of a client for session affinity. `prefix` is valid for the family; the kernel takes a mask for IPv4.
fn granularity(family: Family, prefix: u8) -> Granularity {
    match family {
        Family::Ipv4 => Ipv4Net::new(Ipv4Addr::UNSPECIFIED, prefix)
            .map_or(Granularity::ADDRESS, |net| Granularity::from_mask(net.netmask())),
        Family::Ipv6 => Granularity::from_prefix_length(prefix).unwrap_or(Granularity::ADDRESS),
    }
}

/// The configured flags. Without any, `mh` also hashes the source port, as in kube-proxy.
fn scheduler_flags(scheduler: Scheduler, configured: Option<SchedulerFlags>) -> SchedulerFlags {
    match configured {
        Some(flags) => flags,
        None if scheduler == Scheduler::MH => SchedulerFlags::PORT,
        None => SchedulerFlags::empty(),
    }
}

fn forwarding_method(forwarding: Forwarding) -> ForwardingMethod {
    match forwarding {
        Forwarding::Masquerade => ForwardingMethod::Masquerade,
        Forwarding::Direct => ForwardingMethod::DirectRoute,
        Forwarding::Tunnel => ForwardingMethod::Tunnel,
    }
}

/// The endpoints that serve traffic of a policy. For `Local` without endpoints on this node these are all of them, as in kube-proxy's
/// IPVS mode (kubernetes PR 97081).
pub(super) fn serving(endpoints: &ChosenEndpoints, policy: TrafficPolicy) -> &[ChosenEndpoint] {
    match policy {
        TrafficPolicy::Local if !endpoints.local.is_empty() => &endpoints.local,
        TrafficPolicy::Local | TrafficPolicy::Cluster => &endpoints.cluster,
    }
}

/// The real servers of the frontends of a service port. Frontends with the same real servers share one list.
#[derive(Default)]
pub(super) struct RealServers(Vec<(TrafficPolicy, Forwarding, Arc<[RealServer]>)>);

impl RealServers {
    /// The real servers of a frontend, sorted by key.
    pub(super) fn of(
        &mut self,
        port: &ServicePort,
        policy: TrafficPolicy,
        forwarding: Forwarding,
    ) -> Arc<[RealServer]> {
        // Without endpoints on this node the policy `Local` has the same list as `Cluster`.
        let policy = if port.endpoints.local.is_empty() {
            TrafficPolicy::Cluster
        } else {
            policy
        };
        let known = self
            .0
            .iter()
            .find(|known| (known.0, known.1) == (policy, forwarding));
        if let Some((_, _, servers)) = known {
            return Arc::clone(servers);
        }
        let servers = serving(&port.endpoints, policy).iter().map(|endpoint| {
            RealServer::new(RealServerKey::new(endpoint.address, endpoint.port))
                .with_forwarding(forwarding_method(forwarding))
                .with_weight(Weight::from(endpoint.weight))
        });
        let servers: Arc<[RealServer]> = servers.collect();
        self.0.push((policy, forwarding, Arc::clone(&servers)));
        servers
    }
}
