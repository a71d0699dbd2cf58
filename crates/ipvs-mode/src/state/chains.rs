//! The value of the chains of a family, and the rules in them.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use kernlink_dummylink::AddressKey;
use kernlink_engine::table::Table;
use kernlink_ipset::{Element, Entry, ProtocolPort};
use kernlink_iptables_restore::{self as iptables_restore, Operation, Ruleset};
use kernlink_netfilter::TABLES;
use kernlink_services::{Event, Family, FrontendKey};

use super::State;
use crate::error::Error;
use crate::extensions;
use crate::leftovers::Leftovers;
use crate::rules::{self, RuleInputs};
use crate::sets::{SetId, of_virtual_server, protocol_port};
use crate::virtual_servers::{frontend_of, key_of};

/// The chains and jumps of one family.
#[derive(Clone, Debug, Default)]
pub(crate) struct Chains {
    pub(crate) observed: ObservedRules,
    pub(crate) is_dirty: bool,
    /// Whether they are to be read before a plan may depend on them: everything else was read since.
    pub(crate) is_unread: bool,
    /// Whether the chains and jumps are in the desired state.
    pub(crate) is_in_place: bool,
    /// The number of operations of the last plan that are not done yet. `None`: the host does not support the tables of the family.
    pub(crate) pending: Option<usize>,
    /// The rules that the last plan writes first, if they differ from the desired ones.
    pub(crate) interim: Option<Interim>,
    /// The rules that were in place before the tables were read. `None` after the plan, and if a step had failed.
    pub(crate) before: Option<Box<Ruleset>>,
    /// What iptables mode left in the tables, until it is removed.
    pub(crate) leftovers: Option<Box<Leftovers>>,
    /// Whether some of the tables were not readable when they were read last: it is not known what iptables mode left there.
    pub(crate) are_leftovers_unknown: bool,
}

/// Chains that still have the rules of sets that become empty, and the operation that removes these rules.
#[derive(Clone, Debug)]
pub(crate) struct Interim {
    pub(crate) rules: Box<Ruleset>,
    pub(crate) removal: Box<Operation>,
}

/// The tables of one family.
#[derive(Clone, Debug, Default)]
pub(crate) enum ObservedRules {
    /// Never read.
    #[default]
    Unknown,
    /// As read from the kernel.
    Saved(Box<Ruleset>),
    /// They could not be read.
    Unreadable(Error),
    /// As written by this process: the rules of the owned chains.
    Written(Box<Ruleset>),
}

impl State {
    /// The desired chains and rules of a family.
    #[must_use]
    pub fn rules(&self, family: Family) -> Ruleset {
        self.rules_of(family, |_, table| !table.is_empty())
    }

    /// The chains of a family with the rules that they need while withdrawn entries exist, and while rules of iptables mode serve. `None` if
    /// these are the desired ones.
    pub(crate) fn interim_rules(&self, family: Family) -> Option<Ruleset> {
        let leftovers = self.chains[family.index()].leftovers.as_deref();
        if leftovers.is_none() {
            self.emptied(family).next()?;
        }
        let mut rules = self.rules_of(family, |set, table| {
            !table.is_empty() || self.emptied(family).any(|emptied| emptied == set)
        });
        if let Some(leftovers) = leftovers {
            leftovers.add_to(&mut rules, family);
        }
        Some(rules)
    }

    /// Finds the extensions without which the rules of a family can be written, after a restore was refused. They are written again at once.
    pub(crate) fn find_missing_extensions(&mut self, family: Family, error: &iptables_restore::Error) {
        self.readings.has_changed_support |= self.missing.find(family, &extensions::ALL, error);
    }

    /// The events about missing extensions.
    pub(crate) fn extension_events(&self) -> Vec<Event> {
        self.missing.events(self.families())
    }

    /// Finds what iptables mode left in the tables of a family, after they were read. What was found before stays recorded while they cannot
    /// be read.
    pub(crate) fn observe_leftovers(&mut self, family: Family) {
        let chains = &mut self.chains[family.index()];
        chains.are_leftovers_unknown = match &chains.observed {
            ObservedRules::Saved(saved) => {
                chains.leftovers = Leftovers::of(saved, family).map(Box::new);
                TABLES.iter().any(|table| saved.is_unreadable(*table))
            }
            // A host without the tables has no rules in them.
            ObservedRules::Unreadable(Error::Rules(error)) => !error.is_unsupported(),
            _ => true,
        };
    }

    /// After operations of some Services failed: the next sync, which is due at once, removes the rules of iptables mode that the others do not need
    /// any more.
    pub(crate) fn release_leftovers(&mut self, family: Family) {
        let chains = &self.chains[family.index()];
        let is_written = matches!(chains.observed, ObservedRules::Written(_));
        // What the next plan compares, so that it is not due again after it.
        let is_planned = self.retired.is_none()
            && self.managed.contains(&family)
            && !chains.is_unread
            && self.are_rule_sets_known(family);
        if chains.leftovers.is_none() || !chains.is_in_place || !is_written || !is_planned {
            return;
        }
        let unserved = self.unserved(family);
        let revoked = self.revoked(family, &unserved);
        let chains = &mut self.chains[family.index()];
        let leftovers = chains.leftovers.as_deref_mut();
        if leftovers.is_some_and(|leftovers| leftovers.release(&unserved, &revoked)) {
            chains.is_dirty = true;
        }
    }

    /// Which of these frontends have source ranges that do not admit all clients that rules of iptables mode admit.
    fn revoked(&self, family: Family, unserved: &BTreeSet<FrontendKey>) -> BTreeSet<FrontendKey> {
        let sets = &self.entries[family.index()];
        let firewall = &sets[SetId::LoadBalancerFirewall.index()];
        let is_restricted = |frontend: &&FrontendKey| {
            let entry = of_virtual_server(&key_of(frontend));
            entry.is_some_and(|entry| firewall.is_desired(&entry))
        };
        let restricted: BTreeSet<&FrontendKey> = unserved.iter().filter(is_restricted).collect();
        let leftovers = self.chains[family.index()].leftovers.as_deref();
        let Some(leftovers) = leftovers.filter(|_| !restricted.is_empty()) else {
            return BTreeSet::new();
        };
        let mut ranges: BTreeMap<(IpAddr, ProtocolPort), Vec<IpNet>> = BTreeMap::new();
        for (entry, ()) in sets[SetId::LoadBalancerSourceCidr.index()].iter_desired() {
            if let Element::IpPortNet { ip, port, net } = entry.element() {
                let net = IpNet::new(net.address(), net.prefix_len()).ok();
                ranges.entry((*ip, *port)).or_default().extend(net);
            }
        }
        let is_revoked = |frontend: &&FrontendKey| {
            let port = protocol_port(frontend.protocol, frontend.port);
            let ranges = ranges.get(&(frontend.address, port));
            leftovers.admits_others(frontend, ranges.map_or(&[], |ranges| ranges))
        };
        restricted.into_iter().filter(is_revoked).copied().collect()
    }

    /// Whether the next sync removes rules of iptables mode.
    pub(crate) fn releases_leftovers(&self) -> bool {
        let mut chains = self.chains.iter().filter(|chains| !chains.is_unread);
        self.retired.is_none()
            && chains.any(|chains| chains.is_dirty && chains.leftovers.is_some() && chains.is_in_place)
    }

    /// The frontends of a family that IPVS does not serve although it should.
    fn unserved(&self, family: Family) -> BTreeSet<FrontendKey> {
        let addresses = self.addresses.iter_desired().map(|(key, ())| key);
        let unbound: BTreeSet<IpAddr> = addresses
            .filter(|key| !self.addresses.is_observed(key))
            .map(AddressKey::address)
            .collect();
        let servers = self.servers.iter_desired().filter(|(key, desired)| {
            let observed = self.servers.observed(key).filter(|server| server.is_owned);
            observed.is_none_or(|observed| desired.missing_first(observed).is_some())
                || key.address().is_some_and(|address| unbound.contains(&address))
        });
        let frontends = servers.filter_map(|(key, _)| frontend_of(key));
        frontends.filter(|frontend| frontend.family() == family).collect()
    }

    /// The sets of a family, as far as rules read them, that have observed entries, but no desired ones.
    pub(crate) fn emptied(&self, family: Family) -> impl Iterator<Item = SetId> {
        let tables = &self.entries[family.index()];
        let is_emptied = |table: &Table<Entry, ()>| table.is_empty() && table.iter_observed().len() > 0;
        SetId::KUBE_PROXY
            .into_iter()
            .filter(move |set| is_emptied(&tables[set.index()]))
    }

    /// Whether the next rules of a family look up a set.
    pub(crate) fn is_read_by_rules(&self, family: Family, set: SetId) -> bool {
        let table = || &self.entries[family.index()][set.index()];
        SetId::KUBE_PROXY.contains(&set)
            && self.is_usable(family, set)
            && (rules::ALWAYS_READ.contains(&set) || !table().is_empty() || table().iter_observed().len() > 0)
    }

    fn rules_of(&self, family: Family, has_rules: impl Fn(SetId, &Table<Entry, ()>) -> bool) -> Ruleset {
        let mut filled = [false; SetId::KUBE_PROXY.len()];
        let mut usable = [false; SetId::KUBE_PROXY.len()];
        for set in SetId::KUBE_PROXY {
            usable[set.index()] = self.is_usable(family, set);
            filled[set.index()] =
                usable[set.index()] && has_rules(set, &self.entries[family.index()][set.index()]);
        }
        rules::rules(&RuleInputs {
            config: &self.config,
            family,
            pod_cidr: self.pod_cidrs[family.index()],
            filled,
            usable,
            missing: self.missing.of(family),
            denied_to_node: self.denied_to_node(family).copied().collect(),
        })
    }
}
