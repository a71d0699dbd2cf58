//! The file: a tar archive, compressed with gzip, that only its owner may read.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::{Value, json};
use tar::{Builder, Header};

use super::partial::Partial;
use super::redaction::Redaction;
use crate::query::documents::VERSION;
use crate::query::time;
use crate::version;

/// The folder in the archive.
const FOLDER: &str = "kernlink-support";
/// The largest file in the archive, in bytes. Of a larger one the beginning is kept.
const MAX_FILE: usize = 64 << 20;

/// Where the archive is written. Without [`finish`](Archive::finish) nothing stays.
pub(super) enum Target {
    Standard(io::Stdout),
    File {
        file: File,
        partial: Partial,
        path: PathBuf,
        is_replaced: bool,
    },
}

impl Target {
    /// Makes the file, with mode 0600, next to the name that it gets when it is complete, or takes standard output for `-`.
    ///
    /// # Errors
    /// If the file exists and is not to be replaced, or cannot be made.
    pub(super) fn open(path: &Path, is_replaced: bool, partial: &Partial) -> Result<Self, String> {
        if is_standard_output(path) {
            return Ok(Target::Standard(io::stdout()));
        }
        match fs::symlink_metadata(path) {
            Ok(found) if found.is_dir() => return Err(is_folder(path)),
            // Also a link that leads nowhere. It is looked for again when the archive is complete.
            Ok(_) if !is_replaced => return Err(exists(path)),
            _ if path.as_os_str().as_bytes().ends_with(b"/") => return Err(is_folder(path)),
            _ => {}
        }
        let folder = match path.parent() {
            Some(folder) if folder.as_os_str().is_empty() => Path::new("."),
            Some(folder) => folder,
            None => path,
        };
        let file = partial
            .make(folder)
            .map_err(|error| format!("cannot make {}: {error}", path.display()))?;
        Ok(Target::File {
            file,
            partial: partial.clone(),
            path: path.to_owned(),
            is_replaced,
        })
    }

    fn complete(mut self) -> Result<(), String> {
        match &mut self {
            Target::Standard(output) => output.flush().map_err(|error| failed(&error)),
            Target::File {
                file,
                partial,
                path,
                is_replaced,
            } => {
                file.sync_all().map_err(|error| failed(&error))?;
                let completed = partial.complete(path, *is_replaced);
                completed.map_err(|error| match error.kind() {
                    io::ErrorKind::AlreadyExists => exists(path),
                    _ => format!("cannot make {}: {error}", path.display()),
                })
            }
        }
    }
}

impl Write for Target {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Target::Standard(output) => output.write(bytes),
            Target::File { file, .. } => file.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Target::Standard(output) => output.flush(),
            Target::File { file, .. } => file.flush(),
        }
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        if let Target::File { partial, .. } = self {
            partial.remove();
        }
    }
}

/// Whether the archive is not a file.
pub(super) fn is_standard_output(path: &Path) -> bool {
    path.as_os_str() == "-"
}

fn is_folder(path: &Path) -> String {
    format!("{} is a folder; valid: the path of a file", path.display())
}

fn exists(path: &Path) -> String {
    format!("{} exists; --overwrite replaces it", path.display())
}

fn failed(error: &io::Error) -> String {
    format!("cannot write the archive: {error}")
}

/// An archive that is being written. Everything in it passes the redaction.
pub(super) struct Archive {
    tar: Builder<GzEncoder<Target>>,
    redaction: Redaction,
    /// The time of the files.
    made: SystemTime,
    /// What `contents.json` has of each file.
    contents: Vec<Value>,
    missing: Vec<(&'static str, String)>,
}

impl Archive {
    pub(super) fn new(target: Target, redaction: Redaction, made: SystemTime) -> Self {
        let gzip = GzEncoder::new(target, Compression::default());
        Self {
            tar: Builder::new(gzip),
            redaction,
            made,
            contents: Vec::new(),
            missing: Vec::new(),
        }
    }

    /// Adds a text, or why there is none.
    ///
    /// # Errors
    /// If the archive cannot be written.
    pub(super) fn text(&mut self, file: &'static str, text: Result<String, String>) -> Result<(), String> {
        let text = text.map(|text| self.redaction.text(&text));
        self.add(file, text)
    }

    /// Adds a document, or why there is none.
    ///
    /// # Errors
    /// If the archive cannot be written.
    pub(super) fn json(&mut self, file: &'static str, document: Result<Value, String>) -> Result<(), String> {
        let text = document.map(|mut document| {
            self.redaction.document(&mut document);
            format!("{document:#}\n")
        });
        self.add(file, text)
    }

    fn add(&mut self, file: &'static str, text: Result<String, String>) -> Result<(), String> {
        let mut text = match text {
            Ok(text) => text,
            Err(why) => {
                let why = self.redaction.message(&why);
                self.contents
                    .push(json!({"file": file, "state": "missing", "reason": why}));
                self.missing.push((file, why));
                return Ok(());
            }
        };
        let is_cut = text.len() > MAX_FILE;
        text.truncate(text.floor_char_boundary(MAX_FILE));
        let state = if is_cut { "cut" } else { "complete" };
        self.contents
            .push(json!({"file": file, "state": state, "reason": Value::Null}));
        self.append(file, &text)
    }

    fn append(&mut self, file: &str, text: &str) -> Result<(), String> {
        let mut header = Header::new_gnu();
        header.set_mode(0o600);
        header.set_size(text.len() as u64);
        let made = self.made.duration_since(UNIX_EPOCH).unwrap_or_default();
        header.set_mtime(made.as_secs());
        let appended = self
            .tar
            .append_data(&mut header, format!("{FOLDER}/{file}"), text.as_bytes());
        appended.map_err(|error| failed(&error))
    }

    /// Writes the list of the files, and ends the archive. Returns what is missing in it, with the reasons.
    ///
    /// # Errors
    /// If the archive cannot be written; then there is none.
    pub(super) fn finish(mut self) -> Result<Vec<(&'static str, String)>, String> {
        let contents = json!({
            "version": VERSION,
            "made": time::text(self.made),
            "program": version::TEXT,
            "files": self.contents,
        });
        self.append("contents.json", &format!("{contents:#}\n"))?;
        let gzip = self.tar.into_inner().map_err(|error| failed(&error))?;
        let target = gzip.finish().map_err(|error| failed(&error))?;
        target.complete()?;
        Ok(self.missing)
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn write(path: &Path, is_replaced: bool) -> Result<(), String> {
        let target = Target::open(path, is_replaced, &Partial::default())?;
        let mut archive = Archive::new(target, Redaction::new(Vec::new()), UNIX_EPOCH);
        archive.text("a.txt", Ok("text".to_owned()))?;
        archive.text("b.txt", Err("not there".to_owned()))?;
        assert_eq!(archive.finish()?, [("b.txt", "not there".to_owned())]);
        Ok(())
    }

    fn files(folder: &Path) -> Vec<String> {
        let entries = fs::read_dir(folder).unwrap();
        let mut names: Vec<String> = entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn only_the_owner_may_read_the_file_and_one_that_exists_is_replaced_only_if_asked() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a.tar.gz");
        let mode = || fs::metadata(&path).unwrap().permissions().mode() & 0o777;
        write(&path, false).unwrap();
        assert_eq!(mode(), 0o600);
        fs::write(&path, "x").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        let refused = write(&path, false).unwrap_err();
        assert_eq!(
            refused,
            format!("{} exists; --overwrite replaces it", path.display())
        );
        assert_eq!(fs::read_to_string(&path).unwrap(), "x");
        write(&path, true).unwrap();
        assert_eq!(mode(), 0o600);
        // A link is replaced, and what it leads to stays.
        let other = folder.path().join("other");
        fs::rename(&path, &other).unwrap();
        let before = fs::read(&other).unwrap();
        symlink(&other, &path).unwrap();
        assert!(write(&path, false).is_err());
        write(&path, true).unwrap();
        assert!(fs::symlink_metadata(&path).unwrap().is_file());
        assert_eq!(fs::read(&other).unwrap(), before);
        assert_eq!(files(folder.path()), ["a.tar.gz", "other"]);
    }

    #[test]
    fn an_archive_that_is_not_complete_has_another_name_and_does_not_stay() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        for is_replaced in [false, true] {
            let target = Target::open(&path, is_replaced, &Partial::default()).unwrap();
            let names = files(folder.path());
            assert!(
                matches!(&names[..], [name] if name.ends_with(".partial")),
                "{names:?}"
            );
            let written = folder.path().join(&names[0]);
            let mode = fs::metadata(written).unwrap().permissions().mode() & 0o777;
            assert_eq!(mode, 0o600);
            drop(target);
            assert!(files(folder.path()).is_empty());
        }
    }

    #[test]
    fn a_file_that_is_made_meanwhile_is_not_replaced_except_if_asked() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a");
        let finish = |is_replaced: bool| {
            let target = Target::open(&path, is_replaced, &Partial::default())?;
            fs::write(&path, "x").unwrap();
            Archive::new(target, Redaction::new(Vec::new()), UNIX_EPOCH).finish()
        };
        assert_eq!(finish(false).unwrap_err(), exists(&path));
        assert_eq!(fs::read_to_string(&path).unwrap(), "x");
        assert_eq!(files(folder.path()), ["a"]);
        assert!(finish(true).is_ok());
        assert_ne!(fs::read(&path).unwrap(), b"x");
        assert_eq!(files(folder.path()), ["a"]);
    }

    #[test]
    fn a_folder_is_not_the_path_of_a_file() {
        let folder = tempfile::tempdir().unwrap();
        for path in [folder.path().to_owned(), folder.path().join("new/")] {
            for is_replaced in [false, true] {
                let refused = Target::open(&path, is_replaced, &Partial::default()).err();
                assert_eq!(refused, Some(is_folder(&path)));
            }
        }
        assert!(files(folder.path()).is_empty());
    }
}
