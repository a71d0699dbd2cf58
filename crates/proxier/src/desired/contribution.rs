//! What one service port wants of the kernel.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::SystemTime;

use kernlink_ipset::Entry;
use kernlink_ipvs::{RealServer, VirtualServer};

use super::sets::SetId;
use super::virtual_servers::{self, RealServers};
use super::{addresses, health_checks, sets};
use crate::event::{Event, Reason};
use crate::model::{Exposure, Forwarding, Frontend, FrontendKind, HealthCheck, ServicePortKey};
use crate::source::{Policy, Protocol};

/// What one service port wants of the kernel in one family. What it gets is decided by the claims of all.
#[derive(Clone, Debug, PartialEq)]
pub struct Contribution {
    /// The service port.
    pub key: ServicePortKey,
    /// When its Service was created.
    pub created: Option<SystemTime>,
    /// One claim for each address and port, no key twice.
    pub frontends: Vec<FrontendClaim>,
    /// Entries that belong to no frontend.
    pub entries: Vec<(SetId, Entry)>,
    /// The health-check node port.
    pub health_check: Option<HealthCheck>,
    /// What an operator should know.
    pub events: Vec<Event>,
}

/// What a frontend wants: all of it or nothing.
#[derive(Clone, Debug, PartialEq)]
pub struct FrontendClaim {
    /// The kind; where a Service names one address twice, the first.
    pub kind: FrontendKind,
    /// Whether its traffic stays on this node.
    pub policy: Policy,
    /// How packets get to its endpoints.
    pub forwarding: Forwarding,
    /// Its virtual server.
    pub virtual_server: VirtualServer,
    /// Its real servers, sorted by key.
    pub real_servers: Arc<[RealServer]>,
    /// The address to bind.
    pub address: Option<IpAddr>,
    /// Its set entries.
    pub entries: Vec<(SetId, Entry)>,
    /// Set where processes of this node must not reach it.
    pub blocked: Option<Blocked>,
}

/// A frontend that processes of this node must not reach, because the node is in none of its source ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Blocked {
    /// The virtual IP.
    pub address: IpAddr,
    /// The protocol.
    pub protocol: Protocol,
    /// The port.
    pub port: u16,
}

/// Maps a service port to what it wants: the one place where virtual servers, addresses and sets are decided for it.
#[must_use]
pub fn contribution(exposure: Exposure) -> Contribution {
    let mut real_servers = RealServers::default();
    let mut events = Vec::new();
    let mut frontends: Vec<FrontendClaim> = Vec::with_capacity(exposure.frontends.len());
    for frontend in &exposure.frontends {
        let claim = claim(&exposure, frontend, &mut real_servers);
        let key = claim.virtual_server.key;
        match frontends.iter_mut().find(|known| known.virtual_server.key == key) {
            None => frontends.push(claim),
            // One Service may name an address twice, as external IP and for its load balancer, say. That is no conflict where
            // both want the same servers.
            Some(known) if known.agrees_with(&claim) => known.merge(claim),
            Some(_) => events.push(Event::service(
                exposure.key.name.service.clone(),
                Reason::Conflict {
                    kind: frontend.kind,
                    address: frontend.address,
                    port: frontend.port,
                    protocol: frontend.protocol,
                    owner: exposure.key.name.clone(),
                },
            )),
        }
    }
    let mut entries = sets::of_endpoints(&exposure);
    entries.extend(exposure.health_check.as_ref().map(health_checks::entry));
    events.extend(exposure.events);
    Contribution {
        key: exposure.key,
        created: exposure.created,
        frontends,
        entries,
        health_check: exposure.health_check,
        events,
    }
}

fn claim(exposure: &Exposure, frontend: &Frontend, real_servers: &mut RealServers) -> FrontendClaim {
    let address = addresses::of_frontend(frontend);
    let mut entries = sets::of_frontend(frontend);
    entries.extend(address.map(|address| (SetId::IpvsIps, Entry::ip(address))));
    FrontendClaim {
        kind: frontend.kind,
        policy: frontend.policy,
        forwarding: frontend.forwarding,
        virtual_server: virtual_servers::virtual_server(exposure, frontend),
        real_servers: real_servers.of(exposure, frontend),
        address,
        entries,
        blocked: (!frontend.admits_node).then_some(Blocked {
            address: frontend.address,
            protocol: frontend.protocol,
            port: frontend.port,
        }),
    }
}

impl FrontendClaim {
    fn agrees_with(&self, other: &Self) -> bool {
        self.policy == other.policy
            && self.forwarding == other.forwarding
            && self.virtual_server == other.virtual_server
    }

    fn merge(&mut self, other: Self) {
        self.address = self.address.or(other.address);
        self.blocked = self.blocked.or(other.blocked);
        for entry in other.entries {
            if !self.entries.contains(&entry) {
                self.entries.push(entry);
            }
        }
    }
}
