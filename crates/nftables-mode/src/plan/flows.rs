//! The step that deletes stale UDP flows: one for each family, after the writes that make flows stale.

use std::net::SocketAddr;

use kernlink_engine::data_path::BuilderOf;
use kernlink_engine::{StaleFlows, Subject};
use kernlink_host::flows::Reading;
use kernlink_services::{Family, Protocol};

use crate::key::Key;
use crate::order::Phase;
use crate::state::State;

/// Adds the step for the stale flows of a family.
pub(super) fn plan_flows(state: &State, family: Family, builder: &mut BuilderOf<'_, State>) {
    if state.flows.tracked.reading() == Reading::Unsupported {
        return;
    }
    let mut stale = StaleFlows::default();
    stale.stale(state.flows.tracked.stale(family));
    for (address, service) in &state.flows.changed {
        if Family::of(address.ip()) != family {
            continue;
        }
        // A frontend whose elements are in the kernel already, so that there is no step, was compared by the first listing.
        for step in builder.steps_of(&Key::Service(family, service.clone())) {
            stale.change([*address], Some(&Subject::Service(service.clone())), step);
        }
    }
    for key in &state.family(family).leftovers {
        if key.protocol == Protocol::Udp {
            for step in builder.steps_of(&Key::Frontend(*key)) {
                stale.change([SocketAddr::new(key.address, key.port)], None, step);
            }
        }
    }
    stale.push(builder, Phase::DeleteFlows, Key::Flows(family), |destinations| {
        state.flows.pass(family, destinations).into()
    });
}
