//! The state of nftables mode: the desired and observed tables and elements.

mod compile;
mod family;
mod readings;
mod record;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kernlink_engine::data_path::Class;
use kernlink_engine::plan::Subject;
use kernlink_engine::table::Table;
use kernlink_host::{CONNTRACK_BUCKETS, LocalSource};
use kernlink_services::{Family, FrontendKey, InterfaceAddress, NodeFacts, ObjectName};

pub(crate) use self::family::{Candidates, FamilyState, FoundTable, OldTable, ReadElements};
use self::readings::Readings;
use crate::config::Config;
use crate::events::Events;
use crate::flows::Flows;
use crate::key::Key;
use crate::port::PortSpec;
use crate::rules::{Parameters, Pods};
use crate::totals::Totals;

/// The time that `nft` 1.0.6 takes to list an element, with a margin of a fifth.
const LISTING_OF_ELEMENT: Duration = Duration::from_micros(30);

/// The desired and observed tables and elements of nftables mode.
#[derive(Clone, Debug)]
pub struct State {
    config: Arc<Config>,
    pub(crate) node: NodeFacts,
    pub(crate) interfaces: BTreeSet<InterfaceAddress>,
    pub(crate) sysctls: Table<Box<str>, Box<str>>,
    pub(crate) families: [FamilyState; 2],
    /// The service ports by id.
    ports: Vec<Option<Arc<PortSpec>>>,
    /// The last number of a service port with session affinity.
    last_pool: u32,
    pub(crate) flows: Flows,
    /// Events that no sync has returned yet.
    pub(crate) events: Events,
    pub(crate) readings: Readings,
    /// The Services with more endpoints than are balanced, which were reported.
    limited: BTreeSet<ObjectName>,
    /// Whether all service ports are to be compiled again.
    is_outdated: bool,
    /// The time of the plan or sync in progress, or of the last one.
    pub(crate) now: Option<Instant>,
}

impl State {
    /// The state before Services and kernel were read: that of a node without Services.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        let mut state = Self {
            config: Arc::new(config.clone()),
            node: NodeFacts::default(),
            interfaces: BTreeSet::new(),
            sysctls: Table::default(),
            families: Family::ALL.map(FamilyState::new),
            ports: Vec::new(),
            last_pool: 0,
            flows: Flows::default(),
            events: Events::default(),
            readings: Readings::default(),
            limited: BTreeSet::new(),
            is_outdated: false,
            now: None,
        };
        state.configure();
        state
    }

    pub(crate) fn set_config(&mut self, config: &Config) {
        if *config != *self.config {
            self.config = Arc::new(config.clone());
            self.is_outdated = true;
            self.configure();
        }
    }

    fn configure(&mut self) {
        for family in Family::ALL {
            let is_served = self.config.services.families.contains(&family);
            let state = &mut self.families[family.index()];
            state.is_served = is_served;
            state.is_table_dirty = true;
        }
    }

    /// The configuration.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    pub(crate) fn family(&self, family: Family) -> &FamilyState {
        &self.families[family.index()]
    }

    pub(crate) fn family_mut(&mut self, family: Family) -> &mut FamilyState {
        &mut self.families[family.index()]
    }

    /// What the rules of a family depend on.
    pub(crate) fn parameters(&self, family: Family) -> Parameters {
        let source = self
            .config
            .local_detection
            .source(family, self.node.pod_cidr(family));
        let cidrs = self.config.service_cidrs.iter();
        let mut service_cidrs: Vec<_> = cidrs
            .filter(|net| Family::of(net.addr()) == family)
            .copied()
            .collect();
        service_cidrs.sort_unstable();
        service_cidrs.dedup();
        Parameters {
            family,
            mark: self.config.masquerade_bit.mark(),
            masquerade_all: self.config.masquerade_all,
            pods: source.map(|source| match source {
                LocalSource::Network(net) => Pods::Network(net),
                LocalSource::Interface(name) => Pods::Interface(name.as_str().into()),
                LocalSource::InterfacePrefix(prefix) => Pods::Prefix(prefix.as_str().into()),
            }),
            service_cidrs,
        }
    }

    /// Sets the desired sysctls, which depend on the configuration and the number of processors.
    pub(crate) fn configure_sysctls(&mut self, processors: u32) {
        let mut desired: std::collections::BTreeMap<Box<str>, Box<str>> = self
            .config
            .conntrack
            .sysctls(processors)
            .into_iter()
            .map(|sysctl| (sysctl.name, sysctl.value))
            .collect();
        if let Some(buckets) = self.config.conntrack.buckets(processors) {
            desired.insert(CONNTRACK_BUCKETS.into(), buckets.to_string().into());
        }
        let names = self.sysctls.iter_desired().map(|(name, _)| name.clone());
        let withdrawn: Vec<Box<str>> = names.filter(|name| !desired.contains_key(name)).collect();
        for name in withdrawn {
            self.sysctls.remove(&name, &Subject::Node);
        }
        for (name, value) in desired {
            self.sysctls.set(name, Some(value), Subject::Node);
        }
    }

    pub(crate) fn set_dirty(&mut self, key: &Key) {
        match key {
            Key::Sysctl(name) => self.sysctls.set_dirty(name.clone()),
            Key::Table(family) | Key::Owner(family) | Key::Switch(family) | Key::OldTable(family, _) => {
                self.family_mut(*family).is_table_dirty = true;
            }
            Key::Service(family, name) => _ = self.family_mut(*family).dirty.insert(name.clone()),
            Key::Frontend(key) => self.family_mut(key.family()).set_frontend_dirty(key),
            Key::Shared(family, _) => self.family_mut(*family).is_shared_dirty = true,
            Key::Flows(family) => self.flows.tracked.set_dirty(*family),
            Key::NodeAddresses => {}
        }
    }

    pub(crate) fn is_dirty(&self, key: &Key) -> bool {
        match key {
            Key::Sysctl(name) => self.sysctls.is_dirty(name),
            Key::Table(family) | Key::Owner(family) | Key::Switch(family) | Key::OldTable(family, _) => {
                self.family(*family).is_table_dirty
            }
            Key::Service(family, name) => {
                let family = self.family(*family);
                family.is_all_dirty || family.dirty.contains(name)
            }
            Key::Frontend(key) => {
                let family = self.family(key.family());
                family.is_all_dirty || family.dirty_leftovers.contains(key)
            }
            Key::Shared(family, _) => {
                let family = self.family(*family);
                family.is_all_dirty || family.is_shared_dirty
            }
            Key::Flows(family) => self.flows.tracked.is_dirty(*family),
            Key::NodeAddresses => false,
        }
    }

    pub(crate) fn clear_dirty(&mut self) {
        self.sysctls.clear_dirty();
        self.flows.tracked.clear_dirty();
        for family in &mut self.families {
            family.clear_dirty();
        }
    }

    /// Whether a frontend of a Service is in the kernel as it should be.
    pub(crate) fn serves(&self, key: &FrontendKey, service: &ObjectName) -> bool {
        self.family(key.family()).serves(key, service)
    }

    pub(crate) fn reverted(&self, key: &Key) -> Option<Key> {
        let is_changed = match key {
            Key::Sysctl(name) => self.sysctls.is_changed(name),
            Key::Table(family) => self.family(*family).is_table_changed,
            Key::Service(family, name) => self.family(*family).changed.contains(name),
            _ => false,
        };
        is_changed.then(|| key.clone())
    }

    pub(crate) fn unread(&self) -> Vec<Class> {
        self.readings.unread()
    }

    pub(crate) fn next(&self) -> Option<Instant> {
        let now = self
            .now
            .filter(|_| self.families.iter().any(|family| family.needs_listing));
        [now, self.readings.retry_at()].into_iter().flatten().min()
    }

    pub(crate) fn needs_listing(&self, now: Instant) -> bool {
        self.families.iter().any(|family| family.needs_listing)
            || self.readings.retry_at().is_some_and(|at| at <= now)
    }

    /// The time that `nft list ruleset` takes for the tables, about.
    pub(crate) fn listing_time(&self) -> Duration {
        let elements = self
            .families
            .iter()
            .map(|family| family.totals.elements)
            .sum::<usize>();
        LISTING_OF_ELEMENT.saturating_mul(u32::try_from(elements).unwrap_or(u32::MAX))
    }

    pub(crate) fn totals(&self) -> Totals {
        Totals {
            families: [self.families[0].totals, self.families[1].totals],
        }
    }
}
