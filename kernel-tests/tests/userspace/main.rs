//! Userspace mode on the running kernel with real packets: portal rules, endpoints that do not answer, taken ports, tracked
//! flows, restart, limits.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test reports errors by panicking"
)]

mod changes;
mod endpoints;
mod flood;
mod flows;
mod local_policy;
mod local_ports;
mod path_mtu;
mod portals;
mod restart;
mod support;
mod taken_ports;
