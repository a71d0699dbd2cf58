//! An API server for tests: lists with pages, watches with bookmarks, streamed lists, and what goes wrong with them.

use std::collections::{BTreeMap, VecDeque};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread;
use std::time::{Duration, Instant};

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};

/// The largest number of objects on a page, so that few objects have several pages.
const PAGE: usize = 2;

/// A server in the network namespace in which it was started. Its objects survive that it is stopped.
pub(crate) struct ApiServer {
    address: SocketAddr,
    shared: Arc<Shared>,
    listener: Option<(TcpListener, thread::JoinHandle<()>)>,
}

struct Shared {
    store: Mutex<Store>,
    /// Notified of each change of the store.
    changed: Condvar,
}

#[derive(Default)]
struct Store {
    version: u64,
    /// By path of the list, then by namespace and name.
    objects: BTreeMap<(String, String), Value>,
    events: Vec<Event>,
    /// Watches and pages of an earlier version are refused.
    oldest: u64,
    has_streamed_lists: bool,
    token: String,
    /// The path whose watches at a version are refused, and the status.
    refused: Option<(String, u16)>,
    /// The same for lists.
    refused_lists: Option<(String, u16)>,
    requests: Vec<String>,
    /// The events that clients wrote.
    node_events: Vec<Value>,
    connections: Vec<TcpStream>,
    is_stopped: bool,
}

/// A change, or a bookmark without objects.
struct Event {
    version: u64,
    path: String,
    before: Option<Value>,
    now: Option<Value>,
}

/// The token that clients must have.
const TOKEN: &str = "secret";

impl ApiServer {
    /// Starts a server in the namespace of the calling thread.
    pub(crate) fn start(address: &str, has_streamed_lists: bool) -> Self {
        let store = Store {
            version: 100,
            has_streamed_lists,
            token: TOKEN.to_owned(),
            ..Store::default()
        };
        let mut this = Self {
            address: address.parse().unwrap(),
            shared: Arc::new(Shared {
                store: Mutex::new(store),
                changed: Condvar::new(),
            }),
            listener: None,
        };
        this.resume();
        this
    }

    /// Closes the listener and all connections.
    pub(crate) fn stop(&mut self) {
        self.shared.store().is_stopped = true;
        let (listener, thread) = self.listener.take().unwrap();
        // Ends the call of accept.
        nix::sys::socket::shutdown(
            std::os::fd::AsRawFd::as_raw_fd(&listener),
            nix::sys::socket::Shutdown::Both,
        )
        .unwrap();
        thread.join().unwrap();
        drop(listener);
        self.cut();
    }

    /// Listens again, in the namespace of the calling thread.
    pub(crate) fn resume(&mut self) {
        let listener = TcpListener::bind(self.address).unwrap();
        let accepting = listener.try_clone().unwrap();
        let shared = Arc::clone(&self.shared);
        shared.store().is_stopped = false;
        let thread = thread::spawn(move || {
            while let Ok((stream, _)) = accepting.accept() {
                shared.store().connections.push(stream.try_clone().unwrap());
                let shared = Arc::clone(&shared);
                // An error is one of the connection, which ends.
                thread::spawn(move || shared.serve(stream));
            }
        });
        self.listener = Some((listener, thread));
    }

    /// Closes all connections.
    pub(crate) fn cut(&self) {
        let connections = std::mem::take(&mut self.shared.store().connections);
        for connection in connections {
            let _ = connection.shutdown(Shutdown::Both);
        }
        self.shared.changed.notify_all();
    }

    /// Creates or replaces an object.
    pub(crate) fn apply(&self, mut object: Value) {
        let path = path_of(&object);
        self.shared.change(path, key_of(&object.clone()), |version| {
            object["metadata"]["resourceVersion"] = json!(version.to_string());
            Some(object)
        });
    }

    /// Deletes the object with this kind and name.
    pub(crate) fn delete(&self, object: &Value) {
        self.shared.change(path_of(object), key_of(object), |_| None);
    }

    /// Forgets all versions before the present one.
    pub(crate) fn compact(&self) {
        let mut store = self.shared.store();
        store.version += 1;
        store.oldest = store.version;
        store.events.clear();
    }

    /// Requires another token, which the caller writes to the clients' file.
    pub(crate) fn set_token(&self, token: &str) {
        token.clone_into(&mut self.shared.store().token);
    }

    /// Refuses watches of a path, also streamed lists, with this status; with `None` no longer.
    pub(crate) fn refuse_watches(&self, path: &str, code: Option<u16>) {
        self.shared.store().refused = code.map(|code| (path.to_owned(), code));
    }

    /// Refuses lists of a path that are not streamed with this status; with `None` no longer.
    pub(crate) fn refuse_lists(&self, path: &str, code: Option<u16>) {
        self.shared.store().refused_lists = code.map(|code| (path.to_owned(), code));
    }

    /// Removes and returns the requests: method, path, query.
    pub(crate) fn take_requests(&self) -> Vec<String> {
        std::mem::take(&mut self.shared.store().requests)
    }

    /// The events that clients wrote.
    pub(crate) fn node_events(&self) -> Vec<Value> {
        self.shared.store().node_events.clone()
    }

    /// The content of a kubeconfig file with a token.
    pub(crate) fn kubeconfig(&self, token: &str) -> String {
        self.kubeconfig_of(&json!({"token": token}))
    }

    /// The content of a kubeconfig file with these credentials.
    pub(crate) fn kubeconfig_of(&self, user: &Value) -> String {
        let server = format!("http://{}", self.address);
        json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": server}}],
            "users": [{"name": "u", "user": user}],
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        })
        .to_string()
    }
}

impl Shared {
    fn store(&self) -> MutexGuard<'_, Store> {
        self.store.lock().unwrap()
    }

    fn change(&self, path: String, key: String, make: impl FnOnce(u64) -> Option<Value>) {
        let mut store = self.store();
        store.version += 1;
        let version = store.version;
        let now = make(version);
        let before = match &now {
            Some(now) => store.objects.insert((path.clone(), key), now.clone()),
            None => store.objects.remove(&(path.clone(), key)),
        };
        store.events.push(Event {
            version,
            path,
            before,
            now,
        });
        self.changed.notify_all();
    }

    /// Answers one request. Returns whether the client may send another one.
    fn serve(&self, stream: TcpStream) -> Option<()> {
        let mut reader = BufReader::new(stream.try_clone().ok()?);
        let mut head = Vec::new();
        loop {
            let mut line = String::new();
            if reader.read_line(&mut line).ok()? == 0 {
                return None;
            }
            match line.trim_end() {
                "" => break,
                line => head.push(line.to_owned()),
            }
        }
        let request = head.first()?.clone();
        let target = request.split(' ').nth(1)?;
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        let query = parameters(query);
        let token = {
            let mut store = self.store();
            store.requests.push(request.clone());
            format!("authorization: bearer {}", store.token)
        };
        if !head.iter().any(|line| line.to_lowercase() == token) {
            return refuse(stream, 401, "Unauthorized", "Unauthorized");
        }
        if request.starts_with("POST ") {
            let length = head.iter().find_map(|line| {
                let (name, value) = line.split_once(": ")?;
                name.eq_ignore_ascii_case("content-length")
                    .then(|| value.parse().unwrap())
            });
            let mut body = vec![0; length?];
            reader.read_exact(&mut body).ok()?;
            assert_eq!(path, "/apis/events.k8s.io/v1/namespaces/default/events");
            self.store()
                .node_events
                .push(serde_json::from_slice(&body).unwrap());
            return answer(stream, 201, &String::from_utf8(body).unwrap());
        }
        // Lists may be compressed. A proxy that compresses a watch may keep events back.
        let is_watch = query.contains_key("watch");
        let accepts_gzip = head
            .iter()
            .any(|line| line.eq_ignore_ascii_case("accept-encoding: gzip"));
        assert_eq!(accepts_gzip, !is_watch, "{head:?}");
        if is_watch {
            self.watch(stream, path, &query)
        } else {
            self.list(stream, path, &query)
        }
    }

    fn list(&self, stream: TcpStream, path: &str, query: &BTreeMap<String, String>) -> Option<()> {
        let store = self.store();
        if let Some((_, code)) = store.refused_lists.as_ref().filter(|(of, _)| of == path) {
            return refuse(stream, *code, "", "a message");
        }
        let limit: usize = query
            .get("limit")
            .map_or(usize::MAX, |limit| limit.parse().unwrap());
        let (version, start) = match query.get("continue") {
            None => (store.version, 0),
            Some(token) => {
                let (version, start) = token.split_once(':')?;
                (version.parse().ok()?, start.parse().ok()?)
            }
        };
        if version < store.oldest {
            return refuse(
                stream,
                410,
                "Expired",
                "The provided continue parameter is too old",
            );
        }
        let all: Vec<&Value> = store.selected(path, query);
        let end = all.len().min(start + limit.min(PAGE));
        let kind = all
            .first()
            .map_or_else(|| kind_of(path), |first| first["kind"].as_str().unwrap());
        let mut list = json!({
            "kind": format!("{kind}List"), "apiVersion": "v1",
            "metadata": {"resourceVersion": version.to_string()}, "items": all[start..end],
        });
        if end < all.len() && limit != usize::MAX {
            list["metadata"]["continue"] = json!(format!("{version}:{end}"));
        } else {
            list["items"] = json!(all[start..]);
        }
        answer_compressed(stream, &list.to_string())
    }

    fn watch(&self, mut stream: TcpStream, path: &str, query: &BTreeMap<String, String>) -> Option<()> {
        let mut pending = VecDeque::new();
        let is_initial = query.contains_key("sendInitialEvents");
        let mut store = self.store();
        if let Some((_, code)) = store.refused.as_ref().filter(|(of, _)| of == path) {
            return refuse(stream, *code, "", "a message");
        }
        let seconds = query.get("timeoutSeconds")?.parse().ok()?;
        let end = Instant::now() + Duration::from_secs(seconds);
        let mut sent;
        if is_initial {
            if !store.has_streamed_lists {
                let message =
                    "sendInitialEvents is forbidden for watch unless the WatchList feature gate is enabled";
                return refuse(stream, 422, "Invalid", message);
            }
            assert_eq!(
                query.get("resourceVersionMatch").map(String::as_str),
                Some("NotOlderThan")
            );
            pending.extend(
                store
                    .selected(path, query)
                    .into_iter()
                    .map(|object| event("ADDED", object)),
            );
            pending.push_back(bookmark(path, store.version, true));
            sent = store.version;
        } else {
            sent = query.get("resourceVersion")?.parse().ok()?;
            if sent < store.oldest {
                return refuse(stream, 410, "Expired", "too old resource version");
            }
        }
        let head = "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n";
        stream.write_all(head.as_bytes()).ok()?;
        loop {
            for change in store
                .events
                .iter()
                .filter(|event| event.version > sent && event.path == path)
            {
                let is_selected = |object: &&Value| is_selected(object, query);
                let before = change.before.as_ref().filter(is_selected);
                match (before, change.now.as_ref().filter(is_selected)) {
                    (None, Some(now)) => pending.push_back(event("ADDED", now)),
                    (Some(_), Some(now)) => pending.push_back(event("MODIFIED", now)),
                    (Some(before), None) => {
                        let mut before = before.clone();
                        before["metadata"]["resourceVersion"] = json!(change.version.to_string());
                        pending.push_back(event("DELETED", &before));
                    }
                    (None, None) => pending.push_back(bookmark(path, change.version, false)),
                }
            }
            sent = store.version;
            drop(store);
            for line in pending.drain(..) {
                // In two parts, so that no client relies on the boundaries.
                for part in [&line[..line.len() / 2], &line[line.len() / 2..]] {
                    write!(stream, "{:x}\r\n{part}\r\n", part.len()).ok()?;
                }
            }
            // A change may have happened meanwhile.
            let is_idle = |store: &mut Store| store.version == sent && !store.is_stopped;
            let rest = end.saturating_duration_since(Instant::now());
            let (next, timeout) = self
                .changed
                .wait_timeout_while(self.store(), rest, is_idle)
                .unwrap();
            store = next;
            if store.is_stopped {
                return None;
            }
            if timeout.timed_out() {
                return stream.write_all(b"0\r\n\r\n").ok();
            }
        }
    }
}

impl Store {
    fn selected(&self, path: &str, query: &BTreeMap<String, String>) -> Vec<&Value> {
        let of_path = self.objects.iter().filter(|((of, _), _)| of == path);
        of_path
            .map(|(_, object)| object)
            .filter(|object| is_selected(object, query))
            .collect()
    }
}

/// Whether the selectors include an object. Each has one requirement.
fn is_selected(object: &Value, query: &BTreeMap<String, String>) -> bool {
    let labels = &object["metadata"]["labels"];
    let by_label = query
        .get("labelSelector")
        .is_none_or(|selector| match selector.strip_prefix('!') {
            Some(absent) => labels.get(absent).is_none(),
            None => {
                let (name, value) = selector.split_once('=').unwrap();
                labels[name] == value
            }
        });
    let field = |path: &str| {
        object
            .pointer(&format!("/{}", path.replace('.', "/")))
            .cloned()
            .unwrap_or_default()
    };
    let by_field = query
        .get("fieldSelector")
        .is_none_or(|selector| match selector.split_once("!=") {
            Some((path, value)) => field(path) != value,
            None => {
                let (path, value) = selector.split_once('=').unwrap();
                field(path) == value
            }
        });
    by_label && by_field
}

fn path_of(object: &Value) -> String {
    match object["kind"].as_str().unwrap() {
        "Service" => "/api/v1/services",
        "EndpointSlice" => "/apis/discovery.k8s.io/v1/endpointslices",
        "Node" => "/api/v1/nodes",
        "ServiceCIDR" => "/apis/networking.k8s.io/v1/servicecidrs",
        other => panic!("{other}"),
    }
    .to_owned()
}

fn kind_of(path: &str) -> &'static str {
    match path {
        "/api/v1/services" => "Service",
        "/apis/discovery.k8s.io/v1/endpointslices" => "EndpointSlice",
        "/api/v1/nodes" => "Node",
        "/apis/networking.k8s.io/v1/servicecidrs" => "ServiceCIDR",
        other => panic!("{other}"),
    }
}

fn key_of(object: &Value) -> String {
    let metadata = &object["metadata"];
    format!(
        "{}/{}",
        metadata["namespace"].as_str().unwrap_or_default(),
        metadata["name"]
    )
}

/// The parameters of a query, decoded.
fn parameters(query: &str) -> BTreeMap<String, String> {
    let decode = |text: &str| {
        let mut parts = text.split('%');
        let mut bytes = parts.next().unwrap().as_bytes().to_vec();
        for part in parts {
            bytes.push(u8::from_str_radix(&part[..2], 16).unwrap());
            bytes.extend(&part.as_bytes()[2..]);
        }
        String::from_utf8(bytes).unwrap()
    };
    let pairs = query.split('&').filter_map(|pair| pair.split_once('='));
    pairs
        .map(|(name, value)| (name.to_owned(), decode(value)))
        .collect()
}

fn event(kind: &str, object: &Value) -> String {
    format!("{}\n", json!({"type": kind, "object": object}))
}

fn bookmark(path: &str, version: u64, ends_initial_list: bool) -> String {
    let mut metadata = json!({"resourceVersion": version.to_string(), "creationTimestamp": null});
    if ends_initial_list {
        metadata["annotations"] = json!({"k8s.io/initial-events-end": "true"});
    }
    event(
        "BOOKMARK",
        &json!({"kind": kind_of(path), "apiVersion": "v1", "metadata": metadata}),
    )
}

fn refuse(stream: TcpStream, code: u16, reason: &str, message: &str) -> Option<()> {
    let status = json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "reason": reason, "message": message, "code": code,
    });
    answer(stream, code, &status.to_string())
}

fn answer(stream: TcpStream, code: u16, body: &str) -> Option<()> {
    send(stream, code, "", body.as_bytes())
}

fn answer_compressed(stream: TcpStream, body: &str) -> Option<()> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    encoder.write_all(body.as_bytes()).unwrap();
    send(
        stream,
        200,
        "Content-Encoding: gzip\r\n",
        &encoder.finish().unwrap(),
    )
}

fn send(mut stream: TcpStream, code: u16, headers: &str, body: &[u8]) -> Option<()> {
    let length = body.len();
    let head = format!(
        "HTTP/1.1 {code} Status\r\nContent-Type: application/json\r\n{headers}Content-Length: {length}\r\nConnection: close\r\n\r\n"
    );
    stream.write_all(&[head.as_bytes(), body].concat()).ok()
}
