//! The files that credentials are read from.

use std::fs;
use std::path::{Path, PathBuf};

use crate::stamp::Stamp;

/// Files, each with the version that it had before it was read. `None`: it did not exist.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Files(Vec<(PathBuf, Option<Stamp>)>);

impl Files {
    /// Adds a file that is read after this call: what changes meanwhile is noticed.
    pub(super) fn add(&mut self, path: impl Into<PathBuf>) {
        let path = path.into();
        let stamp = stamp(&path);
        self.0.push((path, stamp));
    }

    /// The same files, with their versions now.
    pub(super) fn now(&self) -> Self {
        let files = self.0.iter().map(|(path, _)| (path.clone(), stamp(path)));
        Self(files.collect())
    }

    /// The files that have another version now, separated by commas. `None` if there is no such file.
    pub(super) fn changed(&self) -> Option<String> {
        let changed = self.0.iter().filter(|(path, known)| stamp(path) != *known);
        let paths: Vec<String> = changed.map(|(path, _)| path.display().to_string()).collect();
        (!paths.is_empty()).then(|| paths.join(", "))
    }
}

/// The version of the file that a path leads to, also through links.
fn stamp(path: &Path) -> Option<Stamp> {
    fs::metadata(path).ok().map(|metadata| Stamp::of(&metadata))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_file_that_is_replaced_removed_or_linked_to_another_one_has_changed() {
        let folder = tempfile::tempdir().unwrap();
        let [old, new, link, next, missing] =
            ["old", "new", "link", "next", "missing"].map(|name| folder.path().join(name));
        fs::write(&old, "a").unwrap();
        fs::write(&new, "b").unwrap();
        symlink(&old, &link).unwrap();
        let files = || {
            let mut files = Files::default();
            for path in [&old, &link, &missing] {
                files.add(path);
            }
            files
        };
        assert_eq!(files().changed(), None);

        // As the kubelet replaces its certificate.
        let before = files();
        symlink(&new, &next).unwrap();
        fs::rename(&next, &link).unwrap();
        assert_eq!(before.changed(), Some(link.display().to_string()));

        let before = files();
        fs::rename(&new, &old).unwrap();
        assert_eq!(
            before.changed(),
            Some(format!("{}, {}", old.display(), link.display()))
        );

        let before = files();
        fs::write(&missing, "c").unwrap();
        assert_eq!(before.changed(), Some(missing.display().to_string()));
    }
}
