//! The proxier on a real kernel.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test reports errors by panicking"
)]

#[path = "../../../crates/agent/tests/support/any_proxier.rs"]
mod any_proxier;
mod bound_ports;
mod clusters;
#[path = "../../../crates/proxier/tests/support/mod.rs"]
mod desired;
mod draining;
mod foreign_rules;
mod forwarding;
mod handover;
mod kill;
mod missing;
mod mode_change;
#[path = "../../../crates/proxier/tests/support/oracle.rs"]
mod oracle;
mod ownership;
mod packets;
mod policy;
mod random_kills;
mod reconfiguration;
#[path = "../../../crates/proxier/tests/support/scenario.rs"]
mod scenario;
mod scenarios;
mod support;
mod sync;
mod udp;
mod watch;
