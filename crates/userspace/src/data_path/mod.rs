//! The data path: compiles arbitrated frontends to listening ports and to the portal rules that lead to them.
//!
//! It runs in [`kernlink_engine::Proxier`], which orders and executes plans and retries failed operations by key.

pub mod chains;
mod cleanup;
mod compile;
pub mod config;
pub mod error;
pub mod kernel;
pub mod key;
#[cfg(feature = "metrics")]
pub mod metrics;
mod observe;
pub mod operation;
pub mod order;
mod plan;
mod portal;
pub mod retire;
mod rules;
pub mod sockets;
mod state;
mod totals;
mod watch;

use std::time::Instant;

use kernlink_engine::data_path::{Class, DataPath};
use kernlink_engine::error::InvalidConfig;
use kernlink_engine::plan::PlanBuilder;
use kernlink_engine::schedule::Intervals;
use kernlink_services::{Changes, Event, FrontendKey, InterfaceAddress, ObjectName, Services};

pub use self::cleanup::{CleanedUp, cleanup, has_portals, plan_cleanup};
pub use self::config::Config;
pub use self::error::{Error, SocketError};
pub use self::kernel::Kernel;
pub use self::key::Key;
pub use self::operation::Operation;
pub use self::order::Phase;
pub use self::state::State;
pub use self::totals::Totals;

/// The data path of userspace mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserspaceMode;

/// A proxier of userspace mode.
pub type Proxier = kernlink_engine::Proxier<UserspaceMode>;
/// A plan of userspace mode.
pub type Plan = kernlink_engine::Plan<UserspaceMode>;
/// What a sync in userspace mode did.
pub type Synced = kernlink_engine::Synced<UserspaceMode>;
/// Why a sync in userspace mode did nothing.
pub type SyncError = kernlink_engine::SyncError<Error>;

impl DataPath for UserspaceMode {
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

    fn observe_keys(state: &mut State, kernel: &mut Kernel, keys: &[Key]) -> Result<(), Error> {
        observe::observe_keys(state, kernel, keys)
    }

    fn is_observed(state: &State, key: &Key) -> bool {
        state.is_observed(key)
    }

    fn recheck(state: &mut State, kernel: &mut Kernel, keys: &[Key]) -> Result<Vec<Key>, Error> {
        watch::recheck(state, kernel, keys)
    }

    fn set_time(state: &mut State, now: Instant) {
        state.now = now;
    }

    fn due(state: &State, now: Instant) -> Vec<Key> {
        state.due(now)
    }

    fn next(state: &State) -> Option<Instant> {
        state.next()
    }

    fn unread(state: &State) -> Vec<Class> {
        state.unread_classes()
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

    fn serves(state: &State, frontend: &FrontendKey, _service: &ObjectName) -> bool {
        state.serves(frontend)
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
