//! Network namespaces.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use nix::sched::{CloneFlags, setns};

use crate::{Errno, Error};

/// An open network namespace.
///
/// A netlink socket remains in the network namespace of the thread that created it. [`run`](Self::run) therefore starts a
/// temporary thread, which enters the namespace and opens the socket. The calling thread never changes its namespace.
#[derive(Debug)]
pub struct Namespace {
    file: OwnedFd,
    /// For error messages.
    path: Option<Box<Path>>,
}

impl Namespace {
    /// Opens a namespace by path: `/run/netns/NAME`, `/proc/PID/ns/net`.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path: Box<Path> = path.as_ref().into();
        match File::open(&path) {
            Ok(file) => Ok(Namespace {
                file: file.into(),
                path: Some(path),
            }),
            Err(error) => Err(Error::Namespace {
                call: "open",
                path: Some(path),
                errno: Errno::from_io(&error),
            }),
        }
    }

    /// The calling thread's namespace.
    pub fn current() -> Result<Self, Error> {
        Self::open("/proc/thread-self/ns/net")
    }

    /// Duplicates the file descriptor.
    pub fn try_clone(&self) -> Result<Self, Error> {
        let file = self
            .file
            .try_clone()
            .map_err(|error| self.failed("open", Errno::from_io(&error)))?;
        Ok(Namespace {
            file,
            path: self.path.clone(),
        })
    }

    /// Runs `work` on a temporary thread in this namespace and returns its result. A panic of
    /// `work` is propagated to the caller.
    ///
    /// # Errors
    /// [`Error::Namespace`] if the namespace cannot be entered. This requires `CAP_SYS_ADMIN` in the
    /// user namespace that owns it and in the caller's.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, Error> {
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new()
                .name("kernlink-netns".to_owned())
                .spawn_scoped(scope, || {
                    setns(&self.file, CloneFlags::CLONE_NEWNET)
                        .map_err(|errno| self.failed("enter", Errno(errno as i32)))?;
                    Ok(work())
                })
                .map_err(|error| self.failed("start a thread for", Errno::from_io(&error)))?;
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    fn failed(&self, call: &'static str, errno: Errno) -> Error {
        Error::Namespace {
            call,
            path: self.path.clone(),
            errno,
        }
    }
}

impl From<OwnedFd> for Namespace {
    fn from(file: OwnedFd) -> Self {
        Namespace { file, path: None }
    }
}

impl AsFd for Namespace {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}
