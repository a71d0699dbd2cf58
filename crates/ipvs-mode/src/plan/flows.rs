//! The step that deletes stale UDP flows: one for each family, after changes that make flows stale.

use std::net::SocketAddr;

use kernlink_engine::StaleFlows;
use kernlink_host::DeleteFlows;
use kernlink_host::flows::Reading;
use kernlink_services::Family;

use super::Planner;
use crate::key::Key;
use crate::operation::Operation;
use crate::order::Phase;
use crate::ownership::{Identified, identified};
use crate::sets::SetId;
use crate::state::udp_address;

impl Planner<'_, '_, '_> {
    pub(super) fn delete_flows(&mut self) {
        if self.state.flows.reading() == Reading::Unsupported {
            return;
        }
        let changed = self.changed_flows();
        for (family, mut changed) in Family::ALL.into_iter().zip(changed) {
            let flows = &self.state.flows;
            if !changed.is_empty() || flows.is_dirty(family) {
                changed.stale(flows.stale(family));
            }
            let state = self.state;
            changed.push(
                self.builder,
                Phase::DeleteFlows,
                Key::Flows(family),
                |addresses| {
                    let addresses = addresses.into_iter();
                    let destinations = addresses.map(|address| state.flow_destination(address));
                    DeleteFlows::new(family, destinations).into()
                },
            );
        }
    }

    /// The destinations that steps of the plan change, by family.
    fn changed_flows(&self) -> [StaleFlows<Key>; 2] {
        let mut changed: [StaleFlows<Key>; 2] = Default::default();
        for (subject, operation, step) in self.builder.steps() {
            match operation {
                Operation::Ipvs(operation) => {
                    if let Some(address) = self.state.flows_changed_by(operation) {
                        changed[Family::of(address.ip()).index()].change([address], Some(subject), step);
                    }
                }
                Operation::Set(kernlink_ipset::Operation::Delete { set, entry, .. }) => {
                    // Without its virtual server, which an earlier process removed: that process may have ended before it deleted
                    // the flows.
                    if let Some((family, set)) = SetId::of_name(set) {
                        changed[family.index()].left_over(self.left_over(family, set, entry), subject);
                    }
                }
                _ => {}
            }
        }
        changed
    }

    /// The UDP frontends that an entry names and that have no virtual server.
    fn left_over(&self, family: Family, set: SetId, entry: &kernlink_ipset::Entry) -> Vec<SocketAddr> {
        let keys = match identified(set, entry) {
            Some(Identified::VirtualServer(key)) => vec![key],
            Some(Identified::NodePort(protocol, port)) => {
                let addresses = self.state.node_port_addresses(family).iter();
                addresses
                    .map(|address| kernlink_ipvs::VirtualServerKey::new(*address, port, protocol))
                    .collect()
            }
            None => Vec::new(),
        };
        let without_server = keys
            .iter()
            .filter(|key| !self.state.servers.is_observed(key) && !self.state.servers.is_desired(key));
        without_server.filter_map(udp_address).collect()
    }
}
