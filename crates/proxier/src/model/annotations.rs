//! What a Service may ask for beyond Kubernetes.

use std::collections::BTreeMap;

use kernlink_ipvs::{ForwardingMethod, Scheduler, SchedulerFlags};

use crate::event::Reason;
use crate::family::Family;

/// What a Service asks for beyond Kubernetes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// How connections are spread over the endpoints.
    pub scheduler: Scheduler,
    /// What the scheduler is told; `None` leaves it to kernlink.
    pub scheduler_flags: Option<SchedulerFlags>,
    /// Whether every UDP packet is balanced by itself.
    pub one_packet: bool,
    /// How packets to external and load-balancer IPs reach their endpoints.
    pub forwarding: ForwardingMethod,
    /// How much of a client's address counts as the client for session affinity.
    pub affinity_mask: AffinityMask,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            scheduler: Scheduler::RR,
            scheduler_flags: None,
            one_packet: false,
            forwarding: ForwardingMethod::Masquerade,
            affinity_mask: AffinityMask::default(),
        }
    }
}

/// Prefix lengths of what counts as one client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AffinityMask {
    /// Of an IPv4 address, 1 to 32.
    pub v4: u8,
    /// Of an IPv6 address, 1 to 128.
    pub v6: u8,
}

impl AffinityMask {
    /// The prefix length in a family.
    #[must_use]
    pub fn of(self, family: Family) -> u8 {
        match family {
            Family::V4 => self.v4,
            Family::V6 => self.v6,
        }
    }
}

impl Default for AffinityMask {
    /// Each address is a client.
    fn default() -> Self {
        Self { v4: 32, v6: 128 }
    }
}

/// Reads the annotations on top of the defaults.
pub(crate) fn options(
    _annotations: &BTreeMap<String, String>,
    defaults: &Options,
    _say: impl FnMut(Reason),
) -> Options {
    defaults.clone()
}
