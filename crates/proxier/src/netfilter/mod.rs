//! What the data paths on iptables have in common: the configuration of masquerading and connection tracking, and sysctls.

mod conntrack;
mod local_detection;
mod masquerade_bit;
mod sysctls;

pub(crate) use self::conntrack::CONNTRACK_BUCKETS;
pub use self::conntrack::Conntrack;
pub use self::local_detection::LocalDetection;
pub use self::masquerade_bit::{InvalidMasqueradeBit, MasqueradeBit};
#[cfg(feature = "fake")]
pub use self::sysctls::FakeSysctls;
pub use self::sysctls::{KernelSysctls, Sysctl, SysctlError, SysctlErrorCause, Sysctls};
