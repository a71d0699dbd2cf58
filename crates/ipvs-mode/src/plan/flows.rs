//! The steps that delete stale UDP flows of a family: before the first real servers of virtual servers, and after other changes that make
//! flows stale.

use kernlink_engine::StaleFlows;
use kernlink_host::DeleteFlows;
use kernlink_host::flows::Reading;
use kernlink_ipvs::VirtualServerKey;
use kernlink_services::Family;

use super::Planner;
use crate::key::Key;
use crate::operation::Operation;
use crate::order::Phase;
use crate::sets::SetId;

/// The destinations of one family whose flows are to be compared.
#[derive(Default)]
struct Changed {
    /// Those of virtual servers that get their first real server, before they get it.
    first: StaleFlows<Key>,
    /// All others.
    others: StaleFlows<Key>,
}

impl Planner<'_, '_, '_> {
    pub(super) fn delete_flows(&mut self) {
        if self.state.flows.reading() == Reading::Unsupported {
            return;
        }
        let changed = self.changed_flows();
        for (family, mut changed) in Family::ALL.into_iter().zip(changed) {
            let flows = &self.state.flows;
            if !changed.first.is_empty() || !changed.others.is_empty() || flows.is_dirty(family) {
                changed.others.stale(flows.stale(family));
            }
            if !changed.others.is_empty() {
                // Also those that the first pass compares: if it fails, the success of the second one ends the retries of both.
                changed.others.add(&changed.first);
            }
            self.push_pass(Phase::DeleteFlowsOfNew, family, changed.first);
            self.push_pass(Phase::DeleteFlows, family, changed.others);
        }
    }

    fn push_pass(&mut self, phase: Phase, family: Family, stale: StaleFlows<Key>) {
        let state = self.state;
        stale.push(self.builder, phase, Key::Flows(family), |addresses| {
            let addresses = addresses.into_iter();
            let destinations = addresses.map(|address| state.flow_destination(address));
            DeleteFlows::new(family, destinations).into()
        });
    }

    /// The destinations that steps of the plan change, by family.
    fn changed_flows(&self) -> [Changed; 2] {
        let mut changed: [Changed; 2] = Default::default();
        for (subject, operation, step) in self.builder.steps() {
            match operation {
                Operation::Ipvs(operation) => {
                    let Some(address) = self.state.flows_changed_by(operation) else {
                        continue;
                    };
                    let of_family = &mut changed[Family::of(address.ip()).index()];
                    if !matches!(operation, kernlink_ipvs::Operation::AddRealServer { .. }) {
                        of_family.others.change([address], Some(subject), step);
                        continue;
                    }
                    let key = VirtualServerKey::udp(address.ip(), address.port());
                    // If it exists, it has no real servers, and the flows do not wait for a change of it.
                    let is_new = !self.state.servers.is_observed(&key);
                    let addition = self.builder.steps_of(&Key::VirtualServer(key)).pop();
                    match addition.filter(|_| is_new) {
                        Some(server) => of_family.first.change([address], Some(subject), server),
                        None => of_family.first.left_over([address], subject),
                    }
                }
                Operation::Set(kernlink_ipset::Operation::Delete { set, entry, .. }) => {
                    // Without its virtual server, which an earlier process removed: that process may have ended before it deleted
                    // the flows.
                    if let Some((family, set)) = SetId::of_name(set) {
                        let node_addresses = self.state.node_port_addresses(family);
                        let left_over = self.state.left_over(set, entry, node_addresses);
                        changed[family.index()].others.left_over(left_over, subject);
                    }
                }
                _ => {}
            }
        }
        changed
    }
}
