//! The numbers of desired objects.

use crate::{iptables_mode, ipvs_mode};

/// The numbers of the desired objects of the configured mode.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Totals {
    /// There was no sync yet.
    #[default]
    None,
    /// Those of IPVS mode.
    Ipvs(Box<ipvs_mode::Totals>),
    /// Those of iptables mode.
    Iptables(iptables_mode::Totals),
}
