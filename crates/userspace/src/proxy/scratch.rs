//! A buffer for each thread: a connection has none while it waits.

use std::cell::RefCell;

/// The size: larger than any datagram.
pub(super) const SIZE: usize = 64 * 1024;

thread_local! {
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// Calls `work` with the buffer of the thread, which must not be used again within.
pub(super) fn with<T>(work: impl FnOnce(&mut [u8]) -> T) -> T {
    BUFFER.with_borrow_mut(|buffer| {
        buffer.resize(SIZE, 0);
        work(buffer)
    })
}
