//! A thread that is awaited when it is dropped, but not for ever.

use std::io;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// A thread that may be blocked, such as by a kubeconfig file in a file system that does not answer.
#[derive(Debug)]
pub(super) struct AwaitedThread {
    handle: Option<JoinHandle<()>>,
    /// Disconnected when the thread has ended.
    ended: Receiver<()>,
    /// The longest time to wait for its end.
    limit: Duration,
}

impl AwaitedThread {
    /// Starts a thread with a name.
    ///
    /// # Errors
    /// If the system has no resources for it.
    pub(super) fn spawn(
        name: &str,
        limit: Duration,
        work: impl FnOnce() + Send + 'static,
    ) -> io::Result<Self> {
        let (sender, ended) = mpsc::channel();
        let handle = thread::Builder::new().name(name.to_owned()).spawn(move || {
            // Dropped at the end, also after a panic.
            let _sender = sender;
            work();
        })?;
        Ok(Self {
            handle: Some(handle),
            ended,
            limit,
        })
    }
}

impl Drop for AwaitedThread {
    fn drop(&mut self) {
        let is_blocked = self.ended.recv_timeout(self.limit) == Err(RecvTimeoutError::Timeout);
        if let Some(handle) = self.handle.take().filter(|_| !is_blocked) {
            // A panic was printed by its hook.
            let _ = handle.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_does_not_end_is_left() {
        let (sender, receiver) = mpsc::channel::<()>();
        let thread = AwaitedThread::spawn("test", Duration::from_millis(1), move || {
            let _ = receiver.recv();
        });
        drop(thread.unwrap());
        // It still runs.
        sender.send(()).unwrap();
    }

    #[test]
    fn a_thread_that_ends_is_awaited() {
        let (sender, receiver) = mpsc::channel();
        let thread = AwaitedThread::spawn("test", Duration::MAX, move || {
            let _ = sender.send(());
        });
        drop(thread.unwrap());
        receiver.try_recv().unwrap();
    }
}
