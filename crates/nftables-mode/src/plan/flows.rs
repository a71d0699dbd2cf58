//! The step that deletes stale UDP flows: one for each family, after the writes that make flows stale.

use std::net::SocketAddr;

use kernlink_engine::data_path::BuilderOf;
use kernlink_host::flows::Reading;
use kernlink_services::{Family, Protocol};

use super::Need;
use crate::key::Key;
use crate::order::Phase;
use crate::state::State;

/// Adds the step for the stale flows of a family. With a switch of tables packets use what is written only after it: until then, the next
/// packet of a deleted flow would begin one to the endpoints of the table that serves.
pub(super) fn plan_flows(
    state: &State,
    family: Family,
    switch: Option<&Need>,
    builder: &mut BuilderOf<'_, State>,
) {
    // While the tables are not read, no Service is written: deleted flows would begin again to the endpoints of an earlier process.
    if state.flows.tracked.reading() == Reading::Unsupported || !state.family(family).is_read {
        return;
    }
    let mut stale = match switch {
        Some(switch) => state.flows.stale_after(family, switch),
        None => state.flows.stale(family, |service| {
            builder.steps_of(&Key::Service(family, service.clone()))
        }),
    };
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
