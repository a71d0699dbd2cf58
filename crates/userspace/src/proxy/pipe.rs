//! Pipes for `splice`.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, SpliceFFlags, fcntl, splice};
use nix::unistd::pipe2;

use crate::budget::{Budget, Lease};

/// The size requested for a pipe. A smaller one is used if the kernel refuses it.
const SIZE: usize = 256 * 1024;

/// The largest number of pipes, used or not. A connection whose receiver is slow keeps its pipe with up to 256 KiB, which the kernel does not
/// count as memory of TCP; what exceeds the number is copied through buffers.
pub(super) const MOST: usize = 1024;

/// The number of unused pipes that are kept.
const MOST_UNUSED: usize = 64;

/// Pipes that connections use only while they copy a large amount.
#[derive(Debug)]
pub(super) struct Pipes {
    /// Of descriptors.
    budget: Budget,
    /// The number of pipes that may exist.
    pipes: Budget,
    unused: Mutex<Vec<Pipe>>,
}

/// A pipe. It is empty, unless it is being used.
#[derive(Debug)]
pub(super) struct Pipe {
    read: OwnedFd,
    write: OwnedFd,
    _descriptors: Lease,
    _pipe: Lease,
}

impl Pipes {
    /// No pipes, and at most so many.
    pub(super) fn new(budget: Budget, most: usize) -> Self {
        Self {
            budget,
            pipes: Budget::new(most),
            unused: Mutex::default(),
        }
    }

    /// An empty pipe. `None` if descriptors are scarce or there are too many pipes: the caller copies through a buffer.
    pub(super) fn take(&self) -> Option<Pipe> {
        let unused = self.unused.lock().unwrap_or_else(PoisonError::into_inner).pop();
        unused.or_else(|| {
            let pipe = self.pipes.take(1)?;
            let descriptors = self.budget.take_unless_below(2, self.budget.total() / 4)?;
            let (read, write) = pipe2(OFlag::O_CLOEXEC | OFlag::O_NONBLOCK).ok()?;
            // Refused if the user's pipes have too many pages: the default size works too.
            let _ = fcntl(&write, FcntlArg::F_SETPIPE_SZ(i32::try_from(SIZE).unwrap_or(0)));
            Some(Pipe {
                read,
                write,
                _descriptors: descriptors,
                _pipe: pipe,
            })
        })
    }

    /// Closes the pipes that no connection uses.
    pub(super) fn close_unused(&self) {
        let mut unused = self.unused.lock().unwrap_or_else(PoisonError::into_inner);
        drop(std::mem::take(&mut *unused));
    }

    /// Takes back a pipe, which must be empty.
    pub(super) fn put_back(&self, pipe: Pipe) {
        let mut unused = self.unused.lock().unwrap_or_else(PoisonError::into_inner);
        if unused.len() < MOST_UNUSED {
            unused.push(pipe);
        }
    }
}

impl Pipe {
    /// Moves data from a socket into the empty pipe. 0: the peer has ended its direction.
    pub(super) fn fill(&self, from: impl AsFd) -> io::Result<usize> {
        retry(|| splice(&from, None, &self.write, None, SIZE, flags()))
    }

    /// Moves data from the pipe, which contains at least `bytes`, to a socket.
    pub(super) fn drain(&self, to: impl AsFd, bytes: usize) -> io::Result<usize> {
        retry(|| splice(&self.read, None, &to, None, bytes, flags()))
    }
}

fn flags() -> SpliceFFlags {
    SpliceFFlags::SPLICE_F_MOVE | SpliceFFlags::SPLICE_F_NONBLOCK
}

fn retry(mut call: impl FnMut() -> nix::Result<usize>) -> io::Result<usize> {
    loop {
        match call() {
            Err(Errno::EINTR) => {}
            result => return Ok(result?),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_are_no_more_pipes_than_the_limit_and_unused_ones_are_used_again() {
        let budget = Budget::new(100);
        let pipes = Pipes::new(budget.clone(), 2);
        let taken = [pipes.take(), pipes.take()].map(|pipe| pipe.expect("there is a pipe"));
        assert!(pipes.take().is_none());
        assert_eq!(budget.taken(), 4);
        let [first, second] = taken;
        pipes.put_back(first);
        let first = pipes.take().expect("there is an unused pipe");
        assert!(pipes.take().is_none());
        drop(second);
        assert!(pipes.take().is_some());
        pipes.put_back(first);
        pipes.close_unused();
        assert_eq!(budget.taken(), 0);
    }

    #[test]
    fn pipes_leave_a_quarter_of_the_descriptors() {
        let pipes = Pipes::new(Budget::new(8), MOST);
        let taken = [(); 4].map(|()| pipes.take());
        assert_eq!(taken.iter().flatten().count(), 3);
    }
}
