#![doc = include_str!("../README.md")]

mod class;
pub mod config;
mod elements;
pub mod error;
mod events;
mod flows;
pub mod kernel;
pub mod key;
#[cfg(feature = "kubernetes")]
mod kube_proxy;
pub mod layout;
#[cfg(feature = "metrics")]
mod metrics;
mod observe;
pub mod operation;
pub mod order;
mod plan;
mod port;
mod ranges;
pub mod retire;
mod rules;
mod state;
mod timeouts;
mod totals;
pub mod watch;

use std::time::Instant;

use kernlink_engine::data_path::{Class, DataPath};
use kernlink_engine::error::InvalidConfig;
use kernlink_engine::plan::PlanBuilder;
use kernlink_engine::schedule::Intervals;
use kernlink_services::{Changes, Event, Family, FrontendKey, InterfaceAddress, ObjectName, Services};

pub use self::config::Config;
pub use self::elements::Shared;
pub use self::error::Error;
pub use self::kernel::Kernel;
pub use self::key::Key;
pub use self::operation::Operation;
pub use self::order::Phase;
pub use self::state::State;
pub use self::totals::{FamilyTotals, Totals};

/// The data path of nftables mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NftablesMode;

/// A proxier of nftables mode.
pub type Proxier = kernlink_engine::proxier::Proxier<NftablesMode>;
/// A plan of nftables mode.
pub type Plan = kernlink_engine::plan::Plan<NftablesMode>;
/// What a sync in nftables mode did.
pub type Synced = kernlink_engine::proxier::Synced<NftablesMode>;
/// Why a sync in nftables mode did nothing.
pub type SyncError = kernlink_engine::error::SyncError<Error>;

impl DataPath for NftablesMode {
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
        &config.services
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
        observe::observe(state, kernel)
    }

    fn observe_families(state: &mut State, kernel: &mut Kernel, families: &[Family]) -> Vec<Event> {
        observe::observe_families(state, kernel, families)
    }

    fn observe_keys(state: &mut State, kernel: &mut Kernel, keys: &[Key]) -> Result<(), Error> {
        observe::observe_keys(state, kernel, keys)
    }

    fn recheck(state: &mut State, kernel: &mut Kernel, keys: &[Key]) -> Result<Vec<Key>, Error> {
        observe::recheck(state, kernel, keys)
    }

    fn undone(state: &State, key: &Key) -> Option<Key> {
        state.undone(key)
    }

    fn set_time(state: &mut State, now: Instant) {
        state.now = Some(now);
    }

    fn next(state: &State) -> Option<Instant> {
        state.next()
    }

    fn needs_listing(state: &State, now: Instant) -> bool {
        state.needs_listing(now)
    }

    fn unread(state: &State) -> Vec<Class> {
        state.unread()
    }

    fn interface_addresses(state: &State) -> Vec<InterfaceAddress> {
        state.interfaces.iter().cloned().collect()
    }

    fn compile(state: &mut State, services: &Services, changes: &Changes) -> Vec<Event> {
        state.compile(services, changes)
    }

    fn set_dirty(state: &mut State, key: &Key) {
        state.set_dirty(key);
    }

    fn is_dirty(state: &State, key: &Key) -> bool {
        state.is_dirty(key)
    }

    fn plan(state: &mut State, plan: &mut PlanBuilder<'_, Self>) {
        plan::plan(state, plan);
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

    fn serves(state: &State, frontend: &FrontendKey, service: &ObjectName) -> bool {
        state.serves(frontend, service)
    }

    fn record(state: &mut State, operation: &Operation) {
        state.record(operation);
    }

    fn record_failure(state: &mut State, operation: &Operation, error: &Error) {
        state.record_failure(operation, error);
    }

    fn clear_dirty(state: &mut State) {
        state.clear_dirty();
    }

    fn class(key: &Key) -> Class {
        key.class()
    }

    fn totals(state: &State) -> Totals {
        state.totals()
    }
}
