//! An in-memory twin of the tables.

use std::collections::{BTreeMap, BTreeSet, HashSet, VecDeque};

use crate::apply::{apply, empty_table};
use crate::error::{Error, Refused, RefusedKind};
use crate::family::Family;
use crate::operation::{Iptables, Operation, Save};
use crate::restore::Restore;
use crate::ruleset::Ruleset;
use crate::table::Table;
use crate::unreadable::UnreadableLine;

/// Tables in memory that take and refuse what the tools and the kernel do.
///
/// Refused, with the same kinds of error: chains that are not there, that are there already, that are in
/// use or not empty; rules to delete that are not there; jumps to a missing chain; loops; targets in a
/// table or behind a hook they are not for; matches without their protocol; sets that are not there (once
/// [`set_sets`](Fake::set_sets) has named those that are). A table is changed whole or not at all, and the
/// tables before it stand.
///
/// Not known: matches and targets kept verbatim are always taken.
#[derive(Clone, Debug, Default)]
pub struct Fake {
    families: BTreeMap<Family, Ruleset>,
    unreadable: BTreeSet<(Family, Table)>,
    sets: Option<HashSet<String>>,
    failures: VecDeque<Error>,
    operations: Vec<Operation>,
}

impl Fake {
    /// No table in either family; the first restore or read of one makes it.
    pub fn new() -> Self {
        Fake::default()
    }

    /// The tables as they would be in `family` after somebody else wrote them. What is
    /// [unreadable](Ruleset::unreadable) in it makes strict reads fail.
    pub fn set_ruleset(&mut self, family: Family, ruleset: Ruleset) {
        self.families.insert(family, ruleset.normal_form(family));
    }

    /// What is there, with counters.
    pub fn ruleset(&self, family: Family) -> Ruleset {
        self.families.get(&family).cloned().unwrap_or_default()
    }

    /// From now on the table cannot be printed, as one with nftables rules that the tool does not know: a strict
    /// [`save`](Iptables::save) fails, and for a [tolerant](Save::tolerant) one the table is
    /// [unreadable](Ruleset::is_unreadable). Writing works. [`ruleset`](Self::ruleset) has what is there.
    pub fn set_unreadable(&mut self, family: Family, table: Table) {
        self.unreadable.insert((family, table));
    }

    /// From now on only these sets exist. Before the first call every set does.
    pub fn set_sets(&mut self, names: impl IntoIterator<Item = String>) {
        self.sets = Some(names.into_iter().collect());
    }

    /// The next operation, or the next after those already given errors, fails with `error` and does nothing.
    pub fn fail_next(&mut self, error: Error) {
        self.failures.push_back(error);
    }

    /// Every operation tried since the start or since the last call, in order.
    pub fn take_operations(&mut self) -> Vec<Operation> {
        std::mem::take(&mut self.operations)
    }

    fn try_restore(&self, restore: &Restore) -> (Ruleset, Result<(), Error>) {
        let mut ruleset = self.ruleset(restore.family);
        let outcome = restore
            .render_checked(crate::wire::render::Style::RESTORE)
            .and_then(|_| {
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
                        // What stands stands, refused or not.
                        self.families.insert(restore.family, ruleset);
                        outcome
                    }
                    Operation::EnsureJump { family, table, jump } => {
                        let there = self
                            .ruleset(*family)
                            .chain(*table, &jump.from)
                            .is_some_and(|chain| chain.holds(&jump.rule, *family));
                        if there {
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
        let known = self.families.entry(request.family).or_default();
        if let Some(table) = request.table
            && known.table(table).is_none()
        {
            *known.table_mut(table) = empty_table(table);
        }
        let mut saved = Ruleset::new();
        let asked = |table: Table| request.table.is_none_or(|wanted| wanted == table);
        for (table, rules) in known.tables().filter(|(table, _)| asked(*table)) {
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
        if !request.tolerant {
            if let Some(line) = saved.unreadable_tables.values().next() {
                return Err(Error::Refused {
                    tool: format!("{}-save (in memory)", request.family.tool()),
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
            saved.forget_rule_counters();
        }
        Ok(saved)
    }

    fn test(&mut self, restore: &Restore) -> Result<(), Error> {
        self.try_restore(restore).1.map_err(Error::of_a_test)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chain::ChainName;
    use crate::restore::Edit;

    fn chain(place: usize) -> ChainName {
        format!("C{place}").parse().unwrap()
    }

    #[test]
    fn chains_as_deep_as_there_are_chains_are_followed_and_a_loop_at_their_end_is_found() {
        const DEPTH: usize = 20_000;
        let mut restore = Restore::new(Family::Ipv4);
        for place in 0..=DEPTH {
            restore.push(Table::Filter, Edit::declare(chain(place)));
        }
        let jump = |from, to| Edit::append(from, crate::Rule::new().jump(chain(to)));
        restore.push(Table::Filter, jump("INPUT".parse().unwrap(), 0));
        for place in 0..DEPTH {
            restore.push(Table::Filter, jump(chain(place), place + 1));
        }
        let mut fake = Fake::new();
        fake.restore(&restore).unwrap();
        let back = Restore::new(Family::Ipv4).with(Table::Filter, jump(chain(DEPTH), 7));
        let error = fake.restore(&back).unwrap_err();
        assert!(error.to_string().contains("loop"), "{error}");
        // The same chain by two ways is none.
        let twice = Restore::new(Family::Ipv4).with(Table::Filter, jump(chain(3), DEPTH));
        fake.restore(&twice).unwrap();
    }
}
