//! `iptables-restore`.

use std::borrow::Cow;

use super::{Client, tool_message};
use crate::error::Error;
use crate::joined::Joined;
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
        let completion = self.start_restore(restore, text, mode)?;
        self.outcome(&completion, mode, || Cow::Borrowed(restore))
    }

    pub(super) fn run_joined(&mut self, joined: &Joined<'_>) -> Result<(), Error> {
        let text = joined.render_checked(self.style)?;
        if joined.is_empty() {
            return Ok(());
        }
        let without_edits = Restore::new(joined.family());
        let completion = self.start_restore(&without_edits, text, Mode::Commit)?;
        self.outcome(&completion, Mode::Commit, || Cow::Owned(joined.to_restore()))
    }

    fn outcome<'a>(
        &mut self,
        completion: &Completion,
        mode: Mode,
        restore: impl FnOnce() -> Cow<'a, Restore>,
    ) -> Result<(), Error> {
        if completion.status == Some(0) {
            return Ok(());
        }
        Err(match self.locked(completion) {
            Some(locked) => locked,
            None => self.refusal(&restore(), completion, mode),
        })
    }

    /// Runs `iptables-restore` once with `text` as its input. The edits of `restore` are not used.
    ///
    /// The version is not read before, unless the text is large: a tool without `--wait` (before 1.6.2) takes the seconds after it for the name of its input file and
    /// fails before it changes anything. Only then, and if the tool of a selected variant does not exist under its name, the version is read.
    ///
    /// After a success the text is not copied for that case. If the tool is replaced by an older one, one input fails.
    pub(super) fn start_restore(
        &mut self,
        restore: &Restore,
        text: String,
        mode: Mode,
    ) -> Result<Completion, Error> {
        if self.waiting.contains(&restore.family) {
            let done = self.start_restore_with_wait(restore, text, mode);
            if !is_accepted(&done) {
                self.waiting.remove(&restore.family);
            }
            return done;
        }
        // A large text is not copied: to read the version takes less time than to write it.
        if !self.versions.contains_key(&restore.family) && text.len() <= MOST_COPIED {
            let done = self.start_restore_with_wait(restore, text.clone(), mode);
            if is_accepted(&done) {
                self.waiting.insert(restore.family);
            }
            match done {
                Err(error) if self.has_other_name(restore.family, &error) => {}
                Ok(completion) if tool_message::is_unknown_option(&completion) => {}
                done => return done,
            }
        }
        if self.version(restore.family)?.restore_supports_wait() {
            return self.start_restore_with_wait(restore, text, mode);
        }
        let path = self.lock_path().to_owned();
        let lock = self.runner.lock(&path, self.wait)?;
        let completion = self.start_restore_with(Vec::new(), restore, text, mode);
        drop(lock);
        completion
    }

    fn start_restore_with_wait(
        &mut self,
        restore: &Restore,
        text: String,
        mode: Mode,
    ) -> Result<Completion, Error> {
        // In two arguments: see `start_restore`.
        let wait = vec!["--wait".into(), self.wait_seconds()];
        self.start_restore_with(wait, restore, text, mode)
    }

    fn start_restore_with(
        &mut self,
        mut arguments: Vec<String>,
        restore: &Restore,
        text: String,
        mode: Mode,
    ) -> Result<Completion, Error> {
        if restore.mode == RestoreMode::Keep {
            arguments.push("--noflush".into());
        }
        arguments.push("--counters".into());
        if mode == Mode::Test {
            arguments.push("--test".into());
        }
        let program = self.program(restore.family, "restore");
        self.start(&program, arguments, text.into_bytes(), self.wait)
    }
}

/// The longest text, in bytes, that is copied in case that its tool is too old for `--wait`.
const MOST_COPIED: usize = 1 << 20;

/// Whether the tool exists, and executed the whole input.
fn is_accepted(done: &Result<Completion, Error>) -> bool {
    done.as_ref().is_ok_and(|completion| completion.status == Some(0))
}
