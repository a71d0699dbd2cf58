//! New connections of a client to random Services, in turn at all nodes that are compared.

use std::any::Any;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use kernlink_kernel_tests::tools;
use kernlink_kernel_tests::traffic::{Network, reset_on_close};

use crate::Result;
use crate::figure::figure;
use crate::runs::middle;

/// A node with a client, and a pod that is the server at the addresses of all endpoints.
#[derive(Debug)]
pub struct Node {
    name: String,
    size: u32,
    network: Network,
    /// What serves the node, if it ends with a value of this process.
    _served: Box<dyn Any>,
}

impl Node {
    /// Makes the namespaces. `serve`, which runs on the node, programs it for a [`Cluster`](crate::cluster::Cluster) of this size; what it returns is kept.
    ///
    /// # Errors
    /// Those of `serve`, and if the server cannot be started.
    pub fn new<T: 'static>(name: &str, size: u32, serve: impl FnOnce() -> Result<T>) -> Result<Self> {
        let network = Network::new(1);
        let listener = listen_at_endpoints(&network)?;
        // Ends with the process.
        thread::spawn(move || listener.incoming().for_each(drop));
        network
            .client
            .run(|| tools::set_sysctl("net.ipv4.ip_local_port_range", "1024 65000"));
        let entered = network.node.enter();
        tools::ip(&["route", "add", "10.0.0.0/8", "dev", "client"]);
        // Connections that were reset are not counted for long.
        tools::set_sysctl("net.netfilter.nf_conntrack_tcp_timeout_close", "1");
        let served = Box::new(serve()?);
        drop(entered);
        Ok(Self {
            name: name.to_owned(),
            size,
            network,
            _served: served,
        })
    }
}

/// A listener in the first pod of a network at the addresses of all endpoints of a [`Cluster`](crate::cluster::Cluster), to which the node sends packets to
/// them.
///
/// # Errors
/// If the network has no pod, or the port cannot be bound.
pub fn listen_at_endpoints(network: &Network) -> Result<TcpListener> {
    let pod = network.pods.first().ok_or("no pod")?;
    let via = Network::pod_ipv4(0).to_string();
    network
        .node
        .run(|| tools::ip(&["route", "add", "11.0.0.0/8", "via", &via]));
    Ok(pod.run(|| {
        tools::ip(&["route", "add", "local", "11.0.0.0/8", "dev", "lo"]);
        TcpListener::bind("0.0.0.0:8080")
    })?)
}

/// The connections at a node.
#[derive(Clone, Debug)]
pub struct Connections {
    /// The name of the node.
    pub name: String,
    /// The number of Services.
    pub size: u32,
    /// Connections a second in each round.
    rates: Vec<f64>,
    /// How long each connection took, sorted: its first packet and the answer to it.
    times: Vec<Duration>,
}

impl Connections {
    /// The medians, and the time that one of a hundred connections exceeded.
    ///
    /// # Errors
    /// If nothing was measured.
    pub fn text(&self) -> Result<String> {
        let Self { name, size, .. } = self;
        let rate = middle(self.rates.clone());
        let (half, most) = (self.time(0.5)?, self.time(0.99)?);
        Ok(format!(
            "{name} {size}: {rate:.0} connections/s, {half:.2?}, p99 {most:.2?}"
        ))
    }

    /// The time that this part of the connections did not exceed.
    fn time(&self, part: f64) -> Result<Duration> {
        let index = (self.times.len() as f64 * part) as usize;
        Ok(self.times.get(index).copied().ok_or("no connections")?)
    }

    /// Prints the figures `GROUP.connections_per_s.NAME.SIZE`, the median of the rounds, and `GROUP.connect_us.NAME.SIZE`, the median of the connections.
    ///
    /// # Errors
    /// If a name is invalid, or nothing was measured.
    pub fn print(&self, group: &str) -> Result<()> {
        let Self { name, size, .. } = self;
        println!("{}", self.text()?);
        let (rate, half) = (middle(self.rates.clone()), self.time(0.5)?);
        let of = |what: &str| format!("{group}.{what}.{name}.{size}");
        figure(&of("connections_per_s"), rate, "connections/s")?;
        figure(&of("connect_us"), half.as_secs_f64() * 1e6, "us")?;
        Ok(())
    }

    /// How many times as many connections a second as at another node: the median of the rounds, in which the same load of the machine affected both.
    #[must_use]
    pub fn rate_over(&self, other: &Self) -> f64 {
        let rounds = self.rates.iter().zip(&other.rates);
        middle(rounds.map(|(one, other)| one / other).collect())
    }
}

/// Opens connections in rounds, in which each node has its turn for this time, another one first in each round. A first round is not counted.
///
/// # Errors
/// If a connection is not served within ten seconds.
pub fn measure(nodes: &[Node], rounds: u32, time: Duration) -> Result<Vec<Connections>> {
    let empty = |node: &Node| Connections {
        name: node.name.clone(),
        size: node.size,
        rates: Vec::new(),
        times: Vec::new(),
    };
    let mut all: Vec<Connections> = nodes.iter().map(empty).collect();
    for round in 0..=rounds {
        let mut turns: Vec<_> = nodes.iter().zip(&mut all).collect();
        turns.rotate_left(round as usize % nodes.len().max(1));
        for (node, connections) in turns {
            let size = node.size;
            let opened = node.network.client.run(|| open(size, round, time));
            let (rate, times) = opened.map_err(|error| format!("{} {}: {error}", node.name, node.size))?;
            if round > 0 {
                connections.rates.push(rate);
                connections.times.extend(times);
            }
        }
    }
    all.iter_mut().for_each(|connections| connections.times.sort());
    Ok(all)
}

/// Opens connections to random Services, one after the other, for this time. Returns how many a second, and the time of each.
fn open(size: u32, seed: u32, time: Duration) -> io::Result<(f64, Vec<Duration>)> {
    let mut random = 0x9e37_79b9_u32.wrapping_add(seed);
    let mut times = Vec::new();
    let start = Instant::now();
    while start.elapsed() < time {
        // Xorshift.
        random ^= random << 13;
        random ^= random >> 17;
        random ^= random << 5;
        let address = IpAddr::from((0x0a61_0000 + random % size).to_be_bytes());
        let target = SocketAddr::new(address, 80);
        let before = Instant::now();
        let stream = TcpStream::connect_timeout(&target, Duration::from_secs(10))
            .map_err(|error| io::Error::new(error.kind(), format!("{target}: {error}")))?;
        times.push(before.elapsed());
        reset_on_close(&stream)?;
    }
    Ok((times.len() as f64 / start.elapsed().as_secs_f64(), times))
}
