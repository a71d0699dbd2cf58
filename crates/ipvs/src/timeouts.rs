//! Timeouts of idle connections.

use std::time::Duration;

/// The timeouts of idle connections of all virtual servers of a network namespace, in whole seconds.
///
/// The kernel does not change a timeout that is set to zero, so a timeout of zero cannot be set.
#[doc(alias = "--set")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct Timeouts {
    /// TCP connections; 900 seconds in a new namespace.
    #[doc(alias = "IPVS_CMD_ATTR_TIMEOUT_TCP")]
    pub tcp: Duration,
    /// TCP connections after a FIN; 120 seconds in a new namespace.
    #[doc(alias = "IPVS_CMD_ATTR_TIMEOUT_TCP_FIN")]
    pub tcp_fin: Duration,
    /// UDP; 300 seconds in a new namespace.
    #[doc(alias = "IPVS_CMD_ATTR_TIMEOUT_UDP")]
    pub udp: Duration,
}

impl Timeouts {
    /// The longest timeout, in seconds. The kernel stores it in jiffies in 31 bits and refuses longer ones. This value fits at 1000
    /// jiffies per second, the maximum of the kernel's configuration.
    pub const MAX_SECONDS: u32 = i32::MAX as u32 / 1000;

    /// Changes no timeout. The `with_*` methods add timeouts to change.
    pub const UNCHANGED: Self = Self {
        tcp: Duration::ZERO,
        tcp_fin: Duration::ZERO,
        udp: Duration::ZERO,
    };

    /// All three timeouts.
    #[must_use]
    pub fn new(tcp: Duration, tcp_fin: Duration, udp: Duration) -> Self {
        Self { tcp, tcp_fin, udp }
    }

    /// Sets the TCP timeout.
    #[must_use]
    pub fn with_tcp(mut self, tcp: Duration) -> Self {
        self.tcp = tcp;
        self
    }

    /// Sets the TCP timeout after a FIN.
    #[must_use]
    pub fn with_tcp_fin(mut self, tcp_fin: Duration) -> Self {
        self.tcp_fin = tcp_fin;
        self
    }

    /// Sets the UDP timeout.
    #[must_use]
    pub fn with_udp(mut self, udp: Duration) -> Self {
        self.udp = udp;
        self
    }

    /// The timeouts in seconds, in the order of the fields, or name and value of the first invalid one.
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
