//! Notifications of multicast groups.

use std::marker::PhantomData;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use netlink_packet_core::{NLMSG_DONE, NLMSG_ERROR, NLMSG_NOOP, NLMSG_OVERRUN};

use crate::message::{self, Message};
use crate::transport::{KernelSocket, Transport};
use crate::{Error, FilterInstruction, Namespace, Protocol};

/// A socket that hears the kernel's notifications. Requests need a
/// [`Connection`](crate::Connection) of their own.
#[derive(Debug)]
pub struct Subscription {
    socket: KernelSocket,
    buffer: Box<[u8]>,
}

/// What a subscription delivers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Event<T> {
    /// Something happened.
    Notification(T),
    /// The receive buffer was full and notifications were lost, nobody knows how many: whoever
    /// keeps a picture of the state has to list it anew.
    Overrun,
}

/// Bytes of the buffer that one datagram is read into.
const BUFFER: usize = 64 << 10;

impl Subscription {
    /// Subscribes to multicast groups, by number, in the calling thread's network namespace.
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

    /// Subscribes in another network namespace; the calling thread stays where it is.
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

    /// Attaches a socket filter (`SO_ATTACH_FILTER`) in place of an earlier one. The kernel runs it on each datagram, from
    /// the netlink header on, before the datagram is counted against the receive buffer
    /// ([`do_one_broadcast`](https://github.com/torvalds/linux/blob/v6.12/net/netlink/af_netlink.c)). It drops those for
    /// which the program returns 0, and cuts the others after as many bytes as the program returns.
    ///
    /// A datagram that was queued before is not filtered.
    ///
    /// # Errors
    /// [`Error::FilterLength`]; [`Error::Socket`] with `EINVAL` for a program that the kernel does not accept, and with
    /// `ENOMEM` for one that takes more memory than `net.core.optmem_max` bytes, after translation to the kernel's own
    /// instructions of 8 bytes each
    /// ([`__sk_filter_charge`](https://github.com/torvalds/linux/blob/v6.12/net/core/filter.c)).
    #[doc(alias = "SO_ATTACH_FILTER")]
    pub fn attach_filter(&mut self, program: &[FilterInstruction]) -> Result<(), Error> {
        self.socket.attach_filter(program)
    }

    /// Whether a notification that this subscription loses, because its receive buffer is full, makes the sending part of the
    /// kernel fail (`NETLINK_BROADCAST_ERROR`,
    /// [`netlink.h`](https://github.com/torvalds/linux/blob/v6.12/include/uapi/linux/netlink.h)). Off unless set.
    ///
    /// What follows depends on the sender: connection tracking keeps what it could not send and sends it again, most others
    /// ignore the failure.
    ///
    /// # Errors
    /// [`Error::Socket`] if the kernel refuses.
    #[doc(alias = "NETLINK_BROADCAST_ERROR")]
    pub fn set_broadcast_error(&mut self, enabled: bool) -> Result<(), Error> {
        self.socket.set_broadcast_error(enabled)
    }

    /// Whether losses are *not* reported (`NETLINK_NO_ENOBUFS`,
    /// [`netlink.h`](https://github.com/torvalds/linux/blob/v6.12/include/uapi/linux/netlink.h)): there is no
    /// [`Event::Overrun`], and a full receive buffer takes the next notification as soon as it has room, not only after it was
    /// read empty. Off unless set.
    ///
    /// # Errors
    /// [`Error::Socket`] if the kernel refuses.
    #[doc(alias = "NETLINK_NO_ENOBUFS")]
    pub fn set_no_enobufs(&mut self, enabled: bool) -> Result<(), Error> {
        self.socket.set_no_enobufs(enabled)
    }

    /// Asks for a receive buffer of this many bytes, which the kernel doubles; without
    /// `CAP_NET_ADMIN` at most `net.core.rmem_max`. 4 MiB are asked for unless set.
    ///
    /// # Errors
    /// [`Error::ReceiveBuffer`] for more than 1 073 741 823 bytes.
    pub fn set_receive_buffer(&mut self, bytes: usize) -> Result<(), Error> {
        self.socket.set_receive_buffer(bytes)
    }

    /// Turns the subscription into an iterator over what `decode` makes of the notifications
    /// (`None` for those it does not want).
    ///
    /// The iterator ends when nothing came for `timeout` (`None` waits for ever, zero takes what
    /// is queued); calling `next` again then goes on waiting.
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
    /// For `poll`: readable when a notification, or the news of an overrun, waits.
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
    /// Of the subscription's buffer, what is left of the datagram read last.
    unread: Range<usize>,
    item: PhantomData<fn() -> T>,
}

impl<T, F> Events<T, F> {
    /// Changes how long `next` waits; see [`Subscription::events`].
    pub fn set_timeout(&mut self, timeout: Option<Duration>) {
        self.timeout = timeout;
    }

    /// Asks for a receive buffer of this many bytes, as [`Subscription::set_receive_buffer`].
    pub fn set_receive_buffer(&mut self, bytes: usize) -> Result<(), Error> {
        self.subscription.set_receive_buffer(bytes)
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
                // An error is about one message: those behind it come next.
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

    /// Events of a datagram that came already, and then of nothing.
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
    fn a_message_that_cannot_be_read_hides_none_of_its_datagram() {
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
    fn a_filter_has_a_length_that_the_kernel_takes() {
        // BPF_RET | BPF_K, everything.
        let accept = FilterInstruction::new(0x06, u32::MAX);
        let mut subscription = Subscription::open(Protocol::Generic, &[]).unwrap();
        assert_eq!(subscription.attach_filter(&[accept]), Ok(()));
        // 65 537 would be 1 in the 16 bits that the length has.
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
    fn a_datagram_that_is_cut_ends_with_an_error() {
        let mut datagram = messages(&[0x22, 0x23]);
        datagram.truncate(datagram.len() - 3);
        let mut events = events_of(&datagram);
        assert_eq!(events.next(), Some(Ok(Event::Notification(0x22))));
        assert!(matches!(events.next(), Some(Err(Error::Malformed { .. }))));
        assert_eq!(events.next(), None);
    }
}
