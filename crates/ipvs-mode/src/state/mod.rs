//! The state of IPVS mode: a table of desired and observed values for each kind of kernel object.

mod chains;
mod desired;
mod drains;
mod events;
mod flows;
mod foreign;
mod readings;
mod record;
mod restrictions;
mod retired;
mod reverted;
mod servers;
mod service_ports;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;
use kernlink_base::KernelRelease;
use kernlink_dummylink::{AddressKey, LinkName};
use kernlink_engine::plan::Subject;
use kernlink_engine::table::Table;
use kernlink_host::IPVS_LINK;
use kernlink_host::flows::TrackedFlows;
use kernlink_ipset::{Entry, Set};
use kernlink_iptables_restore::{Error as RulesError, Ruleset};
use kernlink_ipvs::{Ipvs, Timeouts, VirtualServerKey};
use kernlink_netfilter::MissingExtensions;
use kernlink_services::{Event, Family, FrontendKey, InterfaceAddress, NameMap};

pub(super) use self::chains::{Chains, Emptying, ObservedRules};
pub use self::desired::DesiredVirtualServer;
pub(super) use self::drains::Drains;
pub(super) use self::flows::udp_address;
use self::foreign::Foreign;
pub(super) use self::readings::{Part, Readings};
use self::restrictions::Restrictions;
use self::retired::Retired;
pub(super) use self::servers::{DesiredServer, ObservedRealServer, ObservedServer};
use self::service_ports::PortObjects;
use super::config::Config;
use super::options::IpvsOptions;
use super::schedulers::Schedulers;
use super::sets::SetId;
use super::sysctls;
use super::totals::Sums;
use crate::ownership::FRONTEND_SETS;

/// The desired and observed kernel objects of IPVS mode.
#[derive(Clone, Debug)]
pub struct State {
    pub(super) config: Arc<Config>,
    defaults: Arc<IpvsOptions>,
    schedulers: Schedulers,
    /// The families that are served, and those that were served before the configuration changed or by an earlier process.
    pub(super) managed: BTreeSet<Family>,
    pod_cidrs: [Option<IpNet>; 2],
    /// By family: the addresses of this node that accept node ports.
    node_port_addresses: [Vec<IpAddr>; 2],
    pub(super) host: HostFacts,
    pub(super) interfaces: Vec<InterfaceAddress>,
    /// Whether the listing in progress read them: it reads the addresses of all links at once, which are many with those of the dummy link, so
    /// that the engine's question in the same listing does not read them again. What is owned is then decided by the addresses at which node
    /// ports are served, and not by a later reading.
    pub(super) has_read_addresses: bool,
    pub(super) sysctls: Table<Box<str>, Box<str>>,
    pub(super) timeouts: ObservedTimeouts,
    /// The configured link, and links that were configured before and still exist.
    pub(super) links: Table<LinkName, ()>,
    pub(super) addresses: Table<AddressKey, ()>,
    pub(super) sets: Table<(Family, SetId), Set>,
    /// The temporary sets that a process left which ended while it replaced a set; never desired.
    pub(super) temporary_sets: Table<(Family, SetId), ()>,
    pub(super) entries: [[Table<Entry, ()>; SetId::ALL.len()]; 2],
    pub(super) chains: [Chains; 2],
    /// The tables that a listing read together with the virtual servers, until they are observed.
    pub(super) early_tables: BTreeMap<Family, Result<Ruleset, RulesError>>,
    /// The extensions of iptables that rules do without.
    pub(super) missing: MissingExtensions,
    pub(super) servers: Table<VirtualServerKey, DesiredServer, ObservedServer>,
    pub(super) flows: TrackedFlows,
    /// The UDP destinations whose flows the plan that is executed has compared.
    pub(super) compared_flows: BTreeSet<SocketAddr>,
    pub(super) drains: Drains,
    pub(super) readings: Readings,
    /// The objects of each service port, by its id.
    ports: Vec<PortObjects>,
    /// The totals of the service ports, by family.
    pub(super) sums: [Sums; 2],
    /// The frontends that processes of this node must not reach, each with the number of its service ports.
    denied_to_node: [BTreeMap<FrontendKey, usize>; 2],
    /// Events about Services as a whole.
    service_events: NameMap<Vec<Event>>,
    /// Whether all service ports are to be compiled again.
    pub(super) is_outdated: bool,
    /// Whether the events about the configuration were returned.
    pub(super) is_config_reported: bool,
    pub(super) foreign: Foreign,
    restrictions: Restrictions,
    /// The families whose ledger is empty although owned virtual servers exist.
    pub(super) without_ledger: BTreeSet<Family>,
    /// Set if another mode serves the node: then everything that is owned is removed.
    pub(super) retired: Option<Retired>,
}

/// The facts of the host that the desired state depends on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HostFacts {
    /// The release of the running kernel; 0.0 if it could not be read.
    pub kernel: KernelRelease,
    /// The number of processors that are online.
    pub processors: u32,
}

/// The IPVS timeouts.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ObservedTimeouts {
    pub(super) observed: Option<Timeouts>,
    pub(super) is_dirty: bool,
}

impl State {
    /// The state before Services and kernel were read: that of a node without Services.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        let mut state = Self {
            config: Arc::new(config.clone()),
            defaults: Arc::default(),
            schedulers: Schedulers::default(),
            managed: BTreeSet::new(),
            pod_cidrs: [None; 2],
            node_port_addresses: [Vec::new(), Vec::new()],
            host: HostFacts::default(),
            interfaces: Vec::new(),
            has_read_addresses: false,
            sysctls: Table::default(),
            timeouts: ObservedTimeouts::default(),
            links: Table::default(),
            addresses: Table::default(),
            sets: Table::default(),
            temporary_sets: Table::default(),
            entries: std::array::from_fn(|_| std::array::from_fn(|_| Table::default())),
            chains: std::array::from_fn(|_| Chains::default()),
            early_tables: BTreeMap::new(),
            missing: MissingExtensions::default(),
            servers: Table::default(),
            flows: TrackedFlows::default(),
            compared_flows: BTreeSet::new(),
            drains: Drains::default(),
            readings: Readings::default(),
            ports: Vec::new(),
            sums: std::array::from_fn(|_| Sums::default()),
            denied_to_node: std::array::from_fn(|_| BTreeMap::new()),
            service_events: NameMap::default(),
            is_outdated: false,
            is_config_reported: false,
            foreign: Foreign::default(),
            restrictions: Restrictions::default(),
            without_ledger: BTreeSet::new(),
            retired: None,
        };
        state.configure();
        state
    }

    /// Sets the desired values that depend on the configuration only.
    pub(crate) fn configure(&mut self) {
        self.defaults = Arc::new(self.config.defaults.usable());
        let permitted = self.config.service_schedulers.as_deref();
        self.schedulers.configure(permitted, self.defaults.scheduler);
        self.managed.extend(&self.config.services.families);
        if let Some(link) = self.config.link().filter(|link| !self.links.is_desired(link)) {
            self.links.add(link, (), Subject::DataPath);
        }
        for family in self.managed.clone() {
            self.manage(family);
        }
        self.timeouts.is_dirty = true;
        self.configure_sysctls();
    }

    fn manage(&mut self, family: Family) {
        self.managed.insert(family);
        for &set in SetId::ALL {
            let key = (family, set);
            self.sets
                .set(key, Some(set.definition(family)), Subject::DataPath);
        }
        self.set_rules_dirty(family);
    }

    /// Manages a family that is not configured, if an earlier process left entries of frontends in its sets: they are removed with their
    /// virtual servers and addresses.
    pub(crate) fn manage_leftovers(&mut self) {
        for family in Family::ALL {
            let tables = &self.entries[family.index()];
            let mut sets = std::iter::once(SetId::Ledger).chain(FRONTEND_SETS);
            let has_any = sets.any(|set| tables[set.index()].iter_observed().len() > 0);
            if has_any && !self.managed.contains(&family) {
                self.manage(family);
            }
        }
    }

    /// Sets the desired sysctls, which depend on the configuration and on facts of the host.
    pub(super) fn configure_sysctls(&mut self) {
        let HostFacts { kernel, processors } = self.host;
        let mut desired: BTreeMap<Box<str>, Box<str>> = sysctls::sysctls(&self.config, kernel, processors)
            .into_iter()
            .map(|sysctl| (sysctl.name, sysctl.value))
            .collect();
        if let Some(buckets) = sysctls::conntrack_buckets(&self.config, processors) {
            desired.insert(sysctls::CONNTRACK_BUCKETS.into(), buckets.to_string().into());
        }
        let withdrawn: Vec<Box<str>> = self
            .sysctls
            .iter_desired()
            .filter(|(name, _)| !desired.contains_key(*name))
            .map(|(name, _)| name.clone())
            .collect();
        for name in withdrawn {
            self.sysctls.remove(&name, &Subject::Node);
        }
        for (name, value) in desired {
            self.sysctls.set(name, Some(value), Subject::Node);
        }
    }

    /// Finds the schedulers that Services may not request because of their modules. If others are found than before, all Services are
    /// compiled again. Returns events about those that the configuration names.
    pub(super) fn observe_schedulers(&mut self, ipvs: &mut dyn Ipvs) -> Vec<Event> {
        let (has_changed, events) = self.schedulers.observe(ipvs);
        self.is_outdated |= has_changed;
        events
    }

    /// Records that a virtual server was refused because the module of its scheduler is not loaded. The next sync is at once, and does
    /// without the scheduler.
    pub(super) fn refuse_scheduler(&mut self, operation: &kernlink_ipvs::Operation) {
        let (kernlink_ipvs::Operation::AddVirtualServer(server)
        | kernlink_ipvs::Operation::UpdateVirtualServer(server)
        | kernlink_ipvs::Operation::EnsureVirtualServer(server)) = operation
        else {
            return;
        };
        if self.schedulers.refuse(server.scheduler) {
            self.is_outdated = true;
            self.readings.has_changed_support = true;
        }
    }

    /// The families whose tables are read together with the virtual servers, which takes less time. None if there were no virtual servers:
    /// this may be a first listing, and [first Services](kernlink_engine::DataPath::first_services) wait for the tables of their families only.
    pub(super) fn families_read_early(&self) -> Vec<Family> {
        let is_known = self.retired.is_none() && self.servers.iter_observed().len() > 0;
        let families = is_known.then(|| self.managed.iter().copied());
        families.into_iter().flatten().collect()
    }

    /// The configuration.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Facts of the host, as last read.
    #[must_use]
    pub fn host(&self) -> HostFacts {
        self.host
    }

    /// The families that are served.
    pub fn families(&self) -> impl Iterator<Item = Family> + '_ {
        self.config.services.families.iter().copied()
    }

    /// The addresses of this node that accept node ports.
    pub(super) fn node_port_addresses(&self, family: Family) -> &[IpAddr] {
        &self.node_port_addresses[family.index()]
    }

    /// Whether the kernel has no owned virtual server, no entry of an owned set, and no address of the dummy link, as after a boot.
    pub(super) fn is_kernel_empty(&self) -> bool {
        let mut entries = self.entries.iter().flatten();
        let mut servers = self.servers.iter_observed();
        self.families().all(|family| self.is_ownership_known(family))
            && self.addresses.iter_observed().len() == 0
            && entries.all(|table| table.iter_observed().len() == 0)
            && !servers.any(|(_, server)| server.is_owned)
    }

    /// Makes the chains of a family dirty.
    pub(super) fn set_rules_dirty(&mut self, family: Family) {
        self.chains[family.index()].is_dirty = true;
    }

    /// The number of map entries that were looked up to change them, since the state was made.
    #[must_use]
    pub fn work(&self) -> usize {
        let entries = self.entries.iter().flatten().map(Table::work);
        self.sysctls.work()
            + self.links.work()
            + self.addresses.work()
            + self.sets.work()
            + self.temporary_sets.work()
            + self.servers.work()
            + entries.sum::<usize>()
    }

    /// Whether an interface carries virtual IPs: the configured link, one that was configured before, or that of kube-proxy.
    pub(super) fn is_dummy_link(&self, name: &LinkName) -> bool {
        let text = name.to_string();
        text == self.config.dummy_link
            || text == IPVS_LINK
            || self.links.is_observed(name)
            || self.links.is_desired(name)
    }
}
