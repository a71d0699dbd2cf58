//! HTTP on the Unix socket. A connection has one request; the number of connections, the size of a request and its time have limits.

use std::convert::Infallible;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant, SystemTime};

use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::header::{CONTENT_TYPE, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use nix::unistd::geteuid;
use serde::Serialize;
use tokio::net::{UnixListener, UnixStream};
use tokio::runtime::Builder;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot, watch};

use super::documents::{LogLevel, Problem, VERSION};
use super::socket::{self, Listening};
use super::support::{self, StartedWith};
use super::worker::{Reader, Worker};
use super::{explain, log_level, overview, services};
use crate::settings::QuerySocket;
use crate::state::{self, State};

/// The largest number of connections. Further ones wait to be accepted.
const MAX_CONNECTIONS: usize = 16;
/// The longest time until a request is complete.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// The same while all places are taken: clients that send nothing must not keep others waiting longer than these wait.
const REQUEST_TIMEOUT_IF_FULL: Duration = Duration::from_secs(1);
/// The longest time of a connection, until its answer was read. Clients of the agent wait longer for a place.
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(10);
/// The longest request line with headers, in bytes. A longer one is answered with 431.
const MAX_REQUEST: usize = 16 << 10;
/// The time between attempts to listen.
const RETRY: Duration = Duration::from_secs(5);

/// The path of the level of the log.
const LOG_LEVEL: &str = "/v1/log-level";

type Answer = Response<Full<Bytes>>;

/// The thread of the server. Dropping it closes the socket.
#[derive(Debug)]
pub(crate) struct Server {
    /// Closed to stop the thread.
    stop: Option<watch::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts the thread. It tries to listen until it succeeds.
    ///
    /// # Errors
    /// If the system has no resources for the threads.
    pub(crate) fn start(
        socket: QuerySocket,
        state: Arc<Mutex<State>>,
        started_with: StartedWith,
    ) -> io::Result<Self> {
        let started_with = Arc::new(started_with);
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let worker = Worker::start(Arc::clone(&state), MAX_CONNECTIONS)?;
        let (stop, mut stopped) = watch::channel(());
        let thread = thread::Builder::new()
            .name("kernlink-socket".to_owned())
            .spawn(move || {
                runtime.block_on(async {
                    tokio::select! {
                        () = serve(socket, Routes { state, worker, started_with }) => {}
                        // It returns when the other end is dropped.
                        _ = stopped.changed() => {}
                    }
                });
            })?;
        Ok(Self {
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // A panic was printed by its hook.
            let _ = thread.join();
        }
    }
}

/// Serves until the future is dropped.
async fn serve(socket: QuerySocket, routes: Routes) {
    let mut is_reported = false;
    let (listening, listener) = loop {
        match open(&socket) {
            Ok(opened) => break opened,
            Err(problem) => {
                if !std::mem::replace(&mut is_reported, true) {
                    tracing::warn!(
                        "questions to the agent are not answered: {problem}; tried again every {} seconds",
                        RETRY.as_secs()
                    );
                }
            }
        }
        tokio::time::sleep(RETRY).await;
    };
    tracing::debug!("questions are answered on {}", listening.path().display());
    let places = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    // Several places may be given back at once, so that more are free for a moment.
    let mut last_full: Option<Instant> = None;
    loop {
        let Ok(place) = Arc::clone(&places).acquire_owned().await else {
            // Does not occur: the semaphore is never closed.
            return;
        };
        match listener.accept().await {
            Ok((stream, _)) => {
                if places.available_permits() == 0 {
                    last_full = Some(Instant::now());
                }
                let timeout = match last_full {
                    Some(time) if time.elapsed() < REQUEST_TIMEOUT => REQUEST_TIMEOUT_IF_FULL,
                    _ => REQUEST_TIMEOUT,
                };
                tokio::spawn(serve_one(stream, routes.clone(), place, timeout));
            }
            // The process has no file descriptor left.
            Err(_) => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
}

fn open(socket: &QuerySocket) -> Result<(Listening, UnixListener), String> {
    let path: PathBuf = match &socket.path {
        Some(path) => path.clone(),
        None => socket::default_path()?,
    };
    let listening = Listening::open(&path, socket.group.as_deref())?;
    let listener = listening.listener.try_clone().and_then(UnixListener::from_std);
    let listener = listener.map_err(|error| format!("cannot listen on {}: {error}", path.display()))?;
    Ok((listening, listener))
}

async fn serve_one(stream: UnixStream, routes: Routes, _place: OwnedSemaphorePermit, timeout: Duration) {
    // Not known: as any other user.
    let user = stream.peer_cred().ok().map(|peer| peer.uid());
    let service = service_fn(move |request: Request<Incoming>| {
        let routes = routes.clone();
        async move { Ok::<_, Infallible>(routes.answer(&request, user).await) }
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(timeout)
        .keep_alive(false)
        .max_buf_size(MAX_REQUEST)
        .serve_connection(TokioIo::new(stream), service);
    // An error is one of the client, which is gone.
    let _ = tokio::time::timeout(CONNECTION_TIMEOUT, connection).await;
}

/// What the server answers from.
#[derive(Clone)]
struct Routes {
    state: Arc<Mutex<State>>,
    worker: Worker,
    started_with: Arc<StartedWith>,
}

impl Routes {
    /// Answers a request of a user.
    async fn answer(&self, request: &Request<Incoming>, user: Option<u32>) -> Answer {
        let path = request.uri().path();
        let query = request.uri().query().unwrap_or_default();
        match (request.method(), path) {
            (&Method::GET, _) => {}
            (&Method::PUT, LOG_LEVEL) => return change_log_level(query, user),
            (_, LOG_LEVEL) => return problem(StatusCode::METHOD_NOT_ALLOWED, invalid_method("GET, PUT")),
            _ => return problem(StatusCode::METHOD_NOT_ALLOWED, invalid_method("GET")),
        }
        match path {
            "/v1/status" => document(&overview::answer(
                &state::lock(&self.state),
                Instant::now(),
                SystemTime::now(),
            )),
            "/v1/support" => document(&support::answer(&state::lock(&self.state), &self.started_with)),
            "/v1/services" => match services::Question::parse(query) {
                Ok(question) => self.ask(move |reader| services::answer(reader, &question)).await,
                Err(error) => problem(StatusCode::BAD_REQUEST, error),
            },
            "/v1/explain" => match explain::Question::parse(query) {
                Ok(question) => {
                    self.ask(move |reader| Ok(explain::answer(reader, question)))
                        .await
                }
                Err(error) => problem(StatusCode::BAD_REQUEST, error),
            },
            LOG_LEVEL => log_level_document(log_level::answer()),
            _ => problem(
                StatusCode::NOT_FOUND,
                "the path is not valid; valid: /v1/status, /v1/services, /v1/explain, /v1/log-level, /v1/support"
                    .to_owned(),
            ),
        }
    }

    /// Answers on the thread that may wait.
    async fn ask<T: Serialize + Send + 'static>(
        &self,
        answer: impl FnOnce(&mut Reader) -> Result<T, String> + Send + 'static,
    ) -> Answer {
        let (sender, answered) = oneshot::channel();
        let is_sent = self.worker.send(move |reader| {
            // The client may be gone.
            if !sender.is_closed() {
                let _ = sender.send(answer(reader));
            }
        });
        if !is_sent {
            let busy = "too many questions wait; ask again";
            return problem(StatusCode::SERVICE_UNAVAILABLE, busy.to_owned());
        }
        match answered.await {
            Ok(Ok(answer)) => document(&answer),
            Ok(Err(why)) => problem(StatusCode::SERVICE_UNAVAILABLE, why),
            Err(_) => problem(
                StatusCode::INTERNAL_SERVER_ERROR,
                "the thread that answers ended".to_owned(),
            ),
        }
    }
}

fn invalid_method(valid: &str) -> String {
    format!("the method is not valid; valid: {valid}")
}

/// Members of the group of the socket may ask; what an agent does is changed by its own user and root.
fn change_log_level(query: &str, user: Option<u32>) -> Answer {
    let may_change = |user: u32| user == 0 || user == geteuid().as_raw();
    if !user.is_some_and(may_change) {
        let refused = "only root and the user of the agent may change the level of the log";
        return problem(StatusCode::FORBIDDEN, refused.to_owned());
    }
    match log_level::Question::parse(query) {
        Ok(question) => log_level_document(question.change()),
        Err(error) => problem(StatusCode::BAD_REQUEST, error),
    }
}

fn log_level_document(answer: Result<LogLevel, String>) -> Answer {
    match answer {
        Ok(answer) => document(&answer),
        Err(why) => problem(StatusCode::SERVICE_UNAVAILABLE, why),
    }
}

fn document(document: &impl Serialize) -> Answer {
    match serde_json::to_vec_pretty(document) {
        Ok(body) => json(StatusCode::OK, body),
        Err(error) => problem(StatusCode::INTERNAL_SERVER_ERROR, error.to_string()),
    }
}

fn problem(status: StatusCode, error: String) -> Answer {
    let problem = Problem {
        version: VERSION,
        error,
    };
    json(status, serde_json::to_vec_pretty(&problem).unwrap_or_default())
}

fn json(status: StatusCode, mut body: Vec<u8>) -> Answer {
    body.push(b'\n');
    let mut answer = Response::new(Full::from(body));
    *answer.status_mut() = status;
    let json = HeaderValue::from_static("application/json");
    answer.headers_mut().insert(CONTENT_TYPE, json);
    answer
}
