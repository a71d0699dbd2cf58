//! What clients of a Service observe: which server answers, which source it sees, or that nothing answers. For tests of every data path.

#![expect(
    clippy::unwrap_used,
    reason = "this module is only for tests, which fail by panicking"
)]

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use crate::netns::{Entered, NetNs};
use crate::tools;
use crate::traffic::{Answer, Connection, Network, Protocol, ask_many};

/// How long a client waits where no answer is expected.
const SILENCE: Duration = Duration::from_millis(700);

/// Requests to a frontend with several endpoints. The endpoint is chosen at random: all of up to three are chosen with a probability
/// above 1 - 3e-7.
pub const REQUESTS: usize = 40;

/// No further fields of the two ports of a [`service`](crate::manifests::service).
pub const NO_PORTS: [&str; 2] = ["", ""];

/// Both ports of a Service at an address of each family, with the index of the family.
pub fn targets(addresses: [IpAddr; 2]) -> impl Iterator<Item = (usize, Protocol, SocketAddr)> {
    let addresses = addresses.into_iter().enumerate();
    addresses.flat_map(|(family, address)| {
        [(Protocol::Tcp, 80), (Protocol::Udp, 53)]
            .map(|(protocol, port)| (family, protocol, SocketAddr::new(address, port)))
    })
}

/// An address of each family.
///
/// # Panics
/// If one is not an address.
#[must_use]
pub fn ips(v4: &str, v6: &str) -> [IpAddr; 2] {
    [v4.parse().unwrap(), v6.parse().unwrap()]
}

/// The addresses of the node on the link to the client.
#[must_use]
pub fn node_ips() -> [IpAddr; 2] {
    [Network::node_ipv4().into(), Network::node_ipv6().into()]
}

/// The addresses of the client.
#[must_use]
pub fn client_ips() -> [IpAddr; 2] {
    [Network::client_ipv4().into(), Network::client_ipv6().into()]
}

/// The addresses of a pod.
#[must_use]
pub fn pod_ips(number: u8) -> [IpAddr; 2] {
    [Network::pod_ipv4(number).into(), Network::pod_ipv6(number).into()]
}

/// The addresses of the node on the link to a pod: the sources that the pod sees of masqueraded packets.
#[must_use]
pub fn gateway_ips(number: u8) -> [IpAddr; 2] {
    ips(
        &format!("10.244.{number}.1"),
        &format!("fd00:10:244:{number:x}::1"),
    )
}

/// Asserts that exactly these servers answer, and see exactly these sources.
///
/// # Panics
/// If not.
pub fn assert_served(
    from: &NetNs,
    protocol: Protocol,
    target: SocketAddr,
    servers: &[&str],
    sources: &[IpAddr],
) {
    let tally = ask_many(from, protocol, target, REQUESTS);
    tally.assert_balanced(servers, REQUESTS);
    assert_eq!(
        tally.sources,
        sources.iter().copied().collect::<BTreeSet<_>>(),
        "{protocol} {target}: {tally:#?}"
    );
}

/// Asserts that a request is refused. If the ICMPv6 error arrives while the client is still sending its SYN, only the error for the second
/// SYN, a second later, is reported to it.
///
/// # Panics
/// If it is answered, or fails otherwise.
pub fn assert_refused(from: &NetNs, protocol: Protocol, target: SocketAddr) {
    let result = Connection::open(from, protocol, target).and_then(|mut connection| connection.ask());
    let kind = result.map_err(|error| error.kind());
    assert!(
        kind == Err(ErrorKind::ConnectionRefused) || is_unsent(protocol, &kind),
        "{protocol} {target}: {kind:?}"
    );
}

/// Asserts that a request is neither answered nor refused.
///
/// # Panics
/// If it is.
pub fn assert_silent(from: &NetNs, protocol: Protocol, target: SocketAddr) {
    let result = Connection::open_within(SILENCE, from, protocol, target).and_then(|mut c| c.ask());
    let kind = result.map_err(|error| error.kind());
    assert!(
        [Err(ErrorKind::TimedOut), Err(ErrorKind::WouldBlock)].contains(&kind) || is_unsent(protocol, &kind),
        "{protocol} {target}: {kind:?}"
    );
}

/// Whether the kernel refused to send a UDP packet, because a rule of the sender's own namespace dropped or rejected it. No other packet has this
/// error.
fn is_unsent(protocol: Protocol, result: &Result<Answer, ErrorKind>) -> bool {
    protocol == Protocol::Udp && *result == Err(ErrorKind::PermissionDenied)
}

/// Enters the node of a network.
#[must_use]
pub fn on_node_of(network: &Network) -> Entered {
    let on_node = network.node.enter();
    // As on every node: cluster IPs are routed somewhere until rules translate or reject them.
    for gateway in [
        IpAddr::from(Network::client_ipv4()),
        Network::client_ipv6().into(),
    ] {
        tools::ip(&["route", "add", "default", "via", &gateway.to_string()]);
    }
    on_node
}
