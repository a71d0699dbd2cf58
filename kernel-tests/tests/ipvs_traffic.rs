//! IPVS with real packets: balanced, counted, listed, and nothing more for a real server that was taken out.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::net::IpAddr;

use kernlink_ipvs::{
    Client, ConnectionFilter, ConnectionState, Ipvs, Protocol, RealServer, RealServerKey, Scheduler,
    VirtualServer, VirtualServerKey, Weight,
};
use kernlink_kernel_tests::{
    kernel::Feature,
    requires, tools,
    traffic::{self, Network, ask_many},
};

/// Programs a virtual server over three pods on the node, and sends requests from the client.
fn traffic(address: &str, protocol: traffic::Protocol) {
    let network = Network::new(3);
    let _servers = network.serve(protocol, 80);
    let address: IpAddr = address.parse().unwrap();
    let pod = |number| match address {
        IpAddr::V4(_) => RealServerKey::new(Network::pod_ipv4(number), 80),
        IpAddr::V6(_) => RealServerKey::new(Network::pod_ipv6(number), 80),
    };
    let key = match protocol {
        traffic::Protocol::Tcp => VirtualServerKey::tcp(address, 8080),
        traffic::Protocol::Udp => VirtualServerKey::udp(address, 8080),
    };
    let mut client = network.node.run(|| {
        let prefix = if address.is_ipv4() { "32" } else { "128" };
        tools::ip(&["addr", "add", &format!("{address}/{prefix}"), "dev", "lo"]);
        Client::open().unwrap()
    });
    client
        .add_virtual_server(&VirtualServer::new(key, Scheduler::RR))
        .unwrap();
    for number in 0..3 {
        client
            .add_real_server(&key, &RealServer::new(pod(number)))
            .unwrap();
    }
    let target = std::net::SocketAddr::new(address, 8080);
    ask_many(&network.client, protocol, target, 30).assert_balanced(&["pod0", "pod1", "pod2"], 0);

    // Counted, in the kernel's words.
    // The kernel brings its counters together every two seconds; until then a listing has old ones.
    let counted = (0..300).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(100));
        client
            .find_virtual_server(&key)
            .unwrap()
            .unwrap()
            .stats
            .connections
            == 30
    });
    assert!(counted, "{:?}", client.find_virtual_server(&key).unwrap());
    let real_servers = client.list_real_servers(&key).unwrap();
    for status in &real_servers {
        assert_eq!(status.stats.connections, 10, "{}", status.server);
        assert!(
            status.stats.incoming_packets >= 10 && status.stats.outgoing_packets >= 10,
            "{status:?}"
        );
        assert!(
            status.stats.incoming_bytes > status.stats.incoming_packets * 20,
            "{status:?}"
        );
    }
    // Listed: every connection that the counters know, and under the filter its own.
    let filter = ConnectionFilter::all().with_virtual_server(key);
    let listed: Vec<_> = client.connections(filter).unwrap().map(Result::unwrap).collect();
    assert_eq!(listed.len(), 30);
    for number in 0..3 {
        let filter = ConnectionFilter::all().with_real_server(pod(number));
        assert_eq!(client.connections(filter).unwrap().count(), 10);
    }
    assert!(
        listed
            .iter()
            .all(|entry| entry.client.ip() != address && entry.client.port() != 0)
    );
    let other = ConnectionFilter::all().with_protocol(Protocol::Sctp);
    assert_eq!(client.connections(other).unwrap().count(), 0);

    // Taken out, it receives nothing more: drained at first, then deleted.
    client
        .update_real_server(&key, &RealServer::new(pod(0)).with_weight(Weight::DRAINING))
        .unwrap();
    ask_many(&network.client, protocol, target, 10).assert_balanced(&["pod1", "pod2"], 0);
    client.delete_real_server(&key, &pod(0)).unwrap();
    let tally = ask_many(&network.client, protocol, target, 10);
    tally.assert_balanced(&["pod1", "pod2"], 0);
    assert_eq!(tally.of("pod0"), 0);

    client.zero(&key).unwrap();
    assert_eq!(
        client
            .find_virtual_server(&key)
            .unwrap()
            .unwrap()
            .stats
            .connections,
        0
    );
    if protocol == traffic::Protocol::Tcp {
        let mut open = traffic::Connection::open(&network.client, protocol, target).unwrap();
        let server = open.ask().unwrap().server;
        let established = ConnectionFilter::all().with_state(ConnectionState::Established);
        let entry = client.connections(established).unwrap().next().unwrap().unwrap();
        assert_eq!(entry.virtual_server, target);
        assert!(entry.expires.as_secs() > 100, "{entry:?}");
        let snapshot = client.snapshot().unwrap();
        let summary = snapshot.get(&key).unwrap().get(&entry.real_server).unwrap();
        assert_eq!(summary.active_connections, 1);
        assert_eq!(
            server,
            if entry.real_server == pod(1) {
                "pod1"
            } else {
                "pod2"
            }
        );
    }
}

#[test]
fn tcp_over_ipv4_is_balanced_counted_and_listed() {
    requires!(Feature::Ipvs);
    traffic("10.96.0.10", traffic::Protocol::Tcp);
}

#[test]
fn tcp_over_ipv6_is_balanced_counted_and_listed() {
    requires!(Feature::Ipvs);
    traffic("2001:db8:96::10", traffic::Protocol::Tcp);
}

#[test]
fn udp_over_ipv4_is_balanced_counted_and_listed() {
    requires!(Feature::Ipvs);
    traffic("10.96.0.10", traffic::Protocol::Udp);
}

#[test]
fn udp_over_ipv6_is_balanced_counted_and_listed() {
    requires!(Feature::Ipvs);
    traffic("2001:db8:96::10", traffic::Protocol::Udp);
}
