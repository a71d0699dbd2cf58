//! One writer for each network namespace.

use std::io;
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, getsockopt, socket};

/// The right to program the kernel of a network namespace. It ends when this is dropped or the process ends, however it ends.
///
/// The lock is a listening Unix socket with an abstract name: such names belong to a network namespace
/// ([unix(7)](https://man7.org/linux/man-pages/man7/unix.7.html)). It keeps out other processes that take the same lock, not kube-proxy. Any
/// process of the network namespace can take it, also without privileges; without `CAP_NET_ADMIN` it can do nothing else to the kernel objects.
#[derive(Debug)]
pub struct Lock {
    _socket: UnixListener,
}

/// Why a [`Lock`] was not acquired.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// Another process has it, or this one a second time.
    #[error("network namespace is already programmed by {}", process(*.pid))]
    Held {
        /// The process, as a number in this process's PID namespace. `None` if it is in another PID namespace, ended just now,
        /// or has been asked too often: its queue of connections is full.
        pid: Option<u32>,
    },
    /// The socket cannot be created.
    #[error("cannot lock the network namespace")]
    Io(#[source] io::Error),
}

impl LockError {
    /// Whether another process has the lock.
    #[must_use]
    pub fn is_held(&self) -> bool {
        matches!(self, LockError::Held { .. })
    }
}

fn process(pid: Option<u32>) -> String {
    pid.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"))
}

impl Lock {
    /// The name of the socket, after the zero byte.
    pub const NAME: &str = "kernlink-proxier";

    /// Locks the network namespace of the calling thread.
    ///
    /// # Errors
    /// [`LockError::Held`] without waiting; [`LockError::Io`].
    pub fn acquire() -> Result<Self, LockError> {
        let address = SocketAddr::from_abstract_name(Self::NAME).map_err(LockError::Io)?;
        match UnixListener::bind_addr(&address) {
            Ok(socket) => Ok(Self { _socket: socket }),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => Err(LockError::Held { pid: holder() }),
            Err(error) => Err(LockError::Io(error)),
        }
    }
}

/// The process that has the lock. Does not wait: the holder accepts no connection, and its queue may be full.
fn holder() -> Option<u32> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let stream = socket(AddressFamily::Unix, SockType::Stream, flags, None).ok()?;
    let address = UnixAddr::new_abstract(Lock::NAME.as_bytes()).ok()?;
    connect(stream.as_raw_fd(), &address).ok()?;
    let pid = getsockopt(&stream, PeerCredentials).ok()?.pid();
    u32::try_from(pid).ok().filter(|pid| *pid != 0)
}
