//! Either mode, chosen by the configuration: a data path that passes everything on to IPVS mode or to iptables mode.
//!
//! A new configuration may choose the other mode at any time. The next sync then reads the kernel as the new mode needs it and programs
//! all Services in it.

pub mod config;
pub mod error;
pub mod kernel;
pub mod key;
#[cfg(feature = "kubernetes")]
mod kube_proxy;
pub mod listing;
#[cfg(feature = "metrics")]
mod metrics;
pub mod mode;
pub mod operation;
pub mod order;
mod retiring;
mod serving;
pub mod state;
pub mod totals;
mod watch;

use std::time::Instant;

use kernlink_services::{Changes, Event, Family, FrontendKey, InterfaceAddress, ObjectName, Services};

pub use self::config::Config;
pub use self::error::Error;
pub use self::kernel::Kernel;
pub use self::key::Key;
pub use self::listing::Listings;
pub use self::mode::Mode;
pub use self::operation::Operation;
pub use self::order::Phase;
pub use self::retiring::Retiring;
pub use self::state::{ModeState, State};
pub use self::totals::Totals;
use crate::data_path::{Class, DataPath};
use crate::error::InvalidConfig;
use crate::iptables_mode::IptablesMode;
use crate::ipvs_mode::{IpvsMode, SharedChains};
use crate::plan::PlanBuilder;
use crate::schedule::Intervals;

/// The data path of the configured mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AnyMode;

/// A proxier of either mode.
pub type Proxier = crate::proxier::Proxier<AnyMode>;
/// A plan of either mode.
pub type Plan = crate::plan::Plan<AnyMode>;
/// What a sync in either mode did.
pub type Synced = crate::proxier::Synced<AnyMode>;
/// Why a sync in either mode did nothing.
pub type SyncError = crate::error::SyncError<Error>;

impl DataPath for AnyMode {
    type Config = Config;
    type Kernel = Kernel;
    type State = State;
    type Key = Key;
    type Operation = Operation;
    type Phase = Phase;
    type Error = Error;
    type Totals = Totals;

    fn validate(config: &Config) -> Result<(), InvalidConfig> {
        match config {
            Config::Ipvs(config) => IpvsMode::validate(config),
            Config::Iptables(config) => IptablesMode::validate(config),
        }
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
        Ok(match &mut state.active {
            ModeState::Ipvs(state) => IpvsMode::observe(state, kernel.ipvs()?)?,
            ModeState::Iptables(active) => {
                let mut events = IptablesMode::observe(active, kernel.iptables()?)?;
                let (retiring, config, kept) = (&mut state.retiring, &state.config, SharedChains::Kept);
                events.extend(Retiring::observe(retiring, config, kept, state.now, kernel)?);
                events
            }
        })
    }

    fn observe_families(state: &mut State, kernel: &mut Kernel, families: &[Family]) -> Vec<Event> {
        // `observe` succeeded before, so the kernel is open.
        match &mut state.active {
            ModeState::Ipvs(state) => kernel
                .ipvs()
                .map(|kernel| IpvsMode::observe_families(state, kernel, families)),
            ModeState::Iptables(state) => kernel
                .iptables()
                .map(|kernel| IptablesMode::observe_families(state, kernel, families)),
        }
        .unwrap_or_default()
    }

    fn observe_keys(state: &mut State, kernel: &mut Kernel, keys: &[Key]) -> Result<(), Error> {
        match &mut state.active {
            ModeState::Ipvs(state) => IpvsMode::observe_keys(state, kernel.ipvs()?, &key::ipvs(keys))?,
            ModeState::Iptables(active) => {
                IptablesMode::observe_keys(active, kernel.iptables()?, &key::iptables(keys))?;
                if let Some(retiring) = &mut state.retiring {
                    retiring.observe_keys(kernel, &key::ipvs(keys));
                }
            }
        }
        Ok(())
    }

    fn is_observed(state: &State, key: &Key) -> bool {
        match (&state.active, key) {
            (ModeState::Ipvs(state), Key::Ipvs(key)) => IpvsMode::is_observed(state, key),
            (ModeState::Iptables(state), Key::Iptables(key)) => IptablesMode::is_observed(state, key),
            _ => false,
        }
    }

    fn recheck(state: &mut State, kernel: &mut Kernel, keys: &[Key]) -> Result<Vec<Key>, Error> {
        Ok(match &mut state.active {
            ModeState::Ipvs(state) => {
                let changed = IpvsMode::recheck(state, kernel.ipvs()?, &key::ipvs(keys))?;
                changed.into_iter().map(Key::Ipvs).collect()
            }
            ModeState::Iptables(state) => {
                let changed = IptablesMode::recheck(state, kernel.iptables()?, &key::iptables(keys))?;
                changed.into_iter().map(Key::Iptables).collect()
            }
        })
    }

    fn undone(state: &State, key: &Key) -> Option<Key> {
        match (&state.active, key) {
            (ModeState::Ipvs(state), Key::Ipvs(key)) => IpvsMode::undone(state, key).map(Key::Ipvs),
            (ModeState::Iptables(state), Key::Iptables(key)) => {
                IptablesMode::undone(state, key).map(Key::Iptables)
            }
            _ => None,
        }
    }

    fn set_time(state: &mut State, now: Instant) {
        state.now = Some(now);
        match &mut state.active {
            ModeState::Ipvs(state) => IpvsMode::set_time(state, now),
            ModeState::Iptables(state) => IptablesMode::set_time(state, now),
        }
        if let Some(retiring) = &mut state.retiring {
            retiring.set_time(now);
        }
    }

    fn due(state: &State, now: Instant) -> Vec<Key> {
        match &state.active {
            ModeState::Ipvs(state) => IpvsMode::due(state, now).into_iter().map(Key::Ipvs).collect(),
            ModeState::Iptables(active) => {
                let due = IptablesMode::due(active, now).into_iter().map(Key::Iptables);
                let of_retiring = state.retiring.iter().flat_map(|retiring| retiring.due(now));
                due.chain(of_retiring.map(Key::Ipvs)).collect()
            }
        }
    }

    fn next(state: &State) -> Option<Instant> {
        match &state.active {
            ModeState::Ipvs(state) => IpvsMode::next(state),
            ModeState::Iptables(active) => {
                let of_retiring = state.retiring.as_ref().and_then(Retiring::next);
                [IptablesMode::next(active), of_retiring]
                    .into_iter()
                    .flatten()
                    .min()
            }
        }
    }

    fn needs_listing(state: &State, now: Instant) -> bool {
        match &state.active {
            ModeState::Ipvs(state) => IpvsMode::needs_listing(state, now),
            ModeState::Iptables(state) => IptablesMode::needs_listing(state, now),
        }
    }

    fn unread(state: &State) -> Vec<Class> {
        match &state.active {
            ModeState::Ipvs(state) => IpvsMode::unread(state),
            ModeState::Iptables(state) => IptablesMode::unread(state),
        }
    }

    fn consequence(key: &Key) -> Option<&'static str> {
        match key {
            Key::Ipvs(key) => IpvsMode::consequence(key),
            Key::Iptables(key) => IptablesMode::consequence(key),
        }
    }

    fn draining(state: &State) -> usize {
        match &state.active {
            ModeState::Ipvs(state) => IpvsMode::draining(state),
            ModeState::Iptables(active) => {
                let of_retiring = state
                    .retiring
                    .as_ref()
                    .map(|retiring| IpvsMode::draining(&retiring.state));
                IptablesMode::draining(active) + of_retiring.unwrap_or(0)
            }
        }
    }

    fn interface_addresses(state: &State) -> Vec<InterfaceAddress> {
        match &state.active {
            ModeState::Ipvs(state) => IpvsMode::interface_addresses(state),
            ModeState::Iptables(state) => IptablesMode::interface_addresses(state),
        }
    }

    fn first_services(state: &State) -> &[ObjectName] {
        match &state.active {
            // After a change of the mode the other mode serves until the first plan is executed as a whole.
            _ if state.is_new_mode => &[],
            ModeState::Ipvs(state) => IpvsMode::first_services(state),
            ModeState::Iptables(state) => IptablesMode::first_services(state),
        }
    }

    fn compile(state: &mut State, services: &Services, changes: &Changes) -> Vec<Event> {
        if let Some(retiring) = &mut state.retiring {
            retiring.compile(services, changes);
        }
        let everything = std::mem::take(&mut state.is_new_mode).then(|| services.everything());
        let changes = everything.as_ref().unwrap_or(changes);
        match &mut state.active {
            ModeState::Ipvs(state) => IpvsMode::compile(state, services, changes),
            ModeState::Iptables(state) => IptablesMode::compile(state, services, changes),
        }
    }

    fn set_dirty(state: &mut State, key: &Key) {
        match (&mut state.active, key) {
            (ModeState::Ipvs(state), Key::Ipvs(key)) => IpvsMode::set_dirty(state, key),
            (ModeState::Iptables(state), Key::Iptables(key)) => IptablesMode::set_dirty(state, key),
            (ModeState::Iptables(_), Key::Ipvs(key)) => {
                if let Some(retiring) = &mut state.retiring {
                    IpvsMode::set_dirty(&mut retiring.state, key);
                }
            }
            (ModeState::Ipvs(_), Key::Iptables(_)) => {}
        }
    }

    fn is_dirty(state: &State, key: &Key) -> bool {
        match (&state.active, key) {
            (ModeState::Ipvs(state), Key::Ipvs(key)) => IpvsMode::is_dirty(state, key),
            (ModeState::Iptables(state), Key::Iptables(key)) => IptablesMode::is_dirty(state, key),
            (ModeState::Iptables(_), Key::Ipvs(key)) => {
                let retiring = state.retiring.as_ref();
                retiring.is_none_or(|retiring| IpvsMode::is_dirty(&retiring.state, key))
            }
            // No plan needs an object of the other mode: its retry ends with the next plan.
            (ModeState::Ipvs(_), Key::Iptables(_)) => true,
        }
    }

    fn plan(state: &mut State, plan: &mut PlanBuilder<'_, Self>) {
        match &mut state.active {
            ModeState::Ipvs(state) => plan.add_part::<IpvsMode>(|part| IpvsMode::plan(state, part)),
            ModeState::Iptables(active) => {
                for family in Family::ALL {
                    let left = state.retiring.as_ref();
                    let rules = left.map(|left| left.state.needed_rules(family));
                    active.set_interim_rules(family, rules);
                }
                plan.add_part::<IptablesMode>(|part| IptablesMode::plan(active, part));
                if let Some(retiring) = &mut state.retiring {
                    retiring.plan(plan, |frontend, service| {
                        IptablesMode::serves(active, frontend, service)
                    });
                }
            }
        }
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
            Error::OutcomeMissing => true,
        }
    }

    fn serves(state: &State, frontend: &FrontendKey, service: &ObjectName) -> bool {
        match &state.active {
            ModeState::Ipvs(state) => IpvsMode::serves(state, frontend, service),
            ModeState::Iptables(state) => IptablesMode::serves(state, frontend, service),
        }
    }

    fn record(state: &mut State, operation: &Operation) {
        match (&mut state.active, operation) {
            (ModeState::Ipvs(state), Operation::Ipvs(operation)) => IpvsMode::record(state, operation),
            (ModeState::Iptables(state), Operation::Iptables(operation)) => {
                IptablesMode::record(state, operation);
            }
            (ModeState::Iptables(_), Operation::Ipvs(operation)) => {
                if let Some(retiring) = &mut state.retiring {
                    IpvsMode::record(&mut retiring.state, operation);
                }
            }
            (ModeState::Ipvs(_), Operation::Iptables(_)) => {}
        }
    }

    fn record_failure(state: &mut State, operation: &Operation, error: &Error) {
        match (&mut state.active, operation, error) {
            (ModeState::Ipvs(state), Operation::Ipvs(operation), Error::Ipvs(error)) => {
                IpvsMode::record_failure(state, operation, error);
            }
            (ModeState::Iptables(state), Operation::Iptables(operation), Error::Iptables(error)) => {
                IptablesMode::record_failure(state, operation, error);
            }
            _ => {}
        }
    }

    fn clear_dirty(state: &mut State) {
        match &mut state.active {
            ModeState::Ipvs(state) => IpvsMode::clear_dirty(state),
            ModeState::Iptables(active) => {
                IptablesMode::clear_dirty(active);
                if state.retiring.as_mut().is_some_and(Retiring::clear_dirty) {
                    state.retiring = None;
                }
            }
        }
    }

    fn class(key: &Key) -> Class {
        match key {
            Key::Ipvs(key) => IpvsMode::class(key),
            Key::Iptables(key) => IptablesMode::class(key),
        }
    }

    fn totals(state: &State) -> Totals {
        match &state.active {
            ModeState::Ipvs(state) => Totals::Ipvs(Box::new(IpvsMode::totals(state))),
            ModeState::Iptables(state) => Totals::Iptables(IptablesMode::totals(state)),
        }
    }
}
