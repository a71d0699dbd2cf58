//! All modes, chosen by the configuration: a data path that passes everything on to [`any_mode`], which has
//! iptables and IPVS mode, or to userspace mode, and removes what another mode left.

mod config;
mod error;
mod kernel;
mod key;
mod leftovers;
mod mode;
mod operation;
mod removal;
mod state;
mod totals;

#[cfg(test)]
mod tests;

use std::time::Instant;

use kernlink_proxier::any_mode::{self, AnyMode};
use kernlink_proxier::data_path::{Class, DataPath};
use kernlink_proxier::ipvs_mode::IpvsMode;
use kernlink_proxier::plan::PlanBuilder;
use kernlink_proxier::{Intervals, InvalidConfig, ipvs_mode};
use kernlink_services::{Changes, Event, Family, FrontendKey, InterfaceAddress, ObjectName, Services};
use kernlink_userspace::UserspaceMode;

pub use self::config::{Config, UserspaceConfig};
pub use self::error::Error;
pub use self::kernel::Kernel;
pub use self::key::Key;
pub use self::mode::{Mode, UnknownMode};
pub use self::operation::{Operation, Phase};
pub use self::removal::Removal;
use self::state::Active;
pub use self::state::State;
pub use self::totals::Totals;

/// The data path of the configured mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllModes;

/// A proxier of any mode.
pub type Proxier = kernlink_proxier::Proxier<AllModes>;
/// What a sync in any mode did.
pub type Synced = kernlink_proxier::Synced<AllModes>;
/// Why a sync in any mode did nothing.
pub type SyncError = kernlink_proxier::SyncError<Error>;

impl State {
    /// The state of IPVS mode that another mode serves, for one of its keys.
    fn retiring_ipvs(&self, key: &Key) -> Option<(&ipvs_mode::State, ipvs_mode::Key)> {
        match (&self.active, key, &self.leftovers.ipvs) {
            (Active::Userspace(_), Key::InKernel(any_mode::Key::Ipvs(key)), Some(retiring)) => {
                Some((retiring.state(), key.clone()))
            }
            _ => None,
        }
    }
}

impl DataPath for AllModes {
    type Config = Config;
    type Kernel = Kernel;
    type State = State;
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

    fn new_state(config: &Config) -> State {
        State::new(config)
    }

    fn set_config(state: &mut State, config: &Config) {
        state.set_config(config);
    }

    fn observe(state: &mut State, kernel: &mut Kernel) -> Result<Vec<Event>, Error> {
        let mut events = match (&mut state.active, &state.config) {
            (Active::InKernel(state), _) => AnyMode::observe(state, &mut kernel.in_kernel)?,
            (Active::Userspace(state), Config::Userspace(config)) => {
                UserspaceMode::observe(state, kernel.userspace(config)?)?
            }
            (Active::Userspace(_), Config::InKernel(_)) => Vec::new(),
        };
        let active = &state.active;
        let is_served = |frontend: &FrontendKey, service: &ObjectName| active.serves(frontend, service);
        events.extend(state.leftovers.observe(&state.config, kernel, is_served)?);
        Ok(events)
    }

    fn observe_families(state: &mut State, kernel: &mut Kernel, families: &[Family]) -> Vec<Event> {
        match &mut state.active {
            Active::InKernel(state) => AnyMode::observe_families(state, &mut kernel.in_kernel, families),
            // It reads everything in `observe`.
            Active::Userspace(_) => Vec::new(),
        }
    }

    fn observe_keys(state: &mut State, kernel: &mut Kernel, keys: &[Key]) -> Result<(), Error> {
        match (&mut state.active, &state.config) {
            (Active::InKernel(state), _) => {
                AnyMode::observe_keys(state, &mut kernel.in_kernel, &key::in_kernel(keys))?;
            }
            (Active::Userspace(active), Config::Userspace(config)) => {
                UserspaceMode::observe_keys(active, kernel.userspace(config)?, &key::userspace(keys))?;
                if let Some(retiring) = &mut state.leftovers.ipvs {
                    retiring.observe_keys(&mut kernel.in_kernel, &key::ipvs(keys));
                }
            }
            (Active::Userspace(_), Config::InKernel(_)) => {}
        }
        if keys.contains(&Key::Leftovers) {
            let active = &state.active;
            state.leftovers.read(&state.config, kernel, |frontend, service| {
                active.serves(frontend, service)
            });
        }
        Ok(())
    }

    fn is_observed(state: &State, key: &Key) -> bool {
        match (&state.active, key) {
            (Active::InKernel(state), Key::InKernel(key)) => AnyMode::is_observed(state, key),
            (Active::Userspace(state), Key::Userspace(key)) => UserspaceMode::is_observed(state, key),
            _ => false,
        }
    }

    fn recheck(state: &mut State, kernel: &mut Kernel, keys: &[Key]) -> Result<Vec<Key>, Error> {
        Ok(match (&mut state.active, &state.config) {
            (Active::InKernel(state), _) => {
                let changed = AnyMode::recheck(state, &mut kernel.in_kernel, &key::in_kernel(keys))?;
                changed.into_iter().map(Key::InKernel).collect()
            }
            (Active::Userspace(state), Config::Userspace(config)) => {
                let kernel = kernel.userspace(config)?;
                let changed = UserspaceMode::recheck(state, kernel, &key::userspace(keys))?;
                changed.into_iter().map(Key::Userspace).collect()
            }
            (Active::Userspace(_), Config::InKernel(_)) => Vec::new(),
        })
    }

    fn undone(state: &State, key: &Key) -> Option<Key> {
        match (&state.active, key) {
            (Active::InKernel(state), Key::InKernel(key)) => AnyMode::undone(state, key).map(Key::InKernel),
            (Active::Userspace(state), Key::Userspace(key)) => {
                UserspaceMode::undone(state, key).map(Key::Userspace)
            }
            _ => None,
        }
    }

    fn set_time(state: &mut State, now: Instant) {
        match &mut state.active {
            Active::InKernel(state) => AnyMode::set_time(state, now),
            Active::Userspace(state) => UserspaceMode::set_time(state, now),
        }
        state.leftovers.set_time(now);
    }

    fn due(state: &State, now: Instant) -> Vec<Key> {
        let mut due: Vec<Key> = match &state.active {
            Active::InKernel(state) => AnyMode::due(state, now).into_iter().map(Key::InKernel).collect(),
            Active::Userspace(state) => {
                let due = UserspaceMode::due(state, now).into_iter();
                due.map(Key::Userspace).collect()
            }
        };
        due.extend(state.leftovers.due(now));
        due
    }

    fn next(state: &State) -> Option<Instant> {
        let of_mode = match &state.active {
            Active::InKernel(state) => AnyMode::next(state),
            Active::Userspace(state) => UserspaceMode::next(state),
        };
        of_mode.into_iter().chain(state.leftovers.next()).min()
    }

    fn needs_listing(state: &State, now: Instant) -> bool {
        match &state.active {
            Active::InKernel(state) => AnyMode::needs_listing(state, now),
            Active::Userspace(state) => UserspaceMode::needs_listing(state, now),
        }
    }

    fn unread(state: &State) -> Vec<Class> {
        match &state.active {
            Active::InKernel(state) => AnyMode::unread(state),
            Active::Userspace(state) => UserspaceMode::unread(state),
        }
    }

    fn consequence(key: &Key) -> Option<&'static str> {
        match key {
            Key::InKernel(key) => AnyMode::consequence(key),
            Key::Userspace(key) => UserspaceMode::consequence(key),
            Key::Leftovers => None,
        }
    }

    fn draining(state: &State) -> usize {
        let of_mode = match &state.active {
            Active::InKernel(state) => AnyMode::draining(state),
            Active::Userspace(state) => UserspaceMode::draining(state),
        };
        let of_leftovers = state.leftovers.ipvs.as_ref();
        of_mode + of_leftovers.map_or(0, |retiring| IpvsMode::draining(retiring.state()))
    }

    fn interface_addresses(state: &State) -> Vec<InterfaceAddress> {
        match &state.active {
            Active::InKernel(state) => AnyMode::interface_addresses(state),
            Active::Userspace(state) => UserspaceMode::interface_addresses(state),
        }
    }

    fn first_services(state: &State) -> &[ObjectName] {
        match &state.active {
            // After a change of the mode the other mode serves until the first plan is executed as a whole.
            _ if state.is_new_mode => &[],
            Active::InKernel(state) => AnyMode::first_services(state),
            Active::Userspace(state) => UserspaceMode::first_services(state),
        }
    }

    fn compile(state: &mut State, services: &Services, changes: &Changes) -> Vec<Event> {
        state.leftovers.compile(services, changes);
        let everything = std::mem::take(&mut state.is_new_mode).then(|| services.everything());
        let changes = everything.as_ref().unwrap_or(changes);
        match &mut state.active {
            Active::InKernel(state) => AnyMode::compile(state, services, changes),
            Active::Userspace(state) => UserspaceMode::compile(state, services, changes),
        }
    }

    fn set_dirty(state: &mut State, key: &Key) {
        match (&mut state.active, key) {
            (Active::InKernel(state), Key::InKernel(key)) => AnyMode::set_dirty(state, key),
            (Active::Userspace(state), Key::Userspace(key)) => UserspaceMode::set_dirty(state, key),
            (Active::Userspace(_), Key::InKernel(any_mode::Key::Ipvs(key))) => {
                if let Some(retiring) = &mut state.leftovers.ipvs {
                    IpvsMode::set_dirty(retiring.state_mut(), key);
                }
            }
            (_, Key::Leftovers) => state.leftovers.set_dirty(),
            _ => {}
        }
    }

    fn is_dirty(state: &State, key: &Key) -> bool {
        match (&state.active, key) {
            (Active::InKernel(state), Key::InKernel(key)) => AnyMode::is_dirty(state, key),
            (Active::Userspace(state), Key::Userspace(key)) => UserspaceMode::is_dirty(state, key),
            (_, Key::Leftovers) => state.leftovers.is_dirty(),
            // No plan needs any other object: its retry ends with the next plan.
            _ => state
                .retiring_ipvs(key)
                .is_none_or(|(state, key)| IpvsMode::is_dirty(state, &key)),
        }
    }

    fn plan(state: &mut State, plan: &mut PlanBuilder<'_, Self>) {
        match &mut state.active {
            Active::InKernel(state) => plan.add_part::<AnyMode>(|part| AnyMode::plan(state, part)),
            Active::Userspace(state) => {
                plan.add_part::<UserspaceMode>(|part| UserspaceMode::plan(state, part));
            }
        }
        let active = &state.active;
        state
            .leftovers
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
            Error::InKernel(error) => AnyMode::is_outcome_unknown(error),
            Error::Userspace(error) => UserspaceMode::is_outcome_unknown(error),
            Error::OutcomeMissing => true,
            Error::Start(_) => false,
        }
    }

    fn serves(state: &State, frontend: &FrontendKey, service: &ObjectName) -> bool {
        state.active.serves(frontend, service)
    }

    fn record(state: &mut State, operation: &Operation) {
        match (&mut state.active, operation) {
            (Active::InKernel(state), Operation::InKernel(operation)) => AnyMode::record(state, operation),
            (Active::Userspace(state), Operation::Userspace(operation)) => {
                UserspaceMode::record(state, operation);
            }
            (Active::Userspace(_), Operation::InKernel(any_mode::Operation::Ipvs(operation))) => {
                if let Some(retiring) = &mut state.leftovers.ipvs {
                    IpvsMode::record(retiring.state_mut(), operation);
                }
            }
            (_, Operation::RemoveLeftovers(_)) => state.leftovers.record_removed(),
            _ => {}
        }
    }

    fn record_failure(state: &mut State, operation: &Operation, error: &Error) {
        match (&mut state.active, operation, error) {
            (Active::InKernel(state), Operation::InKernel(operation), Error::InKernel(error)) => {
                AnyMode::record_failure(state, operation, error);
            }
            (Active::Userspace(state), Operation::Userspace(operation), Error::Userspace(error)) => {
                UserspaceMode::record_failure(state, operation, error);
            }
            _ => {}
        }
    }

    fn clear_dirty(state: &mut State) {
        match &mut state.active {
            Active::InKernel(state) => AnyMode::clear_dirty(state),
            Active::Userspace(state) => UserspaceMode::clear_dirty(state),
        }
        state.leftovers.clear_dirty();
    }

    fn class(key: &Key) -> Class {
        key.class()
    }

    fn totals(state: &State) -> Totals {
        match &state.active {
            Active::InKernel(state) => Totals::InKernel(AnyMode::totals(state)),
            Active::Userspace(state) => Totals::Userspace(UserspaceMode::totals(state)),
        }
    }
}
