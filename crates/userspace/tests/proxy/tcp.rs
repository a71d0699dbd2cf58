//! TCP.

use std::collections::BTreeSet;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::thread;
use std::time::{Duration, Instant};

use kernlink_userspace::balance::Affinity;
use kernlink_userspace::{Limits, Serving, Stats, Transport};
use socket2::SockRef;

use super::support::*;

#[test]
fn a_connection_reaches_an_endpoint_and_each_next_one_another() {
    let mut fixture = Fixture::new(Limits::default());
    let port = fixture.listen(Transport::Tcp, &serving([echo("a"), echo("b")]));
    let names: BTreeSet<char> = (0..2).map(|_| name_of(port).0).collect();
    assert_eq!(names, ['a', 'b'].into());
    let (_, mut stream) = name_of(port);
    stream.write_all(b"hello").unwrap();
    let mut answer = [0; 5];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"hello");
}

#[test]
fn large_amounts_arrive_unchanged_in_both_directions_at_once() {
    let mut fixture = Fixture::new(Limits::default());
    let port = fixture.listen(Transport::Tcp, &serving([echo("a")]));
    let (_, mut stream) = name_of(port);
    // More than pipes and socket buffers hold, and not a multiple of any of their sizes.
    let sent: Vec<u8> = (0..8_000_019u32)
        .map(|index| (index.wrapping_mul(2_654_435_761) >> 24) as u8)
        .collect();
    let received = thread::scope(|scope| {
        let mut writer = stream.try_clone().unwrap();
        let sent = &sent;
        scope.spawn(move || {
            writer.write_all(sent).unwrap();
            writer.shutdown(Shutdown::Write).unwrap();
        });
        let mut received = Vec::new();
        stream.read_to_end(&mut received).unwrap();
        received
    });
    assert!(received == sent, "{} of {} bytes", received.len(), sent.len());
    let stats = fixture.wait_for(Transport::Tcp, port, |stats| stats.ended == 1);
    assert_eq!((stats.bytes_in, stats.bytes_out), (8_000_019, 8_000_020));
}

#[test]
fn without_descriptors_for_pipes_large_amounts_arrive_too() {
    let limits = Limits::default();
    let mut limits = limits;
    // A listening port and a connection need 3.
    limits.descriptors = Some(3);
    limits.port_share = 0;
    let mut fixture = Fixture::new(limits);
    let port = fixture.listen(Transport::Tcp, &serving([echo("a")]));
    let (_, mut stream) = name_of(port);
    let sent = vec![7; 5_000_000];
    let mut writer = stream.try_clone().unwrap();
    let to_send = sent.clone();
    let writing = thread::spawn(move || {
        writer.write_all(&to_send).unwrap();
        writer.shutdown(Shutdown::Write).unwrap();
    });
    let mut received = Vec::new();
    stream.read_to_end(&mut received).unwrap();
    writing.join().unwrap();
    assert!(received == sent);
}

/// Writes amounts of data, each followed by a byte of urgent data, and ends the direction.
fn write_with_urgent_data(stream: &TcpStream, amounts: &[usize]) -> Vec<u8> {
    let socket = SockRef::from(stream);
    // Everything fits, although the proxy does not read yet.
    socket.set_send_buffer_size(1 << 20).unwrap();
    let mut sent = Vec::new();
    for amount in amounts {
        let data: Vec<u8> = (0..*amount).map(|index| (index % 251) as u8).collect();
        let mut writer = stream;
        writer.write_all(&data).unwrap();
        assert_eq!(socket.send_out_of_band(b"!").unwrap(), 1);
        sent.extend([&data[..], b"!"].concat());
    }
    stream.shutdown(Shutdown::Write).unwrap();
    sent
}

#[test]
fn urgent_data_arrives_in_line_and_what_follows_it_arrives_too() {
    let (listener, address) = endpoint();
    let mut fixture = Fixture::with_threads(Limits::default(), 1);
    let port = fixture.listen(Transport::Tcp, &serving([address]));
    // In one read, and in the middle of what is spliced.
    for amounts in [&[3, 0, 3][..], &[100_000, 1], &[70_000, 20_000, 20_000, 0, 1]] {
        for is_client in [true, false] {
            let client = connect(port);
            let (server, _) = listener.accept().unwrap();
            let (sender, mut receiver) = if is_client {
                (client, server)
            } else {
                (server, client)
            };
            receiver.set_read_timeout(Some(PATIENCE)).unwrap();
            let sent = fixture.while_busy(|| write_with_urgent_data(&sender, amounts));
            let mut received = Vec::new();
            receiver.read_to_end(&mut received).unwrap();
            assert!(received == sent, "{amounts:?}: {}", received.len());
        }
    }
}

#[test]
fn after_the_client_ends_its_direction_the_endpoint_can_still_answer() {
    let mut fixture = Fixture::new(Limits::default());
    let (listener, address) = endpoint();
    let port = fixture.listen(Transport::Tcp, &serving([address]));
    let mut client = connect(port);
    let (mut server, _) = listener.accept().unwrap();
    client.write_all(b"question").unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    let mut question = String::new();
    server.read_to_string(&mut question).unwrap();
    assert_eq!(question, "question");
    server.write_all(b"answer").unwrap();
    drop(server);
    let mut answer = String::new();
    client.read_to_string(&mut answer).unwrap();
    assert_eq!(answer, "answer");
    fixture.wait_for(Transport::Tcp, port, |stats| stats.ended == 1);
    // The descriptors are free after the connection is counted.
    fixture.wait_for_descriptors(1);
}

#[test]
fn after_the_endpoint_ends_its_direction_the_client_can_still_send() {
    let mut fixture = Fixture::new(Limits::default());
    let (listener, address) = endpoint();
    let port = fixture.listen(Transport::Tcp, &serving([address]));
    let mut client = connect(port);
    let (mut server, _) = listener.accept().unwrap();
    server.write_all(b"welcome").unwrap();
    server.shutdown(Shutdown::Write).unwrap();
    let mut welcome = String::new();
    client.read_to_string(&mut welcome).unwrap();
    assert_eq!(welcome, "welcome");
    client.write_all(b"data").unwrap();
    drop(client);
    let mut data = String::new();
    server.read_to_string(&mut data).unwrap();
    assert_eq!(data, "data");
}

#[test]
fn a_half_closed_connection_ends_after_the_timeout_and_leaks_nothing() {
    let mut limits = Limits::default();
    limits.half_closed_timeout = Duration::from_millis(100);
    let mut fixture = Fixture::new(limits);
    let (listener, address) = endpoint();
    let port = fixture.listen(Transport::Tcp, &serving([address]));
    let client = connect(port);
    let (mut server, _) = listener.accept().unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(server.read(&mut [0]).unwrap(), 0);
    // The server says nothing more, and keeps its socket.
    let stats = fixture.wait_for(Transport::Tcp, port, |stats| stats.ended == 1);
    assert_eq!(stats.half_closed_timeouts, 1);
    assert_eq!(
        (&client).read(&mut [0]).unwrap_err().kind(),
        ErrorKind::ConnectionReset
    );
    // The descriptors of the connection are free again.
    fixture.wait_for_descriptors(1);
}

#[test]
fn a_half_closed_connection_lives_as_long_as_data_comes() {
    let timeout = Duration::from_secs(3);
    let mut limits = Limits::default();
    limits.half_closed_timeout = timeout;
    let mut fixture = Fixture::new(limits);
    let (listener, address) = endpoint();
    let port = fixture.listen(Transport::Tcp, &serving([address]));
    let mut client = connect(port);
    let (mut server, _) = listener.accept().unwrap();
    // Not after the last data that was passed on.
    let mut last = Instant::now();
    client.shutdown(Shutdown::Write).unwrap();
    for _ in 0..35 {
        let start = Instant::now();
        let passed_on = server.write_all(b"x").and_then(|()| client.read_exact(&mut [0]));
        if last.elapsed() >= timeout {
            // The machine stood still, perhaps for so long that the connection had to end.
            return;
        }
        passed_on.unwrap();
        last = start;
        thread::sleep(Duration::from_millis(100));
    }
    drop(server);
    let end = client.read(&mut [0]);
    assert!(last.elapsed() >= timeout || matches!(end, Ok(0)), "{end:?}");
}

#[test]
fn a_reset_is_passed_on_in_both_directions() {
    let mut fixture = Fixture::new(Limits::default());
    let (listener, address) = endpoint();
    let port = fixture.listen(Transport::Tcp, &serving([address]));
    let reset = |stream: TcpStream| SockRef::from(&stream).set_linger(Some(Duration::ZERO)).unwrap();

    let client = connect(port);
    let (mut server, _) = listener.accept().unwrap();
    reset(client);
    server.set_read_timeout(Some(PATIENCE)).unwrap();
    assert_eq!(
        server.read(&mut [0]).unwrap_err().kind(),
        ErrorKind::ConnectionReset
    );

    let mut client = connect(port);
    let (mut server, _) = listener.accept().unwrap();
    // An endpoint that resets before the attempt to connect has ended counts as one that failed.
    server.write_all(b"x").unwrap();
    client.read_exact(&mut [0]).unwrap();
    reset(server);
    assert_eq!(
        client.read(&mut [0]).unwrap_err().kind(),
        ErrorKind::ConnectionReset
    );
}

#[test]
fn a_reset_after_the_end_of_a_direction_ends_the_connection() {
    let mut fixture = Fixture::new(Limits::default());
    let (listener, address) = endpoint();
    let port = fixture.listen(Transport::Tcp, &serving([address]));
    let client = connect(port);
    let (mut server, _) = listener.accept().unwrap();
    server.set_read_timeout(Some(PATIENCE)).unwrap();
    client.shutdown(Shutdown::Write).unwrap();
    assert_eq!(server.read(&mut [0]).unwrap(), 0);
    SockRef::from(&client).set_linger(Some(Duration::ZERO)).unwrap();
    drop(client);
    // The server neither reads nor writes; its connection ends nevertheless.
    fixture.wait_for(Transport::Tcp, port, |stats| stats.ended == 1);
}

#[test]
fn an_answer_arrives_if_the_endpoint_resets_while_the_client_sends() {
    let (listener, address) = endpoint();
    let mut fixture = Fixture::with_threads(Limits::default(), 1);
    let port = fixture.listen(Transport::Tcp, &serving([address]));
    for _ in 0..5 {
        let mut client = connect(port);
        let (mut server, _) = listener.accept().unwrap();
        client.write_all(&[1; 4096]).unwrap();
        server.read_exact(&mut [0; 1000]).unwrap();
        fixture.while_busy(|| {
            client.write_all(&[1; 4096]).unwrap();
            server.write_all(&[7; 1000]).unwrap();
            // Data that was not read: the system resets the connection.
            drop(server);
        });
        let mut answer = Vec::new();
        let end = client.read_to_end(&mut answer);
        assert_eq!(answer.len(), 1000, "{end:?}");
    }
    fixture.wait_for(Transport::Tcp, port, |stats| stats.ended == 5);
}

/// Writes until no buffer on the way to the reader has room.
fn fill(stream: &TcpStream) {
    stream.set_nonblocking(true).unwrap();
    let mut refused = 0;
    while refused < 50 {
        match SockRef::from(stream).send(&[1; 65_536]) {
            Ok(_) => refused = 0,
            Err(_) => {
                refused += 1;
                pause();
            }
        }
    }
}

#[test]
fn a_reset_ends_a_connection_whose_data_is_not_read() {
    let mut limits = Limits::default();
    limits.reset_timeout = Duration::from_millis(50);
    // The port, and four connections.
    limits.descriptors = Some(9);
    limits.port_share = 0;
    let mut fixture = Fixture::new(limits);
    let (listener, address) = endpoint();
    let port = fixture.listen(Transport::Tcp, &serving([address]));
    for (ended, is_client) in [(1, true), (2, false)] {
        let client = connect(port);
        let (server, _) = listener.accept().unwrap();
        let (sender, reader) = if is_client {
            (client, server)
        } else {
            (server, client)
        };
        fill(&sender);
        SockRef::from(&sender).set_linger(Some(Duration::ZERO)).unwrap();
        drop(sender);
        fixture.wait_for(Transport::Tcp, port, |stats| stats.ended == ended);
        // The descriptors of the connection are free before its last socket, that to the client, is closed.
        let _ = (&reader).read_to_end(&mut Vec::new());
    }
    // A pipe that was emptied before the reset is kept as long as descriptors are not scarce.
    let idle: Vec<_> = (0..4)
        .map(|_| (connect(port), listener.accept().unwrap()))
        .collect();
    fixture.wait_for_descriptors(9);
    drop(idle);
    fixture.wait_for_descriptors(1);
}

/// Writes until the proxy cannot pass anything on. What it did not accept yet fits into its receive buffer.
fn fill_receiver(fixture: &Fixture, port: SocketAddr, mut sender: &TcpStream, before: u64) {
    let mut sent = before;
    let total = |stats: &Stats| stats.bytes_in + stats.bytes_out;
    loop {
        sender.write_all(&[1; 16_384]).unwrap();
        sent += 16_384;
        let is_passed_on = (0..50).any(|_| {
            pause();
            total(&fixture.wait_for(Transport::Tcp, port, |_| true)) == sent
        });
        if !is_passed_on {
            return;
        }
    }
}

#[test]
fn a_connection_whose_last_data_is_not_read_ends_after_the_timeout() {
    let mut limits = Limits::default();
    limits.half_closed_timeout = Duration::from_millis(100);
    let mut fixture = Fixture::new(limits);
    let (listener, address) = endpoint();
    let port = fixture.listen(Transport::Tcp, &serving([address]));
    let mut before = 0;
    for (ended, is_client) in [(1, true), (2, false)] {
        let client = connect(port);
        let (server, _) = listener.accept().unwrap();
        let (sender, reader) = if is_client {
            (client, server)
        } else {
            (server, client)
        };
        fill_receiver(&fixture, port, &sender, before);
        drop(sender);
        let stats = fixture.wait_for(Transport::Tcp, port, |stats| stats.ended == ended);
        assert_eq!(stats.half_closed_timeouts, ended);
        before = stats.bytes_in + stats.bytes_out;
        drop(reader);
    }
    fixture.wait_for_descriptors(1);
}

#[test]
fn a_client_that_pauses_loses_nothing_as_long_as_the_endpoint_lives() {
    let mut limits = Limits::default();
    limits.half_closed_timeout = Duration::from_millis(20);
    limits.reset_timeout = Duration::from_millis(20);
    let mut fixture = Fixture::new(limits);
    let (listener, address) = endpoint();
    let port = fixture.listen(Transport::Tcp, &serving([address]));
    let mut client = connect(port);
    let (server, _) = listener.accept().unwrap();
    fill(&server);
    let stats = fixture.wait_for(Transport::Tcp, port, |_| true);
    server.set_nonblocking(false).unwrap();
    // Many times the timeouts.
    thread::sleep(Duration::from_millis(200));
    let mut received = vec![0; usize::try_from(stats.bytes_out).unwrap()];
    client.read_exact(&mut received).unwrap();
    (&server).write_all(b"end").unwrap();
    // Before the server ends: a half-closed connection without data ends soon.
    let mut rest = Vec::new();
    while !rest.ends_with(b"end") {
        let mut buffer = [0; 65_536];
        let length = client.read(&mut buffer).unwrap();
        assert_ne!(length, 0, "the end is missing");
        rest.extend(&buffer[..length]);
    }
    drop(server);
    fixture.wait_for(Transport::Tcp, port, |stats| stats.ended == 1);
}

#[test]
fn without_endpoints_connections_are_reset() {
    let mut fixture = Fixture::new(Limits::default());
    let port = fixture.listen(Transport::Tcp, &Serving::default());
    assert!(is_reset(port));
    let stats = fixture.wait_for(Transport::Tcp, port, |stats| stats.without_endpoint > 0);
    assert_eq!(stats.opened, 0);
}

#[test]
fn a_dead_endpoint_costs_a_connection_nothing_but_another_attempt() {
    let mut fixture = Fixture::new(Limits::default());
    let port = fixture.listen(Transport::Tcp, &serving([closed(), echo("a")]));
    for _ in 0..6 {
        assert_eq!(name_of(port).0, 'a');
    }
    // The failure is remembered.
    let stats = fixture.wait_for(Transport::Tcp, port, |stats| stats.opened == 6);
    assert!(stats.dial_failures <= 3, "{stats:?}");
}

#[test]
fn if_all_endpoints_are_dead_connections_are_reset_after_four_attempts() {
    let mut fixture = Fixture::new(Limits::default());
    let port = fixture.listen(Transport::Tcp, &serving([closed(), closed()]));
    assert!(is_reset(port));
    let stats = fixture.wait_for(Transport::Tcp, port, |stats| stats.without_endpoint > 0);
    assert_eq!(stats.dial_failures, 4);
}

#[test]
fn a_client_stays_with_its_endpoint_until_that_fails() {
    let mut fixture = Fixture::new(Limits::default());
    let [a, b] = [echo("a"), echo("b")];
    let mut serving = serving([a, b]);
    serving.affinity = Some(Affinity {
        timeout: Duration::from_secs(10_800),
        prefix: 32,
    });
    let port = fixture.listen(Transport::Tcp, &serving);
    let first = name_of(port).0;
    for _ in 0..3 {
        assert_eq!(name_of(port).0, first);
    }
    // The endpoint leaves: the client moves.
    serving
        .backends
        .retain(|backend| backend.address != if first == 'a' { a } else { b });
    let key = kernlink_userspace::ListenerKey {
        transport: Transport::Tcp,
        address: port,
    };
    fixture.proxy.listen(key, &serving).unwrap();
    let second = name_of(port).0;
    assert_ne!(second, first);
}

#[test]
fn after_a_change_of_endpoints_new_connections_go_to_the_new_ones_and_old_ones_live() {
    let mut fixture = Fixture::new(Limits::default());
    let port = fixture.listen(Transport::Tcp, &serving([echo("a")]));
    let (_, mut old) = name_of(port);
    let key = kernlink_userspace::ListenerKey {
        transport: Transport::Tcp,
        address: port,
    };
    fixture.proxy.listen(key, &serving([echo("b")])).unwrap();
    assert_eq!(name_of(port).0, 'b');
    old.write_all(b"still there").unwrap();
    let mut answer = [0; 11];
    old.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"still there");
}

#[test]
fn a_closed_port_refuses_and_its_connections_live() {
    let mut fixture = Fixture::new(Limits::default());
    let port = fixture.listen(Transport::Tcp, &serving([echo("a")]));
    let (_, mut old) = name_of(port);
    let key = kernlink_userspace::ListenerKey {
        transport: Transport::Tcp,
        address: port,
    };
    fixture.proxy.close(&key);
    assert_eq!(
        TcpStream::connect(port).unwrap_err().kind(),
        ErrorKind::ConnectionRefused
    );
    old.write_all(b"x").unwrap();
    old.read_exact(&mut [0]).unwrap();
    // The same port can be opened again while connections of the earlier listener exist.
    fixture.proxy.listen(key, &serving([echo("b")])).unwrap();
    assert_eq!(name_of(port).0, 'b');
}

#[test]
fn connections_that_wait_to_be_accepted_are_served_when_the_port_closes() {
    let mut fixture = Fixture::with_threads(Limits::default(), 1);
    let port = fixture.listen(Transport::Tcp, &serving([echo("a")]));
    let key = kernlink_userspace::ListenerKey {
        transport: Transport::Tcp,
        address: port,
    };
    let busy = fixture.busy();
    let waiting: Vec<TcpStream> = (0..5).map(|_| connect(port)).collect();
    fixture.proxy.close(&key);
    drop(busy);
    for mut stream in waiting {
        let mut name = [0];
        stream.read_exact(&mut name).unwrap();
        assert_eq!(&name, b"a");
    }
    fixture.wait_for_descriptors(0);
}

#[test]
fn sources_outside_the_ranges_are_reset() {
    let mut fixture = Fixture::new(Limits::default());
    let mut serving = serving([echo("a")]);
    serving.source_ranges = ["192.0.2.0/24".parse().unwrap()].into();
    let port = fixture.listen(Transport::Tcp, &serving);
    assert!(is_reset(port));
    serving.source_ranges = ["192.0.2.0/24".parse().unwrap(), "127.0.0.0/8".parse().unwrap()].into();
    let key = kernlink_userspace::ListenerKey {
        transport: Transport::Tcp,
        address: port,
    };
    fixture.proxy.listen(key, &serving).unwrap();
    assert_eq!(name_of(port).0, 'a');
}

#[test]
fn connections_to_the_port_itself_are_reset_if_only_translated_ones_are_served() {
    let mut fixture = Fixture::new(Limits::default());
    let mut serving = serving([echo("a")]);
    serving.translated_only = true;
    let port = fixture.listen(Transport::Tcp, &serving);
    assert!(is_reset(port));
    fixture.wait_for(Transport::Tcp, port, |stats| stats.not_admitted == 1);
}

#[test]
fn connections_above_the_limit_are_reset_and_open_ones_live() {
    let mut limits = Limits::default();
    // The port, and three connections.
    limits.descriptors = Some(7);
    limits.port_share = 0;
    let mut fixture = Fixture::new(limits);
    let port = fixture.listen(Transport::Tcp, &serving([echo("a")]));
    let mut open: Vec<TcpStream> = (0..3).map(|_| name_of(port).1).collect();
    for _ in 0..5 {
        assert!(is_reset(port));
    }
    for stream in &mut open {
        stream.write_all(b"x").unwrap();
        stream.read_exact(&mut [0]).unwrap();
    }
    // One ends: another one is accepted.
    drop(open.pop());
    fixture.wait_for(Transport::Tcp, port, |stats| stats.ended == 1);
    while fixture.proxy.descriptors().1 > 5 {
        pause();
    }
    name_of(port);
    let stats = fixture.wait_for(Transport::Tcp, port, |_| true);
    assert_eq!(stats.shed, 5);
}

#[test]
fn a_port_with_many_connections_leaves_descriptors_for_other_ports() {
    let mut limits = Limits::default();
    // Two ports, and ten connections.
    limits.descriptors = Some(22);
    let mut fixture = Fixture::new(limits);
    let [busy, other] = [(); 2].map(|()| fixture.listen(Transport::Tcp, &serving([echo("a")])));
    // 16 descriptors are less than 7 times the 4 that are left then; 18 would be more than 7 times 2.
    let _open: Vec<TcpStream> = (0..8).map(|_| name_of(busy).1).collect();
    assert!(is_reset(busy));
    name_of(other);
}
