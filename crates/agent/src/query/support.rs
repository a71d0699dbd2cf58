//! The answer to `/v1/support`, for `kernlink-agent support-bundle`.

use std::collections::BTreeMap;

use serde_json::Value;

use super::documents::{Support, VERSION};
use crate::settings::Settings;
use crate::state::State;
use crate::{print, version};

/// What the process was started with.
#[derive(Clone, Debug, Default)]
pub(crate) struct StartedWith {
    configuration: Value,
    flags: BTreeMap<String, String>,
}

impl StartedWith {
    pub(crate) fn new(settings: &Settings) -> Self {
        Self {
            configuration: print::configuration_value(&settings.file),
            flags: settings.flags.clone(),
        }
    }
}

/// Waits for nothing but the lock of the state.
pub(super) fn answer(state: &State, started_with: &StartedWith) -> Support {
    let events = state.with_status(|status| status.recent());
    Support {
        version: VERSION,
        agent: version::TEXT.to_owned(),
        configuration: started_with.configuration.clone(),
        flags: started_with.flags.clone(),
        events: events.into_iter().map(|(_, event)| event).collect(),
        metrics: state.metrics().ok(),
    }
}
