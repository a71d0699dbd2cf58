//! What the threads of the agent share.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use kernlink_proxier::Runner;
use kernlink_proxier::health::{Health, Response, service_health};
use kernlink_proxier::ipvs_mode::IpvsMode;
use kernlink_services::HealthCheck;

/// What the servers answer from.
#[derive(Debug)]
pub(crate) struct State {
    sync_period: Duration,
    /// `None` before the first sync may begin, and when the agent ends.
    pub(crate) runner: Option<Runner<IpvsMode>>,
    /// Whether the kernel has what a sync made, of this process or of a former one.
    pub(crate) is_serving: bool,
    /// The health-check node ports by the address that is listened on.
    pub(crate) checks: BTreeMap<SocketAddr, HealthCheck>,
}

/// Access to the state. A thread that panicked leaves it valid, since each change of it is a single one.
pub(crate) fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    pub(crate) fn new(sync_period: Duration) -> Self {
        Self {
            sync_period,
            runner: None,
            is_serving: false,
            checks: BTreeMap::new(),
        }
    }

    /// The node is eligible for traffic of load balancers if its kernel was programmed, unless its Node object excludes it. A folder need
    /// not have Node objects.
    pub(crate) fn healthz(&self) -> Response {
        let status = self.runner.as_ref().map(Runner::status);
        let is_excluded = status.is_some_and(|status| status.is_node_eligible == Some(false));
        let is_eligible = self.is_serving && !is_excluded;
        self.health()
            .healthz(Instant::now(), SystemTime::now(), is_eligible)
    }

    pub(crate) fn livez(&self) -> Response {
        self.health().livez(Instant::now(), SystemTime::now())
    }

    /// The answer of a health-check node port. `None` if there is no such port any more.
    pub(crate) fn check(&self, address: SocketAddr) -> Option<Response> {
        let check = self.checks.get(&address)?;
        Some(service_health(check, self.health().is_healthy(Instant::now())))
    }

    fn health(&self) -> Health {
        match &self.runner {
            Some(runner) => runner.status().health(self.sync_period),
            None => Health::new(self.sync_period),
        }
    }
}
