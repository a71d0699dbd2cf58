//! Listening ports and claims.

use std::io::{ErrorKind, Read};
use std::net::{Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};

use kernlink_userspace::{Limits, ListenerKey, Serving, Transport};

use super::support::*;

#[test]
fn a_port_that_is_in_use_is_an_error_and_costs_nothing() {
    let mut fixture = Fixture::new(Limits::default());
    let (_listener, address) = endpoint();
    let key = ListenerKey {
        transport: Transport::Tcp,
        address,
    };
    for _ in 0..3 {
        let error = fixture.proxy.listen(key, &Serving::default()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::AddrInUse);
    }
    assert_eq!(fixture.proxy.descriptors().1, 0);
}

#[test]
fn several_ports_are_independent() {
    let mut fixture = Fixture::new(Limits::default());
    let tcp = fixture.listen(Transport::Tcp, &serving([echo("a")]));
    let other = fixture.listen(Transport::Tcp, &serving([echo("b")]));
    let udp = fixture.listen(Transport::Udp, &serving([udp_echo("c")]));
    assert_eq!((name_of(tcp).0, name_of(other).0), ('a', 'b'));
    assert_eq!(ask(&udp_client(udp), b""), b"c");
}

#[test]
fn an_ipv6_port_does_not_accept_ipv4() {
    let mut fixture = Fixture::new(Limits::default());
    let listener = TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    drop(listener);
    let key = ListenerKey {
        transport: Transport::Tcp,
        address: SocketAddr::from((Ipv6Addr::UNSPECIFIED, port)),
    };
    fixture.proxy.listen(key, &serving([echo("a")])).unwrap();
    let mut stream = TcpStream::connect((Ipv6Addr::LOCALHOST, port)).unwrap();
    stream.read_exact(&mut [0]).unwrap();
    // The same port of IPv4 is free, unless another program has it. No other test listens at this address.
    let ipv4 = SocketAddr::new(free_address(Transport::Tcp).ip(), port);
    if let Ok(listener) = TcpListener::bind(ipv4) {
        drop(listener);
        assert!(TcpStream::connect(ipv4).is_err());
    }
}

#[test]
fn a_claim_reserves_a_port_without_answering() {
    let mut fixture = Fixture::new(Limits::default());
    let address = closed();
    let key = ListenerKey {
        transport: Transport::Tcp,
        address,
    };
    fixture.proxy.claim(key).unwrap();
    fixture.proxy.claim(key).unwrap();
    assert_eq!(fixture.proxy.claims().collect::<Vec<_>>(), [key]);
    assert!(TcpListener::bind(address).is_err());
    // No handshake is completed.
    assert_eq!(
        TcpStream::connect(address).unwrap_err().kind(),
        ErrorKind::ConnectionRefused
    );
    fixture.proxy.release(&key);
    fixture.proxy.release(&key);
    TcpListener::bind(address).unwrap();
    assert_eq!(fixture.proxy.descriptors().1, 0);
}

#[test]
fn a_claim_of_a_port_that_another_program_has_is_an_error() {
    let mut fixture = Fixture::new(Limits::default());
    let other = UdpSocket::bind(free_address(Transport::Udp)).unwrap();
    let key = ListenerKey {
        transport: Transport::Udp,
        address: other.local_addr().unwrap(),
    };
    assert_eq!(fixture.proxy.claim(key).unwrap_err().kind(), ErrorKind::AddrInUse);
    drop(other);
    fixture.proxy.claim(key).unwrap();
}
