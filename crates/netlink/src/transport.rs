//! The socket below a connection, and what stands in for it in tests.

use std::fmt;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use netlink_sys::Socket;
use netlink_sys::protocols::{NETLINK_GENERIC, NETLINK_NETFILTER, NETLINK_ROUTE};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{setsockopt, sockopt};

use crate::socket_filter::{self, FilterInstruction};
use crate::{Errno, Error};

/// A netlink protocol, that is: which part of the kernel a socket talks to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Protocol {
    /// Links, addresses, routes (`NETLINK_ROUTE`).
    #[doc(alias = "NETLINK_ROUTE")]
    Route,
    /// Netfilter: ipset, connection tracking (`NETLINK_NETFILTER`).
    #[doc(alias = "NETLINK_NETFILTER")]
    Netfilter,
    /// Families that are found by name, such as IPVS (`NETLINK_GENERIC`).
    #[doc(alias = "NETLINK_GENERIC")]
    Generic,
}

impl Protocol {
    fn number(self) -> isize {
        match self {
            Protocol::Route => NETLINK_ROUTE,
            Protocol::Netfilter => NETLINK_NETFILTER,
            Protocol::Generic => NETLINK_GENERIC,
        }
    }
}

/// Carries datagrams to the kernel and back.
pub(crate) trait Transport: fmt::Debug + Send + AsFd {
    fn send(&mut self, datagram: &[u8]) -> Result<(), Error>;

    /// Fills `buffer` with the next datagram and returns its length; `None` if none came in time. A timeout of `None` waits
    /// for ever, one of zero not at all. Signals do not prolong it.
    fn receive(&mut self, buffer: &mut [u8], timeout: Option<Duration>) -> Result<Option<usize>, Error>;

    fn limits(&self) -> Limits;
}

/// What one send may hold so that the kernel's answers to it fit the receive buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Limits {
    pub(crate) requests: usize,
    pub(crate) bytes: usize,
}

/// A socket to the kernel.
#[derive(Debug)]
pub(crate) struct KernelSocket {
    socket: Socket,
    limits: Limits,
}

/// What the receive buffer is asked to hold, in bytes. The kernel doubles it and takes memory only
/// for what is queued.
const RECEIVE_BUFFER: usize = 4 << 20;

/// What one unread acknowledgement takes off the receive buffer: 256 of them fill the default
/// buffer of 212 992 bytes. Twice that is reckoned, since a refusal carries text.
const ACKNOWLEDGEMENT_COST: usize = 2 * 832;

/// The largest receive buffer that can be asked for, in bytes: the kernel doubles it in an `int`
/// ([`__sock_set_rcvbuf`](https://github.com/torvalds/linux/blob/v6.12/net/core/sock.c#L965)).
pub(crate) const MAX_RECEIVE_BUFFER: usize = (i32::MAX / 2) as usize;

/// What the kernel keeps of the send buffer for itself
/// ([`netlink_sendmsg`](https://github.com/torvalds/linux/blob/v6.12/net/netlink/af_netlink.c#L1865)).
const SEND_OVERHEAD: usize = 32;

impl KernelSocket {
    pub(crate) fn open(protocol: Protocol) -> Result<Self, Error> {
        let failed = |call| {
            move |error: std::io::Error| Error::Socket {
                call,
                errno: Errno::of(&error),
            }
        };
        let mut socket = Socket::new(protocol.number()).map_err(failed("open"))?;
        socket.bind_auto().map_err(failed("bind"))?;
        // Each of these makes answers better and exists since the kernel named; without it the
        // connection works all the same, so a refusal is no error.
        let _extended_acknowledgement_4_12 = socket.set_ext_ack(true);
        let _capped_acknowledgement_4_3 = socket.set_cap_ack(true);
        if protocol == Protocol::Route {
            let _strict_check_4_20 = socket.set_netlink_get_strict_chk(true);
        }
        // Only CAP_NET_ADMIN may exceed net.core.rmem_max; the limits below go by what was granted.
        if setsockopt(&socket, sockopt::RcvBufForce, &RECEIVE_BUFFER).is_err() {
            let _at_most_rmem_max = socket.set_rx_buf_sz(RECEIVE_BUFFER as nix::libc::c_int);
        }
        let granted = socket.get_rx_buf_sz().map_err(failed("configure"))?;
        let send = nix::sys::socket::getsockopt(&socket, sockopt::SndBuf).map_err(|errno| Error::Socket {
            call: "configure",
            errno: Errno(errno as i32),
        })?;
        let limits = Limits {
            requests: (granted / ACKNOWLEDGEMENT_COST).max(1),
            bytes: (granted / 2).min(send.saturating_sub(SEND_OVERHEAD)),
        };
        Ok(KernelSocket { socket, limits })
    }

    pub(crate) fn join_group(&self, group: u32) -> Result<(), Error> {
        self.socket.add_membership(group).map_err(|error| Error::Socket {
            call: "join a multicast group on",
            errno: Errno::of(&error),
        })
    }

    pub(crate) fn attach_filter(&self, program: &[FilterInstruction]) -> Result<(), Error> {
        let program = socket_filter::checked(program)?;
        socket2::SockRef::from(&self.socket)
            .attach_filter(&program)
            .map_err(|error| Error::Socket {
                call: "attach a filter to",
                errno: Errno::of(&error),
            })
    }

    pub(crate) fn set_broadcast_error(&self, enabled: bool) -> Result<(), Error> {
        self.socket.set_broadcast_error(enabled).map_err(configure_failed)
    }

    pub(crate) fn set_no_enobufs(&self, enabled: bool) -> Result<(), Error> {
        self.socket.set_no_enobufs(enabled).map_err(configure_failed)
    }

    pub(crate) fn set_receive_buffer(&self, bytes: usize) -> Result<(), Error> {
        // The kernel takes an int, and cuts what it cannot double.
        if bytes > MAX_RECEIVE_BUFFER {
            return Err(Error::ReceiveBuffer { bytes });
        }
        // Tried with privilege first: it may exceed net.core.rmem_max.
        setsockopt(&self.socket, sockopt::RcvBufForce, &bytes)
            .or_else(|_| setsockopt(&self.socket, sockopt::RcvBuf, &bytes))
            .map_err(|errno| Error::Socket {
                call: "configure",
                errno: Errno(errno as i32),
            })
    }

    /// Waits until something can be read or the deadline has passed, whichever signals come meanwhile. False after the
    /// deadline.
    fn wait(&self, deadline: Option<Instant>) -> Result<bool, Error> {
        loop {
            let timeout = match deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())) {
                Some(Duration::ZERO) => return Ok(false),
                // Rounded up: nothing is gained by looking before the time.
                Some(left) => {
                    let millis = left.as_micros().div_ceil(1000);
                    PollTimeout::try_from(millis).unwrap_or(PollTimeout::MAX)
                }
                None => PollTimeout::NONE,
            };
            match poll(
                &mut [PollFd::new(self.socket.as_fd(), PollFlags::POLLIN)],
                timeout,
            ) {
                Ok(0) | Err(nix::errno::Errno::EINTR) => {}
                Ok(_) => return Ok(true),
                Err(errno) => {
                    return Err(Error::Socket {
                        call: "receive from",
                        errno: Errno(errno as i32),
                    });
                }
            }
        }
    }
}

fn configure_failed(error: std::io::Error) -> Error {
    Error::Socket {
        call: "configure",
        errno: Errno::of(&error),
    }
}

impl AsFd for KernelSocket {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

impl Transport for KernelSocket {
    fn send(&mut self, datagram: &[u8]) -> Result<(), Error> {
        loop {
            match self.socket.send(datagram, 0) {
                Ok(_) => return Ok(()),
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => {
                    return Err(Error::Socket {
                        call: "send on",
                        errno: Errno::of(&error),
                    });
                }
            }
        }
    }

    fn receive(&mut self, buffer: &mut [u8], timeout: Option<Duration>) -> Result<Option<usize>, Error> {
        let capacity = buffer.len();
        // A time that no clock reaches is for ever.
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        // The kernel answers most requests while they are sent, so the answer is looked for before it is waited for.
        let flags = nix::libc::MSG_TRUNC | nix::libc::MSG_DONTWAIT;
        loop {
            let mut target = &mut *buffer;
            match self.socket.recv_from(&mut target, flags) {
                // Other processes may send to our port; only the kernel has port 0.
                Ok((_, sender)) if sender.port_number() != 0 => {
                    if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                        return Ok(None);
                    }
                }
                Ok((size, _)) if size > capacity => return Err(Error::Truncated { size, capacity }),
                Ok((size, _)) => return Ok(Some(size)),
                Err(error) => match Errno::of(&error) {
                    Errno::EINTR => {}
                    Errno::EAGAIN => {
                        if !self.wait(deadline)? {
                            return Ok(None);
                        }
                    }
                    Errno::ENOBUFS => return Err(Error::Overrun),
                    errno => {
                        return Err(Error::Socket {
                            call: "receive from",
                            errno,
                        });
                    }
                },
            }
        }
    }

    fn limits(&self) -> Limits {
        self.limits
    }
}
