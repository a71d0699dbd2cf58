//! The socket of a service manager.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::{Arc, Mutex};
use std::thread;

use kernlink_kernel_tests::wait;

/// The value of `NOTIFY_SOCKET`. Names of abstract sockets belong to a network namespace.
pub(crate) const SOCKET: &str = "@manager";

/// Receives messages in the network namespace in which it was started.
pub(crate) struct ServiceManager(Arc<Mutex<Vec<String>>>);

impl ServiceManager {
    pub(crate) fn start() -> Self {
        let name = SOCKET.strip_prefix('@').unwrap();
        let socket = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(name).unwrap()).unwrap();
        let messages = Arc::new(Mutex::new(Vec::new()));
        let received = Arc::clone(&messages);
        // It ends with the test program.
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(length) = socket.recv(&mut buffer) {
                let message = String::from_utf8_lossy(&buffer[..length]).into_owned();
                received.lock().unwrap().push(message);
            }
        });
        Self(messages)
    }

    /// Waits until the last message is this one.
    pub(crate) fn wait_for(&self, message: &str) {
        wait::until(|| match self.0.lock().unwrap().clone() {
            messages if messages.last().is_some_and(|last| last == message) => Ok(()),
            messages => Err(format!("{messages:?}")),
        });
    }

    /// How often this message was received.
    pub(crate) fn number_of(&self, message: &str) -> usize {
        let messages = self.0.lock().unwrap();
        messages.iter().filter(|received| *received == message).count()
    }
}
