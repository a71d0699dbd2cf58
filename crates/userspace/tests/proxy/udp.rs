//! UDP.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, Ipv6Addr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use kernlink_userspace::balance::{Affinity, Backend, FAILURE_MEMORY};
use kernlink_userspace::flows::FlowTimeouts;
use kernlink_userspace::{Limits, ListenerKey, Serving, Transport};

use super::support::*;

/// Limits with which flows do not end because of the time.
fn without_timeouts() -> Limits {
    let mut limits = Limits::default();
    limits.flow_timeouts = FlowTimeouts {
        first_reply: Duration::from_secs(3600),
        idle: Duration::from_secs(3600),
    };
    limits
}

#[test]
fn each_client_has_a_flow_of_its_own() {
    let mut fixture = Fixture::new(without_timeouts());
    let port = fixture.listen(Transport::Udp, &serving([udp_echo("a"), udp_echo("b")]));
    let clients = [udp_client(port), udp_client(port)];
    let names: Vec<Vec<u8>> = clients.iter().map(|client| ask(client, b"1")).collect();
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), 2, "{names:?}");
    for (client, name) in clients.iter().zip(&names) {
        assert_eq!(&ask(client, b"1"), name);
    }
    // A reply may be counted before the datagram that it answers.
    let stats = fixture.wait_for(Transport::Udp, port, |stats| {
        (stats.datagrams_in, stats.datagrams_out) == (4, 4)
    });
    assert_eq!((stats.opened, stats.datagrams_lost), (2, 0));
}

#[test]
fn datagrams_of_every_size_arrive_whole() {
    let mut fixture = Fixture::new(without_timeouts());
    let port = fixture.listen(Transport::Udp, &serving([udp_echo("")]));
    let client = udp_client(port);
    for size in [0, 1, 1472, 4096, 4097, 9000, 65_000, 65_507] {
        let data: Vec<u8> = (0..size).map(|index| index as u8).collect();
        assert!(ask(&client, &data) == data, "{size}");
    }
}

#[test]
fn datagrams_of_every_size_arrive_whole_over_ipv6() {
    let mut fixture = Fixture::new(without_timeouts());
    let server = UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).unwrap();
    let free = UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).unwrap();
    let key = ListenerKey {
        transport: Transport::Udp,
        address: free.local_addr().unwrap(),
    };
    drop(free);
    let port = fixture
        .proxy
        .listen(key, &serving([server.local_addr().unwrap()]))
        .unwrap();
    let client = UdpSocket::bind((Ipv6Addr::LOCALHOST, 0)).unwrap();
    client.connect(port).unwrap();
    for socket in [&client, &server] {
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
    }
    let mut buffer = vec![0; 65_536];
    // The header of IPv6 is not part of the length, so a datagram may be 20 bytes larger than with IPv4.
    for size in [0, 1, 1452, 1453, 65_507, 65_527] {
        let data: Vec<u8> = (0..size).map(|index| index as u8).collect();
        client.send(&data).unwrap();
        let (length, flow) = server.recv_from(&mut buffer).unwrap();
        assert!(buffer[..length] == data, "{size}: {length}");
        server.send_to(&data, flow).unwrap();
        let length = client.recv(&mut buffer).unwrap();
        assert!(buffer[..length] == data, "{size}: {length}");
    }
    let stats = fixture.wait_for(Transport::Udp, port, |stats| stats.datagrams_out == 6);
    assert_eq!((stats.opened, stats.datagrams_lost), (1, 0));
}

#[test]
fn a_reply_may_come_late_and_there_may_be_many() {
    let mut fixture = Fixture::new(without_timeouts());
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
fn datagrams_that_follow_the_first_one_at_once_arrive_too() {
    let server = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    server.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut fixture = Fixture::with_threads(without_timeouts(), 1);
    let port = fixture.listen(Transport::Udp, &serving([server.local_addr().unwrap()]));
    let client = udp_client(port);
    fixture.while_busy(|| {
        for number in 0..20 {
            client.send(&[number]).unwrap();
        }
    });
    let mut buffer = [0; 8];
    for number in 0..20 {
        server.recv(&mut buffer).unwrap();
        assert_eq!(buffer[0], number);
    }
    let stats = fixture.wait_for(Transport::Udp, port, |stats| stats.datagrams_in == 20);
    assert_eq!((stats.opened, stats.datagrams_lost), (1, 0));
}

#[test]
fn an_idle_flow_ends_and_the_next_datagram_begins_another() {
    let mut limits = without_timeouts();
    limits.flow_timeouts.idle = Duration::from_millis(50);
    let mut fixture = Fixture::new(limits);
    let port = fixture.listen(Transport::Udp, &serving([udp_echo("a")]));
    let client = udp_client(port);
    ask(&client, b"x");
    let stats = fixture.wait_for(Transport::Udp, port, |stats| stats.ended == 1);
    assert_eq!(stats.opened, 1);
    fixture.wait_for_descriptors(1);
    assert_eq!(ask(&client, b"x"), b"ax");
}

#[test]
fn a_flow_moves_if_its_endpoint_leaves_even_while_the_client_sends() {
    let mut fixture = Fixture::new(without_timeouts());
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
fn the_flows_of_clients_that_are_no_longer_admitted_end() {
    let mut fixture = Fixture::new(without_timeouts());
    let mut serving = serving([udp_echo("a")]);
    let port = fixture.listen(Transport::Udp, &serving);
    let client = udp_client(port);
    ask(&client, b"x");
    let key = ListenerKey {
        transport: Transport::Udp,
        address: port,
    };
    serving.source_ranges = ["127.0.0.0/8".parse().unwrap()].into();
    fixture.proxy.listen(key, &serving).unwrap();
    assert_eq!(ask(&client, b"x"), b"ax");
    serving.source_ranges = ["192.0.2.0/24".parse().unwrap()].into();
    fixture.proxy.listen(key, &serving).unwrap();
    client.send(b"x").unwrap();
    let stats = fixture.wait_for(Transport::Udp, port, |stats| {
        stats.not_admitted == 1 || stats.datagrams_in == 3
    });
    assert_eq!((stats.not_admitted, stats.opened, stats.ended), (1, 1, 1));
}

#[test]
fn a_flow_moves_if_its_endpoint_refuses() {
    let mut fixture = Fixture::new(without_timeouts());
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

/// Sends a datagram, which is number `sent` of the port, and returns the answer. `None`: the machine stood still, and the datagram may have
/// been passed on only after `end`.
fn ask_before(end: Instant, fixture: &Fixture, client: &UdpSocket, sent: u64) -> Option<Vec<u8>> {
    client.send(b"x").unwrap();
    let port = client.peer_addr().unwrap();
    fixture.wait_for(Transport::Udp, port, |stats| stats.datagrams_in == sent);
    if Instant::now() >= end {
        return None;
    }
    let mut buffer = [0; 8];
    let length = client.recv(&mut buffer).unwrap();
    Some(buffer[..length].to_vec())
}

#[test]
fn an_endpoint_that_refused_the_only_datagram_of_a_flow_is_avoided() {
    let mut fixture = Fixture::new(without_timeouts());
    let port = fixture.listen(Transport::Udp, &serving([closed_udp(), udp_echo("a")]));
    let start = Instant::now();
    // One of them is refused, and does not send again.
    let first = [udp_client(port), udp_client(port)];
    for client in &first {
        client.send(b"x").unwrap();
    }
    fixture.wait_for(Transport::Udp, port, |stats| {
        (stats.opened, stats.ended) == (2, 1)
    });
    for sent in 3..7 {
        let Some(answer) = ask_before(start + FAILURE_MEMORY, &fixture, &udp_client(port), sent) else {
            return;
        };
        assert_eq!(answer, b"ax");
    }
}

#[test]
fn a_client_with_session_affinity_moves_if_its_endpoint_refuses() {
    let mut fixture = Fixture::new(without_timeouts());
    let server = UdpSocket::bind(free_address(Transport::Udp)).unwrap();
    let mut serving = serving([server.local_addr().unwrap()]);
    serving.affinity = Some(Affinity {
        timeout: Duration::from_secs(10_800),
        prefix: 32,
    });
    let port = fixture.listen(Transport::Udp, &serving);
    let client = udp_client(port);
    client.send(b"x").unwrap();
    let mut buffer = [0; 8];
    let (_, flow) = server.recv_from(&mut buffer).unwrap();
    server.send_to(b"reply", flow).unwrap();
    client.recv(&mut buffer).unwrap();
    serving.backends.push(Backend::new(udp_echo("a")));
    let key = ListenerKey {
        transport: Transport::Udp,
        address: port,
    };
    fixture.proxy.listen(key, &serving).unwrap();
    drop(server);
    let start = Instant::now();
    // This datagram is refused, and the flow ends when the proxy learns it.
    client.send(b"lost").unwrap();
    fixture.wait_for(Transport::Udp, port, |stats| stats.ended == 1);
    let Some(answer) = ask_before(start + FAILURE_MEMORY, &fixture, &client, 3) else {
        return;
    };
    assert_eq!(answer, b"ax");
    let stats = fixture.wait_for(Transport::Udp, port, |stats| stats.datagrams_out == 2);
    assert_eq!(stats.opened, 2);
}

#[test]
fn without_endpoints_datagrams_are_dropped_and_counted() {
    let mut fixture = Fixture::new(without_timeouts());
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
    let mut limits = without_timeouts();
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
fn above_the_limit_a_new_flow_replaces_the_oldest_one_without_a_reply() {
    let server = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    server.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut limits = without_timeouts();
    limits.flows = 2;
    let mut fixture = Fixture::new(limits);
    let port = fixture.listen(Transport::Udp, &serving([server.local_addr().unwrap()]));
    let clients: Vec<UdpSocket> = (0..4).map(|_| udp_client(port)).collect();
    let mut buffer = [0; 8];
    // The first one has a reply, the others have none.
    for (number, client) in (0..).zip(&clients) {
        client.send(&[number]).unwrap();
        let (length, flow) = server.recv_from(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], [number]);
        if number == 0 {
            server.send_to(b"reply", flow).unwrap();
            client.recv(&mut buffer).unwrap();
        }
    }
    let stats = fixture.wait_for(Transport::Udp, port, |stats| stats.opened == 4);
    assert_eq!((stats.replaced, stats.ended, stats.shed), (2, 2, 0));
    fixture.wait_for_descriptors(3);
    // The flow with a reply is the same as before.
    clients[0].send(b"again").unwrap();
    server.recv(&mut buffer).unwrap();
    let stats = fixture.wait_for(Transport::Udp, port, |stats| stats.datagrams_in == 5);
    assert_eq!(stats.opened, 4);
}

#[test]
fn the_flows_of_all_ports_together_have_a_limit() {
    let mut limits = without_timeouts();
    limits.all_flows = Some(2);
    limits.port_share = 0;
    let mut fixture = Fixture::new(limits);
    let [first, second] = [(); 2].map(|()| fixture.listen(Transport::Udp, &serving([udp_echo("a")])));
    // Two at once: each has a port of its own.
    let clients = [udp_client(first), udp_client(first)];
    for client in &clients {
        ask(client, b"x");
    }
    let client = udp_client(second);
    client.send(b"x").unwrap();
    fixture.wait_for(Transport::Udp, second, |stats| stats.shed == 1);
    fixture.proxy.close(&ListenerKey {
        transport: Transport::Udp,
        address: first,
    });
    assert_eq!(ask(&client, b"x"), b"ax");
}

#[test]
fn a_port_that_is_closed_while_clients_send_leaves_nothing() {
    let mut fixture = Fixture::new(without_timeouts());
    let echo = udp_echo("a");
    for _ in 0..5 {
        let port = fixture.listen(Transport::Udp, &serving([echo]));
        let is_done = AtomicBool::new(false);
        thread::scope(|scope| {
            scope.spawn(|| {
                while !is_done.load(Ordering::Relaxed) {
                    let client = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
                    let _ = client.send_to(b"x", port);
                }
            });
            fixture.wait_for(Transport::Udp, port, |stats| stats.opened > 20);
            fixture.proxy.close(&ListenerKey {
                transport: Transport::Udp,
                address: port,
            });
            is_done.store(true, Ordering::Relaxed);
        });
        fixture.wait_for_descriptors(0);
        while UdpSocket::bind(port).is_err() {
            pause();
        }
    }
}

#[test]
fn a_closed_port_ends_its_flows() {
    let mut fixture = Fixture::new(without_timeouts());
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
