#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

pub use kernlink_engine::*;
#[cfg(any(
    feature = "ipvs",
    feature = "iptables",
    feature = "nftables",
    feature = "userspace"
))]
pub use kernlink_host as host;
#[cfg(any(
    feature = "ipvs",
    feature = "iptables",
    feature = "nftables",
    feature = "userspace"
))]
pub use kernlink_host::watch;
#[cfg(feature = "iptables")]
pub use kernlink_iptables_mode as iptables_mode;
#[cfg(feature = "ipvs")]
pub use kernlink_ipvs_mode as ipvs_mode;
#[cfg(feature = "kubernetes")]
pub use kernlink_kubernetes as kubernetes;
#[cfg(any(feature = "ipvs", feature = "iptables", feature = "userspace"))]
pub use kernlink_netfilter as netfilter;
#[cfg(feature = "nftables")]
pub use kernlink_nftables_mode as nftables_mode;
#[cfg(feature = "userspace")]
pub use kernlink_userspace as userspace;
