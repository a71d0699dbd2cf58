//! The lock that keeps two processes from changing legacy tables at the same time.

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

/// Where the tools lock, unless `XTABLES_LOCKFILE` says otherwise. Source: `XT_LOCK_NAME`, `iptables/xshared.h`, 1.8.9.
pub(crate) const LOCK_FILE: &str = "/run/xtables.lock";

/// What tools before 1.4.21 and 1.6.0 locked instead: a name in the abstract socket namespace.
const LOCK_SOCKET: &[u8] = b"xtables";

/// The lock, given back on drop.
#[derive(Debug)]
pub(crate) struct Held {
    _file: Flock<File>,
    _socket: UnixListener,
}

/// How often a held lock is tried again.
const PAUSE: Duration = Duration::from_millis(20);

/// Takes the lock file and then the socket, as a tool with this lock would.
pub(crate) fn take(path: &Path, wait: Duration) -> Result<Held, Error> {
    take_both(path, LOCK_SOCKET, wait)
}

fn take_both(path: &Path, socket: &[u8], wait: Duration) -> Result<Held, Error> {
    let failed = |error: io::Error| Error::NotStarted {
        tool: path.display().to_string(),
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
            Ok(held) => break held,
            Err((_, Errno::EWOULDBLOCK)) if Instant::now() >= deadline => return Err(locked()),
            Err((back, Errno::EWOULDBLOCK | Errno::EINTR)) => file = back,
            Err((_, errno)) => return Err(failed(errno.into())),
        }
        thread::sleep(PAUSE);
    };
    let address = SocketAddr::from_abstract_name(socket).map_err(failed)?;
    loop {
        match UnixListener::bind_addr(&address) {
            Ok(socket) => {
                return Ok(Held {
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
        thread::sleep(PAUSE);
    }
}

/// The process that `/proc/locks` names for the file.
pub(crate) fn holder(path: &Path) -> Option<LockHolder> {
    let file = fs::metadata(path).ok()?;
    let locks = fs::read_to_string("/proc/locks").ok()?;
    let pid = locks
        .lines()
        .find_map(|line| holder_in(line, file.dev(), file.ino()))?;
    let command = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
    let words: Vec<_> = command
        .split(|byte| *byte == 0)
        .filter(|word| !word.is_empty())
        .map(String::from_utf8_lossy)
        .collect();
    let command: String = words.join(" ").chars().take(200).collect();
    Some(LockHolder { pid, command })
}

/// Reads `1: FLOCK  ADVISORY  WRITE 1234 00:1a:5678 0 EOF`. Those that wait have `->` after the number.
fn holder_in(line: &str, device: u64, inode: u64) -> Option<u32> {
    let mut words = line.split_ascii_whitespace().skip(1);
    (words.next() == Some("FLOCK")).then_some(())?;
    let pid = words.nth(2)?.parse().ok()?;
    let mut place = words.next()?.split(':');
    let major_number = u64::from_str_radix(place.next()?, 16).ok()?;
    let minor_number = u64::from_str_radix(place.next()?, 16).ok()?;
    let same =
        major_number == major(device) && minor_number == minor(device) && place.next()?.parse() == Ok(inode);
    // A holder outside our process namespace shows as 0.
    (same && pid != 0).then_some(pid)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_proc_locks_name_the_holder_and_not_those_who_wait() {
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
    fn a_held_lock_is_waited_for_and_its_holder_named() {
        // On a tmpfs where there is one: of an overlay /proc/locks names the file below.
        let memory = Path::new("/dev/shm");
        let folder = if memory.is_dir() {
            memory.into()
        } else {
            std::env::temp_dir()
        };
        let path = folder.join(format!("kernlink-lock-{}", std::process::id()));
        // Others on this host may hold the real one.
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
        // The socket alone, as the oldest tools hold it.
        let address = SocketAddr::from_abstract_name(socket).unwrap();
        let only_socket = UnixListener::bind_addr(&address).unwrap();
        let error = take_both(&path, socket, Duration::ZERO).unwrap_err();
        assert!(matches!(error, Error::Locked { holder: None, .. }), "{error:?}");
        drop(only_socket);
        fs::remove_file(path).unwrap();
    }
}
