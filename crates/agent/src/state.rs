//! What the threads of the agent share.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Instant, SystemTime};

use kernlink_proxier::health::{Health, Response, service_health};
use kernlink_proxier::iptables_mode::accounting::{Accounting, AccountingCollector};
use kernlink_proxier::metrics::prometheus::{IntGaugeVec, Opts, Registry};
use kernlink_proxier::metrics::{Metrics, prometheus};
use kernlink_services::HealthCheck;
use kernlink_userspace::AllStats;
use kernlink_userspace::data_path::metrics;

use crate::cluster::Traffic;
use crate::modes::{AnyRunner, AnyStatus, Config, no_status};
use crate::process::ProcessCollector;
use crate::query::status::AfterSync;
use crate::stale::Stale;
use crate::version::COMMIT;

/// What the servers answer from.
#[derive(Debug)]
pub(crate) struct State {
    config: Config,
    metrics: Metrics,
    /// `None` before the first sync may begin, and when the agent ends.
    pub(crate) runner: Option<Box<dyn AnyRunner>>,
    /// Whether the kernel has what a sync made, of this process or of an earlier one.
    pub(crate) is_serving: bool,
    /// Whether only the objects of the folder are synced, because the API server could not be read yet.
    pub(crate) is_partial: bool,
    /// The counters of the proxy in userspace mode.
    pub(crate) proxy: Option<AllStats>,
    /// The health-check node ports by the address that is listened on.
    pub(crate) checks: BTreeMap<SocketAddr, HealthCheck>,
    /// What cannot be read from the API server.
    pub(crate) stale: Stale,
    /// Whether an API server is a source.
    pub(crate) has_api_server: bool,
    /// What the agent waits for before the first sync, for the operator.
    pub(crate) awaited: Option<String>,
    /// What the last sync left.
    pub(crate) after_sync: AfterSync,
    traffic: Traffic,
}

/// Adds the metric with the version of the program. Its labels are those of Kubernetes' components; those of Go have what corresponds to them.
fn add_kubernetes_build_info(registry: &Registry) -> Result<(), prometheus::Error> {
    let options = Opts::new(
        "kubernetes_build_info",
        "[ALPHA] A metric with a constant '1' value labeled by major, minor, git version, git commit, git tree state, build date, Go version, \
         and compiler from which the component was built, and platform on which it is running.",
    );
    let version = format!("v{}", env!("CARGO_PKG_VERSION"));
    let platform = format!("linux/{}", std::env::consts::ARCH);
    let labels = [
        ("major", env!("CARGO_PKG_VERSION_MAJOR")),
        ("minor", env!("CARGO_PKG_VERSION_MINOR")),
        ("git_version", version.as_str()),
        ("git_commit", COMMIT),
        ("compiler", "rustc"),
        ("platform", platform.as_str()),
    ];
    add_info(registry, options, &labels)
}

/// Adds the metric with the version of the program, its commit and its mode.
fn add_build_info(registry: &Registry, config: &Config) -> Result<(), prometheus::Error> {
    let options = Opts::new(
        "kernlink_build_info",
        "1, with the version of the program, the commit that it was built from, and the mode",
    );
    let labels = [
        ("version", env!("CARGO_PKG_VERSION")),
        ("commit", COMMIT),
        ("mode", config.mode().name()),
    ];
    add_info(registry, options, &labels)
}

/// Adds a metric with the value 1.
fn add_info(registry: &Registry, options: Opts, labels: &[(&str, &str)]) -> Result<(), prometheus::Error> {
    let names: Vec<&str> = labels.iter().map(|(name, _)| *name).collect();
    let values: Vec<&str> = labels.iter().map(|(_, value)| *value).collect();
    let gauge = IntGaugeVec::new(options, &names)?;
    gauge.with_label_values(&values).set(1);
    registry.register(Box::new(gauge))
}

/// Access to the state. Poisoning is ignored: every change is a single assignment.
pub(crate) fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    /// # Errors
    /// None in practice, see [`Metrics::new`].
    pub(crate) fn new(config: &Config) -> Result<Self, prometheus::Error> {
        let metrics = Metrics::new()?;
        let traffic = Traffic::new()?;
        traffic.register(metrics.registry())?;
        let stale = Stale::new(metrics.registry())?;
        add_kubernetes_build_info(metrics.registry())?;
        add_build_info(metrics.registry(), config)?;
        metrics.registry().register(Box::new(ProcessCollector::new()?))?;
        Ok(Self {
            config: config.clone(),
            metrics,
            runner: None,
            is_serving: false,
            is_partial: false,
            proxy: None,
            checks: BTreeMap::new(),
            stale,
            has_api_server: false,
            awaited: None,
            after_sync: AfterSync::default(),
            traffic,
        })
    }

    pub(crate) fn config(&self) -> &Config {
        &self.config
    }

    /// The node is eligible for traffic of load balancers if its kernel was programmed, unless its Node object excludes it. A folder need
    /// not have Node objects.
    pub(crate) fn healthz(&self) -> Response {
        let is_eligible =
            self.is_serving && self.with_status(|status| status.is_node_eligible()) != Some(false);
        let response = self
            .health()
            .healthz(Instant::now(), SystemTime::now(), is_eligible);
        self.metrics.on_healthz(response.status);
        response
    }

    /// Adds kube-proxy's metrics of accounting objects to the page.
    pub(crate) fn add_accounting(&self, accounting: Box<dyn Accounting>) -> Result<(), prometheus::Error> {
        let collector = AccountingCollector::new(accounting)?;
        self.metrics.registry().register(Box::new(collector))
    }

    pub(crate) fn livez(&self) -> Response {
        let response = self.health().livez(Instant::now(), SystemTime::now());
        self.metrics.on_livez(response.status);
        response
    }

    /// The page of metrics. The status is copied: making the page takes longer.
    pub(crate) fn metrics(&self) -> Result<String, prometheus::Error> {
        let status = match &self.runner {
            Some(runner) => runner.status(),
            None => no_status(&self.config),
        };
        status.encode(&self.metrics, &mut |page| {
            if let Some(proxy) = &self.proxy {
                metrics::collect(proxy, page);
            }
        })
    }

    /// The answer of a health-check node port. `None` if there is no such port any more.
    pub(crate) fn check(&self, address: SocketAddr) -> Option<Response> {
        let check = self.checks.get(&address)?;
        Some(service_health(check, self.health().is_healthy(Instant::now())))
    }

    /// The metrics on the page.
    pub(crate) fn registry(&self) -> &Registry {
        self.metrics.registry()
    }

    /// Counts requests to the API server.
    pub(crate) fn traffic(&self) -> &Traffic {
        &self.traffic
    }

    fn health(&self) -> Health {
        let mut health = self.with_status(|status| status.health(self.config.sync_period()));
        for (kind, since) in self.stale.iter() {
            health.on_stale(kind, since);
        }
        health
    }

    /// Calls a function with the status.
    pub(crate) fn with_status<T>(&self, mut read: impl FnMut(&dyn AnyStatus) -> T) -> T {
        let Some(runner) = &self.runner else {
            return read(&*no_status(&self.config));
        };
        let mut value = None;
        runner.with_status(&mut |status| value = Some(read(status)));
        // A runner calls it once.
        value.unwrap_or_else(|| read(&*no_status(&self.config)))
    }
}
