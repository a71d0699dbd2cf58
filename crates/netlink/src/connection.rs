//! Requests and answers on one socket.

mod transaction;

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::time::Duration;

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_DUMP, NLM_F_DUMP_INTR, NLMSG_DONE, NLMSG_ERROR, NLMSG_NOOP, NLMSG_OVERRUN,
};
use nix::sys::socket::{NetlinkAddr, getsockname};

pub use self::transaction::RefusedRequest;
use crate::message::{self, Message};
use crate::transport::{KernelSocket, Transport};
use crate::{
    AttributeWriter, Batch, Errno, Error, Namespace, Protocol, Refusal, Reply, list_until_consistent,
};

/// A blocking netlink connection to the kernel.
///
/// Executes one request at a time (`&mut self`). A connection may be moved between threads; it
/// remains in the network namespace in which it was opened.
#[derive(Debug)]
pub struct Connection {
    transport: Box<dyn Transport>,
    /// Its size never changes: the kernel chooses the size of a dump's datagrams by the largest buffer that the socket has
    /// passed to `recv`.
    buffer: Box<[u8]>,
    scratch: Vec<u8>,
    sequence: u32,
    timeout: Option<Duration>,
    /// Sequence number of a dump that was dropped before its end; the next request reads the rest.
    unread_dump: Option<u32>,
    warnings: Vec<Box<str>>,
}

/// Length of the receive buffer in bytes. A dump's datagrams have up to 32 KiB; an error message that repeats a
/// request with one attribute of maximum length has a little over 64 KiB.
const BUFFER: usize = 128 << 10;

/// Default of [`Connection::set_timeout`]. The kernel usually answers at once, but may have to load a module or wait for a
/// lock.
const TIMEOUT: Duration = Duration::from_secs(30);

/// Number of attempts at a dump that is interrupted each time.
const DUMP_ATTEMPTS: u32 = 10;

/// Maximum number of warnings kept for [`Connection::take_warnings`].
const WARNINGS: usize = 64;

impl Connection {
    /// Opens a connection in the calling thread's network namespace.
    ///
    /// Enables extended and capped acknowledgements (`NETLINK_EXT_ACK`, `NETLINK_CAP_ACK`), and for
    /// [`Protocol::Route`] strict checking (`NETLINK_GET_STRICT_CHK`), each if the kernel supports it.
    pub fn open(protocol: Protocol) -> Result<Self, Error> {
        Ok(Self::with_transport(Box::new(KernelSocket::open(protocol)?)))
    }

    /// Opens a connection in another network namespace. The calling thread does not change its namespace.
    pub fn open_in(protocol: Protocol, namespace: &Namespace) -> Result<Self, Error> {
        namespace.run(|| Self::open(protocol))?
    }

    pub(crate) fn with_transport(transport: Box<dyn Transport>) -> Self {
        Connection {
            transport,
            buffer: vec![0; BUFFER].into_boxed_slice(),
            scratch: Vec::new(),
            sequence: 0,
            timeout: Some(TIMEOUT),
            unread_dump: None,
            warnings: Vec::new(),
        }
    }

    /// Sets the time to wait for each datagram of an answer before [`Error::TimedOut`]. `None` waits forever, zero reads only
    /// what is already queued. Default: 30 seconds. Signals do not prolong it.
    ///
    /// # Errors
    /// None at present.
    pub fn set_timeout(&mut self, timeout: Option<Duration>) -> Result<(), Error> {
        self.timeout = timeout;
        Ok(())
    }

    /// The time to wait for each datagram of an answer; see [`set_timeout`](Self::set_timeout).
    #[must_use]
    pub fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    /// Takes the warnings that the kernel sent for executed requests (extended acknowledgements of success), oldest
    /// first. At most 64 are kept between two calls; later ones are dropped. In a batch only the last request of each send is
    /// acknowledged, so there are no warnings for the others.
    pub fn take_warnings(&mut self) -> Vec<Box<str>> {
        std::mem::take(&mut self.warnings)
    }

    /// Sends one request and waits for its acknowledgement (`NLM_F_ACK`).
    ///
    /// `flags` are `NLM_F_*` bits in addition to `NLM_F_REQUEST` and `NLM_F_ACK`.
    ///
    /// # Errors
    /// [`Error::Refused`] with the kernel's reason, or an error of the socket.
    pub fn execute_one(
        &mut self,
        message_type: u16,
        flags: u16,
        write: impl FnOnce(&mut AttributeWriter<'_>),
    ) -> Result<(), Error> {
        self.request(message_type, flags, write, |_| Ok::<_, Error>(None::<()>))
            .map(drop)
    }

    /// Sends one request and calls `decode` with every message of the answer. `decode` returns `None`
    /// for messages to ignore. The answer ends with the kernel's acknowledgement.
    ///
    /// # Errors
    /// [`Error::Refused`] with the kernel's reason, an error of the socket, or the first
    /// error of `decode`.
    pub fn request<T, E: From<Error>>(
        &mut self,
        message_type: u16,
        flags: u16,
        write: impl FnOnce(&mut AttributeWriter<'_>),
        mut decode: impl FnMut(Message<'_>) -> Result<Option<T>, E>,
    ) -> Result<Vec<T>, E> {
        self.finish_unread_dump()?;
        let sequence = self.send_one(message_type, flags | NLM_F_ACK, write)?;
        let mut items = Vec::new();
        let mut first_error = None;
        loop {
            let Some(length) = self.transport.receive(&mut self.buffer, self.timeout)? else {
                return Err(Error::TimedOut.into());
            };
            let mut rest = self.buffer.get(..length).unwrap_or(&[]);
            while let Some(received) = message::take_message(&mut rest) {
                let received = received?;
                if received.sequence != sequence {
                    continue;
                }
                match received.message_type {
                    NLMSG_NOOP => {}
                    NLMSG_ERROR | NLMSG_DONE => {
                        let acknowledgement = message::acknowledgement(&received)?;
                        let warning = acknowledgement.outcome.map_err(Error::Refused)?;
                        keep_warning(&mut self.warnings, warning);
                        return first_error.map_or(Ok(items), Err);
                    }
                    NLMSG_OVERRUN => return Err(Error::Overrun.into()),
                    // The answer is read to its end even after an error of `decode`.
                    _ => match decode(received) {
                        Ok(item) => items.extend(item),
                        Err(error) => drop(first_error.get_or_insert(error)),
                    },
                }
            }
        }
    }

    /// Starts a dump and returns an iterator over its decoded messages. Only one datagram is in memory
    /// at a time. If the iterator is dropped before the end, the next request reads and discards the rest of the dump.
    ///
    /// A dump that the kernel reports as interrupted (`NLM_F_DUMP_INTR`) ends with [`Error::DumpInterrupted`]: the items
    /// before it are a mixture of the states before and after a change. IPVS, ipset and conntrack never set this flag;
    /// their dumps have to be checked by other means, see [`list_until_consistent`].
    pub fn dump<T, E, F>(
        &mut self,
        message_type: u16,
        flags: u16,
        write: impl FnOnce(&mut AttributeWriter<'_>),
        decode: F,
    ) -> Result<Dump<'_, F>, Error>
    where
        E: From<Error>,
        F: FnMut(Message<'_>) -> Result<Option<T>, E>,
    {
        self.finish_unread_dump()?;
        let sequence = self.send_one(message_type, flags | NLM_F_DUMP, write)?;
        self.unread_dump = Some(sequence);
        Ok(Dump {
            connection: self,
            decode,
            sequence,
            received: 0..0,
            is_finished: false,
            was_interrupted: false,
        })
    }

    /// Returns all items of a dump. Repeats the dump if the kernel reports that it was interrupted by a change; at most ten
    /// attempts.
    ///
    /// # Errors
    /// [`Error::DumpInterrupted`] if every attempt was interrupted, the first error of `decode`,
    /// [`Error::Refused`], or an error of the socket.
    pub fn dump_all<T, E: From<Error>>(
        &mut self,
        message_type: u16,
        flags: u16,
        write: impl Fn(&mut AttributeWriter<'_>),
        mut decode: impl FnMut(Message<'_>) -> Result<Option<T>, E>,
    ) -> Result<Vec<T>, E> {
        let listing = list_until_consistent(DUMP_ATTEMPTS, |_| {
            let mut items = Vec::new();
            let mut dump = self.dump(message_type, flags, &write, &mut decode)?;
            while let Some(item) = dump.next_item() {
                items.push(item?);
            }
            let is_consistent = !dump.was_interrupted;
            if !is_consistent {
                // Not kept during the next attempt.
                items = Vec::new();
            }
            Ok::<_, E>((items, is_consistent))
        })?;
        if listing.is_consistent {
            Ok(listing.value)
        } else {
            let attempts = listing.attempts;
            Err(Error::DumpInterrupted { attempts }.into())
        }
    }

    /// Executes the requests of a batch in order, in few system calls, and returns one outcome for
    /// each, in order. A refused request does not stop the following ones.
    ///
    /// Each send is small enough that the kernel's answers fit the receive buffer even if all requests are
    /// refused. Only the last request of a send has `NLM_F_ACK`: the kernel reports
    /// refusals also without it, so a request without an answer before the last acknowledgement succeeded. If answers are
    /// lost nevertheless, the outcome of the requests concerned is [`Error::Overrun`], never success.
    ///
    /// After any other loss of answers (such as [`Error::TimedOut`]) nothing more of the batch is sent; the outcome of the
    /// remaining requests is [`Error::NotSent`].
    ///
    /// If the caller lacks `CAP_NET_ADMIN`, netfilter refuses a whole send but reports it for the first request only
    /// ([`nfnetlink_rcv`](https://github.com/torvalds/linux/blob/v6.12/net/netfilter/nfnetlink.c#L647)). All requests of the
    /// send then have this refusal as their outcome.
    pub fn execute(&mut self, batch: &mut Batch) -> Vec<Result<(), Error>> {
        self.execute_with(batch, |_, _| {})
    }

    /// As [`execute`](Self::execute); calls `observe` with every reply and the index of its request in the batch.
    pub fn execute_with(
        &mut self,
        batch: &mut Batch,
        mut observe: impl FnMut(usize, Reply<'_>),
    ) -> Vec<Result<(), Error>> {
        let mut outcomes = vec![Ok(()); batch.len()];
        if let Err(error) = self.finish_unread_dump() {
            outcomes.fill(Err(error));
            return outcomes;
        }
        let limits = self.transport.limits();
        let mut first = 0;
        while first < batch.len() {
            let count = batch.chunk(first, limits.requests, limits.bytes);
            let range = first..first + count;
            first = range.end;
            let Some(chunk) = outcomes.get_mut(range.clone()) else {
                break;
            };
            if !self.execute_chunk(batch, range.start, chunk, &mut observe) {
                for outcome in outcomes.iter_mut().skip(first) {
                    *outcome = Err(Error::NotSent);
                }
                break;
            }
        }
        outcomes
    }

    /// Executes one send. Returns whether the next one may be sent.
    fn execute_chunk(
        &mut self,
        batch: &mut Batch,
        first: usize,
        outcomes: &mut [Result<(), Error>],
        observe: &mut impl FnMut(usize, Reply<'_>),
    ) -> bool {
        let sequence = self.take_sequences(outcomes.len());
        let bounds = batch.start(first)..batch.start(first + outcomes.len());
        for index in 0..outcomes.len() {
            let message = batch.start(first + index)..batch.start(first + index + 1);
            let more_flags = if index + 1 == outcomes.len() { NLM_F_ACK } else { 0 };
            if let Some(message) = batch.bytes.get_mut(message) {
                message::set_sequence(message, sequence.wrapping_add(index as u32), more_flags);
            }
        }
        let sent = self.transport.send(batch.bytes.get(bounds).unwrap_or(&[]));
        if let Err(error) = sent {
            outcomes.fill(Err(error));
            return true;
        }
        let mut answered = vec![false; outcomes.len()];
        let Err(error) = self.read_outcomes(sequence, first, outcomes, &mut answered, observe) else {
            return true;
        };
        for (outcome, _) in outcomes
            .iter_mut()
            .zip(&answered)
            .filter(|(_, answered)| !**answered)
        {
            *outcome = Err(error.clone());
        }
        matches!(error, Error::Refused(_) | Error::Overrun)
    }

    /// Reads until the last request of a chunk is acknowledged or refused. An error applies to the
    /// requests that are not `answered` by then.
    fn read_outcomes(
        &mut self,
        sequence: u32,
        first: usize,
        outcomes: &mut [Result<(), Error>],
        answered: &mut [bool],
        observe: &mut impl FnMut(usize, Reply<'_>),
    ) -> Result<(), Error> {
        let mut failure = Ok(());
        // The refusal of the first request while it is the only answer: it may apply to the whole send.
        let mut refused_first: Option<Refusal> = None;
        loop {
            // What was queued before an overrun can still be read, but the last acknowledgement may be lost.
            // After a refusal of the first request, the other answers are either queued already or do not come: the kernel
            // processes all requests before `send` returns.
            let waits = failure.is_ok() && refused_first.is_none();
            let timeout = if waits { self.timeout } else { Some(Duration::ZERO) };
            let length = match self.transport.receive(&mut self.buffer, timeout) {
                Ok(Some(length)) => length,
                Ok(None) => {
                    failure?;
                    return Err(refused_first.map_or(Error::TimedOut, Error::Refused));
                }
                Err(Error::Overrun) => {
                    failure = Err(Error::Overrun);
                    continue;
                }
                Err(error) => return Err(error),
            };
            let mut rest = self.buffer.get(..length).unwrap_or(&[]);
            while let Some(received) = message::take_message(&mut rest) {
                let received = received?;
                let index = received.sequence.wrapping_sub(sequence) as usize;
                let (Some(outcome), Some(answered)) = (outcomes.get_mut(index), answered.get_mut(index))
                else {
                    continue;
                };
                refused_first = None;
                match received.message_type {
                    NLMSG_NOOP => continue,
                    NLMSG_ERROR | NLMSG_DONE => {
                        let acknowledgement = message::acknowledgement(&received)?;
                        *answered = true;
                        match acknowledgement.outcome {
                            Ok(warning) => keep_warning(&mut self.warnings, warning),
                            Err(refusal) => {
                                let reply = Reply::Refused {
                                    refusal: &refusal,
                                    echo: acknowledgement.echo,
                                };
                                observe(first + index, reply);
                                if index == 0 && refusal.errno == Errno::EPERM {
                                    refused_first = Some(refusal.clone());
                                }
                                *outcome = Err(Error::Refused(refusal));
                            }
                        }
                        if index + 1 == outcomes.len() {
                            return failure;
                        }
                    }
                    _ => observe(first + index, Reply::Message(received)),
                }
            }
        }
    }

    fn send_one(
        &mut self,
        message_type: u16,
        flags: u16,
        write: impl FnOnce(&mut AttributeWriter<'_>),
    ) -> Result<u32, Error> {
        let sequence = self.take_sequences(1);
        self.scratch.clear();
        message::append(&mut self.scratch, message_type, flags, write)?;
        message::set_sequence(&mut self.scratch, sequence, 0);
        self.transport.send(&self.scratch)?;
        Ok(sequence)
    }

    /// The first of `count` consecutive sequence numbers, none of which is 0, the sequence number of
    /// notifications.
    fn take_sequences(&mut self, count: usize) -> u32 {
        let count = u32::try_from(count).unwrap_or(u32::MAX);
        let first = match self.sequence.checked_add(1) {
            Some(first) if first.checked_add(count).is_some() => first,
            _ => 1,
        };
        self.sequence = first.saturating_add(count.saturating_sub(1));
        first
    }

    /// Reads the rest of a dump that was dropped before its end: the kernel refuses a second dump on a socket (`EBUSY`) while
    /// one is unread. The kernel produces the next datagram of a dump while one is read, so if none is queued the end was
    /// lost, and there is no need to wait.
    fn finish_unread_dump(&mut self) -> Result<(), Error> {
        while let Some(sequence) = self.unread_dump {
            let length = match self.transport.receive(&mut self.buffer, Some(Duration::ZERO)) {
                Ok(Some(length)) => length,
                Ok(None) => {
                    self.unread_dump = None;
                    break;
                }
                Err(Error::Overrun | Error::Truncated { .. }) => continue,
                Err(error) => return Err(error),
            };
            let mut rest = self.buffer.get(..length).unwrap_or(&[]);
            while let Some(Ok(received)) = message::take_message(&mut rest) {
                if received.sequence == sequence && matches!(received.message_type, NLMSG_DONE | NLMSG_ERROR)
                {
                    self.unread_dump = None;
                }
            }
        }
        Ok(())
    }
}

impl Connection {
    /// The port ID of the socket, by which notifications show that this connection caused a change
    /// ([`Message::port`](crate::Message::port)). Unique among the sockets of a protocol in a network namespace.
    ///
    /// # Errors
    /// [`Error::Socket`].
    #[doc(alias = "nl_pid")]
    pub fn port(&self) -> Result<u32, Error> {
        getsockname::<NetlinkAddr>(self.as_fd().as_raw_fd())
            .map(|address| address.pid())
            .map_err(|errno| Error::Socket {
                call: "read the address of",
                errno: Errno(errno as i32),
            })
    }
}

impl AsFd for Connection {
    /// The socket, for options that this crate does not set. Do not read from it: the connection reads the answers.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.transport.as_fd()
    }
}

fn keep_warning(warnings: &mut Vec<Box<str>>, warning: Option<Box<str>>) {
    if warnings.len() < WARNINGS {
        warnings.extend(warning);
    }
}

/// Iterator over the decoded messages of a dump; see [`Connection::dump`].
#[derive(Debug)]
pub struct Dump<'c, F> {
    connection: &'c mut Connection,
    decode: F,
    sequence: u32,
    /// The unread part of the datagram in the connection's buffer.
    received: std::ops::Range<usize>,
    is_finished: bool,
    was_interrupted: bool,
}

/// The items of one datagram of a dump; see [`Dump::next_datagram`].
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Datagram<T> {
    /// The decoded items, in order; empty if the datagram contains only the end of the dump.
    pub items: Vec<T>,
    /// Length in bytes.
    pub length: usize,
}

impl<F> Dump<'_, F> {
    /// All items of the next datagram. If the subsystem fills a datagram under one lock (as IPVS does), they are the state at one
    /// moment. `None` after the end.
    ///
    /// Items of the current datagram that the iterator has returned are not returned again.
    ///
    /// # Errors
    /// As the iterator. After an error of `decode` the other items of the datagram are lost.
    pub fn next_datagram<T, E: From<Error>>(&mut self) -> Option<Result<Datagram<T>, E>>
    where
        F: FnMut(Message<'_>) -> Result<Option<T>, E>,
    {
        if self.is_finished {
            return self.interruption();
        }
        if self.received.is_empty()
            && let Err(error) = self.receive()
        {
            return Some(Err(error.into()));
        }
        let length = self.received.len();
        let mut items = Vec::new();
        while let Some(item) = self.next_buffered() {
            match item {
                Ok(item) => items.push(item),
                Err(error) => return Some(Err(error)),
            }
        }
        Some(Ok(Datagram { items, length }))
    }

    /// The next item. `None` at the end, whether or not the dump was interrupted.
    fn next_item<T, E: From<Error>>(&mut self) -> Option<Result<T, E>>
    where
        F: FnMut(Message<'_>) -> Result<Option<T>, E>,
    {
        while !self.is_finished {
            if let Some(item) = self.next_buffered() {
                return Some(item);
            }
            if !self.is_finished
                && let Err(error) = self.receive()
            {
                return Some(Err(error.into()));
            }
        }
        None
    }

    /// The next item of the datagram in the buffer. `None` at its end or at the end of the dump.
    fn next_buffered<T, E: From<Error>>(&mut self) -> Option<Result<T, E>>
    where
        F: FnMut(Message<'_>) -> Result<Option<T>, E>,
    {
        while !self.is_finished {
            let mut rest = self.connection.buffer.get(self.received.clone()).unwrap_or(&[]);
            let received = message::take_message(&mut rest)?;
            self.received.start = self.received.end - rest.len();
            let received = match received {
                Ok(received) if received.sequence != self.sequence => continue,
                Ok(received) => received,
                Err(error) => return Some(Err(self.fail(error).into())),
            };
            self.was_interrupted |= received.flags & NLM_F_DUMP_INTR != 0;
            match received.message_type {
                NLMSG_NOOP => {}
                NLMSG_OVERRUN => return Some(Err(self.fail(Error::Overrun).into())),
                NLMSG_DONE | NLMSG_ERROR => {
                    self.is_finished = true;
                    self.connection.unread_dump = None;
                    match message::acknowledgement(&received) {
                        Ok(acknowledgement) => match acknowledgement.outcome {
                            Ok(warning) => keep_warning(&mut self.connection.warnings, warning),
                            Err(refusal) => return Some(Err(Error::Refused(refusal).into())),
                        },
                        Err(error) => return Some(Err(error.into())),
                    }
                }
                _ => {
                    if let Some(item) = (self.decode)(received).transpose() {
                        return Some(item);
                    }
                }
            }
        }
        None
    }

    /// Reads the next datagram into the buffer.
    fn receive(&mut self) -> Result<(), Error> {
        let connection = &mut *self.connection;
        match connection
            .transport
            .receive(&mut connection.buffer, connection.timeout)
        {
            Ok(Some(length)) => {
                self.received = 0..length;
                Ok(())
            }
            Ok(None) => Err(self.fail(Error::TimedOut)),
            Err(error) => Err(self.fail(error)),
        }
    }

    fn fail(&mut self, error: Error) -> Error {
        self.is_finished = true;
        error
    }

    /// [`Error::DumpInterrupted`], once, if the dump was interrupted.
    fn interruption<T, E: From<Error>>(&mut self) -> Option<Result<T, E>> {
        std::mem::take(&mut self.was_interrupted).then(|| Err(Error::DumpInterrupted { attempts: 1 }.into()))
    }
}

impl<T, E, F> Iterator for Dump<'_, F>
where
    E: From<Error>,
    F: FnMut(Message<'_>) -> Result<Option<T>, E>,
{
    type Item = Result<T, E>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next_item().or_else(|| self.interruption())
    }
}
