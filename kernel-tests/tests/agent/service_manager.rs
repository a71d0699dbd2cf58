//! The socket of a service manager.

use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::thread;

use kernlink_kernel_tests::wait;

/// Receives messages.
pub(crate) struct ServiceManager {
    /// The value of `NOTIFY_SOCKET`.
    pub(crate) socket: PathBuf,
    messages: Arc<Mutex<Vec<String>>>,
}

impl ServiceManager {
    /// Listens on a socket in a folder.
    pub(crate) fn start(folder: &Path) -> Self {
        let path = folder.join("manager");
        let socket = UnixDatagram::bind(&path).unwrap();
        let messages = Arc::new(Mutex::new(Vec::new()));
        let received = Arc::clone(&messages);
        // It ends with the test program.
        thread::spawn(move || {
            let mut buffer = [0; 4096];
            while let Ok(length) = socket.recv(&mut buffer) {
                let message = String::from_utf8_lossy(&buffer[..length]);
                received.lock().unwrap().push(message.trim_end().to_owned());
            }
        });
        Self {
            socket: path,
            messages,
        }
    }

    /// Waits until the last message is this one.
    pub(crate) fn wait_for(&self, message: &str) {
        wait::until(|| match self.messages.lock().unwrap().clone() {
            messages if messages.last().is_some_and(|last| last == message) => Ok(()),
            messages => Err(format!("{messages:?}")),
        });
    }

    /// How often this message was received.
    pub(crate) fn number_of(&self, message: &str) -> usize {
        let messages = self.messages.lock().unwrap();
        messages.iter().filter(|received| *received == message).count()
    }
}
