//! Two pieces of work at the same time.

use std::panic::resume_unwind;
use std::thread;

/// Does `there` on a thread of its own while this one does `here`; one after the other if no thread can be started. The thread is in the
/// network namespace of the calling one. A panic of either is one of the caller.
pub fn at_once<A: Send, B>(mut there: impl FnMut() -> A + Send, here: impl FnOnce() -> B) -> (A, B) {
    let (done, here) = thread::scope(|scope| {
        let started = thread::Builder::new().spawn_scoped(scope, &mut there);
        let here = here();
        let done = started
            .ok()
            .map(|thread| thread.join().unwrap_or_else(|panic| resume_unwind(panic)));
        (done, here)
    });
    (done.unwrap_or_else(there), here)
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
        assert_eq!(at_once(there, here), (11, 2));
    }
}
