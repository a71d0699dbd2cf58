//! The updates that a listener has not received.

use std::collections::VecDeque;
use std::num::NonZeroUsize;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use super::update::Update;

/// The receiving end of a listener. Dropping it ends the subscription.
#[derive(Debug)]
pub struct Subscription(Arc<Shared>);

/// The proxier is gone, and every update was received.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the proxier ended; there are no further updates")]
pub struct Disconnected;

/// The sending end.
#[derive(Debug)]
pub(crate) struct Subscriber {
    shared: Weak<Shared>,
    capacity: NonZeroUsize,
}

#[derive(Debug, Default)]
struct Shared {
    queue: Mutex<Queue>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct Queue {
    updates: VecDeque<Arc<Update>>,
    has_ended: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        // No code that may panic runs while it is locked.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Both ends. At most `capacity` updates wait to be received.
pub(super) fn pair(capacity: NonZeroUsize) -> (Subscriber, Subscription) {
    let shared = Arc::new(Shared::default());
    let subscriber = Subscriber {
        shared: Arc::downgrade(&shared),
        capacity,
    };
    (subscriber, Subscription(shared))
}

impl Subscription {
    /// Waits for the next update.
    ///
    /// # Errors
    /// [`Disconnected`].
    pub fn recv(&self) -> Result<Arc<Update>, Disconnected> {
        let is_waiting = |queue: &mut Queue| queue.updates.is_empty() && !queue.has_ended;
        let queue = self.0.changed.wait_while(self.0.lock(), is_waiting);
        let mut queue = queue.unwrap_or_else(PoisonError::into_inner);
        queue.updates.pop_front().ok_or(Disconnected)
    }

    /// Waits for the next update, at most for this time. `None` if there was none.
    ///
    /// # Errors
    /// [`Disconnected`].
    pub fn recv_timeout(&self, timeout: Duration) -> Result<Option<Arc<Update>>, Disconnected> {
        let is_waiting = |queue: &mut Queue| queue.updates.is_empty() && !queue.has_ended;
        let waited = self
            .0
            .changed
            .wait_timeout_while(self.0.lock(), timeout, is_waiting);
        let (mut queue, _) = waited.unwrap_or_else(PoisonError::into_inner);
        next(&mut queue)
    }

    /// The next update. `None` if there is none yet. Does not wait.
    ///
    /// # Errors
    /// [`Disconnected`].
    pub fn try_recv(&self) -> Result<Option<Arc<Update>>, Disconnected> {
        next(&mut self.0.lock())
    }
}

fn next(queue: &mut Queue) -> Result<Option<Arc<Update>>, Disconnected> {
    match queue.updates.pop_front() {
        None if queue.has_ended => Err(Disconnected),
        update => Ok(update),
    }
}

impl Subscriber {
    /// Whether the receiving end exists.
    pub(super) fn is_open(&self) -> bool {
        self.shared.strong_count() > 0
    }

    /// Adds an update, or merges it into the last one if the queue is full. Never waits for the listener, which holds the lock only to
    /// take an update.
    pub(super) fn send(&mut self, update: &Arc<Update>) {
        let Some(shared) = self.shared.upgrade() else {
            return;
        };
        let mut queue = shared.lock();
        let is_full = queue.updates.len() >= self.capacity.get();
        match queue.updates.back_mut() {
            Some(last) if is_full => Arc::make_mut(last).merge(update),
            _ => queue.updates.push_back(Arc::clone(update)),
        }
        drop(queue);
        shared.changed.notify_one();
    }
}

impl Drop for Subscriber {
    fn drop(&mut self) {
        if let Some(shared) = self.shared.upgrade() {
            shared.lock().has_ended = true;
            shared.changed.notify_all();
        }
    }
}
