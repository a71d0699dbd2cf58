//! Two pieces of work at the same time.

use std::panic::resume_unwind;
use std::thread;

/// Runs `background` on a scoped thread while `foreground` runs here; one after the other if no thread can be started. The thread is in the
/// network namespace of the calling one. A panic of either is one of the caller.
pub fn join<A: Send, B>(mut background: impl FnMut() -> A + Send, foreground: impl FnOnce() -> B) -> (A, B) {
    let (done, here) = thread::scope(|scope| {
        let started = thread::Builder::new().spawn_scoped(scope, &mut background);
        let here = foreground();
        let done = started
            .ok()
            .map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)));
        (done, here)
    });
    (done.unwrap_or_else(background), here)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn both_are_done_at_the_same_time() {
        // Each waits for the other.
        let (to_here, from_there) = channel();
        let (to_there, from_here) = channel();
        let there = move || {
            to_here.send(1).unwrap();
            from_here.recv().unwrap() + 1
        };
        let here = move || {
            to_there.send(10).unwrap();
            from_there.recv().unwrap() + 1
        };
        assert_eq!(join(there, here), (11, 2));
    }
}
