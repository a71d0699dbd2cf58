//! Steps of virtual servers and real servers.

use std::collections::HashMap;

use kernlink_engine::plan::Needs;
use kernlink_ipset::Entry;
use kernlink_ipvs::{Operation, Protocol, VirtualServerKey};
use kernlink_services::Family;

use super::drains::MOST_ALTERNATIVES;
use super::{EntryKey, Need, Planner, ServerDifference};
use crate::key::Key;
use crate::order::Phase;
use crate::sets::{self, SetId};
use crate::state::{DesiredServer, udp_address};

impl Planner<'_, '_, '_> {
    pub(super) fn virtual_servers(&mut self) {
        for difference in &self.servers {
            let Some(desired) = difference.desired else {
                continue;
            };
            let server = &desired.virtual_server;
            let operation = match difference.observed {
                None => Operation::AddVirtualServer(server.clone()),
                Some(observed) if observed.virtual_server != *server => {
                    Operation::UpdateVirtualServer(server.clone())
                }
                Some(_) => continue,
            };
            let is_new = difference.observed.is_none();
            let needs = Needs::all(self.needs_of_server(difference.key, desired, is_new));
            let key = Key::VirtualServer(*difference.key);
            let subject = difference.subject.clone();
            self.builder
                .push(Phase::VirtualServers, key, subject, operation, needs);
        }
    }

    /// The addition of a virtual server that does not exist.
    pub(super) fn added_server(&self, difference: &ServerDifference<'_>) -> Vec<Need> {
        match difference.observed {
            None => self.builder.steps_of(&Key::VirtualServer(*difference.key)),
            Some(_) => Vec::new(),
        }
    }

    /// A virtual server needs its entries, which identify it as owned, except those that follow it. One with restricted sources needs the
    /// rules too, but of its sources only the sets: the rules drop the packets of those that could not be added. A new one needs the sysctls
    /// without which it would not work.
    fn needs_of_server(&self, key: &VirtualServerKey, desired: &DesiredServer, is_new: bool) -> Vec<Need> {
        let Some(family) = key.address().map(Family::of) else {
            return Vec::new();
        };
        let mut needs = Vec::new();
        if is_new {
            needs.extend(self.sysctl_needs(family));
        }
        for (set, entry) in self.state.entries_of(desired) {
            let of_plan = (family, *set, entry.clone());
            let is_source = matches!(set, SetId::LoadBalancerSourceCidr | SetId::LoadBalancerSourceIp);
            if is_source {
                needs.extend(self.set_needs(family, *set));
                continue;
            }
            if self.late.contains_key(&of_plan) {
                continue;
            }
            let is_present = self.state.entries[family.index()][set.index()].is_observed(entry);
            if !is_present && self.server_before_entry(*set, entry).is_some() {
                needs.extend(self.set_needs(family, *set));
            } else {
                needs.extend(self.entry_needs(family, *set, entry.clone()));
            }
            if *set == SetId::LoadBalancerFirewall {
                needs.extend(self.rules_needs(family));
            }
        }
        needs
    }

    pub(super) fn real_servers(&mut self) {
        let mut added: HashMap<VirtualServerKey, Vec<Need>> = HashMap::new();
        for difference in &self.servers {
            let Some(desired) = difference.desired else {
                continue;
            };
            let known = difference.observed;
            if known.is_some_and(|known| known.real_servers_agree(&desired.real_servers)) {
                continue;
            }
            let key = *difference.key;
            let new = self.added_server(difference);
            if new.iter().any(|need| matches!(need, Need::Waiting(_))) {
                // The real servers are planned with their virtual server.
                continue;
            }
            let removed_local = self.removed_local_of(&key);
            let adopted = self.adoption_needs(difference);
            let frontends = self.frontend_needs(difference, desired);
            // Those with weight 0 follow: one that serves is kept until another one does.
            let is_first = known.is_none_or(|known| known.real_servers.is_empty());
            let phase = match udp_address(&key) {
                Some(_) if is_first => Phase::FirstUdpRealServers,
                _ => Phase::RealServers,
            };
            let is_waiting = known.is_some_and(|known| desired.missing_first(known).is_some());
            let accepting = desired
                .real_servers
                .iter()
                .filter(|server| !server.weight.is_draining());
            let others = desired
                .real_servers
                .iter()
                .filter(|server| server.weight.is_draining());
            for server in accepting.chain(others) {
                let observed = known.and_then(|known| known.real_server(&server.key));
                let operation = match observed {
                    None => Operation::AddRealServer {
                        virtual_server: key,
                        real_server: server.clone(),
                    },
                    Some(observed) if !observed.agrees_with(server) => Operation::UpdateRealServer {
                        virtual_server: key,
                        real_server: server.clone(),
                    },
                    Some(_) => continue,
                };
                let needs = new.iter().chain(&removed_local).chain(&adopted);
                let needs = needs.chain(&frontends);
                let mut needs = Needs::all(needs.cloned());
                let accepts = !server.weight.is_draining();
                if is_waiting && !accepts && observed.is_some_and(|observed| !observed.is_draining()) {
                    let Some(added) = added.get(&key) else { continue };
                    needs = needs.and_any(added.iter().take(MOST_ALTERNATIVES).cloned());
                }
                let need = self.builder.push(
                    phase,
                    Key::RealServer(key, server.key),
                    difference.subject.clone(),
                    operation,
                    needs,
                );
                // It accepts connections after this step, and did not before.
                if accepts && observed.is_none_or(|observed| observed.is_draining()) {
                    added.entry(key).or_default().push(need);
                }
            }
        }
        self.added = added;
    }

    /// Steps that must be done before real servers are added to a virtual server: removals of local-policy entries.
    fn removed_local_of(&self, key: &VirtualServerKey) -> Vec<Need> {
        let (Some(address), Some(port), Some(protocol)) = (key.address(), key.port(), key.protocol()) else {
            return Vec::new();
        };
        let Some(frontend) = sets::of_virtual_server(key) else {
            return Vec::new();
        };
        let by_port = match protocol {
            Protocol::Tcp => Some(SetId::NodePortLocalTcp),
            Protocol::Udp => Some(SetId::NodePortLocalUdp),
            _ => None,
        };
        let family = Family::of(address);
        let by_frontend = [
            SetId::ExternalIpLocal,
            SetId::LoadBalancerLocal,
            SetId::NodePortLocalSctp,
        ];
        let entries = by_frontend
            .map(|set| (family, set, frontend.clone()))
            .into_iter()
            .chain(by_port.map(|set| (family, set, Entry::port(port))));
        let is_left = |(family, set, entry): &EntryKey| {
            let table = &self.state.entries[family.index()][set.index()];
            let stays = |whole: SetId| self.stays(*family, whole, entry);
            table.is_observed(entry) && !table.is_desired(entry) && set.whole().is_some_and(stays)
        };
        entries
            .filter(is_left)
            .flat_map(|(family, set, entry)| self.builder.after(&Key::Entry(family, set, entry), false))
            .collect()
    }

    /// The late entries of a virtual server.
    pub(super) fn late_of(&self, difference: &ServerDifference<'_>) -> Vec<EntryKey> {
        let family = difference.key.address().map(Family::of);
        let (Some(desired), Some(family)) = (difference.desired, family) else {
            return Vec::new();
        };
        let entries = self.state.entries_of(desired).iter();
        entries
            .map(|(set, entry)| (family, *set, entry.clone()))
            .filter(|entry| self.late.contains_key(entry))
            .collect()
    }

    pub(super) fn remove_virtual_servers(&mut self) {
        for difference in &self.servers {
            let (None, Some(observed), Some(address)) =
                (difference.desired, difference.observed, difference.key.address())
            else {
                continue;
            };
            if !observed.is_owned || !self.state.managed.contains(&Family::of(address)) {
                continue;
            }
            let closed = self.removed_frontends(difference.key);
            let needs = Needs::all(self.unbound(address).into_iter().chain(closed));
            self.builder.push(
                Phase::RemoveVirtualServers,
                Key::VirtualServer(*difference.key),
                difference.subject.clone(),
                Operation::DeleteVirtualServer(*difference.key),
                needs,
            );
        }
    }
}
