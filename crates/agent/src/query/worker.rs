//! The thread that answers what needs the proxier or the kernel, so that neither the servers nor a sync wait for it.

use std::io;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender, TrySendError};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use crate::modes::AnyProxier;
use crate::state::{self, State};

/// How long an answer waits for a sync in progress.
const SYNC_TIMEOUT: Duration = Duration::from_millis(700);

/// How long an answer waits for several readings.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(5);

type Job = Box<dyn FnOnce(&mut Reader) + Send>;

/// Passes questions to the thread, which ends when this is dropped.
#[derive(Clone, Debug)]
pub(crate) struct Worker(SyncSender<Job>);

/// Why there is no answer yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotRead {
    /// No sync may begin yet.
    NotStarted,
    /// A sync takes longer than an answer.
    Syncing,
}

impl NotRead {
    pub(crate) fn text(self) -> &'static str {
        match self {
            NotRead::NotStarted => {
                "the agent has not started to sync; `kernlink-agent status` shows what it waits for"
            }
            NotRead::Syncing => {
                "a sync is in progress, and has taken longer than an answer may; ask again when it has ended"
            }
        }
    }
}

/// Reads the proxier.
pub(crate) struct Reader {
    state: Arc<Mutex<State>>,
    /// The end of a reading that was asked for and has not ended: there is one at a time, however many clients ask.
    outstanding: Option<Receiver<()>>,
    /// When the answer to the present question must be complete.
    end: Instant,
}

impl Worker {
    /// Starts the thread. At most this number of questions wait.
    ///
    /// # Errors
    /// If the system cannot start a thread.
    pub(crate) fn start(state: Arc<Mutex<State>>, waiting: usize) -> io::Result<Self> {
        let (sender, jobs) = mpsc::sync_channel::<Job>(waiting);
        thread::Builder::new()
            .name("kernlink-query".to_owned())
            .spawn(move || {
                let mut reader = Reader {
                    state,
                    outstanding: None,
                    end: Instant::now(),
                };
                for job in jobs {
                    reader.end = Instant::now() + ANSWER_TIMEOUT;
                    job(&mut reader);
                }
            })?;
        Ok(Self(sender))
    }

    /// Calls a function on the thread. Returns false if too many wait.
    pub(crate) fn send(&self, job: impl FnOnce(&mut Reader) + Send + 'static) -> bool {
        match self.0.try_send(Box::new(job)) {
            Ok(()) => true,
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => false,
        }
    }
}

impl Reader {
    /// Calls a function with the proxier, on its thread, between two syncs. The function must be short: syncs wait for it.
    ///
    /// # Errors
    /// If the proxier does not run, or a sync in progress takes longer than an answer may.
    pub(crate) fn read<T: Send + 'static>(
        &mut self,
        read: impl FnOnce(&dyn AnyProxier) -> T + Send + 'static,
    ) -> Result<T, NotRead> {
        let end = self.end.min(Instant::now() + SYNC_TIMEOUT);
        let left = || end.saturating_duration_since(Instant::now());
        if let Some(outstanding) = self.outstanding.take()
            && Err(RecvTimeoutError::Timeout) == outstanding.recv_timeout(left())
        {
            self.outstanding = Some(outstanding);
            return Err(NotRead::Syncing);
        }
        let (sender, value) = mpsc::channel();
        let (ended, end_of_read) = mpsc::channel();
        {
            let state = state::lock(&self.state);
            let Some(runner) = &state.runner else {
                return Err(NotRead::NotStarted);
            };
            runner.start_read(Box::new(move |proxier| {
                // Dropped when the function has returned, or is never called.
                let _ended = ended;
                let _ = sender.send(read(proxier));
            }));
        }
        match value.recv_timeout(left()) {
            Ok(value) => Ok(value),
            Err(RecvTimeoutError::Disconnected) => Err(NotRead::NotStarted),
            Err(RecvTimeoutError::Timeout) => {
                self.outstanding = Some(end_of_read);
                Err(NotRead::Syncing)
            }
        }
    }

    /// The state, for what is short.
    pub(crate) fn state(&self) -> &Mutex<State> {
        &self.state
    }
}
