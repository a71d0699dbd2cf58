//! Messages to systemd, for units with `Type=notify`
//! ([sd_notify(3)](https://www.freedesktop.org/software/systemd/man/latest/sd_notify.html)).

use std::ffi::OsStr;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};

/// The agent runs.
pub const READY: &str = "READY=1";
/// The agent ends.
pub const STOPPING: &str = "STOPPING=1";

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
    fn a_socket_that_does_not_exist_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        assert!(send(folder.path().join("none").as_os_str(), READY).is_err());
    }
}
