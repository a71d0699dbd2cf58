//! UDP clients that keep their sockets while portals come, change and go.

use std::io::Error;
use std::net::{SocketAddr, UdpSocket};

use kernlink_kernel_tests::kernel::Feature;
use kernlink_kernel_tests::traffic::{Connection, Network, Protocol, Server};
use kernlink_kernel_tests::udp_clients::{bind, flows_to, keep_flows};
use kernlink_kernel_tests::{requires, tools, wait};

use super::support::*;

/// A client of each UDP frontend, in another machine and in the node. They do not receive ICMP errors.
struct Clients(Vec<(SocketAddr, UdpSocket)>);

impl Clients {
    fn open(place: &Place) -> Self {
        let cluster_ips = cluster_ips().map(|ip| SocketAddr::new(ip, 53));
        let node_ports = node_ips().map(|ip| SocketAddr::new(ip, 30_053));
        let mut clients = Vec::new();
        for target in cluster_ips.into_iter().chain(node_ports) {
            for namespace in [place.client(), place.node()] {
                let any = if target.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
                clients.push((target, bind(namespace, any.parse().unwrap())));
            }
        }
        Self(clients)
    }

    /// Waits until each is served by a pod. One whose flow is stale never is.
    fn wait_for(&self, pod: &str) {
        for (target, socket) in &self.0 {
            wait::until(|| {
                socket.send_to(b"who\n", target)?;
                let mut reply = [0; 512];
                let (length, _) = socket.recv_from(&mut reply)?;
                match String::from_utf8_lossy(&reply[..length]) {
                    reply if reply.starts_with(pod) => Ok(()),
                    reply => Err(Error::other(format!("{target}: {reply}"))),
                }
            });
        }
    }

    /// Sends until the flow of each is one that is not translated.
    fn wait_until_not_translated(&self) {
        wait::until(|| {
            for (target, socket) in &self.0 {
                socket.send_to(b"who\n", target)?;
            }
            let flows = self.flows();
            let is_translated = |(target, _, source): &(SocketAddr, u32, SocketAddr)| target != source;
            if flows.len() == self.0.len() && !flows.iter().any(is_translated) {
                Ok(())
            } else {
                Err(Error::other(format!("{flows:#?}")))
            }
        });
    }

    /// The flows of all clients, by id, with where they lead to.
    fn flows(&self) -> Vec<(SocketAddr, u32, SocketAddr)> {
        let mut flows: Vec<_> = self
            .0
            .iter()
            .flat_map(|(target, _)| flows_to(*target))
            .map(|flow| {
                let target = flow.original.destination_socket();
                (target, flow.id, flow.reply.source_socket())
            })
            .collect();
        flows.sort_unstable();
        flows.dedup();
        flows
    }
}

/// Keeps flows as long as the test runs: connection tracking of a namespace ends with the last rule that needs it.
fn keep_tracking() {
    keep_flows();
    let rule = [
        "-w",
        "-A",
        "FORWARD",
        "-m",
        "conntrack",
        "--ctstate",
        "ESTABLISHED",
        "-j",
        "ACCEPT",
    ];
    for tool in ["iptables-nft", "ip6tables-nft"] {
        tools::must(tool, &rule);
    }
}

/// A flow through the node to a server with the port number of a Service, which no rule translates.
struct Foreign {
    target: SocketAddr,
    connection: Connection,
    _server: Server,
}

impl Foreign {
    fn begin(place: &Place) -> Self {
        let target = SocketAddr::new(Network::client_ipv4().into(), 53);
        let server = Server::start(place.client(), "foreign", Protocol::Udp, target);
        let mut connection = Connection::open(&place.network.pods[1], Protocol::Udp, target).unwrap();
        connection.ask().unwrap();
        Self {
            target,
            connection,
            _server: server,
        }
    }

    fn id(&self) -> u32 {
        let flows = flows_to(self.target);
        assert_eq!(flows.len(), 1, "{flows:#?}");
        flows[0].id
    }
}

/// A process with clients that the first pod serves, and a foreign flow.
struct Start {
    process: Process,
    clients: Clients,
    foreign: Foreign,
    _place: Place,
}

fn start() -> Start {
    let place = Place::new(2);
    keep_tracking();
    let mut process = Process::serving(VARIANTS[1], with_node_ports(), &[0]);
    process.sync();
    let foreign = Foreign::begin(&place);
    let clients = Clients::open(&place);
    clients.wait_for("pod0");
    Start {
        process,
        clients,
        foreign,
        _place: place,
    }
}

#[test]
fn clients_that_go_on_reach_a_service_that_was_deleted_and_made_again() {
    requires!(Feature::Iptables);
    let Start {
        mut process,
        clients,
        mut foreign,
        _place,
    } = start();
    let id = foreign.id();

    process.delete();
    process.sync();
    assert_eq!(clients.flows(), []);
    clients.wait_until_not_translated();
    // The node ports are claimed again.
    wait_until_free(|port| port == 30_053);
    process.change(with_node_ports());
    process.endpoints(&[1]);
    process.sync();
    clients.wait_for("pod1");
    foreign.connection.ask().unwrap();
    assert_eq!(foreign.id(), id);
}

#[test]
fn clients_that_go_on_are_led_to_the_present_listening_port() {
    requires!(Feature::Iptables);
    let Start {
        mut process,
        clients,
        mut foreign,
        _place,
    } = start();
    let id = foreign.id();
    // Without a change of rules no flow is deleted.
    let before = clients.flows();
    process.endpoints(&[1]);
    process.sync();
    process.proxier.resync();
    process.sync();
    assert_eq!(clients.flows(), before);
    clients.wait_for("pod1");
    assert_eq!(clients.flows(), before);

    let mut config = config();
    config.port_range = "19000-19099".parse().unwrap();
    process.proxier.set_config(&config).unwrap();
    process.sync();
    assert_eq!(clients.flows(), []);
    clients.wait_for("pod1");
    let is_present = |port: u16| config.port_range.contains(port);
    assert!(
        clients
            .flows()
            .iter()
            .all(|(_, _, source)| is_present(source.port())),
        "{:#?}",
        clients.flows()
    );
    foreign.connection.ask().unwrap();
    assert_eq!(foreign.id(), id);
}

#[test]
fn a_new_process_deletes_the_flows_that_changed_while_none_ran_and_no_others() {
    requires!(Feature::Iptables);
    let place = Place::new(2);
    keep_tracking();
    let mut earlier = Process::serving(VARIANTS[1], with_node_ports(), &[0]);
    earlier.sync();
    let clients = Clients::open(&place);
    clients.wait_for("pod0");
    let before = clients.flows();
    let range = config().port_range;
    drop(earlier);
    wait_until_free(|port| range.contains(port));
    // Nothing changed.
    let mut second = Process::serving(VARIANTS[1], with_node_ports(), &[0]);
    second.sync();
    assert_eq!(clients.flows(), before);
    clients.wait_for("pod0");
    assert_eq!(clients.flows(), before);
    drop(second);
    wait_until_free(|port| range.contains(port));
    // The node ports were removed.
    let mut third = Process::serving(VARIANTS[1], web(), &[0]);
    third.sync();
    let kept: Vec<_> = before
        .into_iter()
        .filter(|(target, ..)| target.port() == 53)
        .collect();
    assert_eq!(clients.flows(), kept);
}
