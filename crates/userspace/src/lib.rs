#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

pub mod balance;
pub mod budget;
pub mod data_path;
pub mod flows;
#[cfg(feature = "kubernetes")]
mod kube_proxy;
pub mod limits;
pub mod ports;
pub mod proxy;

pub use self::data_path::{Config, Kernel, Proxier, UserspaceMode};
pub use self::limits::Limits;
pub use self::ports::{PortAllocator, PortRange};
pub use self::proxy::{AllStats, ListenerKey, Proxy, Serving, Stats, Transport};
