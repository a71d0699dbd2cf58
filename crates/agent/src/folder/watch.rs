//! Reads a folder again when it changes.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{self, PipeReader, PipeWriter};
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, InotifyEvent, WatchDescriptor};

use super::{Folder, Problem, Reading};

/// A thread that reads a folder when a file in it changes, and every 30 seconds in case the kernel missed an event, such as for a
/// file that a link leads to. Dropping it stops the thread.
#[derive(Debug)]
pub struct Watch {
    /// Closed to stop the thread.
    stop: Option<PipeWriter>,
    thread: Option<JoinHandle<()>>,
}

/// The thread cannot be started.
#[derive(Debug)]
pub struct StartError(io::Error);

impl std::fmt::Display for StartError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("cannot start the thread that reads the folder")
    }
}

impl std::error::Error for StartError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.0)
    }
}

/// The time between two readings without an event.
const PERIOD: Duration = Duration::from_secs(30);
/// The same, if the kernel reports no events.
const PERIOD_WITHOUT_EVENTS: Duration = Duration::from_secs(5);
/// How long no event must occur before a reading, so that files that are changed together are read together.
const QUIET: Duration = Duration::from_millis(50);
/// The longest time that events delay a reading.
const MAX_DELAY: Duration = Duration::from_secs(1);
/// A file that was opened for writing for a longer time is read nevertheless.
const MAX_WRITE: Duration = Duration::from_secs(60);

impl Watch {
    /// Starts the thread. `deliver` receives the first reading, and later ones in which something changed.
    ///
    /// # Errors
    /// If the system cannot start a thread.
    pub fn start(folder: Folder, deliver: impl FnMut(Reading) + Send + 'static) -> Result<Self, StartError> {
        let (stopped, stop) = io::pipe().map_err(StartError)?;
        let thread = thread::Builder::new()
            .name("kernlink-folder".to_owned())
            .spawn(move || run(folder, &stopped, deliver))
            .map_err(StartError)?;
        Ok(Self {
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            // A panic was printed by its hook.
            let _ = thread.join();
        }
    }
}

fn run(mut folder: Folder, stopped: &PipeReader, mut deliver: impl FnMut(Reading)) {
    let mut events = Events::new();
    let mut last: Option<(BTreeSet<Problem>, BTreeSet<String>, bool)> = None;
    loop {
        // Before the reading: what changes during it is reported.
        events.watch(&folder.path);
        events.touched.iter().for_each(|name| folder.forget(name));
        events.touched.clear();
        let reading = folder.read_except(|name| events.busy.contains_key(name));
        let state = (
            reading.problems.clone(),
            reading.ignored.clone(),
            reading.is_complete,
        );
        if !reading.changes.is_empty() || last.as_ref() != Some(&state) {
            deliver(reading);
        }
        last = Some(state);
        if !events.wait(stopped, &folder.path) {
            return;
        }
    }
}

/// The events of a folder.
struct Events {
    inotify: Option<Inotify>,
    watched: Option<WatchDescriptor>,
    /// The files that were opened for writing and not closed yet, since when.
    busy: BTreeMap<OsString, Instant>,
    /// The files with a new version.
    touched: BTreeSet<OsString>,
}

impl Events {
    fn new() -> Self {
        let inotify = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK);
        if let Err(error) = &inotify {
            let period = PERIOD_WITHOUT_EVENTS.as_secs();
            tracing::warn!(%error, "the kernel reports no changes of files; the folder is read every {period} seconds");
        }
        Self {
            inotify: inotify.ok(),
            watched: None,
            busy: BTreeMap::new(),
            touched: BTreeSet::new(),
        }
    }

    /// Watches the folder that the path leads to now. A folder that is watched already stays so.
    fn watch(&mut self, path: &Path) {
        let Some(inotify) = &self.inotify else {
            return;
        };
        let flags = AddWatchFlags::IN_CREATE
            | AddWatchFlags::IN_MODIFY
            | AddWatchFlags::IN_CLOSE_WRITE
            | AddWatchFlags::IN_ATTRIB
            | AddWatchFlags::IN_MOVED_FROM
            | AddWatchFlags::IN_MOVED_TO
            | AddWatchFlags::IN_DELETE
            | AddWatchFlags::IN_DELETE_SELF
            | AddWatchFlags::IN_MOVE_SELF
            | AddWatchFlags::IN_ONLYDIR;
        // A folder that does not exist is reported by the reading.
        let watched = inotify.add_watch(path, flags).ok();
        if let Some(previous) = self.watched.filter(|previous| Some(*previous) != watched) {
            // It fails if that folder does not exist any more.
            let _ = inotify.rm_watch(previous);
            self.busy.clear();
        }
        self.watched = watched;
    }

    /// Waits until the folder has to be read. False if the thread has to stop.
    fn wait(&mut self, stopped: &PipeReader, path: &Path) -> bool {
        let is_watched = self.inotify.is_some() && self.watched.is_some();
        let mut end = Instant::now() + if is_watched { PERIOD } else { PERIOD_WITHOUT_EVENTS };
        let mut latest = None;
        loop {
            let timeout = end.saturating_duration_since(Instant::now());
            let mut files = vec![PollFd::new(stopped.as_fd(), PollFlags::POLLIN)];
            files.extend(
                self.inotify
                    .iter()
                    .map(|inotify| PollFd::new(inotify.as_fd(), PollFlags::POLLIN)),
            );
            let milliseconds = u32::try_from(timeout.as_millis()).unwrap_or(u32::MAX);
            match poll(
                &mut files,
                PollTimeout::try_from(milliseconds.saturating_add(1)).unwrap_or(PollTimeout::MAX),
            ) {
                Ok(_) | Err(Errno::EINTR) => {}
                // Out of memory: tried again after a while.
                Err(_) => thread::sleep(QUIET),
            }
            // The other end is closed.
            if files.first().and_then(PollFd::any).unwrap_or(false) {
                return false;
            }
            let now = Instant::now();
            if self.receive(path, now) {
                let latest = *latest.get_or_insert(now + MAX_DELAY);
                end = latest.min(now + QUIET);
            }
            if now >= end {
                self.busy
                    .retain(|_, since| now.duration_since(*since) < MAX_WRITE);
                return true;
            }
        }
    }

    /// Receives the events that are waiting, and returns whether there was one.
    fn receive(&mut self, path: &Path, now: Instant) -> bool {
        let mut is_changed = false;
        while let Some(events) = self
            .inotify
            .as_ref()
            .and_then(|inotify| inotify.read_events().ok())
        {
            if events.is_empty() {
                break;
            }
            is_changed = true;
            for event in events {
                self.handle(event, path, now);
            }
        }
        is_changed
    }

    fn handle(&mut self, event: InotifyEvent, path: &Path, now: Instant) {
        if event.mask.contains(AddWatchFlags::IN_Q_OVERFLOW) {
            // Events are lost, such as that a file was closed.
            self.busy.clear();
        }
        let Some(name) = event.name else {
            return;
        };
        let is_written = event.mask.contains(AddWatchFlags::IN_MODIFY)
            || (event.mask.contains(AddWatchFlags::IN_CREATE) && is_being_created(path, &name));
        if is_written {
            self.busy.entry(name).or_insert(now);
        } else {
            // A change of the attributes does not mean that the writer has closed the file.
            if !event.mask.contains(AddWatchFlags::IN_ATTRIB) {
                self.busy.remove(&name);
            }
            self.touched.insert(name);
        }
    }
}

/// Whether a new file is one that will be written and closed, not a link.
fn is_being_created(folder: &Path, name: &OsStr) -> bool {
    fs::symlink_metadata(folder.join(name)).is_ok_and(|file| file.is_file() && file.nlink() == 1)
}
