//! Which operations depend on which, to execute the rest of a transaction.

use std::borrow::Cow;
use std::collections::{BTreeSet, HashSet};

use super::Nftables;
use crate::chain::ChainKey;
use crate::element::{Element, ElementFlags};
use crate::error::Error;
use crate::expression::Expression;
use crate::operation::{Flush, Item, ItemKey, Operation};
use crate::rule::Rule;
use crate::table::TableKey;
use crate::verdict::Data;

/// Something with a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Named<'a> {
    Table(&'a TableKey),
    Chain(&'a TableKey, &'a str),
    Set(&'a TableKey, &'a str),
    Object(&'a TableKey, &'a str),
    Flowtable(&'a TableKey, &'a str),
    /// A rule of the same transaction.
    Rule(&'a ChainKey, u32),
}

/// An operation, or some of its elements.
#[derive(Clone, Debug)]
struct Part<'a> {
    /// The index of the operation.
    origin: usize,
    /// The index of its first element among those of the operation; `None` for a whole operation.
    element: Option<usize>,
    operation: Cow<'a, Operation>,
    /// Why it is left out.
    outcome: Option<Error>,
}

impl<'a> Part<'a> {
    fn whole(operations: &'a [Operation]) -> Vec<Self> {
        let operations = operations.iter().enumerate();
        let whole = operations.map(|(origin, operation)| Part {
            origin,
            element: None,
            operation: Cow::Borrowed(operation),
            outcome: None,
        });
        whole.collect()
    }

    /// Whether it can be divided.
    fn has_elements(&self) -> bool {
        self.element.is_none() && self.operation.elements().is_some()
    }

    /// One part for each element. The two elements of a range are one part.
    fn divided(&self) -> Vec<Self> {
        let Some(elements) = self.operation.elements() else {
            return Vec::new();
        };
        let is_end = |element: &Element| element.flags.contains(ElementFlags::INTERVAL_END);
        let mut first = 0;
        let ranges = elements.elements.chunk_by(|a, b| !is_end(a) && is_end(b));
        let parts = ranges.map(|range| {
            let part = Part {
                origin: self.origin,
                element: Some(first),
                operation: Cow::Owned(self.operation.with_elements(range.to_vec())),
                outcome: None,
            };
            first += range.len();
            part
        });
        parts.collect()
    }
}

pub(super) fn execute_rest(
    nftables: &mut (impl Nftables + ?Sized),
    operations: &[Operation],
) -> Vec<Result<(), Error>> {
    let parts = execute_parts(nftables, Part::whole(operations), false).into_iter();
    parts.map(|part| part.outcome.map_or(Ok(()), Err)).collect()
}

pub(super) fn execute_rest_by_element(
    nftables: &mut (impl Nftables + ?Sized),
    operations: &[Operation],
) -> Vec<Result<Vec<(usize, Error)>, Error>> {
    let mut outcomes: Vec<Result<Vec<(usize, Error)>, Error>> =
        operations.iter().map(|_| Ok(Vec::new())).collect();
    for part in execute_parts(nftables, Part::whole(operations), true) {
        let (Some(error), Some(outcome)) = (part.outcome, outcomes.get_mut(part.origin)) else {
            continue;
        };
        match (outcome, part.element) {
            (Ok(elements), Some(first)) => {
                let count = part
                    .operation
                    .elements()
                    .map_or(0, |elements| elements.elements.len());
                elements.extend((first..first + count).map(|index| (index, error.at_element(index))));
            }
            (outcome, _) => *outcome = Err(error),
        }
    }
    outcomes
}

/// Executes parts until none is refused. `by_element`: operations on elements are divided if they are refused.
fn execute_parts<'a>(
    nftables: &mut (impl Nftables + ?Sized),
    mut parts: Vec<Part<'a>>,
    by_element: bool,
) -> Vec<Part<'a>> {
    loop {
        let rest: Vec<usize> = (0..parts.len())
            .filter(|index| parts.get(*index).is_some_and(|part| part.outcome.is_none()))
            .collect();
        let transaction = rest.iter().filter_map(|index| parts.get(*index));
        let transaction: Vec<Operation> = transaction
            .map(|part| part.operation.clone().into_owned())
            .collect();
        let executed = if transaction.is_empty() {
            Vec::new()
        } else {
            nftables.execute(&transaction)
        };
        // Those of this round that were not executed because of others.
        let mut not_executed: Vec<(usize, Error)> = Vec::new();
        let mut divided: BTreeSet<usize> = BTreeSet::new();
        let mut is_refused = false;
        let mut is_failed = false;
        let missing = std::iter::repeat_with(|| Err(Error::OutcomeMissing));
        let origins: Vec<usize> = rest
            .iter()
            .filter_map(|index| parts.get(*index))
            .map(|part| part.origin)
            .collect();
        for (index, outcome) in rest.into_iter().zip(executed.into_iter().chain(missing)) {
            let (Err(error), Some(part)) = (outcome, parts.get_mut(index)) else {
                continue;
            };
            match error {
                Error::NotExecuted { refused } => {
                    let refused = origins.get(refused).copied().unwrap_or(refused);
                    not_executed.push((index, Error::NotExecuted { refused }));
                }
                Error::Refused { .. } | Error::Invalid { .. } if by_element && part.has_elements() => {
                    is_refused = true;
                    divided.insert(index);
                }
                Error::Refused { .. } | Error::Invalid { .. } => {
                    is_refused = true;
                    part.outcome = Some(error);
                }
                _ => {
                    is_failed = true;
                    part.outcome = Some(error);
                }
            }
        }
        if !is_refused || is_failed {
            for (index, error) in not_executed {
                if let Some(part) = parts.get_mut(index) {
                    part.outcome.get_or_insert(error);
                }
            }
            return parts;
        }
        divide(&mut parts, &divided);
        let dependents = skip_dependents(&mut parts, by_element);
        if !dependents.is_empty() {
            divide(&mut parts, &dependents);
            skip_dependents(&mut parts, false);
        }
    }
}

/// Replaces parts by one for each of their elements.
fn divide(parts: &mut Vec<Part<'_>>, divided: &BTreeSet<usize>) {
    if divided.is_empty() {
        return;
    }
    let before = std::mem::take(parts);
    for (index, part) in before.into_iter().enumerate() {
        if divided.contains(&index) {
            parts.extend(part.divided());
        } else {
            parts.push(part);
        }
    }
}

/// Marks the parts that need what a refused operation would have added. Returns the indices of those that are to be divided before.
fn skip_dependents(parts: &mut [Part<'_>], by_element: bool) -> BTreeSet<usize> {
    let mut divided = BTreeSet::new();
    let mut skipped: Vec<(usize, usize)> = Vec::new();
    let mut missing: HashSet<Named<'_>> = HashSet::new();
    let mut first = None;
    for (index, part) in parts.iter().enumerate() {
        let mut is_left_out = part.outcome.is_some();
        if !is_left_out && uses(&part.operation).iter().any(|used| missing.contains(used)) {
            if by_element && part.has_elements() {
                divided.insert(index);
                continue;
            }
            skipped.push((index, first.unwrap_or(part.origin)));
            is_left_out = true;
        }
        if is_left_out {
            first.get_or_insert(part.origin);
            missing.extend(defined(&part.operation));
        } else if let Some(defined) = defined(&part.operation) {
            missing.remove(&defined);
        }
    }
    for (index, refused) in skipped {
        if let Some(part) = parts.get_mut(index) {
            part.outcome = Some(Error::NotExecuted { refused });
        }
    }
    divided
}

/// What an operation adds.
fn defined(operation: &Operation) -> Option<Named<'_>> {
    let item = match operation {
        Operation::Add(item) | Operation::Create(item) => item,
        Operation::Insert(rule) => return Some(Named::Rule(&rule.chain, rule.id?)),
        _ => return None,
    };
    match item {
        Item::Table(table) => Some(Named::Table(&table.key)),
        Item::Chain(chain) => Some(Named::Chain(&chain.key.table, &chain.key.name)),
        Item::Set(set) => Some(Named::Set(&set.key.table, &set.key.name)),
        Item::Object(object) => Some(Named::Object(&object.key.table, &object.key.name)),
        Item::Flowtable(flowtable) => Some(Named::Flowtable(&flowtable.key.table, &flowtable.key.name)),
        Item::Rule(rule) => Some(Named::Rule(&rule.chain, rule.id?)),
        Item::Elements(_) => None,
    }
}

/// What must exist for an operation.
fn uses(operation: &Operation) -> Vec<Named<'_>> {
    let mut used = Vec::new();
    match operation {
        Operation::Add(item) | Operation::Create(item) => match item {
            Item::Table(_) => {}
            Item::Chain(chain) => used.push(Named::Table(&chain.key.table)),
            Item::Set(set) => used.push(Named::Table(&set.key.table)),
            Item::Object(object) => used.push(Named::Table(&object.key.table)),
            Item::Flowtable(flowtable) => used.push(Named::Table(&flowtable.key.table)),
            Item::Rule(rule) => used_by_rule(rule, &mut used),
            Item::Elements(elements) => {
                let table = &elements.set.table;
                used.extend([Named::Table(table), Named::Set(table, &elements.set.name)]);
                for element in &elements.elements {
                    if let Some(Data::Verdict(verdict)) = &element.data {
                        used.extend(verdict.chain().map(|chain| Named::Chain(table, chain)));
                    }
                    used.extend(
                        element
                            .object
                            .as_deref()
                            .map(|object| Named::Object(table, object)),
                    );
                }
            }
        },
        Operation::Insert(rule) | Operation::Replace(_, rule) => {
            used_by_rule(rule, &mut used);
        }
        Operation::Delete(key) | Operation::Destroy(key) => match key {
            ItemKey::Table(table) => used.push(Named::Table(table)),
            ItemKey::Chain(chain) => used.push(Named::Chain(&chain.table, &chain.name)),
            ItemKey::Set(set) => used.push(Named::Set(&set.table, &set.name)),
            ItemKey::Elements(elements) => used.push(Named::Set(&elements.set.table, &elements.set.name)),
            ItemKey::Rule(rule) => used.push(Named::Chain(&rule.chain.table, &rule.chain.name)),
            ItemKey::Object(object) => used.push(Named::Object(&object.table, &object.name)),
            ItemKey::Flowtable(flowtable) => used.push(Named::Flowtable(&flowtable.table, &flowtable.name)),
        },
        Operation::Flush(flush) => match flush {
            Flush::Ruleset | Flush::Family(_) => {}
            Flush::Table(table) => used.push(Named::Table(table)),
            Flush::Chain(chain) => used.push(Named::Chain(&chain.table, &chain.name)),
            Flush::Set(set) => used.push(Named::Set(&set.table, &set.name)),
        },
    }
    used
}

fn used_by_rule<'a>(rule: &'a Rule, used: &mut Vec<Named<'a>>) {
    let table = &rule.chain.table;
    used.extend([Named::Table(table), Named::Chain(table, &rule.chain.name)]);
    used.extend(rule.position_id.map(|id| Named::Rule(&rule.chain, id)));
    for expression in &rule.expressions {
        used.extend(expression.set().map(|set| Named::Set(table, set)));
        used.extend(expression.chain().map(|chain| Named::Chain(table, chain)));
        match expression {
            Expression::ObjectReference(object) => used.push(Named::Object(table, &object.name)),
            Expression::FlowOffload(flow) => used.push(Named::Flowtable(table, &flow.flowtable)),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::chain::Chain;
    use crate::client::ElementIter;
    use crate::element::Elements;
    use crate::flowtable::Flowtable;
    use crate::object::Object;
    use crate::set::{Set, SetKey};
    use crate::table::Table;
    use crate::table_family::TableFamily;

    /// Answers every transaction with these errors.
    struct Answers(Vec<Error>);

    impl Nftables for Answers {
        fn execute_at(&mut self, _: Option<u32>, _: &[Operation]) -> Vec<Result<(), Error>> {
            self.0.iter().cloned().map(Err).collect()
        }

        fn generation(&mut self) -> Result<u32, Error> {
            Err(Error::OutcomeMissing)
        }

        fn tables(&mut self, _: Option<TableFamily>) -> Result<Vec<Table>, Error> {
            Err(Error::OutcomeMissing)
        }

        fn chains(&mut self, _: &TableKey) -> Result<Vec<Chain>, Error> {
            Err(Error::OutcomeMissing)
        }

        fn rules(&mut self, _: &TableKey, _: Option<&str>) -> Result<Vec<Rule>, Error> {
            Err(Error::OutcomeMissing)
        }

        fn sets(&mut self, _: &TableKey) -> Result<Vec<Set>, Error> {
            Err(Error::OutcomeMissing)
        }

        fn elements<'a>(&'a mut self, _: &SetKey) -> Result<ElementIter<'a>, Error> {
            Err(Error::OutcomeMissing)
        }

        fn find_elements(&mut self, _: &Elements) -> Result<Vec<Option<Element>>, Error> {
            Err(Error::OutcomeMissing)
        }

        fn objects(&mut self, _: &TableKey) -> Result<Vec<Object>, Error> {
            Err(Error::OutcomeMissing)
        }

        fn flowtables(&mut self, _: &TableKey) -> Result<Vec<Flowtable>, Error> {
            Err(Error::OutcomeMissing)
        }
    }

    #[test]
    fn an_operation_that_was_never_executed_is_no_success() {
        let failed = || Error::OutcomeMissing;
        let not_executed = || Error::NotExecuted { refused: 0 };
        for answers in [
            vec![failed(), not_executed()],
            vec![not_executed(), not_executed()],
            vec![],
        ] {
            let table = |name: &str| Operation::add(Table::new(TableKey::new(TableFamily::Ip, name)));
            let outcomes = execute_rest(&mut Answers(answers), &[table("a"), table("b")]);
            assert!(outcomes.iter().all(Result::is_err), "{outcomes:?}");
        }
    }
}
