//! Records the outcomes of operations in the observed values.

use std::time::Duration;

use kernlink_ipset::Entry;
use kernlink_services::Family;

use super::{ObservedRules, ObservedServer, State};
use crate::drain;
use crate::operation::Operation;
use crate::replacement;
use crate::sets::SetId;

impl State {
    /// Records an operation that was done.
    pub(crate) fn record(&mut self, operation: &Operation) {
        match operation {
            Operation::Sysctl(operation) => {
                self.sysctls
                    .observe(operation.name.clone(), Some(operation.value.clone()));
            }
            Operation::Link(operation) => self.record_link(operation),
            Operation::Set(operation) => self.record_set(operation),
            Operation::ReplaceSet(replacement) => {
                if let Some(key) = SetId::of_name(&replacement.set.name) {
                    self.sets.observe(key, Some(replacement.set.clone()));
                    self.accept_set(key);
                    self.temporary_sets.observe(key, None);
                    if let (family, SetId::Ledger) = key {
                        self.record_ledger(family, &replacement.entries);
                    }
                }
            }
            // They are read again before the next plan.
            Operation::Rules(_) if self.retired.is_some() => {}
            Operation::Rules(operation) => {
                let family = operation.family();
                let is_restore = matches!(**operation, kernlink_iptables_restore::Operation::Restore(_));
                let rules = is_restore.then(|| Box::new(self.rules(family)));
                let chains = &mut self.chains[family.index()];
                if chains
                    .interim
                    .as_ref()
                    .is_some_and(|interim| interim.removal == *operation)
                {
                    chains.interim = None;
                } else {
                    chains.pending = chains.pending.map(|pending| pending.saturating_sub(1));
                }
                if let Some(rules) = rules {
                    let interim = chains.interim.as_ref().map(|interim| interim.rules.clone());
                    chains.observed = ObservedRules::Written(interim.unwrap_or(rules));
                }
            }
            Operation::Ipvs(operation) => {
                // The flows to the first real server are compared before it is added.
                let changed = self.flows_changed_by(operation);
                if let Some(address) = changed.filter(|address| !self.compared_flows.contains(address)) {
                    self.flows.add_stale(address);
                }
                self.record_ipvs(operation);
            }
            Operation::Flows(operation) => {
                self.flows.record(operation);
                let destinations = operation.destinations.iter();
                self.compared_flows
                    .extend(destinations.map(|destination| destination.address));
            }
        }
    }

    fn record_link(&mut self, operation: &kernlink_dummylink::Operation) {
        use kernlink_dummylink::Operation;
        match operation {
            Operation::AddLink(link) | Operation::EnsureLink(link) => {
                self.links.observe(link.name, Some(()));
            }
            Operation::DeleteLink(name) => self.links.observe(*name, None),
            Operation::AddAddress(_, address) | Operation::EnsureAddress(_, address) => {
                self.addresses.observe(address.key, Some(()));
            }
            Operation::DeleteAddress(_, key) => self.addresses.observe(*key, None),
            // Plans contain no other operation.
            _ => {}
        }
    }

    fn record_set(&mut self, operation: &kernlink_ipset::Operation) {
        use kernlink_ipset::Operation;
        if let Operation::Destroy { set, .. } = operation
            && let Some(key) = replacement::of_temporary(set)
        {
            self.temporary_sets.observe(key, None);
        }
        let Some((family, id)) = SetId::of_name(operation.set()) else {
            if let Some(family) = drain::family_of_set(operation.set()) {
                self.drains.record(family, operation);
            }
            return;
        };
        if let Operation::Create { set, .. } = operation {
            self.sets.observe((family, id), Some((**set).clone()));
            self.accept_set((family, id));
            return;
        }
        let entries = &mut self.entries[family.index()][id.index()];
        match operation {
            Operation::Add { entry, .. } => {
                entries.observe(entry.clone(), Some(()));
                if id == SetId::Ledger {
                    self.adopt(entry);
                }
            }
            Operation::Delete { entry, .. } => entries.observe(entry.clone(), None),
            Operation::Destroy { .. } => {
                entries.observe_all([]);
                self.sets.observe((family, id), None);
            }
            // Plans contain no other operation.
            _ => {}
        }
    }

    /// Records the entries of the ledger, which a replacement changed. Those of other sets are the same as before.
    fn record_ledger(&mut self, family: Family, present: &[Entry]) {
        let entries = &mut self.entries[family.index()][SetId::Ledger.index()];
        let leftovers: Vec<Entry> = entries.iter_observed().map(|(entry, ())| entry.clone()).collect();
        for entry in leftovers {
            entries.observe(entry, None);
        }
        for entry in present {
            entries.observe(entry.clone(), Some(()));
        }
        self.without_ledger.remove(&family);
    }

    fn record_ipvs(&mut self, operation: &kernlink_ipvs::Operation) {
        use kernlink_ipvs::Operation;
        match operation {
            Operation::AddVirtualServer(server) => {
                let observed = ObservedServer {
                    virtual_server: server.clone(),
                    real_servers: Vec::new(),
                    is_owned: true,
                };
                self.servers.observe(server.key, Some(observed));
            }
            Operation::UpdateVirtualServer(server) => {
                if let Some(observed) = self.servers.observed_mut(&server.key) {
                    observed.virtual_server = server.clone();
                    observed.is_owned = true;
                }
            }
            Operation::DeleteVirtualServer(key) => self.servers.observe(*key, None),
            Operation::AddRealServer {
                virtual_server,
                real_server,
            }
            | Operation::UpdateRealServer {
                virtual_server,
                real_server,
            } => {
                if let Some(observed) = self.servers.observed_mut(virtual_server) {
                    observed.set_real_server(real_server.key, Some(real_server.into()));
                }
            }
            Operation::DeleteRealServer {
                virtual_server,
                real_server,
            } => {
                if let Some(observed) = self.servers.observed_mut(virtual_server) {
                    observed.set_real_server(*real_server, None);
                }
            }
            Operation::SetTimeouts(timeouts) => {
                let observed = self.timeouts.observed.get_or_insert_default();
                let set = |observed: &mut Duration, value: Duration| {
                    // Zero keeps the value.
                    if !value.is_zero() {
                        *observed = value;
                    }
                };
                set(&mut observed.tcp, timeouts.tcp);
                set(&mut observed.tcp_fin, timeouts.tcp_fin);
                set(&mut observed.udp, timeouts.udp);
            }
            // Plans contain no other operation.
            _ => {}
        }
    }
}
