//! The desired chains and jumps of a family.

use indexmap::IndexMap;
use kernlink_base::Family;

use crate::chain::ChainName;
use crate::error::Error;
use crate::restore::{Edit, Restore};
use crate::rule::Rule;
use crate::table::Table;
use crate::targets::Target;

/// The desired owned chains with all their rules, and the desired rules in foreign chains that jump to them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Desired {
    /// The family of all tables.
    pub family: Family,
    pub(crate) tables: IndexMap<Table, DesiredTable>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DesiredTable {
    pub(crate) chains: IndexMap<ChainName, Vec<Rule>>,
    pub(crate) jumps: Vec<Jump>,
}

/// An owned rule in a foreign chain: a jump or goto to an owned chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Jump {
    /// The chain that contains the rule: a built-in one, or another that is not owned.
    pub from: ChainName,
    /// The rule.
    pub rule: Rule,
    /// Where the rule is added if it is missing. An existing rule is not moved.
    pub position: Position,
}

impl Jump {
    /// The edit by which [`Operation::EnsureJump`](crate::Operation::EnsureJump) adds the rule.
    pub(crate) fn edit(&self) -> Edit {
        match self.position {
            Position::First | Position::Before(_) => Edit::insert(self.from, self.rule.clone()),
            Position::Last | Position::After(_) => Edit::append(self.from, self.rule.clone()),
        }
    }
}

/// Where a missing jump is added.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Position {
    /// At the top of the chain. Several jumps keep the order in which they were added to [`Desired`].
    First,
    /// At the end of the chain. Several jumps keep the order in which they were added to [`Desired`].
    Last,
    /// Directly before the first [equivalent](Rule::is_equivalent) rule; at the top if there is none.
    Before(Rule),
    /// Directly after the first [equivalent](Rule::is_equivalent) rule; at the end if there is none.
    After(Rule),
}

impl Desired {
    /// No chains and no jumps: everything owned is removed.
    #[must_use]
    pub fn new(family: Family) -> Self {
        Desired {
            family,
            tables: IndexMap::new(),
        }
    }

    /// Adds a chain with exactly these rules, or replaces the rules of a previous call.
    ///
    /// Tables are changed in the order in which they are first named.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for a built-in chain, which cannot be owned, and for a chain that contains a desired jump.
    pub fn set_chain(
        &mut self,
        table: Table,
        chain: ChainName,
        rules: impl IntoIterator<Item = Rule>,
    ) -> Result<(), Error> {
        if table.is_builtin(&chain) {
            return Err(Error::invalid(
                "desired chain",
                chain.as_str(),
                "a built-in chain cannot be owned",
            ));
        }
        let desired = self.tables.entry(table).or_default();
        if desired.jumps.iter().any(|jump| jump.from == chain) {
            return Err(Error::invalid("desired chain", chain.as_str(), OWNED_AND_FOREIGN));
        }
        desired.chains.insert(chain, rules.into_iter().collect());
        Ok(())
    }

    /// Adds a jump.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the rule has no chain as its target, because it could not be distinguished from foreign rules, and
    /// if the chain that contains the rule is itself a desired chain.
    pub fn add_jump(&mut self, table: Table, jump: Jump) -> Result<(), Error> {
        if jump.rule.target.as_ref().and_then(Target::chain).is_none() {
            let text = jump.rule.to_string();
            return Err(Error::invalid(
                "desired jump",
                &text,
                "the target must be a chain",
            ));
        }
        let desired = self.tables.entry(table).or_default();
        if desired.chains.contains_key(&jump.from) {
            return Err(Error::invalid(
                "desired jump",
                jump.from.as_str(),
                OWNED_AND_FOREIGN,
            ));
        }
        desired.jumps.push(jump);
        Ok(())
    }

    /// The input that declares and fills every desired chain, independent of the current tables.
    ///
    /// For tables that cannot be read. It does not contain the jumps (see [`jumps`](Self::jumps) and
    /// [`Operation::EnsureJump`](crate::Operation::EnsureJump)) and does not delete chains that are no longer desired. For tables
    /// that were read, use [`diff`](crate::diff) or [`diff_operations`](crate::diff_operations).
    #[must_use]
    pub fn to_restore(&self) -> Restore {
        let mut restore = Restore::new(self.family);
        for (table, desired) in &self.tables {
            desired.declare_and_fill(&mut restore, *table);
        }
        restore
    }

    /// The desired jumps, table by table, in the order in which they were added.
    pub fn jumps(&self) -> impl Iterator<Item = (Table, &Jump)> {
        self.tables
            .iter()
            .flat_map(|(table, desired)| desired.jumps.iter().map(|jump| (*table, jump)))
    }

    /// The desired rules of a chain; `None` if the chain is not desired.
    #[must_use]
    pub fn chain(&self, table: Table, chain: &ChainName) -> Option<&[Rule]> {
        self.tables.get(&table)?.chains.get(chain).map(Vec::as_slice)
    }
}

impl DesiredTable {
    /// Adds the edits that declare and fill every chain.
    pub(crate) fn declare_and_fill(&self, restore: &mut Restore, table: Table) {
        for name in self.chains.keys() {
            restore.push(table, Edit::declare(*name));
        }
        for (name, rules) in &self.chains {
            for rule in rules {
                restore.push(table, Edit::append(*name, rule.clone()));
            }
        }
    }
}

const OWNED_AND_FOREIGN: &str =
    "a chain cannot be both a desired chain and the foreign chain of a desired jump";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jumps_that_could_not_be_found_again_are_refused() {
        let output: ChainName = "OUTPUT".parse().unwrap();
        let jump = |rule: &str| Jump {
            from: output,
            rule: rule.parse().unwrap(),
            position: Position::First,
        };
        let mut desired = Desired::new(Family::Ipv4);
        assert!(desired.set_chain(Table::Nat, output, []).is_err());
        assert!(desired.add_jump(Table::Nat, jump("-j ACCEPT")).is_err());
        assert!(desired.add_jump(Table::Nat, jump("-j OWNED")).is_ok());
        let foreign = Jump {
            from: "FOREIGN".parse().unwrap(),
            ..jump("-j OWNED")
        };
        desired.add_jump(Table::Nat, foreign.clone()).unwrap();
        assert!(desired.set_chain(Table::Nat, foreign.from, []).is_err());
        desired.set_chain(Table::Filter, foreign.from, []).unwrap();
        assert!(desired.add_jump(Table::Filter, foreign).is_err());
    }
}
