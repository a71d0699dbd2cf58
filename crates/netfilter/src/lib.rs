#![doc = include_str!("../README.md")]

mod conntrack;
mod extensions;
pub mod flows;
mod kernel_conntrack;
#[cfg(feature = "kubernetes")]
mod kube_proxy;
mod local_detection;
mod local_match;
pub mod lock;
mod masquerade_bit;
mod node_addresses;
mod processors;
mod removal;
mod rules;
#[cfg(feature = "fake")]
mod shared;
#[cfg(feature = "fake")]
mod shared_rules;
mod sysctls;
pub mod watch;
mod watched_tables;

pub use self::conntrack::CONNTRACK_BUCKETS;
pub use self::conntrack::Conntrack;
pub use self::extensions::{Extension, MissingExtensions};
pub use self::flows::DeleteFlows;
pub use self::kernel_conntrack::KernelConntrack;
#[cfg(feature = "kubernetes")]
pub use self::kube_proxy::services_from_kube_proxy;
#[cfg(feature = "kubernetes")]
pub use self::kube_proxy::{FromFile, Problems};
pub use self::local_detection::{InterfaceName, InvalidInterface, LocalDetection, LocalSource};
pub use self::local_match::local_match;
pub use self::lock::Lock;
pub use self::masquerade_bit::{InvalidMasqueradeBit, MasqueradeBit};
pub use self::node_addresses::IPVS_LINK;
pub use self::node_addresses::node_addresses;
pub use self::processors::processors;
pub use self::removal::removal;
pub use self::removal::{Owned, TableRemoval, plan_removal, removed, write_removal};
pub use self::rules::{Jump, rules_code, unreadable_rules};
pub use self::rules::{
    LOOPBACK_IPV4, LOOPBACK_IPV6, TABLES, chain_name, comment_match, frontend_of_rule, mark_match,
    masquerade_sources, node_port_of_rule, read_tables, read_tables_of, unreadable_table, unreadable_tables,
};
#[cfg(feature = "fake")]
pub use self::shared::Shared;
#[cfg(feature = "fake")]
pub use self::shared_rules::SharedRules;
#[cfg(feature = "fake")]
pub use self::sysctls::FakeSysctls;
pub use self::sysctls::{KernelSysctls, Sysctl, SysctlError, SysctlErrorCause, Sysctls};
pub use self::watched_tables::{detect_watch_options, rules_source, watched_tables};
