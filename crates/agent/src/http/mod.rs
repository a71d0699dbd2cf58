//! The servers of the agent, and the signals that end it. One thread serves all of them.
//!
//! | server | paths |
//! | --- | --- |
//! | health, `healthzBindAddress` | `/healthz`, `/livez` |
//! | metrics, `metricsBindAddress` | `/metrics`, `/healthz`, `/proxyMode`, `/configz`, `/statusz`, `/flagz` |
//! | a health-check node port of a Service | every path |
//!
//! The answers are those of kube-proxy 1.36. A server that cannot listen tries again every 5 seconds; with `bindAddressHardFail` the agent
//! ends instead if that is the health or the metrics server.
//!
//! A connection has one request. All servers together have a limited number of connections, whose clients may be hostile: see
//! `Connections`.

mod checks;
mod connections;
mod pages;
mod server;

use std::io;
use std::net::SocketAddr;
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, SystemTime};

use http_body_util::Full;
use hyper::body::Bytes;
use hyper::header::{CONTENT_TYPE, HeaderName, HeaderValue};
use hyper::{Response, StatusCode};
use kernlink_proxier::{health, metrics};
use tokio::runtime::{Builder, Runtime};
use tokio::signal::unix::Signal;
use tokio::sync::watch;

pub(crate) use self::checks::Checks;
use self::checks::Listeners;
use self::connections::{Connections, MAX_CONNECTIONS};
use self::server::{Routes, Server};
use crate::configuration_file::ConfigurationWatch;
use crate::log;
use crate::message::Message;
use crate::print;
use crate::settings::Settings;
use crate::signals;
use crate::state::{self, State};

/// The thread of all servers. Dropping it closes them.
#[derive(Debug)]
pub(crate) struct Servers {
    /// `None` after [`checks`](Self::checks).
    checks: Option<Checks>,
    /// Closed to stop the thread.
    stop: Option<watch::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// The paths of the metrics server.
const PATHS: &[&str] = &[
    "/configz",
    "/flagz",
    "/healthz",
    "/metrics",
    "/proxyMode",
    "/statusz",
];

/// The time between comparisons of the configuration file with the one that was read.
const CONFIGURATION_INTERVAL: Duration = Duration::from_secs(10);

/// The answer to a request.
pub(crate) type Answer = Response<Full<Bytes>>;

impl Servers {
    /// Starts the thread. Signals are received from then on.
    ///
    /// # Errors
    /// If the system has no resources for the thread, or this is called twice with one state, whose metrics have the connections then.
    pub(crate) fn start(
        settings: &Settings,
        state: Arc<Mutex<State>>,
        sender: Sender<Message>,
    ) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let signals = signals::register(&runtime)?;
        let levels = signals::register_levels(&runtime)?;
        let file = match settings.read_file.clone() {
            Some(read) => {
                let watch = ConfigurationWatch::new(read, state::lock(&state).registry());
                Some(watch.map_err(io::Error::other)?)
            }
            None => None,
        };
        let connections = Connections::new(MAX_CONNECTIONS, state::lock(&state).registry());
        let connections = connections.map_err(io::Error::other)?;
        let listeners = Arc::new(Listeners::default());
        let checks = Checks::new(Arc::clone(&state), Arc::clone(&listeners));
        let (stop, mut stopped) = watch::channel(());
        let servers = servers(settings, &state, &sender);
        let thread = thread::Builder::new()
            .name("kernlink-http".to_owned())
            .spawn(move || {
                start(&runtime, servers, &connections, signals, &sender);
                change_levels(&runtime, levels);
                if let Some(file) = file {
                    runtime.spawn(watch_configuration(file));
                }
                runtime.spawn(checks::serve(listeners, state, connections));
                // It returns when the other end is dropped.
                let _ = runtime.block_on(stopped.changed());
            })?;
        Ok(Self {
            checks: Some(checks),
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Sets the health-check node ports. `None` after the first call.
    pub(crate) fn checks(&mut self) -> Option<Checks> {
        self.checks.take()
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // A panic was printed by its hook.
            let _ = thread.join();
        }
    }
}

fn start(
    runtime: &Runtime,
    servers: Vec<Server>,
    connections: &Connections,
    signals: [(&'static str, Signal); 2],
    sender: &Sender<Message>,
) {
    for server in servers {
        runtime.spawn(server.serve(connections.clone()));
    }
    for (name, mut signal) in signals {
        let sender = sender.clone();
        runtime.spawn(async move {
            while signal.recv().await.is_some() {
                // It fails only when the agent ends.
                let _ = sender.send(Message::Signal(name));
                // Here, because the thread that receives the message may wait for a tool.
                signals::limit_end();
            }
        });
    }
}

/// Changes the level of the log with each signal.
fn change_levels(runtime: &Runtime, levels: [(bool, Signal); 2]) {
    for (is_more, mut signal) in levels {
        runtime.spawn(async move {
            while signal.recv().await.is_some() {
                if let Some(level) = log::change_level(is_more) {
                    tracing::info!("the log has the level {level} from now on");
                }
            }
        });
    }
}

/// Reports changes of the configuration file until the future is dropped.
async fn watch_configuration(mut file: ConfigurationWatch) {
    let mut interval = tokio::time::interval(CONFIGURATION_INTERVAL);
    loop {
        interval.tick().await;
        if let Some(line) = file.compare() {
            tracing::warn!("{line}");
        }
    }
}

/// The health and the metrics server.
fn servers(settings: &Settings, state: &Arc<Mutex<State>>, sender: &Sender<Message>) -> Vec<Server> {
    let of_health = Arc::clone(state);
    let health: Routes = Arc::new(move |path| match path {
        "/healthz" => answer(state::lock(&of_health).healthz()),
        "/livez" => answer(state::lock(&of_health).livez()),
        _ => not_found(),
    });
    let of_metrics = Arc::clone(state);
    let mode = settings.file.mode.clone();
    let configuration = serde_json::json!({
        "kubeproxy.config.k8s.io": print::configuration_value(&settings.file)
    });
    let configuration = configuration.to_string();
    let (flags, started) = (pages::flagz(&settings.flags), SystemTime::now());
    let page: Routes = Arc::new(move |path| match path {
        "/metrics" => match state::lock(&of_metrics).metrics() {
            Ok(page) => with_type(metrics::CONTENT_TYPE, &page),
            Err(error) => with_status(StatusCode::INTERNAL_SERVER_ERROR, &error.to_string()),
        },
        "/healthz" => text("ok"),
        "/proxyMode" => text(&mode),
        "/configz" => with_type("application/json", &configuration),
        "/statusz" => text(&pages::statusz(started, SystemTime::now(), &mode, PATHS)),
        "/flagz" => text(&flags),
        _ => not_found(),
    });
    let server = |name, address: Option<SocketAddr>, routes| {
        let server = Server::new(name, address?, routes);
        Some(if settings.file.bind_address_hard_fail {
            let sender = sender.clone();
            server.on_failure(move |problem| _ = sender.send(Message::ServerFailed(problem)))
        } else {
            server
        })
    };
    let servers = [
        server("health server", settings.healthz, health),
        server("metrics server", settings.metrics, page),
    ];
    servers.into_iter().flatten().collect()
}

/// A response of kube-proxy's health servers.
fn answer(response: health::Response) -> Answer {
    let mut answer = Response::new(Full::from(response.body));
    *answer.status_mut() = StatusCode::from_u16(response.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    for (name, value) in response.headers {
        if let (Ok(name), Ok(value)) = (HeaderName::try_from(name), HeaderValue::try_from(value)) {
            answer.headers_mut().insert(name, value);
        }
    }
    answer
}

fn text(body: &str) -> Answer {
    with_type("text/plain; charset=utf-8", body)
}

fn with_type(content_type: &'static str, body: &str) -> Answer {
    let mut answer = Response::new(Full::from(body.to_owned()));
    let headers = answer.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static(content_type));
    headers.insert("x-content-type-options", HeaderValue::from_static("nosniff"));
    answer
}

fn not_found() -> Answer {
    with_status(StatusCode::NOT_FOUND, "404 page not found\n")
}

fn with_status(status: StatusCode, body: &str) -> Answer {
    let mut answer = text(body);
    *answer.status_mut() = status;
    answer
}

#[cfg(test)]
mod tests;
