//! The step that deletes stale UDP flows: one for each family, after the writes that make flows stale.

use kernlink_engine::StaleFlows;
use kernlink_host::flows::Reading;
use kernlink_services::Family;

use super::Builder;
use super::rules::Written;
use crate::data_path::key::Key;
use crate::data_path::order::Phase;
use crate::data_path::state::State;
use crate::proxy::Transport;

/// Adds the step for the stale flows of a family.
pub(super) fn plan_flows(state: &State, family: Family, written: &Written, builder: &mut Builder<'_>) {
    if state.flows.reading() == Reading::Unsupported {
        return;
    }
    let mut stale = StaleFlows::default();
    stale.stale(state.flows.stale(family));
    for (key, subject, step) in &written.steps {
        if key.transport == Transport::Udp {
            stale.change(state.destinations(key), Some(subject), step.clone());
        }
    }
    stale.push(builder, Phase::DeleteFlows, Key::Flows(family), |destinations| {
        state.flows_pass(family, destinations).into()
    });
}
