//! The step that deletes stale UDP flows: one for each family, after changes that make flows stale.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use kernlink_engine::plan::{Needs, Subject};
use kernlink_host::DeleteFlows;
use kernlink_host::flows::Reading;
use kernlink_services::Family;

use super::{Need, Planner};
use crate::key::Key;
use crate::operation::Operation;
use crate::order::Phase;
use crate::ownership::{Identified, identified};
use crate::sets::SetId;
use crate::state::udp_address;

/// The destinations of one family whose flows the steps of a plan make stale.
#[derive(Default)]
struct Changed {
    destinations: BTreeSet<SocketAddr>,
    /// The steps on virtual servers and real servers, of which at least one must be done.
    needs: Vec<Need>,
    /// Whether some of the destinations were made stale before this plan.
    has_left_over: bool,
    subjects: BTreeSet<Subject>,
}

impl Planner<'_, '_, '_> {
    pub(super) fn delete_flows(&mut self) {
        if self.state.flows.reading() == Reading::Unsupported {
            return;
        }
        let mut changed = self.changed_flows();
        for family in Family::ALL {
            let mut changed = std::mem::take(&mut changed[family.index()]);
            let flows = &self.state.flows;
            let stale = flows.stale(family);
            let is_due = flows.is_dirty(family) && !stale.is_empty();
            if changed.destinations.is_empty() && !is_due {
                continue;
            }
            changed.destinations.extend(stale);
            let addresses = changed.destinations.into_iter();
            let destinations = addresses.map(|address| self.state.flow_destination(address));
            let operation = DeleteFlows::new(family, destinations);
            let needs = if stale.is_empty() && !changed.has_left_over {
                Needs::none().and_any(changed.needs)
            } else {
                Needs::none()
            };
            let mut subjects = changed.subjects.into_iter();
            let subject = match (subjects.next(), subjects.next()) {
                (Some(subject), None) if stale.is_empty() => subject,
                _ => Subject::DataPath,
            };
            self.builder
                .push(Phase::DeleteFlows, Key::Flows(family), subject, operation, needs);
        }
    }

    /// The destinations that steps of the plan change, by family.
    fn changed_flows(&self) -> [Changed; 2] {
        let mut changed: [Changed; 2] = Default::default();
        for (subject, operation, need) in self.builder.steps() {
            match operation {
                Operation::Ipvs(operation) => {
                    let Some(address) = self.state.flows_changed_by(operation) else {
                        continue;
                    };
                    let changed = &mut changed[Family::of(address.ip()).index()];
                    changed.needs.push(need);
                    changed.destinations.insert(address);
                    changed.subjects.insert(subject.clone());
                }
                Operation::Set(kernlink_ipset::Operation::Delete { set, entry, .. }) => {
                    // Without its virtual server, which an earlier process removed: that process may have ended before it deleted
                    // the flows.
                    let Some((family, set)) = SetId::of_name(set) else {
                        continue;
                    };
                    let addresses = self.left_over(family, set, entry);
                    if !addresses.is_empty() {
                        let changed = &mut changed[family.index()];
                        changed.has_left_over = true;
                        changed.destinations.extend(addresses);
                        changed.subjects.insert(subject.clone());
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
