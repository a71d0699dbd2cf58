//! Copies between two TCP connections.
//!
//! Small amounts are read into a buffer of the thread and written at once. After a read that filled the buffer, the data is moved through
//! a pipe with `splice`, without copying it to the process, until a small amount comes again. A connection that waits has neither
//! buffer nor pipe.

use std::io;
use std::net::Shutdown;
use std::pin::{Pin, pin};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::future::{Either, select};
use nix::errno::Errno;
use socket2::SockRef;
use tokio::io::Interest;
use tokio::net::TcpStream;
use tokio::task::coop::consume_budget;
use tokio::time::sleep;

use super::pipe::Pipes;
use super::scratch;
use super::stats::Counter;

/// Less than this in one turn through a pipe: the buffer is cheaper.
const SMALL: usize = 16 * 1024;

/// How a relay ended, if no connection failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// Both directions ended.
    Both,
    /// One direction ended, and no data came in the other one for too long.
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
    pub(super) half_closed_timeout: Duration,
}

impl Relay<'_> {
    /// Copies in both directions until both have ended. The end of one direction is passed on, and the other one goes on.
    ///
    /// # Errors
    /// A connection failed: both should be reset.
    pub(super) async fn run(self) -> io::Result<End> {
        let (up_bytes, down_bytes) = (AtomicU64::new(0), AtomicU64::new(0));
        let up = pin!(self.copy(self.client, self.endpoint, self.bytes_in, &up_bytes));
        let down = pin!(self.copy(self.endpoint, self.client, self.bytes_out, &down_bytes));
        match select(up, down).await {
            Either::Left((ended, down)) => {
                ended?;
                self.finish(down, self.client, &down_bytes).await
            }
            Either::Right((ended, up)) => {
                ended?;
                self.finish(up, self.endpoint, &up_bytes).await
            }
        }
    }

    /// Copies the rest of one direction after the peer of `ended` sent its last byte.
    async fn finish(
        self,
        mut rest: Pin<&mut impl Future<Output = io::Result<()>>>,
        ended: &TcpStream,
        moved: &AtomicU64,
    ) -> io::Result<End> {
        loop {
            let before = moved.load(Ordering::Relaxed);
            // No task reads from `ended` any more: it would not notice that the peer resets it.
            let failed = pin!(ended.ready(Interest::ERROR));
            let timeout = pin!(sleep(self.half_closed_timeout));
            match select(rest.as_mut(), select(failed, timeout)).await {
                Either::Left((done, _)) => return done.map(|()| End::Both),
                Either::Right((Either::Left(_), _)) => return Err(Errno::ECONNRESET.into()),
                Either::Right((Either::Right(_), _)) if moved.load(Ordering::Relaxed) == before => {
                    return Ok(End::HalfClosedTimeout);
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
    ) -> io::Result<()> {
        let count = |bytes: usize| {
            let bytes = u64::try_from(bytes).unwrap_or(u64::MAX);
            counter.add(bytes);
            moved.fetch_add(bytes, Ordering::Relaxed);
        };
        let mut is_bulk = false;
        loop {
            from.readable().await?;
            if is_bulk && let Some(pipe) = self.pipes.take() {
                let mut turn = 0;
                let is_end = loop {
                    let filled = match from.try_io(Interest::READABLE, || pipe.fill(from)) {
                        Ok(0) => break true,
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => break false,
                        filled => filled?,
                    };
                    let mut left = filled;
                    while left > 0 {
                        left -= to.async_io(Interest::WRITABLE, || pipe.drain(to, left)).await?;
                    }
                    turn += filled;
                    count(filled);
                    consume_budget().await;
                };
                self.pipes.put_back(pipe);
                if is_end {
                    break;
                }
                is_bulk = turn >= SMALL;
                continue;
            }
            match move_once(from, to)? {
                Moved::Nothing => {}
                Moved::End => break,
                Moved::Bytes { read, unwritten } => {
                    is_bulk = read == scratch::SIZE;
                    write_all(to, &unwritten).await?;
                    count(read);
                }
            }
            consume_budget().await;
        }
        SockRef::from(to).shutdown(Shutdown::Write)
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
fn move_once(from: &TcpStream, to: &TcpStream) -> io::Result<Moved> {
    scratch::with(|buffer| {
        let mut read = None;
        let result = from.try_io(Interest::READABLE, || {
            let bytes = nix::unistd::read(from, buffer)?;
            read = Some(bytes);
            // A short read has emptied the socket: without this, another read would find that out.
            if bytes > 0 && bytes < scratch::SIZE {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            Ok(())
        });
        let Some(read) = read else {
            return match result {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => Ok(Moved::Nothing),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(Moved::Nothing),
                result => result.map(|()| Moved::Nothing),
            };
        };
        let data = buffer.get(..read).unwrap_or_default();
        if data.is_empty() {
            return Ok(Moved::End);
        }
        let written = match to.try_write(data) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
            written => written?,
        };
        let unwritten = data.get(written..).unwrap_or_default().to_vec();
        Ok(Moved::Bytes { read, unwritten })
    })
}

async fn write_all(to: &TcpStream, mut data: &[u8]) -> io::Result<()> {
    while !data.is_empty() {
        to.writable().await?;
        match to.try_write(data) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            written => data = data.get(written?..).unwrap_or_default(),
        }
    }
    Ok(())
}
