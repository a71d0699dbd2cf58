//! Virtual servers and real servers.

use std::net::Ipv4Addr;
use std::sync::Arc;

use ipnet::Ipv4Net;
use kernlink_ipvs::{
    ForwardingMethod, Granularity, Persistence, Protocol as IpvsProtocol, RealServer, RealServerKey,
    Scheduler, SchedulerFlags, VirtualServer, VirtualServerKey, Weight,
};

use crate::family::Family;
use crate::model::{Exposure, Forwarding, Frontend};
use crate::source::{Policy, Protocol};

/// The key of the virtual server of a frontend.
pub(crate) fn key(frontend: &Frontend) -> VirtualServerKey {
    let protocol = match frontend.protocol {
        Protocol::Tcp => IpvsProtocol::Tcp,
        Protocol::Udp => IpvsProtocol::Udp,
        Protocol::Sctp => IpvsProtocol::Sctp,
    };
    VirtualServerKey::new(frontend.address, frontend.port, protocol)
}

/// The virtual server of a frontend.
pub(crate) fn virtual_server(exposure: &Exposure, frontend: &Frontend) -> VirtualServer {
    let options = &exposure.options;
    let mut server = VirtualServer::new(key(frontend), options.scheduler);
    server.scheduler_flags = scheduler_flags(options.scheduler, options.scheduler_flags);
    server.one_packet = options.one_packet && frontend.protocol == Protocol::Udp;
    server.persistence = frontend.affinity.and_then(|timeout| {
        let persistence = Persistence::new(timeout).ok()?;
        let granularity = granularity(exposure.key.family, options.affinity_mask.of(exposure.key.family));
        Some(persistence.with_granularity(granularity))
    });
    server
}

/// How much of an address is one client. The prefix length was read as one of the family; the kernel takes it as a mask for IPv4.
fn granularity(family: Family, prefix: u8) -> Granularity {
    match family {
        Family::V4 => Ipv4Net::new(Ipv4Addr::UNSPECIFIED, prefix)
            .map_or(Granularity::ADDRESS, |net| Granularity::from_mask(net.netmask())),
        Family::V6 => Granularity::from_prefix_length(prefix).unwrap_or(Granularity::ADDRESS),
    }
}

/// The flags asked for; without any, `mh` hashes the source port too, as kube-proxy sets it.
fn scheduler_flags(scheduler: Scheduler, asked: Option<SchedulerFlags>) -> SchedulerFlags {
    match asked {
        Some(flags) => flags,
        None if scheduler == Scheduler::MH => SchedulerFlags::PORT,
        None => SchedulerFlags::empty(),
    }
}

/// How the kernel is to forward packets of a frontend.
fn forwarding(frontend: &Frontend) -> ForwardingMethod {
    match frontend.forwarding {
        Forwarding::Masquerade => ForwardingMethod::Masquerade,
        Forwarding::Direct => ForwardingMethod::DirectRoute,
        Forwarding::Tunnel => ForwardingMethod::Tunnel,
    }
}

/// Makes the real servers of a service port's frontends, each list once.
#[derive(Default)]
pub(crate) struct RealServers(Vec<(Policy, ForwardingMethod, Arc<[RealServer]>)>);

impl RealServers {
    /// The real servers of a frontend, sorted by key.
    pub(crate) fn of(&mut self, exposure: &Exposure, frontend: &Frontend) -> Arc<[RealServer]> {
        let forwarding = forwarding(frontend);
        // Without endpoints here a policy of `Local` takes the same list as one of `Cluster`.
        let policy = if exposure.endpoints.local.is_empty() {
            Policy::Cluster
        } else {
            frontend.policy
        };
        let known = self
            .0
            .iter()
            .find(|known| (known.0, known.1) == (policy, forwarding));
        if let Some((_, _, servers)) = known {
            return Arc::clone(servers);
        }
        let servers = exposure.endpoints.of(policy).iter().map(|endpoint| {
            RealServer::new(RealServerKey::new(endpoint.address, endpoint.port))
                .with_forwarding(forwarding)
                .with_weight(Weight::from(endpoint.weight))
        });
        let servers: Arc<[RealServer]> = servers.collect();
        self.0.push((policy, forwarding, Arc::clone(&servers)));
        servers
    }
}
