//! Changes of kernel objects by other programs.

use std::sync::{Arc, Mutex};

use kernlink_base::ErrorChain;
use kernlink_proxier::Runner;
use kernlink_proxier::watch::{WatchEvent, WatchOptions, Watcher};

use crate::modes::Served;
use crate::state::{self, State};

/// Starts a thread that makes the runner repair what other programs change. `None`, after it was logged, if the kernel's events cannot be
/// received: changes are then found by the periodic readings.
pub(crate) fn watch<M: Served>(
    config: &M::Config,
    options: &WatchOptions,
    state: &Arc<Mutex<State>>,
) -> Option<Watcher> {
    let state = Arc::clone(state);
    let watcher = Watcher::start(config, options, move |event| {
        if let WatchEvent::Failed(error) = &event {
            tracing::warn!("{}; tried again", ErrorChain(error));
        }
        let state = state::lock(&state);
        // The first sync reads everything.
        let runner = state.runner.as_ref().map(|runner| runner.as_any());
        let Some(runner) = runner.and_then(|runner| runner.downcast_ref::<Runner<M>>()) else {
            return;
        };
        match event {
            WatchEvent::Recheck(keys) => runner.recheck(keys),
            WatchEvent::Addresses => runner.recheck_addresses(),
            WatchEvent::Resync => runner.resync(),
            _ => {}
        }
    });
    match watcher {
        Ok(watcher) => Some(watcher),
        Err(error) => {
            let error = ErrorChain(&error).to_string();
            tracing::error!("changes by other programs are found by periodic readings only: {error}");
            None
        }
    }
}
