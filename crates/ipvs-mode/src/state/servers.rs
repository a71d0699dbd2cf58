//! The values of virtual servers: desired and observed.

use std::sync::Arc;

use kernlink_ipvs::{
    ForwardingMethod, ForwardingSummary, RealServer, RealServerKey, RealServerSummary, VirtualServer, Weight,
};
use kernlink_services::ServicePortId;

use crate::drain::Drain;

/// The desired value of a virtual server.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DesiredServer {
    pub(crate) virtual_server: VirtualServer,
    /// Sorted by key, each once.
    pub(crate) real_servers: Arc<[RealServer]>,
    /// How real servers leave that are withdrawn.
    pub(crate) drain: Drain,
    /// The service port that owns it, and the position of the frontend there.
    pub(super) owner: (ServicePortId, u32),
}

impl DesiredServer {
    pub(crate) fn real_server(&self, key: &RealServerKey) -> Option<&RealServer> {
        let found = self.real_servers.binary_search_by_key(key, |server| server.key);
        self.real_servers.get(found.ok()?)
    }
}

impl DesiredServer {
    /// The first real server that takes new connections, if none of those has been added: then the virtual server does not serve.
    pub(crate) fn missing_first(&self, observed: &ObservedServer) -> Option<&RealServer> {
        let mut real_servers = observed.real_servers.iter();
        let accepts = |real: &RealServerKey| {
            let desired = self.real_server(real);
            desired.is_some_and(|desired| !desired.weight.is_draining())
        };
        let serves = real_servers.any(|(real, known)| !known.is_draining() && accepts(real));
        let first = self.real_servers.iter().find(|real| !real.weight.is_draining());
        first.filter(|_| !serves)
    }
}

/// The observed value of a virtual server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ObservedServer {
    pub(crate) virtual_server: VirtualServer,
    /// Sorted by key.
    pub(crate) real_servers: Vec<(RealServerKey, ObservedRealServer)>,
    pub(crate) is_owned: bool,
}

/// The observed value of a real server: the attributes that a listing of all virtual servers contains.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ObservedRealServer {
    weight: Weight,
    forwarding: ForwardingSummary,
}

impl ObservedRealServer {
    /// Whether the listed attributes have the desired values. Thresholds and tunnel attributes are not listed.
    pub(crate) fn agrees_with(self, desired: &RealServer) -> bool {
        self == Self::from(desired)
    }

    /// Whether it has weight 0.
    pub(crate) fn is_draining(self) -> bool {
        self.weight.is_draining()
    }

    /// The same real server with weight 0. A tunnel has the attributes that all tunnels of this data path have.
    pub(crate) fn draining(self, key: RealServerKey) -> RealServer {
        let forwarding = match self.forwarding {
            ForwardingSummary::Local => ForwardingMethod::Local,
            ForwardingSummary::Tunnel => ForwardingMethod::Tunnel,
            ForwardingSummary::DirectRoute => ForwardingMethod::DirectRoute,
            _ => ForwardingMethod::Masquerade,
        };
        RealServer::new(key)
            .with_forwarding(forwarding)
            .with_weight(Weight::DRAINING)
    }
}

impl From<&RealServer> for ObservedRealServer {
    fn from(server: &RealServer) -> Self {
        Self {
            weight: server.weight,
            forwarding: server.forwarding.into(),
        }
    }
}

impl From<&RealServerSummary> for ObservedRealServer {
    fn from(summary: &RealServerSummary) -> Self {
        Self {
            weight: summary.weight,
            forwarding: summary.forwarding,
        }
    }
}

impl ObservedServer {
    /// Whether the attributes and all real servers have the desired values.
    pub(super) fn agrees_with(&self, virtual_server: &VirtualServer, real_servers: &[RealServer]) -> bool {
        self.virtual_server == *virtual_server && self.real_servers_agree(real_servers)
    }

    /// Whether the real servers are the desired ones, which are sorted by key, with their values.
    pub(crate) fn real_servers_agree(&self, desired: &[RealServer]) -> bool {
        let mut pairs = self.real_servers.iter().zip(desired);
        self.real_servers.len() == desired.len()
            && pairs.all(|((key, observed), desired)| *key == desired.key && observed.agrees_with(desired))
    }

    pub(crate) fn real_server(&self, key: &RealServerKey) -> Option<ObservedRealServer> {
        let found = self.real_servers.binary_search_by_key(key, |(key, _)| *key);
        self.real_servers.get(found.ok()?).map(|(_, server)| *server)
    }

    /// Sets or removes the observed value of a real server.
    pub(super) fn set_real_server(&mut self, key: RealServerKey, server: Option<ObservedRealServer>) {
        match (
            self.real_servers.binary_search_by_key(&key, |(key, _)| *key),
            server,
        ) {
            (Ok(position), Some(server)) => {
                if let Some(place) = self.real_servers.get_mut(position) {
                    place.1 = server;
                }
            }
            (Ok(position), None) => _ = self.real_servers.remove(position),
            (Err(position), Some(server)) => self.real_servers.insert(position, (key, server)),
            (Err(_), None) => {}
        }
    }
}
