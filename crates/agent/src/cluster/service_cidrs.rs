//! Follows the ServiceCIDR objects: the networks that cluster IPs are allocated from.
//!
//! They only decide what happens to traffic to an address that no Service has, so nothing depends on them: a server that does not have them
//! (before Kubernetes 1.33), or does not permit them, has none. After the first list, what is known stays.

use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::Response;
use ipnet::IpNet;
use kernlink_kubernetes::watch::{Status, read_status};
use kernlink_services::address::parse_net;
use kernlink_services::escape::excerpt;
use kube::client::Body;
use serde::Deserialize;

use super::backoff::Backoff;
use super::connection::{Connection, Failure, has_pings, next_part};
use super::lines::Lines;
use super::refusals::Refusals;
use super::{OnUpdate, Update};

const PATH: &str = "/apis/networking.k8s.io/v1/servicecidrs";
/// The shortest delay after a server refused the kind as such: an administrator has to change something. The longest is twice as long.
const REFUSED: Duration = Duration::from_secs(300);
/// A watch that ends earlier than this, without an event, is repeated after a delay.
const SHORT_WATCH: Duration = Duration::from_secs(1);

/// Follows the objects.
pub(super) struct ServiceCidrs {
    connection: Arc<Connection>,
    on_update: OnUpdate,
    /// The networks of each object, by its name.
    known: BTreeMap<String, Vec<IpNet>>,
    /// The networks that were delivered.
    delivered: Option<Vec<IpNet>>,
    /// The version from which a watch continues. `None`: the list has to be read.
    version: Option<String>,
    refusals: Refusals,
    backoff: Backoff,
    /// What was reported and is not solved.
    reported: Option<String>,
}

impl ServiceCidrs {
    pub(super) fn new(connection: Arc<Connection>, on_update: OnUpdate) -> Self {
        Self {
            connection,
            on_update,
            known: BTreeMap::new(),
            delivered: None,
            version: None,
            refusals: Refusals::default(),
            backoff: Backoff::default(),
            reported: None,
        }
    }

    /// Runs until the future is dropped.
    pub(super) async fn run(mut self) -> Infallible {
        loop {
            if let Err(failure) = self.step().await {
                let delay = self.failed(&failure);
                tokio::time::sleep(delay).await;
            }
        }
    }

    /// Reads the list, or follows a watch until it ends.
    async fn step(&mut self) -> Result<(), Failure> {
        let Some(version) = self.version.clone() else {
            return self.list().await;
        };
        let limits = *self.connection.limits();
        let expects_pings = self.connection.has_pings();
        let time = limits.watch_time(expects_pings, self.backoff.fraction());
        let seconds = time.as_secs().max(1);
        let path = format!(
            "{PATH}?watch=1&allowWatchBookmarks=true&timeoutSeconds={seconds}&resourceVersion={version}"
        );
        let begin = Instant::now();
        let answer = self.connection.get_json(&path, limits.answer).await?;
        // Without pings nothing else shows that the server hangs: a watch of a server that turns out to have none would last too long.
        let continues = has_pings(&answer) || !expects_pings;
        let limit = (time + limits.margin).min(limits.silence);
        if !continues || (!self.follow(answer, limit).await? && begin.elapsed() < SHORT_WATCH) {
            let delay = self.backoff.next();
            tokio::time::sleep(delay).await;
        }
        Ok(())
    }

    /// Reads the list.
    async fn list(&mut self) -> Result<(), Failure> {
        let list: List = parse(&self.connection.read_json(PATH).await?)?;
        if list.kind != "ServiceCIDRList" {
            let kind = list.kind;
            return Err(Failure::Invalid(format!(
                "kind {kind:?}; expected \"ServiceCIDRList\""
            )));
        }
        self.known.clear();
        for object in list.items.unwrap_or_default() {
            self.set(object);
        }
        self.version = Some(list.metadata.resource_version).filter(|version| !version.is_empty());
        self.deliver();
        self.recovered();
        if self.version.is_none() {
            return Err(Failure::Invalid(
                "metadata.resourceVersion is missing in a list".to_owned(),
            ));
        }
        Ok(())
    }

    /// Receives events until the watch ends. Returns whether there was one.
    async fn follow(&mut self, answer: Response<Body>, limit: Duration) -> Result<bool, Failure> {
        let mut lines = Lines::default();
        let mut body = answer.into_body();
        let mut has_received = false;
        let mut end = Instant::now() + limit;
        while let Some(part) = next_part(&mut body, end.saturating_duration_since(Instant::now())).await? {
            lines.push(&part);
            loop {
                let line = lines.next();
                let line = line.map_err(|_| Failure::Invalid("an event is too long".to_owned()))?;
                let Some(line) = line else { break };
                let received = parse(line).and_then(|event| self.receive(event));
                if received.is_err() {
                    // Also what precedes an error.
                    self.deliver();
                }
                received?;
                has_received = true;
                end = Instant::now() + limit;
            }
            self.deliver();
            if has_received {
                self.refusals.reset();
                self.recovered();
            }
        }
        Ok(has_received)
    }

    fn receive(&mut self, event: Event) -> Result<(), Failure> {
        if event.r#type == "ERROR" {
            return Err(Failure::Status(read_status(
                0,
                event.object.to_string().as_bytes(),
            )));
        }
        let object: Object = serde_json::from_value(event.object).map_err(invalid)?;
        if !object.metadata.resource_version.is_empty() {
            self.version = Some(object.metadata.resource_version.clone());
        }
        match &*event.r#type {
            "ADDED" | "MODIFIED" => self.set(object),
            "DELETED" => _ = self.known.remove(&object.metadata.name),
            _ => {}
        }
        Ok(())
    }

    /// Sets the networks of an object with any condition, as kube-proxy does. One that contains all addresses is not used: all traffic
    /// would be dropped.
    fn set(&mut self, object: Object) {
        let name = object.metadata.name;
        let mut networks = Vec::new();
        let mut ignored = Vec::new();
        for (index, text) in object.spec.cidrs.unwrap_or_default().iter().enumerate() {
            match parse_net(text) {
                Some(net) if net.prefix_len() > 0 => networks.push(net),
                _ => ignored.push(format!(
                    "ServiceCIDR {}: spec.cidrs[{index}]: {} is not a network with a prefix length above 0",
                    excerpt(&name),
                    excerpt(text)
                )),
            }
        }
        if !ignored.is_empty() {
            (self.on_update)(Update::Ignored(ignored.into()));
        }
        self.known.insert(name, networks);
    }

    fn deliver(&mut self) {
        let networks: BTreeSet<IpNet> = self.known.values().flatten().copied().collect();
        let networks: Vec<IpNet> = networks.into_iter().collect();
        if self.delivered.as_ref() != Some(&networks) {
            self.delivered = Some(networks.clone());
            (self.on_update)(Update::ServiceCidrs(networks));
        }
    }

    /// Records a failure. After one in an answer of the server, the first sync does not wait for another attempt. Returns the delay before the next attempt.
    fn failed(&mut self, failure: &Failure) -> Duration {
        match failure {
            Failure::Status(status) => self.refused(status),
            // Other kinds report a server that does not answer.
            Failure::NoAnswer(text) => {
                tracing::debug!("ServiceCIDR: {text}");
                self.backoff.next()
            }
            Failure::Invalid(text) => {
                // An event may be lost.
                self.version = None;
                self.report(text.clone());
                self.backoff.next()
            }
        }
    }

    fn refused(&mut self, status: &Status) -> Duration {
        let verb = if self.version.is_some() { "watch" } else { "list" };
        let needs_list = self.version.is_some() && self.refusals.needs_list(status);
        if needs_list {
            self.version = None;
        }
        match status.code {
            // The server does not have the kind, or not any more.
            404 if verb == "list" => {
                tracing::debug!("ServiceCIDR: the server has no such objects: {status}");
                self.known.clear();
                self.deliver();
                self.recovered();
            }
            _ if needs_list && status.needs_list() => return self.refusals.delay(),
            _ => self.report(format!(
                "{verb} of servicecidrs.networking.k8s.io is refused: {status}"
            )),
        }
        let delay = match status.code {
            _ if verb == "watch" => self.refusals.delay(),
            403 | 404 => REFUSED.mul_f64(1.0 + self.backoff.fraction()),
            _ => self.backoff.next(),
        };
        let limits = self.connection.limits();
        limits.retry_delay(delay, status.retry_after, self.backoff.fraction())
    }

    fn report(&mut self, problem: String) {
        if self.reported.as_ref() != Some(&problem) {
            self.reported = Some(problem.clone());
            (self.on_update)(Update::ServiceCidrsFailed(Some(problem)));
        }
    }

    /// The server answers.
    fn recovered(&mut self) {
        self.backoff.reset();
        // Otherwise a watch has to show it.
        if self.refusals.is_empty() && self.reported.take().is_some() {
            (self.on_update)(Update::ServiceCidrsFailed(None));
        }
    }
}

#[derive(Deserialize)]
struct List {
    kind: String,
    metadata: Metadata,
    // An empty list may be null.
    #[serde(default)]
    items: Option<Vec<Object>>,
}

#[derive(Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Metadata {
    name: String,
    resource_version: String,
}

#[derive(Deserialize)]
struct Object {
    metadata: Metadata,
    // A bookmark has none.
    #[serde(default)]
    spec: Spec,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Spec {
    cidrs: Option<Vec<String>>,
}

#[derive(Deserialize)]
struct Event {
    r#type: String,
    object: serde_json::Value,
}

fn parse<'a, T: Deserialize<'a>>(text: &'a [u8]) -> Result<T, Failure> {
    serde_json::from_slice(text).map_err(invalid)
}

fn invalid(error: serde_json::Error) -> Failure {
    Failure::Invalid(format!("the answer of the API server is invalid: {error}"))
}

#[cfg(test)]
mod tests {
    use std::net::SocketAddr;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::{self, Receiver};

    use super::super::tests::{PATIENCE, Reply, server};
    use super::super::transport::Limits;
    use super::super::{Access, Traffic};
    use super::*;

    /// Follows the objects of a server until the result is dropped. Returns what is delivered.
    fn follow(address: SocketAddr) -> (tokio::runtime::Runtime, Receiver<Update>) {
        let (sender, updates) = mpsc::channel();
        let access = Access {
            kubeconfig: None,
            master: Some(format!("http://{address}")),
        };
        let connection = Connection::new(access, Traffic::new().unwrap(), Limits::default());
        let on_update: OnUpdate = Arc::new(move |update| _ = sender.send(update));
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        runtime.spawn(ServiceCidrs::new(Arc::new(connection), on_update).run());
        (runtime, updates)
    }

    fn next(updates: &Receiver<Update>) -> Update {
        updates.recv_timeout(PATIENCE).unwrap()
    }

    fn delivered(networks: &[&str]) -> Update {
        Update::ServiceCidrs(networks.iter().map(|net| net.parse().unwrap()).collect())
    }

    fn object(name: &str, version: u32, cidrs: &str) -> String {
        format!(
            r#"{{"metadata": {{"name": "{name}", "resourceVersion": "{version}"}}, "spec": {{"cidrs": [{cidrs}]}}}}"#
        )
    }

    fn list(items: &str) -> Reply {
        Reply::Body(format!(
            r#"{{"kind": "ServiceCIDRList", "metadata": {{"resourceVersion": "5"}}, "items": [{items}]}}"#
        ))
    }

    fn event(kind: &str, object: &str) -> String {
        format!("{{\"type\": \"{kind}\", \"object\": {object}}}\n")
    }

    #[test]
    fn a_list_and_the_events_of_a_watch_are_delivered_as_all_networks() {
        let watches = AtomicUsize::new(0);
        let (address, requests) = server(move |request| {
            if !request.contains("watch=1") {
                let first = object("kubernetes", 3, r#""10.96.0.0/12", "fd00:10:96::/112""#);
                // The same network again, and what cannot be used.
                let second = object("more", 4, r#""10.96.0.0/12", "10.0.0.0", "0.0.0.0/0""#);
                return list(&format!("{first}, {second}"));
            }
            match watches.fetch_add(1, Ordering::Relaxed) {
                0 => Reply::Body(
                    event("ADDED", &object("third", 6, r#""192.0.2.0/24""#))
                        + &event("DELETED", &object("kubernetes", 7, ""))
                        + &event("BOOKMARK", r#"{"metadata": {"resourceVersion": "9"}}"#),
                ),
                1 => Reply::Body(event("MODIFIED", &object("more", 10, ""))),
                _ => Reply::Nothing,
            }
        });
        let (_runtime, updates) = follow(address);
        let Update::Ignored(ignored) = next(&updates) else {
            panic!("a text about each network that is not used");
        };
        let reason = "is not a network with a prefix length above 0";
        assert_eq!(
            ignored.texts,
            [
                format!("ServiceCIDR more: spec.cidrs[1]: 10.0.0.0 {reason}"),
                format!("ServiceCIDR more: spec.cidrs[2]: 0.0.0.0/0 {reason}"),
            ]
        );
        assert_eq!(next(&updates), delivered(&["10.96.0.0/12", "fd00:10:96::/112"]));
        assert_eq!(next(&updates), delivered(&["10.96.0.0/12", "192.0.2.0/24"]));
        assert_eq!(next(&updates), delivered(&["192.0.2.0/24"]));
        let paths = std::iter::repeat_with(|| requests.recv_timeout(PATIENCE).unwrap());
        let versions: Vec<String> = paths
            .filter(|request| request.contains("watch=1"))
            .filter_map(|request| {
                let (_, rest) = request.split_once("resourceVersion=")?;
                Some(rest.split(' ').next()?.to_owned())
            })
            .take(3)
            .collect();
        assert_eq!(versions, ["5", "9", "10"]);
    }

    #[test]
    fn a_server_without_the_kind_has_none_and_of_one_that_refuses_nothing_is_known() {
        for code in [404, 403, 500] {
            let (address, requests) = server(move |_| Reply::Status(code));
            let (_runtime, updates) = follow(address);
            let problem = format!("list of servicecidrs.networking.k8s.io is refused: status {code}");
            let expected = match code {
                404 => delivered(&[]),
                _ => Update::ServiceCidrsFailed(Some(problem)),
            };
            assert_eq!(next(&updates), expected, "{code}");
            let request = requests.recv_timeout(PATIENCE).unwrap();
            assert!(
                request.to_lowercase().contains("accept: application/json\r\n"),
                "{request}"
            );
        }
    }

    #[test]
    fn a_random_part_is_added_to_the_time_that_the_server_names() {
        let access = Access {
            kubeconfig: None,
            master: None,
        };
        let limits = Limits::default();
        let connection = Connection::new(access, Traffic::new().unwrap(), limits);
        let mut objects = ServiceCidrs::new(Arc::new(connection), Arc::new(|_| {}));
        for (named, shortest) in [(60, 60), (100_000, limits.retry_after.as_secs())] {
            let shortest = Duration::from_secs(shortest);
            let status = Status {
                retry_after: Some(Duration::from_secs(named)),
                ..read_status(429, b"")
            };
            let delays: Vec<Duration> = (0..10).map(|_| objects.refused(&status)).collect();
            let is_permitted = |delay: &Duration| *delay >= shortest && *delay <= shortest.mul_f64(1.25);
            assert!(delays.iter().all(is_permitted), "{delays:?}");
            assert!(delays.iter().any(|delay| *delay != shortest), "{delays:?}");
        }
    }

    #[test]
    fn what_is_known_stays_after_a_failure_and_the_list_is_read_again_after_an_expired_version() {
        let watches = AtomicUsize::new(0);
        let lists = AtomicUsize::new(0);
        let (address, _requests) = server(move |request| {
            if request.contains("watch=1") {
                return match watches.fetch_add(1, Ordering::Relaxed) {
                    0 => Reply::Status(500),
                    1 => Reply::Body(event("ERROR", r#"{"code": 410, "reason": "Expired"}"#)),
                    _ => Reply::Nothing,
                };
            }
            match lists.fetch_add(1, Ordering::Relaxed) {
                0 => list(&object("kubernetes", 3, r#""10.96.0.0/12""#)),
                1 => Reply::Body("no JSON".to_owned()),
                _ => list(&object("kubernetes", 4, r#""10.96.0.0/16""#)),
            }
        });
        let (_runtime, updates) = follow(address);
        assert_eq!(next(&updates), delivered(&["10.96.0.0/12"]));
        let refused = "watch of servicecidrs.networking.k8s.io is refused: status 500";
        assert_eq!(
            next(&updates),
            Update::ServiceCidrsFailed(Some(refused.to_owned()))
        );
        let Update::ServiceCidrsFailed(Some(invalid)) = next(&updates) else {
            panic!("the list is invalid");
        };
        assert!(
            invalid.starts_with("the answer of the API server is invalid"),
            "{invalid}"
        );
        assert_eq!(next(&updates), delivered(&["10.96.0.0/16"]));
    }
}
