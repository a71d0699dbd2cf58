//! Messages to systemd, for units with `Type=notify`
//! ([sd_notify(3)](https://www.freedesktop.org/software/systemd/man/latest/sd_notify.html)).

use std::env;
use std::io;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

pub use sd_notify::NotifyState;

/// How often the agent reports, until it is ready, that it works.
pub const PROGRESS_INTERVAL: Duration = Duration::from_secs(15);

/// Asks for more time to start, while the agent works but is not ready: the service manager must receive another report within 90 seconds.
pub const EXTENSION: NotifyState<'static> = NotifyState::ExtendTimeoutUsec(90_000_000);

/// How often the service manager expects [`NotifyState::Watchdog`]: half of `WatchdogSec` of the unit. `None`: the unit has no watchdog, or one for
/// another process.
#[must_use]
pub fn watchdog_interval() -> Option<Duration> {
    let interval = sd_notify::watchdog_enabled()? / 2;
    (!interval.is_zero()).then_some(interval)
}

/// Sends a message to the service manager. Has no effect if the process was not started by one.
pub fn notify(states: &[NotifyState<'_>]) {
    let socket = env::var_os("NOTIFY_SOCKET").unwrap_or_default();
    let sent = match socket.as_bytes().strip_prefix(b"@") {
        _ if socket.is_empty() => Ok(()),
        Some(name) => send_to_abstract(name, states),
        None => sd_notify::notify(states),
    };
    if let Err(error) = sent {
        tracing::warn!(%error, "cannot notify the service manager");
    }
}

/// Sends a message and a line that describes the state of the agent.
pub fn notify_status(state: NotifyState<'_>, status: &str) {
    // A line feed would begin another field.
    notify(&[state, NotifyState::Status(&status.replace('\n', " "))]);
}

/// Sends a message to an abstract socket, which `sd_notify` does not support.
fn send_to_abstract(name: &[u8], states: &[NotifyState<'_>]) -> io::Result<()> {
    let message: String = states.iter().map(|state| format!("{state}\n")).collect();
    let address = SocketAddr::from_abstract_name(name)?;
    let sender = UnixDatagram::unbound()?;
    sender.send_to_addr(message.as_bytes(), &address).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_reach_an_abstract_socket() {
        let name = format!("kernlink-notify-{}", std::process::id());
        let receiver = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        send_to_abstract(
            name.as_bytes(),
            &[NotifyState::Stopping, NotifyState::Status("ends")],
        )
        .unwrap();
        let mut buffer = [0; 64];
        let length = receiver.recv(&mut buffer).unwrap();
        assert_eq!(&buffer[..length], b"STOPPING=1\nSTATUS=ends\n");
        drop(receiver);
        // A program that another test starts has the socket too, until it is executed.
        let is_closed = (0..60_000).any(|_| {
            std::thread::sleep(Duration::from_millis(1));
            send_to_abstract(name.as_bytes(), &[NotifyState::Ready]).is_err()
        });
        assert!(is_closed);
    }
}
