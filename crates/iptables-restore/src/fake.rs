//! An in-memory fake of the tables.

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};

use kernlink_base::Family;

use crate::apply::{apply, empty_table};
use crate::client::Iptables;
use crate::error::{Error, Refused, RefusedKind};
use crate::operation::Operation;
use crate::restore::Restore;
use crate::ruleset::Ruleset;
use crate::save::Save;
use crate::style::Style;
use crate::table::Table;
use crate::unreadable::UnreadableLine;
use crate::variant::tool;

/// Tables in memory that accept and refuse what the tools and the kernel do.
///
/// Refused, with the same kinds of error, are: chains that do not exist, exist already, are in use or are not empty; rules to be deleted
/// that do not exist; jumps to a missing chain; loops; targets in a table or at a hook where they are not valid; matches without their
/// protocol; sets that do not exist (after [`set_sets`](Fake::set_sets)). Each table is changed atomically; tables before a refused one
/// stay changed.
///
/// Matches and targets that are kept verbatim are accepted without a check.
#[derive(Clone, Debug, Default)]
pub struct Fake {
    families: BTreeMap<Family, Ruleset>,
    unreadable: BTreeSet<(Family, Table)>,
    sets: Option<HashSet<String>>,
    failures: VecDeque<Error>,
    operations: Vec<Operation>,
}

impl Fake {
    /// No tables. The first restore or read of a table creates it.
    #[must_use]
    pub fn new() -> Self {
        Fake::default()
    }

    /// Replaces the tables of a family. [Unreadable](Ruleset::unreadable) lines in them make strict reads fail.
    pub fn set_ruleset(&mut self, family: Family, ruleset: Ruleset) {
        self.families.insert(family, ruleset.normal_form(family));
    }

    /// The tables of a family, with counters.
    #[must_use]
    pub fn ruleset(&self, family: Family) -> Ruleset {
        self.families.get(&family).cloned().unwrap_or_default()
    }

    /// Makes a table unreadable, like one with nftables rules that the tool does not support: a strict [`save`](Iptables::save) fails,
    /// and for a [lenient](Save::lenient) one the table is [unreadable](Ruleset::is_unreadable). Changes succeed, and
    /// [`ruleset`](Self::ruleset) returns the table.
    pub fn set_unreadable(&mut self, family: Family, table: Table) {
        self.unreadable.insert((family, table));
    }

    /// Sets the names of the existing ipsets. Before the first call every name exists.
    pub fn set_sets(&mut self, names: impl IntoIterator<Item = String>) {
        self.sets = Some(names.into_iter().collect());
    }

    /// The next operation fails with `error` and changes nothing. Several calls are for consecutive operations.
    pub fn fail_next(&mut self, error: Error) {
        self.failures.push_back(error);
    }

    /// All operations since the last call, in order, including failed ones.
    pub fn take_operations(&mut self) -> Vec<Operation> {
        std::mem::take(&mut self.operations)
    }

    fn try_restore(&self, restore: &Restore) -> (Ruleset, Result<(), Error>) {
        let mut ruleset = self.ruleset(restore.family);
        let outcome = restore.render_checked(Style::RESTORE).and_then(|_| {
            apply(&mut ruleset, restore, self.sets.as_ref()).map_err(|refusal| refusal.to_error(restore))
        });
        (ruleset, outcome)
    }
}

impl Iptables for Fake {
    fn execute(&mut self, operations: &[Operation]) -> Vec<Result<(), Error>> {
        operations
            .iter()
            .map(|operation| {
                self.operations.push(operation.clone());
                if let Some(error) = self.failures.pop_front() {
                    return Err(error);
                }
                match operation {
                    Operation::Restore(restore) => {
                        let (ruleset, outcome) = self.try_restore(restore);
                        // Tables before a refused one stay changed.
                        self.families.insert(restore.family, ruleset);
                        outcome
                    }
                    Operation::EnsureJump { family, table, jump } => {
                        let exists = self
                            .ruleset(*family)
                            .chain(*table, &jump.from)
                            .is_some_and(|chain| chain.contains(&jump.rule, *family));
                        if exists {
                            return Ok(());
                        }
                        let restore = Restore::new(*family).with(*table, jump.edit());
                        let (ruleset, outcome) = self.try_restore(&restore);
                        self.families.insert(*family, ruleset);
                        outcome
                    }
                }
            })
            .collect()
    }

    fn save(&mut self, request: &Save) -> Result<Ruleset, Error> {
        let tables = self.families.entry(request.family).or_default();
        if let Some(table) = request.table
            && tables.table(table).is_none()
        {
            *tables.table_mut(table) = empty_table(table);
        }
        let mut saved = Ruleset::new();
        let is_requested = |table: Table| request.table.is_none_or(|requested| requested == table);
        for (table, rules) in tables.tables().filter(|(table, _)| is_requested(*table)) {
            if self.unreadable.contains(&(request.family, table)) {
                let line = UnreadableLine {
                    line: 0,
                    text: "Parsing nftables rule failed".into(),
                    reason: format!("table {table} cannot be printed"),
                };
                saved.unreadable_tables.insert(table, line);
            } else {
                *saved.table_mut(table) = rules.clone();
            }
        }
        if !request.lenient {
            if let Some(line) = saved.unreadable_tables.values().next() {
                return Err(Error::Refused {
                    tool: format!("{}-save (in memory)", tool(request.family)),
                    refused: Box::new(Refused::Whole(request.family)),
                    kind: RefusedKind::Unreadable,
                    text: line.text.clone(),
                    status: Some(3),
                    applied: Vec::new(),
                });
            }
            if let Some(line) = saved.unreadable().first() {
                return Err(line.to_error());
            }
        }
        if !request.counters {
            saved.clear_rule_counters();
        }
        Ok(saved)
    }

    fn test(&mut self, restore: &Restore) -> Result<(), Error> {
        self.try_restore(restore).1.map_err(Error::without_applied)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chain::ChainName;
    use crate::restore::Edit;

    fn chain(number: usize) -> ChainName {
        format!("C{number}").parse().unwrap()
    }

    #[test]
    fn a_loop_at_the_end_of_a_very_deep_path_is_found() {
        const DEPTH: usize = 20_000;
        let mut restore = Restore::new(Family::Ipv4);
        for number in 0..=DEPTH {
            restore.push(Table::Filter, Edit::declare(chain(number)));
        }
        let jump = |from, to| Edit::append(from, crate::Rule::new().jump(chain(to)));
        restore.push(Table::Filter, jump("INPUT".parse().unwrap(), 0));
        for number in 0..DEPTH {
            restore.push(Table::Filter, jump(chain(number), number + 1));
        }
        let mut fake = Fake::new();
        fake.restore(&restore).unwrap();
        let back = Restore::new(Family::Ipv4).with(Table::Filter, jump(chain(DEPTH), 7));
        let error = fake.restore(&back).unwrap_err();
        assert!(error.to_string().contains("loop"), "{error}");
        // Two paths to the same chain are not a loop.
        let twice = Restore::new(Family::Ipv4).with(Table::Filter, jump(chain(3), DEPTH));
        fake.restore(&twice).unwrap();
    }
}
