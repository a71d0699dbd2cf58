//! The sysctls that IPVS mode sets, by kernel release.

use kernlink_base::KernelRelease;
use kernlink_services::Family;

use super::config::Config;
pub(super) use kernlink_host::CONNTRACK_BUCKETS;
pub use kernlink_host::Sysctl;

/// What happens if a desired sysctl has another value: it does not exist, or cannot be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Consequence {
    /// Traffic to new frontends of these families would not work: they wait until the sysctl has its value. Existing ones are kept in step.
    Breaks(&'static [Family], &'static str),
    /// Something is worse; all frontends are served.
    Degrades(&'static str),
}

impl Consequence {
    pub(super) fn text(self) -> &'static str {
        match self {
            Consequence::Breaks(_, text) | Consequence::Degrades(text) => text,
        }
    }
}

/// The consequence of another value, for every sysctl that IPVS mode sets.
pub(super) fn consequence(name: &str) -> Consequence {
    use Consequence::{Breaks, Degrades};
    const IPV4: &[Family] = &[Family::Ipv4];
    match name {
        "net.ipv4.vs.conntrack" => Breaks(
            &Family::ALL,
            "connections through IPVS would not be masqueraded, so that replies do not return through this node; new frontends are not \
             served",
        ),
        "net.ipv4.ip_forward" => Breaks(
            IPV4,
            "replies of endpoints would not be forwarded; new IPv4 frontends are not served",
        ),
        // Another node may have the address too: that of a load balancer which announces it for one node at a time.
        "net.ipv4.conf.all.arp_ignore" | "net.ipv4.conf.all.arp_announce" => Breaks(
            IPV4,
            "this node would answer ARP requests for virtual IPs (`strictARP`) and take the traffic of other nodes; new IPv4 frontends are \
             not served",
        ),
        "net.ipv4.vs.expire_nodest_conn" => {
            Degrades("connections to deleted endpoints hang until the client ends them")
        }
        "net.ipv4.vs.expire_quiescent_template" => Degrades(
            "clients with session affinity stay with an endpoint that was removed until it is deleted",
        ),
        "net.ipv4.vs.conn_reuse_mode" => {
            Degrades("a connection from a source port that was used shortly before is delayed by a second")
        }
        "net.netfilter.nf_conntrack_max" => Degrades(
            "the limit of tracked connections is that of the kernel; beyond it new connections are dropped",
        ),
        CONNTRACK_BUCKETS => Degrades("with many connections each packet takes longer"),
        "net.netfilter.nf_conntrack_tcp_be_liberal" => {
            Degrades("packets outside the TCP window are invalid for connection tracking")
        }
        // The timeouts of connection tracking.
        _ => Degrades("connections are tracked as long as the kernel's value says"),
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_sysctls_without_which_no_connection_works_break_traffic() {
        let mut config = Config::new("node-a");
        config.strict_arp = true;
        config.conntrack.tcp_be_liberal = true;
        let sysctls = sysctls(&config, KernelRelease::new(5, 4), 4);
        let names = sysctls
            .iter()
            .map(|sysctl| &*sysctl.name)
            .chain([CONNTRACK_BUCKETS]);
        let breaking: Vec<&str> = names
            .filter(|name| matches!(consequence(name), Consequence::Breaks(..)))
            .collect();
        assert_eq!(
            breaking,
            [
                "net.ipv4.conf.all.arp_announce",
                "net.ipv4.conf.all.arp_ignore",
                "net.ipv4.ip_forward",
                "net.ipv4.vs.conntrack"
            ]
        );
    }
}
