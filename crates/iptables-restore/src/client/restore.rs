//! `iptables-restore`.

use super::Client;
use crate::error::Error;
use crate::restore::{Restore, RestoreMode};
use crate::runner::Completion;

/// Whether an input is committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Commit,
    /// `--test`.
    Test,
}

impl Client {
    pub(super) fn run_restore(&mut self, restore: &Restore, mode: Mode) -> Result<(), Error> {
        let text = restore.render_checked(self.style)?;
        if restore.is_empty() {
            return Ok(());
        }
        let completion = self.start_restore(restore, &text, mode)?;
        if completion.status == Some(0) {
            return Ok(());
        }
        Err(match self.locked(&completion) {
            Some(locked) => locked,
            None => self.refusal(restore, &completion, mode),
        })
    }

    /// Runs `iptables-restore` once with `text` as its input.
    pub(super) fn start_restore(
        &mut self,
        restore: &Restore,
        text: &str,
        mode: Mode,
    ) -> Result<Completion, Error> {
        let version = self.version(restore.family)?;
        let mut arguments = Vec::new();
        let mut lock = None;
        if version.restore_supports_wait() {
            arguments.extend(["--wait".into(), self.wait_seconds()]);
        } else {
            let path = self.lock_path().to_owned();
            lock = Some(self.runner.lock(&path, self.wait)?);
        }
        if restore.mode == RestoreMode::Keep {
            arguments.push("--noflush".into());
        }
        arguments.push("--counters".into());
        if mode == Mode::Test {
            arguments.push("--test".into());
        }
        let program = self.program(restore.family, "restore");
        let completion = self.start(&program, arguments, text.into(), self.wait);
        drop(lock);
        completion
    }
}
