//! The manifests that a command line names.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use kernlink_kubernetes::manifest::{self, Objects};

/// The objects of these files, and of the manifests in these folders, which are the same as for `kernlink-agent --watch`: the files whose names end
/// in `.yaml`, `.yml` or `.json` and do not begin with a dot.
pub(crate) fn read(paths: &[PathBuf]) -> Result<Objects> {
    let mut objects = Objects::default();
    for path in paths {
        let files = if path.is_dir() {
            of_folder(path)?
        } else {
            vec![path.clone()]
        };
        for file in files {
            let name = file.display().to_string();
            let text = std::fs::read_to_string(&file).with_context(|| format!("read {name}"))?;
            objects.extend(manifest::read(&name, &text));
        }
    }
    Ok(objects)
}

/// The manifests in a folder, in the order of their names.
fn of_folder(folder: &Path) -> Result<Vec<PathBuf>> {
    let name = folder.display();
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder).with_context(|| format!("read {name}"))? {
        let path = entry.with_context(|| format!("read {name}"))?.path();
        let extension = path.extension().and_then(OsStr::to_str);
        let is_hidden = path
            .file_name()
            .is_some_and(|name| name.as_encoded_bytes().starts_with(b"."));
        if matches!(extension, Some("yaml" | "yml" | "json")) && !is_hidden && path.is_file() {
            files.push(path);
        }
    }
    ensure!(
        !files.is_empty(),
        "{name} has no file with the extension yaml, yml or json"
    );
    files.sort();
    Ok(files)
}
