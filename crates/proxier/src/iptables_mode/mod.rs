//! iptables mode: compiles arbitrated frontends to chains, equal to those of kube-proxy's iptables mode.

pub mod chains;
mod compile;
pub mod config;
#[cfg(feature = "kubernetes")]
mod kube_proxy;
mod listing;
mod names;
mod port_chain;
mod state;
pub mod sysctls;

pub use self::chains::FixedChain;
pub use self::config::Config;
pub use self::listing::Listings;
pub use self::state::State;
