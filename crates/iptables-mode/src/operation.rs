//! `Operation`: one change, executed by one of the kernel APIs.

use std::fmt;

use kernlink_host::{DeleteFlows, Sysctl};
use kernlink_iptables_restore::{
    ChainName, Edit, EditSource, Jump, Operation as RulesOperation, Position, Restore, Rule, Table,
};
use kernlink_services::Family;

use super::chains::FixedChain;
use super::key::Key;
use super::order::TableOrder;
use super::port_chain::PortChain;
use super::rule_key::{Fingerprint, RuleKey};

/// A change of the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Operation {
    /// Writes a sysctl.
    Sysctl(Sysctl),
    /// Writes chains and rules. Consecutive ones of a family are passed to one `iptables-restore`.
    Write(Box<Write>),
    /// Adds a jump to a table that cannot be read.
    EnsureJump {
        /// The position of the jump.
        position: usize,
        /// The operation.
        operation: Box<RulesOperation>,
    },
    /// Creates a chain of a table that cannot be read, and adds rules to it.
    EnsureChain(Box<EnsureChain>),
    /// Creates an accounting object unless it exists.
    EnsureAccounting(Box<str>),
    /// Deletes stale UDP flows.
    Flows(DeleteFlows),
}

/// Creates a chain unless it exists, and adds the rules that it lacks. Its other rules stay.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct EnsureChain {
    /// The family.
    pub family: Family,
    /// The chain.
    pub chain: FixedChain,
    /// The rules.
    pub rules: Vec<Rule>,
}

impl EnsureChain {
    pub(super) fn new(family: Family, chain: FixedChain, rules: Vec<Rule>) -> Self {
        Self { family, chain, rules }
    }

    /// `iptables -N`, refused if the chain exists.
    #[must_use]
    pub fn creation(&self) -> Restore {
        let chain = self.chain.name();
        Restore::new(self.family).with(self.chain.table(), Edit::NewChain { chain })
    }

    /// One operation for each rule.
    pub fn additions(&self) -> impl Iterator<Item = RulesOperation> + '_ {
        self.rules.iter().map(|rule| {
            let rule = Jump {
                from: self.chain.name(),
                rule: rule.clone(),
                position: Position::Last,
            };
            RulesOperation::ensure_jump(self.family, self.chain.table(), rule)
        })
    }
}

/// Chains and rules that are written together. It has no rules of service ports: they are made when it is executed or printed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    pub(super) family: Family,
    pub(super) key: Key,
    pub(super) order: TableOrder,
    /// The first edits of their tables.
    pub(super) edits: Vec<(Table, Edit)>,
    /// The chains of service ports that it writes.
    pub(super) chains: Vec<ChainWrite>,
    /// The rules in shared chains that it adds at the top or deletes, in order.
    pub(super) rules: Vec<RuleWrite>,
    pub(super) effects: Effects,
}

/// The content of a chain of a service port, which it is written with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ChainWrite {
    pub(super) name: ChainName,
    /// `None`: it is emptied.
    pub(super) content: Option<PortChain>,
    /// That of the content.
    pub(super) fingerprint: Fingerprint,
}

/// A rule in a shared chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RuleWrite {
    pub(super) key: RuleKey,
    /// Whether it is added, not deleted.
    pub(super) is_added: bool,
}

/// What the edits of a [`Write`] change in the observed state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Effects {
    /// Chains of service ports that are deleted.
    pub(super) deleted: Vec<ChainName>,
    /// Rules of Services in shared chains that are added.
    pub(super) rules: Vec<RuleKey>,
    /// Fixed chains that it brings in place.
    pub(super) fixed: Vec<FixedChain>,
    /// Those of them that it empties first.
    pub(super) rewritten: Vec<FixedChain>,
    /// Whether it adds the missing jumps.
    pub(super) jumps: bool,
}

impl Write {
    /// The family.
    #[must_use]
    pub fn family(&self) -> Family {
        self.family
    }

    /// The input of `iptables-restore`.
    #[must_use]
    pub fn restore(&self) -> Restore {
        let mut restore = Restore::new(self.family);
        for table in self.order {
            let edits = self.edits(table);
            if !edits.is_empty() {
                *restore.table_mut(table) = edits;
            }
        }
        restore
    }

    /// The number of rules that it adds to a table.
    pub(super) fn added_rules(&self, table: Table) -> usize {
        let adds = |edit: &Edit| matches!(edit, Edit::Append { .. } | Edit::Insert { .. });
        let edits = self.edits.iter().filter(|(of, edit)| *of == table && adds(edit));
        let rules = self.rules.iter();
        let rules = rules.filter(|rule| rule.is_added && rule.key.chain.table() == table);
        edits.count() + rules.count() + self.rules_in_chains(table)
    }

    /// The number of rules of the chains of service ports.
    fn rules_in_chains(&self, table: Table) -> usize {
        let chains = self.chains.iter().filter(|_| table == Table::Nat);
        let contents = chains.filter_map(|chain| chain.content.as_ref());
        contents.map(PortChain::number_of_rules).sum()
    }
}

impl EditSource for Write {
    fn count(&self, table: Table) -> usize {
        let edits = self.edits.iter().filter(|(of, _)| *of == table).count();
        let declarations = if table == Table::Nat { self.chains.len() } else { 0 };
        let rules = self.rules.iter().filter(|rule| rule.key.chain.table() == table);
        edits + declarations + self.rules_in_chains(table) + rules.count()
    }

    /// Chains are declared first, since their rules jump to each other; then they are filled, and the rules that jump to them are added and
    /// others deleted.
    fn edits(&self, table: Table) -> Vec<Edit> {
        let mut edits = Vec::with_capacity(self.count(table));
        let first = self.edits.iter().filter(|(of, _)| *of == table);
        edits.extend(first.map(|(_, edit)| edit.clone()));
        if table == Table::Nat {
            edits.extend(self.chains.iter().map(|chain| Edit::declare(chain.name)));
            for chain in &self.chains {
                let rules = chain.content.iter().flat_map(PortChain::rules);
                edits.extend(rules.map(|rule| Edit::append(chain.name, rule)));
            }
        }
        for RuleWrite { key, is_added } in &self.rules {
            if key.chain.table() != table {
                continue;
            }
            let Ok(rule) = key.text.parse::<Rule>() else {
                continue;
            };
            let name = key.chain.name();
            edits.push(match is_added {
                true => Edit::insert(name, rule),
                false => Edit::delete(name, rule),
            });
        }
        edits
    }
}

impl From<Sysctl> for Operation {
    fn from(sysctl: Sysctl) -> Self {
        Operation::Sysctl(sysctl)
    }
}

impl From<DeleteFlows> for Operation {
    fn from(flows: DeleteFlows) -> Self {
        Operation::Flows(flows)
    }
}

impl From<Write> for Operation {
    fn from(write: Write) -> Self {
        Operation::Write(Box::new(write))
    }
}

impl fmt::Display for Operation {
    /// The equivalent command. A restore is followed by its standard input.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Operation::Sysctl(sysctl) => write!(f, "sysctl -w {}={}", sysctl.name, sysctl.value),
            Operation::Write(write) => RulesOperation::Restore(write.restore()).fmt(f),
            Operation::EnsureJump { operation, .. } => operation.fmt(f),
            Operation::EnsureAccounting(name) => write!(f, "nfacct add {name}"),
            Operation::Flows(flows) => flows.fmt(f),
            Operation::EnsureChain(ensure) => {
                RulesOperation::Restore(ensure.creation()).fmt(f)?;
                for addition in ensure.additions() {
                    write!(f, "\n{addition}")?;
                }
                Ok(())
            }
        }
    }
}
