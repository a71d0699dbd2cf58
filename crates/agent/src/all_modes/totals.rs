//! The numbers of desired objects.

use kernlink_proxier::any_mode;
use kernlink_proxier::metrics::{Collect, Families};
use kernlink_userspace::data_path as userspace;

/// The numbers of the desired objects of the configured mode.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Totals {
    /// There was no sync yet.
    #[default]
    None,
    /// Those of iptables or IPVS mode.
    InKernel(any_mode::Totals),
    /// Those of userspace mode.
    Userspace(userspace::Totals),
}

impl Collect for Totals {
    fn collect(&self, families: [Option<&'static str>; 2], page: &mut Families) {
        match self {
            Totals::None => {}
            Totals::InKernel(totals) => totals.collect(families, page),
            Totals::Userspace(totals) => totals.collect(families, page),
        }
    }

    fn distinguishes_full_syncs(&self) -> bool {
        match self {
            Totals::None => false,
            Totals::InKernel(totals) => totals.distinguishes_full_syncs(),
            Totals::Userspace(totals) => totals.distinguishes_full_syncs(),
        }
    }
}
