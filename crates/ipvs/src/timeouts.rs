//! How long idle connections are kept.

use std::time::Duration;

/// The time-outs of idle connections, for all virtual servers of a network namespace.
///
/// Whole seconds. When set, zero leaves the kernel's value as it is, so that a time-out of zero cannot be set.
#[doc(alias = "--set")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct Timeouts {
    /// TCP sessions; 900 seconds in a new namespace.
    #[doc(alias = "IPVS_CMD_ATTR_TIMEOUT_TCP")]
    pub tcp: Duration,
    /// TCP sessions after a FIN; 120 seconds in a new namespace.
    #[doc(alias = "IPVS_CMD_ATTR_TIMEOUT_TCP_FIN")]
    pub tcp_fin: Duration,
    /// UDP; 300 seconds in a new namespace.
    #[doc(alias = "IPVS_CMD_ATTR_TIMEOUT_UDP")]
    pub udp: Duration,
}

impl Timeouts {
    /// The longest time-out, in seconds: the kernel counts it in jiffies in 31 bits and refuses more; this much fits at
    /// 1000 jiffies a second, the most a kernel is built with.
    pub const MAX_SECONDS: u32 = i32::MAX as u32 / 1000;

    /// Leaves every time-out as it is; change single ones with the `with_*` methods.
    pub const UNCHANGED: Self = Self {
        tcp: Duration::ZERO,
        tcp_fin: Duration::ZERO,
        udp: Duration::ZERO,
    };

    /// All three time-outs.
    pub fn new(tcp: Duration, tcp_fin: Duration, udp: Duration) -> Self {
        Self { tcp, tcp_fin, udp }
    }

    /// The same with another TCP time-out.
    pub fn with_tcp(mut self, tcp: Duration) -> Self {
        self.tcp = tcp;
        self
    }

    /// The same with another time-out after FIN.
    pub fn with_tcp_fin(mut self, tcp_fin: Duration) -> Self {
        self.tcp_fin = tcp_fin;
        self
    }

    /// The same with another UDP time-out.
    pub fn with_udp(mut self, udp: Duration) -> Self {
        self.udp = udp;
        self
    }

    /// The three as seconds, in the kernel's order, or the name and value of the first that is no whole number of
    /// seconds up to the limit.
    pub(crate) fn seconds(&self) -> Result<[u32; 3], (&'static str, Duration)> {
        let seconds = |name, timeout: Duration| match u32::try_from(timeout.as_secs()) {
            Ok(seconds) if timeout.subsec_nanos() == 0 && seconds <= Self::MAX_SECONDS => Ok(seconds),
            _ => Err((name, timeout)),
        };
        Ok([
            seconds("tcp", self.tcp)?,
            seconds("tcp-fin", self.tcp_fin)?,
            seconds("udp", self.udp)?,
        ])
    }
}
