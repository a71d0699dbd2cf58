//! The file while it is not complete. It has a name of its own, which SIGTERM, SIGINT and SIGHUP remove too.

use std::fs::{File, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;

use tempfile::{PathPersistError, TempPath};
use tokio::runtime::Builder;
use tokio::signal::unix::Signal;

use crate::exit::Exit;
use crate::{print, signals};

/// The name of the file, until it is complete.
#[derive(Clone, Default)]
pub(super) struct Partial(Arc<Mutex<State>>);

#[derive(Default)]
enum State {
    /// It is not there yet, or was removed.
    #[default]
    Absent,
    Written(TempPath),
    /// It has its name.
    Complete,
}

impl Partial {
    /// From now on SIGTERM, SIGINT and, if it was not ignored, SIGHUP remove the file and end the process: with status 0 if it was complete, else
    /// with 1.
    ///
    /// # Errors
    /// If the system cannot register signals, or start a thread.
    pub(super) fn remove_at_signals(&self) -> io::Result<()> {
        let runtime = Builder::new_current_thread().enable_io().build()?;
        let [(_, mut terminate), (_, mut interrupt)] = signals::register(&runtime)?;
        let mut hang_up = signals::register_hangup(&runtime)?;
        let partial = self.clone();
        let wait = move || {
            let name = runtime.block_on(async {
                tokio::select! {
                    _ = terminate.recv() => "SIGTERM",
                    _ = interrupt.recv() => "SIGINT",
                    () = receive(hang_up.as_mut()) => "SIGHUP",
                }
            });
            // Kept until the end of the process: the file is not completed after it was removed.
            let mut state = partial.lock();
            let exit = match *state {
                State::Complete => Exit::Success,
                State::Absent | State::Written(_) => Exit::Failure,
            };
            *state = State::Absent;
            if exit == Exit::Failure {
                print::text(&format!("{name}: the archive was not complete, and was removed"));
            }
            process::exit(i32::from(exit.code()))
        };
        thread::Builder::new()
            .name("kernlink-signals".to_owned())
            .spawn(wait)
            .map(drop)
    }

    /// Makes the file in a folder, with mode 0600.
    ///
    /// # Errors
    /// If it cannot be made.
    pub(super) fn make(&self, folder: &Path) -> io::Result<File> {
        // A signal waits for it.
        let mut state = self.lock();
        let file = tempfile::Builder::new()
            .prefix("kernlink-support-")
            .suffix(".partial")
            .permissions(Permissions::from_mode(0o600))
            .tempfile_in(folder)?;
        let (file, path) = file.into_parts();
        *state = State::Written(path);
        Ok(file)
    }

    /// The file is complete: gives it its name.
    ///
    /// # Errors
    /// If that is not possible, such as because a file has this name and is not to be replaced. Then the file is removed.
    pub(super) fn complete(&self, path: &Path, is_replaced: bool) -> io::Result<()> {
        let mut state = self.lock();
        let State::Written(written) = std::mem::take(&mut *state) else {
            return Err(io::Error::other("there is no such file"));
        };
        let renamed = if is_replaced {
            written.persist(path)
        } else {
            written.persist_noclobber(path)
        };
        renamed.map_err(|PathPersistError { error, .. }| error)?;
        *state = State::Complete;
        Ok(())
    }

    /// Removes the file if it is not complete.
    pub(super) fn remove(&self) {
        let mut state = self.lock();
        if matches!(*state, State::Written(_)) {
            *state = State::Absent;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No state is invalid after a panic.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Returns when the signal was received; never without one.
async fn receive(signal: Option<&mut Signal>) {
    match signal {
        Some(signal) => _ = signal.recv().await,
        None => std::future::pending().await,
    }
}
