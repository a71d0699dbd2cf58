#![doc = include_str!("../README.md")]

pub mod cleanup;
mod compile;
pub mod config;
#[cfg(feature = "metrics")]
pub mod counters;
mod drain;
pub mod error;
mod extensions;
pub mod forwarding;
pub mod kernel;
pub mod key;
#[cfg(feature = "kubernetes")]
mod kube_proxy;
mod leftovers;
mod listing;
#[cfg(feature = "metrics")]
mod metrics;
mod observe;
pub mod operation;
pub mod options;
pub mod order;
mod ownership;
mod plan;
mod recheck;
pub mod replacement;
pub mod retire;
pub mod rules;
mod schedulers;
pub mod sets;
mod state;
pub mod sysctls;
pub mod totals;
mod virtual_servers;
pub mod watch;

use std::time::Instant;

use kernlink_services::{Changes, Event, Family, FrontendKey, InterfaceAddress, ObjectName, Services};
// The kernel crates, for the types in `Kernel`, `Operation` and `Error`.
use kernlink_engine::data_path::{Class, DataPath};
use kernlink_engine::error::InvalidConfig;
use kernlink_engine::plan::PlanBuilder;
use kernlink_engine::schedule::Intervals;
pub use kernlink_host::DeleteFlows;
pub use {
    kernlink_base::KernelRelease, kernlink_conntrack as conntrack, kernlink_dummylink as dummylink,
    kernlink_ipset as ipset, kernlink_iptables_restore as iptables_restore, kernlink_ipvs as ipvs,
    kernlink_netlink as netlink,
};

pub use self::config::Config;
pub use self::error::Error;
pub use self::forwarding::Forwarding;
pub use self::kernel::Kernel;
pub use self::key::Key;
pub use self::listing::Listings;
pub use self::operation::Operation;
pub use self::options::IpvsOptions;
pub use self::order::Phase;
pub use self::replacement::Replacement;
pub use self::sets::SetId;
pub use self::state::{DesiredVirtualServer, HostFacts, SharedChains, State};
pub use self::sysctls::Sysctl;
pub use self::totals::{FamilyTotals, Totals};

/// The data path of IPVS mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpvsMode;

/// A proxier of IPVS mode.
pub type Proxier = kernlink_engine::proxier::Proxier<IpvsMode>;
/// A plan of IPVS mode.
pub type Plan = kernlink_engine::plan::Plan<IpvsMode>;
/// What a sync in IPVS mode did.
pub type Synced = kernlink_engine::proxier::Synced<IpvsMode>;
/// Why a sync in IPVS mode did nothing.
pub type SyncError = kernlink_engine::error::SyncError<Error>;

impl DataPath for IpvsMode {
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
        recheck::is_observed(state, key)
    }

    fn recheck(state: &mut State, kernel: &mut Kernel, keys: &[Key]) -> Result<Vec<Key>, Error> {
        recheck::recheck(state, kernel, keys)
    }

    fn undone(state: &State, key: &Key) -> Option<Key> {
        state.undone(key)
    }

    fn interface_addresses(state: &State) -> Vec<InterfaceAddress> {
        state.interface_addresses()
    }

    fn first_services(state: &State) -> &[ObjectName] {
        if state.is_kernel_empty() {
            &state.config().first_services
        } else {
            &[]
        }
    }

    fn compile(state: &mut State, services: &Services, changes: &Changes) -> Vec<Event> {
        state.compile(services, changes)
    }

    fn set_time(state: &mut State, now: Instant) {
        state.drains.set_time(now);
    }

    fn due(state: &State, now: Instant) -> Vec<Key> {
        let mut keys = state.drains.due(now);
        keys.extend(state.retired_due(now));
        keys
    }

    fn next(state: &State) -> Option<Instant> {
        let is_due = state.readings.has_changed_support
            || state.releases_leftovers()
            || state.is_restriction_changed();
        let now = state.drains.now().filter(|_| is_due);
        // On a node that another mode serves, an error while listing ends the sync of this part.
        let readings = [now, state.readings.retry_at()];
        let readings = readings.into_iter().filter(|_| state.retired.is_none());
        [state.drains.next(), state.retired_next()]
            .into_iter()
            .chain(readings)
            .flatten()
            .min()
    }

    fn needs_listing(state: &State, now: Instant) -> bool {
        let is_due = || state.readings.retry_at().is_some_and(|at| at <= now);
        state.retired.is_none() && (state.readings.has_changed_support || is_due())
    }

    fn unread(state: &State) -> Vec<Class> {
        state.unread()
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

    fn draining(state: &State) -> usize {
        state.drains.len()
    }

    fn serves(state: &State, frontend: &FrontendKey, _service: &ObjectName) -> bool {
        state.serves(frontend)
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

    fn record(state: &mut State, operation: &Operation) {
        state.record(operation);
    }

    fn record_failure(state: &mut State, operation: &Operation, error: &Error) {
        match (operation, error) {
            (Operation::Ipvs(kernlink_ipvs::Operation::AddVirtualServer(server)), Error::Ipvs(error))
                if error.is_already_exists() =>
            {
                state.refuse_as_existing(server.key);
            }
            (Operation::Ipvs(operation), Error::Ipvs(error)) if error.is_scheduler_not_loaded() => {
                state.refuse_scheduler(operation);
            }
            (Operation::Set(kernlink_ipset::Operation::Create { set, .. }), _) => {
                if let Some(key) = SetId::of_name(&set.name) {
                    state.refuse_set(key);
                }
            }
            (Operation::ReplaceSet(replacement), _) => {
                if let Some(key) = SetId::of_name(&replacement.set.name) {
                    state.refuse_set_unless_usable(key);
                }
            }
            (Operation::Rules(operation), Error::Rules(error)) => {
                state.find_missing_extensions(operation.family(), error);
            }
            // What was left over is not found again: its entries are removed.
            (Operation::Flows(operation), _) => state.flows.record_failure(operation),
            _ => {}
        }
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
