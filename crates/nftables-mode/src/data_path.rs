//! nftables mode as a data path: what the engine calls.

use std::time::{Duration, Instant};

use kernlink_engine::data_path::{BuilderOf, Class, DataPath};
use kernlink_engine::{Intervals, InvalidConfig, Pace};
use kernlink_services::{Changes, Event, Family, FrontendKey, InterfaceAddress, ObjectName, Services};

use super::config::Config;
use super::error::Error;
use super::kernel::Kernel;
use super::key::Key;
use super::operation::Operation;
use super::order::Phase;
use super::state::State;
use super::totals::Totals;
use super::{observe, plan};

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
        self.listing_time()
    }

    fn new(config: &Config) -> Self {
        State::new(config)
    }

    fn set_config(&mut self, config: &Config) {
        self.set_config(config);
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

    fn recheck(&mut self, kernel: &mut Kernel, keys: &[Key]) -> Result<Vec<Key>, Error> {
        observe::recheck(self, kernel, keys)
    }

    fn reverted(&self, key: &Key) -> Option<Key> {
        self.reverted(key)
    }

    fn set_time(&mut self, now: Instant) {
        self.now = Some(now);
    }

    fn next(&self) -> Option<Instant> {
        self.next()
    }

    fn needs_listing(&self, now: Instant) -> bool {
        self.needs_listing(now)
    }

    fn unread(&self) -> Vec<Class> {
        self.unread()
    }

    fn interface_addresses(&self) -> Vec<InterfaceAddress> {
        self.interfaces.iter().cloned().collect()
    }

    fn compile(&mut self, services: &Services, changes: &Changes) -> Vec<Event> {
        self.compile(services, changes)
    }

    fn set_dirty(&mut self, key: &Key) {
        self.set_dirty(key);
    }

    fn is_dirty(&self, key: &Key) -> bool {
        self.is_dirty(key)
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
        self.serves(frontend, service)
    }

    fn record(&mut self, operation: &Operation) {
        self.record(operation);
    }

    fn record_failure(&mut self, operation: &Operation, error: &Error) {
        self.record_failure(operation, error);
    }

    fn clear_dirty(&mut self) {
        self.clear_dirty();
    }

    fn class(key: &Key) -> Class {
        key.class()
    }

    fn totals(&self) -> Totals {
        self.totals()
    }
}
