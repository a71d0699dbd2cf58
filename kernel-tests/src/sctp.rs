//! SCTP associations. The first chunks are sent and received on raw sockets: the kernel needs SCTP in rules and connection tracking, not
//! sockets of SCTP.

#![expect(
    clippy::unwrap_used,
    clippy::panic,
    reason = "this module is only for tests, which fail by panicking"
)]

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU32, Ordering};

use socket2::{Domain, Protocol, Socket, Type};

use crate::manifests::cluster_ips;
use crate::netns::NetNs;
use crate::traffic::Network;
use crate::{tools, wait};

/// Types of chunks.
const INIT: u8 = 1;
const INIT_ACK: u8 = 2;

/// A packet with one chunk that begins an association, or the answer to it.
#[derive(Clone, Debug, PartialEq)]
struct Packet {
    source_port: u16,
    destination_port: u16,
    /// 0 in the first packet of an association; then the tag that the other side chose.
    verification_tag: u32,
    chunk: u8,
    /// The tag that the sender chose.
    tag: u32,
}

impl Packet {
    fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(self.source_port.to_be_bytes());
        bytes.extend(self.destination_port.to_be_bytes());
        bytes.extend(self.verification_tag.to_be_bytes());
        bytes.extend([0; 4]);
        bytes.extend([self.chunk, 0, 0, 20]);
        bytes.extend(self.tag.to_be_bytes());
        // Window, streams in both directions, first sequence number.
        bytes.extend([0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 1]);
        let checksum = crc32c(&bytes).to_le_bytes();
        bytes[8..12].copy_from_slice(&checksum);
        bytes
    }

    /// Decodes a packet, whose checksum must be valid.
    fn decode(bytes: &[u8]) -> Self {
        let number = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().unwrap());
        let mut unchecked = bytes.to_vec();
        unchecked[8..12].fill(0);
        assert_eq!(crc32c(&unchecked).to_le_bytes(), bytes[8..12], "{bytes:02x?}");
        let ports = number(0).to_be_bytes();
        Self {
            source_port: u16::from_be_bytes([ports[0], ports[1]]),
            destination_port: u16::from_be_bytes([ports[2], ports[3]]),
            verification_tag: number(4),
            chunk: bytes[12],
            tag: number(16),
        }
    }
}

fn crc32c(bytes: &[u8]) -> u32 {
    let mut crc = u32::MAX;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            let polynomial = if crc & 1 == 1 { 0x82F6_3B78 } else { 0 };
            crc = (crc >> 1) ^ polynomial;
        }
    }
    !crc
}

/// A socket that receives the packets of SCTP to an address of a namespace.
#[derive(Debug)]
struct Raw {
    socket: UdpSocket,
}

impl Raw {
    fn open(namespace: &NetNs, address: IpAddr) -> Self {
        let address = SocketAddr::new(address, 0);
        let socket = namespace.run(|| {
            let domain = Domain::for_address(address);
            let socket = Socket::new(domain, Type::RAW, Some(Protocol::SCTP)).unwrap();
            socket.bind(&address.into()).unwrap();
            socket
        });
        socket.set_nonblocking(true).unwrap();
        Self {
            socket: socket.into(),
        }
    }

    fn send(&self, packet: &Packet, to: IpAddr) {
        let bytes = packet.encode();
        let sent = self.socket.send_to(&bytes, SocketAddr::new(to, 0)).unwrap();
        assert_eq!(sent, bytes.len());
    }

    /// The next packet and its source, if there is one.
    fn receive(&self) -> Option<(Packet, IpAddr)> {
        let mut buffer = [0; 512];
        let (length, source) = match self.socket.recv_from(&mut buffer) {
            Ok(received) => received,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
            Err(error) => panic!("{error}"),
        };
        // Sockets of IPv4 receive the header of IP too.
        let header = match source.ip() {
            IpAddr::V4(_) => usize::from(buffer[0] & 0xf) * 4,
            IpAddr::V6(_) => 0,
        };
        Some((Packet::decode(&buffer[header..length]), source.ip()))
    }
}

/// Begins an association. Returns the pod that received the chunk, and the source address that it saw.
fn associate(client: &Raw, pods: &[Raw], target: SocketAddr) -> (usize, IpAddr) {
    static NUMBER: AtomicU32 = AtomicU32::new(1);
    let number = NUMBER.fetch_add(1, Ordering::Relaxed);
    let source_port = 10_000 + u16::try_from(number % 50_000).unwrap();
    let request = Packet {
        source_port,
        destination_port: target.port(),
        verification_tag: 0,
        chunk: INIT,
        tag: number,
    };
    client.send(&request, target.ip());
    let (pod, received, source) = wait::until(|| {
        for (pod, raw) in pods.iter().enumerate() {
            while let Some((packet, source)) = raw.receive() {
                if packet.tag == number && packet.chunk == INIT {
                    return Ok((pod, packet, source));
                }
            }
        }
        Err(format!("no pod received {request:?} to {target}"))
    });
    assert_eq!(received.destination_port, 9900);
    let answer = Packet {
        source_port: received.destination_port,
        destination_port: received.source_port,
        verification_tag: number,
        chunk: INIT_ACK,
        tag: u32::MAX - number,
    };
    pods[pod].send(&answer, source);
    wait::until(|| {
        while let Some((packet, source)) = client.receive() {
            if packet.tag == answer.tag {
                // From the frontend, to the port of the client.
                let expected = Packet {
                    source_port: target.port(),
                    destination_port: source_port,
                    ..answer.clone()
                };
                assert_eq!((packet, source), (expected, target.ip()));
                return Ok(());
            }
        }
        Err(format!("the client did not receive {answer:?} from {target}"))
    });
    (pod, source)
}

/// Two Services with a port of SCTP, 99, and endpoints in the first two pods at port 9900: `wide` with node port 30099, and `near` with policy
/// `Local` and node port 30098.
#[must_use]
pub fn manifests() -> String {
    let service = |name: &str, number: u8, spec: &str| {
        let [v4, v6] = cluster_ips(number);
        let slice = |family: &str, addresses: [IpAddr; 2]| {
            let [local, remote] = addresses;
            format!(
                "---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
addressType: {family}
metadata: {{name: {name}-{}, namespace: default, labels: {{kubernetes.io/service-name: {name}}}}}
ports: [{{name: s, port: 9900, protocol: SCTP}}]
endpoints: [{{addresses: ['{local}'], nodeName: node-a}}, {{addresses: ['{remote}'], nodeName: node-b}}]
",
                family.to_lowercase()
            )
        };
        let ipv4 = [Network::pod_ipv4(0).into(), Network::pod_ipv4(1).into()];
        let ipv6 = [Network::pod_ipv6(0).into(), Network::pod_ipv6(1).into()];
        format!(
            "---
apiVersion: v1
kind: Service
metadata: {{name: {name}, namespace: default}}
spec: {{clusterIP: '{v4}', clusterIPs: ['{v4}', '{v6}'], ipFamilies: [IPv4, IPv6], type: NodePort, {spec}}}
{}{}",
            slice("IPv4", ipv4),
            slice("IPv6", ipv6)
        )
    };
    let wide = "ports: [{name: s, port: 99, nodePort: 30099, protocol: SCTP}]";
    let near = "externalTrafficPolicy: Local, ports: [{name: s, port: 99, nodePort: 30098, protocol: SCTP}]";
    service("wide", 1, wide) + &service("near", 2, near)
}

/// The endpoint is chosen at random: both of two are chosen with a probability above 1 - 2e-12.
const REQUESTS: usize = 40;

/// Asserts that associations with the Services of [`manifests`] are balanced, and that with policy `Local` the endpoint on this node alone
/// serves them and sees the client.
///
/// # Panics
/// If not.
pub fn assert_associations(network: &Network) {
    // By default a flow ends if the answer to its first chunk takes three seconds.
    let timeout = "net.netfilter.nf_conntrack_sctp_timeout_cookie_wait";
    network.node.run(|| tools::set_sysctl(timeout, "600"));
    for family in 0..2 {
        let address = |v4: Ipv4Addr, v6: Ipv6Addr| [IpAddr::from(v4), v6.into()][family];
        let of_client = address(Network::client_ipv4(), Network::client_ipv6());
        let of_node = address(Network::node_ipv4(), Network::node_ipv6());
        let client = Raw::open(&network.client, of_client);
        let pods = [0, 1].map(|pod| {
            let address = address(Network::pod_ipv4(pod), Network::pod_ipv6(pod));
            Raw::open(&network.pods[usize::from(pod)], address)
        });
        let gateway = |pod: u8| -> IpAddr {
            let text = [format!("10.244.{pod}.1"), format!("fd00:10:244:{pod}::1")];
            text[family].parse().unwrap()
        };
        let masqueraded = BTreeSet::from([(0, gateway(0)), (1, gateway(1))]);
        for (target, expected) in [
            ((cluster_ips(1)[family], 99), &masqueraded),
            ((of_node, 30099), &masqueraded),
            ((of_node, 30098), &BTreeSet::from([(0, of_client)])),
        ] {
            let seen: BTreeSet<(usize, IpAddr)> = (0..REQUESTS)
                .map(|_| associate(&client, &pods, target.into()))
                .collect();
            assert_eq!(seen, *expected, "{target:?}");
        }
    }
}
