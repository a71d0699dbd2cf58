//! Writes events about the Node to the API server.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use jiff::Timestamp;
use serde_json::json;
use tokio::sync::mpsc::{Receiver, Sender, channel};

use super::backoff::Backoff;
use super::connection::{Connection, Failure};

/// Events about cluster-scoped objects are in this namespace.
const PATH: &str = "/apis/events.k8s.io/v1/namespaces/default/events";
const CONTROLLER: &str = "kernlink-agent";
/// The number of events that wait while the server is away; later ones are dropped.
const WAITING: usize = 32;
/// An event that could not be written for this time is dropped. The server keeps events for an hour.
const MAX_AGE: Duration = Duration::from_secs(3600);
/// The limits of the API, in bytes.
const MAX_NOTE: usize = 1024;
const MAX_INSTANCE: usize = 128;

/// An event about the Node of this node, of type `Normal` or `Warning`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeEvent {
    /// Whether it is a warning.
    pub is_warning: bool,
    /// The reason, in CamelCase, at most 128 bytes.
    pub reason: String,
    /// What the agent did: `Start` or `Sync`.
    pub action: &'static str,
    /// The text for the operator.
    pub note: String,
    /// When it happened.
    pub time: SystemTime,
}

/// Takes events, and never waits.
#[derive(Clone, Debug)]
pub struct NodeEvents(Sender<NodeEvent>);

impl NodeEvents {
    /// Events that a test receives.
    #[cfg(test)]
    pub(crate) fn for_test() -> (Self, Receiver<NodeEvent>) {
        let (sender, events) = channel(WAITING);
        (Self(sender), events)
    }

    /// Writes an event when the server can be reached. If too many wait, it is dropped.
    pub fn write(&self, event: NodeEvent) {
        if let Err(error) = self.0.try_send(event) {
            tracing::debug!("an event on the Node is dropped: {error}");
        }
    }
}

/// Writes the events of the sending end.
pub(super) struct Writer {
    events: Receiver<NodeEvent>,
    node: Arc<str>,
    connection: Arc<Connection>,
}

impl Writer {
    pub(super) fn new(node: Arc<str>, connection: Arc<Connection>) -> (NodeEvents, Self) {
        let (sender, events) = channel(WAITING);
        let writer = Self {
            events,
            node,
            connection,
        };
        (NodeEvents(sender), writer)
    }

    /// Runs until the future is dropped.
    pub(super) async fn run(mut self) -> Infallible {
        let mut is_reported = false;
        let mut waiting = VecDeque::new();
        // Of a server that does not answer. One that refuses an event may accept the others.
        let mut backoff = Backoff::default();
        loop {
            let Some(Waiting {
                event,
                body,
                mut delays,
                ..
            }) = self.next(&mut waiting).await
            else {
                // The agent ends.
                return std::future::pending().await;
            };
            let failure = match self.connection.post(PATH, body.clone()).await {
                // An earlier attempt, whose answer was lost, wrote it.
                Err(Failure::Status(status)) if status.code == 409 => None,
                result => result.err(),
            };
            let has_answer = !matches!(failure, Some(Failure::NoAnswer(_)));
            if has_answer {
                backoff.reset();
            }
            let Some(failure) = failure else {
                continue;
            };
            if is_final(&failure) || event.elapsed().unwrap_or_default() > MAX_AGE {
                if !std::mem::replace(&mut is_reported, true) {
                    tracing::warn!("events on the Node cannot be written: {failure}; reported once");
                }
                continue;
            }
            if has_answer {
                let due = Instant::now() + self.delay(&failure, &mut delays);
                waiting.push_back(Waiting {
                    event,
                    body,
                    delays,
                    due,
                });
            } else {
                let due = Instant::now();
                waiting.push_front(Waiting {
                    event,
                    body,
                    delays,
                    due,
                });
                tokio::time::sleep(backoff.next()).await;
            }
        }
    }

    /// The delay before an event is written again that the server did not accept.
    fn delay(&self, failure: &Failure, delays: &mut Backoff) -> Duration {
        let requested = match failure {
            Failure::Status(status) => status.retry_after,
            _ => None,
        };
        let limits = self.connection.limits();
        limits.retry_delay(delays.next(), requested, delays.fraction())
    }

    /// The first event that is due, old or new. `None` if there will be none.
    async fn next(&mut self, waiting: &mut VecDeque<Waiting>) -> Option<Waiting> {
        loop {
            let first = (0..waiting.len()).min_by_key(|index| waiting.get(*index).map(|event| event.due));
            let due = first.and_then(|index| Some((index, waiting.get(index)?.due)));
            if let Some((index, due)) = due
                && due <= Instant::now()
            {
                return waiting.remove(index);
            }
            // Those that are refused take the place of others.
            let has_room = waiting.len() < WAITING;
            let received = match due {
                None => self.events.recv().await,
                Some((_, due)) => tokio::select! {
                    event = self.events.recv(), if has_room => event,
                    () = tokio::time::sleep_until(due.into()) => continue,
                },
            };
            let event = received?;
            return Some(Waiting {
                body: object(&self.node, &event).to_string(),
                event: event.time,
                delays: Backoff::default(),
                due: Instant::now(),
            });
        }
    }
}

/// An event that was not written yet.
struct Waiting {
    /// When it happened.
    event: SystemTime,
    body: String,
    /// The delays after attempts that the server refused.
    delays: Backoff,
    /// When it is tried again.
    due: Instant,
}

/// Whether the server will not accept the event later either, such as with a role that does not permit events.
fn is_final(failure: &Failure) -> bool {
    matches!(failure, Failure::Status(status) if (400..500).contains(&status.code) && ![401, 408, 429].contains(&status.code))
}

/// The object, as client-go makes it. Its UID is the name of the Node, as in events of the kubelet, so that `kubectl describe node` shows it.
fn object(node: &str, event: &NodeEvent) -> serde_json::Value {
    let time = Timestamp::try_from(event.time).unwrap_or(Timestamp::UNIX_EPOCH);
    let number = event
        .time
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default()
        .as_nanos();
    // The name of an object has at most 253 bytes.
    let prefix = if node.len() <= 220 { node } else { CONTROLLER };
    json!({
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": format!("{prefix}.{number:x}"), "namespace": "default"},
        "eventTime": format!("{time:.6}"),
        "type": if event.is_warning { "Warning" } else { "Normal" },
        "reason": event.reason,
        "action": event.action,
        "note": first_bytes(&event.note, MAX_NOTE),
        "regarding": {"apiVersion": "v1", "kind": "Node", "name": node, "uid": node},
        "reportingController": CONTROLLER,
        "reportingInstance": first_bytes(&format!("{CONTROLLER}-{node}"), MAX_INSTANCE),
    })
}

/// The beginning of a text, at most this long, that ends with a character.
fn first_bytes(text: &str, length: usize) -> &str {
    text.get(..text.floor_char_boundary(length)).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use kernlink_kubernetes::watch::{Status, read_status};

    use super::super::tests::{PATIENCE, Reply, server};
    use super::super::transport::Limits;
    use super::super::{Access, Traffic};
    use super::*;

    #[test]
    fn an_event_that_the_server_cannot_write_does_not_delay_the_others() {
        let (address, requests) = server(|request| match request.contains("Refused") {
            true => Reply::Status(500),
            false => Reply::Status(201),
        });
        let access = Access {
            kubeconfig: None,
            master: Some(format!("http://{address}")),
        };
        let connection = Connection::new(access, Traffic::new().unwrap(), Limits::default());
        let (events, writer) = Writer::new("node-a".into(), Arc::new(connection));
        for reason in ["Refused", "First", "Second"] {
            events.write(NodeEvent {
                is_warning: true,
                reason: reason.to_owned(),
                action: "Sync",
                note: String::new(),
                time: SystemTime::now(),
            });
        }
        std::thread::spawn(move || {
            let mut builder = tokio::runtime::Builder::new_current_thread();
            builder.enable_all().build().unwrap().block_on(writer.run())
        });
        let next = || requests.recv_timeout(PATIENCE).unwrap();
        // Later attempts may be among them.
        let is_written = |request: &String| !request.contains("Refused");
        let written = std::iter::repeat_with(next).take(10).filter(is_written).take(2);
        assert_eq!(written.count(), 2);
        // It is tried again.
        assert!(next().contains("Refused"));
    }

    #[test]
    fn a_refused_event_is_not_repeated_before_the_time_that_the_server_names() {
        let access = Access {
            kubeconfig: None,
            master: None,
        };
        let connection = Connection::new(access, Traffic::new().unwrap(), Limits::default());
        let (_events, writer) = Writer::new("node-a".into(), Arc::new(connection));
        let named = Duration::from_secs(60);
        let busy = Failure::Status(Status {
            retry_after: Some(named),
            ..read_status(429, b"")
        });
        assert!(writer.delay(&busy, &mut Backoff::default()) >= named);
        let failed = Failure::Status(read_status(500, b""));
        assert!(writer.delay(&failed, &mut Backoff::default()) < named);
    }

    #[test]
    fn an_event_is_within_the_limits_of_the_api() {
        let event = NodeEvent {
            is_warning: true,
            reason: "SyncFailed".to_owned(),
            action: "Sync",
            note: "ä".repeat(600),
            time: UNIX_EPOCH + Duration::new(1_795_000_000, 120_345_678),
        };
        let written = object("node-a", &event);
        assert_eq!(
            written["metadata"]["name"],
            format!("node-a.{:x}", 1_795_000_000_120_345_678_u64)
        );
        assert_eq!(written["eventTime"], "2026-11-18T11:06:40.120345Z");
        assert_eq!(written["note"], "ä".repeat(512));
        assert_eq!(written["type"], "Warning");
        let long = "n".repeat(253);
        let written = object(&long, &event);
        let length = |field: &serde_json::Value| field.as_str().unwrap().len();
        assert!(length(&written["metadata"]["name"]) <= 253);
        assert_eq!(length(&written["reportingInstance"]), 128);
        assert_eq!(written["regarding"]["name"], long);
    }
}
