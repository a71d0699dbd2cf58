//! The metrics of iptables mode.

use kernlink_services::Family;

use super::totals::Totals;
use crate::metrics::{Collect, Families, number};

impl Collect for Totals {
    fn collect(&self, families: [Option<&'static str>; 2], page: &mut Families) {
        let mut chains = Vec::new();
        let mut rules = Vec::new();
        for family in Family::ALL {
            let Some(label) = families[family.index()] else {
                continue;
            };
            let totals = self.family(family);
            chains.push(([("ip_family", label)], number(totals.chains as u64)));
            rules.push(([("ip_family", label)], number(totals.shared_rules as u64)));
        }
        page.gauge(
            "kernlink_service_chains",
            "Desired chains of ports of Services and of their endpoints",
            chains.iter().map(|(labels, value)| (&labels[..], *value)),
        );
        page.gauge(
            "kernlink_shared_rules",
            "Desired rules of ports of Services in the chains that all of them share",
            rules.iter().map(|(labels, value)| (&labels[..], *value)),
        );
    }
}
