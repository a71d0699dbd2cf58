//! Follows the objects of one kind.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};

use hyper::Response;
use kernlink_kubernetes::Converter;
use kernlink_kubernetes::watch::{Event, Item, Page, Status, Unreadable};
use kernlink_services::Change;
use kube::client::Body;

use super::backoff::Backoff;
use super::connection::{Connection, Failure, has_pings, next_part};
use super::format::{Events, Format};
use super::known::{Known, List};
use super::node_gate::{ADDRESS_TIMEOUT, NodeGate};
use super::refusals::Refusals;
use super::resource::Resource;
use super::transport::Received;
use super::{OnUpdate, Update};

/// The longest time between two parts of a streamed list.
const LIST_TIMEOUT: Duration = Duration::from_secs(30);
/// A watch that ends earlier than this, without an event, is repeated after a delay.
const SHORT_WATCH: Duration = Duration::from_secs(1);
/// The number of streamed lists that fail in a row before the list is read in pages.
const MAX_STREAM_FAILURES: u32 = 2;

/// Follows the objects of one kind.
pub(super) struct Reflector {
    resource: Resource,
    gate: Option<NodeGate>,
    /// When waiting for the Node ends. `None` before the first list, and afterwards.
    gate_timeout: Option<Instant>,
    connection: Arc<Connection>,
    on_update: OnUpdate,
    converter: Converter,
    known: Known,
    /// The version from which a watch continues. `None`: the list has to be read.
    version: Option<String>,
    /// Whether the server streams lists.
    has_streamed_lists: bool,
    stream_failures: u32,
    /// The verb of the last request.
    verb: &'static str,
    refusals: Refusals,
    backoff: Backoff,
    /// When the connection of the last answer received something.
    received: Option<Received>,
    /// What was reported and is not solved.
    reported: Option<String>,
}

impl Reflector {
    pub(super) fn new(
        resource: Resource,
        gate: Option<NodeGate>,
        connection: Arc<Connection>,
        on_update: OnUpdate,
    ) -> Self {
        Self {
            known: Known::new(resource.kind),
            resource,
            gate,
            gate_timeout: None,
            connection,
            on_update,
            converter: Converter::new(),
            version: None,
            has_streamed_lists: true,
            stream_failures: 0,
            verb: "list",
            refusals: Refusals::default(),
            backoff: Backoff::default(),
            received: None,
            reported: None,
        }
    }

    /// Runs until the future is dropped.
    pub(super) async fn run(mut self) -> Infallible {
        loop {
            let result = self.step().await;
            let requested = match &result {
                Err(Failure::Status(status)) => status.retry_after,
                _ => None,
            };
            let delay = match result {
                Ok(()) => continue,
                Err(Failure::Status(status)) if self.version.is_some() => {
                    if self.refusals.needs_list(&status) {
                        tracing::info!("{}: the list is read again: {status}", self.resource.kind);
                        self.version = None;
                    }
                    if !status.needs_list() {
                        self.refused(&status);
                    }
                    self.refusals.delay()
                }
                Err(Failure::Status(status)) => {
                    self.refused(&status);
                    self.backoff.next()
                }
                Err(failure) => {
                    if matches!(failure, Failure::Invalid(_)) {
                        // An event may be lost.
                        self.version = None;
                    }
                    self.failed(failure.to_string());
                    self.backoff.next()
                }
            };
            let limits = self.connection.limits();
            let delay = limits.retry_delay(delay, requested, self.backoff.fraction());
            self.sleep(delay).await;
        }
    }

    /// Reads the list, or follows a watch until it ends.
    async fn step(&mut self) -> Result<(), Failure> {
        let Some(version) = self.version.clone() else {
            return if self.has_streamed_lists && self.stream_failures < MAX_STREAM_FAILURES {
                self.streamed_list().await
            } else {
                self.list().await
            };
        };
        let expects_pings = self.connection.has_pings();
        let (seconds, limit) = self.watch_time(expects_pings);
        self.verb = "watch";
        let longest = self.connection.limits().answer;
        // Without pings nothing else shows that the server hangs.
        let headers = if expects_pings {
            longest
        } else {
            longest.min(limit)
        };
        let answer = self
            .connection
            .get(&self.resource.watch(&version, seconds), headers)
            .await?;
        self.answered(&answer);
        if expects_pings && !has_pings(&answer) {
            // It would last too long. The server of this connection supports HTTP/1.1 only.
            let delay = self.backoff.next();
            self.sleep(delay).await;
            return Ok(());
        }
        self.report_recovered();
        let begin = Instant::now();
        if !self.follow(answer, None, limit).await? && begin.elapsed() < SHORT_WATCH {
            let delay = self.backoff.next();
            self.sleep(delay).await;
        }
        Ok(())
    }

    /// Reads the list as events, and follows the watch that it begins.
    async fn streamed_list(&mut self) -> Result<(), Failure> {
        // Without pings it is followed by another watch.
        let (seconds, limit) = self.watch_time(true);
        self.verb = "watch";
        let headers = self.connection.limits().answer;
        let path = self.resource.streamed_list(seconds);
        let answer = match self.connection.get(&path, headers).await {
            Ok(answer) => answer,
            Err(Failure::Status(status)) if is_not_supported(&status) => {
                tracing::debug!("{}: lists are not streamed: {status}", self.resource.kind);
                self.has_streamed_lists = false;
                return Ok(());
            }
            Err(Failure::Status(status)) if status.code == 403 => {
                tracing::debug!("{}: the list is not streamed: {status}", self.resource.kind);
                // `list` is another verb than `watch`, and may be permitted.
                self.stream_failures = MAX_STREAM_FAILURES;
                return Ok(());
            }
            Err(failure) => return Err(failure),
        };
        self.answered(&answer);
        let result = self.follow(answer, Some(List::default()), limit).await;
        if self.version.is_some() {
            self.stream_failures = 0;
            return result.map(drop);
        }
        match result {
            // Such as an API server that streams lists, on an etcd that cannot report progress.
            Err(Failure::Status(status)) => {
                tracing::debug!("{}: the list is not streamed: {status}", self.resource.kind);
                self.stream_failures = MAX_STREAM_FAILURES;
                Ok(())
            }
            other => {
                self.stream_failures += 1;
                other.map(drop)
            }
        }
    }

    /// Reads the list in pages. If the server forgets the version of the first page meanwhile, reads it without pages.
    async fn list(&mut self) -> Result<(), Failure> {
        self.verb = "list";
        let mut list = List::default();
        let mut path = self.resource.page("");
        let mut is_first = true;
        let version = loop {
            let answer = match self.connection.read(self.resource.kind, &path).await {
                Ok(answer) => answer,
                Err(Failure::Status(status)) if status.needs_list() && !is_first => {
                    list = List::default();
                    path = self.resource.list();
                    is_first = true;
                    continue;
                }
                Err(failure) => return Err(failure),
            };
            self.received = answer.connection;
            let page = answer
                .format
                .read_page(self.resource.kind, answer.body, &mut self.converter);
            let page: Page = page.map_err(invalid)?;
            self.report_invalid(&page.items);
            let items = page.items.into_iter();
            let changes = items.filter_map(|item| list.add(item, &mut self.known));
            let changes = changes.collect();
            self.deliver(changes);
            if page.continue_token.is_empty() {
                break page.resource_version;
            }
            path = self.resource.page(&page.continue_token);
            is_first = false;
        };
        self.listed(list, version);
        // Later lists are streamed again.
        self.stream_failures = 0;
        Ok(())
    }

    /// Receives events until the watch ends. With a list, the first ones are its objects. Returns whether something was received.
    async fn follow(
        &mut self,
        answer: Response<Body>,
        mut list: Option<List>,
        limit: Duration,
    ) -> Result<bool, Failure> {
        let continues = list.is_none() || has_pings(&answer);
        let mut events = Format::of(answer.headers()).events();
        let mut body = answer.into_body();
        let mut has_received = false;
        loop {
            let silence = self.connection.limits().silence;
            let (limit, ends_silence) = match &list {
                Some(_) => (LIST_TIMEOUT, false),
                None if silence < limit => (silence, true),
                None => (limit, false),
            };
            // Waiting for the Node meanwhile does not extend it.
            let end = Instant::now() + limit;
            let part = loop {
                let next = next_part(&mut body, end.saturating_duration_since(Instant::now()));
                let Some(timeout) = self.gate_timeout else {
                    break next.await;
                };
                tokio::select! {
                    part = next => break part,
                    () = tokio::time::sleep_until(timeout.into()) => self.gate_timed_out(),
                }
            };
            if ends_silence && part.is_err() && Instant::now() >= end {
                tracing::debug!(
                    "{}: no event and no bookmark for {silence:?}; the watch begins again",
                    self.resource.kind
                );
                return Ok(true);
            }
            let Some(part) = part? else {
                return match list {
                    None => Ok(has_received),
                    Some(_) => Err(Failure::NoAnswer(
                        "the watch ended in its initial list".to_owned(),
                    )),
                };
            };
            self.connection.on_received(self.resource.kind, part.len());
            events.push(&part);
            let mut changes = Vec::new();
            let result = self.read_events(&mut events, &mut list, &mut changes);
            has_received |= !changes.is_empty();
            // Also what precedes an error.
            self.deliver(changes);
            has_received |= result?;
            if !continues && list.is_none() {
                return Ok(has_received);
            }
        }
    }

    /// Reads the complete events. Returns whether there was one that shows that the server works.
    fn read_events(
        &mut self,
        events: &mut Events,
        list: &mut Option<List>,
        changes: &mut Vec<Change>,
    ) -> Result<bool, Failure> {
        let mut has_received = false;
        while let Some(event) = events.next(self.resource.kind, &mut self.converter) {
            match event.map_err(invalid)? {
                Event::Item {
                    item,
                    resource_version,
                } => {
                    self.report_invalid(std::slice::from_ref(&item));
                    match list {
                        Some(list) => changes.extend(list.add(item, &mut self.known)),
                        None => {
                            changes.extend(self.known.apply(item));
                            self.set_version(resource_version);
                            self.refusals.reset();
                        }
                    }
                }
                Event::Bookmark {
                    resource_version,
                    ends_initial_list,
                } => match list.take() {
                    Some(list) if ends_initial_list => {
                        // Before what completes the list.
                        self.deliver(std::mem::take(changes));
                        self.listed(list, resource_version);
                    }
                    Some(unfinished) => *list = Some(unfinished),
                    None => {
                        self.set_version(resource_version);
                        self.refusals.reset();
                    }
                },
                Event::Error(status) => return Err(Failure::Status(status)),
                Event::Unknown(name) => {
                    tracing::debug!("{}: an event of the unknown type {name:?}", self.resource.kind);
                }
            }
            if list.is_none() {
                has_received = true;
                self.recovered();
            }
        }
        Ok(has_received)
    }

    fn set_version(&mut self, version: String) {
        if !version.is_empty() {
            self.version = Some(version);
        }
    }

    /// A list is complete.
    fn listed(&mut self, list: List, version: String) {
        let changes = self.known.replace(list);
        self.deliver(changes);
        self.version = Some(version);
        self.backoff.reset();
        // Otherwise a watch has to show it.
        if self.refusals.is_empty() {
            self.report_recovered();
        }
    }

    fn deliver(&mut self, mut changes: Vec<Change>) {
        if let Some(gate) = &mut self.gate {
            gate.pass(&mut changes);
            if !gate.is_waiting() {
                self.gate_timeout = None;
            } else if self.gate_timeout.is_none()
                && let Some(problem) = gate.problem()
            {
                self.gate_timeout = Some(Instant::now() + ADDRESS_TIMEOUT);
                (self.on_update)(Update::Node(format!("waiting: {problem}")));
            }
        }
        if !changes.is_empty() {
            (self.on_update)(Update::Changes(changes));
        }
    }

    /// The Node of this node still lacks something.
    fn gate_timed_out(&mut self) {
        self.gate_timeout = None;
        let kind = self.resource.kind;
        let Some(gate) = &mut self.gate else {
            return;
        };
        let problem = gate.problem().unwrap_or_default();
        if gate.on_timeout() {
            (self.on_update)(Update::Node(format!("not waiting any longer: {problem}")));
            (self.on_update)(Update::Changes(vec![Change::synced(kind)]));
        } else {
            self.gate_timeout = Some(Instant::now() + ADDRESS_TIMEOUT);
            (self.on_update)(Update::Node(format!("still waiting: {problem}")));
        }
    }

    fn report_invalid(&self, items: &[Item]) {
        let (mut invalid, mut ignored) = (Vec::new(), Vec::new());
        for item in items {
            let name = item
                .name
                .as_ref()
                .map_or_else(|| "without a name".to_owned(), ToString::to_string);
            let object = format!("{} {name}", self.resource.kind);
            let problems = item.errors.iter().map(|error| format!("{object}: {error}"));
            if item.change.is_some() {
                ignored.extend(problems);
            } else {
                invalid.extend(problems);
            }
        }
        if !invalid.is_empty() {
            (self.on_update)(Update::Invalid(invalid.into()));
        }
        if !ignored.is_empty() {
            (self.on_update)(Update::Ignored(ignored.into()));
        }
    }

    /// The server refused the last request.
    fn refused(&mut self, status: &Status) {
        let advice = match status.code {
            401 => format!("; {}", self.connection.access().advice()),
            _ => String::new(),
        };
        self.failed(format!(
            "{} of {} is refused: {status}{advice}",
            self.verb,
            self.resource.name()
        ));
    }

    fn failed(&mut self, problem: String) {
        if self.reported.as_ref() == Some(&problem) {
            return;
        }
        self.reported = Some(problem.clone());
        (self.on_update)(Update::Failed {
            kind: self.resource.kind,
            problem,
            received: self.received.as_ref().map(Received::time),
        });
    }

    /// The server answered.
    fn answered(&mut self, answer: &Response<Body>) {
        self.received = answer.extensions().get::<Received>().cloned();
    }

    /// The server works: delays begin again.
    fn recovered(&mut self) {
        self.backoff.reset();
        self.report_recovered();
    }

    fn report_recovered(&mut self) {
        if self.reported.take().is_some() {
            (self.on_update)(Update::Recovered(self.resource.kind));
        }
    }

    /// Waits, also for the Node.
    async fn sleep(&mut self, delay: Duration) {
        let end = Instant::now() + delay;
        while let Some(timeout) = self.gate_timeout.filter(|timeout| *timeout < end) {
            tokio::time::sleep_until(timeout.into()).await;
            self.gate_timed_out();
        }
        tokio::time::sleep_until(end.into()).await;
    }

    /// The time of a watch in seconds, and the longest time between two parts of it.
    fn watch_time(&self, has_pings: bool) -> (u64, Duration) {
        let limits = self.connection.limits();
        let time = limits.watch_time(has_pings, self.backoff.fraction());
        (time.as_secs().max(1), time + limits.margin)
    }
}

fn invalid(error: Unreadable) -> Failure {
    Failure::Invalid(error.to_string())
}

/// Whether the server refuses to stream a list. Without the feature, a server does not accept its parameters.
fn is_not_supported(status: &Status) -> bool {
    [400, 404, 405, 422].contains(&status.code) || status.reason == "Invalid"
}
