//! Events as an asynchronous stream.

use std::{
    fmt,
    future::poll_fn,
    io,
    os::fd::{AsFd, OwnedFd},
    pin::Pin,
    task::{Context, Poll},
};

use futures_core::Stream;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use tokio::{
    io::{Interest, unix::AsyncFd},
    runtime::Handle,
};

/// Events as an asynchronous stream on a tokio runtime: an iterator over the events of a socket, which is read when the socket is readable.
///
/// [`next`](Self::next) can be cancelled: no event is lost. The stream ends only when the runtime ends.
pub struct EventStream<E> {
    /// A copy of the descriptor of the socket, so that the iterator remains accessible.
    socket: AsyncFd<OwnedFd>,
    events: E,
}

impl<E: Iterator + AsFd> EventStream<E> {
    /// The events of an iterator with a timeout of zero. With another timeout, [`next`](Self::next) blocks the thread.
    ///
    /// # Errors
    /// The thread is not in a tokio runtime, or the descriptor cannot be copied or registered.
    ///
    /// # Panics
    /// If the runtime was built without its I/O driver (`enable_io`).
    pub fn new(events: E) -> io::Result<Self> {
        // `AsyncFd` panics without a runtime.
        Handle::try_current().map_err(io::Error::other)?;
        let socket = events.as_fd().try_clone_to_owned()?;
        #[allow(
            deprecated,
            reason = "the function in its place is unsafe, for values whose descriptor changes; this one is owned"
        )]
        let socket = AsyncFd::with_interest(socket, Interest::READABLE)?;
        Ok(EventStream { socket, events })
    }

    /// Waits for the next event. `None` if the runtime ends. A loss of events that the kernel reports without a notification is returned with the
    /// next one.
    pub async fn next(&mut self) -> Option<E::Item> {
        poll_fn(|context| self.poll_event(context)).await
    }

    /// The iterator, for example to read everything again after events were lost. Its timeout must remain zero.
    pub fn events_mut(&mut self) -> &mut E {
        &mut self.events
    }

    fn poll_event(&mut self, context: &mut Context<'_>) -> Poll<Option<E::Item>> {
        loop {
            let mut guard = match self.socket.poll_read_ready(context) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Ok(guard)) => guard,
                Poll::Ready(Err(_)) => return Poll::Ready(None),
            };
            // One datagram may have several events: the socket counts as readable until the iterator has none.
            if let Some(event) = self.events.next() {
                return Poll::Ready(Some(event));
            }
            // The iterator also ends at a datagram of another process, behind which there may be others.
            let mut queued = [PollFd::new(self.socket.get_ref().as_fd(), PollFlags::POLLIN)];
            if !matches!(poll(&mut queued, PollTimeout::ZERO), Ok(1..)) {
                guard.clear_ready();
            }
        }
    }
}

impl<E: Iterator + AsFd + Unpin> Stream for EventStream<E> {
    type Item = E::Item;

    fn poll_next(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<E::Item>> {
        self.get_mut().poll_event(context)
    }
}

impl<E: fmt::Debug> fmt::Debug for EventStream<E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EventStream")
            .field("events", &self.events)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::VecDeque,
        io::{Read, Write},
        os::{fd::BorrowedFd, unix::net::UnixStream},
        task::Waker,
    };

    use super::*;

    /// Each byte is an event; several arrive at once.
    struct Bytes {
        socket: UnixStream,
        unread: VecDeque<u8>,
        /// How often the socket was read.
        reads: usize,
    }

    impl Iterator for Bytes {
        type Item = u8;

        fn next(&mut self) -> Option<u8> {
            if self.unread.is_empty() {
                self.reads += 1;
                let mut buffer = [0; 8];
                let length = self.socket.read(&mut buffer).unwrap_or(0);
                self.unread.extend(&buffer[..length]);
            }
            self.unread.pop_front()
        }
    }

    impl AsFd for Bytes {
        fn as_fd(&self) -> BorrowedFd<'_> {
            self.socket.as_fd()
        }
    }

    fn bytes() -> (UnixStream, Bytes) {
        let (sender, socket) = UnixStream::pair().unwrap();
        socket.set_nonblocking(true).unwrap();
        let unread = VecDeque::new();
        (
            sender,
            Bytes {
                socket,
                unread,
                reads: 0,
            },
        )
    }

    #[test]
    fn events_that_arrive_together_and_later_are_returned_in_order() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_io()
            .build()
            .unwrap();
        let (mut sender, events) = bytes();
        runtime.block_on(async {
            let mut stream = EventStream::new(events).unwrap();
            sender.write_all(&[1, 2, 3]).unwrap();
            assert_eq!([stream.next().await, stream.next().await], [Some(1), Some(2)]);
            let later = tokio::task::spawn_blocking(move || sender.write_all(&[4, 5]).map(|()| sender));
            let rest = [stream.next().await, stream.next().await, stream.next().await];
            assert_eq!(rest, [Some(3), Some(4), Some(5)]);
            // Without an event it waits, and does not read again until the socket is readable.
            let mut context = Context::from_waker(Waker::noop());
            assert!(stream.poll_event(&mut context).is_pending());
            let reads = stream.events_mut().reads;
            assert!(stream.poll_event(&mut context).is_pending());
            assert_eq!(stream.events_mut().reads, reads);
            drop(later.await.unwrap().unwrap());
        });
    }

    #[test]
    fn outside_of_a_runtime_there_is_an_error() {
        let (_sender, events) = bytes();
        assert!(EventStream::new(events).is_err());
    }
}
