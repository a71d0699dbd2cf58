//! The configuration of userspace mode.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use kernlink_engine::error::InvalidConfig;
use kernlink_engine::schedule::Intervals;
use kernlink_services::Family;

use crate::ports::PortRange;

/// The configuration of userspace mode. [`Config::new`] has the defaults.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Config {
    /// The node, and which of the Services it serves. With a bind address, the ports of its family listen at it only; it must not be a
    /// loopback address.
    pub services: kernlink_services::Config,
    /// The ports from which listening ports are chosen, for each family and protocol. Default: 20000 to 29999.
    pub port_range: PortRange,
    /// Keeps node ports, and ports of external and load-balancer IPs that are addresses of this node, so that no other program can bind
    /// them. If one cannot be kept, the frontend is not served. Default: true.
    pub claims_ports: bool,
    /// The longest time between two syncs, for the embedder's schedule. Default: 30 seconds.
    pub sync_period: Duration,
    /// The shortest time between two syncs, for the embedder's schedule; 0 is no limit. Default: 1 second.
    pub min_sync_period: Duration,
}

impl Config {
    /// The defaults for the node with this name.
    #[must_use]
    pub fn new(node_name: impl Into<Arc<str>>) -> Self {
        Self {
            services: kernlink_services::Config::new(node_name),
            port_range: PortRange::default(),
            claims_ports: true,
            sync_period: Duration::from_secs(30),
            min_sync_period: Duration::from_secs(1),
        }
    }

    /// The intervals of a [`Schedule`](kernlink_engine::Schedule), from `min_sync_period` and `sync_period`.
    #[must_use]
    pub fn intervals(&self) -> Intervals {
        Intervals {
            min: self.min_sync_period,
            max: self.sync_period,
        }
    }

    /// Checks every field.
    ///
    /// # Errors
    /// Everything that is invalid.
    pub fn validate(&self) -> Result<(), InvalidConfig> {
        let mut problems = self.services.problems();
        if let Some(address) = self.services.bind_address.filter(IpAddr::is_loopback) {
            let problem =
                format!("{address} is a loopback address; valid: another address of this node, or none");
            problems.push(("services.bind_address", problem));
        }
        if problems.is_empty() {
            Ok(())
        } else {
            Err(InvalidConfig { problems })
        }
    }

    /// The address at which the ports of a family listen; `None`: at all addresses.
    #[must_use]
    pub fn listen_address(&self, family: Family) -> Option<IpAddr> {
        let address = self.services.bind_address?;
        (Family::of(address) == family && !address.is_unspecified()).then_some(address)
    }
}
