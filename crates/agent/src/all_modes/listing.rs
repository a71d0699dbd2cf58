//! The desired state as text.

use kernlink_base::KernelRelease;
use kernlink_proxier::{iptables_mode, ipvs_mode};

use super::active::Active;
use super::state::State;

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
    /// The whole desired state as text. Sysctls depend on the release of the kernel and on the number of processors. `None` in userspace
    /// mode: its rules depend on the ports at which the process listens.
    #[must_use]
    pub fn listings(&self, kernel: KernelRelease, processors: u32) -> Option<Listings> {
        match &self.active {
            Active::Ipvs(state) => Some(Listings::Ipvs(Box::new(state.listings(kernel, processors)))),
            Active::Iptables(state) => Some(Listings::Iptables(Box::new(state.listings(processors)))),
            Active::Userspace(_) => None,
        }
    }
}
