//! The metrics of the configured mode.

use super::totals::Totals;
use crate::metrics::{Collect, Families};

impl Collect for Totals {
    fn collect(&self, families: [Option<&'static str>; 2], page: &mut Families) {
        match self {
            Totals::None => {}
            Totals::Ipvs(totals) => totals.collect(families, page),
            Totals::Iptables(totals) => totals.collect(families, page),
        }
    }

    fn distinguishes_full_syncs(&self) -> bool {
        match self {
            Totals::None => false,
            Totals::Ipvs(totals) => totals.distinguishes_full_syncs(),
            Totals::Iptables(totals) => totals.distinguishes_full_syncs(),
        }
    }
}
