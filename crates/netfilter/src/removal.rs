//! The removal of owned chains and of the jumps to them.

use std::collections::BTreeSet;
use std::fmt;

use kernlink_base::ErrorChain;
use kernlink_engine::retire::{Retired, RetiredStep, Round};
use kernlink_iptables_restore::{
    ChainName, Edit, Error, Iptables, Operation, Restore, Ruleset, Save, Table, TableRules,
};
use kernlink_services::Family;

use super::{Jump, unreadable_table};

/// The owned chains and jumps of a table.
pub struct Owned<'a> {
    /// Whether a chain is owned.
    pub is_owned: &'a dyn Fn(&ChainName) -> bool,
    /// The owned jumps. Those of other tables are ignored.
    pub jumps: &'a [Jump],
    /// Chains that stay and are written again with other rules: what their present rules use is not kept.
    pub rewritten: &'a [&'a str],
}

impl fmt::Debug for Owned<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Owned")
            .field("jumps", &self.jumps)
            .field("rewritten", &self.rewritten)
            .finish_non_exhaustive()
    }
}

/// What removes the owned chains of a table.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct TableRemoval {
    /// The edits: jumps first, then chains. Empty if there is nothing to remove.
    pub edits: Vec<Edit>,
    /// The owned chains that stay with their rules: foreign rules jump to them, or chains that stay do.
    pub kept: Vec<ChainName>,
}

impl TableRemoval {
    /// The input of `iptables-restore`; `None` if there is nothing to remove.
    #[must_use]
    pub fn restore(self, family: Family, table: Table) -> Option<Restore> {
        if self.edits.is_empty() {
            return None;
        }
        let mut restore = Restore::new(family);
        *restore.table_mut(table) = self.edits;
        Some(restore)
    }
}

/// What removes owned chains and the jumps to them, and what prevents the removal of others.
#[derive(Clone, Debug, Default, PartialEq)]
#[non_exhaustive]
pub struct Removal {
    /// The operations, one for each table with something to remove. They do not depend on each other.
    pub operations: Vec<Operation>,
    /// Why tables could not be read; their chains stay.
    pub errors: Vec<Error>,
    /// Owned chains that stay because a foreign rule jumps to them, or because such a chain does.
    pub kept_chains: Vec<(Family, Table, ChainName)>,
}

impl Removal {
    /// Reads a table and adds what removes its owned chains, and the jumps to them. If it cannot be read, it adds the error.
    pub fn add_table(
        &mut self,
        iptables: &mut dyn Iptables,
        family: Family,
        table: Table,
        owned: &Owned<'_>,
    ) {
        match plan_removal(iptables, family, table, owned) {
            Ok(of_table) => {
                let kept = of_table.kept.iter().map(|chain| (family, table, *chain));
                self.kept_chains.extend(kept);
                let restore = of_table.restore(family, table);
                self.operations.extend(restore.map(Operation::Restore));
            }
            Err(error) => self.errors.push(error),
        }
    }

    /// Executes the operations. Returns one outcome for each, in order; one that fails does not stop those after it.
    pub fn execute(&self, iptables: &mut dyn Iptables) -> Vec<Result<(), Error>> {
        let operations = self.operations.iter();
        operations
            .map(|operation| execute_one(&mut *iptables, operation))
            .collect()
    }

    /// A round that executes the operations.
    pub fn retire(&self, iptables: &mut dyn Iptables, round: &Round<'_>) -> Retired {
        let mut retired = Retired::default();
        let operations = self.operations.iter();
        retired.steps = operations
            .map(|operation| retired_step(&mut *iptables, round, operation))
            .collect();
        let errors = self.errors.iter();
        retired.problems = errors.map(|error| ErrorChain(error).to_string()).collect();
        retired.kept = self.kept_chains.iter().map(kept_chain).collect();
        retired.is_gone = retired.steps.is_empty() && retired.problems.is_empty();
        retired
    }
}

impl fmt::Display for Removal {
    /// The commands, and a line for everything that stays: what could not be read, and the chains that foreign rules use.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for operation in &self.operations {
            writeln!(f, "{operation}")?;
        }
        for error in &self.errors {
            writeln!(f, "# {}", ErrorChain(error))?;
        }
        for kept in &self.kept_chains {
            writeln!(f, "# {}", kept_chain(kept))?;
        }
        Ok(())
    }
}

/// The text about an owned chain that stays because foreign rules use it.
#[must_use]
pub fn kept_chain((family, table, chain): &(Family, Table, ChainName)) -> String {
    format!("{family} chain {chain} of table {table} stays: foreign rules use it")
}

/// A step of a round that executes an operation on the tables.
pub fn retired_step(rules: &mut dyn Iptables, round: &Round<'_>, operation: &Operation) -> RetiredStep {
    round.step(operation.family(), operation.to_string(), || {
        execute_one(rules, operation).map_err(|error| ErrorChain(&error).to_string())
    })
}

fn execute_one(iptables: &mut dyn Iptables, operation: &Operation) -> Result<(), Error> {
    let outcome = iptables.execute(std::slice::from_ref(operation)).pop();
    outcome.unwrap_or(Err(Error::OutcomeMissing))
}

/// Reads a table and decides what is removed from it. A host without the table has nothing to remove.
fn plan_removal(
    iptables: &mut dyn Iptables,
    family: Family,
    table: Table,
    owned: &Owned<'_>,
) -> Result<TableRemoval, Error> {
    let ruleset = match iptables.save(&Save::table(family, table).lenient()) {
        Ok(ruleset) => ruleset,
        Err(error) if error.is_unsupported() => return Ok(TableRemoval::default()),
        Err(error) => return Err(error),
    };
    if ruleset.is_unreadable(table) {
        return Err(unreadable_table(&ruleset, table));
    }
    Ok(removal(&ruleset, family, table, owned))
}

/// Decides what is removed from a table.
#[must_use]
pub fn removal(ruleset: &Ruleset, family: Family, table: Table, owned: &Owned<'_>) -> TableRemoval {
    let Some(rules) = ruleset.table(table) else {
        return TableRemoval::default();
    };
    let jumps: Vec<&Jump> = owned.jumps.iter().filter(|jump| jump.table == table).collect();
    let used = used_by_others(rules, family, &jumps, owned);
    let mut edits = Vec::new();
    for jump in jumps {
        let chain = rules.chain(&jump.chain).into_iter();
        let copies = chain.flat_map(|chain| chain.rules());
        let copies = copies.filter(|rule| rule.is_equivalent(&jump.rule, family));
        // Each edit deletes one copy.
        edits.extend(copies.map(|_| Edit::delete(jump.chain, jump.rule.clone())));
    }
    let present = rules.chains().map(|(name, _)| *name);
    let (kept, removed): (Vec<_>, Vec<_>) = present
        .filter(|name| (owned.is_owned)(name))
        .partition(|name| used.contains(name));
    // All are emptied first, since they jump to each other.
    edits.extend(removed.iter().map(|name| Edit::declare(*name)));
    edits.extend(removed.iter().map(|name| Edit::delete_chain(*name)));
    TableRemoval { edits, kept }
}

/// The owned chains to which foreign rules jump, and those to which these chains jump.
fn used_by_others(
    rules: &TableRules,
    family: Family,
    jumps: &[&Jump],
    owned: &Owned<'_>,
) -> BTreeSet<ChainName> {
    let is_owned = owned.is_owned;
    let is_foreign = |name: &ChainName| !is_owned(name) && !owned.rewritten.contains(&name.as_str());
    let is_jump = |chain: &ChainName, rule: &kernlink_iptables_restore::Rule| {
        let mut of_chain = jumps.iter().filter(|jump| jump.chain == *chain);
        of_chain.any(|jump| jump.rule.is_equivalent(rule, family))
    };
    let mut open: Vec<ChainName> = Vec::new();
    for (name, chain) in rules.chains().filter(|(name, _)| is_foreign(name)) {
        let foreign = chain.rules().filter(|rule| !is_jump(name, rule));
        open.extend(foreign.filter_map(|rule| rule.target.as_ref()?.chain().copied()));
    }
    let unreadable = rules.unreadable();
    let foreign = unreadable
        .iter()
        .filter(|line| line.chain().is_none_or(|chain| is_foreign(&chain)));
    open.extend(foreign.flat_map(|line| line.targets()));
    open.retain(is_owned);
    let mut used: BTreeSet<ChainName> = open.iter().copied().collect();
    while let Some(name) = open.pop() {
        let chain = rules.chain(&name).into_iter();
        let readable = chain
            .flat_map(|chain| chain.rules())
            .filter_map(|rule| rule.target.as_ref()?.chain().copied());
        let lines = unreadable.iter().filter(|line| line.chain() == Some(name));
        let targets = readable.chain(lines.flat_map(|line| line.targets()));
        open.extend(targets.filter(|to| is_owned(to) && used.insert(*to)));
    }
    used
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_chain_in_a_foreign_line_that_cannot_be_parsed_stays_with_what_it_uses() {
        let saved = Ruleset::parse_lenient(
            "*nat
:PREROUTING ACCEPT [0:0]
:OWNED-A - [0:0]
:OWNED-B - [0:0]
:OWNED-C - [0:0]
:FOREIGN - [0:0]
-A PREROUTING -j OWNED-C
-A OWNED-A -j OWNED-B
-A OWNED-C -j OWNED-A
-A FOREIGN -m unknown --option \"a
b\" -j OWNED-A
COMMIT
",
        );
        assert_eq!(saved.unreadable().len(), 1);
        let jumps = [Jump {
            table: Table::Nat,
            chain: "PREROUTING".parse().unwrap(),
            rule: "-j OWNED-C".parse().unwrap(),
        }];
        let owned = Owned {
            is_owned: &|name| name.as_str().starts_with("OWNED-"),
            jumps: &jumps,
            rewritten: &[],
        };
        let removal = removal(&saved, Family::Ipv4, Table::Nat, &owned);
        let kept: Vec<&str> = removal.kept.iter().map(ChainName::as_str).collect();
        assert_eq!(kept, ["OWNED-A", "OWNED-B"]);
        let edits: Vec<String> = removal.edits.iter().map(ToString::to_string).collect();
        assert_eq!(
            edits,
            ["-D PREROUTING -j OWNED-C", ":OWNED-C - [0:0]", "-X OWNED-C"]
        );
    }
}
