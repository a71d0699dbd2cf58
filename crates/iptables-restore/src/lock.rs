//! The lock under which a process changes legacy tables.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::Path;
use std::thread;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::fcntl::{Flock, FlockArg};
use nix::sys::stat::{major, minor};

use crate::error::{Error, LockHolder};

/// The default lock file, which `XTABLES_LOCKFILE` overrides. Source: `XT_LOCK_NAME`, `iptables/xshared.h`, 1.8.9.
pub(crate) const LOCK_FILE: &str = "/run/xtables.lock";

/// The lock of tools before 1.4.21 and 1.6.0: a name in the abstract socket namespace.
const LOCK_SOCKET: &[u8] = b"xtables";

/// The lock, released on drop.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: Flock<File>,
    _socket: UnixListener,
}

/// Time between two attempts to take the lock.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// Takes the lock file and then the socket.
pub(crate) fn take(path: &Path, wait: Duration) -> Result<Lock, Error> {
    take_both(path, LOCK_SOCKET, wait)
}

fn take_both(path: &Path, socket: &[u8], wait: Duration) -> Result<Lock, Error> {
    let failed = |error: io::Error| Error::LockFile {
        path: path.to_owned(),
        kind: error.kind(),
        text: error.to_string(),
    };
    let deadline = Instant::now() + wait;
    let locked = || Error::Locked {
        waited: wait,
        holder: holder(path),
    };
    let mut file = OpenOptions::new()
        .create(true)
        .truncate(false)
        .write(true)
        .mode(0o600)
        .open(path)
        .map_err(failed)?;
    let file = loop {
        match Flock::lock(file, FlockArg::LockExclusiveNonblock) {
            Ok(locked) => break locked,
            Err((_, Errno::EWOULDBLOCK)) if Instant::now() >= deadline => return Err(locked()),
            Err((unlocked, Errno::EWOULDBLOCK | Errno::EINTR)) => file = unlocked,
            Err((_, errno)) => return Err(failed(errno.into())),
        }
        thread::sleep(RETRY_INTERVAL);
    };
    let address = SocketAddr::from_abstract_name(socket).map_err(failed)?;
    loop {
        match UnixListener::bind_addr(&address) {
            Ok(socket) => {
                return Ok(Lock {
                    _file: file,
                    _socket: socket,
                });
            }
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                if Instant::now() >= deadline {
                    return Err(Error::Locked {
                        waited: wait,
                        holder: None,
                    });
                }
            }
            Err(error) => return Err(failed(error)),
        }
        thread::sleep(RETRY_INTERVAL);
    }
}

/// The process that holds the lock of the file according to `/proc/locks`.
pub(crate) fn holder(path: &Path) -> Option<LockHolder> {
    let file = fs::metadata(path).ok()?;
    let locks = fs::read_to_string("/proc/locks").ok()?;
    let pid = locks
        .lines()
        .find_map(|line| holder_in(line, file.dev(), file.ino()))?;
    let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let arguments: Vec<_> = command
        .split(|byte| *byte == 0)
        .filter(|argument| !argument.is_empty())
        .map(String::from_utf8_lossy)
        .collect();
    let command: String = arguments.join(" ").chars().take(200).collect();
    Some(LockHolder { pid, command })
}

/// Parses `1: FLOCK  ADVISORY  WRITE 1234 00:1a:5678 0 EOF`. Waiting processes have `->` after the number.
fn holder_in(line: &str, device: u64, inode: u64) -> Option<u32> {
    let mut fields = line.split_ascii_whitespace().skip(1);
    (fields.next() == Some("FLOCK")).then_some(())?;
    let pid = fields.nth(2)?.parse().ok()?;
    let mut file = fields.next()?.split(':');
    let major_number = u64::from_str_radix(file.next()?, 16).ok()?;
    let minor_number = u64::from_str_radix(file.next()?, 16).ok()?;
    let same =
        major_number == major(device) && minor_number == minor(device) && file.next()?.parse() == Ok(inode);
    // The ID of a process outside this PID namespace is shown as 0.
    (same && pid != 0).then_some(pid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_holder_is_parsed_from_proc_locks() {
        let line = "1: FLOCK  ADVISORY  WRITE 1234 08:1a:5678 0 EOF";
        let device = (8 << 8) | 0x1a;
        assert_eq!(holder_in(line, device, 5678), Some(1234));
        assert_eq!(holder_in(line, device, 5679), None);
        assert_eq!(
            holder_in("1: -> FLOCK  ADVISORY  WRITE 1234 08:1a:5678 0 EOF", device, 5678),
            None
        );
        assert_eq!(
            holder_in("2: POSIX  ADVISORY  WRITE 1234 08:1a:5678 0 EOF", device, 5678),
            None
        );
    }

    #[test]
    fn a_held_lock_is_waited_for_and_its_holder_reported() {
        // On a tmpfs if possible: on an overlay, /proc/locks has the inode of the lower file.
        let memory = Path::new("/dev/shm");
        let folder = if memory.is_dir() {
            memory.into()
        } else {
            std::env::temp_dir()
        };
        let path = folder.join(format!("kernlink-lock-{}", std::process::id()));
        // Other programs of this host may hold the real lock.
        let socket = format!("kernlink-lock-{}", std::process::id());
        let socket = socket.as_bytes();
        let held = take_both(&path, socket, Duration::ZERO).unwrap();
        match take_both(&path, socket, Duration::from_millis(30)) {
            Err(Error::Locked { holder, .. }) => {
                let pid = holder.map(|holder| holder.pid);
                assert!(
                    pid == Some(std::process::id()) || (pid.is_none() && !memory.is_dir()),
                    "{pid:?}"
                );
            }
            other => panic!("{other:?}"),
        }
        thread::scope(|scope| {
            let waiting = scope.spawn(|| take_both(&path, socket, Duration::from_secs(60)).map(drop));
            drop(held);
            assert_eq!(waiting.join().unwrap(), Ok(()));
        });
        // The socket alone, as the oldest tools take it.
        let address = SocketAddr::from_abstract_name(socket).unwrap();
        let start = Instant::now();
        let only_socket = loop {
            match UnixListener::bind_addr(&address) {
                Ok(socket) => break socket,
                // A program that another test starts has a copy of the released one until it is executed.
                Err(error) => assert!(start.elapsed() < Duration::from_secs(300), "{error}"),
            }
            thread::sleep(RETRY_INTERVAL);
        };
        let error = take_both(&path, socket, Duration::ZERO).unwrap_err();
        assert!(matches!(error, Error::Locked { holder: None, .. }), "{error:?}");
        drop(only_socket);
        fs::remove_file(path).unwrap();
    }
}
