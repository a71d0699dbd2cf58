//! All modes, chosen by the configuration: a data path that passes everything on to that of the mode, and removes what another mode left.

mod active;
mod config;
mod error;
mod execute;
mod kernel;
mod key;
mod leftovers;
mod listing;
mod mode;
mod operation;
mod removal;
mod retiring_ipvs;
mod serving;
mod state;
mod totals;

#[cfg(test)]
mod tests;

use std::time::Instant;

use kernlink_proxier::data_path::{BuilderOf, Class, DataPath};
use kernlink_proxier::iptables_mode::IptablesMode;
use kernlink_proxier::ipvs_mode::IpvsMode;
use kernlink_proxier::{Intervals, InvalidConfig};
use kernlink_services::{Changes, Event, Family, FrontendKey, InterfaceAddress, ObjectName, Services};
use kernlink_userspace::UserspaceMode;

pub use self::active::Active;
use self::active::{OneMode, in_mode};
pub use self::config::{Config, UserspaceConfig};
pub use self::error::Error;
pub use self::kernel::Kernel;
pub use self::key::Key;
pub use self::listing::Listings;
pub use self::mode::{Mode, UnknownMode};
pub use self::operation::{Operation, Phase};
pub use self::removal::Removal;
pub use self::state::State;
pub use self::totals::Totals;

/// The data path of the configured mode.
pub type AllModes = State;

/// A proxier of any mode.
pub type Proxier = kernlink_proxier::Proxier<State>;
/// A plan of any mode.
pub type Plan = kernlink_proxier::data_path::PlanOf<State>;
/// What a sync in any mode did.
pub type Synced = kernlink_proxier::data_path::SyncedOf<State>;
/// Why a sync in any mode did nothing.
pub type SyncError = kernlink_proxier::data_path::SyncErrorOf<State>;

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
        config.services()
    }

    fn intervals(config: &Config) -> Option<Intervals> {
        Some(config.intervals())
    }

    fn new(config: &Config) -> Self {
        State::new(config)
    }

    fn set_config(&mut self, config: &Config) {
        State::set_config(self, config);
    }

    fn observe(&mut self, kernel: &mut Kernel) -> Result<Vec<Event>, Error> {
        let config = &self.config;
        let mut events = in_mode!(&mut self.active, |M, active| M::observe(
            active,
            M::kernel(kernel, config)?
        )?);
        let active = &self.active;
        let is_served = |frontend: &FrontendKey, service: &ObjectName| active.serves(frontend, service);
        events.extend(self.leftovers.observe(config, kernel, is_served)?);
        Ok(events)
    }

    fn observe_families(&mut self, kernel: &mut Kernel, families: &[Family]) -> Vec<Event> {
        // `observe` succeeded before, so the APIs are open.
        in_mode!(&mut self.active, |M, active| M::kernel(kernel, &self.config)
            .map(|kernel| M::observe_families(active, kernel, families))
            .unwrap_or_default())
    }

    fn observe_keys(&mut self, kernel: &mut Kernel, keys: &[Key]) -> Result<(), Error> {
        in_mode!(&mut self.active, |M, active| M::observe_keys(
            active,
            M::kernel(kernel, &self.config)?,
            &M::keys(keys)
        )?);
        if let Some(retiring) = &mut self.leftovers.ipvs {
            retiring.observe_keys(kernel, &IpvsMode::keys(keys));
        }
        if keys.contains(&Key::Leftovers) {
            let active = &self.active;
            self.leftovers.read(&self.config, kernel, |frontend, service| {
                active.serves(frontend, service)
            });
        }
        Ok(())
    }

    fn is_observed(&self, key: &Key) -> bool {
        in_mode!(&self.active, |M, active| M::key(key)
            .is_some_and(|key| M::is_observed(active, key)))
    }

    fn recheck(&mut self, kernel: &mut Kernel, keys: &[Key]) -> Result<Vec<Key>, Error> {
        Ok(in_mode!(&mut self.active, |M, active| {
            let kernel = M::kernel(kernel, &self.config)?;
            let changed = M::recheck(active, kernel, &M::keys(keys))?;
            changed.into_iter().map(Into::into).collect()
        }))
    }

    fn undone(&self, key: &Key) -> Option<Key> {
        in_mode!(&self.active, |M, active| M::undone(active, M::key(key)?)
            .map(Into::into))
    }

    fn set_time(&mut self, now: Instant) {
        in_mode!(&mut self.active, |M, active| M::set_time(active, now));
        self.leftovers.set_time(now);
    }

    fn due(&self, now: Instant) -> Vec<Key> {
        let mut due: Vec<Key> = in_mode!(&self.active, |M, active| {
            M::due(active, now).into_iter().map(Into::into).collect()
        });
        due.extend(self.leftovers.due(now));
        due
    }

    fn next(&self) -> Option<Instant> {
        let of_mode = in_mode!(&self.active, |M, active| M::next(active));
        of_mode.into_iter().chain(self.leftovers.next()).min()
    }

    fn needs_listing(&self, now: Instant) -> bool {
        in_mode!(&self.active, |M, active| M::needs_listing(active, now))
    }

    fn unread(&self) -> Vec<Class> {
        in_mode!(&self.active, |M, active| M::unread(active))
    }

    fn consequence(key: &Key) -> Option<&'static str> {
        key.consequence()
    }

    fn draining(&self) -> usize {
        in_mode!(&self.active, |M, active| M::draining(active)) + self.leftovers.draining()
    }

    fn interface_addresses(&self) -> Vec<InterfaceAddress> {
        in_mode!(&self.active, |M, active| M::interface_addresses(active))
    }

    fn first_services(&self) -> &[ObjectName] {
        // After a change of the mode the other mode serves until the first plan is executed as a whole.
        if self.is_new_mode {
            return &[];
        }
        in_mode!(&self.active, |M, active| M::first_services(active))
    }

    fn compile(&mut self, services: &Services, changes: &Changes) -> Vec<Event> {
        self.leftovers.compile(services, changes);
        let everything = std::mem::take(&mut self.is_new_mode).then(|| services.everything());
        let changes = everything.as_ref().unwrap_or(changes);
        in_mode!(&mut self.active, |M, active| M::compile(
            active, services, changes
        ))
    }

    fn set_dirty(&mut self, key: &Key) {
        if *key == Key::Leftovers {
            self.leftovers.set_dirty();
        }
        in_mode!(&mut self.active, |M, active| if let Some(key) = M::key(key) {
            M::set_dirty(active, key);
        });
        if let (Some(retiring), Some(key)) = (&mut self.leftovers.ipvs, IpvsMode::key(key)) {
            IpvsMode::set_dirty(retiring.state_mut(), key);
        }
    }

    fn is_dirty(&self, key: &Key) -> bool {
        if *key == Key::Leftovers {
            return self.leftovers.is_dirty();
        }
        if let (Some(retiring), Some(key)) = (&self.leftovers.ipvs, IpvsMode::key(key)) {
            return IpvsMode::is_dirty(retiring.state(), key);
        }
        // No plan needs an object of another mode: its retry ends with the next plan.
        in_mode!(&self.active, |M, active| M::key(key)
            .is_none_or(|key| M::is_dirty(active, key)))
    }

    fn plan(&mut self, plan: &mut BuilderOf<'_, Self>) {
        if let Active::Iptables(active) = &mut self.active {
            for family in Family::ALL {
                let left = self.leftovers.ipvs.as_ref();
                let rules = left.map(|left| left.state().needed_rules(family));
                active.set_interim_rules(family, rules);
            }
        }
        in_mode!(&mut self.active, |M, active| plan
            .add_part(|part| M::plan(active, part)));
        let active = &self.active;
        self.leftovers
            .plan(plan, |frontend, service| active.serves(frontend, service));
    }

    fn execute(kernel: &mut Kernel, operations: &[&Operation]) -> Vec<Result<(), Error>> {
        kernel.execute_all(operations)
    }

    fn outcome_missing() -> Error {
        Error::OutcomeMissing
    }

    fn is_outcome_unknown(error: &Error) -> bool {
        match error {
            Error::Ipvs(error) => IpvsMode::is_outcome_unknown(error),
            Error::Iptables(error) => IptablesMode::is_outcome_unknown(error),
            Error::Userspace(error) => UserspaceMode::is_outcome_unknown(error),
            Error::OutcomeMissing => true,
            Error::Start(_) => false,
        }
    }

    fn serves(&self, frontend: &FrontendKey, service: &ObjectName) -> bool {
        self.active.serves(frontend, service)
    }

    fn record(&mut self, operation: &Operation) {
        if let Operation::RemoveLeftovers(_) = operation {
            self.leftovers.record_removed();
        }
        in_mode!(
            &mut self.active,
            |M, active| if let Some(operation) = M::operation(operation) {
                M::record(active, operation);
            }
        );
        if let (Some(retiring), Some(operation)) = (&mut self.leftovers.ipvs, IpvsMode::operation(operation))
        {
            IpvsMode::record(retiring.state_mut(), operation);
        }
    }

    fn record_failure(&mut self, operation: &Operation, error: &Error) {
        in_mode!(
            &mut self.active,
            |M, active| if let (Some(operation), Some(error)) = (M::operation(operation), M::error(error)) {
                M::record_failure(active, operation, error);
            }
        );
    }

    fn clear_dirty(&mut self) {
        in_mode!(&mut self.active, |M, active| M::clear_dirty(active));
        self.leftovers.clear_dirty();
    }

    fn class(key: &Key) -> Class {
        key.class()
    }

    fn totals(&self) -> Totals {
        in_mode!(&self.active, |M, active| M::totals(active).into())
    }
}
