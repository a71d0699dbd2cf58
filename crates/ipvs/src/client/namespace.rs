//! The network namespace of a client.

use std::io::Read;
use std::os::linux::fs::MetadataExt;

use kernlink_netlink::{Error, Namespace};

/// The network namespace that a client was opened in. Files of `/proc` are read there and further sockets are opened there.
#[derive(Debug)]
pub(super) struct ClientNamespace {
    namespace: Namespace,
    /// Device and inode; `None` if `/proc` is not readable.
    id: Option<(u64, u64)>,
}

impl ClientNamespace {
    /// The network namespace of the calling thread.
    pub(super) fn current() -> Result<Self, Error> {
        Ok(Self {
            namespace: Namespace::current()?,
            id: current_id(),
        })
    }

    /// Calls `work` in the namespace: on the calling thread if it is in the namespace, otherwise on a new thread.
    pub(super) fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, Error> {
        if self.id.is_some() && self.id == current_id() {
            return Ok(work());
        }
        self.namespace.run(work)
    }
}

/// Device and inode of the calling thread's network namespace.
fn current_id() -> Option<(u64, u64)> {
    let metadata = std::fs::metadata("/proc/thread-self/ns/net").ok()?;
    Some((metadata.st_dev(), metadata.st_ino()))
}

/// Whether the calling thread's network namespace has a local routing table. The kernel creates it when the first interface is set
/// up. `None` if `/proc` is not readable.
pub(super) fn has_local_table() -> Option<bool> {
    let mut file = std::fs::File::open("/proc/thread-self/net/fib_trie").ok()?;
    let mut first = [0];
    file.read(&mut first).ok().map(|length| length != 0)
}
