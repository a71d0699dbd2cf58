//! Shared code of the kernel tests: network namespaces, traffic between them, features of the kernel, and
//! the standard tools to compare results with.
//!
//! The tests are in `tests/`. They are normally started by `cargo xtask test` (on the host, and in a VM) or
//! `cargo xtask vm test`, as root. Functions of this library panic if the setup fails.

#![expect(
    clippy::panic,
    reason = "this library is only for tests, which fail by panicking"
)]

pub mod expectations;
pub mod kernel;
pub mod listings;
pub mod load;
pub mod manifests;
pub mod mounts;
pub mod netns;
pub mod programs;
pub mod sctp;
pub mod tools;
pub mod traffic;
pub mod udp_clients;
pub mod wait;
