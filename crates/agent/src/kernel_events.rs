//! Changes of kernel objects by other programs.

use std::sync::{Arc, Mutex};

use kernlink_base::ErrorChain;
use kernlink_proxier::Runner;
use kernlink_proxier::watch::{WatchOptions, Watcher};

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
        let state = state::lock(&state);
        // Before it: the first sync reads everything.
        let runner = state.runner.as_ref().map(|runner| runner.as_any());
        let Some(runner) = runner.and_then(|runner| runner.downcast_ref::<Runner<M>>()) else {
            return;
        };
        event.pass_to(runner);
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
