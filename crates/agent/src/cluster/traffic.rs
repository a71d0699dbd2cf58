//! The numbers of requests and received bytes, as metrics.

use kernlink_services::Kind;
use prometheus::{IntCounterVec, Opts, Registry};

/// What was requested from the API server, and received from it.
#[derive(Clone, Debug)]
pub struct Traffic {
    requests: IntCounterVec,
    received: IntCounterVec,
}

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
        registry.register(Box::new(self.received.clone()))
    }

    /// Counts a request. `code` is `None` if it had no answer, which is `<error>` in client-go too.
    pub(super) fn on_request(&self, method: &str, host: &str, code: Option<u16>) {
        let code = code.map_or_else(|| "<error>".to_owned(), |code| code.to_string());
        self.requests
            .with_label_values(&[code.as_str(), host, method])
            .inc();
    }

    pub(super) fn on_received(&self, kind: Kind, bytes: usize) {
        let kind = kind.to_string();
        self.received.with_label_values(&[kind]).inc_by(bytes as u64);
    }
}
