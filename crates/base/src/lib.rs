#![doc = include_str!("../README.md")]
#![cfg_attr(docsrs, feature(doc_cfg))]

mod backoff;
pub mod contract;
mod error_chain;
mod family;
mod kernel_release;
mod modules;
pub mod parallel;
mod protocol;
#[cfg(feature = "serde")]
#[doc(hidden)]
pub mod serialization;

pub use backoff::Backoff;
pub use error_chain::ErrorChain;
pub use family::{Family, ParseFamilyError};
pub use kernel_release::{KernelRelease, ParseKernelReleaseError};
pub use modules::Modules;
pub use protocol::{ParseProtocolError, Protocol};
