//! The kinds of objects that cannot be read from the API server.

use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

use kernlink_proxier::metrics::prometheus::{self, GaugeVec, Opts, Registry};
use kernlink_services::Kind;

/// The kinds of objects that cannot be read from the API server, each with the time of the last byte from it. The kernel keeps what
/// was read before.
#[derive(Debug)]
pub(crate) struct Stale {
    since: BTreeMap<Kind, SystemTime>,
    gauge: GaugeVec,
}

impl Stale {
    /// Every kind can be read.
    ///
    /// # Errors
    /// None in practice: the name is valid.
    pub(crate) fn new(registry: &Registry) -> Result<Self, prometheus::Error> {
        let gauge = GaugeVec::new(
            Opts::new(
                "kernlink_api_server_stale_since_seconds",
                "Unix time since which objects of a kind cannot be read from the API server; 0 if they can be read",
            ),
            &["kind"],
        )?;
        registry.register(Box::new(gauge.clone()))?;
        Ok(Self {
            since: BTreeMap::new(),
            gauge,
        })
    }

    /// These kinds are read from an API server: the metric has a value for each of them, also if none ever fails.
    pub(crate) fn follow(&self, kinds: impl IntoIterator<Item = Kind>) {
        for kind in kinds {
            self.gauge.with_label_values(&[kind.to_string()]).set(0.0);
        }
    }

    /// An attempt failed, and since this time nothing was received. Returns whether the kind was not stale before.
    pub(crate) fn on_failed(&mut self, kind: Kind, time: SystemTime) -> bool {
        if self.since.contains_key(&kind) {
            return false;
        }
        self.since.insert(kind, time);
        let seconds = time.duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        self.gauge.with_label_values(&[kind.to_string()]).set(seconds);
        true
    }

    /// The kind is read again. Returns whether it was stale before.
    pub(crate) fn on_recovered(&mut self, kind: Kind) -> bool {
        self.gauge.with_label_values(&[kind.to_string()]).set(0.0);
        self.since.remove(&kind).is_some()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (Kind, SystemTime)> {
        self.since.iter().map(|(kind, since)| (*kind, *since))
    }

    /// One line for the operator. `None` if every kind can be read.
    pub(crate) fn describe(&self) -> Option<String> {
        let kinds: Vec<String> = self.since.keys().map(ToString::to_string).collect();
        let kinds = kinds.join(", ");
        (!kinds.is_empty()).then(|| {
            format!(
                "objects cannot be read from the API server: {kinds}; the kernel keeps what was read before"
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_metric_has_every_kind_that_is_read_before_one_failed() {
        let registry = Registry::new();
        let stale = Stale::new(&registry).unwrap();
        let values = || {
            registry
                .gather()
                .iter()
                .map(|family| family.get_metric().len())
                .sum::<usize>()
        };
        assert_eq!(values(), 0, "there is no API server");
        stale.follow([Kind::Service, Kind::EndpointSlice, Kind::Node]);
        assert_eq!(values(), 3);
        assert_eq!(stale.describe(), None);
    }

    #[test]
    fn a_kind_is_stale_since_the_first_attempt_that_failed() {
        let registry = Registry::new();
        let mut stale = Stale::new(&registry).unwrap();
        let time = UNIX_EPOCH + Duration::from_secs(1_000);
        assert!(stale.on_failed(Kind::Service, time));
        assert!(!stale.on_failed(Kind::Service, time + Duration::from_secs(5)));
        assert!(stale.on_failed(Kind::Node, time));
        assert_eq!(
            stale.iter().collect::<Vec<_>>(),
            [(Kind::Service, time), (Kind::Node, time)]
        );
        let line = "objects cannot be read from the API server: Service, Node; the kernel keeps what was read before";
        assert_eq!(stale.describe().as_deref(), Some(line));
        let value = |kind: &str| stale.gauge.with_label_values(&[kind]).get();
        assert_eq!((value("Service"), value("Node")), (1_000.0, 1_000.0));
        assert!(stale.on_recovered(Kind::Service));
        assert!(stale.on_recovered(Kind::Node));
        assert!(!stale.on_recovered(Kind::Node));
        assert_eq!(stale.describe(), None);
        assert_eq!(stale.gauge.with_label_values(&["Service"]).get(), 0.0);
    }
}
