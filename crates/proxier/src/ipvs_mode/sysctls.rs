//! The sysctls that IPVS mode sets, by kernel release.

use std::fmt;

use kernlink_base::KernelRelease;

use super::config::Config;

/// A sysctl and its value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sysctl {
    /// The name as `sysctl` takes it, such as `net.ipv4.vs.conntrack`. A module parameter is named by its path.
    pub name: Box<str>,
    /// The value as it is written, without white space around it.
    pub value: Box<str>,
}

impl Sysctl {
    /// A sysctl with a value.
    #[must_use]
    pub fn new(name: impl Into<Box<str>>, value: impl Into<Box<str>>) -> Self {
        Self {
            name: name.into(),
            value: value.into(),
        }
    }
}

impl fmt::Display for Sysctl {
    /// As `sysctl` prints it: `net.ipv4.ip_forward = 1`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = {}", self.name, self.value)
    }
}

/// The path of the parameter of module `nf_conntrack` that is the number of buckets of the connection table.
pub(super) const CONNTRACK_BUCKETS: &str = "/sys/module/nf_conntrack/parameters/hashsize";

/// The desired sysctls, sorted by name; no other sysctl is changed. The limit of tracked connections is proportional to `processors`.
#[must_use]
pub fn sysctls(config: &Config, kernel: KernelRelease, processors: u32) -> Vec<Sysctl> {
    let mut desired = vec![
        // Without it iptables does not see the connections that IPVS forwards.
        ("net.ipv4.vs.conntrack", 1),
        ("net.ipv4.vs.expire_nodest_conn", 1),
        ("net.ipv4.vs.expire_quiescent_template", 1),
        ("net.ipv4.ip_forward", 1),
    ];
    // Before Linux 5.9 the value 1 delays a connection from a reused source port by a second. The sysctl exists since 4.1.
    if (KernelRelease::new(4, 1)..KernelRelease::new(5, 9)).contains(&kernel) {
        desired.push(("net.ipv4.vs.conn_reuse_mode", 0));
    }
    if config.strict_arp {
        desired.extend([
            ("net.ipv4.conf.all.arp_ignore", 1),
            ("net.ipv4.conf.all.arp_announce", 2),
        ]);
    }
    let conntrack = &config.conntrack;
    desired.extend(conntrack_max(config, processors).map(|max| ("net.netfilter.nf_conntrack_max", max)));
    for (name, timeout) in [
        (
            "net.netfilter.nf_conntrack_tcp_timeout_established",
            conntrack.tcp_established,
        ),
        (
            "net.netfilter.nf_conntrack_tcp_timeout_close_wait",
            conntrack.tcp_close_wait,
        ),
        ("net.netfilter.nf_conntrack_udp_timeout", conntrack.udp),
        (
            "net.netfilter.nf_conntrack_udp_timeout_stream",
            conntrack.udp_stream,
        ),
    ] {
        if timeout.as_secs() > 0 {
            desired.push((name, timeout.as_secs()));
        }
    }
    if conntrack.tcp_be_liberal {
        desired.push(("net.netfilter.nf_conntrack_tcp_be_liberal", 1));
    }
    let mut sysctls: Vec<_> = desired
        .into_iter()
        .map(|(name, value)| Sysctl::new(name, value.to_string()))
        .collect();
    sysctls.sort();
    sysctls
}

/// The minimum number of buckets of the connection table (module parameter `hashsize`). `None`: it is not changed.
#[must_use]
pub fn conntrack_buckets(config: &Config, processors: u32) -> Option<u64> {
    conntrack_max(config, processors).map(|max| max / 4)
}

/// The limit of tracked connections: the number per processor, at least the configured minimum, and at most kube-proxy's limit even if
/// the minimum is greater.
fn conntrack_max(config: &Config, processors: u32) -> Option<u64> {
    let conntrack = &config.conntrack;
    if conntrack.max_per_core == 0 {
        return None;
    }
    let product = u64::from(conntrack.max_per_core) * u64::from(processors);
    Some(if product > MOST_CONNECTIONS {
        MOST_CONNECTIONS
    } else {
        product.max(conntrack.min.into())
    })
}

/// kube-proxy's limit since 1.36.
const MOST_CONNECTIONS: u64 = 1_048_576;
