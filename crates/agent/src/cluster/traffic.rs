//! The numbers of requests and received bytes, as metrics.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use kernlink_services::Kind;
use prometheus::{GaugeVec, HistogramOpts, HistogramVec, IntCounterVec, Opts, Registry};

/// What was requested from the API server, and received from it.
#[derive(Clone, Debug)]
pub struct Traffic {
    requests: IntCounterVec,
    durations: HistogramVec,
    received: IntCounterVec,
    last_received: GaugeVec,
}

/// The bounds of the durations of requests, in seconds, as in client-go.
const SECONDS: [f64; 12] = [0.005, 0.025, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 30.0, 60.0];

impl Traffic {
    /// Nothing was requested.
    ///
    /// # Errors
    /// None in practice: the names are valid and different.
    pub fn new() -> Result<Self, prometheus::Error> {
        let counter =
            |name: &str, help: &str, labels: &[&str]| IntCounterVec::new(Opts::new(name, help), labels);
        Ok(Self {
            requests: counter(
                "rest_client_requests_total",
                "[ALPHA] Number of HTTP requests, partitioned by status code, method, and host.",
                &["code", "host", "method"],
            )?,
            durations: HistogramVec::new(
                HistogramOpts::new(
                    "rest_client_request_duration_seconds",
                    "[ALPHA] Request latency in seconds. Broken down by verb, and host.",
                )
                .buckets(SECONDS.to_vec()),
                &["host", "verb"],
            )?,
            last_received: GaugeVec::new(
                Opts::new(
                    "kernlink_api_server_last_received_timestamp_seconds",
                    "Unix time of the last byte of a list or watch from the API server; the server sends a bookmark about once a minute",
                ),
                &["kind"],
            )?,
            received: counter(
                "kernlink_api_server_received_bytes_total",
                "Bytes of lists and watches from the API server, without headers",
                &["kind"],
            )?,
        })
    }

    /// Adds the metrics to a registry.
    ///
    /// # Errors
    /// If the registry has metrics with these names.
    pub fn register(&self, registry: &Registry) -> Result<(), prometheus::Error> {
        registry.register(Box::new(self.requests.clone()))?;
        registry.register(Box::new(self.durations.clone()))?;
        registry.register(Box::new(self.last_received.clone()))?;
        registry.register(Box::new(self.received.clone()))
    }

    /// Counts a request, with the time until the header of its answer arrived, or until it failed. `code` is `None` if it had no answer,
    /// which is `<error>` in client-go too.
    pub(super) fn on_request(&self, method: &str, host: &str, code: Option<u16>, duration: Duration) {
        self.durations
            .with_label_values(&[host, method])
            .observe(duration.as_secs_f64());
        let code = code.map_or_else(|| "<error>".to_owned(), |code| code.to_string());
        self.requests
            .with_label_values(&[code.as_str(), host, method])
            .inc();
    }

    pub(super) fn on_received(&self, kind: Kind, bytes: usize) {
        let kind = kind.to_string();
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.last_received
            .with_label_values(&[kind.as_str()])
            .set(now.as_secs_f64());
        self.received.with_label_values(&[kind]).inc_by(bytes as u64);
    }
}
