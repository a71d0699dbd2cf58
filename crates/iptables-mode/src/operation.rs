//! `Operation`: one change, executed by one of the kernel APIs.

use std::fmt;

use kernlink_host::{DeleteFlows, Sysctl};
use kernlink_iptables_restore::{
    ChainName, Edit, Jump, Operation as RulesOperation, Position, Restore, Rule,
};
use kernlink_services::Family;

use super::chains::FixedChain;
use super::key::Key;
use super::order::TableOrder;
use super::rule_key::Fingerprint;

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

/// Chains and rules that are written together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    /// The input of `iptables-restore`.
    pub restore: Restore,
    pub(super) key: Key,
    pub(super) order: TableOrder,
    pub(super) effects: Effects,
}

/// What a [`Write`] changes in the observed state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Effects {
    /// Chains of service ports that it writes or, with `None`, deletes.
    pub(super) chains: Vec<(ChainName, Option<Fingerprint>)>,
    /// Rules in shared chains that it adds or deletes.
    pub(super) rules: Vec<(FixedChain, Box<str>, bool)>,
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
        self.restore.family
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
            Operation::Write(write) => RulesOperation::Restore(write.restore.clone()).fmt(f),
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
