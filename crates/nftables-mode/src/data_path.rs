//! nftables mode as a data path: what the engine calls.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kernlink_engine::data_path::{BuilderOf, Class, DataPath};
use kernlink_engine::table::Table;
use kernlink_engine::{Intervals, InvalidConfig, Pace, Readings};
use kernlink_host::flows::UdpFrontends;
use kernlink_host::node_addresses;
use kernlink_services::{
    Changes, Event, Family, FrontendKey, InterfaceAddress, NodeFacts, ObjectName, ServicePortId, Services,
};

use super::config::Config;
use super::error::Error;
use super::events::Events;
use super::kernel::Kernel;
use super::key::Key;
use super::operation::Operation;
use super::order::Phase;
use super::state::{FamilyState, State};
use super::totals::Totals;
use super::{observe, plan};

/// The time that `nft` 1.0.6 takes to list an element, with a margin of a fifth.
const LISTING_OF_ELEMENT: Duration = Duration::from_micros(30);

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

    fn pace(&self) -> Option<Pace> {
        Some(self.config().pace())
    }

    fn listing_time(&self) -> Duration {
        let elements = self
            .families
            .iter()
            .map(|family| family.totals.elements)
            .sum::<usize>();
        LISTING_OF_ELEMENT.saturating_mul(u32::try_from(elements).unwrap_or(u32::MAX))
    }

    fn new(config: &Config) -> Self {
        let mut state = Self {
            config: Arc::new(config.clone()),
            node: NodeFacts::default(),
            sysctls: Table::default(),
            families: Family::ALL.map(FamilyState::new),
            ports: Vec::new(),
            last_pool: 0,
            flows: UdpFrontends::default(),
            events: Events::default(),
            readings: Readings::new("table", true),
            limited: BTreeSet::new(),
            is_outdated: false,
            now: None,
        };
        state.configure();
        state
    }

    fn set_config(&mut self, config: &Config) {
        if *config != *self.config {
            let before = std::mem::replace(&mut self.config, Arc::new(config.clone()));
            let with_networks = Config {
                service_cidrs: config.service_cidrs.clone(),
                ..(*before).clone()
            };
            // No element of a Service depends on the networks of cluster IPs.
            self.is_outdated |= *config != with_networks;
            self.configure();
        }
    }

    fn observe(&mut self, kernel: &mut Kernel) -> Result<Vec<Event>, Error> {
        observe::observe(self, kernel)
    }

    fn observe_families(&mut self, kernel: &mut Kernel, families: &[Family]) -> Vec<Event> {
        observe::observe_families(self, kernel, families)
    }

    fn observe_keys(&mut self, kernel: &mut Kernel, keys: &[Key]) -> Result<(), Error> {
        observe::observe_keys(self, kernel, keys);
        Ok(())
    }

    fn recheck(&mut self, kernel: &mut Kernel, keys: &[Key]) -> Result<Vec<Key>, Error> {
        Ok(observe::recheck(self, kernel, keys))
    }

    /// A listing does not read the elements of a table that no other program can change, that has too many, or whose sets others change all the
    /// time.
    fn is_read_by_listing(&self, key: &Key) -> bool {
        match key {
            Key::Service(family, _)
            | Key::Shared(family, _)
            | Key::ServiceCidrs(family)
            | Key::Element(family, _)
            | Key::Elements(family, _) => self.family(*family).are_elements_read,
            Key::Frontend(key) => self.family(key.family()).are_elements_read,
            _ => true,
        }
    }

    fn reverted(&self, key: &Key) -> Option<Key> {
        let is_changed = match key {
            Key::Sysctl(name) => self.sysctls.is_changed(name),
            Key::Table(family) => self.family(*family).is_table_changed,
            Key::Service(family, name) => self.family(*family).changed.contains(name),
            Key::ServiceCidrs(family) => self.family(*family).are_networks_changed,
            _ => false,
        };
        is_changed.then(|| key.clone())
    }

    /// An element is repaired with its Service. One that this crate never adds, and many, are repaired with their table.
    fn repaired_with(&self, key: &Key) -> Option<Key> {
        match key {
            Key::Element(family, element) => {
                let owner = self.family(*family).owner_of(element);
                Some(owner.unwrap_or(Key::Table(*family)))
            }
            Key::Elements(family, _) => Some(Key::Table(*family)),
            _ => None,
        }
    }

    fn set_time(&mut self, now: Instant) {
        self.now = Some(now);
    }

    fn next(&self) -> Option<Instant> {
        let now = self
            .now
            .filter(|_| self.families.iter().any(|family| family.needs_listing));
        [now, self.readings.retry_at()].into_iter().flatten().min()
    }

    fn needs_listing(&self, now: Instant) -> bool {
        self.families.iter().any(|family| family.needs_listing)
            || self.readings.retry_at().is_some_and(|at| at <= now)
    }

    fn unread(&self) -> Vec<Class> {
        self.readings.unread()
    }

    fn interface_addresses(&mut self, kernel: &mut Kernel) -> Result<Vec<InterfaceAddress>, Error> {
        Ok(node_addresses(&mut *kernel.links)?)
    }

    fn compile(&mut self, services: &Services, changes: &Changes) -> Vec<Event> {
        if changes.node {
            self.node = services.node_facts().clone();
        }
        if std::mem::take(&mut self.is_outdated) {
            let mut ids: Vec<ServicePortId> = services.ports().map(|(id, _)| id).collect();
            ids.extend(&changes.ports);
            for id in ids {
                self.compile_port(services, id);
            }
        } else {
            for id in &changes.ports {
                self.compile_port(services, *id);
            }
        }
        self.settle_tables();
        self.flows.compare_observed();
        self.events.take()
    }

    fn set_dirty(&mut self, key: &Key) {
        match key {
            Key::Sysctl(name) => self.sysctls.set_dirty(name.clone()),
            Key::Table(family) | Key::Owner(family) | Key::Switch(family) | Key::OldTable(family, _) => {
                self.family_mut(*family).is_table_dirty = true;
            }
            Key::Service(family, name) => _ = self.family_mut(*family).dirty.insert(name.clone()),
            Key::Frontend(key) => self.family_mut(key.family()).set_frontend_dirty(key),
            Key::Shared(family, _) => self.family_mut(*family).is_shared_dirty = true,
            Key::ServiceCidrs(family) => self.family_mut(*family).are_networks_dirty = true,
            Key::Element(family, element) => self.family_mut(*family).set_element_dirty(element),
            Key::Elements(family, _) => self.family_mut(*family).is_all_dirty = true,
            Key::Flows(family) => self.flows.tracked.set_dirty(*family),
        }
    }

    fn is_dirty(&self, key: &Key) -> bool {
        match key {
            Key::Sysctl(name) => self.sysctls.is_dirty(name),
            Key::Table(family) | Key::Owner(family) | Key::Switch(family) | Key::OldTable(family, _) => {
                self.family(*family).is_table_dirty
            }
            Key::Service(family, name) => {
                let family = self.family(*family);
                family.is_all_dirty || family.dirty.contains(name)
            }
            Key::Frontend(key) => {
                let family = self.family(key.family());
                family.is_all_dirty || family.dirty_leftovers.contains(key)
            }
            Key::Shared(family, _) => {
                let family = self.family(*family);
                family.is_all_dirty || family.is_shared_dirty
            }
            Key::ServiceCidrs(family) => {
                let family = self.family(*family);
                family.is_all_dirty || family.are_networks_dirty
            }
            // No step has such a key.
            Key::Element(family, _) | Key::Elements(family, _) => self.family(*family).is_all_dirty,
            Key::Flows(family) => self.flows.tracked.is_dirty(*family),
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

    fn serves(&self, key: &FrontendKey, service: &ObjectName) -> bool {
        self.family(key.family()).serves(key, service)
    }

    fn record(&mut self, operation: &Operation) {
        self.record(operation);
    }

    fn record_failure(&mut self, operation: &Operation, error: &Error) {
        self.record_failure(operation, error);
    }

    fn clear_dirty(&mut self) {
        self.sysctls.clear_dirty();
        self.flows.tracked.clear_dirty();
        for family in &mut self.families {
            family.clear_dirty();
        }
    }

    fn class(key: &Key) -> Class {
        key.class()
    }

    fn totals(&self) -> Totals {
        Totals {
            families: [self.families[0].totals, self.families[1].totals],
        }
    }
}
