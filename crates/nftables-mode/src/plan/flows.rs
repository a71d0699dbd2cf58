//! The step that deletes stale UDP flows: one for each family, after the writes that make flows stale.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use kernlink_engine::data_path::BuilderOf;
use kernlink_engine::{StaleFlows, Subject};
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
    let mut stale = StaleFlows::default();
    stale.stale(state.flows.tracked.stale(family));
    for (address, service) in &state.flows.changed {
        // A frontend whose elements are in the kernel already was compared by the first listing.
        if Family::of(address.ip()) == family
            && let Some(step) = written.services.get(service)
        {
            let subject = Subject::Service(service.clone());
            stale.change([*address], Some(&subject), step.clone());
        }
    }
    for (address, step) in written.withdrawn {
        stale.change([address], None, step);
    }
    stale.push(builder, Phase::DeleteFlows, Key::Flows(family), |destinations| {
        state.flows.pass(family, destinations).into()
    });
}
