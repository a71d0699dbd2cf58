//! What is wanted, and what is ours.

use std::collections::BTreeSet;

use indexmap::IndexMap;

use crate::chain::ChainName;
use crate::error::Error;
use crate::family::Family;
use crate::restore::{Edit, Restore};
use crate::rule::Rule;
use crate::table::Table;
use crate::targets::Target;

/// Which chains are ours, by name or by how the name begins, in every table.
///
/// Ours are also all chains that are wanted, and every rule in a chain of others that leads to a chain of ours,
/// unless [`with_shared_chains`](Self::with_shared_chains) says otherwise. Built-in chains are nobody's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owned {
    names: BTreeSet<ChainName>,
    prefixes: BTreeSet<String>,
    pub(crate) shares_chains: bool,
}

impl Owned {
    /// Nothing.
    pub fn new() -> Self {
        Owned::default()
    }

    /// And the chain of this name.
    pub fn with_chain(mut self, name: ChainName) -> Self {
        self.names.insert(name);
        self
    }

    /// And every chain whose name begins so. The empty prefix is every chain there is.
    pub fn with_prefix(mut self, prefix: &str) -> Self {
        self.prefixes.insert(prefix.into());
        self
    }

    /// Others too may jump to chains of ours: of the rules in their chains only those that are wanted are ours.
    pub fn with_shared_chains(mut self) -> Self {
        self.shares_chains = true;
        self
    }

    /// Whether a chain of this name is ours.
    pub fn holds(&self, name: &ChainName) -> bool {
        self.names.contains(name)
            || self
                .prefixes
                .iter()
                .any(|prefix| name.as_str().starts_with(prefix))
    }
}

/// The chains we want with all that is in them, and the rules in chains of others that lead there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Which tool.
    pub family: Family,
    pub(crate) tables: IndexMap<Table, WantedTable>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct WantedTable {
    pub(crate) chains: IndexMap<ChainName, Vec<Rule>>,
    pub(crate) jumps: Vec<Jump>,
}

/// A rule of ours in a chain of others: a jump or goto to a chain of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Jump {
    /// The chain it stands in: a built-in one, or another that is not ours.
    pub from: ChainName,
    /// The rule.
    pub rule: Rule,
    /// Where it is put if it is missing. Where it stands already, it stays.
    pub place: Place,
}

impl Jump {
    /// What puts it where [`Operation::EnsureJump`](crate::Operation::EnsureJump) does.
    pub(crate) fn edit(&self) -> Edit {
        match self.place {
            Place::First | Place::Before(_) => Edit::insert(self.from, self.rule.clone()),
            Place::Last | Place::After(_) => Edit::append(self.from, self.rule.clone()),
        }
    }
}

/// Where a missing jump is put.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// Before everything. Several keep the order in which they are listed.
    First,
    /// After everything. Several keep the order in which they are listed.
    Last,
    /// Right before the first rule that means the same as this; first if there is none.
    Before(Rule),
    /// Right after the first rule that means the same as this; last if there is none.
    After(Rule),
}

impl Wanted {
    /// Nothing: what is ours goes.
    pub fn new(family: Family) -> Self {
        Wanted {
            family,
            tables: IndexMap::new(),
        }
    }

    /// And this chain with exactly these rules. A second call for the same chain replaces the first.
    ///
    /// Tables are changed in the order in which they are first named.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for a built-in chain, of which no one is the owner, and for one a jump is wanted in.
    pub fn set_chain(
        &mut self,
        table: Table,
        chain: ChainName,
        rules: impl IntoIterator<Item = Rule>,
    ) -> Result<(), Error> {
        if table.is_builtin(&chain) {
            return Err(Error::invalid(
                "wanted chain",
                chain.as_str(),
                "is a built-in chain, which nobody owns",
            ));
        }
        let wanted = self.tables.entry(table).or_default();
        if wanted.jumps.iter().any(|jump| jump.from == chain) {
            return Err(Error::invalid("wanted chain", chain.as_str(), BOTH));
        }
        wanted.chains.insert(chain, rules.into_iter().collect());
        Ok(())
    }

    /// And this jump.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if the rule leads to no chain, because it could not be told from the rules of others,
    /// and if the chain it stands in is itself wanted with all its rules.
    pub fn add_jump(&mut self, table: Table, jump: Jump) -> Result<(), Error> {
        if jump.rule.target.as_ref().and_then(Target::chain).is_none() {
            let text = jump.rule.to_string();
            return Err(Error::invalid(
                "wanted jump",
                &text,
                "leads to no chain, so it could not be found again",
            ));
        }
        let wanted = self.tables.entry(table).or_default();
        if wanted.chains.contains_key(&jump.from) {
            return Err(Error::invalid("wanted jump", jump.from.as_str(), BOTH));
        }
        wanted.jumps.push(jump);
        Ok(())
    }

    /// The input that makes every wanted chain what it is to be, whatever is there: each is declared and filled.
    ///
    /// For tables that cannot be read. Jumps are not in it (see [`jumps`](Self::jumps) and
    /// [`Operation::EnsureJump`](crate::Operation::EnsureJump)), nor is the removal of chains that are no longer wanted. With
    /// what was read, use [`diff`](crate::diff) or [`diff_operations`](crate::diff_operations).
    pub fn to_restore(&self) -> Restore {
        let mut restore = Restore::new(self.family);
        for (table, wanted) in &self.tables {
            wanted.declare_and_fill(&mut restore, *table);
        }
        restore
    }

    /// The jumps wanted, table by table, in the order in which they were added.
    pub fn jumps(&self) -> impl Iterator<Item = (Table, &Jump)> {
        self.tables
            .iter()
            .flat_map(|(table, wanted)| wanted.jumps.iter().map(|jump| (*table, jump)))
    }

    /// The rules wanted of a chain.
    pub fn chain(&self, table: Table, chain: &ChainName) -> Option<&[Rule]> {
        self.tables.get(&table)?.chains.get(chain).map(Vec::as_slice)
    }
}

impl WantedTable {
    /// Adds the edits that make every chain what is wanted, whatever is there.
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

const BOTH: &str = "is wanted as a whole and as a chain of others";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_not_be_found_again_is_not_taken() {
        let output: ChainName = "OUTPUT".parse().unwrap();
        let jump = |rule: &str| Jump {
            from: output,
            rule: rule.parse().unwrap(),
            place: Place::First,
        };
        let mut wanted = Wanted::new(Family::Ipv4);
        assert!(wanted.set_chain(Table::Nat, output, []).is_err());
        assert!(wanted.add_jump(Table::Nat, jump("-j ACCEPT")).is_err());
        assert!(wanted.add_jump(Table::Nat, jump("-j OURS")).is_ok());
        let theirs = Jump {
            from: "THEIRS".parse().unwrap(),
            ..jump("-j OURS")
        };
        wanted.add_jump(Table::Nat, theirs.clone()).unwrap();
        assert!(wanted.set_chain(Table::Nat, theirs.from, []).is_err());
        wanted.set_chain(Table::Filter, theirs.from, []).unwrap();
        assert!(wanted.add_jump(Table::Filter, theirs).is_err());
    }
}
