//! A folder of manifests, and `kernlink-agent` for it.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use kernlink_kernel_tests::netns::NetNs;
use kernlink_kernel_tests::traffic::{Connection, Network, Protocol};
use kernlink_kernel_tests::{programs, tools, wait};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

/// A folder of manifests, removed at the end.
pub(crate) struct Manifests(pub(crate) PathBuf);

impl Manifests {
    pub(crate) fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!(
            "kernlink-agent-{}-{}",
            std::process::id(),
            NUMBER.fetch_add(1, Ordering::Relaxed)
        );
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    /// Writes a file that becomes visible as a whole.
    pub(crate) fn replace(&self, name: &str, text: &str) {
        let temporary = self.0.join(format!(".{name}"));
        fs::write(&temporary, text).unwrap();
        fs::rename(temporary, self.0.join(name)).unwrap();
    }
}

impl Drop for Manifests {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A Service on port 80 with an EndpointSlice whose endpoints are these pods, on port 8080.
pub(crate) fn service(name: &str, address: &str, pods: &[u8]) -> String {
    let endpoints: String = pods
        .iter()
        .map(|pod| format!("- addresses: [{}]\n  nodeName: node-a\n", Network::pod_ipv4(*pod)))
        .collect();
    format!(
        "apiVersion: v1
kind: Service
metadata: {{name: {name}}}
spec: {{clusterIP: {address}, ports: [{{port: 80}}]}}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {{name: {name}-1, labels: {{kubernetes.io/service-name: {name}}}}}
addressType: IPv4
ports: [{{port: 8080, name: \"\"}}]
endpoints:
{endpoints}---
"
    )
}

/// `kernlink-agent` for a folder, in IPVS mode if the arguments name no other one, with kube-proxy's defaults except for the connection
/// table, which all namespaces share. A subcommand is the first argument.
pub(crate) fn command(manifests: &Path, arguments: &[&str]) -> Command {
    let mut command = programs::agent();
    let is_subcommand = arguments.first().is_some_and(|first| !first.starts_with('-'));
    let (subcommand, arguments) = arguments.split_at(usize::from(is_subcommand));
    command.args(subcommand);
    command
        .args(["--node-name", "node-a", "--watch"])
        .arg(manifests)
        .args([
            "--conntrack-max-per-core",
            "0",
            "--conntrack-tcp-timeout-established",
            "0s",
        ])
        .args([
            "--conntrack-tcp-timeout-close-wait",
            "0s",
            "--ipvs-sync-period",
            "10m",
        ])
        .args(arguments);
    if !arguments.contains(&"--proxy-mode") {
        command.args(["--proxy-mode", "ipvs"]);
    }
    command
}

/// `kernlink-agent` for an API server, in iptables mode.
pub(crate) fn api_command(kubeconfig: &Path, arguments: &[&str]) -> Command {
    let mut command = programs::agent();
    command
        .args(["--hostname-override", "node-a", "--kubeconfig"])
        .arg(kubeconfig)
        .args(["--conntrack-max-per-core", "0"])
        .args(["--conntrack-tcp-timeout-established", "0s"])
        .args(["--conntrack-tcp-timeout-close-wait", "0s"])
        .args([
            "--iptables-sync-period",
            "10m",
            "--iptables-min-sync-period",
            "1ms",
        ])
        .args(arguments);
    command
}

/// Runs the program in the namespace of the calling thread until it ends.
pub(crate) fn run(manifests: &Path, arguments: &[&str]) -> Output {
    command(manifests, arguments).output().unwrap()
}

pub(crate) fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}

/// An agent that runs. It is killed at the end.
pub(crate) struct Agent {
    pub(crate) child: Child,
    log: Arc<Mutex<String>>,
}

impl Agent {
    /// Starts an agent in the namespace of the calling thread.
    pub(crate) fn start(manifests: &Path, arguments: &[&str]) -> Self {
        Self::spawn(command(manifests, arguments))
    }

    /// Starts an agent in the namespace of the calling thread.
    pub(crate) fn spawn(mut command: Command) -> Self {
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let errors = BufReader::new(child.stderr.take().unwrap());
        let log = Arc::new(Mutex::new(String::new()));
        let writer = Arc::clone(&log);
        thread::spawn(move || {
            for line in errors.lines().map_while(Result::ok) {
                *writer.lock().unwrap() += &format!("{line}\n");
            }
        });
        Self { child, log }
    }

    pub(crate) fn log(&self) -> String {
        self.log.lock().unwrap().clone()
    }

    /// Waits until the log has this text a number of times.
    pub(crate) fn wait_for(&self, text: &str, times: usize) {
        wait::until(|| match self.log() {
            log if log.matches(text).count() >= times => Ok(()),
            log => Err(format!("{text:?} is not {times} times in the log:\n{log}")),
        });
    }

    pub(crate) fn stop(mut self) -> (ExitStatus, String) {
        let pid = Pid::from_raw(self.child.id().try_into().unwrap());
        kill(pid, Signal::SIGTERM).unwrap();
        let status = self.child.wait().unwrap();
        wait::until(|| match self.log() {
            log if log.contains("; the kernel stays as it is") || log.contains("stopped within a sync; ") => {
                Ok(())
            }
            log => Err(log),
        });
        (status, self.log())
    }

    /// The resident memory in KiB.
    pub(crate) fn resident(&self) -> u64 {
        self.status("VmRSS:").trim_end_matches(" kB").parse().unwrap()
    }

    /// A line of `/proc/PID/status`, without its name.
    pub(crate) fn status(&self, name: &str) -> String {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(name)).unwrap();
        line.trim().to_owned()
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The pod that answers a new connection of the client.
pub(crate) fn ask(client: &NetNs, address: &str) -> Result<String, String> {
    let target: SocketAddr = format!("{address}:80").parse().unwrap();
    let asked = Connection::open(client, Protocol::Tcp, target).and_then(|mut connection| connection.ask());
    asked
        .map(|answer| answer.server)
        .map_err(|error| error.to_string())
}

/// Waits until this pod answers new connections of the client.
pub(crate) fn wait_for_answer(network: &Network, address: &str, pod: &str) {
    wait::until(|| match ask(&network.client, address)? {
        answer if answer == pod => Ok(()),
        other => Err(other),
    });
}

/// Waits until no rule in the namespace of the calling thread names this Service of the namespace `shop`.
pub(crate) fn wait_until_gone(name: &str) {
    wait::until(|| match tools::run("iptables-save", &["-t", "nat"]).unwrap() {
        rules if rules.contains(&format!("shop/{name}")) => Err(rules),
        _ => Ok(()),
    });
}

/// Waits until the agent of the calling thread's namespace answers questions: a thread of its own listens, which may begin after the first sync.
pub(crate) fn wait_for_socket() {
    wait::until(|| match programs::agent().arg("status").output().unwrap() {
        output if output.status.success() => Ok(()),
        output => Err(text(&output)),
    });
}

/// What the agent answered. The text is the error if a sync in progress took longer than an answer may: it is asked again.
pub(crate) fn unless_in_sync(output: Output) -> Result<Output, String> {
    match text(&output) {
        text if text.contains("a sync is in progress") => Err(text),
        _ => Ok(output),
    }
}

/// The answer to `GET path`, from the namespace of the calling thread.
pub(crate) fn get(address: &str, path: &str) -> Result<String, String> {
    let ask = || {
        let mut stream = TcpStream::connect(address)?;
        // At once: a server waits for the end of a request for some seconds only.
        let request = format!("GET {path} HTTP/1.1\r\nHost: node\r\nConnection: close\r\n\r\n");
        stream.write_all(request.as_bytes())?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).map(|_| answer)
    };
    ask().map_err(|error: std::io::Error| format!("{address}{path}: {error}"))
}
