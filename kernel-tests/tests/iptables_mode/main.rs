//! iptables mode on a real kernel with real packets, with the legacy and the nft tools: which clients reach a frontend, which endpoint
//! replies, and which source address it sees.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test reports errors by panicking"
)]

mod handover;
#[path = "../../../crates/proxier/tests/support/oracle.rs"]
mod oracle;
mod packets;
mod sctp;
mod support;
mod udp;
mod watch;
