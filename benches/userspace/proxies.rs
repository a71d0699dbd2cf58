//! The proxies that are compared.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use kernlink_kernel_tests::traffic::Network;
use kernlink_kernel_tests::{programs, tools};
use kernlink_userspace::balance::Backend;
use kernlink_userspace::{Limits, ListenerKey, Proxy as OwnProxy, Serving, Transport};

use super::Outcome;
use super::endpoint::{PORT, Process, start_role};

const OWN_PORT: u16 = 7001;
const HAPROXY_PORT: u16 = 7002;
const DNAT_PORT: u16 = 7003;

/// A way from the client to the endpoint.
pub(crate) struct Proxy {
    /// Where the client connects to.
    pub(crate) tcp: SocketAddr,
    pub(crate) udp: SocketAddr,
    /// `None`: the kernel.
    process: Option<Process>,
    /// The process that serves, which may be a child of `process`.
    id: u32,
}

pub(crate) struct Proxies {
    pub(crate) own: Proxy,
    pub(crate) haproxy: Proxy,
    pub(crate) dnat: Proxy,
    configuration: PathBuf,
}

impl Drop for Proxies {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.configuration);
    }
}

impl Proxies {
    pub(crate) fn start(network: &Network, connections: usize) -> Outcome<Self> {
        let node = Network::node_ipv4();
        let pod = Network::pod_ipv4(0);
        let own = network
            .node
            .run(|| start_role("proxy").map_err(|error| error.to_string()))?;
        let configuration =
            std::env::temp_dir().join(format!("kernlink-bench-haproxy-{}", std::process::id()));
        let text = format!(
            "global\n  maxconn {connections}\n  maxpipes 50\n  nbthread 1\ndefaults\n  mode tcp\n  option splice-request\n  option splice-response\n  timeout connect 5s\n  timeout client 1h\n  \
             timeout server 1h\nlisten bench\n  bind {node}:{HAPROXY_PORT} backlog 16384\n  server pod {pod}:{PORT}\n"
        );
        fs::write(&configuration, text)?;
        let path = configuration.to_string_lossy().into_owned();
        let haproxy = network.node.run(|| {
            // `-db`: in the foreground.
            let mut command = programs::command("haproxy");
            command.args(["-db", "-f", &path]).stdin(Stdio::null()).spawn()
        })?;
        let haproxy = Process(haproxy);
        network.node.run(|| {
            for protocol in ["tcp", "udp"] {
                let to = format!("{pod}:{PORT}");
                let port = DNAT_PORT.to_string();
                let rule = [
                    "-p",
                    protocol,
                    "--dport",
                    &port,
                    "-j",
                    "DNAT",
                    "--to-destination",
                    &to,
                ];
                tools::must(
                    "iptables",
                    &[&["-w", "-t", "nat", "-A", "PREROUTING"][..], &rule[..]].concat(),
                );
            }
        });
        let proxies = Self {
            own: Proxy::new(node, OWN_PORT, Some(own)),
            haproxy: Proxy::new(node, HAPROXY_PORT, Some(haproxy)),
            dnat: Proxy::new(node, DNAT_PORT, None),
            configuration,
        };
        for proxy in [&proxies.own, &proxies.haproxy, &proxies.dnat] {
            proxy.wait(network)?;
        }
        Ok(proxies)
    }
}

impl Proxy {
    fn new(node: Ipv4Addr, port: u16, process: Option<Process>) -> Self {
        let address = SocketAddr::from((node, port));
        let id = process.as_ref().map_or(0, |process| process.0.id());
        Self {
            tcp: address,
            udp: address,
            process,
            id,
        }
    }

    fn wait(&self, network: &Network) -> Outcome<()> {
        let start = Instant::now();
        loop {
            let once = network.client.run(|| super::load::hold(self.tcp, 1).map(drop));
            match once {
                Ok(()) => return Ok(()),
                Err(error) if start.elapsed() > Duration::from_secs(20) => {
                    return Err(format!("{} does not answer: {error}", self.tcp).into());
                }
                Err(_) => thread::sleep(Duration::from_millis(50)),
            }
        }
    }

    /// The processor time that the process used, in seconds; 0 for the kernel.
    pub(crate) fn processor_time(&self) -> Outcome<f64> {
        if self.process.is_none() {
            return Ok(0.0);
        }
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.id))?;
        // The name, in parentheses, may contain spaces.
        let fields = stat
            .rsplit_once(')')
            .map(|(_, fields)| fields)
            .unwrap_or_default();
        let ticks: u64 = fields
            .split_whitespace()
            .skip(11)
            .take(2)
            .filter_map(|field| field.parse::<u64>().ok())
            .sum();
        // The kernel reports times of processes in hundredths of a second on all architectures.
        Ok(ticks as f64 / 100.0)
    }

    /// The resident memory of the process.
    pub(crate) fn resident_bytes(&self) -> Outcome<f64> {
        let status = fs::read_to_string(format!("/proc/{}/status", self.id))?;
        let line = status
            .lines()
            .find_map(|line| line.strip_prefix("VmRSS:"))
            .ok_or("no VmRSS")?;
        let kib: f64 = line.trim().trim_end_matches(" kB").parse()?;
        Ok(kib * 1024.0)
    }
}

/// The role of the proxy of this workspace.
pub(crate) fn run_own() -> Outcome<()> {
    kernlink_userspace::limits::raise_descriptor_limit(65_536)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    let mut limits = Limits::default();
    // One port is measured.
    limits.port_share = 0;
    let mut proxy = OwnProxy::new(runtime.handle().clone(), limits)?;
    let serving = Serving {
        backends: vec![Backend::new(SocketAddr::from((Network::pod_ipv4(0), PORT)))],
        ..Serving::default()
    };
    for transport in [Transport::Tcp, Transport::Udp] {
        let address = SocketAddr::from((Ipv4Addr::UNSPECIFIED, OWN_PORT));
        proxy.listen(ListenerKey { transport, address }, &serving)?;
    }
    println!("ready");
    // Until the benchmark ends.
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    Ok(())
}
