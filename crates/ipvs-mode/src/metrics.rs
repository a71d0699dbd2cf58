//! The metrics of IPVS mode.

use kernlink_engine::metrics::{Collect, Families, Labels, number};
use kernlink_services::Family;

use super::sets::SetId;
use super::totals::{FamilyTotals, Totals};

/// A metric of each family.
type Metric = (&'static str, &'static str, fn(&FamilyTotals) -> usize);

const METRICS: [Metric; 5] = [
    ("kernlink_service_ports", "Ports of Services", |totals| {
        totals.service_ports
    }),
    (
        "kernlink_endpoints",
        "Endpoints that were chosen for ports of Services",
        |totals| totals.endpoints,
    ),
    ("kernlink_virtual_servers", "Desired virtual servers", |totals| {
        totals.virtual_servers
    }),
    (
        "kernlink_real_servers",
        "Desired real servers of all virtual servers",
        |totals| totals.real_servers,
    ),
    (
        "kernlink_addresses",
        "Desired addresses of the dummy link",
        |totals| totals.addresses,
    ),
];

impl Collect for Totals {
    fn collect(&self, families: [Option<&'static str>; 2], page: &mut Families) {
        let mut served = Vec::new();
        let mut entries = Vec::new();
        let mut no_local = Vec::new();
        for family in Family::ALL {
            let Some(label) = families[family.index()] else {
                continue;
            };
            let totals = self.family(family);
            let label = ("ip_family", label);
            served.push(([label], totals));
            for &set in SetId::ALL {
                let labels = [label, ("set", set.text(family))];
                entries.push((labels, float(totals.entries[set.index()])));
            }
            let policies = [
                ("external", totals.no_local_external),
                ("internal", totals.no_local_internal),
            ];
            no_local.extend(
                policies.map(|(policy, number)| ([label, ("traffic_policy", policy)], float(number))),
            );
        }
        for (name, help, value) in METRICS {
            let samples = served
                .iter()
                .map(|(labels, totals)| (&labels[..], float(value(totals))));
            page.gauge(name, help, samples);
        }
        page.gauge(
            "kernlink_set_entries",
            "Desired entries of each set",
            entries.iter().map(|(labels, value)| (&labels[..], *value)),
        );
        page.gauge(
            "kubeproxy_sync_proxy_rules_no_local_endpoints_total",
            "[ALPHA] Number of services with a Local traffic policy and no endpoints",
            no_local.iter().map(|(labels, value)| (&labels[..], *value)),
        );
        page.gauge(
            "kernlink_foreign_virtual_servers",
            "Virtual servers that are foreign, as last listed",
            [(&[] as Labels<'_>, float(self.foreign_virtual_servers))],
        );
    }
}

fn float(value: usize) -> f64 {
    number(value as u64)
}
