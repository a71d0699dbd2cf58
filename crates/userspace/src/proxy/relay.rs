//! Copies between two TCP connections.
//!
//! Small amounts are read into a buffer of the thread and written at once. After a read that filled the buffer, the data is moved through
//! a pipe with `splice`, without copying it to the process, until a small amount comes again. A connection that waits has neither
//! buffer nor pipe.
//!
//! Urgent data of TCP is passed on in line, without its mark. At the mark a read ends although more data is there, and `splice` moves nothing: so only a read
//! that brings nothing says that there is nothing, or that the sender has ended.
//!
//! A direction that waits until it can write does not read, so it would not notice that its sender is gone. Such a wait ends after a timeout.

use std::io;
use std::net::Shutdown;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering};

use futures_util::future::{Either, FutureExt, select};
use socket2::SockRef;
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::task::coop::consume_budget;
use tokio::time::{sleep, timeout};

use super::pipe::{Pipe, Pipes};
use super::scratch;
use super::stats::Counter;
use crate::limits::Limits;

/// Less than this in one turn through a pipe: the buffer is cheaper.
const SMALL: usize = 16 * 1024;

/// How a relay ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Both directions ended.
    Both,
    /// One direction ended, and no data came in the other one for too long.
    HalfClosedTimeout,
    /// A connection failed: both are to be reset.
    Failed,
}

/// Why a direction ended before its end was passed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Broken {
    /// The sender failed, or reset its connection.
    Sender,
    /// The receiver failed, or reset its connection. What it sent before can still be read.
    Receiver,
    /// The sender has ended its direction, and the receiver accepted nothing for too long.
    HalfClosedTimeout,
}

/// What copying needs.
#[derive(Clone, Copy)]
pub(super) struct Relay<'a> {
    pub(super) client: &'a TcpStream,
    pub(super) endpoint: &'a TcpStream,
    pub(super) pipes: &'a Pipes,
    pub(super) bytes_in: &'a Counter,
    pub(super) bytes_out: &'a Counter,
    pub(super) limits: &'a Limits,
}

impl Relay<'_> {
    /// Copies in both directions until both have ended. The end of one direction is passed on, and the other one goes on.
    pub(super) async fn run(self) -> End {
        let moved = AtomicU64::new(0);
        let up = pin!(self.copy(self.client, self.endpoint, self.bytes_in, &moved));
        let down = pin!(self.copy(self.endpoint, self.client, self.bytes_out, &moved));
        match select(up, down).await {
            Either::Left((ended, down)) => self.finish(ended, down, self.client, &moved).await,
            Either::Right((ended, up)) => self.finish(ended, up, self.endpoint, &moved).await,
        }
    }

    /// Copies the rest of one direction after the other one ended, which copied what `sender` sent.
    async fn finish(
        self,
        ended: Result<(), Broken>,
        mut rest: Pin<&mut impl Future<Output = Result<(), Broken>>>,
        sender: &TcpStream,
        moved: &AtomicU64,
    ) -> End {
        let (limit, elapsed) = match ended {
            Ok(()) => (self.limits.half_closed_timeout, End::HalfClosedTimeout),
            Err(Broken::Receiver) => (self.limits.reset_timeout, End::Failed),
            Err(Broken::Sender) => return End::Failed,
            Err(Broken::HalfClosedTimeout) => return End::HalfClosedTimeout,
        };
        loop {
            let before = moved.load(Ordering::Relaxed);
            // No task reads from `sender` any more: it would not notice that the peer resets it.
            let failed = pin!(sender.ready(Interest::ERROR));
            let timeout = pin!(sleep(limit));
            match select(rest.as_mut(), select(failed, timeout)).await {
                Either::Left((Ok(()), _)) if ended.is_ok() => return End::Both,
                Either::Left((Err(Broken::HalfClosedTimeout), _)) => return End::HalfClosedTimeout,
                Either::Left(_) | Either::Right((Either::Left(_), _)) => return End::Failed,
                Either::Right((Either::Right(_), _)) if moved.load(Ordering::Relaxed) == before => {
                    return elapsed;
                }
                Either::Right(_) => {}
            }
        }
    }

    /// Copies one direction until its end, and passes the end on.
    async fn copy(
        self,
        from: &TcpStream,
        to: &TcpStream,
        counter: &Counter,
        moved: &AtomicU64,
    ) -> Result<(), Broken> {
        let count = |bytes: usize| {
            let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
            counter.add(bytes);
            moved.fetch_add(bytes, Ordering::Relaxed);
        };
        let mut is_bulk = false;
        loop {
            from.readable().await.map_err(|_| Broken::Sender)?;
            let mut spliced = 0;
            if is_bulk && let Some(pipe) = self.pipes.take() {
                spliced = Box::pin(self.splice(pipe, from, to, &count, moved)).await?;
            }
            match move_once(from, to)? {
                Moved::Nothing => is_bulk = spliced >= SMALL,
                Moved::End => break,
                Moved::Bytes { read, unwritten } => {
                    is_bulk = spliced >= SMALL || read == scratch::SIZE;
                    count(read - unwritten.len());
                    let mut unwritten = &*unwritten;
                    while !unwritten.is_empty() {
                        match to.try_write(unwritten) {
                            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                                Box::pin(self.writable(from, to, moved)).await?;
                            }
                            written => {
                                let written = written.map_err(|_| Broken::Receiver)?;
                                count(written);
                                unwritten = unwritten.get(written..).unwrap_or_default();
                            }
                        }
                    }
                }
            }
            consume_budget().await;
        }
        SockRef::from(to)
            .shutdown(Shutdown::Write)
            .map_err(|_| Broken::Receiver)
    }

    /// Moves data through a pipe as long as `splice` moves any. Returns the number of bytes. Callers allocate the future, as that of
    /// [`writable`](Self::writable).
    async fn splice(
        self,
        pipe: Pipe,
        from: &TcpStream,
        to: &TcpStream,
        count: &impl Fn(usize),
        moved: &AtomicU64,
    ) -> Result<usize, Broken> {
        let mut total = 0;
        loop {
            // Not `try_io`: the runtime would wait for more data, although what follows the mark of urgent data is there already.
            let filled = match pipe.fill(from) {
                Ok(0) => break,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                filled => filled.map_err(|_| Broken::Sender)?,
            };
            let mut left = filled;
            while left > 0 {
                match to.try_io(Interest::WRITABLE, || pipe.drain(to, left)) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        self.writable(from, to, moved).await?;
                    }
                    drained => {
                        let drained = drained.map_err(|_| Broken::Receiver)?;
                        left -= drained;
                        count(drained);
                    }
                }
            }
            total += filled;
            consume_budget().await;
        }
        self.pipes.put_back(pipe);
        Ok(total)
    }

    /// Waits until `to` accepts data. Callers allocate the future, so that connections that never wait do not have its memory.
    async fn writable(self, from: &TcpStream, to: &TcpStream, moved: &AtomicU64) -> Result<(), Broken> {
        let mut writable = pin!(to.writable());
        let mut failed = pin!(from.ready(Interest::ERROR));
        loop {
            let before = moved.load(Ordering::Relaxed);
            let elapsed = pin!(sleep(self.limits.half_closed_timeout));
            match select(writable.as_mut(), select(failed.as_mut(), elapsed)).await {
                Either::Left((result, _)) => return result.map_err(|_| Broken::Receiver),
                Either::Right((Either::Left(_), _)) => break,
                Either::Right((Either::Right(_), _)) => {
                    let state = from.ready(Interest::READABLE).now_or_never();
                    let has_ended =
                        state.is_some_and(|state| state.is_ok_and(|state| state.is_read_closed()));
                    if has_ended && moved.load(Ordering::Relaxed) == before {
                        return Err(Broken::HalfClosedTimeout);
                    }
                }
            }
        }
        // What the sender sent before it reset the connection is passed on.
        match timeout(self.limits.reset_timeout, writable).await {
            Ok(result) => result.map_err(|_| Broken::Receiver),
            Err(_) => Err(Broken::Sender),
        }
    }
}

/// What one read brought.
enum Moved {
    /// There is nothing to read.
    Nothing,
    /// The peer has ended its direction.
    End,
    /// Data, and the part of it that could not be written at once.
    Bytes { read: usize, unwritten: Vec<u8> },
}

/// Reads once and writes what was read, as far as that is possible without waiting.
fn move_once(from: &TcpStream, to: &TcpStream) -> Result<Moved, Broken> {
    scratch::with(|buffer| {
        let read = match from.try_read(buffer) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(Moved::Nothing),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Moved::Nothing),
            read => read.map_err(|_| Broken::Sender)?,
        };
        let data = buffer.get(..read).unwrap_or_default();
        if data.is_empty() {
            return Ok(Moved::End);
        }
        let written = match to.try_write(data) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
            written => written.map_err(|_| Broken::Receiver)?,
        };
        let unwritten = data.get(written..).unwrap_or_default().to_vec();
        Ok(Moved::Bytes { read, unwritten })
    })
}
