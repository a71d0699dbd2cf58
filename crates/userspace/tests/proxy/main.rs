//! The proxy with real sockets on the loopback device.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test reports errors by panicking"
)]

mod ports;
mod support;
mod tcp;
mod udp;
