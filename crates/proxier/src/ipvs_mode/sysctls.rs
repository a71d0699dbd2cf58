//! The sysctls that must have a value, by kernel version.

use std::fmt;
use std::str::FromStr;

use super::config::Config;

/// A sysctl that must have a value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sysctl {
    /// The name, with dots.
    pub name: &'static str,
    /// The value.
    pub value: u64,
}

impl fmt::Display for Sysctl {
    /// As `sysctl` prints it: `net.ipv4.ip_forward = 1`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = {}", self.name, self.value)
    }
}

/// The version of a kernel, as far as it matters here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct KernelVersion {
    /// The 6 of 6.1.
    pub major: u32,
    /// The 1 of 6.1.
    pub minor: u32,
}

impl KernelVersion {
    /// A version.
    #[must_use]
    pub fn new(major: u32, minor: u32) -> Self {
        Self { major, minor }
    }
}

impl fmt::Display for KernelVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// A text that is no kernel version.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} does not begin with a kernel version such as 6.1")]
pub struct ParseKernelVersionError(pub String);

impl FromStr for KernelVersion {
    type Err = ParseKernelVersionError;

    /// Reads what `uname -r` prints, such as `6.1.0-13-amd64`; what follows the second number does not matter.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut numbers = text.trim().splitn(3, '.').map(|part| {
            let digits = part.find(|c: char| !c.is_ascii_digit()).unwrap_or(part.len());
            part.get(..digits)?.parse::<u32>().ok()
        });
        match (numbers.next().flatten(), numbers.next().flatten()) {
            (Some(major), Some(minor)) => Ok(Self { major, minor }),
            _ => Err(ParseKernelVersionError(text.to_owned())),
        }
    }
}

/// The parameter of the module nf_conntrack for the number of buckets of the connection table, as a path.
pub(super) const CONNTRACK_BUCKETS: &str = "/sys/module/nf_conntrack/parameters/hashsize";

/// The sysctls that must have a value, sorted by name; all others are left alone. `processors` is the number from which the limit of
/// tracked connections is computed.
#[must_use]
pub fn sysctls(config: &Config, kernel: KernelVersion, processors: u32) -> Vec<Sysctl> {
    let mut wanted = vec![
        // Without it iptables does not see what IPVS translates.
        ("net.ipv4.vs.conntrack", 1),
        ("net.ipv4.vs.expire_nodest_conn", 1),
        ("net.ipv4.vs.expire_quiescent_template", 1),
        ("net.ipv4.ip_forward", 1),
    ];
    // Before Linux 5.9 a reused source port is delayed by a second with 1; before 4.1 the sysctl did not exist.
    if (KernelVersion::new(4, 1)..KernelVersion::new(5, 9)).contains(&kernel) {
        wanted.push(("net.ipv4.vs.conn_reuse_mode", 0));
    }
    if config.strict_arp {
        wanted.extend([
            ("net.ipv4.conf.all.arp_ignore", 1),
            ("net.ipv4.conf.all.arp_announce", 2),
        ]);
    }
    let conntrack = &config.conntrack;
    wanted.extend(conntrack_max(config, processors).map(|max| ("net.netfilter.nf_conntrack_max", max)));
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
            wanted.push((name, timeout.as_secs()));
        }
    }
    if conntrack.tcp_be_liberal {
        wanted.push(("net.netfilter.nf_conntrack_tcp_be_liberal", 1));
    }
    let mut sysctls: Vec<_> = wanted
        .into_iter()
        .map(|(name, value)| Sysctl { name, value })
        .collect();
    sysctls.sort();
    sysctls
}

/// The least number of buckets of the connection table (module parameter `hashsize`). `None`: it is left alone.
#[must_use]
pub fn conntrack_buckets(config: &Config, processors: u32) -> Option<u64> {
    conntrack_max(config, processors).map(|max| max / 4)
}

/// How many connections may be tracked: a number per processor, at least the minimum, and at most kube-proxy's limit even where the
/// minimum is greater.
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

/// The limit since kube-proxy 1.36.
const MOST_CONNECTIONS: u64 = 1_048_576;
