//! The configuration file: whether it is still the one that was read.

use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

use kernlink_proxier::metrics::prometheus::{self, IntGaugeVec, Opts, Registry};
use sha2::{Digest, Sha256};

/// The configuration file as it was read when the process started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigurationFile {
    path: PathBuf,
    sha256: String,
}

impl ConfigurationFile {
    pub(crate) fn new(path: &Path, content: &[u8]) -> Self {
        Self {
            path: path.to_owned(),
            sha256: sha256(content),
        }
    }
}

/// Compares the configuration file with the one that was read. The process does not read it again: a new one has an effect after a restart.
#[derive(Debug)]
pub(crate) struct ConfigurationWatch {
    read: ConfigurationFile,
    gauge: IntGaugeVec,
    /// The hash of the file as it was last reported; that of the one that was read at first.
    reported: String,
}

impl ConfigurationWatch {
    /// # Errors
    /// If the registry has a metric with this name.
    pub(crate) fn new(read: ConfigurationFile, registry: &Registry) -> Result<Self, prometheus::Error> {
        let gauge = IntGaugeVec::new(
            Opts::new(
                "kernlink_configuration_file_info",
                "SHA-256 of the configuration file as it was read (state running), and as it is now (state file)",
            ),
            &["sha256", "state"],
        )?;
        registry.register(Box::new(gauge.clone()))?;
        let watch = Self {
            reported: read.sha256.clone(),
            read,
            gauge,
        };
        watch.set(&watch.read.sha256);
        Ok(watch)
    }

    /// Reads the file. Returns a line for the log if it is another one than before. A file that cannot be read counts as unchanged: a
    /// program may be about to replace it.
    pub(crate) fn compare(&mut self) -> Option<String> {
        let now = sha256(&fs::read(&self.read.path).ok()?);
        if now == self.reported {
            return None;
        }
        self.set(&now);
        self.reported.clone_from(&now);
        let path = self.read.path.display();
        Some(if now == self.read.sha256 {
            format!("{path} is again the configuration file that was read")
        } else {
            format!("{path} changed since it was read; it has an effect after a restart of the agent")
        })
    }

    fn set(&self, now: &str) {
        self.gauge.reset();
        self.gauge
            .with_label_values(&[self.read.sha256.as_str(), "running"])
            .set(1);
        self.gauge.with_label_values(&[now, "file"]).set(1);
    }
}

fn sha256(content: &[u8]) -> String {
    let mut text = String::with_capacity(64);
    for byte in Sha256::digest(content) {
        // A string accepts everything.
        let _ = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_changes_is_reported_once_and_the_metric_has_both_hashes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.yaml");
        fs::write(&path, "abc").unwrap();
        let registry = Registry::new();
        let read = ConfigurationFile::new(&path, b"abc");
        let mut watch = ConfigurationWatch::new(read, &registry).unwrap();
        let hashes = || -> Vec<(String, String)> {
            let families = registry.gather();
            let metrics = families.iter().flat_map(|family| family.get_metric());
            let labels = metrics.map(|metric| {
                let labels = metric.get_label();
                (labels[1].value().to_owned(), labels[0].value().to_owned())
            });
            labels.collect()
        };
        // As `printf abc | sha256sum` prints it.
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let of = |state: &str, hash: &str| (state.to_owned(), hash.to_owned());
        assert_eq!(hashes(), [of("file", abc), of("running", abc)]);
        assert_eq!(watch.compare(), None);
        fs::write(&path, "other").unwrap();
        let line = watch.compare().unwrap();
        assert!(
            line.ends_with("it has an effect after a restart of the agent"),
            "{line}"
        );
        assert_eq!(watch.compare(), None);
        let now = hashes();
        assert!(
            now.contains(&of("running", abc)) && !now.contains(&of("file", abc)),
            "{now:?}"
        );
        // A program replaces the file.
        fs::remove_file(&path).unwrap();
        assert_eq!(watch.compare(), None);
        fs::write(&path, "abc").unwrap();
        let line = watch.compare().unwrap();
        assert!(line.contains("is again"), "{line}");
        assert_eq!(hashes(), [of("file", abc), of("running", abc)]);
    }
}
