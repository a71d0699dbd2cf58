//! Limits and timeouts of connection tracking.

use std::time::Duration;

use super::sysctls::Sysctl;

/// Limits and timeouts of connection tracking. Zero keeps the kernel's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Conntrack {
    /// Entries per processor.
    pub max_per_core: u32,
    /// The minimum number of entries in total; has no effect if `max_per_core` is 0.
    pub min: u32,
    /// How long an idle established TCP connection is kept.
    pub tcp_established: Duration,
    /// How long a TCP connection in CLOSE_WAIT is kept.
    pub tcp_close_wait: Duration,
    /// Whether packets outside the TCP window are accepted as packets of their connection.
    pub tcp_be_liberal: bool,
    /// How long a UDP flow without a reply is kept.
    pub udp: Duration,
    /// How long a UDP flow with packets in both directions is kept.
    pub udp_stream: Duration,
}

impl Default for Conntrack {
    /// kube-proxy's defaults.
    fn default() -> Self {
        Self {
            max_per_core: 32_768,
            min: 131_072,
            tcp_established: Duration::from_secs(86_400),
            tcp_close_wait: Duration::from_secs(3_600),
            tcp_be_liberal: false,
            udp: Duration::ZERO,
            udp_stream: Duration::ZERO,
        }
    }
}

/// The path of the parameter of module `nf_conntrack` that is the number of buckets of the connection table.
pub const CONNTRACK_BUCKETS: &str = "/sys/module/nf_conntrack/parameters/hashsize";

/// kube-proxy's limit since 1.36.
const MOST_CONNECTIONS: u64 = 1_048_576;

impl Conntrack {
    /// The desired sysctls, in no particular order. The limit of tracked connections is proportional to `processors`.
    #[must_use]
    pub fn sysctls(&self, processors: u32) -> Vec<Sysctl> {
        let mut desired: Vec<(&str, u64)> = Vec::new();
        desired.extend(
            self.max(processors)
                .map(|max| ("net.netfilter.nf_conntrack_max", max)),
        );
        for (name, timeout) in [
            (
                "net.netfilter.nf_conntrack_tcp_timeout_established",
                self.tcp_established,
            ),
            (
                "net.netfilter.nf_conntrack_tcp_timeout_close_wait",
                self.tcp_close_wait,
            ),
            ("net.netfilter.nf_conntrack_udp_timeout", self.udp),
            ("net.netfilter.nf_conntrack_udp_timeout_stream", self.udp_stream),
        ] {
            if timeout.as_secs() > 0 {
                desired.push((name, timeout.as_secs()));
            }
        }
        if self.tcp_be_liberal {
            desired.push(("net.netfilter.nf_conntrack_tcp_be_liberal", 1));
        }
        let sysctls = desired.into_iter();
        sysctls
            .map(|(name, value)| Sysctl::new(name, value.to_string()))
            .collect()
    }

    /// The minimum number of buckets of the connection table (module parameter `hashsize`). `None`: it is not changed.
    #[must_use]
    pub fn buckets(&self, processors: u32) -> Option<u64> {
        self.max(processors).map(|max| max / 4)
    }

    /// The limit of tracked connections: the number per processor, at least the configured minimum, and at most kube-proxy's limit even if
    /// the minimum is greater.
    fn max(&self, processors: u32) -> Option<u64> {
        if self.max_per_core == 0 {
            return None;
        }
        let product = u64::from(self.max_per_core) * u64::from(processors);
        Some(if product > MOST_CONNECTIONS {
            MOST_CONNECTIONS
        } else {
            product.max(self.min.into())
        })
    }
}
