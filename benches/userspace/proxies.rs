//! The proxies that are compared.

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::process::Stdio;
use std::thread;
use std::time::{Duration, Instant};

use kernlink_kernel_tests::programs;
use kernlink_kernel_tests::traffic::Network;
use kernlink_userspace::balance::Backend;
use kernlink_userspace::{Limits, ListenerKey, Proxy as OwnProxy, Serving, Transport};

use super::Outcome;
use super::endpoint::{PORT, Process, start_role};
use super::modes;

/// The first port of each proxy; further processes have the next ones.
const OWN_PORT: u16 = 7100;
const HAPROXY_PORT: u16 = 7200;

/// The argument of the own proxy that also serves a Service of userspace mode.
const WITH_MODE: &str = "with-mode";

/// A way from the client to the endpoint.
pub(crate) struct Way {
    /// Its name in figures.
    pub(crate) name: &'static str,
    /// Where the client connects to.
    pub(crate) tcp: SocketAddr,
    pub(crate) udp: SocketAddr,
    /// The process that copies. `None`: the kernel forwards.
    pub(crate) id: Option<u32>,
}

/// The processes of one proxy. Each may have as many connections as its limit of open files permits.
pub(crate) struct Processes {
    pub(crate) name: &'static str,
    processes: Vec<Process>,
    first_port: u16,
}

impl Processes {
    fn new(name: &'static str, first_port: u16) -> Self {
        Self {
            name,
            processes: Vec::new(),
            first_port,
        }
    }

    pub(crate) fn ids(&self) -> Vec<u32> {
        self.processes.iter().map(|process| process.0.id()).collect()
    }

    /// The ports of the processes on the node.
    pub(crate) fn targets(&self) -> Vec<SocketAddr> {
        let ports = self.first_port..;
        let targets = ports
            .zip(&self.processes)
            .map(|(port, _)| (Network::node_ipv4(), port).into());
        targets.collect()
    }

    /// The first process as a way.
    fn way(&self) -> Outcome<Way> {
        let target = *self.targets().first().ok_or("no process")?;
        Ok(Way {
            name: self.name,
            tcp: target,
            udp: target,
            id: self.ids().first().copied(),
        })
    }
}

pub(crate) struct Proxies {
    /// This workspace's proxy, at its port.
    pub(crate) own: Processes,
    pub(crate) haproxy: Processes,
    configurations: Vec<PathBuf>,
}

impl Drop for Proxies {
    fn drop(&mut self) {
        for configuration in &self.configurations {
            let _ = fs::remove_file(configuration);
        }
    }
}

impl Proxies {
    /// Starts so many processes of each proxy, which have so many connections each.
    pub(crate) fn start(network: &Network, processes: u16, connections: usize) -> Outcome<Self> {
        let mut proxies = Self {
            own: Processes::new("own", OWN_PORT),
            haproxy: Processes::new("haproxy", HAPROXY_PORT),
            configurations: Vec::new(),
        };
        for number in 0..processes {
            proxies.start_own(network, number)?;
            proxies.start_haproxy(network, number, connections)?;
        }
        let targets = [proxies.own.targets(), proxies.haproxy.targets()].concat();
        for target in targets {
            wait(network, target)?;
        }
        Ok(proxies)
    }

    /// The first process of each proxy, and both modes of the workspace. The first own process serves userspace mode too.
    pub(crate) fn ways(&self, network: &Network) -> Outcome<[Way; 4]> {
        let (own, haproxy) = (self.own.way()?, self.haproxy.way()?);
        let [portals, iptables] = [
            ("userspace_mode", &modes::USERSPACE, own.id),
            ("iptables_mode", &modes::IPTABLES, None),
        ]
        .map(|(name, service, id)| Way {
            name,
            tcp: service.tcp(),
            udp: service.udp(),
            id,
        });
        for way in [&portals, &iptables] {
            wait(network, way.tcp)?;
        }
        Ok([own, haproxy, portals, iptables])
    }

    fn start_own(&mut self, network: &Network, number: u16) -> Outcome<()> {
        let port = (OWN_PORT + number).to_string();
        let with_mode: &[&str] = if number == 0 { &[WITH_MODE] } else { &[] };
        let arguments = [&["proxy", &port], with_mode].concat();
        let process = network
            .node
            .run(|| start_role(&arguments).map_err(|error| error.to_string()))?;
        self.own.processes.push(process);
        Ok(())
    }

    fn start_haproxy(&mut self, network: &Network, number: u16, connections: usize) -> Outcome<()> {
        let (node, pod) = (Network::node_ipv4(), Network::pod_ipv4(0));
        let port = HAPROXY_PORT + number;
        let name = format!("kernlink-bench-haproxy-{}-{number}", std::process::id());
        let configuration = std::env::temp_dir().join(name);
        let text = format!(
            "global\n  maxconn {connections}\n  maxpipes 50\n  nbthread 1\ndefaults\n  mode tcp\n  option splice-request\n  option splice-response\n  timeout connect 5s\n  timeout client 1h\n  \
             timeout server 1h\nlisten bench\n  bind {node}:{port} backlog 16384\n  server pod {pod}:{PORT}\n"
        );
        fs::write(&configuration, text)?;
        let path = configuration.to_string_lossy().into_owned();
        self.configurations.push(configuration);
        let process = network.node.run(|| {
            // `-db`: in the foreground.
            let mut command = programs::command("haproxy");
            command.args(["-db", "-f", &path]).stdin(Stdio::null()).spawn()
        })?;
        self.haproxy.processes.push(Process(process));
        Ok(())
    }
}

fn wait(network: &Network, target: SocketAddr) -> Outcome<()> {
    let start = Instant::now();
    loop {
        let once = network.client.run(|| super::load::hold(&[target], 1).map(drop));
        match once {
            Ok(()) => return Ok(()),
            Err(error) if start.elapsed() > Duration::from_secs(20) => {
                return Err(format!("{target} does not answer: {error}").into());
            }
            Err(_) => thread::sleep(Duration::from_millis(50)),
        }
    }
}

/// The role of the proxy of this workspace.
pub(crate) fn run_own(mut arguments: impl Iterator<Item = String>) -> Outcome<()> {
    let port: u16 = arguments.next().ok_or("no port")?.parse()?;
    kernlink_userspace::limits::raise_descriptor_limit(65_536)?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()?;
    let mut proxy = OwnProxy::new(runtime.handle().clone(), Limits::default())?;
    let serving = Serving {
        backends: vec![Backend::new(SocketAddr::from((Network::pod_ipv4(0), PORT)))],
        ..Serving::default()
    };
    for transport in [Transport::Tcp, Transport::Udp] {
        let address = SocketAddr::from((Ipv4Addr::UNSPECIFIED, port));
        proxy.listen(ListenerKey { transport, address }, &serving)?;
    }
    let _mode = match arguments.next().as_deref() {
        Some(WITH_MODE) => Some(modes::serve_userspace(runtime.handle())?),
        _ => None,
    };
    println!("ready");
    // Until the benchmark ends.
    std::io::copy(&mut std::io::stdin(), &mut std::io::sink())?;
    Ok(())
}
