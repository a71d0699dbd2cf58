//! The desired state as text.

use kernlink_base::KernelRelease;
use kernlink_proxier::{iptables_mode, ipvs_mode, nftables_mode};
use kernlink_services::{Changes, Services};

/// The desired state as text, one listing for each kind of kernel object of the configured mode.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Listings {
    /// Those of IPVS mode.
    Ipvs(Box<ipvs_mode::Listings>),
    /// Those of iptables mode.
    Iptables(Box<iptables_mode::Listings>),
    /// Those of nftables mode.
    Nftables(Box<nftables_mode::Listings>),
}

impl Listings {
    /// The listings, each with a file name.
    #[must_use]
    pub fn files(&self) -> Vec<(&'static str, &str)> {
        match self {
            Listings::Ipvs(listings) => listings.files().into(),
            Listings::Iptables(listings) => listings.files().into(),
            Listings::Nftables(listings) => listings.files().into(),
        }
    }
}

/// Services, and the facts that a desired state depends on.
#[derive(Clone, Copy, Debug)]
pub struct Desired<'a> {
    /// The Services.
    pub services: &'a Services,
    /// Their changes: everything.
    pub changes: &'a Changes,
    /// The release of the kernel, which decides about sysctls.
    pub kernel: KernelRelease,
    /// The number of processors, which decides about sysctls.
    pub processors: u32,
}
