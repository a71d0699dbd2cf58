//! The state of nftables mode: the desired and observed tables and elements.

mod compile;
mod family;
mod record;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Instant;

use kernlink_engine::Readings;
use kernlink_engine::plan::Subject;
use kernlink_engine::table::Table;
use kernlink_host::flows::UdpFrontends;
use kernlink_host::{CONNTRACK_BUCKETS, LocalSource};
use kernlink_services::{Family, NodeFacts, ServicePortId};

pub(crate) use self::family::{Candidates, FamilyState, FoundTable, OldTable, ReadElements};
use crate::config::Config;
use crate::events::Events;
use crate::layout::Slot;
use crate::networks::intervals;
use crate::port::PortSpec;
use crate::rules::{Parameters, Pods};

/// The desired and observed tables and elements of nftables mode.
#[derive(Clone, Debug)]
pub struct State {
    pub(crate) config: Arc<Config>,
    pub(crate) node: NodeFacts,
    pub(crate) sysctls: Table<Box<str>, Box<str>>,
    pub(crate) families: [FamilyState; 2],
    /// The service ports by id.
    pub(crate) ports: Vec<Option<Arc<PortSpec>>>,
    /// The last number of a service port with session affinity.
    pub(crate) last_pool: u32,
    pub(crate) flows: UdpFrontends,
    /// Events that no sync has returned yet.
    pub(crate) events: Events,
    pub(crate) readings: Readings,
    /// The service ports with more endpoints than are balanced, which were reported.
    pub(crate) limited: BTreeSet<ServicePortId>,
    /// Whether all service ports are to be compiled again.
    pub(crate) is_outdated: bool,
    /// The time of the plan or sync in progress, or of the last one.
    pub(crate) now: Option<Instant>,
}

impl State {
    /// Sets what depends on the configuration alone.
    pub(crate) fn configure(&mut self) {
        for family in Family::ALL {
            let is_served = self.config.services.families.contains(&family);
            let state = &mut self.families[family.index()];
            state.is_served = is_served;
            state.is_table_dirty = true;
            if let Some(networks) = &self.config.service_cidrs {
                // The keys of elements are the same in both tables.
                state.set_networks(intervals(networks, family, &Slot::First.table(family)));
            }
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
        Parameters {
            family,
            mark: self.config.masquerade_bit.mark(),
            masquerade_all: self.config.masquerade_all,
            pods: source.map(|source| match source {
                LocalSource::Network(net) => Pods::Network(net),
                LocalSource::Interface(name) => Pods::Interface(name.as_str().into()),
                LocalSource::InterfacePrefix(prefix) => Pods::Prefix(prefix.as_str().into()),
            }),
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
}
