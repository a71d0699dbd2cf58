//! Passes the writes of several Services to the tool together, and finds those that are refused.

use std::collections::{BTreeSet, HashSet, VecDeque};
use std::mem::{Discriminant, discriminant};

use kernlink_iptables_restore::{
    Edit, EditSource, Error as RulesError, Iptables, Joined, Match, Refused, Rule, Table, Target,
};

use super::error::Error;
use super::operation::Write;

/// The number of refused parts that are left out one by one. If more are refused, those that have a rule of the same shape as a refused one
/// are passed apart from all others, which do not wait for them.
const REFUSED_ONE_BY_ONE: usize = 2;

/// The number of refused inputs after which what is left is not attempted: it is retried later. Each refusal costs a run of the tool, which
/// reads the whole table.
const MOST_REFUSALS: usize = 32;

/// Writes parts of one family and one order of tables. Returns one outcome for each, in order. A part that is refused does not prevent the others.
pub(super) fn write(rules: &mut dyn Iptables, parts: &[&Write]) -> Vec<Result<(), Error>> {
    let mut batch = Batch {
        parts,
        outcomes: vec![None; parts.len()],
        groups: VecDeque::new(),
        shapes: HashSet::new(),
        named: 0,
        refusals: 0,
    };
    batch.push_back((0..parts.len()).collect(), &[]);
    while let Some(group) = batch.groups.pop_front() {
        batch.write(rules, &group);
    }
    let outcomes = batch.outcomes.into_iter();
    outcomes
        .map(|outcome| outcome.unwrap_or(Err(Error::OutcomeMissing)))
        .collect()
}

struct Batch<'a> {
    parts: &'a [&'a Write],
    outcomes: Vec<Option<Result<(), Error>>>,
    groups: VecDeque<Group>,
    /// Those of the refused edits.
    shapes: HashSet<Shape>,
    /// The number of parts whose refused edit the tool named.
    named: usize,
    /// The number of inputs that were refused.
    refusals: usize,
}

/// Parts that are passed to the tool together.
struct Group {
    /// Their positions.
    parts: Vec<usize>,
    /// The tables that are written already, and stay as they are.
    written: Vec<Table>,
}

impl Batch<'_> {
    fn push_back(&mut self, parts: Vec<usize>, written: &[Table]) {
        if !parts.is_empty() {
            self.groups.push_back(Group {
                parts,
                written: written.to_vec(),
            });
        }
    }

    fn push_front(&mut self, parts: Vec<usize>, written: &[Table]) {
        if !parts.is_empty() {
            self.groups.push_front(Group {
                parts,
                written: written.to_vec(),
            });
        }
    }

    fn set(&mut self, parts: &[usize], outcome: impl Fn(usize) -> Result<(), Error>) {
        for &part in parts {
            if let Some(place) = self.outcomes.get_mut(part) {
                *place = Some(outcome(part));
            }
        }
    }

    fn write(&mut self, rules: &mut dyn Iptables, Group { parts, written }: &Group) {
        let inputs = self.parts;
        let Some(joined) = joined(inputs, parts, written) else {
            return self.set(parts, |_| Ok(()));
        };
        if self.refusals >= MOST_REFUSALS {
            let refused = self.refusals;
            return self.set(parts, |part| {
                let error = Error::NotAttempted { refused };
                if is_partly_written(inputs, part, written) {
                    // Its object is read again.
                    return Err(Error::PartlyWritten(RulesError::custom(
                        "write the rest",
                        error.to_string(),
                    )));
                }
                Err(error)
            });
        }
        let error = match rules.restore_joined(&joined) {
            Ok(()) => return self.set(parts, |_| Ok(())),
            Err(error) => error,
        };
        let RulesError::Refused { refused, applied, .. } = &error else {
            // The tool could not be started, or its outcome is unknown: this is about all parts.
            let is_unwritten = written.is_empty();
            return self.set(parts, |_| {
                Err(if is_unwritten {
                    error.clone().into()
                } else {
                    Error::PartlyWritten(error.clone())
                })
            });
        };
        if matches!(**refused, Refused::Whole(_)) {
            // Which tables are written is not known. To pass the edits again could execute them twice.
            return self.set(parts, |_| Err(error.clone().into()));
        }
        self.refusals += 1;
        let written: Vec<Table> = written.iter().chain(applied).copied().collect();
        let refusal = |part: usize| {
            Err(if is_partly_written(inputs, part, &written) {
                Error::PartlyWritten(error.clone())
            } else {
                error.clone().into()
            })
        };
        if let [_] = parts.as_slice() {
            return self.set(parts, refusal);
        }
        let named = match &**refused {
            Refused::Edit { table, edit } => {
                let is_named = |part: &usize| {
                    inputs
                        .get(*part)
                        .is_some_and(|write| has_edit(write, *table, edit))
                };
                parts.iter().copied().find(is_named).map(|part| (part, edit))
            }
            _ => None,
        };
        let Some((part, edit)) = named else {
            return self.push_halves(parts.clone(), &written);
        };
        self.set(&[part], refusal);
        self.named += 1;
        self.shapes.insert(shape(edit));
        let others = parts.iter().copied().filter(|other| *other != part);
        if self.named <= REFUSED_ONE_BY_ONE {
            return self.push_front(others.collect(), &written);
        }
        let has_shape = |part: &usize| {
            let write = inputs.get(*part);
            write.is_some_and(|write| edits(write).any(|edit| self.shapes.contains(&shape(&edit))))
        };
        let (like, unlike): (Vec<usize>, Vec<usize>) = others.partition(has_shape);
        self.push_front(unlike, &written);
        self.push_halves(like, &written);
    }

    /// Both are passed after all other groups.
    fn push_halves(&mut self, parts: Vec<usize>, written: &[Table]) {
        let (first, second) = parts.split_at(parts.len() / 2);
        self.push_back(first.to_vec(), written);
        self.push_back(second.to_vec(), written);
    }
}

/// The input of the parts, without the tables that are written already; `None` if there is nothing to write.
fn joined<'a>(inputs: &[&'a Write], parts: &[usize], written: &[Table]) -> Option<Joined<'a>> {
    let writes = || parts.iter().filter_map(|&part| inputs.get(part).copied());
    let mut joined = Joined::new(writes().next()?.family());
    // Each table of all parts at once.
    let tables = writes().next()?.order.into_iter();
    for table in tables.filter(|table| !written.contains(table)) {
        for write in writes() {
            joined.push_source(table, write);
        }
    }
    (!joined.is_empty()).then_some(joined)
}

fn is_partly_written(inputs: &[&Write], part: usize, written: &[Table]) -> bool {
    inputs.get(part).is_some_and(|write| {
        let mut tables = write.order.into_iter();
        tables.any(|table| written.contains(&table) && write.count(table) > 0)
    })
}

fn edits(write: &Write) -> impl Iterator<Item = Edit> {
    write.order.into_iter().flat_map(|table| write.edits(table))
}

fn has_edit(write: &Write, table: Table, edit: &Edit) -> bool {
    write.edits(table).contains(edit)
}

/// What rules have in common that the same kernel refuses: the kinds of their matches and of their target, and the protocol.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Shape {
    edit: Discriminant<Edit>,
    matches: Vec<Discriminant<Match>>,
    protocols: BTreeSet<String>,
    target: Option<Discriminant<Target>>,
}

fn shape(edit: &Edit) -> Shape {
    let empty = Rule::new();
    let rule = edit.rule().unwrap_or(&empty);
    let protocols = rule.matches.iter().filter_map(|test| match test {
        Match::Protocol(_) => Some(Rule::new().with(test.clone()).to_string()),
        _ => None,
    });
    Shape {
        edit: discriminant(edit),
        matches: rule.matches.iter().map(discriminant).collect(),
        protocols: protocols.collect(),
        target: rule.target.as_ref().map(discriminant),
    }
}
