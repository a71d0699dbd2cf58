#![doc = include_str!("../README.md")]

pub mod accounting;
mod batch;
pub mod chains;
pub mod cleanup;
mod compile;
pub mod config;
pub mod error;
mod events;
mod extensions;
mod flows;
pub mod kernel;
pub mod key;
#[cfg(feature = "kubernetes")]
mod kube_proxy;
mod leftovers;
mod listing;
#[cfg(feature = "metrics")]
mod metrics;
mod names;
mod observe;
mod observed;
pub mod operation;
pub mod order;
mod plan;
mod port_chain;
pub mod retire;
mod rule_key;
mod state;
pub mod sysctls;
mod totals;
mod touched;
pub mod watch;
mod write;

use std::time::Instant;

use kernlink_engine::data_path::{Class, DataPath};
use kernlink_engine::error::InvalidConfig;
use kernlink_engine::plan::PlanBuilder;
use kernlink_engine::retire::{Interim, Name};
use kernlink_engine::schedule::Intervals;
use kernlink_services::{Changes, Event, Family, FrontendKey, InterfaceAddress, ObjectName, Services};

pub use self::chains::FixedChain;
pub use self::config::Config;
pub use self::error::Error;
pub use self::kernel::Kernel;
pub use self::key::Key;
pub use self::listing::Listings;
pub use self::observe::has_service_chains;
pub use self::operation::Operation;
pub use self::order::Phase;
pub use self::state::State;
pub use self::totals::{FamilyTotals, Totals};

/// The data path of iptables mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IptablesMode;

/// A proxier of iptables mode.
pub type Proxier = kernlink_engine::proxier::Proxier<IptablesMode>;
/// A plan of iptables mode.
pub type Plan = kernlink_engine::plan::Plan<IptablesMode>;
/// What a sync in iptables mode did.
pub type Synced = kernlink_engine::proxier::Synced<IptablesMode>;
/// Why a sync in iptables mode did nothing.
pub type SyncError = kernlink_engine::error::SyncError<Error>;

impl DataPath for IptablesMode {
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

    fn is_observed(state: &State, key: &Key) -> bool {
        observe::is_observed(state, key)
    }

    fn recheck(state: &mut State, kernel: &mut Kernel, keys: &[Key]) -> Result<Vec<Key>, Error> {
        observe::recheck(state, kernel, keys)
    }

    fn undone(state: &State, key: &Key) -> Option<Key> {
        state.undone(key)
    }

    fn set_time(state: &mut State, now: Instant) {
        state.set_time(now);
    }

    fn needs_listing(state: &State, now: Instant) -> bool {
        state.needs_listing(now)
    }

    fn unread(state: &State) -> Vec<Class> {
        state.readings.unread()
    }

    fn due(state: &State, _now: Instant) -> Vec<Key> {
        state.due()
    }

    fn next(state: &State) -> Option<Instant> {
        state.next()
    }

    fn interface_addresses(state: &State) -> Vec<InterfaceAddress> {
        state.interfaces.iter().cloned().collect()
    }

    fn compile(state: &mut State, services: &Services, changes: &Changes) -> Vec<Event> {
        let events = state.compile(services, changes);
        state.complete_dirty();
        events
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
        state.serves(Family::of(frontend.address), service)
    }

    fn keeps(_state: &State, name: &Name<'_>) -> bool {
        retire::has_chain(name)
    }

    fn set_interim(state: &mut State, interim: &[Interim]) {
        state.set_interim(interim);
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
