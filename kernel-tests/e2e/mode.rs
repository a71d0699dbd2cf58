//! The mode of the proxies, and what differs in tests and measurements.

use std::env;

use kernlink_kernel_tests::tools;

/// The mode of the agent and of kube-proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Nftables,
    Iptables,
    Ipvs,
}

impl Mode {
    /// That of the variable `KERNLINK_E2E_MODE`.
    pub(crate) fn requested() -> Self {
        let name = env::var("KERNLINK_E2E_MODE").unwrap_or_default();
        let all = [Self::Nftables, Self::Iptables, Self::Ipvs];
        let found = all.into_iter().find(|mode| mode.name() == name);
        found.unwrap_or_else(|| panic!("KERNLINK_E2E_MODE: unknown mode {name:?}"))
    }

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Nftables => "nftables",
            Self::Iptables => "iptables",
            Self::Ipvs => "ipvs",
        }
    }

    /// The flags of the agent in addition to those of all its tests.
    pub(crate) fn flags(self) -> [&'static str; 4] {
        // In nftables mode `--iptables-sync-period` means `nftables.syncPeriod`.
        let sync_period = match self {
            Self::Nftables | Self::Iptables => "--iptables-sync-period",
            Self::Ipvs => "--ipvs-sync-period",
        };
        ["--proxy-mode", self.name(), sync_period, "10m"]
    }

    /// What both the agent and kube-proxy are started with where they are compared, without sysctls that all namespaces share.
    pub(crate) fn common_flags(self) -> Vec<&'static str> {
        let limits = [
            "--conntrack-max-per-core",
            "0",
            "--conntrack-tcp-timeout-established",
            "0s",
            "--conntrack-tcp-timeout-close-wait",
            "0s",
        ];
        [&["--hostname-override", "node-a"], &self.flags()[..], &limits].concat()
    }
}

/// How many cluster IPs of the network 10.96.0.0/16 are in a map of a table of nf_tables, 0 without it: `service-ips` of kube-proxy, or
/// `frontends` of kernlink.
pub(crate) fn in_map(table: &str, map: &str) -> usize {
    // The table may not exist yet.
    let listed = tools::run("nft", &["list", "map", "ip", table, map]).unwrap_or_default();
    listed.matches("10.96.").count()
}
