//! UDP.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, UdpSocket};
use std::time::Duration;

use kernlink_userspace::flows::FlowTimeouts;
use kernlink_userspace::{Limits, ListenerKey, Serving, Transport};

use super::support::*;

#[test]
fn each_client_has_a_flow_of_its_own() {
    let mut fixture = Fixture::new(Limits::default());
    let port = fixture.listen(Transport::Udp, &serving([udp_echo("a"), udp_echo("b")]));
    let clients = [udp_client(port), udp_client(port)];
    let names: Vec<Vec<u8>> = clients.iter().map(|client| ask(client, b"1")).collect();
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), 2, "{names:?}");
    for (client, name) in clients.iter().zip(&names) {
        assert_eq!(&ask(client, b"1"), name);
    }
    let stats = fixture.wait_for(Transport::Udp, port, |stats| stats.datagrams_out == 4);
    assert_eq!(
        (stats.opened, stats.datagrams_in, stats.datagrams_lost),
        (2, 4, 0)
    );
}

#[test]
fn datagrams_of_every_size_arrive_whole() {
    let mut fixture = Fixture::new(Limits::default());
    let port = fixture.listen(Transport::Udp, &serving([udp_echo("")]));
    let client = udp_client(port);
    for size in [0, 1, 1472, 4096, 4097, 9000, 65_000, 65_507] {
        let data: Vec<u8> = (0..size).map(|index| index as u8).collect();
        assert!(ask(&client, &data) == data, "{size}");
    }
}

#[test]
fn a_reply_may_come_late_and_there_may_be_many() {
    let mut fixture = Fixture::new(Limits::default());
    let server = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = fixture.listen(Transport::Udp, &serving([server.local_addr().unwrap()]));
    let client = udp_client(port);
    client.send(b"question").unwrap();
    let mut buffer = [0; 64];
    let (_, proxy) = server.recv_from(&mut buffer).unwrap();
    // Longer than kube-proxy keeps a flow.
    std::thread::sleep(Duration::from_millis(400));
    for reply in [b"1", b"2", b"3"] {
        server.send_to(reply, proxy).unwrap();
        let length = client.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], reply);
    }
}

#[test]
fn an_idle_flow_ends_and_the_next_datagram_begins_another() {
    let mut limits = Limits::default();
    limits.flow_timeouts = FlowTimeouts {
        first_reply: Duration::from_secs(30),
        idle: Duration::from_millis(50),
    };
    let mut fixture = Fixture::new(limits);
    let port = fixture.listen(Transport::Udp, &serving([udp_echo("a")]));
    let client = udp_client(port);
    ask(&client, b"x");
    let stats = fixture.wait_for(Transport::Udp, port, |stats| stats.ended == 1);
    assert_eq!(stats.opened, 1);
    while fixture.proxy.descriptors().1 > 1 {
        pause();
    }
    assert_eq!(ask(&client, b"x"), b"ax");
}

#[test]
fn a_flow_moves_if_its_endpoint_leaves_even_while_the_client_sends() {
    let mut fixture = Fixture::new(Limits::default());
    let [a, b] = [udp_echo("a"), udp_echo("b")];
    let port = fixture.listen(Transport::Udp, &serving([a]));
    let client = udp_client(port);
    assert_eq!(ask(&client, b""), b"a");
    let key = ListenerKey {
        transport: Transport::Udp,
        address: port,
    };
    fixture.proxy.listen(key, &serving([a, b])).unwrap();
    assert_eq!(ask(&client, b""), b"a");
    fixture.proxy.listen(key, &serving([b])).unwrap();
    assert_eq!(ask(&client, b""), b"b");
}

#[test]
fn a_flow_moves_if_its_endpoint_refuses() {
    let mut fixture = Fixture::new(Limits::default());
    let dead = UdpSocket::bind(free_address(Transport::Udp)).unwrap();
    let port = fixture.listen(
        Transport::Udp,
        &serving([dead.local_addr().unwrap(), udp_echo("a")]),
    );
    drop(dead);
    let client = udp_client(port);
    client.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
    // The first datagram may be lost: the refusal comes afterwards.
    let mut buffer = [0; 8];
    for attempt in 0.. {
        client.send(b"x").unwrap();
        if client.recv(&mut buffer).is_ok() {
            break;
        }
        assert!(attempt < 1000);
    }
    assert_eq!(&buffer[..2], b"ax");
}

#[test]
fn without_endpoints_datagrams_are_dropped_and_counted() {
    let mut fixture = Fixture::new(Limits::default());
    let port = fixture.listen(Transport::Udp, &Serving::default());
    let client = udp_client(port);
    client.send(b"x").unwrap();
    let stats = fixture.wait_for(Transport::Udp, port, |stats| stats.without_endpoint == 1);
    assert_eq!(stats.opened, 0);
    let key = ListenerKey {
        transport: Transport::Udp,
        address: port,
    };
    fixture.proxy.listen(key, &serving([udp_echo("a")])).unwrap();
    assert_eq!(ask(&client, b"x"), b"ax");
}

#[test]
fn flows_above_the_limit_are_dropped_and_others_live() {
    let mut limits = Limits::default();
    limits.flows = 2;
    let mut fixture = Fixture::new(limits);
    let port = fixture.listen(Transport::Udp, &serving([udp_echo("a")]));
    let clients = [udp_client(port), udp_client(port)];
    for client in &clients {
        ask(client, b"x");
    }
    udp_client(port).send(b"x").unwrap();
    fixture.wait_for(Transport::Udp, port, |stats| stats.shed == 1);
    for client in &clients {
        assert_eq!(ask(client, b"y"), b"ay");
    }
}

#[test]
fn a_closed_port_ends_its_flows() {
    let mut fixture = Fixture::new(Limits::default());
    let port = fixture.listen(Transport::Udp, &serving([udp_echo("a")]));
    let client = udp_client(port);
    ask(&client, b"x");
    let key = ListenerKey {
        transport: Transport::Udp,
        address: port,
    };
    fixture.proxy.close(&key);
    // The tasks of the port and of the flow end, and with them their sockets.
    while UdpSocket::bind(port).is_err() || fixture.proxy.descriptors().1 > 0 {
        pause();
    }
}
