//! Userspace mode as a data path: what the engine calls.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use kernlink_engine::data_path::{BuilderOf, Class, DataPath};
use kernlink_engine::table::Table;
use kernlink_engine::{Intervals, InvalidConfig};
use kernlink_host::node_addresses;
use kernlink_iptables_restore::Table as RulesTable;
use kernlink_services::{
    Changes, Event, Family, FrontendKey, InterfaceAddress, NodeFacts, ObjectName, Protocol, ServicePortId,
    Services,
};

use super::config::Config;
use super::error::Error;
use super::kernel::Kernel;
use super::key::{Key, Part, RulesKey};
use super::operation::Operation;
use super::order::Phase;
use super::state::{ChainRule, Listening, State, index};
use super::totals::Totals;
use super::{observe, plan, watch};
use crate::ports::PortAllocator;
use crate::proxy::Transport;

impl DataPath for State {
    type Config = Config;
    type Kernel = Kernel;
    type Key = Key;
    type Operation = Operation;
    type Phase = Phase;
    type Error = Error;
    type Totals = Totals;

    fn validate(config: &Config) -> Result<(), InvalidConfig> {
        config.validate()
    }

    fn services_config(config: &Config) -> &kernlink_services::Config {
        &config.services
    }

    fn intervals(config: &Config) -> Option<Intervals> {
        Some(config.intervals())
    }

    fn new(config: &Config) -> Self {
        State::new(config)
    }

    fn set_config(&mut self, config: &Config) {
        if *config == *self.config {
            return;
        }
        if config.port_range != self.config.port_range {
            // Portals with a port in the new range keep it; the others get a new one when they are compiled.
            for allocator in self.allocators.iter_mut().flatten() {
                *allocator = PortAllocator::new(config.port_range, u64::from(config.port_range.first()));
            }
            for placed in self.placed.iter().flatten() {
                let key = placed.listener;
                self.allocators[placed.portal.key.family().index()][index(key.transport)]
                    .reserve(key.address.port());
            }
            for key in &self.closing {
                self.allocators[Family::of(key.address.ip()).index()][index(key.transport)]
                    .reserve(key.address.port());
            }
        }
        self.config = Arc::new(config.clone());
        self.managed.extend(&self.config.services.families);
        self.is_outdated = true;
    }

    fn observe(&mut self, kernel: &mut Kernel) -> Result<Vec<Event>, Error> {
        observe::observe(self, kernel)
    }

    fn observe_families(&mut self, kernel: &mut Kernel, _families: &[Family]) -> Vec<Event> {
        observe::observe_flows(self, kernel).into_iter().collect()
    }

    fn observe_keys(&mut self, kernel: &mut Kernel, keys: &[Key]) -> Result<(), Error> {
        observe::observe_keys(self, kernel, keys);
        Ok(())
    }

    fn is_observed(&self, key: &Key) -> bool {
        match key {
            Key::Listener(key) => self.listeners.is_observed(key),
            Key::Claim(key) => self.claims.is_observed(key),
            Key::Chains(family, _) => self.chains[family.index()].is_readable,
            Key::Rules(key) => self.chains[key.family.index()].is_readable,
            Key::Flows(_) => true,
        }
    }

    fn recheck(&mut self, kernel: &mut Kernel, keys: &[Key]) -> Result<Vec<Key>, Error> {
        Ok(watch::recheck(self, kernel, keys))
    }

    fn set_time(&mut self, now: Instant) {
        self.now = Some(now);
    }

    fn due(&self, now: Instant) -> Vec<Key> {
        let is_due = |family: &Family| self.reading_of(*family).is_some_and(|time| time <= now);
        let unread = self.unread_families().filter(is_due);
        let unread = unread.map(|family| Key::Chains(family, RulesTable::Nat));
        unread
            .chain(self.busy.iter().copied().map(Key::Listener))
            .collect()
    }

    fn next(&self) -> Option<Instant> {
        let is_closed = |key| !self.listeners.is_observed(key);
        let is_freed = !self.unplaced.is_empty() && self.closing.iter().any(is_closed);
        if self.busy.is_empty() && !is_freed {
            self.next_reading()
        } else {
            self.now
        }
    }

    fn unread(&self) -> Vec<Class> {
        let families = self.managed.iter().copied();
        let unread = families.filter(|family| self.is_unread[family.index()]);
        unread
            .map(|family| Key::Chains(family, RulesTable::Nat).class())
            .collect()
    }

    fn interface_addresses(&mut self, kernel: &mut Kernel) -> Result<Vec<InterfaceAddress>, Error> {
        // Without virtual IPs that IPVS mode left: their ports are not claimed.
        self.interfaces = node_addresses(&mut *kernel.links)?;
        Ok(self.interfaces.clone())
    }

    fn compile(&mut self, services: &Services, changes: &Changes) -> Vec<Event> {
        if changes.node {
            let facts = |node: &NodeFacts| {
                Family::ALL.map(|family| {
                    let loopback = node.loopback_node_port_addresses(family).to_vec();
                    (
                        node.node_ip(family),
                        node.accepts_all_node_ports(family),
                        loopback,
                    )
                })
            };
            let before = std::mem::replace(&mut self.node, services.node_facts().clone());
            self.is_outdated |= facts(&before) != facts(&self.node);
        }
        let mut ids: Vec<ServicePortId> = changes.ports.clone();
        self.release_closed();
        self.waiting = std::mem::take(&mut self.unplaced);
        if std::mem::take(&mut self.is_outdated) {
            ids.retain(|id| services.port(*id).is_none());
            ids.extend(services.ports().map(|(id, _)| id));
        } else {
            ids.extend(self.waiting.iter().filter(|id| !changes.ports.contains(id)));
        }
        let mut events = std::mem::take(&mut self.events);
        for id in ids {
            events.extend(self.compile_port(id, services));
        }
        events.extend(self.shortage_events());
        // What no portal needs is free again. The rules are removed as leftovers.
        for ((family, transport, ..), port) in std::mem::take(&mut self.recorded) {
            if !self.is_taken(family, transport, port) {
                self.allocators[family.index()][index(transport)].release(port);
            }
        }
        events
    }

    fn set_dirty(&mut self, key: &Key) {
        match key {
            Key::Listener(key) => {
                if self.busy.remove(key) {
                    self.move_port(*key);
                }
                self.listeners.set_dirty(*key);
            }
            Key::Claim(key) => self.claims.set_dirty(*key),
            Key::Chains(family, table) => _ = self.dirty_chains.insert((*family, *table)),
            Key::Rules(key) => self.rules[key.family.index()].set_dirty(*key),
            Key::Flows(family) => self.flows.set_dirty(*family),
            // A change of them changes Services.
        }
    }

    fn is_dirty(&self, key: &Key) -> bool {
        match key {
            Key::Listener(key) => self.listeners.is_dirty(key),
            Key::Claim(key) => self.claims.is_dirty(key),
            Key::Chains(family, table) => self.dirty_chains.contains(&(*family, *table)),
            Key::Rules(key) => self.rules[key.family.index()].is_dirty(key),
            Key::Flows(family) => self.flows.is_dirty(*family),
        }
    }

    fn plan(&mut self, plan: &mut BuilderOf<'_, Self>) {
        plan::plan(self, plan);
    }

    fn execute(kernel: &mut Kernel, operations: &[&Operation]) -> Vec<Result<(), Error>> {
        kernel.execute_all(operations)
    }

    fn consequence(key: &Key) -> Option<&'static str> {
        match key {
            Key::Listener(_) => Some("the portals that lead to it are not served, others are"),
            Key::Claim(_) => Some("its portal is not served, others are"),
            _ => None,
        }
    }

    fn outcome_missing() -> Error {
        Error::OutcomeMissing
    }

    fn is_outcome_unknown(error: &Error) -> bool {
        error.is_outcome_unknown()
    }

    fn serves(&self, frontend: &FrontendKey, _service: &ObjectName) -> bool {
        let transport = match frontend.protocol {
            Protocol::Tcp => Transport::Tcp,
            Protocol::Udp => Transport::Udp,
            Protocol::Sctp => return false,
        };
        let family = frontend.family();
        let key = |part, address| RulesKey {
            family,
            part,
            transport,
            address,
            port: frontend.port,
        };
        let address = Some(frontend.address);
        let keys = [
            key(Part::Portals, address),
            key(Part::NodePorts, address),
            key(Part::NodePorts, None),
        ];
        let rules = &self.rules[family.index()];
        let jumps = &self.chains[family.index()].jumps;
        let mut desired = keys.iter().filter_map(|key| Some((key, rules.desired(key)?)));
        desired.next().is_some_and(|(key, desired)| {
            let observed = rules.observed(key);
            let is_present = |rule: &ChainRule| {
                jumps.contains(&rule.chain) && observed.is_some_and(|observed| observed.copies(rule) > 0)
            };
            self.listeners.is_observed(&desired.listener) && desired.rules.iter().all(is_present)
        })
    }

    fn is_servable(&self, frontend: &FrontendKey) -> bool {
        frontend.protocol != Protocol::Sctp
    }

    fn set_virtual_ips(&mut self, families: &BTreeSet<Family>) {
        self.has_virtual_ips = Family::ALL.map(|family| families.contains(&family));
        self.is_outdated = true;
    }

    fn record(&mut self, operation: &Operation) {
        match operation {
            Operation::Listen { key, portal, serving } => {
                let value = Listening {
                    portal: portal.clone(),
                    serving: serving.clone(),
                };
                self.listeners.observe(*key, Some(value));
            }
            Operation::Close(key) => self.listeners.observe(*key, None),
            Operation::Claim(key) => self.claims.observe(*key, Some(())),
            Operation::Release(key) => self.claims.observe(*key, None),
            Operation::Write(write) => self.record_write(write),
            Operation::DeleteFlows(pass) => self.flows.record(pass),
        }
    }

    fn record_failure(&mut self, operation: &Operation, error: &Error) {
        match operation {
            Operation::Listen { key, .. } if error.is_address_in_use() => {
                self.busy.insert(*key);
            }
            Operation::DeleteFlows(pass) => self.flows.record_failure(pass),
            _ => {}
        }
    }

    fn clear_dirty(&mut self) {
        self.listeners.clear_dirty();
        self.claims.clear_dirty();
        self.rules.iter_mut().for_each(Table::clear_dirty);
        self.dirty_chains.clear();
        self.flows.clear_dirty();
    }

    fn class(key: &Key) -> Class {
        key.class()
    }

    fn totals(&self) -> Totals {
        Totals {
            listeners: self.listeners.len(),
            claims: self.claims.len(),
            rules: self.rule_counts,
        }
    }
}
