//! The step that deletes stale UDP flows: one for each family, after the writes that make flows stale.

use std::collections::BTreeSet;

use kernlink_engine::Subject;
use kernlink_engine::plan::Needs;
use kernlink_host::flows::Reading;
use kernlink_services::Family;

use super::rules::Written;
use super::{Builder, Need};
use crate::data_path::key::Key;
use crate::data_path::order::Phase;
use crate::data_path::state::State;
use crate::proxy::Transport;

/// Adds the step for the stale flows of a family.
pub(super) fn plan_flows(state: &State, family: Family, written: &Written, builder: &mut Builder<'_>) {
    if state.flows.reading() == Reading::Unsupported {
        return;
    }
    let mut destinations = state.flows.stale(family).clone();
    let is_unconditional = !destinations.is_empty();
    let mut needs: Vec<Need> = Vec::new();
    let mut subjects: BTreeSet<&Subject> = BTreeSet::new();
    for (key, subject, need) in &written.steps {
        if key.transport != Transport::Udp {
            continue;
        }
        let captured = state.destinations(key);
        if !captured.is_empty() {
            destinations.extend(captured);
            subjects.insert(subject);
            needs.push(need.clone());
        }
    }
    if destinations.is_empty() {
        return;
    }
    let subject = match (subjects.len(), subjects.first()) {
        (1, Some(subject)) if !is_unconditional => (*subject).clone(),
        _ => Subject::DataPath,
    };
    let needs = if is_unconditional {
        Needs::none()
    } else {
        Needs::none().and_any(needs)
    };
    let pass = state.flows_pass(family, destinations);
    builder.push(Phase::DeleteFlows, Key::Flows(family), subject, pass, needs);
}
