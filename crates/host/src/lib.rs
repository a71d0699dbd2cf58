#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod conntrack;
pub mod flows;
mod kernel_conntrack;
#[cfg(feature = "kubernetes")]
mod kube_proxy;
mod local_detection;
pub mod lock;
mod masquerade_bit;
mod node_addresses;
mod processors;
#[cfg(feature = "fake")]
mod shared;
mod sysctls;
pub mod watch;

pub use self::conntrack::{CONNTRACK_BUCKETS, Conntrack};
pub use self::flows::DeleteFlows;
pub use self::kernel_conntrack::KernelConntrack;
#[cfg(feature = "kubernetes")]
pub use self::kube_proxy::{FromFile, Problems, services_from_kube_proxy};
pub use self::local_detection::{InterfaceName, InvalidInterface, LocalDetection, LocalSource};
pub use self::lock::Lock;
pub use self::masquerade_bit::{InvalidMasqueradeBit, MasqueradeBit};
pub use self::node_addresses::{IPVS_LINK, node_addresses};
pub use self::processors::processors;
#[cfg(feature = "fake")]
pub use self::shared::Shared;
#[cfg(feature = "fake")]
pub use self::sysctls::FakeSysctls;
pub use self::sysctls::{KernelSysctls, Sysctl, SysctlError, SysctlErrorCause, Sysctls};
