//! Userspace mode on the in-memory fakes.
#![cfg(feature = "fake")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test reports errors by panicking"
)]

mod changes;
mod failures;
mod flows;
mod replacements;
mod restart;
mod rules;
mod support;
