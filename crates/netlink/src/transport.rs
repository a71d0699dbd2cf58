//! The kernel socket, and the trait that tests implement instead of it.

use std::fmt;
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use netlink_sys::Socket;
use netlink_sys::protocols::{NETLINK_GENERIC, NETLINK_NETFILTER, NETLINK_ROUTE};
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{getsockopt, setsockopt, sockopt};

use crate::socket_filter::{self, FilterInstruction};
use crate::{Errno, Error};

/// A netlink protocol, which selects the kernel subsystem of a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Protocol {
    /// Links, addresses, routes (`NETLINK_ROUTE`).
    #[doc(alias = "NETLINK_ROUTE")]
    Route,
    /// Netfilter: ipset, connection tracking (`NETLINK_NETFILTER`).
    #[doc(alias = "NETLINK_NETFILTER")]
    Netfilter,
    /// Generic netlink: families that are looked up by name, such as IPVS (`NETLINK_GENERIC`).
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

/// Sends and receives datagrams.
pub(crate) trait Transport: fmt::Debug + Send + AsFd {
    fn send(&mut self, datagram: &[u8]) -> Result<(), Error>;

    /// Reads the next datagram into `buffer` and returns its length; `None` after the timeout. A timeout of `None` waits
    /// forever, zero does not wait. Signals do not prolong it.
    fn receive(&mut self, buffer: &mut [u8], timeout: Option<Duration>) -> Result<Option<usize>, Error>;

    fn limits(&self) -> Limits;

    /// Makes the send buffer large enough for one datagram of this length. [`Error::TooLarge`] if that is not possible.
    fn reserve_send(&mut self, bytes: usize) -> Result<(), Error>;
}

/// Limits of one send, chosen so that the kernel's answers fit the receive buffer.
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

/// Default size of the receive buffer in bytes. The kernel doubles it and allocates memory only
/// for queued datagrams.
const RECEIVE_BUFFER: usize = 4 << 20;

/// Bytes of the receive buffer that are reserved for each acknowledgement: twice the measured 832 (256 acknowledgements fill the
/// default buffer of 212 992 bytes), because a refusal contains a text.
const ACKNOWLEDGEMENT_COST: usize = 2 * 832;

/// The largest receive buffer that can be requested, in bytes: the kernel doubles it in an `int`
/// ([`__sock_set_rcvbuf`](https://github.com/torvalds/linux/blob/v6.12/net/core/sock.c#L965)).
pub(crate) const MAX_RECEIVE_BUFFER: usize = (i32::MAX / 2) as usize;

/// Bytes of the send buffer that the kernel reserves
/// ([`netlink_sendmsg`](https://github.com/torvalds/linux/blob/v6.12/net/netlink/af_netlink.c#L1865)).
const SEND_OVERHEAD: usize = 32;

impl KernelSocket {
    pub(crate) fn open(protocol: Protocol) -> Result<Self, Error> {
        let failed = |call| {
            move |error: std::io::Error| Error::Socket {
                call,
                errno: Errno::from_io(&error),
            }
        };
        let mut socket = Socket::new(protocol.number()).map_err(failed("open"))?;
        socket.bind_auto().map_err(failed("bind"))?;
        // Optional, each since the kernel release in its name. The connection works without them, so an error is ignored.
        let _extended_acknowledgement_4_12 = socket.set_ext_ack(true);
        let _capped_acknowledgement_4_3 = socket.set_cap_ack(true);
        if protocol == Protocol::Route {
            let _strict_check_4_20 = socket.set_netlink_get_strict_chk(true);
        }
        // Only CAP_NET_ADMIN may exceed net.core.rmem_max; the limits below depend on the granted size.
        if setsockopt(&socket, sockopt::RcvBufForce, &RECEIVE_BUFFER).is_err() {
            let _at_most_rmem_max = socket.set_rx_buf_sz(RECEIVE_BUFFER as nix::libc::c_int);
        }
        let granted = socket.get_rx_buf_sz().map_err(failed("configure"))?;
        let send = getsockopt(&socket, sockopt::SndBuf).map_err(|errno| Error::Socket {
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
            errno: Errno::from_io(&error),
        })
    }

    pub(crate) fn attach_filter(&self, program: &[FilterInstruction]) -> Result<(), Error> {
        let program = socket_filter::checked(program)?;
        socket2::SockRef::from(&self.socket)
            .attach_filter(&program)
            .map_err(|error| Error::Socket {
                call: "attach a filter to",
                errno: Errno::from_io(&error),
            })
    }

    pub(crate) fn set_broadcast_error(&self, enabled: bool) -> Result<(), Error> {
        self.socket.set_broadcast_error(enabled).map_err(configure_failed)
    }

    pub(crate) fn set_no_enobufs(&self, enabled: bool) -> Result<(), Error> {
        self.socket.set_no_enobufs(enabled).map_err(configure_failed)
    }

    pub(crate) fn set_receive_buffer(&self, bytes: usize) -> Result<(), Error> {
        // The kernel's parameter is an int, and values that it cannot double are reduced.
        if bytes > MAX_RECEIVE_BUFFER {
            return Err(Error::ReceiveBuffer { bytes });
        }
        // SO_RCVBUFFORCE first: it requires CAP_NET_ADMIN and may exceed net.core.rmem_max.
        setsockopt(&self.socket, sockopt::RcvBufForce, &bytes)
            .or_else(|_| setsockopt(&self.socket, sockopt::RcvBuf, &bytes))
            .map_err(|errno| Error::Socket {
                call: "configure",
                errno: Errno(errno as i32),
            })
    }

    /// Waits until the socket is readable or the deadline has passed, also if signals arrive. Returns false after the
    /// deadline.
    fn wait(&self, deadline: Option<Instant>) -> Result<bool, Error> {
        loop {
            let timeout = match deadline.map(|deadline| deadline.saturating_duration_since(Instant::now())) {
                Some(Duration::ZERO) => return Ok(false),
                // Rounded up, so that `poll` does not return before the deadline.
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
        errno: Errno::from_io(&error),
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
                        errno: Errno::from_io(&error),
                    });
                }
            }
        }
    }

    fn receive(&mut self, buffer: &mut [u8], timeout: Option<Duration>) -> Result<Option<usize>, Error> {
        let capacity = buffer.len();
        // A deadline beyond the range of the clock is no deadline.
        let deadline = timeout.and_then(|timeout| Instant::now().checked_add(timeout));
        // The kernel answers most requests during `send`, so the first read does not wait.
        let flags = nix::libc::MSG_TRUNC | nix::libc::MSG_DONTWAIT;
        loop {
            let mut target = &mut *buffer;
            match self.socket.recv_from(&mut target, flags) {
                // Other processes may send to this socket; only the kernel has port 0.
                Ok((_, sender)) if sender.port_number() != 0 => {
                    if deadline.is_some_and(|deadline| deadline <= Instant::now()) {
                        return Ok(None);
                    }
                }
                Ok((size, _)) if size > capacity => return Err(Error::Truncated { size, capacity }),
                Ok((size, _)) => return Ok(Some(size)),
                Err(error) => match Errno::from_io(&error) {
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

    fn reserve_send(&mut self, bytes: usize) -> Result<(), Error> {
        let needed = bytes.saturating_add(SEND_OVERHEAD);
        let granted = || {
            getsockopt(&self.socket, sockopt::SndBuf).map_err(|errno| Error::Socket {
                call: "configure",
                errno: Errno(errno as i32),
            })
        };
        if granted()? >= needed {
            return Ok(());
        }
        // The kernel doubles the value. Only CAP_NET_ADMIN may exceed net.core.wmem_max.
        let requested = needed.div_ceil(2).min(MAX_RECEIVE_BUFFER);
        if setsockopt(&self.socket, sockopt::SndBufForce, &requested).is_err() {
            let _at_most_wmem_max = setsockopt(&self.socket, sockopt::SndBuf, &requested);
        }
        let granted = granted()?;
        if granted >= needed {
            return Ok(());
        }
        Err(Error::TooLarge {
            what: "a transaction",
            limit: granted.saturating_sub(SEND_OVERHEAD),
        })
    }
}
