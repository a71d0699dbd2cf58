//! The proxier on a real kernel.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test says what went wrong by panicking"
)]

mod forwarding;
mod handover;
mod kill;
mod ownership;
mod packets;
mod support;
mod sync;
mod worlds;
