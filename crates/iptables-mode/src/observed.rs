//! Chains and rules as read from the kernel.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{DefaultHasher, Hash, Hasher};

use kernlink_iptables_restore::{
    Chain, ChainName, ChainReader, Error as RulesError, Iptables, Rule, Ruleset, Save, Table,
};
use kernlink_netfilter::{TABLES, read_chains_of, unreadable_rules};
use kernlink_services::{Event, Family};

use super::chains::{FixedChain, Jump, jumps};
use super::leftovers;
use super::names::ChainKind;
use super::port_chain::service_of;
use super::rule_key::{Fingerprint, RuleText, rule_text};

/// The tables of a family, as far as they concern iptables mode.
#[derive(Clone, Debug, Default)]
pub(super) struct Observed {
    /// The chains of service ports.
    pub(super) chains: Vec<(ChainName, Fingerprint)>,
    pub(super) fixed: BTreeMap<FixedChain, ObservedChain>,
    /// Whether each of the [`jumps`] exists.
    pub(super) jumps: Vec<bool>,
    /// The jumps without a condition that another mode left, once for each copy.
    pub(super) leftover_jumps: Vec<Jump>,
    /// The tables that could not be read. They may have chains that are not listed here.
    pub(super) unread: BTreeSet<Table>,
}

/// A fixed chain: its rules in order, each in its normal form.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ObservedChain {
    pub(super) rules: Vec<RuleText>,
    /// Those of `rules` that do not depend on Services and were desired when the chain was read or written.
    pub(super) own: Vec<RuleText>,
    /// Whether it has rules that cannot be parsed.
    pub(super) has_unreadable: bool,
}

impl ObservedChain {
    fn of(chain: &Chain, family: Family) -> Self {
        Self {
            rules: chain.rules().map(|rule| rule_text(rule, family)).collect(),
            own: Vec::new(),
            has_unreadable: !chain.unreadable.is_empty(),
        }
    }
}

impl Observed {
    /// No table could be read.
    pub(super) fn nothing() -> Self {
        Self {
            jumps: vec![false; jumps().len()],
            unread: TABLES.iter().copied().collect(),
            ..Self::default()
        }
    }

    /// Whether a chain that all service ports share has a rule of a Service. One without endpoints has no chain.
    pub(super) fn has_service_rules(&self) -> bool {
        let shared = self.fixed.iter().filter(|(chain, _)| chain.is_shared());
        let mut rules = shared.flat_map(|(_, chain)| &chain.rules);
        rules.any(|rule| service_of(rule).is_some())
    }
}

/// What was read of the tables of a family.
#[derive(Clone, Debug)]
pub(super) struct ReadTables {
    pub(super) observed: Observed,
    /// The events about what cannot be read.
    pub(super) events: Vec<Event>,
}

/// Reads the tables of these families, all at the same time. Of each chain only that is kept which concerns iptables mode.
pub(super) fn read_observed(
    iptables: &mut dyn Iptables,
    families: &[Family],
) -> Vec<(Family, Result<ReadTables, RulesError>)> {
    let mut reader = Reader::default();
    let read = read_chains_of(iptables, families, &mut reader).into_iter();
    read.map(|(family, read)| (family, read.map(|rest| reader.take(family, &rest))))
        .collect()
}

/// What was read so far of the chains of both families.
#[derive(Default)]
struct Reader {
    families: [FamilyReader; 2],
}

#[derive(Default)]
struct FamilyReader {
    chains: Vec<(ChainName, Fingerprint)>,
    fixed: BTreeMap<FixedChain, ObservedChain>,
    /// By the position in [`jumps`], those that exist.
    jumps: BTreeSet<usize>,
    /// The jumps without a condition that another mode left to the target of the jump at this position.
    leftovers: BTreeMap<usize, Vec<Jump>>,
}

impl Reader {
    /// What the chains of a family mean. `rest` has the tables without their rules.
    fn take(&mut self, family: Family, rest: &Ruleset) -> ReadTables {
        let mut read = std::mem::take(&mut self.families[family.index()]);
        let unread: BTreeSet<Table> = TABLES
            .iter()
            .copied()
            .filter(|table| rest.is_unreadable(*table))
            .collect();
        for table in &unread {
            read.begin(*table);
        }
        let observed = Observed {
            chains: read.chains,
            fixed: read.fixed,
            jumps: (0..jumps().len())
                .map(|position| read.jumps.contains(&position))
                .collect(),
            leftover_jumps: read.leftovers.into_values().flatten().collect(),
            unread,
        };
        let events = unreadable_rules(rest, family);
        ReadTables { observed, events }
    }
}

impl FamilyReader {
    /// Forgets what was read of a table.
    fn begin(&mut self, table: Table) {
        if table == Table::Nat {
            self.chains.clear();
        }
        self.fixed.retain(|chain, _| chain.table() != table);
        let is_other = |position: &usize| jumps().get(*position).is_some_and(|jump| jump.table != table);
        self.jumps.retain(is_other);
        self.leftovers.retain(|position, _| is_other(position));
    }

    fn chain(&mut self, family: Family, table: Table, name: &ChainName, chain: &Chain) {
        let is_it = |fixed: &FixedChain| fixed.table() == table && fixed.text() == name.as_str();
        if let Some(fixed) = FixedChain::ALL.iter().copied().find(is_it) {
            self.fixed.insert(fixed, ObservedChain::of(chain, family));
        } else if table == Table::Nat && is_port_chain(name) {
            self.chains.push((*name, fingerprint_of_chain(chain, family)));
        }
        for (position, jump) in jumps().iter().enumerate() {
            if jump.table != table || jump.chain != *name {
                continue;
            }
            if chain.contains(&jump.rule, family) {
                self.jumps.insert(position);
            }
            self.leftovers
                .insert(position, leftovers::unconditional_jumps(jump, chain));
        }
    }
}

impl ChainReader for Reader {
    fn begin(&mut self, request: &Save, table: Table) {
        self.families[request.family.index()].begin(table);
    }

    fn chain(&mut self, request: &Save, table: Table, name: &ChainName, chain: Chain) -> Option<Chain> {
        let family = request.family;
        self.families[family.index()].chain(family, table, name, &chain);
        // Those are reported.
        (!chain.unreadable.is_empty()).then(|| Chain {
            rules: Vec::new(),
            ..chain
        })
    }
}

/// Whether a chain of table `nat` is one of a service port.
pub(super) fn is_port_chain(name: &ChainName) -> bool {
    ChainKind::ALL
        .iter()
        .any(|kind| name.as_str().starts_with(kind.prefix()))
}

/// The fingerprint of rules.
pub(super) fn fingerprint(rules: &[Rule], family: Family) -> Fingerprint {
    hash(rules.iter(), family, 0)
}

fn fingerprint_of_chain(chain: &Chain, family: Family) -> Fingerprint {
    hash(chain.rules(), family, chain.unreadable.len())
}

fn hash<'a>(rules: impl Iterator<Item = &'a Rule>, family: Family, unreadable: usize) -> Fingerprint {
    let mut hasher = DefaultHasher::new();
    unreadable.hash(&mut hasher);
    for rule in rules {
        rule.hash_normal_form(family, &mut hasher);
    }
    // The state of the hasher is larger than its result.
    let first = hasher.finish();
    first.hash(&mut hasher);
    [first, hasher.finish()]
}

/// How often each rule occurs.
pub(super) fn counts(rules: &[RuleText]) -> HashMap<&str, usize> {
    let mut counts: HashMap<&str, usize> = HashMap::new();
    for rule in rules {
        *counts.entry(rule).or_default() += 1;
    }
    counts
}
