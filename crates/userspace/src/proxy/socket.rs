//! Sockets and their options.

use std::fs::File;
use std::io;
use std::net::{SocketAddr, SocketAddrV4, SocketAddrV6};
use std::os::fd::AsFd;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use kernlink_base::Family;
use nix::errno::Errno;
use nix::sys::socket::{getsockopt, sockopt};
use socket2::{Domain, SockRef, Socket, TcpKeepalive, Type};

use super::listener::Transport;

/// A socket without a local address; it does not block.
pub(super) fn new(transport: Transport, address: SocketAddr) -> io::Result<Socket> {
    let kind = match transport {
        Transport::Tcp => Type::STREAM,
        Transport::Udp => Type::DGRAM,
    };
    Socket::new(Domain::for_address(address), kind.nonblocking().cloexec(), None)
}

/// A socket with a local address that no other socket can have too. IPv6 sockets do not accept IPv4.
pub(super) fn bind(transport: Transport, address: SocketAddr) -> io::Result<Socket> {
    bind_with(&address, new(transport, address)?)
}

/// A TCP socket to listen at a local address, which may be bound while connections of an earlier process to it still exist.
pub(super) fn bind_listener(address: SocketAddr) -> io::Result<Socket> {
    let socket = new(Transport::Tcp, address)?;
    socket.set_reuse_address(true)?;
    bind_with(&address, socket)
}

fn bind_with(address: &SocketAddr, socket: Socket) -> io::Result<Socket> {
    if address.is_ipv6() {
        socket.set_only_v6(true)?;
    }
    socket.bind(&(*address).into())?;
    Ok(socket)
}

/// Sets the options of a TCP socket that carries a proxied connection. Accepted sockets inherit them from the listening one.
pub(super) fn configure(socket: &Socket, keepalive: Duration) -> io::Result<()> {
    socket.set_tcp_nodelay(true)?;
    // Without it a read drops the byte of urgent data.
    socket.set_out_of_band_inline(true)?;
    let keepalive = TcpKeepalive::new().with_time(keepalive).with_interval(keepalive);
    socket.set_tcp_keepalive(&keepalive)
}

/// Makes the kernel reset the connection when the socket is closed.
pub(super) fn reset_on_close(socket: impl AsFd) {
    // Without it the connection is closed normally.
    let _ = SockRef::from(&socket).set_linger(Some(Duration::ZERO));
}

/// The address that the client connected to, before a rule translated it. `None` if connection tracking has no such connection.
pub(super) fn original_destination(socket: impl AsFd, family: Family) -> Option<SocketAddr> {
    match family {
        Family::Ipv4 => {
            let raw = getsockopt(&socket, sockopt::OriginalDst).ok()?;
            let address = u32::from_be(raw.sin_addr.s_addr).into();
            Some(SocketAddrV4::new(address, u16::from_be(raw.sin_port)).into())
        }
        Family::Ipv6 => {
            let raw = getsockopt(&socket, sockopt::Ip6tOriginalDst).ok()?;
            let address = raw.sin6_addr.s6_addr.into();
            Some(SocketAddrV6::new(address, u16::from_be(raw.sin6_port), 0, 0).into())
        }
    }
}

/// Whether an error is about this process or machine, not about the peer.
pub(super) fn is_local(error: &io::Error) -> bool {
    let local = [
        Errno::EMFILE,
        Errno::ENFILE,
        Errno::ENOBUFS,
        Errno::ENOMEM,
        Errno::EADDRNOTAVAIL,
        // `connect` of a UDP socket: no local port is left.
        Errno::EAGAIN,
    ];
    let errno = error.raw_os_error().map(Errno::from_raw);
    errno.is_some_and(|errno| local.contains(&errno))
}

/// Whether an error of a UDP socket says that a datagram is too large for the path: a router asked for smaller packets, perhaps because of an
/// earlier datagram. The kernel sends later ones in fragments.
pub(super) fn is_too_large(error: &io::Error) -> bool {
    error.raw_os_error().map(Errno::from_raw) == Some(Errno::EMSGSIZE)
}

/// A descriptor that is kept so that a connection can be accepted, and refused, when no other one is left.
#[derive(Debug)]
pub(super) struct Reserve(Mutex<Option<File>>);

impl Reserve {
    pub(super) fn open() -> io::Result<Self> {
        Ok(Self(Mutex::new(Some(open_null()?))))
    }

    /// Accepts one connection of a listening socket and resets it. False if that was not possible.
    pub(super) fn refuse_one(&self, listener: impl AsFd) -> bool {
        let mut reserve = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        drop(reserve.take());
        let accepted = SockRef::from(&listener).accept();
        if let Ok((socket, _)) = &accepted {
            reset_on_close(socket);
        }
        let is_refused = accepted.is_ok();
        drop(accepted);
        *reserve = open_null().ok();
        is_refused
    }
}

fn open_null() -> io::Result<File> {
    File::open("/dev/null")
}
