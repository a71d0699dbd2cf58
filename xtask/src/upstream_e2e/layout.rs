//! Where things are in the folder of the command.

use std::path::{Path, PathBuf};

use crate::kubernetes::VERSION;

/// The folder of a version of Kubernetes.
#[derive(Clone, Debug)]
pub(super) struct Layout {
    root: PathBuf,
}

impl Layout {
    pub(super) fn new(folder: &Path) -> Self {
        Self {
            root: folder.join(VERSION),
        }
    }

    /// Locked by the command that runs.
    pub(super) fn lock(&self) -> PathBuf {
        self.root.join("lock")
    }

    /// The Go module in which programs are built.
    pub(super) fn module(&self, name: &str) -> PathBuf {
        self.root.join("modules").join(name)
    }

    /// The programs that were built.
    pub(super) fn programs(&self) -> PathBuf {
        self.root.join("programs")
    }

    pub(super) fn program(&self, name: &str) -> PathBuf {
        self.programs().join(name)
    }

    /// Debian packages that are unpacked and not installed.
    pub(super) fn packages(&self) -> PathBuf {
        self.root.join("packages")
    }

    /// Archives of images, and the file systems of those that are made.
    pub(super) fn images(&self) -> PathBuf {
        self.root.join("images")
    }

    /// The state and logs of the cluster. Emptied before each start.
    pub(super) fn cluster(&self) -> PathBuf {
        self.root.join("cluster")
    }

    /// A folder for each proxy and mode.
    pub(super) fn results(&self) -> PathBuf {
        self.root.join("results")
    }
}
