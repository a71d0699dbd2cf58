//! IPVS mode as a data path: what the engine calls.

use std::sync::Arc;
use std::time::Instant;

use kernlink_dummylink::AddressKey;
use kernlink_engine::data_path::{BuilderOf, Class, DataPath};
use kernlink_engine::retire::{Interim, Name};
use kernlink_engine::table::Table;
use kernlink_engine::{Intervals, InvalidConfig, Subject};
use kernlink_services::{Changes, Event, Family, FrontendKey, InterfaceAddress, ObjectName, Services};

use super::config::Config;
use super::error::Error;
use super::kernel::Kernel;
use super::key::Key;
use super::operation::Operation;
use super::order::Phase;
use super::sets::SetId;
use super::state::{ObservedRules, Part, State};
use super::totals::Totals;
use super::virtual_servers::key_of;
use super::{observe, plan, recheck, rules, sysctls};

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
        let compiles_otherwise = config.defaults != self.config.defaults
            || config.service_schedulers != self.config.service_schedulers;
        let before = self.config.link();
        self.config = Arc::new(config.clone());
        self.missing.clear();
        self.is_config_reported = false;
        if let Some(before) = before.filter(|before| Some(*before) != config.link()) {
            self.links.remove(&before, &Subject::DataPath);
            // They are on the previous link and are deleted with it.
            self.addresses.observe_all([]);
        }
        self.configure();
        self.is_outdated |= compiles_otherwise;
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
        recheck::is_observed(self, key)
    }

    fn recheck(&mut self, kernel: &mut Kernel, keys: &[Key]) -> Result<Vec<Key>, Error> {
        recheck::recheck(self, kernel, keys)
    }

    fn reverted(&self, key: &Key) -> Option<Key> {
        self.reverted(key)
    }

    fn interface_addresses(&mut self, kernel: &mut Kernel) -> Result<Vec<InterfaceAddress>, Error> {
        observe::observe_addresses(self, kernel);
        Ok(self.interfaces.clone())
    }

    fn first_services(&self) -> &[ObjectName] {
        if self.is_kernel_empty() {
            &self.config().first_services
        } else {
            &[]
        }
    }

    fn compile(&mut self, services: &Services, changes: &Changes) -> Vec<Event> {
        self.compile(services, changes)
    }

    fn set_time(&mut self, now: Instant) {
        self.drains.set_time(now);
    }

    fn due(&self, now: Instant) -> Vec<Key> {
        let mut keys = self.drains.due(now);
        keys.extend(self.retired_due(now));
        keys
    }

    fn next(&self) -> Option<Instant> {
        let is_due = self.readings.has_changed_support || self.is_restriction_changed();
        let now = self.drains.now().filter(|_| is_due);
        // On a node that another mode serves, an error while listing ends the sync of this part.
        let readings = [now, self.readings.retry_at()];
        let readings = readings.into_iter().filter(|_| self.retired.is_none());
        [self.drains.next(), self.retired_next()]
            .into_iter()
            .chain(readings)
            .flatten()
            .min()
    }

    fn needs_listing(&self, now: Instant) -> bool {
        let is_due = || self.readings.retry_at().is_some_and(|at| at <= now);
        self.retired.is_none() && (self.readings.has_changed_support || is_due())
    }

    fn unread(&self) -> Vec<Class> {
        let mut unread: Vec<Class> = Vec::new();
        for part in &self.readings.failed {
            let kind = match part {
                Part::Links => "link",
                Part::Sets => "set",
            };
            unread.push(Class {
                kind,
                family: None,
                is_shared: false,
            });
        }
        for family in self.families() {
            if !self.is_ownership_known(family) || self.readings.is_ipset_missing {
                unread.push(Class {
                    kind: "set",
                    family: Some(family),
                    is_shared: true,
                });
            }
        }
        unread
    }

    fn consequence(key: &Key) -> Option<&'static str> {
        match key {
            Key::Sysctl(name) => Some(sysctls::consequence(name).text()),
            Key::Rules(_) | Key::Jump(..) => Some(
                "until the rules are in place, no address is bound, and no virtual server with source ranges is added",
            ),
            Key::Entry(_, SetId::LoadBalancerSourceCidr | SetId::LoadBalancerSourceIp, _) => {
                Some("until it is added, the load balancer drops the packets of these clients")
            }
            Key::Entry(_, SetId::LoadBalancerFirewall, _) => {
                Some("until it is added, the load balancer is not served: it would be open to all clients")
            }
            _ => None,
        }
    }

    fn draining(&self) -> usize {
        self.drains.len()
    }

    fn serves(&self, frontend: &FrontendKey, _service: &ObjectName) -> bool {
        let key = key_of(frontend);
        let desired = self.servers.desired(&key);
        let observed = self.servers.observed(&key).filter(|server| server.is_owned);
        let address = AddressKey::host(frontend.address);
        let is_bound =
            address.is_ok_and(|key| !self.addresses.is_desired(&key) || self.addresses.is_observed(&key));
        let has_all = desired
            .zip(observed)
            .is_some_and(|(desired, observed)| desired.missing_first(observed).is_none());
        let chains = &self.chains[frontend.family().index()];
        has_all && is_bound && chains.is_in_place
    }

    fn keeps(&self, name: &Name<'_>) -> bool {
        rules::has_chain(name)
    }

    fn set_interim(&mut self, interim: &[Interim]) {
        State::set_interim(self, interim);
    }

    fn set_dirty(&mut self, key: &Key) {
        if let Some(retired) = &mut self.retired {
            retired.is_dirty = true;
        }
        match key {
            Key::Sysctl(name) => self.sysctls.set_dirty(name.clone()),
            Key::Timeouts => self.timeouts.is_dirty = true,
            Key::Link(name) => self.links.set_dirty(*name),
            Key::Set(family, set) => self.sets.set_dirty((*family, *set)),
            Key::TemporarySet(family, set) => self.temporary_sets.set_dirty((*family, *set)),
            Key::Entry(family, set, entry) => {
                self.entries[family.index()][set.index()].set_dirty(entry.clone());
            }
            Key::Rules(family) | Key::Jump(family, _) => self.set_rules_dirty(*family),
            Key::VirtualServer(key) | Key::RealServer(key, _) | Key::Deadline(key, _) => {
                self.servers.set_dirty(*key);
            }
            // It is created with the first deadline that needs it.
            Key::DrainSet(_) => {}
            Key::Address(key) => self.addresses.set_dirty(*key),
            Key::Flows(family) => self.flows.set_dirty(*family),
        }
    }

    fn is_dirty(&self, key: &Key) -> bool {
        // A plan of its kind compares all objects.
        if let Some(retired) = &self.retired {
            return retired.is_dirty;
        }
        match key {
            Key::Sysctl(name) => self.sysctls.is_dirty(name),
            Key::Timeouts => self.timeouts.is_dirty,
            Key::Link(name) => self.links.is_dirty(name),
            Key::Set(family, set) => {
                // A ledger that is to be written is planned each time.
                self.sets.is_dirty(&(*family, *set))
                    || (*set == SetId::Ledger && self.without_ledger.contains(family))
            }
            Key::TemporarySet(family, set) => self.temporary_sets.is_dirty(&(*family, *set)),
            Key::Entry(family, set, entry) => self.entries[family.index()][set.index()].is_dirty(entry),
            Key::Rules(family) | Key::Jump(family, _) => self.chains[family.index()].is_dirty,
            Key::VirtualServer(key) | Key::RealServer(key, _) | Key::Deadline(key, _) => {
                self.servers.is_dirty(key)
            }
            Key::DrainSet(_) => false,
            Key::Address(key) => self.addresses.is_dirty(key),
            Key::Flows(family) => self.flows.is_dirty(*family),
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
        match error {
            Error::Ipvs(error) => error.is_outcome_unknown(),
            Error::Set(error) => error.is_outcome_unknown(),
            Error::Rules(error) => error.is_outcome_unknown(),
            Error::Link(error) => error.is_outcome_unknown(),
            Error::Sysctl(_) => false,
            // A pass that may have been executed is repeated: it deletes what is still stale.
            Error::Conntrack(_) => false,
            Error::OutcomeMissing => true,
        }
    }

    fn record(&mut self, operation: &Operation) {
        self.record(operation);
    }

    fn record_failure(&mut self, operation: &Operation, error: &Error) {
        match (operation, error) {
            (Operation::Ipvs(kernlink_ipvs::Operation::AddVirtualServer(server)), Error::Ipvs(error))
                if error.is_already_exists() =>
            {
                self.refuse_as_existing(server.key);
            }
            (Operation::Ipvs(operation), Error::Ipvs(error)) if error.is_scheduler_not_loaded() => {
                self.refuse_scheduler(operation);
            }
            (Operation::Set(kernlink_ipset::Operation::Create { set, .. }), _) => {
                if let Some(key) = SetId::of_name(&set.name) {
                    self.refuse_set(key);
                }
            }
            (Operation::ReplaceSet(replacement), _) => {
                if let Some(key) = SetId::of_name(&replacement.set.name) {
                    self.refuse_set_unless_usable(key);
                }
            }
            (Operation::Rules(operation), Error::Rules(error)) => {
                self.find_missing_extensions(operation.family(), error);
            }
            // What was left over is not found again: its entries are removed.
            (Operation::Flows(operation), _) => self.flows.record_failure(operation),
            _ => {}
        }
    }

    fn clear_dirty(&mut self) {
        self.check_restrictions();
        self.sysctls.clear_dirty();
        self.timeouts.is_dirty = false;
        self.links.clear_dirty();
        self.addresses.clear_dirty();
        self.sets.clear_dirty();
        self.temporary_sets.clear_dirty();
        self.entries.iter_mut().flatten().for_each(Table::clear_dirty);
        self.finish_drains();
        self.servers.clear_dirty();
        self.flows.clear_dirty();
        self.compared_flows.clear();
        self.finish_retired();
        for family in Family::ALL {
            let chains = &mut self.chains[family.index()];
            chains.before = None;
            if self.retired.is_some() {
                chains.is_dirty = false;
                continue;
            }
            if chains.is_unread {
                // No plan compared them.
                continue;
            }
            if !std::mem::take(&mut chains.is_dirty) {
                continue;
            }
            chains.is_in_place = chains.pending == Some(0);
            if chains.is_in_place && matches!(chains.observed, ObservedRules::Saved(_)) {
                // Later plans compare the owned chains only.
                let interim = chains.interim.take().map(|interim| interim.rules);
                let rules = interim.unwrap_or_else(|| Box::new(self.rules(family)));
                self.chains[family.index()].observed = ObservedRules::Written(rules);
            }
        }
    }

    fn class(key: &Key) -> Class {
        key.class()
    }

    fn totals(&self) -> Totals {
        let of_family = |family: Family| {
            let tables = &self.entries[family.index()];
            let mut entries = [0; SetId::ALL.len()];
            for &set in SetId::ALL {
                entries[set.index()] = tables[set.index()].len();
            }
            self.sums[family.index()].totals(entries)
        };
        let mut totals = Totals::default();
        for family in Family::ALL {
            totals.families[family.index()] = of_family(family);
        }
        totals.foreign_virtual_servers = self.foreign.keys.len();
        totals
    }
}
