//! What a data path knows about the UDP flows in connection tracking, and which destinations a pass compares.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use kernlink_base::ErrorChain;
use kernlink_conntrack::Error;
use kernlink_engine::unreadable::FLOWS_UNREADABLE;
use kernlink_services::{Event, Family};

use super::DeleteFlows;

/// What a data path knows about the UDP flows in connection tracking.
///
/// The table is read once, by the first listing. Afterwards only passes read it, and only after changes that make flows stale.
#[derive(Clone, Debug, Default)]
pub struct TrackedFlows {
    reading: Reading,
    observed: BTreeSet<(SocketAddr, SocketAddr)>,
    /// By family.
    stale: [BTreeSet<SocketAddr>; 2],
    is_dirty: [bool; 2],
}

/// Whether a data path has read the table of connection tracking since it started, to find the flows that became stale before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Reading {
    /// Not yet.
    #[default]
    Due,
    /// It was read.
    Done,
    /// The kernel does not have the module: passes are not planned. The next listing tries again.
    Unsupported,
}

impl TrackedFlows {
    /// Whether the table was read.
    #[must_use]
    pub fn reading(&self) -> Reading {
        self.reading
    }

    /// Records an attempt to read the table: destination and reply source of flows. Returns an event if it failed.
    pub fn record_reading(
        &mut self,
        outcome: Result<BTreeSet<(SocketAddr, SocketAddr)>, Error>,
    ) -> Option<Event> {
        let (reading, event) = match outcome {
            Ok(observed) => {
                self.observed = observed;
                (Reading::Done, None)
            }
            Err(error) if error.is_module_missing() => {
                let text = format!("{}; stale UDP flows are not deleted", ErrorChain(&error));
                (
                    Reading::Unsupported,
                    Some(Event::host("ConntrackUnsupported", text)),
                )
            }
            Err(error) => {
                let text = format!(
                    "{}; UDP flows that became stale before the start are not deleted",
                    ErrorChain(&error)
                );
                (Reading::Due, Some(Event::host(FLOWS_UNREADABLE, text)))
            }
        };
        self.reading = reading;
        event
    }

    /// The next listing reads the table again if it was read before.
    pub fn read_again(&mut self) {
        if self.reading == Reading::Done {
            self.reading = Reading::Due;
        }
    }

    /// Takes destination and reply source of the flows that were read, to compare them.
    pub fn take_observed(&mut self) -> BTreeSet<(SocketAddr, SocketAddr)> {
        std::mem::take(&mut self.observed)
    }

    /// The destinations of a family that are compared in any case: their stale flows were not deleted yet.
    #[must_use]
    pub fn stale(&self, family: Family) -> &BTreeSet<SocketAddr> {
        &self.stale[family.index()]
    }

    /// Adds a destination that is compared in any case.
    pub fn add_stale(&mut self, destination: SocketAddr) {
        self.stale[Family::of(destination.ip()).index()].insert(destination);
    }

    /// Records that a pass was done.
    pub fn record(&mut self, pass: &DeleteFlows) {
        for destination in &pass.destinations {
            self.stale[pass.family.index()].remove(&destination.address);
        }
    }

    /// Records that a pass failed: its destinations are those of the next one too, regardless of other changes.
    pub fn record_failure(&mut self, pass: &DeleteFlows) {
        let addresses = pass.destinations.iter().map(|destination| destination.address);
        self.stale[pass.family.index()].extend(addresses);
    }

    /// A pass of a family is to be planned if a destination is [stale](Self::stale).
    pub fn set_dirty(&mut self, family: Family) {
        self.is_dirty[family.index()] = true;
    }

    /// Whether [`set_dirty`](Self::set_dirty) was called.
    #[must_use]
    pub fn is_dirty(&self, family: Family) -> bool {
        self.is_dirty[family.index()]
    }

    /// No pass is to be planned.
    pub fn clear_dirty(&mut self) {
        self.is_dirty = [false; 2];
    }
}
