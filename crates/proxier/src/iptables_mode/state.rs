//! The state of iptables mode: the desired and observed chains and rules.

use std::collections::BTreeSet;
use std::sync::Arc;

use ipnet::IpNet;
use kernlink_base::KernelRelease;
use kernlink_iptables_restore::{ChainName, Rule, Style};
use kernlink_services::{Changes, Event, Family, InterfaceAddress, NodeFacts, ObjectName, ServicePortId, Services};

use super::chains::{Counters, FixedChain, static_rules};
use super::compile::{Compiled, Inputs, compile};
use super::config::Config;
use super::port_chain::PortChain;
use crate::plan::Subject;
use crate::table::Table;

/// Above this number of endpoints of all Services, rules of endpoints have no comments, as in kube-proxy.
const MOST_ENDPOINTS_WITH_COMMENTS: usize = 1000;

/// A chain of a service port, in table `nat`.
pub(super) type ChainKey = (Family, ChainName);

/// A rule of a service port in a chain that all service ports share: its normal form, as `iptables-save` prints it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct RuleKey {
    pub(super) family: Family,
    pub(super) chain: FixedChain,
    pub(super) text: Box<str>,
}

/// The desired and observed chains and rules of iptables mode.
#[derive(Clone, Debug)]
pub struct State {
    config: Arc<Config>,
    /// The families that are served, and those that were served before the configuration changed.
    pub(super) managed: BTreeSet<Family>,
    pub(super) node: NodeFacts,
    pub(super) interfaces: BTreeSet<InterfaceAddress>,
    pub(super) counters: Counters,
    pub(super) chains: Table<ChainKey, PortChain, Fingerprint>,
    pub(super) rules: Table<RuleKey, ()>,
    /// The objects of each service port, by its id.
    ports: Vec<PortObjects>,
    /// The number of endpoints of all service ports.
    endpoints: usize,
    /// Whether rules of endpoints have comments.
    has_comments: bool,
    /// Whether all service ports are to be compiled again.
    is_outdated: bool,
}

/// Identifies the rules of a chain: two hashes of their normal forms.
pub(super) type Fingerprint = [u64; 2];

/// The objects of a service port.
#[derive(Clone, Debug, Default)]
struct PortObjects {
    /// `None` if no service port has the id.
    family: Option<Family>,
    service: Option<ObjectName>,
    /// For listings: its name.
    name: Box<str>,
    chains: Box<[ChainName]>,
    /// In kube-proxy's order.
    rules: Box<[(FixedChain, Box<str>)]>,
    endpoints: usize,
}

impl State {
    /// The state before Services and kernel were read: that of a node without Services.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        let mut state = Self {
            config: Arc::new(config.clone()),
            managed: BTreeSet::new(),
            node: NodeFacts::default(),
            interfaces: BTreeSet::new(),
            counters: Counters::ALL,
            chains: Table::default(),
            rules: Table::default(),
            ports: Vec::new(),
            endpoints: 0,
            has_comments: true,
            is_outdated: false,
        };
        state.managed.extend(&config.services.families);
        state
    }

    /// The configuration.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The families that are served.
    pub fn families(&self) -> impl Iterator<Item = Family> + '_ {
        self.config.services.families.iter().copied()
    }

    /// Brings the desired chains and rules up to date with changes of the Services. Returns new events.
    pub fn compile(&mut self, services: &Services, changes: &Changes) -> Vec<Event> {
        if changes.node {
            let before = std::mem::replace(&mut self.node, services.node_facts().clone());
            let pod_cidr = |node: &NodeFacts| Family::ALL.map(|family| node.pod_cidr(family));
            self.is_outdated |= pod_cidr(&before) != pod_cidr(&self.node);
        }
        let mut ids: Vec<ServicePortId> = changes.ports.clone();
        for id in &ids {
            let endpoints = services.port(*id).map_or(0, |port| {
                port.endpoints.cluster.len().max(port.endpoints.local.len())
            });
            let before = self.port_mut(*id).map(|port| std::mem::replace(&mut port.endpoints, endpoints));
            self.endpoints = (self.endpoints + endpoints).saturating_sub(before.unwrap_or(0));
        }
        let has_comments = self.endpoints <= MOST_ENDPOINTS_WITH_COMMENTS;
        if has_comments != self.has_comments {
            self.has_comments = has_comments;
            self.is_outdated = true;
        }
        if std::mem::take(&mut self.is_outdated) {
            ids.retain(|id| services.port(*id).is_none());
            ids.extend(services.ports().map(|(id, _)| id));
        }
        for id in ids {
            self.compile_port(id, services);
        }
        Vec::new()
    }

    fn port_mut(&mut self, id: ServicePortId) -> Option<&mut PortObjects> {
        let index = id.index();
        if self.ports.len() <= index {
            self.ports.resize_with(index + 1, PortObjects::default);
        }
        self.ports.get_mut(index)
    }

    fn compile_port(&mut self, id: ServicePortId, services: &Services) {
        let mut now = PortObjects::default();
        let mut compiled = Compiled::default();
        if let Some(port) = services.port(id) {
            let family = port.key.family;
            let pod_cidr: Option<IpNet> = self.node.pod_cidr(family);
            let config = Arc::clone(&self.config);
            let inputs = Inputs {
                config: &config,
                pod_cidr,
                counters: self.counters,
                has_comments: self.has_comments,
            };
            compiled = compile(port, services.owned_frontends(id), &inputs);
            now = PortObjects {
                family: Some(family),
                service: Some(port.key.name.service.clone()),
                name: port.key.name.to_string().into(),
                chains: compiled.chains.iter().map(|(name, _)| *name).collect(),
                rules: compiled
                    .rules
                    .iter()
                    .map(|(chain, rule)| (*chain, rule_text(rule, family)))
                    .collect(),
                endpoints: 0,
            };
        }
        let Some(place) = self.port_mut(id) else { return };
        now.endpoints = place.endpoints;
        let before = std::mem::replace(place, now.clone());
        let subject = now.service.clone().map_or(Subject::DataPath, Subject::Service);
        if let Some(family) = now.family {
            for (name, chain) in compiled.chains {
                self.chains.add((family, name), chain, subject.clone());
            }
            for (chain, text) in &now.rules {
                let key = RuleKey {
                    family,
                    chain: *chain,
                    text: text.clone(),
                };
                self.rules.add(key, (), subject.clone());
            }
        }
        // After the additions: a key that stays keeps a reference and its value.
        if let Some(family) = before.family {
            for name in &before.chains {
                self.chains.remove(&(family, *name));
            }
            for (chain, text) in &before.rules {
                let key = RuleKey {
                    family,
                    chain: *chain,
                    text: text.clone(),
                };
                self.rules.remove(&key);
            }
        }
    }

    /// The rules of a fixed chain that do not depend on Services.
    pub(super) fn static_rules(&self, chain: FixedChain, family: Family) -> Vec<Rule> {
        static_rules(chain, &self.config, family, &self.node, self.counters)
    }

    /// The chains of service ports of a family with their rules, by service port, in kube-proxy's order.
    pub(super) fn port_chains(&self, family: Family) -> Vec<(ChainName, Vec<Rule>)> {
        let names = self.sorted_ports(family).into_iter();
        names
            .flat_map(|port| port.chains.iter())
            .filter_map(|name| Some((*name, self.chains.desired(&(family, *name))?.rules())))
            .collect()
    }

    /// The rules of service ports in a fixed chain, in their normal form, by service port.
    pub(super) fn shared_rules(&self, chain: FixedChain, family: Family) -> Vec<Rule> {
        let ports = self.sorted_ports(family).into_iter();
        let rules = ports.flat_map(|port| port.rules.iter());
        rules
            .filter(|(of, _)| *of == chain)
            .filter_map(|(_, text)| text.parse().ok())
            .collect()
    }

    fn sorted_ports(&self, family: Family) -> Vec<&PortObjects> {
        let mut ports: Vec<&PortObjects> = self
            .ports
            .iter()
            .filter(|port| port.family == Some(family))
            .collect();
        ports.sort_by_key(|port| &port.name);
        ports
    }

    /// The desired sysctls of a host.
    #[must_use]
    pub fn sysctls(&self, _kernel: KernelRelease, processors: u32) -> Vec<crate::netfilter::Sysctl> {
        super::sysctls::sysctls(&self.config, processors)
    }
}

/// The normal form of a rule as `iptables-save` prints it.
pub(super) fn rule_text(rule: &Rule, family: Family) -> Box<str> {
    rule.normal_form(family).render(Style::SAVE).into()
}
