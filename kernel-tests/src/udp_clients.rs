//! Clients that send UDP packets from one socket all the time, and servers that return and record them.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "this module is only for tests, which fail by panicking"
)]

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use kernlink_conntrack::{Client, Conntrack, Filter, Flow};

use crate::manifests::{cluster_ips, service, slices};
use crate::netns::NetNs;
use crate::traffic::{Connection, Network, Protocol, Server};
use crate::{tools, wait};

/// The port of the servers.
pub const SERVER_PORT: u16 = 5353;

/// A thread that stops when this is dropped.
#[derive(Debug)]
struct Worker {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    fn start(mut work: impl FnMut() + Send + 'static) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = stop.clone();
        let thread = thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                work();
            }
        });
        Self {
            stop,
            thread: Some(thread),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A UDP socket in a namespace, which waits up to 500 ms for a packet.
///
/// # Panics
/// If the address is not available.
#[must_use]
pub fn bind(namespace: &NetNs, address: SocketAddr) -> UdpSocket {
    let socket = namespace.run(|| UdpSocket::bind(address)).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    socket
}

/// The packets that a pod received from each client, by number, with their source addresses.
type Received = Arc<Mutex<BTreeMap<(u64, u64), IpAddr>>>;

/// A server in a pod, on one address, that returns each packet.
#[derive(Debug)]
struct Pod {
    received: Received,
    _worker: Worker,
}

impl Pod {
    fn start(namespace: &NetNs, address: IpAddr) -> Self {
        let socket = bind(namespace, SocketAddr::new(address, SERVER_PORT));
        let received = Received::default();
        let log = received.clone();
        let worker = Worker::start(move || {
            let mut packet = [0; 16];
            if let Ok((16, source)) = socket.recv_from(&mut packet) {
                let packet_number = u128::from_be_bytes(packet);
                let (client, number) = ((packet_number >> 64) as u64, packet_number as u64);
                log.lock().unwrap().insert((client, number), source.ip());
                let _ = socket.send_to(&packet, source);
            }
        });
        Self {
            received,
            _worker: worker,
        }
    }

    /// The numbers of the packets of a client from this one on, with their sources.
    fn from(&self, client: u64, first: u64) -> Vec<(u64, IpAddr)> {
        let received = self.received.lock().unwrap();
        let range = received.range((client, first)..=(client, u64::MAX));
        range.map(|((_, number), source)| (*number, *source)).collect()
    }
}

/// A client that sends a hundred numbered packets a second from one socket.
#[derive(Debug)]
struct Sender {
    id: u64,
    /// 0 for IPv4, 1 for IPv6.
    family: usize,
    target: SocketAddr,
    is_masqueraded: bool,
    /// The number of the next packet.
    next: Arc<AtomicU64>,
    /// The highest number that was returned, and 1; 0 if none was.
    returned: Arc<AtomicU64>,
    _workers: [Worker; 2],
}

impl Sender {
    fn start(id: u64, namespace: &NetNs, target: SocketAddr, is_masqueraded: bool) -> Self {
        let any = if target.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let socket = bind(namespace, any.parse().unwrap());
        let (next, returned) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
        let (numbers, seen) = (next.clone(), returned.clone());
        let receiver = socket.try_clone().unwrap();
        let send = Worker::start(move || {
            let number = numbers.fetch_add(1, Ordering::SeqCst);
            let packet = (u128::from(id) << 64) | u128::from(number);
            // An error is the ICMP message about an earlier packet.
            let _ = socket.send_to(&packet.to_be_bytes(), target);
            thread::sleep(Duration::from_millis(10));
        });
        let receive = Worker::start(move || {
            let mut packet = [0; 16];
            if let Ok((16, _)) = receiver.recv_from(&mut packet) {
                let number = u128::from_be_bytes(packet) as u64;
                seen.fetch_max(number + 1, Ordering::SeqCst);
            }
        });
        Self {
            id,
            family: usize::from(target.is_ipv6()),
            target,
            is_masqueraded,
            next,
            returned,
            _workers: [send, receive],
        }
    }

    /// Waits until a packet with this number or a later one was returned.
    fn wait_for_reply(&self, first: u64) {
        wait::until(|| match self.returned.load(Ordering::SeqCst) {
            returned if returned > first => Ok(()),
            returned => Err(format!(
                "no reply to packet {first} of the client of {}; the last one was to {returned}",
                self.target
            )),
        });
    }
}

/// Servers in two pods; and clients in a third pod and outside of the cluster, of cluster IPs and of a node port.
#[derive(Debug)]
pub struct Clients {
    /// By pod and family.
    pods: Vec<[Pod; 2]>,
    senders: Vec<Sender>,
}

impl Clients {
    /// Starts all of them. The cluster IPs, one of each family, have port 53; the endpoints have port [`SERVER_PORT`].
    ///
    /// # Panics
    /// If an address is not available.
    #[must_use]
    pub fn start(network: &Network, cluster_ips: [IpAddr; 2], node_port: u16) -> Self {
        let pods = (0..2_u8).map(|number| {
            let namespace = &network.pods[usize::from(number)];
            [
                Pod::start(namespace, Network::pod_ipv4(number).into()),
                Pod::start(namespace, Network::pod_ipv6(number).into()),
            ]
        });
        let node_ips: [IpAddr; 2] = [Network::node_ipv4().into(), Network::node_ipv6().into()];
        let mut senders = Vec::new();
        for (cluster_ip, node_ip) in cluster_ips.into_iter().zip(node_ips) {
            let cluster_ip = SocketAddr::new(cluster_ip, 53);
            let node_port = SocketAddr::new(node_ip, node_port);
            for (namespace, target, is_masqueraded) in [
                (&network.pods[2], cluster_ip, false),
                (&network.client, cluster_ip, true),
                (&network.client, node_port, true),
            ] {
                let id = senders.len() as u64;
                senders.push(Sender::start(id, namespace, target, is_masqueraded));
            }
        }
        Self {
            pods: pods.collect(),
            senders,
        }
    }

    /// The addresses that clients send to.
    pub fn targets(&self) -> impl Iterator<Item = SocketAddr> + '_ {
        self.senders.iter().map(|sender| sender.target)
    }

    /// Waits until each client received a reply.
    ///
    /// # Panics
    /// If that takes too long.
    pub fn wait_for_replies(&self) {
        self.senders.iter().for_each(|sender| sender.wait_for_reply(0));
    }

    /// Calls a function, and returns the number of the first packet of each client that it sent afterwards.
    pub fn after(&self, change: impl FnOnce()) -> Vec<u64> {
        change();
        let next = |sender: &Sender| sender.next.load(Ordering::SeqCst);
        self.senders.iter().map(next).collect()
    }

    /// Asserts that these packets, the first ones after a change, and all later ones reach this pod and are returned.
    ///
    /// # Panics
    /// If one was lost, or reached another pod, or has another source.
    pub fn assert_served_by(&self, pod: usize, first: &[u64]) {
        for (sender, first) in self.senders.iter().zip(first) {
            sender.wait_for_reply(*first);
            let of_pod = &self.pods[pod][sender.family];
            // On a loaded machine packets of two processors may overtake each other.
            wait::until(|| match of_pod.from(sender.id, *first).first() {
                Some((number, _)) if number == first => Ok(()),
                _ => Err(format!("the first packet to {} was lost", sender.target)),
            });
            let received = of_pod.from(sender.id, *first);
            let gateway: IpAddr = match sender.family {
                0 => format!("10.244.{pod}.1").parse().unwrap(),
                _ => format!("fd00:10:244:{pod}::1").parse().unwrap(),
            };
            for (number, source) in received {
                let is_gateway = source == gateway;
                assert_eq!(
                    is_gateway, sender.is_masqueraded,
                    "{number} to {}: {source}",
                    sender.target
                );
            }
            self.assert_unreached(1 - pod, sender, *first);
        }
    }

    fn assert_unreached(&self, pod: usize, sender: &Sender, first: u64) {
        let received = self.pods[pod][sender.family].from(sender.id, first);
        assert_eq!(received, [], "pod {pod} received packets to {}", sender.target);
    }

    /// Asserts that no flow to an address of the clients is translated, in the calling thread's namespace.
    ///
    /// # Panics
    /// If one is.
    pub fn assert_not_translated(&self) {
        for target in self.targets() {
            let mut flows = flows_to(target);
            flows.retain(|flow| flow.reply.source_socket() != target);
            assert_eq!(flows, []);
        }
    }

    /// Asserts that none of these packets, the first ones after a change, and of 20 later ones reaches a pod.
    ///
    /// # Panics
    /// If one does.
    pub fn assert_refused(&self, first: &[u64]) {
        for (sender, first) in self.senders.iter().zip(first) {
            wait::until(|| match sender.next.load(Ordering::SeqCst) {
                next if next > first + 20 => Ok(()),
                next => Err(format!("packet {next} was not sent")),
            });
            (0..2).for_each(|pod| self.assert_unreached(pod, sender, *first));
        }
    }
}

/// Sets the timeouts of UDP flows, so that none ends by itself during a test: without packets one ends after half a minute.
pub fn keep_flows() {
    tools::set_sysctl("net.netfilter.nf_conntrack_udp_timeout", "3600");
    tools::set_sysctl("net.netfilter.nf_conntrack_udp_timeout_stream", "3600");
}

/// The flows to an address, in the calling thread's namespace.
///
/// # Panics
/// If they cannot be listed.
#[must_use]
pub fn flows_to(target: SocketAddr) -> Vec<Flow> {
    let mut flows = Client::open().unwrap().list(&Filter::new()).unwrap();
    flows.retain(|flow| flow.original.destination_socket() == target);
    flows
}

/// The only flow to an address.
fn flow_to(target: SocketAddr) -> (u32, String) {
    let flows = flows_to(target);
    let [flow] = &flows[..] else {
        panic!("flows to {target}: {flows:#?}")
    };
    (flow.id, format!("{} {}", flow.original, flow.reply))
}

/// Flows of the third pod to a port that is the number of the node port of a Service, but not to that Service.
#[derive(Debug)]
pub struct OtherFlows {
    targets: [SocketAddr; 2],
    before: [(u32, String); 2],
    _server: Server,
    _connection: Connection,
    _client: UdpSocket,
}

impl OtherFlows {
    /// Begins one to a server outside, and one to another Service.
    ///
    /// # Panics
    /// If one of them gets no reply.
    #[must_use]
    pub fn begin(network: &Network, port: u16, other_service: IpAddr) -> Self {
        let foreign = SocketAddr::new(Network::client_ipv4().into(), port);
        let server = Server::start(&network.client, "foreign", Protocol::Udp, foreign);
        let mut connection = Connection::open(&network.pods[2], Protocol::Udp, foreign).unwrap();
        connection.ask().unwrap();
        let of_other = SocketAddr::new(other_service, port);
        let client = bind(&network.pods[2], "0.0.0.0:0".parse().unwrap());
        client.set_read_timeout(Some(wait::LIMIT)).unwrap();
        client.send_to(&[0xff; 16], of_other).unwrap();
        client.recv_from(&mut [0; 16]).unwrap();
        let targets = [foreign, of_other];
        Self {
            targets,
            before: targets.map(flow_to),
            _server: server,
            _connection: connection,
            _client: client,
        }
    }

    /// Asserts that they are the same flows as before.
    ///
    /// # Panics
    /// If one is gone, or another one.
    pub fn assert_unchanged(&self) {
        assert_eq!(self.targets.map(flow_to), self.before);
    }
}

/// The node port of the Service `ask` of [`assert_flows_follow`].
const NODE_PORT: u16 = 30_053;

/// Asserts that the first UDP packet after a sync reaches a current endpoint, while endpoints, Services and node ports come and go. `sync`
/// replaces all objects by those of the manifests, and syncs. Three pods, on their node.
///
/// # Panics
/// If not.
pub fn assert_flows_follow(network: &Network, mut sync: impl FnMut(&str)) {
    keep_flows();
    // The port of the other Service is the number of the node port.
    let other = service("other", 2, "type: ClusterIP", ["", ""], &[]).replace("port: 53,", "port: 30053,")
        + &slices("other", &[(1, "node-a")]);
    let ask = |pods: &[(u8, &str)]| {
        let ports = [", nodePort: 30080", ", nodePort: 30053"];
        service("ask", 1, "type: NodePort", ports, &[]) + &slices("ask", pods) + &other
    };
    sync(&ask(&[(0, "node-a")]));
    wait::for_ipv6_addresses();
    let clients = Clients::start(network, cluster_ips(1), NODE_PORT);
    clients.wait_for_replies();
    // Flows that are not to the Service, but to the number of its node port.
    let others = OtherFlows::begin(network, NODE_PORT, cluster_ips(2)[0]);

    // A second endpoint, and then the first one is removed.
    sync(&ask(&[(0, "node-a"), (1, "node-a")]));
    let first = clients.after(|| sync(&ask(&[(1, "node-a")])));
    clients.assert_served_by(1, &first);
    // All endpoints are replaced at once.
    let first = clients.after(|| sync(&ask(&[(0, "node-a")])));
    clients.assert_served_by(0, &first);
    // To none and back.
    let first = clients.after(|| sync(&ask(&[])));
    clients.assert_refused(&first);
    clients.assert_not_translated();
    let first = clients.after(|| sync(&ask(&[(1, "node-a")])));
    clients.assert_served_by(1, &first);
    // The Service is deleted.
    let first = clients.after(|| sync(&other));
    clients.assert_refused(&first);
    clients.assert_not_translated();
    // Meanwhile the clients of the node port have flows that are not translated.
    let node_port = SocketAddr::new(Network::node_ipv4().into(), NODE_PORT);
    wait::until(|| match flows_to(node_port).len() {
        0 => Err("no flow without translation"),
        _ => Ok(()),
    });
    let first = clients.after(|| sync(&ask(&[(0, "node-a")])));
    clients.assert_served_by(0, &first);
    others.assert_unchanged();
}

/// Asserts that a new process deletes the flows that the one before left. `sync` starts a process with the objects of these manifests, and
/// syncs. Three pods, on their node.
///
/// # Panics
/// If not.
pub fn assert_new_processes_delete_flows(network: &Network, mut sync: impl FnMut(&str)) {
    keep_flows();
    let ports = [", nodePort: 30080", ", nodePort: 30053"];
    let ask = |pods: &[(u8, &str)]| service("ask", 1, "type: NodePort", ports, &[]) + &slices("ask", pods);
    sync(&ask(&[(0, "node-a")]));
    wait::for_ipv6_addresses();
    let clients = Clients::start(network, cluster_ips(1), NODE_PORT);
    clients.wait_for_replies();
    // The endpoint was replaced while no process ran.
    let first = clients.after(|| sync(&ask(&[(1, "node-a")])));
    clients.assert_served_by(1, &first);
    // The Service was deleted while no process ran.
    let other = service("other", 2, "type: ClusterIP", ["", ""], &[]);
    let first = clients.after(|| sync(&other));
    clients.assert_refused(&first);
    clients.assert_not_translated();
}
