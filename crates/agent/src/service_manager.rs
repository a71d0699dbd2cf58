//! Messages to systemd, for units with `Type=notify`
//! ([sd_notify(3)](https://www.freedesktop.org/software/systemd/man/latest/sd_notify.html)).

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

/// The agent runs.
pub const READY: &str = "READY=1";
/// The agent works: its main thread takes messages.
pub const WATCHDOG: &str = "WATCHDOG=1";
/// The agent ends.
pub const STOPPING: &str = "STOPPING=1";

/// How often the agent reports, until it is ready, that it works.
pub const PROGRESS_INTERVAL: Duration = Duration::from_secs(15);
/// The time within which the service manager must receive another report before it ends the agent.
const EXTENSION: Duration = Duration::from_secs(90);

/// Asks for more time to start, while the agent works but is not ready.
#[must_use]
pub fn extension() -> String {
    format!("EXTEND_TIMEOUT_USEC={}", EXTENSION.as_micros())
}

/// How often the service manager expects [`WATCHDOG`]: half of `WatchdogSec` of the unit. `None`: the unit has no watchdog, or one for another
/// process.
#[must_use]
pub fn watchdog_interval() -> Option<Duration> {
    interval(|name| std::env::var(name).ok(), std::process::id())
}

fn interval(variable: impl Fn(&str) -> Option<String>, process: u32) -> Option<Duration> {
    let is_other = |pid: String| pid.parse() != Ok(process);
    if variable("WATCHDOG_PID").is_some_and(is_other) {
        return None;
    }
    let microseconds: u64 = variable("WATCHDOG_USEC")?.parse().ok()?;
    (microseconds > 1).then(|| Duration::from_micros(microseconds / 2))
}

/// Sends a message to the service manager. Has no effect if the process was not started by one.
pub fn notify(message: &str) {
    let Some(socket) = std::env::var_os("NOTIFY_SOCKET").filter(|socket| !socket.is_empty()) else {
        return;
    };
    if let Err(error) = send(&socket, message) {
        tracing::warn!(%error, "cannot notify the service manager");
    }
}

/// Sends a message and a line that describes the state of the agent.
pub fn notify_status(message: &str, status: &str) {
    // A line feed would begin another field.
    let status = status.replace('\n', " ");
    notify(&format!("{message}\nSTATUS={status}"));
}

/// A name that begins with `@` is that of an abstract socket.
fn send(socket: &OsStr, message: &str) -> io::Result<()> {
    let address = match socket.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(socket)?,
    };
    let sender = UnixDatagram::unbound()?;
    sender.send_to_addr(message.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_reach_a_socket_with_a_path_and_an_abstract_one() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notify");
        let receiver = UnixDatagram::bind(&path).unwrap();
        send(path.as_os_str(), READY).unwrap();
        let mut buffer = [0; 64];
        let length = receiver.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"READY=1");

        let name = format!("kernlink-notify-{}", std::process::id());
        let receiver = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        send(OsStr::new(&format!("@{name}")), STOPPING).unwrap();
        let length = receiver.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"STOPPING=1");
    }

    #[test]
    fn the_watchdog_is_notified_twice_as_often_as_the_unit_requires() {
        let read = |pid: Option<&str>, time: Option<&str>| {
            let variable = |name: &str| if name == "WATCHDOG_PID" { pid } else { time }.map(str::to_owned);
            interval(variable, 7)
        };
        let half = Some(Duration::from_secs(30));
        assert_eq!(read(Some("7"), Some("60000000")), half);
        assert_eq!(read(None, Some("60000000")), half);
        assert_eq!(read(Some("8"), Some("60000000")), None);
        assert_eq!(read(Some("7"), None), None);
        assert_eq!(read(None, Some("0")), None);
    }

    #[test]
    fn a_socket_that_does_not_exist_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        assert!(send(folder.path().join("none").as_os_str(), READY).is_err());
    }
}
