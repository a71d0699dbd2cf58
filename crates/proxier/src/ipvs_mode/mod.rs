//! IPVS mode: arbitrated frontends as virtual servers, sets, rules and addresses, equal to those of kube-proxy's IPVS mode.

mod compile;
pub mod config;
pub mod error;
pub mod forwarding;
pub mod kernel;
pub mod key;
#[cfg(feature = "kubernetes")]
mod kube_proxy;
mod listing;
mod observe;
pub mod operation;
pub mod options;
pub mod order;
mod ownership;
mod plan;
pub mod rules;
pub mod sets;
mod state;
pub mod sysctls;
mod virtual_servers;

pub use config::Config;
pub use error::Error;
pub use forwarding::Forwarding;
pub use kernel::Kernel;
pub use key::Key;
pub use listing::Listings;
pub use operation::{Operation, SysctlOperation};
pub use options::IpvsOptions;
pub use order::Phase;
pub use sets::SetId;
pub use state::{DesiredVirtualServer, HostFacts, State};
pub use sysctls::KernelVersion;

// The kernel crates, for the types in `Kernel`, `Operation` and `Error`.
pub use {
    kernlink_dummylink as dummylink, kernlink_ipset as ipset, kernlink_iptables_restore as iptables_restore,
    kernlink_ipvs as ipvs, kernlink_netlink as netlink,
};

use kernlink_services::{Changes, Event, InterfaceAddress, Services};

use crate::data_path::DataPath;
use crate::error::InvalidConfig;
use crate::plan::PlanBuilder;

/// The data path of IPVS mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IpvsMode;

/// A proxier of IPVS mode.
pub type Proxier = crate::proxier::Proxier<IpvsMode>;
/// A plan of IPVS mode.
pub type Plan = crate::plan::Plan<IpvsMode>;
/// What a sync in IPVS mode did.
pub type Synced = crate::proxier::Synced<IpvsMode>;
/// Why a sync in IPVS mode did nothing.
pub type SyncError = crate::error::SyncError<Error>;

impl Proxier {
    /// A proxier of IPVS mode without objects.
    ///
    /// # Errors
    /// Everything that is invalid in the configuration.
    pub fn new(config: Config, kernel: Kernel) -> Result<Self, InvalidConfig> {
        Self::with_data_path(&config, kernel)
    }
}

impl State {
    /// The state before anything is known of the Services and the kernel: that of a node without Services.
    #[must_use]
    pub fn of_config(config: &Config) -> Self {
        Self::new(config)
    }
}

impl DataPath for IpvsMode {
    type Config = Config;
    type Kernel = Kernel;
    type State = State;
    type Key = Key;
    type Operation = Operation;
    type Phase = Phase;
    type Error = Error;

    fn validate(config: &Config) -> Result<(), InvalidConfig> {
        config.validate()
    }

    fn services_config(config: &Config) -> &kernlink_services::Config {
        &config.services
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

    fn interface_addresses(state: &State) -> Vec<InterfaceAddress> {
        state.interface_addresses()
    }

    fn compile(state: &mut State, services: &Services, changes: &Changes) -> Vec<Event> {
        state.compile(services, changes)
    }

    fn mark(state: &mut State, key: &Key) {
        state.mark(key);
    }

    fn is_marked(state: &State, key: &Key) -> bool {
        state.is_marked(key)
    }

    fn plan(state: &mut State, plan: &mut PlanBuilder<'_, Self>) {
        plan::plan(state, plan);
    }

    fn execute(kernel: &mut Kernel, operations: &[&Operation]) -> Vec<Result<(), Error>> {
        kernel.execute_all(operations)
    }

    fn no_outcome() -> Error {
        Error::NoOutcome
    }

    fn is_outcome_unknown(error: &Error) -> bool {
        match error {
            Error::Ipvs(error) => error.is_outcome_unknown(),
            Error::Set(error) => error.is_outcome_unknown(),
            Error::Rules(error) => error.is_outcome_unknown(),
            Error::Link(error) => error.is_outcome_unknown(),
            Error::Sysctl(_) => false,
            Error::NoOutcome => true,
        }
    }

    fn record(state: &mut State, operation: &Operation) {
        state.record(operation);
    }

    fn settle(state: &mut State) {
        state.settle();
    }
}
