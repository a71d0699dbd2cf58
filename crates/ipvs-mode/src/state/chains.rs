//! The value of the chains of a family, and the rules in them.

use kernlink_engine::retire::Interim;
use kernlink_engine::table::Table as Objects;
use kernlink_ipset::Entry;
use kernlink_iptables_restore::{
    self as iptables_restore, Chain, ChainName, Operation, Rule, Ruleset, Table,
};
use kernlink_netfilter::{chain_name, interim_rules};
use kernlink_services::{Event, Family};

use super::State;
use crate::error::Error;
use crate::extensions;
use crate::rules::{self, POSTROUTING, RuleInputs, SERVICES};
use crate::sets::SetId;

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
    pub(crate) interim: Option<Emptying>,
    /// The rules that were in place before the tables were read. `None` after the plan, and if a step had failed.
    pub(crate) before: Option<Box<Ruleset>>,
    /// The rules on top of chains that retiring modes need.
    pub(crate) on_top: Vec<(Table, ChainName, Vec<Rule>)>,
    /// Whether some of the tables were not readable when they were read last.
    pub(crate) has_unreadable: bool,
}

/// Chains that still have the rules of sets that become empty, and the operation that removes these rules.
#[derive(Clone, Debug)]
pub(crate) struct Emptying {
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
    /// They could not be read. With the rules that were read or written last, if there are any.
    Unreadable(Error, Option<Box<Ruleset>>),
    /// As written by this process: the rules of the owned chains.
    Written(Box<Ruleset>),
}

impl ObservedRules {
    /// The rules that were read or written last.
    pub(crate) fn last(self) -> Option<Box<Ruleset>> {
        match self {
            Self::Saved(rules) | Self::Written(rules) => Some(rules),
            Self::Unreadable(_, last) => last,
            Self::Unknown => None,
        }
    }
}

impl State {
    /// The desired chains and rules of a family.
    #[must_use]
    pub fn rules(&self, family: Family) -> Ruleset {
        self.rules_of(family, |_, table| !table.is_empty())
    }

    /// The chains of a family with the rules that they need while withdrawn entries exist. `None` if these are the desired ones.
    pub(crate) fn interim_rules(&self, family: Family) -> Option<Ruleset> {
        self.emptied(family).next()?;
        Some(self.rules_of(family, |set, table| {
            !table.is_empty() || self.emptied(family).any(|emptied| emptied == set)
        }))
    }

    /// Sets the rules on top of chains that retiring modes need. While there are any in `KUBE-SERVICES`, they translate new connections
    /// before IPVS sees them, those of the node to its own addresses too: connections from virtual IPs, which become addresses of the node before
    /// these rules are removed, are masqueraded.
    pub(crate) fn set_interim(&mut self, interim: &[Interim]) {
        for family in Family::ALL {
            let mut on_top = Vec::new();
            for &(table, names) in rules::CHAINS {
                for name in names.iter().map(|name| chain_name(name)) {
                    let of_chain = interim_rules(interim, family, table, &name);
                    on_top.extend(
                        of_chain
                            .filter(|rules| !rules.is_empty())
                            .map(|rules| (table, name, rules)),
                    );
                }
            }
            let chains = &mut self.chains[family.index()];
            if chains.on_top != on_top {
                chains.on_top = on_top;
                chains.is_dirty = true;
            }
        }
    }

    /// Finds the extensions without which the rules of a family can be written, after a restore was refused. They are written again at once.
    pub(crate) fn find_missing_extensions(&mut self, family: Family, error: &iptables_restore::Error) {
        self.readings.has_changed_support |= self.missing.find(family, &extensions::ALL, error);
    }

    /// The events about missing extensions.
    pub(crate) fn extension_events(&self) -> Vec<Event> {
        self.missing.events(self.families())
    }

    /// The sets of a family, as far as rules read them, that have observed entries, but no desired ones.
    pub(crate) fn emptied(&self, family: Family) -> impl Iterator<Item = SetId> {
        let tables = &self.entries[family.index()];
        let is_emptied = |table: &Objects<Entry, ()>| table.is_empty() && table.iter_observed().len() > 0;
        SetId::KUBE_PROXY
            .iter()
            .copied()
            .filter(move |set| is_emptied(&tables[set.index()]))
    }

    /// Whether the next rules of a family look up a set.
    pub(crate) fn is_read_by_rules(&self, family: Family, set: SetId) -> bool {
        let table = || &self.entries[family.index()][set.index()];
        SetId::KUBE_PROXY.contains(&set)
            && self.is_usable(family, set)
            && (rules::ALWAYS_READ.contains(&set) || !table().is_empty() || table().iter_observed().len() > 0)
    }

    fn rules_of(&self, family: Family, has_rules: impl Fn(SetId, &Objects<Entry, ()>) -> bool) -> Ruleset {
        let mut filled = [false; SetId::KUBE_PROXY.len()];
        let mut usable = [false; SetId::KUBE_PROXY.len()];
        for &set in SetId::KUBE_PROXY {
            usable[set.index()] = self.is_usable(family, set);
            filled[set.index()] =
                usable[set.index()] && has_rules(set, &self.entries[family.index()][set.index()]);
        }
        let mut rules = rules::rules(&RuleInputs {
            config: &self.config,
            family,
            pod_cidr: self.pod_cidrs[family.index()],
            filled,
            usable,
            missing: self.missing.of(family),
            denied_to_node: self.denied_to_node(family).copied().collect(),
        });
        let on_top = &self.chains[family.index()].on_top;
        let mut prepend = |table: Table, name: &ChainName, first: &[Rule]| {
            let of_table = rules.table_mut(table);
            let own = of_table.chain(name).into_iter().flat_map(|chain| chain.rules());
            let all: Vec<Rule> = first.iter().chain(own).cloned().collect();
            of_table.insert(*name, Chain::with_rules(all));
        };
        for (table, name, first) in on_top {
            prepend(*table, name, first);
            if name.as_str() == SERVICES {
                let first = [rules::masquerade_virtual_ips(family)];
                prepend(Table::Nat, &chain_name(POSTROUTING), &first);
            }
        }
        rules
    }
}
