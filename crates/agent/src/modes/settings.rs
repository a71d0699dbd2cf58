//! The configurations of modes that need more than that of their data path.

use ipnet::IpNet;
use kernlink_proxier::{ipvs_mode, nftables_mode};
use kernlink_userspace::{Limits, data_path as userspace};

/// The configuration of nftables mode.
#[derive(Clone, Debug, PartialEq)]
pub struct NftablesConfig {
    /// That of the data path.
    pub config: nftables_mode::Config,
    /// Virtual servers in these networks that kube-proxy's IPVS mode left are foreign: they are not removed.
    pub exclude_cidrs: Vec<IpNet>,
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
