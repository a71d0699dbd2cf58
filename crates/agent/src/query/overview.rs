//! The answer to `/v1/status`, from the state that the threads share.

use std::time::{Instant, SystemTime};

use super::documents::{self, StaleKind, VERSION};
use super::{socket, time};
use crate::state::State;

/// The status of the agent. Waits for nothing but the lock of the state.
pub(crate) fn answer(state: &State, now: Instant, wall: SystemTime) -> documents::Status {
    let mut document = documents::Status {
        version: VERSION,
        agent: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        node: state.config().services().node_name.to_string(),
        mode: state.config().mode().to_string(),
        network_namespace: socket::network_namespace(),
        ..documents::Status::default()
    };
    state.with_status(|status| status.fill(&mut document, now, wall));
    if state.runner.is_none() || document.last_sync.is_none() {
        let first = || "the first sync".to_owned();
        document.waiting_for = Some(state.awaited.clone().unwrap_or_else(first));
    }
    document.hand_over.clone_from(&state.after_sync.hand_over);
    document.failing = state
        .after_sync
        .failing
        .iter()
        .map(|failing| failing.at(now))
        .collect();
    if state.has_api_server {
        let stale: Vec<StaleKind> = state
            .stale
            .iter()
            .map(|(kind, since)| StaleKind {
                kind: kind.to_string(),
                since: time::text(since),
                seconds: wall.duration_since(since).unwrap_or_default().as_secs(),
            })
            .collect();
        document.api_server = Some(documents::ApiServer {
            state: if stale.is_empty() { "ok" } else { "stale" }.to_owned(),
            stale,
        });
    }
    let is_stale = document
        .api_server
        .as_ref()
        .is_some_and(|server| !server.stale.is_empty());
    let fails = document.error.is_some() || !document.waiting.is_empty() || is_stale;
    document.state = match (&document.waiting_for, fails) {
        (_, true) => "failing",
        (Some(_), false) => "waiting",
        (None, false) => "ok",
    }
    .to_owned();
    document
}
