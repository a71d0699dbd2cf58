//! The source of the agent: the manifests in a folder.
//!
//! The files `*.yaml`, `*.yml` and `*.json` are read, sorted by name; not those whose name begins with a dot, and not folders below. A
//! symbolic link is followed. So a mounted ConfigMap works, whose files are links that change together.
//!
//! An object can be in one file only; of several the first file by name is used, which is a [problem](Reading::problems). A file that
//! cannot be read, is empty, or is not a valid manifest is a problem too: each of its objects stays as it was until it can be read again or
//! is no longer in the text. If a folder does not exist any more, or was replaced by one without manifests, all objects stay as they were.
//!
//! Objects of other kinds are [ignored](Reading::ignored), so that a folder may have what else belongs to a Service. A kind or API version that
//! does not exist in Kubernetes is a problem.

mod file;
mod index;
mod problem;
mod watch;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use kernlink_kubernetes::Objects;
use kernlink_kubernetes::manifest::Missing;
use kernlink_services::Change;

use self::file::FileName;
use self::index::{Difference, Index};
pub(crate) use self::problem::Difference as ProblemDifference;
pub use self::problem::{Place, Problem};
pub use self::watch::{StartError, Watch};
use crate::stamp::{FileId, Stamp};

/// A folder of manifests. Contents are not kept in memory.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
    /// The folder in which the files were found. `None` if the last reading failed.
    id: Option<FileId>,
    files: BTreeMap<FileName, File>,
    index: Index,
    /// Whether a reading was complete.
    was_complete: bool,
}

/// What is known about a file.
#[derive(Debug, Default)]
struct File {
    /// The version that was read. `None`: it has to be read.
    stamp: Option<Stamp>,
    /// The objects that were never read.
    missing: Missing,
    problems: Vec<Problem>,
    /// The kinds in the text that are not read.
    ignored: Vec<String>,
}

/// The result of reading the folder again.
#[derive(Debug, Default)]
#[non_exhaustive]
pub struct Reading {
    /// What changed since the last reading, at most one change for each object.
    pub changes: Vec<Change>,
    /// Everything that is invalid now, also what was reported before.
    pub problems: BTreeSet<Problem>,
    /// The files with objects of kinds that are not read, and these kinds.
    pub ignored: BTreeSet<String>,
    /// Whether no object is unknown. False if the folder could not be read, if it never had a manifest, or if a file has objects that were
    /// never read.
    pub is_complete: bool,
    /// The number of files.
    pub files: usize,
    /// The number of objects.
    pub objects: usize,
}

/// The number of attempts to read files that do not change meanwhile.
const ATTEMPTS: usize = 5;

impl Folder {
    /// A folder that was not read.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            id: None,
            files: BTreeMap::new(),
            index: Index::default(),
            was_complete: false,
        }
    }

    /// Reads the files that changed, were added or removed since the last call.
    pub fn read(&mut self) -> Reading {
        self.read_except(|_| false)
    }

    /// As [`read`](Self::read), without the files that are being written. The reading is not complete if one of them was never read.
    fn read_except(&mut self, is_busy: impl Fn(&OsStr) -> bool) -> Reading {
        let mut difference = Difference::default();
        let mut problem = self.update(&is_busy, &mut difference).err();
        if problem.is_some() {
            // What the path leads to later may be another folder.
            self.id = None;
        }
        if problem.is_none() && self.files.is_empty() && !self.was_complete {
            problem = Some(format!("{}: the folder has no manifest", self.path.display()));
        }
        let is_complete = problem.is_none() && self.files.values().all(|file| file.missing.is_empty());
        self.was_complete |= is_complete;
        let mut problems: BTreeSet<Problem> = self.index.duplicates().collect();
        problems.extend(self.files.values().flat_map(|file| file.problems.iter().cloned()));
        problems.extend(problem.map(Problem::of_folder));
        let with_ignored = self.files.iter().filter(|(_, file)| !file.ignored.is_empty());
        let ignored = with_ignored.map(|(name, file)| {
            let kinds = file.ignored.join(", ");
            format!("{name}: objects of these kinds are not read: {kinds}; kinds that are read: Service, EndpointSlice, Node")
        });
        Reading {
            changes: difference.into_changes(),
            problems,
            ignored: ignored.collect(),
            is_complete,
            files: self.files.len(),
            objects: self.index.len(),
        }
    }

    /// Makes the next reading read a file although it seems to be unchanged.
    fn forget(&mut self, name: &OsStr) {
        if let Some(file) = name.to_str().and_then(|name| self.files.get_mut(name)) {
            file.stamp = None;
        }
    }

    /// # Errors
    /// If the folder cannot be read; all objects stay as they were.
    fn update(
        &mut self,
        is_busy: &impl Fn(&OsStr) -> bool,
        difference: &mut Difference,
    ) -> Result<(), String> {
        for attempt in 1.. {
            let folder = self.stamp()?;
            let listing = self.list()?;
            if listing.is_empty() && !self.files.is_empty() && self.id != Some(folder.id) {
                return Err(format!(
                    "{}: the folder was replaced by one without manifests; the objects stay as they were",
                    self.path.display()
                ));
            }
            let changed: Vec<_> = listing
                .iter()
                .filter_map(|(name, found)| {
                    let version = if !is_busy(OsStr::new(&**name)) {
                        self.is_changed(name, found)
                            .then(|| self.read_file(name, found))?
                    } else if self.files.contains_key(name) {
                        return None;
                    } else {
                        // Its objects are not known.
                        (None, Err("is being written".to_owned()))
                    };
                    Some((Arc::clone(name), version))
                })
                .collect();
            // Files that are links change together when another link in the folder is replaced: none of them is used with the previous
            // version of another.
            if self.stamp()? != folder && attempt < ATTEMPTS {
                continue;
            }
            self.id = Some(folder.id);
            let removed: Vec<FileName> = self
                .files
                .keys()
                .filter(|name| !listing.contains_key(*name))
                .cloned()
                .collect();
            for name in removed {
                self.files.remove(&name);
                self.index.remove_file(&name, difference);
            }
            for (name, (stamp, content)) in changed {
                self.set_file(name, stamp, content, difference);
            }
            let again = std::mem::take(&mut difference.reread);
            if again.is_empty() || attempt >= ATTEMPTS {
                return Ok(());
            }
            again.iter().for_each(|name| self.forget(OsStr::new(&**name)));
        }
        Ok(())
    }

    fn stamp(&self) -> Result<Stamp, String> {
        let metadata = fs::metadata(&self.path);
        let metadata =
            metadata.map_err(|error| format!("{}: cannot be read: {error}", self.path.display()))?;
        Ok(Stamp::of(&metadata))
    }

    /// The manifests in the folder, with their versions or why they cannot be read.
    fn list(&self) -> Result<BTreeMap<FileName, Result<Stamp, String>>, String> {
        let failed = |error| format!("{}: cannot be read: {error}", self.path.display());
        let mut listing = BTreeMap::new();
        for entry in fs::read_dir(&self.path).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name();
            if !file::is_manifest(&name) {
                continue;
            }
            let path = self.path.join(&name);
            match name.to_str() {
                Some(name) => _ = listing.insert(FileName::from(name), file::stamp(&path)),
                None => return Err(format!("{}: the name is not UTF-8", path.display())),
            }
        }
        listing.retain(|_, found| !matches!(found, Ok(stamp) if stamp.is_folder));
        Ok(listing)
    }

    /// Whether a file has to be read. One that could not be read is tried each time.
    fn is_changed(&self, name: &str, found: &Result<Stamp, String>) -> bool {
        match (self.files.get(name).and_then(|file| file.stamp.as_ref()), found) {
            (Some(known), Ok(found)) => known != found,
            _ => true,
        }
    }

    /// Reads a file. The stamp is `None` if it has to be read again even if it does not change.
    fn read_file(
        &self,
        name: &str,
        found: &Result<Stamp, String>,
    ) -> (Option<Stamp>, Result<Objects, String>) {
        match found {
            Ok(_) => file::read(&self.path.join(name), name),
            Err(error) => (None, Err(error.clone())),
        }
    }

    fn set_file(
        &mut self,
        name: FileName,
        stamp: Option<Stamp>,
        content: Result<Objects, String>,
        difference: &mut Difference,
    ) {
        let known = self.files.remove(&name).unwrap_or_else(|| File {
            // Nothing of a new file is known.
            missing: Missing {
                unnamed: true,
                ..Missing::default()
            },
            ..File::default()
        });
        let file = match content {
            Err(problem) => File {
                stamp,
                missing: known.missing,
                problems: vec![Problem::of_file(&name, problem)],
                ignored: known.ignored,
            },
            Ok(objects) => {
                let mut missing = objects.missing.clone();
                let errors = objects.errors.iter();
                let mut problems: Vec<Problem> = errors.map(|error| Problem::of_text(&name, error)).collect();
                let ignored = objects.other.keys().cloned().collect();
                problems.extend(self.index.set_file(&name, objects, difference));
                if missing.unnamed {
                    missing.named.extend(known.missing.named.iter().cloned());
                }
                missing.unnamed &= known.missing.unnamed;
                missing.named.retain(|(kind, object)| {
                    known.missing.may_include(*kind, object) && !self.index.has(&name, *kind, object)
                });
                File {
                    stamp,
                    missing,
                    problems,
                    ignored,
                }
            }
        };
        self.files.insert(name, file);
    }
}

#[cfg(test)]
mod tests;
