//! Userspace mode on the running kernel with real packets: portal rules, endpoints that do not answer, restart, limits.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test reports errors by panicking"
)]

mod endpoints;
mod flood;
mod local_ports;
mod path_mtu;
mod portals;
mod restart;
mod support;
