//! The configurations of modes that need more than that of their data path.

use ipnet::IpNet;
use kernlink_proxier::{iptables_mode, ipvs_mode, nftables_mode};
use kernlink_userspace::{Limits, data_path as userspace};

/// The configuration of iptables mode.
pub type IptablesConfig = AfterIpvs<iptables_mode::Config>;
/// The configuration of nftables mode.
pub type NftablesConfig = AfterIpvs<nftables_mode::Config>;

/// The configuration of a mode whose node IPVS mode may have served.
#[derive(Clone, Debug, PartialEq)]
pub struct AfterIpvs<C> {
    /// That of the data path.
    pub config: C,
    /// Virtual servers in these networks that kube-proxy's IPVS mode left are foreign: they are not removed.
    pub exclude_cidrs: Vec<IpNet>,
}

impl<C> From<C> for AfterIpvs<C> {
    /// Without excluded networks.
    fn from(config: C) -> Self {
        Self {
            config,
            exclude_cidrs: Vec::new(),
        }
    }
}

/// The configuration of userspace mode.
#[derive(Clone, Debug, PartialEq)]
pub struct UserspaceConfig {
    /// That of the data path.
    pub config: userspace::Config,
    /// The limits of the proxy.
    pub limits: Limits,
    /// The configuration of IPVS mode, for the removal of what it left: it decides what is owned. Its Services are those of `config`.
    pub retiring_ipvs: ipvs_mode::Config,
}
