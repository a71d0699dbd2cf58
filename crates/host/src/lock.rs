//! One writer for each network namespace.

use std::fmt;
use std::io;
use std::os::fd::AsRawFd;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};

use kernlink_base::ErrorChain;
use kernlink_netlink::nftables::{self, NFPROTO_INET, Table};
use kernlink_netlink::{Connection, Errno, Error, Protocol};
use nix::sys::socket::sockopt::PeerCredentials;
use nix::sys::socket::{AddressFamily, SockFlag, SockType, UnixAddr, connect, getsockopt, socket};

/// The right to program the kernel of a network namespace. It ends when this is dropped or the process ends, however it ends.
///
/// The lock is an empty table of nf_tables that belongs to a netlink socket of this process (`NFT_TABLE_F_OWNER`, since Linux 5.12). A process
/// needs `CAP_NET_ADMIN` in the network namespace to create it, so no other one can keep an agent out. It needs no file, is the same for all
/// containers in the namespace, is deleted by the kernel when the socket is closed, and stays after `nft flush ruleset`. `nft list ruleset` shows
/// it, with the process as its comment. What this replaced, or what is like it, can be taken by any process: the name of an abstract Unix socket,
/// the port ID of a netlink socket, a lock on `/proc/self/ns/net`.
///
/// A process of an earlier version has an abstract Unix socket with the same name instead. It is created too, so that such a process does not
/// start, and one that has it keeps others out if it has user ID 0 and `CAP_NET_ADMIN`. What other processes do with that name has no effect. Nor
/// has a process in another PID namespace, whose capabilities cannot be read.
///
/// On a kernel without such tables only the socket is the lock: there a process with user ID 0 in another PID namespace keeps others out too. While
/// another process has its name, nothing keeps out a second agent, see [`is_exclusive`](Self::is_exclusive).
///
/// The lock keeps out other processes that take it, not kube-proxy.
#[derive(Debug)]
pub struct Lock {
    // In this order: a process that finds the table deleted finds the name of the socket free.
    socket: Option<UnixListener>,
    table: Option<Connection>,
}

/// Why a [`Lock`] was not acquired.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LockError {
    /// Another process has it, or this one a second time.
    #[error("network namespace is already programmed by {}", process(*.pid))]
    Held {
        /// The process, as a number in this process's PID namespace. `None` if it is in another PID namespace, or ended just now.
        pid: Option<u32>,
    },
    /// This process must not change the network namespace.
    #[error("cannot lock the network namespace: this requires CAP_NET_ADMIN")]
    NotPermitted,
    /// The lock cannot be created.
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

/// Attempts to create the table while other processes create and delete it.
const ATTEMPTS: u32 = 8;

impl Lock {
    /// The name of the table, in the family `inet`, and of the socket, after the zero byte.
    pub const NAME: &str = "kernlink-proxier";

    /// Locks the network namespace of the calling thread.
    ///
    /// # Errors
    /// [`LockError::Held`] without waiting; [`LockError::NotPermitted`]; [`LockError::Io`].
    pub fn acquire() -> Result<Self, LockError> {
        // First, so that its file descriptor is the smaller one: they are closed in this order when the process ends.
        let address = SocketAddr::from_abstract_name(Self::NAME).map_err(LockError::Io)?;
        let socket = match UnixListener::bind_addr(&address) {
            Ok(socket) => Some(socket),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => None,
            Err(error) => return Err(LockError::Io(error)),
        };
        let table = create_table()?;
        if socket.is_none()
            && let Some(Holder { pid }) = socket_writer(table.is_some())
        {
            return Err(LockError::Held { pid });
        }
        Ok(Self { socket, table })
    }

    /// The process that has the lock of the calling thread's network namespace, `None` if there is none. Creates nothing. A process of an earlier
    /// version is found on its socket.
    ///
    /// # Errors
    /// [`LockError::NotPermitted`]; [`LockError::Io`].
    pub fn holder() -> Result<Option<Holder>, LockError> {
        let (has_tables, table) = match Connection::open(Protocol::Netfilter)
            .and_then(|mut connection| nftables::read_table(&mut connection, NFPROTO_INET, Lock::NAME))
        {
            Err(error) if nftables::is_unsupported(&error) => (false, None),
            table => (true, table.map_err(failed)?),
        };
        if let Some(table) = table.filter(|table| table.owner.is_some()) {
            return Ok(Some(Holder { pid: holder(&table) }));
        }
        Ok(socket_writer(has_tables))
    }

    /// Whether no other process can acquire the lock. False on a kernel without nf_tables, or before Linux 5.12, while a process that is not
    /// root has the name of the socket.
    #[must_use]
    pub fn is_exclusive(&self) -> bool {
        self.table.is_some() || self.socket.is_some()
    }
}

/// The process that has a [`Lock`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holder {
    /// Its number in this process's PID namespace. `None` if it is in another PID namespace, or ended just now.
    pub pid: Option<u32>,
}

impl fmt::Display for Holder {
    /// `process 7`, or `another process`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&process(self.pid))
    }
}

/// The process that has the socket, if it keeps others out. With tables that have an owner, only a process that is known to be one of an earlier
/// version counts.
fn socket_writer(has_tables: bool) -> Option<Holder> {
    let peer = socket_holder()?;
    let pid = u32::try_from(peer.pid()).ok().filter(|pid| *pid != 0);
    let may_program = pid.and_then(may_program);
    (peer.uid() == 0 && may_program.unwrap_or(!has_tables)).then_some(Holder { pid })
}

/// Whether a process can program the network namespace of this one: it has `CAP_NET_ADMIN` in the same user namespace. `None` if that cannot be read.
fn may_program(pid: u32) -> Option<bool> {
    const CAP_NET_ADMIN: u32 = 12;
    let namespace = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/user")).ok();
    let process = pid.to_string();
    if namespace(&process)? != namespace("self")? {
        return Some(false);
    }
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let effective = status.lines().find_map(|line| line.strip_prefix("CapEff:"))?;
    let effective = u64::from_str_radix(effective.trim(), 16).ok()?;
    Some(effective & (1 << CAP_NET_ADMIN) != 0)
}

/// Creates the table. `None` if the kernel does not support it.
fn create_table() -> Result<Option<Connection>, LockError> {
    let mut connection = match Connection::open(Protocol::Netfilter) {
        Err(error) if nftables::is_unsupported(&error) => return Ok(None),
        connection => connection.map_err(failed)?,
    };
    for _ in 0..ATTEMPTS {
        match nftables::add_owned_table(&mut connection, NFPROTO_INET, Lock::NAME, &own_comment()) {
            Ok(()) => return Ok(Some(connection)),
            Err(error) if nftables::is_unsupported(&error) => return Ok(None),
            Err(error) if !matches!(error.errno(), Some(Errno::EPERM | Errno::EEXIST)) => {
                return Err(failed(error));
            }
            Err(_) => {}
        }
        // Without CAP_NET_ADMIN, reading is not permitted either.
        let table = nftables::read_table(&mut connection, NFPROTO_INET, Lock::NAME).map_err(failed)?;
        match table {
            Some(table) if table.owner.is_some() => {
                return Err(LockError::Held { pid: holder(&table) });
            }
            // A saved ruleset was loaded that an `nft` wrote which does not print flags. Only root can have done so.
            Some(_) => match nftables::delete_table(&mut connection, NFPROTO_INET, Lock::NAME) {
                // Another process has just done the same.
                Err(error) if !matches!(error.errno(), Some(Errno::EPERM | Errno::ENOENT)) => {
                    return Err(failed(error));
                }
                _ => {}
            },
            // The process that had it has just ended.
            None => {}
        }
    }
    Err(LockError::Held { pid: None })
}

fn failed(error: Error) -> LockError {
    match error.errno() {
        Some(Errno::EPERM) => LockError::NotPermitted,
        _ => LockError::Io(io::Error::other(ErrorChain(&error).to_string())),
    }
}

/// The comment of the table. A PID has a meaning in its namespace only.
fn own_comment() -> String {
    let process = format!("process {}", std::process::id());
    match pid_namespace() {
        Some(namespace) => format!("{process} of {namespace}"),
        None => process,
    }
}

/// The PID namespace of this process, such as `pid:[4026531836]`. `None` without `/proc`.
fn pid_namespace() -> Option<String> {
    let link = std::fs::read_link("/proc/self/ns/pid").ok()?;
    link.into_os_string().into_string().ok()
}

/// The process that has the table, if it is in the same PID namespace.
fn holder(table: &Table) -> Option<u32> {
    let (pid, namespace) = table
        .comment
        .as_deref()?
        .strip_prefix("process ")?
        .split_once(" of ")?;
    (namespace == pid_namespace()?).then(|| pid.parse().ok())?
}

/// The process that has the socket. Does not wait: it accepts no connection. `None` if its queue is full, which any process can do; then it
/// is not known whether it is root.
fn socket_holder() -> Option<nix::sys::socket::UnixCredentials> {
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let stream = socket(AddressFamily::Unix, SockType::Stream, flags, None).ok()?;
    let address = UnixAddr::new_abstract(Lock::NAME.as_bytes()).ok()?;
    connect(stream.as_raw_fd(), &address).ok()?;
    getsockopt(&stream, PeerCredentials).ok()
}
