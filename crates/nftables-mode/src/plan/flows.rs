//! The step that deletes stale UDP flows: one for each family, after the writes that make flows stale.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use kernlink_engine::data_path::BuilderOf;
use kernlink_engine::plan::{Needs, Subject};
use kernlink_host::flows::Reading;
use kernlink_services::{Family, FrontendKey, ObjectName, Protocol};

use crate::key::Key;
use crate::order::Phase;
use crate::state::State;

type Need = kernlink_engine::plan::Need<Key>;

/// The writes of a plan in one family.
#[derive(Default)]
pub(super) struct Written {
    pub(super) services: BTreeMap<ObjectName, Need>,
    /// The UDP frontends of an earlier process that are removed, and the steps.
    withdrawn: Vec<(SocketAddr, Need)>,
}

impl Written {
    /// Adds a frontend of an earlier process that a step removes.
    pub(super) fn add_leftover(&mut self, key: &FrontendKey, step: Need) {
        if key.protocol == Protocol::Udp {
            self.withdrawn
                .push((SocketAddr::new(key.address, key.port), step));
        }
    }
}

/// Adds the step for the stale flows of a family.
pub(super) fn plan_flows(
    state: &State,
    family: Family,
    written: Written,
    builder: &mut BuilderOf<'_, State>,
) {
    if state.flows.tracked.reading() == Reading::Unsupported {
        return;
    }
    let mut destinations = state.flows.tracked.stale(family).clone();
    let is_unconditional = !destinations.is_empty();
    let mut needs = Vec::new();
    let mut subjects = BTreeSet::new();
    for (address, service) in &state.flows.changed {
        if Family::of(address.ip()) != family {
            continue;
        }
        // A frontend whose elements are in the kernel already was compared by the first listing.
        if let Some(need) = written.services.get(service) {
            destinations.insert(*address);
            if subjects.insert(service) {
                needs.push(need.clone());
            }
        }
    }
    for (address, need) in written.withdrawn {
        destinations.insert(address);
        needs.push(need);
    }
    if destinations.is_empty() {
        return;
    }
    let subject = match (subjects.len(), subjects.first()) {
        (1, Some(service)) if !is_unconditional => Subject::Service((*service).clone()),
        _ => Subject::DataPath,
    };
    let needs = if is_unconditional {
        Needs::none()
    } else {
        Needs::none().and_any(needs)
    };
    let pass = state.flows.pass(family, destinations);
    builder.push(Phase::DeleteFlows, Key::Flows(family), subject, pass, needs);
}
