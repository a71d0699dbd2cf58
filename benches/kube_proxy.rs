//! kube-proxy, with an API server that has the objects of a cluster: lists and watches, and nothing else. The environment variable
//! `KERNLINK_KUBE_PROXY` names the program.

use std::env;
use std::ffi::OsString;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use kernlink_kernel_tests::programs;
use kernlink_proxier::services::EndpointSlice;

use crate::Result;
use crate::cluster::{Cluster, NODE, NODE_NAME, PODS, slice_json};

const METRICS: &str = "127.0.0.1:10249";
/// The path of the program.
const PROGRAM: &str = "KERNLINK_KUBE_PROXY";

/// The program, if it was given.
#[must_use]
pub fn program() -> Option<PathBuf> {
    let program = env::var_os(PROGRAM).map(PathBuf::from);
    if program.is_none() {
        println!("kube-proxy is not measured: {PROGRAM} is not set");
    }
    program
}

/// The lists of an API server, and the open watches of EndpointSlices.
#[derive(Debug)]
struct Objects {
    services: String,
    slices: String,
    watches: Mutex<Vec<TcpStream>>,
}

/// A running kube-proxy. It is ended when this is dropped.
#[derive(Debug)]
pub struct KubeProxy {
    child: Child,
    objects: Arc<Objects>,
    folder: PathBuf,
}

impl KubeProxy {
    /// Starts the API server and the program in the calling thread's network namespace. In iptables mode it uses the legacy tools.
    ///
    /// # Errors
    /// If the server or the program cannot be started.
    pub fn start(program: &Path, mode: &str, cluster: &Cluster) -> Result<Self> {
        let [services, slices] = cluster.json_lists();
        let objects = Arc::new(Objects {
            services,
            slices,
            watches: Mutex::default(),
        });
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let served = Arc::clone(&objects);
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let objects = Arc::clone(&served);
                // An error is the end of the connection.
                thread::spawn(move || _ = serve(stream, &objects));
            }
        });
        let number = address.port();
        let folder = env::temp_dir().join(format!(
            "kernlink-bench-kube-proxy-{}-{number}",
            std::process::id()
        ));
        fs::create_dir_all(&folder)?;
        let kubeconfig = folder.join("kubeconfig");
        fs::write(
            &kubeconfig,
            format!(
                "apiVersion: v1\nkind: Config\ncurrent-context: c\nclusters: [{{name: c, cluster: {{server: 'http://{address}'}}}}]\n\
                 contexts: [{{name: c, context: {{cluster: c, user: u}}}}]\nusers: [{{name: u, user: {{}}}}]\n"
            ),
        )?;
        let config = folder.join("config.yaml");
        fs::write(
            &config,
            format!(
                "apiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nmode: {mode}\n\
                 hostnameOverride: {NODE_NAME}\nclusterCIDR: {PODS}\nmetricsBindAddress: {METRICS}\nhealthzBindAddress: 127.0.0.1:10256\n\
                 clientConnection: {{kubeconfig: {}, contentType: application/json, acceptContentTypes: application/json, qps: 1000, burst: 1000}}\n\
                 conntrack: {{maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}}\n",
                kubeconfig.display()
            ),
        )?;
        let log = fs::File::create(folder.join("log"))?;
        let mut command = programs::given(program);
        if mode == "iptables" {
            command.env("PATH", with_legacy_tools(&folder)?);
        }
        let child = command
            .arg("--config")
            .arg(&config)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()?;
        Ok(Self {
            child,
            objects,
            folder,
        })
    }

    /// Waits for so many syncs since the start. Returns the number of all syncs, and the time that they took; `None` if they did not end within the
    /// limit.
    ///
    /// # Errors
    /// If the program ended.
    pub fn wait_for_syncs(&mut self, number: f64, limit: Duration) -> Result<Option<(f64, f64)>> {
        let start = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait()? {
                let log = fs::read_to_string(self.folder.join("log")).unwrap_or_default();
                return Err(format!("kube-proxy ended: {status}\n{log}").into());
            }
            if let Ok(syncs) = syncs()
                && syncs.0 >= number
            {
                return Ok(Some(syncs));
            }
            if start.elapsed() > limit {
                return Ok(None);
            }
            thread::sleep(Duration::from_millis(20));
        }
    }

    /// Replaces a slice.
    pub fn change(&self, slice: &EndpointSlice, version: u32) {
        let event = format!(
            "{{\"type\":\"MODIFIED\",\"object\":{}}}\n",
            slice_json(slice, version)
        );
        let chunk = format!("{:x}\r\n{event}\r\n", event.len());
        let mut watches = self
            .objects
            .watches
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        watches.retain_mut(|watch| watch.write_all(chunk.as_bytes()).is_ok());
    }
}

/// Links the legacy tools in this folder under the names that kube-proxy starts. Returns the search path that begins with it.
fn with_legacy_tools(folder: &Path) -> Result<OsString> {
    let search = env::var_os("PATH").unwrap_or_default();
    for family in ["iptables", "ip6tables"] {
        for tool in ["", "-restore", "-save"] {
            let legacy = format!("{family}-legacy{tool}");
            let program = env::split_paths(&search)
                .map(|folder| folder.join(&legacy))
                .find(|program| program.exists())
                .ok_or_else(|| format!("no program {legacy}"))?;
            symlink(program, folder.join(format!("{family}{tool}")))?;
        }
    }
    let all = [folder.to_owned()].into_iter().chain(env::split_paths(&search));
    Ok(env::join_paths(all)?)
}

impl Drop for KubeProxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// The number of syncs of IPv4, and the sum of their durations in seconds.
fn syncs() -> Result<(f64, f64)> {
    let address: SocketAddr = METRICS.parse()?;
    let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(1))?;
    stream.write_all(b"GET /metrics HTTP/1.0\r\n\r\n")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let value = |suffix: &str| -> Result<f64> {
        let name = format!("kubeproxy_sync_proxy_rules_duration_seconds_{suffix}");
        let is_line =
            |line: &&str| line.starts_with(&name) && (!line.contains("ip_family") || line.contains("IPv4"));
        let line = text.lines().find(is_line).ok_or("no metric")?;
        Ok(line.rsplit(' ').next().ok_or("no value")?.parse()?)
    };
    Ok((value("count")?, value("sum")?))
}

/// Answers the requests of a connection.
fn serve(mut stream: TcpStream, objects: &Objects) -> Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    loop {
        let mut request = String::new();
        if reader.read_line(&mut request)? == 0 {
            return Ok(());
        }
        let mut length = 0;
        loop {
            let mut header = String::new();
            if reader.read_line(&mut header)? == 0 || header.trim().is_empty() {
                break;
            }
            if let Some(value) = header.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse()?;
            }
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body)?;
        let mut words = request.split(' ');
        let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        if method != "GET" {
            answer(&mut stream, "201 Created", &String::from_utf8_lossy(&body))?;
            continue;
        }
        if query.contains("sendInitialEvents=true") {
            // A streamed list. Refused, the client requests an ordinary one.
            let refusal =
                r#"{"apiVersion":"v1","kind":"Status","status":"Failure","reason":"Invalid","code":422}"#;
            answer(&mut stream, "422 Unprocessable Entity", refusal)?;
            continue;
        }
        if query.contains("watch=true") || query.contains("watch=1") {
            stream.write_all(
                b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n",
            )?;
            if path.ends_with("/endpointslices") {
                let mut watches = objects.watches.lock().unwrap_or_else(PoisonError::into_inner);
                watches.push(stream.try_clone()?);
            }
            // Until the client closes the connection.
            let _ = reader.read_line(&mut String::new());
            return Ok(());
        }
        let node = format!(
            r#"{{"apiVersion":"v1","kind":"Node","metadata":{{"name":"{NODE_NAME}","uid":"n","resourceVersion":"1"}},"status":{{"addresses":[{{"type":"InternalIP","address":"{NODE}"}}]}}}}"#
        );
        let list = |kind: &str, version: &str, items: &str| {
            format!(
                r#"{{"apiVersion":"{version}","kind":"{kind}","metadata":{{"resourceVersion":"1"}},"items":[{items}]}}"#
            )
        };
        let text = match path {
            "/api/v1/services" => list("ServiceList", "v1", &objects.services),
            "/apis/discovery.k8s.io/v1/endpointslices" => {
                list("EndpointSliceList", "discovery.k8s.io/v1", &objects.slices)
            }
            "/apis/networking.k8s.io/v1/servicecidrs" => list("ServiceCIDRList", "networking.k8s.io/v1", ""),
            "/api/v1/nodes" => list("NodeList", "v1", &node),
            path if path.starts_with("/api/v1/nodes/") => node,
            _ => {
                answer(&mut stream, "404 Not Found", "{}")?;
                continue;
            }
        };
        answer(&mut stream, "200 OK", &text)?;
    }
}

fn answer(stream: &mut TcpStream, status: &str, text: &str) -> Result<()> {
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
        text.len()
    );
    stream.write_all(head.as_bytes())?;
    stream.write_all(text.as_bytes())?;
    Ok(())
}
