//! Metrics of userspace mode.

use kernlink_engine::metrics::{Collect, Families, Labels};
use kernlink_services::Family;

use super::totals::Totals;
use crate::proxy::AllStats;

impl Collect for Totals {
    fn collect(&self, families: [Option<&'static str>; 2], page: &mut Families) {
        page.gauge(
            "kernlink_listening_ports",
            "Desired listening ports",
            [number(self.listeners)],
        );
        page.gauge(
            "kernlink_claimed_ports",
            "Desired ports that are kept free of other programs",
            [number(self.claims)],
        );
        let of_family = |family: Family| {
            let label = families[family.index()]?;
            Some(([("ip_family", label)], number(self.rules[family.index()]).1))
        };
        let rules: Vec<_> = Family::ALL.into_iter().filter_map(of_family).collect();
        page.gauge(
            "kernlink_portal_rules",
            "Desired rules in portal chains",
            rules.iter().map(|(labels, value)| (&labels[..], *value)),
        );
    }
}

fn number(count: usize) -> (Labels<'static>, f64) {
    (&[], f64::from(u32::try_from(count).unwrap_or(u32::MAX)))
}

/// Adds the counters of a proxy: the sums of all its listening ports, also of those that are closed.
pub fn collect(stats: &AllStats, page: &mut Families) {
    let sums = stats.read();
    for (name, help, value) in [
        (
            "opened",
            "TCP connections to endpoints, and UDP flows, that were opened",
            sums.opened,
        ),
        ("ended", "TCP connections and UDP flows that ended", sums.ended),
        (
            "replaced",
            "UDP flows without a reply that ended early because new ones needed their place",
            sums.replaced,
        ),
        (
            "dial_failures",
            "Attempts to connect to an endpoint that failed",
            sums.dial_failures,
        ),
        (
            "without_endpoint",
            "Connections and flows refused because no endpoint could be reached",
            sums.without_endpoint,
        ),
        (
            "shed",
            "Connections and flows refused because of a limit",
            sums.shed,
        ),
        (
            "not_admitted",
            "Connections and flows refused because of their source or destination",
            sums.not_admitted,
        ),
        (
            "half_closed_timeouts",
            "Half-closed connections that ended because of the timeout",
            sums.half_closed_timeouts,
        ),
        ("bytes_in", "Bytes from clients to endpoints", sums.bytes_in),
        ("bytes_out", "Bytes from endpoints to clients", sums.bytes_out),
        (
            "datagrams_in",
            "Datagrams from clients to endpoints",
            sums.datagrams_in,
        ),
        (
            "datagrams_out",
            "Datagrams from endpoints to clients",
            sums.datagrams_out,
        ),
        (
            "datagrams_lost",
            "Datagrams of flows that could not be passed on",
            sums.datagrams_lost,
        ),
    ] {
        let none: Labels<'_> = &[];
        page.counter(&format!("kernlink_userspace_{name}_total"), help, [(none, value)]);
    }
    let (total, taken) = stats.descriptors();
    page.gauge(
        "kernlink_userspace_descriptors",
        "File descriptors that the proxy may use",
        [number(total)],
    );
    page.gauge(
        "kernlink_userspace_descriptors_used",
        "File descriptors that the proxy uses",
        [number(taken)],
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::limits::Limits;
    use crate::proxy::{Proxy, Stats};

    #[test]
    fn every_count_of_the_proxy_is_a_counter() {
        let runtime = tokio::runtime::Runtime::new().unwrap();
        let proxy = Proxy::new(runtime.handle().clone(), Limits::default()).unwrap();
        let mut page = Families::default();
        collect(&proxy.all_stats(), &mut page);
        let page = format!("{page:?}");
        let fields = format!("{:?}", Stats::default());
        let fields = fields.trim_start_matches("Stats {").split(',');
        let names: Vec<&str> = fields
            .filter_map(|field| field.trim().split_once(':'))
            .map(|(name, _)| name)
            .collect();
        assert!(names.contains(&"replaced"), "{names:?}");
        for name in names {
            let counter = format!("kernlink_userspace_{name}_total");
            assert!(page.contains(&counter), "{counter}: {page}");
        }
    }
}
