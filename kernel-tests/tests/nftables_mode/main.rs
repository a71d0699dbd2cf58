//! nftables mode on a real kernel with real packets: which clients reach a frontend, which endpoint replies, which source address it sees, and
//! what other programs on the node observe.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test reports errors by panicking"
)]

mod affinity;
mod balance;
mod changes;
mod kills;
mod kube_proxy;
mod neighbours;
mod node_ports;
mod packets;
mod policies;
mod ranges;
mod refusals;
mod sctp;
mod support;
mod udp;
mod watch;
mod watched_runner;
