//! The desired state as text.

use kernlink_base::KernelRelease;

use super::state::{ModeState, State};
use crate::{iptables_mode, ipvs_mode};

/// The desired state as text, one listing for each kind of kernel object of the configured mode.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Listings {
    /// Those of IPVS mode.
    Ipvs(Box<ipvs_mode::Listings>),
    /// Those of iptables mode.
    Iptables(Box<iptables_mode::Listings>),
}

impl Listings {
    /// The listings, each with a file name.
    #[must_use]
    pub fn files(&self) -> Vec<(&'static str, &str)> {
        match self {
            Listings::Ipvs(listings) => listings.files().into(),
            Listings::Iptables(listings) => listings.files().into(),
        }
    }
}

impl State {
    /// The whole desired state as text. Sysctls depend on the release of the kernel and on the number of processors.
    #[must_use]
    pub fn listings(&self, kernel: KernelRelease, processors: u32) -> Listings {
        match &self.active {
            ModeState::Ipvs(state) => Listings::Ipvs(Box::new(state.listings(kernel, processors))),
            ModeState::Iptables(state) => Listings::Iptables(Box::new(state.listings(processors))),
        }
    }
}
