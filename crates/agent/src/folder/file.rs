//! A single file of a folder.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use kernlink_kubernetes::Objects;
use kernlink_kubernetes::manifest;

use crate::stamp::Stamp;

/// The name of a file in the folder.
pub(super) type FileName = Arc<str>;

/// Whether a file with this name is read.
pub(super) fn is_manifest(name: &OsStr) -> bool {
    let extension = Path::new(name).extension();
    let is_known =
        extension.is_some_and(|extension| extension == "yaml" || extension == "yml" || extension == "json");
    is_known && !name.as_encoded_bytes().starts_with(b".")
}

/// The version of a file or folder that a path leads to, also through links.
pub(super) fn stamp(path: &Path) -> Result<Stamp, String> {
    let metadata = fs::metadata(path).map_err(|error| format!("cannot be read: {error}"))?;
    if metadata.is_file() || metadata.is_dir() {
        Ok(Stamp::of(&metadata))
    } else {
        // Reading a pipe or device could block.
        Err("is not a regular file".to_owned())
    }
}

/// Reads a file, with the version that was read. The version is `None` if the file cannot be read, or changed meanwhile.
pub(super) fn read(path: &Path, name: &str) -> (Option<Stamp>, Result<Objects, String>) {
    match text(path) {
        Ok((stamp, text)) if text.trim().is_empty() => {
            // More likely truncated or not written yet.
            let problem =
                "the file is empty; its objects stay as they were (to remove them, delete the file)";
            (Some(stamp), Err(problem.to_owned()))
        }
        Ok((stamp, text)) => (Some(stamp), Ok(manifest::read(name, &text))),
        Err(problem) => (None, Err(problem)),
    }
}

fn text(path: &Path) -> Result<(Stamp, String), String> {
    let failed = |error| format!("cannot be read: {error}");
    let mut file = File::open(path).map_err(failed)?;
    let before = Stamp::of(&file.metadata().map_err(failed)?);
    let mut text = String::new();
    file.read_to_string(&mut text).map_err(failed)?;
    let after = Stamp::of(&file.metadata().map_err(failed)?);
    if before == after {
        Ok((before, text))
    } else {
        Err("changed while it was read; it is read again".to_owned())
    }
}
