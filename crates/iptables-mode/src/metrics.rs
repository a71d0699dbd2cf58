//! The metrics of iptables mode.

use kernlink_engine::metrics::{Collect, Families, number};
use kernlink_services::Family;

use super::totals::Totals;

impl Collect for Totals {
    fn collect(&self, families: [Option<&'static str>; 2], page: &mut Families) {
        let mut rules = Vec::new();
        let mut written = Vec::new();
        let mut chains = Vec::new();
        let mut shared = Vec::new();
        let mut no_local = Vec::new();
        let mut refused = Vec::new();
        for family in Family::ALL {
            let Some(label) = families[family.index()] else {
                continue;
            };
            let totals = self.family(family);
            let label = ("ip_family", label);
            for (table, total, last) in [
                ("filter", totals.filter_rules, totals.last_filter_rules),
                ("nat", totals.nat_rules, totals.last_nat_rules),
            ] {
                let labels = [label, ("table", table)];
                rules.push((labels, float(total)));
                written.push((labels, float(last)));
            }
            chains.push(([label], float(totals.chains)));
            shared.push(([label], float(totals.shared_rules)));
            let policies = [
                ("external", totals.no_local_external),
                ("internal", totals.no_local_internal),
            ];
            no_local.extend(
                policies.map(|(policy, number)| ([label, ("traffic_policy", policy)], float(number))),
            );
            refused.push(([label], totals.partial_failures));
        }
        page.gauge(
            "kubeproxy_sync_proxy_rules_iptables_total",
            "[ALPHA] Total number of iptables rules owned by kube-proxy",
            rules.iter().map(|(labels, value)| (&labels[..], *value)),
        );
        page.gauge(
            "kubeproxy_sync_proxy_rules_iptables_last",
            "[ALPHA] Number of iptables rules written by kube-proxy in last sync",
            written.iter().map(|(labels, value)| (&labels[..], *value)),
        );
        page.gauge(
            "kernlink_service_chains",
            "Desired chains of ports of Services and of their endpoints",
            chains.iter().map(|(labels, value)| (&labels[..], *value)),
        );
        page.gauge(
            "kernlink_shared_rules",
            "Desired rules of ports of Services in the chains that all of them share",
            shared.iter().map(|(labels, value)| (&labels[..], *value)),
        );
        page.gauge(
            "kubeproxy_sync_proxy_rules_no_local_endpoints_total",
            "[ALPHA] Number of services with a Local traffic policy and no endpoints",
            no_local.iter().map(|(labels, value)| (&labels[..], *value)),
        );
        page.counter(
            "kubeproxy_sync_proxy_rules_iptables_partial_restore_failures_total",
            "[ALPHA] Cumulative proxy iptables partial restore failures",
            refused.iter().map(|(labels, value)| (&labels[..], *value)),
        );
    }

    fn distinguishes_full_syncs(&self) -> bool {
        true
    }
}

fn float(value: usize) -> f64 {
    number(value as u64)
}
