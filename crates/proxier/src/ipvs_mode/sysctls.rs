//! The sysctls that IPVS mode sets, by kernel release.

use kernlink_base::KernelRelease;

use super::config::Config;
pub(super) use crate::netfilter::CONNTRACK_BUCKETS;
pub use crate::netfilter::Sysctl;

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
    let mut sysctls: Vec<_> = desired
        .into_iter()
        .map(|(name, value)| Sysctl::new(name, value.to_string()))
        .collect();
    sysctls.extend(config.conntrack.sysctls(processors));
    sysctls.sort();
    sysctls
}

/// The minimum number of buckets of the connection table (module parameter `hashsize`). `None`: it is not changed.
#[must_use]
pub fn conntrack_buckets(config: &Config, processors: u32) -> Option<u64> {
    config.conntrack.buckets(processors)
}
