//! What the kernel tests share: network namespaces, traffic between them, questions to the kernel, and
//! the standard tools as a second opinion.
//!
//! The tests are in `tests/`. They are normally started by `cargo xtask test` (on the host, and in a VM) or
//! `cargo xtask vm test`, as root. Whatever cannot be set up here panics with its cause: in a test that is the failure.

#![expect(
    clippy::panic,
    reason = "this library is only for tests, whose way to fail is to panic"
)]

pub mod kernel;
pub mod netns;
pub mod programs;
pub mod tools;
pub mod traffic;
pub mod wait;
