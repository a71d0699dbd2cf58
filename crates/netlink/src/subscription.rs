//! Subscriptions to multicast groups.

use std::marker::PhantomData;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use netlink_packet_core::{NLMSG_DONE, NLMSG_ERROR, NLMSG_NOOP, NLMSG_OVERRUN};

use crate::message::{self, Message};
use crate::transport::{KernelSocket, Transport};
use crate::{Error, FilterInstruction, Namespace, Protocol};

/// A socket that receives the notifications of multicast groups. Requests need a separate
/// [`Connection`](crate::Connection).
#[derive(Debug)]
pub struct Subscription {
    socket: KernelSocket,
    buffer: Box<[u8]>,
}

/// An item of a subscription.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event<T> {
    /// A decoded notification.
    Notification(T),
    /// The receive buffer was full and an unknown number of notifications was lost (`ENOBUFS`). A copy of
    /// the kernel's state has to be read again.
    Overrun,
}

/// Length in bytes of the buffer for one datagram.
const BUFFER: usize = 64 << 10;

impl Subscription {
    /// Subscribes to multicast groups, given by number, in the calling thread's network namespace.
    pub fn open(protocol: Protocol, groups: &[u32]) -> Result<Self, Error> {
        let socket = KernelSocket::open(protocol)?;
        for group in groups {
            socket.join_group(*group)?;
        }
        Ok(Subscription {
            socket,
            buffer: vec![0; BUFFER].into_boxed_slice(),
        })
    }

    /// Subscribes in another network namespace. The calling thread does not change its namespace.
    pub fn open_in(protocol: Protocol, groups: &[u32], namespace: &Namespace) -> Result<Self, Error> {
        namespace.run(|| Self::open(protocol, groups))?
    }

    /// Subscribes to one more multicast group. To receive nothing before the subscription is configured, open it without
    /// groups, configure it and join the groups last.
    ///
    /// # Errors
    /// [`Error::Socket`] if the kernel refuses: the group does not exist, or the caller may not listen to it.
    pub fn join_group(&mut self, group: u32) -> Result<(), Error> {
        self.socket.join_group(group)
    }

    /// Attaches a socket filter (`SO_ATTACH_FILTER`) in place of an earlier one. The kernel runs it on each datagram, starting
    /// at the netlink header, before the datagram is charged to the receive buffer
    /// ([`do_one_broadcast`](https://github.com/torvalds/linux/blob/v6.12/net/netlink/af_netlink.c)). The kernel drops a datagram
    /// if the program returns 0, otherwise it truncates it to the returned number of bytes.
    ///
    /// Datagrams that are already queued are not filtered.
    ///
    /// # Errors
    /// [`Error::FilterLength`]; [`Error::Socket`] with `EINVAL` for a program that the kernel does not accept, and with
    /// `ENOMEM` for one that needs more than `net.core.optmem_max` bytes after translation to the kernel's internal
    /// instructions of 8 bytes each
    /// ([`__sk_filter_charge`](https://github.com/torvalds/linux/blob/v6.12/net/core/filter.c)).
    #[doc(alias = "SO_ATTACH_FILTER")]
    pub fn attach_filter(&mut self, program: &[FilterInstruction]) -> Result<(), Error> {
        self.socket.attach_filter(program)
    }

    /// Whether the sender inside the kernel gets an error if this subscription loses a notification because its receive buffer is
    /// full (`NETLINK_BROADCAST_ERROR`,
    /// [`netlink.h`](https://github.com/torvalds/linux/blob/v6.12/include/uapi/linux/netlink.h)). Default: off.
    ///
    /// The effect depends on the sender: connection tracking keeps the event and sends it again, most others
    /// ignore the error.
    ///
    /// # Errors
    /// [`Error::Socket`] if the kernel refuses.
    #[doc(alias = "NETLINK_BROADCAST_ERROR")]
    pub fn set_broadcast_error(&mut self, enabled: bool) -> Result<(), Error> {
        self.socket.set_broadcast_error(enabled)
    }

    /// Whether losses are *not* reported (`NETLINK_NO_ENOBUFS`,
    /// [`netlink.h`](https://github.com/torvalds/linux/blob/v6.12/include/uapi/linux/netlink.h)). If set, there is no
    /// [`Event::Overrun`], and a full receive buffer accepts the next notification as soon as there is space for it; otherwise
    /// only after it was emptied. Default: off.
    ///
    /// # Errors
    /// [`Error::Socket`] if the kernel refuses.
    #[doc(alias = "NETLINK_NO_ENOBUFS")]
    pub fn set_no_enobufs(&mut self, enabled: bool) -> Result<(), Error> {
        self.socket.set_no_enobufs(enabled)
    }

    /// Sets the size of the receive buffer in bytes (`SO_RCVBUF`), which the kernel doubles; without
    /// `CAP_NET_ADMIN` at most `net.core.rmem_max`. Default: 4 MiB.
    ///
    /// # Errors
    /// [`Error::ReceiveBuffer`] for more than 1 073 741 823 bytes.
    pub fn set_receive_buffer(&mut self, bytes: usize) -> Result<(), Error> {
        self.socket.set_receive_buffer(bytes)
    }

    /// Converts the subscription to an iterator over decoded notifications. `decode` returns `None` for
    /// notifications to ignore.
    ///
    /// `next` returns `None` if nothing arrived within `timeout` (`None` waits forever, zero reads only what
    /// is queued). It can be called again later.
    pub fn events<T, E, F>(self, timeout: Option<Duration>, decode: F) -> Events<T, F>
    where
        E: From<Error>,
        F: FnMut(Message<'_>) -> Result<Option<T>, E>,
    {
        Events {
            subscription: self,
            timeout,
            decode,
            unread: 0..0,
            item: PhantomData,
        }
    }
}

impl AsFd for Subscription {
    /// For `poll`: readable when a notification or an overrun is pending.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Iterator over decoded notifications; see [`Subscription::events`].
#[derive(Debug)]
pub struct Events<T, F> {
    subscription: Subscription,
    timeout: Option<Duration>,
    decode: F,
    /// The unread part of the last datagram in the subscription's buffer.
    unread: Range<usize>,
    item: PhantomData<fn() -> T>,
}

impl<T, F> Events<T, F> {
    /// Changes the timeout of `next`; see [`Subscription::events`].
    pub fn set_timeout(&mut self, timeout: Option<Duration>) {
        self.timeout = timeout;
    }

    /// Sets the size of the receive buffer in bytes; see [`Subscription::set_receive_buffer`].
    pub fn set_receive_buffer(&mut self, bytes: usize) -> Result<(), Error> {
        self.subscription.set_receive_buffer(bytes)
    }
}

#[cfg(feature = "tokio")]
impl<T, E, F> Events<T, F>
where
    E: From<Error>,
    F: FnMut(Message<'_>) -> Result<Option<T>, E>,
{
    /// The events as an asynchronous stream, instead of the timeout.
    ///
    /// # Errors
    /// As [`EventStream::new`](crate::EventStream::new).
    ///
    /// # Panics
    /// As [`EventStream::new`](crate::EventStream::new).
    pub fn into_stream(mut self) -> std::io::Result<crate::EventStream<Self>> {
        self.set_timeout(Some(Duration::ZERO));
        crate::EventStream::new(self)
    }
}

impl<T, F> AsFd for Events<T, F> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.subscription.as_fd()
    }
}

impl<T, E, F> Iterator for Events<T, F>
where
    E: From<Error>,
    F: FnMut(Message<'_>) -> Result<Option<T>, E>,
{
    type Item = Result<Event<T>, E>;

    fn next(&mut self) -> Option<Self::Item> {
        let deadline = self
            .timeout
            .and_then(|timeout| Instant::now().checked_add(timeout));
        loop {
            let Subscription { socket, buffer } = &mut self.subscription;
            let mut rest = buffer.get(self.unread.clone()).unwrap_or(&[]);
            if let Some(received) = message::take_message(&mut rest) {
                // An error concerns one message; the following ones are returned by the next calls.
                self.unread.start = self.unread.end - rest.len();
                let received = match received {
                    Ok(received) => received,
                    Err(error) => return Some(Err(error.into())),
                };
                match received.message_type {
                    NLMSG_NOOP | NLMSG_ERROR | NLMSG_DONE => {}
                    NLMSG_OVERRUN => return Some(Ok(Event::Overrun)),
                    _ => {
                        if let Some(item) = (self.decode)(received).transpose() {
                            return Some(item.map(Event::Notification));
                        }
                    }
                }
                continue;
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            match socket.receive(buffer, left) {
                Ok(Some(length)) => self.unread = 0..length,
                Ok(None) => return None,
                Err(Error::Overrun) => return Some(Ok(Event::Overrun)),
                Err(error) => return Some(Err(error.into())),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{append, set_sequence};

    /// The events of a datagram that was already received.
    fn events_of(
        datagram: &[u8],
    ) -> Events<u16, impl FnMut(Message<'_>) -> Result<Option<u16>, Error> + use<>> {
        let mut subscription = Subscription::open(Protocol::Generic, &[]).unwrap();
        subscription.buffer[..datagram.len()].copy_from_slice(datagram);
        let mut events = subscription.events(Some(Duration::ZERO), |message| match message.message_type {
            0x20 => Err(Error::Malformed { what: "item" }),
            0x21 => Ok(None),
            kind => Ok(Some(kind)),
        });
        events.unread = 0..datagram.len();
        events
    }

    fn messages(kinds: &[u16]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for kind in kinds {
            let start = bytes.len();
            append(&mut bytes, *kind, 0, |w| {
                w.ne_u32(1, 7);
            })
            .unwrap();
            set_sequence(&mut bytes[start..], 0, 0);
        }
        bytes
    }

    #[test]
    fn an_invalid_message_does_not_affect_the_others_of_its_datagram() {
        let datagram = messages(&[0x22, 0x20, 0x21, NLMSG_OVERRUN, 0x23]);
        let all: Vec<_> = events_of(&datagram).collect();
        let expected = [
            Ok(Event::Notification(0x22)),
            Err(Error::Malformed { what: "item" }),
            Ok(Event::Overrun),
            Ok(Event::Notification(0x23)),
        ];
        assert_eq!(all, expected);
    }

    #[test]
    fn a_filter_of_an_invalid_length_is_refused() {
        // BPF_RET | BPF_K: accept the whole datagram.
        let accept = FilterInstruction::new(0x06, u32::MAX);
        let mut subscription = Subscription::open(Protocol::Generic, &[]).unwrap();
        assert_eq!(subscription.attach_filter(&[accept]), Ok(()));
        // 65 537 would become 1 in the 16-bit length.
        for length in [0, 4097, 65_537] {
            assert_eq!(
                subscription.attach_filter(&vec![accept; length]),
                Err(Error::FilterLength { instructions: length })
            );
        }
        assert_eq!(
            Error::FilterLength { instructions: 4097 }.to_string(),
            "invalid socket filter of 4097 instructions; valid: 1 to 4096 (BPF_MAXINSNS)"
        );
    }

    #[test]
    fn the_kernel_refuses_a_filter_that_does_not_end() {
        // BPF_LD | BPF_W | BPF_ABS.
        let load = FilterInstruction::new(0x20, 0);
        let mut subscription = Subscription::open(Protocol::Generic, &[]).unwrap();
        let expected = Error::Socket {
            call: "attach a filter to",
            errno: crate::Errno::EINVAL,
        };
        assert_eq!(subscription.attach_filter(&[load]), Err(expected));
    }

    #[test]
    fn a_truncated_datagram_ends_with_an_error() {
        let mut datagram = messages(&[0x22, 0x23]);
        datagram.truncate(datagram.len() - 3);
        let mut events = events_of(&datagram);
        assert_eq!(events.next(), Some(Ok(Event::Notification(0x22))));
        assert!(matches!(events.next(), Some(Err(Error::Malformed { .. }))));
        assert_eq!(events.next(), None);
    }
}
