//! The metrics of nftables mode.

use kernlink_engine::metrics::{Collect, Families, number};
use kernlink_services::Family;

use super::totals::Totals;

impl Collect for Totals {
    fn collect(&self, families: [Option<&'static str>; 2], page: &mut Families) {
        let mut frontends = Vec::new();
        let mut endpoints = Vec::new();
        let mut no_local = Vec::new();
        let mut failures = Vec::new();
        let mut cleanups = Vec::new();
        for family in Family::ALL {
            let Some(label) = families[family.index()] else {
                continue;
            };
            let totals = self.family(family);
            let label = ("ip_family", label);
            frontends.push(([label], float(totals.frontends)));
            endpoints.push(([label], float(totals.endpoints)));
            let policies = [
                ("external", totals.no_local_external),
                ("internal", totals.no_local_internal),
            ];
            no_local.extend(
                policies.map(|(policy, number)| ([label, ("traffic_policy", policy)], float(number))),
            );
            failures.push(([label], totals.failures));
            cleanups.push(([label], totals.cleanup_failures));
        }
        page.gauge(
            "kernlink_nftables_frontends",
            "Addresses, protocols and ports of Services",
            frontends.iter().map(|(labels, value)| (&labels[..], *value)),
        );
        page.gauge(
            "kernlink_nftables_endpoints",
            "Endpoints of ports of Services, once for each traffic policy that the port needs",
            endpoints.iter().map(|(labels, value)| (&labels[..], *value)),
        );
        page.gauge(
            "kubeproxy_sync_proxy_rules_no_local_endpoints_total",
            "[ALPHA] Number of services with a Local traffic policy and no endpoints",
            no_local.iter().map(|(labels, value)| (&labels[..], *value)),
        );
        page.counter(
            "kubeproxy_sync_proxy_rules_nftables_sync_failures_total",
            "[ALPHA] Cumulative proxy nftables sync failures",
            failures.iter().map(|(labels, value)| (&labels[..], *value)),
        );
        page.counter(
            "kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total",
            "[ALPHA] Cumulative proxy nftables cleanup failures",
            cleanups.iter().map(|(labels, value)| (&labels[..], *value)),
        );
    }

    fn distinguishes_full_syncs(&self) -> bool {
        true
    }

    fn writes_with_iptables(&self) -> bool {
        false
    }
}

fn float(value: usize) -> f64 {
    number(value as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_not_those_of_tools_that_the_mode_does_not_use() {
        assert!(!Totals::default().writes_with_iptables());
    }
}
