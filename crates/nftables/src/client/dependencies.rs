//! Which operations depend on which, to execute the rest of a transaction.

use std::collections::HashSet;

use super::Nftables;
use crate::error::Error;
use crate::expression::Expression;
use crate::operation::{Flush, Item, ItemKey, Operation};
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
}

pub(super) fn execute_rest(
    nftables: &mut (impl Nftables + ?Sized),
    operations: &[Operation],
) -> Vec<Result<(), Error>> {
    let mut outcomes: Vec<Option<Error>> = vec![None; operations.len()];
    loop {
        // Those of this round that were not executed because of others.
        let mut not_executed: Vec<Option<Error>> = vec![None; operations.len()];
        let rest: Vec<usize> = (0..operations.len())
            .filter(|index| matches!(outcomes.get(*index), Some(None)))
            .collect();
        let transaction: Vec<Operation> = rest
            .iter()
            .filter_map(|index| operations.get(*index).cloned())
            .collect();
        let executed = if transaction.is_empty() {
            Vec::new()
        } else {
            nftables.execute(&transaction)
        };
        let mut is_refused = false;
        let mut is_failed = false;
        let missing = std::iter::repeat_with(|| Err(Error::OutcomeMissing));
        for (index, outcome) in rest.into_iter().zip(executed.into_iter().chain(missing)) {
            let Err(error) = outcome else { continue };
            match error {
                Error::NotExecuted { .. } => {
                    if let Some(outcome) = not_executed.get_mut(index) {
                        *outcome = Some(error);
                    }
                    continue;
                }
                Error::Refused { .. } | Error::Invalid { .. } => is_refused = true,
                _ => is_failed = true,
            }
            if let Some(outcome) = outcomes.get_mut(index) {
                *outcome = Some(error);
            }
        }
        if is_refused && !is_failed {
            skip_dependents(operations, &mut outcomes);
            continue;
        }
        let outcomes = outcomes.into_iter().zip(not_executed);
        return outcomes
            .map(|(outcome, not_executed)| outcome.or(not_executed).map_or(Ok(()), Err))
            .collect();
    }
}

/// Marks the operations that need what a refused operation would have added.
fn skip_dependents(operations: &[Operation], outcomes: &mut [Option<Error>]) {
    let mut missing: HashSet<Named<'_>> = HashSet::new();
    let mut first = None;
    for (index, (operation, outcome)) in operations.iter().zip(outcomes.iter_mut()).enumerate() {
        if outcome.is_none() {
            let needs_missing = uses(operation).iter().any(|used| missing.contains(used));
            if needs_missing {
                let refused = first.unwrap_or(index);
                *outcome = Some(Error::NotExecuted { refused });
            }
        }
        if outcome.is_some() {
            first.get_or_insert(index);
            missing.extend(defined(operation));
        } else if let Some(defined) = defined(operation) {
            missing.remove(&defined);
        }
    }
}

/// What an operation adds.
fn defined(operation: &Operation) -> Option<Named<'_>> {
    let (Operation::Add(item) | Operation::Create(item)) = operation else {
        return None;
    };
    match item {
        Item::Table(table) => Some(Named::Table(&table.key)),
        Item::Chain(chain) => Some(Named::Chain(&chain.key.table, &chain.key.name)),
        Item::Set(set) => Some(Named::Set(&set.key.table, &set.key.name)),
        Item::Object(object) => Some(Named::Object(&object.key.table, &object.key.name)),
        Item::Flowtable(flowtable) => Some(Named::Flowtable(&flowtable.key.table, &flowtable.key.name)),
        Item::Elements(_) | Item::Rule(_) => None,
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
            Item::Rule(rule) => {
                used_by_rule(&rule.chain.table, &rule.chain.name, &rule.expressions, &mut used)
            }
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
            used_by_rule(&rule.chain.table, &rule.chain.name, &rule.expressions, &mut used);
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

fn used_by_rule<'a>(
    table: &'a TableKey,
    chain: &'a str,
    expressions: &'a [Expression],
    used: &mut Vec<Named<'a>>,
) {
    used.extend([Named::Table(table), Named::Chain(table, chain)]);
    for expression in expressions {
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
    use crate::element::{Element, Elements};
    use crate::flowtable::Flowtable;
    use crate::object::Object;
    use crate::rule::Rule;
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
