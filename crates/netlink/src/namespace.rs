//! Network namespaces.

use std::fs::{File, Metadata};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use nix::sched::{CloneFlags, setns};

use crate::{Errno, Error};

/// The namespace of the thread that opens the file.
const CURRENT: &str = "/proc/thread-self/ns/net";

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
        Self::open(CURRENT)
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
    /// user namespace that owns it and in the caller's, unless it is the calling thread's own.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> Result<T, Error> {
        std::thread::scope(|scope| {
            let thread = std::thread::Builder::new()
                .name("kernlink-netns".to_owned())
                .spawn_scoped(scope, || {
                    // The thread begins in the namespace of the one that started it.
                    if !self.is_current() {
                        setns(&self.file, CloneFlags::CLONE_NEWNET)
                            .map_err(|errno| self.failed("enter", Errno(errno as i32)))?;
                    }
                    Ok(work())
                })
                .map_err(|error| self.failed("start a thread for", Errno::from_io(&error)))?;
            thread
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Whether it is the calling thread's namespace; false if that cannot be determined.
    fn is_current(&self) -> bool {
        let identity = |metadata: Metadata| (metadata.dev(), metadata.ino());
        let own = std::fs::metadata(CURRENT).map(identity);
        let this = self.file.try_clone().map(File::from);
        let this = this.and_then(|file| file.metadata()).map(identity);
        matches!((own, this), (Ok(own), Ok(this)) if own == this)
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
