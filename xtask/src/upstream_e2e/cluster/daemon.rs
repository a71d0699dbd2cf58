//! Programs that run as long as the cluster.

use std::{
    fs::File,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use anyhow::{Context, Result, bail};

/// A program in the background, with its output in a file.
#[derive(Debug)]
pub(super) struct Daemon {
    name: String,
    child: Child,
    log: PathBuf,
}

impl Daemon {
    pub(super) fn start(name: &str, command: &mut Command, logs: &Path) -> Result<Self> {
        let log = logs.join(format!("{name}.log"));
        let file = File::create(&log).with_context(|| format!("creating {}", log.display()))?;
        let errors = file
            .try_clone()
            .with_context(|| format!("creating {}", log.display()))?;
        let child = command
            .stdin(Stdio::null())
            .stdout(file)
            .stderr(errors)
            .spawn()
            .with_context(|| format!("starting {name}"))?;
        Ok(Self {
            name: name.to_owned(),
            child,
            log,
        })
    }

    /// Fails if it has ended.
    pub(super) fn check(&mut self) -> Result<()> {
        if let Some(status) = self.child.try_wait()? {
            bail!("{} ended ({status}); see {}", self.name, self.log.display());
        }
        Ok(())
    }
}
