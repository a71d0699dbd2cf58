//! Clients that send UDP packets from one socket all the time, while endpoints, Services and node ports come and go.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use kernlink_conntrack::{Client, Conntrack, Filter, Flow};
use kernlink_kernel_tests::netns::NetNs;
use kernlink_kernel_tests::traffic::{Connection, Network, Protocol, Server};
use kernlink_kernel_tests::{tools, wait};
use kernlink_proxier::ipvs_mode::Proxier;

use crate::support::{cluster_ips, proxier, replace_objects, service, slices};

const NODE_PORT: u16 = 30_053;
const PORTS: &str = "[{name: ask, port: 5353, protocol: UDP}]";
const SPEC: &str = "type: NodePort, ports: [{name: ask, port: 53, protocol: UDP, nodePort: 30053}]";

/// A thread that stops when this is dropped.
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

fn bind(namespace: &NetNs, address: SocketAddr) -> UdpSocket {
    let socket = namespace.run(|| UdpSocket::bind(address)).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(500))).unwrap();
    socket
}

/// The packets that a pod received from each client, by number, with their source addresses.
type Received = Arc<Mutex<BTreeMap<(u64, u64), IpAddr>>>;

/// A server in a pod, on one address, that returns each packet.
struct Pod {
    received: Received,
    _worker: Worker,
}

impl Pod {
    fn start(namespace: &NetNs, address: IpAddr) -> Self {
        let socket = bind(namespace, SocketAddr::new(address, 5353));
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

struct Clients {
    /// By pod and family.
    pods: Vec<[Pod; 2]>,
    senders: Vec<Sender>,
}

impl Clients {
    /// Two servers; and clients in a pod and outside of the cluster, of the cluster IPs and of the node ports.
    fn start(network: &Network) -> Self {
        let pods = (0..2_u8).map(|number| {
            let namespace = &network.pods[usize::from(number)];
            [
                Pod::start(namespace, Network::pod_ipv4(number).into()),
                Pod::start(namespace, Network::pod_ipv6(number).into()),
            ]
        });
        let node_ips: [IpAddr; 2] = [Network::node_ipv4().into(), Network::node_ipv6().into()];
        let mut senders = Vec::new();
        for (cluster_ip, node_ip) in cluster_ips(1).into_iter().zip(node_ips) {
            let cluster_ip = SocketAddr::new(cluster_ip, 53);
            let node_port = SocketAddr::new(node_ip, NODE_PORT);
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

    /// Syncs, and returns the number of the first packet of each client that it sent afterwards.
    fn sync(&self, proxier: &mut Proxier, manifests: &str) -> Vec<u64> {
        replace_objects(proxier, manifests);
        let synced = proxier.sync(Instant::now()).unwrap();
        let next = |sender: &Sender| sender.next.load(Ordering::SeqCst);
        let first = self.senders.iter().map(next).collect();
        assert!(synced.is_success(), "{synced}");
        first
    }

    /// Asserts that the first packet after a sync, and all later ones, reach this pod and are returned.
    fn assert_served_by(&self, pod: usize, first: &[u64]) {
        for (sender, first) in self.senders.iter().zip(first) {
            sender.wait_for_reply(*first);
            let received = self.pods[pod][sender.family].from(sender.id, *first);
            assert_eq!(
                received.first().map(|(number, _)| number),
                Some(first),
                "the first packet to {} was lost",
                sender.target
            );
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

    /// Asserts that no packet after a sync reaches a pod.
    fn assert_refused(&self, first: &[u64]) {
        for (sender, first) in self.senders.iter().zip(first) {
            wait::until(|| match sender.next.load(Ordering::SeqCst) {
                next if next > first + 20 => Ok(()),
                next => Err(format!("packet {next} was not sent")),
            });
            (0..2).for_each(|pod| self.assert_unreached(pod, sender, *first));
        }
    }
}

/// The flows to an address, in the calling thread's namespace.
fn flows_to(target: SocketAddr) -> Vec<Flow> {
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

#[test]
fn the_first_udp_packet_after_a_sync_reaches_a_current_endpoint() {
    kernlink_kernel_tests::requires_ipvs_mode!();
    let network = Network::new(3);
    let _on_node = network.node.enter();
    // No flow ends by itself during the test.
    tools::set_sysctl("net.netfilter.nf_conntrack_udp_timeout", "600");
    tools::set_sysctl("net.netfilter.nf_conntrack_udp_timeout_stream", "600");
    let other = "type: ClusterIP, ports: [{name: ask, port: 30053, protocol: UDP}]";
    let other = service("other", 2, other, "") + &slices("other", PORTS, &[(1, "node-a")]);
    let ask = |pods: &[(u8, &str)]| service("ask", 1, SPEC, "") + &slices("ask", PORTS, pods) + &other;
    let mut proxier = proxier(&ask(&[(0, "node-a")]));
    proxier.sync(Instant::now()).unwrap();
    wait::for_ipv6_addresses();
    let clients = Clients::start(&network);
    clients.senders.iter().for_each(|sender| sender.wait_for_reply(0));
    // Flows that are not to the Service, but to the number of its node port: to a server outside, and to another Service.
    let foreign = SocketAddr::new(Network::client_ipv4().into(), NODE_PORT);
    let _server = Server::start(&network.client, "foreign", Protocol::Udp, foreign);
    let mut connection = Connection::open(&network.pods[2], Protocol::Udp, foreign).unwrap();
    connection.ask().unwrap();
    let of_other = SocketAddr::new(cluster_ips(2)[0], NODE_PORT);
    let other_client = bind(&network.pods[2], "0.0.0.0:0".parse().unwrap());
    other_client.send_to(&[0xff; 16], of_other).unwrap();
    other_client.recv_from(&mut [0; 16]).unwrap();
    let others = [foreign, of_other].map(flow_to);

    // A second endpoint, and then the first one is removed.
    clients.sync(&mut proxier, &ask(&[(0, "node-a"), (1, "node-a")]));
    let first = clients.sync(&mut proxier, &ask(&[(1, "node-a")]));
    clients.assert_served_by(1, &first);
    // All endpoints are replaced at once.
    let first = clients.sync(&mut proxier, &ask(&[(0, "node-a")]));
    clients.assert_served_by(0, &first);
    // To none and back.
    let first = clients.sync(&mut proxier, &ask(&[]));
    clients.assert_refused(&first);
    let first = clients.sync(&mut proxier, &ask(&[(1, "node-a")]));
    clients.assert_served_by(1, &first);
    // The Service is deleted.
    let first = clients.sync(&mut proxier, &other);
    clients.assert_refused(&first);
    for sender in &clients.senders {
        let translated = flows_to(sender.target)
            .into_iter()
            .filter(|flow| flow.reply.source_socket() != sender.target);
        assert_eq!(translated.collect::<Vec<_>>(), []);
    }
    // Meanwhile the clients of the node port have flows that are not translated.
    let node_port = SocketAddr::new(Network::node_ipv4().into(), NODE_PORT);
    wait::until(|| match flows_to(node_port).len() {
        0 => Err("no flow without translation"),
        _ => Ok(()),
    });
    clients.sync(&mut proxier, &ask(&[(0, "node-a")]));
    wait::for_ipv6_addresses();
    let first = clients.sync(&mut proxier, &ask(&[(0, "node-a")]));
    clients.assert_served_by(0, &first);
    // The other flows are the same as before.
    assert_eq!([foreign, of_other].map(flow_to), others);
}
