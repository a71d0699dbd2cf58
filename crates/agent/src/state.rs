//! What the servers answer, shared between the threads.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime};

use kernlink_proxier::health::{Health, Response, service_health};
use kernlink_proxier::ipvs_mode::Config;
use kernlink_services::{Family, HealthCheck};

/// The health of the agent.
#[derive(Debug)]
pub(crate) struct State {
    health: Health,
    families: Vec<Family>,
    /// The health-check node ports by the address that is listened on.
    checks: BTreeMap<SocketAddr, HealthCheck>,
}

/// Access to the state. A thread that panicked leaves it valid, since each change of it is a single one.
pub(crate) fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A node whose objects come from a folder is always eligible for traffic of load balancers: no autoscaler adds a taint to a file.
const IS_NODE_ELIGIBLE: bool = true;

impl State {
    pub(crate) fn new(config: &Config) -> Self {
        Self {
            health: Health::new(config.sync_period),
            families: config.services.families.iter().copied().collect(),
            checks: BTreeMap::new(),
        }
    }

    /// A change waits for a sync.
    pub(crate) fn on_change(&mut self, now: Instant) {
        for family in &self.families {
            self.health.on_change(*family, now);
        }
    }

    /// A sync succeeded.
    pub(crate) fn on_synced(&mut self, time: SystemTime) {
        for family in &self.families {
            self.health.on_synced(*family, time);
        }
    }

    pub(crate) fn set_checks(&mut self, checks: BTreeMap<SocketAddr, HealthCheck>) {
        self.checks = checks;
    }

    pub(crate) fn healthz(&self) -> Response {
        self.health
            .healthz(Instant::now(), SystemTime::now(), IS_NODE_ELIGIBLE)
    }

    pub(crate) fn livez(&self) -> Response {
        self.health.livez(Instant::now(), SystemTime::now())
    }

    /// The answer of a health-check node port. `None` if there is no such port any more.
    pub(crate) fn check(&self, address: SocketAddr) -> Option<Response> {
        let check = self.checks.get(&address)?;
        Some(service_health(check, self.health.is_healthy(Instant::now())))
    }
}
