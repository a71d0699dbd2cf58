#![doc = include_str!("../README.md")]

mod conntrack;
mod extensions;
pub mod flows;
mod interim;
mod kernel_conntrack;
#[cfg(feature = "kubernetes")]
mod kube_proxy;
mod local_detection;
pub mod lock;
mod masquerade_bit;
mod node_addresses;
mod processors;
mod removal;
mod rules;
#[cfg(feature = "fake")]
mod shared;
mod sysctls;
pub mod watch;

pub use self::conntrack::CONNTRACK_BUCKETS;
pub use self::conntrack::Conntrack;
pub use self::extensions::{Extension, MissingExtensions};
pub use self::flows::DeleteFlows;
pub use self::interim::{interim, interim_rules, name_of_chain};
pub use self::kernel_conntrack::KernelConntrack;
#[cfg(feature = "kubernetes")]
pub use self::kube_proxy::services_from_kube_proxy;
#[cfg(feature = "kubernetes")]
pub use self::kube_proxy::{FromFile, Problems};
pub use self::local_detection::LocalDetection;
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
pub use self::sysctls::FakeSysctls;
pub use self::sysctls::{KernelSysctls, Sysctl, SysctlError, SysctlErrorCause, Sysctls};
