//! Connection tracking on the kernel: flows of real connections through address translation are listed, deleted and watched, and
//! compared with the tool `conntrack`.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod events;
mod expectations;
mod filters;
mod flows;
mod listing;
mod service_network;
