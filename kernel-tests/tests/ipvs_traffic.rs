//! IPVS with real packets: scheduling, counters, the connection table, and draining of real servers.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::net::IpAddr;

use kernlink_ipvs::{
    Client, ConnectionEntry, ConnectionFilter, ConnectionState, Ipvs, Protocol, RealServer, RealServerKey,
    Scheduler, VirtualServer, VirtualServerKey, Weight,
};
use kernlink_kernel_tests::{
    kernel::Feature,
    requires, tools,
    traffic::{self, Network, ask_many},
    wait,
};

/// The connections that match a filter. Lists until there are `count`.
///
/// The kernel has one table for all namespaces, and finds the position of the next read of `/proc/net/ip_vs_conn` by counting rows
/// from the start ([`ip_vs_conn_array`](https://github.com/torvalds/linux/blob/v6.1/net/netfilter/ipvs/ip_vs_conn.c)). So
/// connections of other tests that are created or end between two reads can cause missing rows.
fn connections(client: &mut Client, filter: &ConnectionFilter, count: usize) -> Vec<ConnectionEntry> {
    wait::until(|| {
        let listed: Vec<_> = client
            .connections(filter.clone())
            .unwrap()
            .map(Result::unwrap)
            .collect();
        if listed.len() == count {
            Ok(listed)
        } else {
            Err(format!(
                "{} connections instead of {count}: {listed:#?}",
                listed.len()
            ))
        }
    })
}

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
        wait::for_ipv6_addresses();
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

    // The kernel sums its counters every two seconds, for each server at a different time.
    let real_servers = wait::until(|| {
        let whole = client.find_virtual_server(&key).unwrap().unwrap();
        let parts = client.list_real_servers(&key).unwrap();
        if whole.stats.connections == 30 && parts.iter().all(|part| part.stats.connections == 10) {
            Ok(parts)
        } else {
            Err(format!("{whole:?} {parts:#?}"))
        }
    });
    assert_eq!(real_servers.len(), 3);
    for status in &real_servers {
        assert!(
            status.stats.incoming_packets >= 10 && status.stats.outgoing_packets >= 10,
            "{status:?}"
        );
        assert!(
            status.stats.incoming_bytes > status.stats.incoming_packets * 20,
            "{status:?}"
        );
    }
    // All counted connections are listed, and the filter of a real server matches its connections.
    let listed = connections(&mut client, &ConnectionFilter::all().with_virtual_server(key), 30);
    for number in 0..3 {
        let filter = ConnectionFilter::all().with_real_server(pod(number));
        connections(&mut client, &filter, 10);
    }
    assert!(
        listed
            .iter()
            .all(|entry| entry.client.ip() != address && entry.client.port() != 0)
    );
    let other = ConnectionFilter::all().with_protocol(Protocol::Sctp);
    assert_eq!(client.connections(other).unwrap().count(), 0);

    // A draining or deleted real server gets no new connections.
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
        // The previous connections must have ended.
        let established = ConnectionFilter::all().with_state(ConnectionState::Established);
        let listed = connections(&mut client, &established, 1);
        let [entry] = &listed[..] else { panic!() };
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
