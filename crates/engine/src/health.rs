//! The answers of kube-proxy's health servers, without the servers: `/healthz`, `/livez`, and the health-check node ports of Services
//! (feature `health`).
//!
//! Sources: `pkg/proxy/healthcheck` of
//! [Kubernetes 1.36](https://github.com/kubernetes/kubernetes/tree/release-1.36/pkg/proxy/healthcheck).

use std::collections::BTreeMap;
use std::time::{Duration, Instant, SystemTime};

use jiff::Timestamp;
use kernlink_services::{Family, HealthCheck, Kind};
use serde::Serialize;

/// An HTTP response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Response {
    /// 200 or 503.
    pub status: u16,
    /// Names and values, besides those that every HTTP server adds (`Date`, `Content-Length`).
    pub headers: Vec<(&'static str, String)>,
    /// A JSON object, without a line feed at the end.
    pub body: String,
}

/// Whether the proxier keeps up with changes, per family.
///
/// A family is healthy if no change waits for a sync, or none does for longer than twice the sync period. A family without a first sync
/// is not counted, as in kube-proxy.
#[derive(Clone, Debug)]
pub struct Health {
    /// `None`: a change may wait for any time.
    limit: Option<Duration>,
    families: [FamilyHealth; 2],
    /// The kinds of objects that cannot be read, with the time since when.
    stale: BTreeMap<Kind, SystemTime>,
}

#[derive(Clone, Copy, Debug, Default)]
struct FamilyHealth {
    /// The time of the first change that waits for a sync.
    pending: Option<Instant>,
    /// The end of the last sync.
    updated: Option<SystemTime>,
}

impl Health {
    /// No family has synced. `sync_period` is kube-proxy's `syncPeriod`, such as [`Intervals::max`](crate::Intervals::max).
    /// 0: a change may wait for any time.
    #[must_use]
    pub fn new(sync_period: Duration) -> Self {
        Self {
            limit: Some(sync_period.saturating_mul(2)).filter(|limit| !limit.is_zero()),
            families: [FamilyHealth::default(); 2],
            stale: BTreeMap::new(),
        }
    }

    /// Objects of this kind cannot be read from their source since this time. The answers name it, in a field that kube-proxy does not have
    /// (`staleSince`). Their status does not depend on it: the kernel forwards traffic as before, and if the API server is away, all nodes would
    /// lose the traffic of load balancers at once.
    pub fn on_stale(&mut self, kind: Kind, since: SystemTime) {
        self.stale.insert(kind, since);
    }

    /// A change waits for a sync.
    pub fn on_change(&mut self, family: Family, now: Instant) {
        self.families[family.index()].pending.get_or_insert(now);
    }

    /// A sync ended and the changes before it are in the kernel. Do not call it after a sync that failed.
    pub fn on_synced(&mut self, family: Family, time: SystemTime) {
        self.families[family.index()] = FamilyHealth {
            pending: None,
            updated: Some(time),
        };
    }

    /// Whether every family that has synced is healthy. `true` before the first sync.
    #[must_use]
    pub fn is_healthy(&self, now: Instant) -> bool {
        let synced = self.families.iter().filter(|family| family.updated.is_some());
        synced
            .into_iter()
            .all(|family| self.is_family_healthy(family, now))
    }

    fn is_family_healthy(&self, family: &FamilyHealth, now: Instant) -> bool {
        let waiting = family
            .pending
            .map(|pending| now.saturating_duration_since(pending));
        match (waiting, self.limit) {
            (Some(waiting), Some(limit)) => waiting < limit,
            _ => true,
        }
    }

    /// The response to `GET /healthz`: 200 if the proxier is healthy and the node is eligible for traffic of load balancers. A node is not
    /// eligible while its object is unknown, is being deleted, or has a taint with the key `ToBeDeletedByClusterAutoscaler`.
    #[must_use]
    pub fn healthz(&self, now: Instant, time: SystemTime, is_node_eligible: bool) -> Response {
        self.response(now, time, Some(is_node_eligible))
    }

    /// The response to `GET /livez`: 200 if the proxier is healthy.
    #[must_use]
    pub fn livez(&self, now: Instant, time: SystemTime) -> Response {
        self.response(now, time, None)
    }

    fn response(&self, now: Instant, time: SystemTime, node_eligible: Option<bool>) -> Response {
        let healthy = self.is_healthy(now);
        let is_ok = healthy && node_eligible != Some(false);
        let last = self.families.iter().filter_map(|family| family.updated).max();
        let family = |family: Family| {
            let health = &self.families[family.index()];
            health.updated.map(|updated| FamilyBody {
                last_updated: rfc3339(Some(updated)),
                healthy: self.is_family_healthy(health, now),
            })
        };
        let status = Status {
            ipv4: family(Family::Ipv4),
            ipv6: family(Family::Ipv6),
        };
        let body = Body {
            last_updated: rfc3339(if is_ok { Some(time) } else { last }),
            current_time: rfc3339(Some(time)),
            node_eligible,
            healthy,
            status: last.is_some().then_some(status),
            stale_since: self
                .stale
                .iter()
                .map(|(kind, since)| (kind.to_string(), rfc3339(Some(*since))))
                .collect(),
        };
        Response {
            status: if is_ok { 200 } else { 503 },
            headers: headers(),
            body: serde_json::to_string(&body).unwrap_or_default(),
        }
    }
}

/// The response of a Service's health-check node port, to any path: 200 if the Service has a ready endpoint on this node and the
/// proxier is healthy ([`Health::is_healthy`]).
#[must_use]
pub fn service_health(check: &HealthCheck, is_healthy: bool) -> Response {
    let body = ServiceBody {
        service: ServiceName {
            namespace: &check.service.namespace,
            name: &check.service.name,
        },
        local_endpoints: check.local_endpoints,
        service_proxy_healthy: is_healthy,
    };
    let mut text = Vec::new();
    let formatter = serde_json::ser::PrettyFormatter::with_indent(b"\t");
    // Writing strings and numbers to memory does not fail.
    let _ = body.serialize(&mut serde_json::Serializer::with_formatter(&mut text, formatter));
    let mut headers = headers();
    headers.push((
        "X-Load-Balancing-Endpoint-Weight",
        check.local_endpoints.to_string(),
    ));
    Response {
        status: if check.local_endpoints > 0 && is_healthy {
            200
        } else {
            503
        },
        headers,
        body: String::from_utf8(text).unwrap_or_default(),
    }
}

fn headers() -> Vec<(&'static str, String)> {
    vec![
        ("Content-Type", "application/json".to_owned()),
        ("X-Content-Type-Options", "nosniff".to_owned()),
    ]
}

/// RFC 3339 in UTC. `None`, and what the format cannot express, is Go's zero time.
fn rfc3339(time: Option<SystemTime>) -> String {
    match time.map(Timestamp::try_from) {
        Some(Ok(time)) => time.to_string(),
        Some(Err(_)) | None => "0001-01-01T00:00:00Z".to_owned(),
    }
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Body {
    last_updated: String,
    current_time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    node_eligible: Option<bool>,
    healthy: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<Status>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    stale_since: BTreeMap<String, String>,
}

#[derive(Serialize)]
struct Status {
    #[serde(rename = "IPv4", skip_serializing_if = "Option::is_none")]
    ipv4: Option<FamilyBody>,
    #[serde(rename = "IPv6", skip_serializing_if = "Option::is_none")]
    ipv6: Option<FamilyBody>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct FamilyBody {
    last_updated: String,
    healthy: bool,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ServiceBody<'a> {
    service: ServiceName<'a>,
    local_endpoints: usize,
    service_proxy_healthy: bool,
}

#[derive(Serialize)]
struct ServiceName<'a> {
    namespace: &'a str,
    name: &'a str,
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU16;

    use kernlink_services::ObjectName;

    use super::*;

    const PERIOD: Duration = Duration::from_secs(30);

    /// The time of `text`, as kube-proxy printed it.
    fn time(text: &str) -> SystemTime {
        text.parse::<Timestamp>().unwrap().into()
    }

    /// What kube-proxy 1.36.3 answered, with the time of the response in place of the two that it read one after the other.
    const HEALTHZ: &str = r#"{"lastUpdated":"2026-11-21T08:44:11.41811165Z","currentTime":"2026-11-21T08:44:11.41811165Z","nodeEligible":true,"healthy":true,"status":{"IPv4":{"lastUpdated":"2026-11-21T08:44:00.10519337Z","healthy":true},"IPv6":{"lastUpdated":"2026-11-21T08:44:01.33552713Z","healthy":true}}}"#;
    const LIVEZ: &str = r#"{"lastUpdated":"2026-11-21T08:44:11.41811165Z","currentTime":"2026-11-21T08:44:11.41811165Z","healthy":true,"status":{"IPv4":{"lastUpdated":"2026-11-21T08:44:00.10519337Z","healthy":true},"IPv6":{"lastUpdated":"2026-11-21T08:44:01.33552713Z","healthy":true}}}"#;
    const SERVICE: &str = "{\n\t\"service\": {\n\t\t\"namespace\": \"default\",\n\t\t\"name\": \"lb2\"\n\t},\n\t\"localEndpoints\": 1,\n\t\"serviceProxyHealthy\": true\n}";

    fn synced() -> Health {
        let mut health = Health::new(PERIOD);
        health.on_synced(Family::Ipv4, time("2026-11-21T08:44:00.10519337Z"));
        health.on_synced(Family::Ipv6, time("2026-11-21T08:44:01.33552713Z"));
        health
    }

    #[test]
    fn answers_are_those_of_kube_proxy() {
        let (now, at) = (Instant::now(), time("2026-11-21T08:44:11.41811165Z"));
        let healthz = synced().healthz(now, at, true);
        assert_eq!((healthz.status, healthz.body.as_str()), (200, HEALTHZ));
        let livez = synced().livez(now, at);
        assert_eq!((livez.status, livez.body.as_str()), (200, LIVEZ));
        let check = HealthCheck {
            port: NonZeroU16::new(32_001).unwrap(),
            service: ObjectName::new("default", "lb2"),
            local_endpoints: 1,
        };
        let service = service_health(&check, true);
        assert_eq!((service.status, service.body.as_str()), (200, SERVICE));
        assert_eq!(service.body.len(), 114);
        let weight = ("X-Load-Balancing-Endpoint-Weight", "1".to_owned());
        assert_eq!(service.headers.last(), Some(&weight));
        assert_eq!(service_health(&check, false).status, 503);
        let none = HealthCheck {
            local_endpoints: 0,
            ..check
        };
        assert_eq!(service_health(&none, true).status, 503);
    }

    #[test]
    fn a_node_that_is_not_eligible_fails_healthz_only() {
        let (now, at) = (Instant::now(), time("2026-11-21T08:44:11Z"));
        let healthz = synced().healthz(now, at, false);
        assert_eq!(healthz.status, 503);
        assert!(
            healthz
                .body
                .starts_with(r#"{"lastUpdated":"2026-11-21T08:44:01.33552713Z","#),
            "{}",
            healthz.body
        );
        assert!(
            healthz.body.contains(r#""nodeEligible":false,"healthy":true"#),
            "{}",
            healthz.body
        );
        assert_eq!(synced().livez(now, at).status, 200);
    }

    #[test]
    fn a_change_that_waits_for_two_periods_is_unhealthy() {
        let start = Instant::now();
        let mut health = synced();
        health.on_change(Family::Ipv6, start);
        health.on_change(Family::Ipv6, start + PERIOD);
        assert!(health.is_healthy(start + PERIOD * 2 - Duration::from_nanos(1)));
        assert!(!health.is_healthy(start + PERIOD * 2));
        let livez = health.livez(start + PERIOD * 2, time("2026-11-21T08:45:00Z"));
        assert_eq!(livez.status, 503);
        assert!(
            livez
                .body
                .contains(r#""IPv6":{"lastUpdated":"2026-11-21T08:44:01.33552713Z","healthy":false}"#)
        );
        health.on_synced(Family::Ipv6, time("2026-11-21T08:45:01Z"));
        assert!(health.is_healthy(start + PERIOD * 3));
    }

    #[test]
    fn objects_that_cannot_be_read_are_named_and_do_not_change_the_status() {
        let (now, at) = (Instant::now(), time("2026-11-21T08:44:11.41811165Z"));
        let mut health = synced();
        health.on_stale(Kind::Service, time("2026-11-21T08:44:02Z"));
        health.on_stale(Kind::Node, time("2026-11-21T08:44:03Z"));
        let added = r#","staleSince":{"Node":"2026-11-21T08:44:03Z","Service":"2026-11-21T08:44:02Z"}}"#;
        for (answer, without) in [
            (health.healthz(now, at, true), HEALTHZ),
            (health.livez(now, at), LIVEZ),
        ] {
            let expected = without.strip_suffix('}').unwrap().to_owned() + added;
            assert_eq!((answer.status, answer.body), (200, expected));
        }
    }

    #[test]
    fn before_the_first_sync_the_answer_is_200() {
        let mut health = Health::new(PERIOD);
        let start = Instant::now();
        health.on_change(Family::Ipv4, start);
        let healthz = health.healthz(start + PERIOD * 9, time("2026-11-21T08:44:11Z"), true);
        assert_eq!(healthz.status, 200);
        assert!(!healthz.body.contains("status"), "{}", healthz.body);
        let ineligible = health.healthz(start, time("2026-11-21T08:44:11Z"), false);
        assert!(
            ineligible
                .body
                .starts_with(r#"{"lastUpdated":"0001-01-01T00:00:00Z","#),
            "{}",
            ineligible.body
        );
    }
}
