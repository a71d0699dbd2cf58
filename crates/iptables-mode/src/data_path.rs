//! iptables mode as a data path: what the engine calls.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use kernlink_engine::data_path::{BuilderOf, Class, DataPath};
use kernlink_engine::retire::{Interim, Name};
use kernlink_engine::{Intervals, InvalidConfig};
use kernlink_host::node_addresses;
use kernlink_iptables_restore::Table;
use kernlink_services::{Changes, Event, Family, FrontendKey, InterfaceAddress, ObjectName, Services};

use super::chains::FixedChain;
use super::config::Config;
use super::error::Error;
use super::kernel::Kernel;
use super::key::Key;
use super::operation::Operation;
use super::order::Phase;
use super::state::State;
use super::totals::{FamilyTotals, Totals};
use super::touched::Touched;
use super::{observe, plan, retire};

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
        self.config = Arc::new(config.clone());
        self.is_outdated = true;
        self.missing.clear();
        self.configure();
    }

    fn observe(&mut self, kernel: &mut Kernel) -> Result<Vec<Event>, Error> {
        observe::observe(self, kernel)
    }

    fn observe_families(&mut self, kernel: &mut Kernel, families: &[Family]) -> Vec<Event> {
        observe::observe_families(self, kernel, families)
    }

    fn observe_keys(&mut self, kernel: &mut Kernel, keys: &[Key]) -> Result<(), Error> {
        observe::observe_keys(self, kernel, keys)
    }

    fn is_observed(&self, key: &Key) -> bool {
        observe::is_observed(self, key)
    }

    fn recheck(&mut self, kernel: &mut Kernel, keys: &[Key]) -> Result<Vec<Key>, Error> {
        observe::recheck(self, kernel, keys)
    }

    fn reverted(&self, key: &Key) -> Option<Key> {
        let is_undone = match key {
            Key::Sysctl(name) => self.sysctls.is_changed(name),
            Key::Fixed(family) | Key::Jump(family, _) | Key::Firewall(family) => {
                // The position of a jump is that of its step.
                let is_changed = self.fixed[family.index()].is_changed;
                return is_changed.then_some(Key::Fixed(*family));
            }
            Key::Service(family, _) | Key::Replaced(family, _) | Key::Leftovers(family) => {
                let (chains, rules) = (&self.chains[family.index()], &self.rules[family.index()]);
                let mut touched = self.touched.get(key).into_iter().flatten();
                touched.any(|object| match object {
                    Touched::Chain(name) => chains.is_changed(name),
                    Touched::Rule(key) => rules.is_changed(key),
                })
            }
            Key::Chain(family, name) => self.chains[family.index()].is_changed(name),
            Key::Accounting(name) => self.accounting.is_changed(name),
            Key::Flows(_) => false,
        };
        is_undone.then(|| key.clone())
    }

    fn set_time(&mut self, now: Instant) {
        self.now = Some(now);
        self.is_full = false;
    }

    fn needs_listing(&self, now: Instant) -> bool {
        self.has_changed_support || self.readings.retry_at().is_some_and(|at| at <= now)
    }

    fn unread(&self) -> Vec<Class> {
        self.readings.unread()
    }

    fn due(&self, _now: Instant) -> Vec<Key> {
        let managed = self.managed.iter().filter(|_| self.is_fixed_outdated);
        managed.map(|family| Key::Fixed(*family)).collect()
    }

    fn next(&self) -> Option<Instant> {
        let now = self
            .now
            .filter(|_| self.is_fixed_outdated || self.has_changed_support);
        [now, self.readings.retry_at()].into_iter().flatten().min()
    }

    fn interface_addresses(&mut self, kernel: &mut Kernel) -> Result<Vec<InterfaceAddress>, Error> {
        self.interfaces = node_addresses(&mut *kernel.links)?;
        Ok(self.interfaces.clone())
    }

    fn compile(&mut self, services: &Services, changes: &Changes) -> Vec<Event> {
        let events = self.compile(services, changes);
        self.complete_dirty();
        events
    }

    fn set_dirty(&mut self, key: &Key) {
        match key {
            Key::Sysctl(name) => self.sysctls.set_dirty(name.clone()),
            Key::Fixed(family) | Key::Jump(family, _) | Key::Firewall(family) => {
                self.set_fixed_dirty(*family);
            }
            Key::Chain(family, name) => self.tables(*family).0.set_dirty(*name),
            Key::Accounting(name) => self.accounting.set_dirty(name.clone()),
            Key::Flows(family) => self.flows.tracked.set_dirty(*family),
            Key::Service(family, _) | Key::Replaced(family, _) | Key::Leftovers(family) => {
                let touched = self.touched.get(key).cloned().unwrap_or_default();
                let (chains, rules) = self.tables(*family);
                for object in touched {
                    match object {
                        Touched::Chain(name) => chains.set_dirty(name),
                        Touched::Rule(key) => rules.set_dirty(key),
                    }
                }
            }
        }
    }

    fn is_dirty(&self, key: &Key) -> bool {
        match key {
            Key::Sysctl(name) => self.sysctls.is_dirty(name),
            Key::Fixed(family) | Key::Jump(family, _) | Key::Firewall(family) => self.is_fixed_dirty(*family),
            Key::Chain(family, name) => self.chains[family.index()].is_dirty(name),
            Key::Accounting(name) => self.accounting.is_dirty(name),
            Key::Flows(family) => self.flows.tracked.is_dirty(*family),
            Key::Service(family, _) | Key::Replaced(family, _) | Key::Leftovers(family) => {
                let (chains, rules) = (&self.chains[family.index()], &self.rules[family.index()]);
                let mut touched = self.touched.get(key).into_iter().flatten();
                touched.any(|object| match object {
                    Touched::Chain(name) => chains.is_dirty(name),
                    Touched::Rule(key) => rules.is_dirty(key),
                })
            }
        }
    }

    fn plan(&mut self, plan: &mut BuilderOf<'_, Self>) {
        plan::plan(self, plan);
    }

    fn execute(kernel: &mut Kernel, operations: &[&Operation]) -> Vec<Result<(), Error>> {
        kernel.execute_all(operations)
    }

    fn outcome_missing() -> Error {
        Error::OutcomeMissing
    }

    fn is_outcome_unknown(error: &Error) -> bool {
        error.is_outcome_unknown()
    }

    fn serves(&self, frontend: &FrontendKey, service: &ObjectName) -> bool {
        self.serves(Family::of(frontend.address), service)
    }

    fn keeps(&self, name: &Name<'_>) -> bool {
        retire::has_chain(name)
    }

    fn set_interim(&mut self, interim: &[Interim]) {
        State::set_interim(self, interim);
    }

    fn set_virtual_ips(&mut self, families: &BTreeSet<Family>) {
        State::set_virtual_ips(self, families);
    }

    fn record(&mut self, operation: &Operation) {
        self.record(operation);
    }

    fn record_failure(&mut self, operation: &Operation, error: &Error) {
        self.record_failure(operation, error);
    }

    fn clear_dirty(&mut self) {
        self.sysctls.clear_dirty();
        self.accounting.clear_dirty();
        self.flows.tracked.clear_dirty();
        self.is_fixed_outdated = std::mem::take(&mut self.changes_fixed);
        for family in Family::ALL {
            let (chains, rules) = self.tables(family);
            chains.clear_dirty();
            rules.clear_dirty();
            let fixed = &mut self.fixed[family.index()];
            fixed.is_dirty = false;
            fixed.is_changed = false;
            // Their rules are in the other table.
            for (_, found) in fixed.observed.iter_mut().filter(|(chain, _)| chain.is_shared()) {
                found.rules.retain(|text| found.own.contains(text));
            }
        }
    }

    fn class(key: &Key) -> Class {
        key.class()
    }

    fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        for family in self.families() {
            let sums = self.sums(family);
            let fixed = |table: Table| -> usize {
                let chains = FixedChain::of(self.config(), family).filter(|chain| chain.table() == table);
                chains.map(|chain| self.static_rules(chain, family).len()).sum()
            };
            totals.families[family.index()] = FamilyTotals {
                chains: self.chains[family.index()].len(),
                shared_rules: self.rules[family.index()].len(),
                filter_rules: sums.filter_rules + fixed(Table::Filter),
                nat_rules: sums.nat_rules + fixed(Table::Nat),
                last_filter_rules: sums.last_filter_rules,
                last_nat_rules: sums.last_nat_rules,
                no_local_internal: sums.no_local_internal,
                no_local_external: sums.no_local_external,
                partial_failures: sums.partial_failures,
            };
        }
        totals
    }
}
