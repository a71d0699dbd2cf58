//! The numbers of desired objects.

use kernlink_proxier::metrics::{Collect, Families};
use kernlink_proxier::{iptables_mode, ipvs_mode};
use kernlink_userspace::data_path as userspace;

/// The numbers of the desired objects of the configured mode.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Totals {
    /// There was no sync yet.
    #[default]
    None,
    /// Those of IPVS mode.
    Ipvs(Box<ipvs_mode::Totals>),
    /// Those of iptables mode.
    Iptables(iptables_mode::Totals),
    /// Those of userspace mode.
    Userspace(userspace::Totals),
}

impl Totals {
    fn of_mode(&self) -> Option<&dyn Collect> {
        match self {
            Totals::None => None,
            Totals::Ipvs(totals) => Some(&**totals),
            Totals::Iptables(totals) => Some(totals),
            Totals::Userspace(totals) => Some(totals),
        }
    }
}

impl From<ipvs_mode::Totals> for Totals {
    fn from(totals: ipvs_mode::Totals) -> Self {
        Totals::Ipvs(Box::new(totals))
    }
}

impl From<iptables_mode::Totals> for Totals {
    fn from(totals: iptables_mode::Totals) -> Self {
        Totals::Iptables(totals)
    }
}

impl From<userspace::Totals> for Totals {
    fn from(totals: userspace::Totals) -> Self {
        Totals::Userspace(totals)
    }
}

impl Collect for Totals {
    fn collect(&self, families: [Option<&'static str>; 2], page: &mut Families) {
        if let Some(totals) = self.of_mode() {
            totals.collect(families, page);
        }
    }

    fn distinguishes_full_syncs(&self) -> bool {
        self.of_mode().is_some_and(Collect::distinguishes_full_syncs)
    }
}
