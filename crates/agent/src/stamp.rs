//! The version of a file, to find out whether it changed.

use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::time::SystemTime;

/// Identifies a file or folder, as long as it exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileId {
    device: u64,
    inode: u64,
    /// A file system may give the inode of a deleted folder to the next one. `None` if it does not record the time.
    created: Option<SystemTime>,
}

/// The version of a file or folder: it differs after every change, unless two changes follow each other faster than the clock of the file
/// system ticks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub(crate) id: FileId,
    size: u64,
    /// In seconds and nanoseconds.
    modified: (i64, i64),
    changed: (i64, i64),
    pub(crate) is_folder: bool,
}

impl Stamp {
    pub(crate) fn of(metadata: &Metadata) -> Self {
        Self {
            id: FileId {
                device: metadata.dev(),
                inode: metadata.ino(),
                created: metadata.created().ok(),
            },
            size: metadata.size(),
            modified: (metadata.mtime(), metadata.mtime_nsec()),
            changed: (metadata.ctime(), metadata.ctime_nsec()),
            is_folder: metadata.is_dir(),
        }
    }
}
