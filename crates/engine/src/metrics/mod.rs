//! Metrics in the text format of Prometheus (feature `metrics`): those of kube-proxy under its names, and others under `kernlink_`.
//!
//! A page is made from a [`Status`] when it is scraped. The HTTP server is the embedder's.
//!
//! Sources: `pkg/proxy/metrics/metrics.go` of
//! [Kubernetes 1.36](https://github.com/kubernetes/kubernetes/blob/release-1.36/pkg/proxy/metrics/metrics.go).

mod families;
mod kube_proxy;
mod own;

pub use prometheus;
use prometheus::{IntCounterVec, Opts, Registry, TextEncoder};

pub use self::families::number;
pub use self::families::{Families, Labels};
use crate::status::Status;

/// The value of the header `Content-Type` for [`Metrics::encode`], as kube-proxy sends it.
pub const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

/// Numbers of a data path that are metrics.
pub trait Collect {
    /// Adds the metrics. `families` are the labels of the families that are served, by [`Family::index`](crate::Family::index).
    fn collect(&self, families: [Option<&'static str>; 2], page: &mut Families);

    /// Whether the durations of syncs that read the whole kernel, and of all others, are metrics of their own, as in kube-proxy's iptables
    /// mode. Default: no.
    fn distinguishes_full_syncs(&self) -> bool {
        false
    }

    /// Whether failed operations of the kinds that `iptables-restore` writes are a metric, as in kube-proxy's modes on iptables. Default: yes.
    fn writes_with_iptables(&self) -> bool {
        true
    }
}

/// The metrics that are counted outside a [`Status`], and the pages.
#[derive(Clone, Debug)]
pub struct Metrics {
    registry: Registry,
    healthz: IntCounterVec,
    livez: IntCounterVec,
}

impl Metrics {
    /// No answers of health endpoints were counted.
    ///
    /// # Errors
    /// None in practice: the names are valid and different.
    pub fn new() -> Result<Self, prometheus::Error> {
        let counter = |name: &str, help: &str| IntCounterVec::new(Opts::new(name, help), &["code"]);
        let metrics = Self {
            registry: Registry::new(),
            healthz: counter(
                "kubeproxy_proxy_healthz_total",
                "[ALPHA] Cumulative proxy healthz HTTP status",
            )?,
            livez: counter(
                "kubeproxy_proxy_livez_total",
                "[ALPHA] Cumulative proxy livez HTTP status",
            )?,
        };
        metrics.registry.register(Box::new(metrics.healthz.clone()))?;
        metrics.registry.register(Box::new(metrics.livez.clone()))?;
        Ok(metrics)
    }

    /// The registry, for metrics of the embedder. They are part of every page.
    #[must_use]
    pub fn registry(&self) -> &Registry {
        &self.registry
    }

    /// Counts an answer of `/healthz` by its HTTP status.
    pub fn on_healthz(&self, status: u16) {
        self.healthz.with_label_values(&[status.to_string()]).inc();
    }

    /// Counts an answer of `/livez` by its HTTP status.
    pub fn on_livez(&self, status: u16) {
        self.livez.with_label_values(&[status.to_string()]).inc();
    }

    /// A page, sorted by name. Its [content type](CONTENT_TYPE) is the text format.
    ///
    /// # Errors
    /// If a metric that the embedder registered is invalid.
    pub fn encode<T>(&self, status: &Status<T>) -> Result<String, prometheus::Error>
    where
        T: Collect,
    {
        self.encode_with(status, |_| {})
    }

    /// A page as [`encode`](Self::encode), with metrics that `add` adds.
    ///
    /// # Errors
    /// As [`encode`](Self::encode).
    pub fn encode_with<T>(
        &self,
        status: &Status<T>,
        add: impl FnOnce(&mut Families),
    ) -> Result<String, prometheus::Error>
    where
        T: Collect,
    {
        let mut page = Families::default();
        kube_proxy::collect(status, &mut page);
        if status.totals.distinguishes_full_syncs() {
            kube_proxy::collect_full_syncs(status, &mut page);
        }
        if status.totals.writes_with_iptables() {
            kube_proxy::collect_restore_failures(status, &mut page);
        }
        own::collect(status, &mut page);
        let mut families = [None; 2];
        for (family, _) in status.served() {
            families[family.index()] = Some(label(family));
        }
        status.totals.collect(families, &mut page);
        add(&mut page);
        TextEncoder::new().encode_to_string(&page.with(self.registry.gather()))
    }
}

/// The label value of a family.
pub(crate) fn label(family: kernlink_services::Family) -> &'static str {
    match family {
        kernlink_services::Family::Ipv4 => "IPv4",
        kernlink_services::Family::Ipv6 => "IPv6",
    }
}
