//! A whole ruleset, as it was read.

use std::collections::HashSet;

use crate::chain::Chain;
use crate::element::{Element, ElementFlags, Elements};
use crate::expression::Expression;
use crate::flowtable::Flowtable;
use crate::object::Object;
use crate::operation::Operation;
use crate::rule::Rule;
use crate::set::{Set, SetFlags};
use crate::table::{Table, TableKey};

/// Tables with everything in them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ruleset {
    /// The tables, in the order of the kernel.
    pub tables: Vec<TableContents>,
}

impl Ruleset {
    /// A table with everything in it; `None` if there is none.
    #[must_use]
    pub fn table(&self, key: &TableKey) -> Option<&TableContents> {
        self.tables.iter().find(|contents| contents.table.key == *key)
    }

    /// The rule with this handle, which is unique in its table: for example that of a step of a [`Trace`](crate::Trace).
    #[must_use]
    pub fn rule(&self, table: &TableKey, handle: u64) -> Option<&Rule> {
        let chains = self.table(table)?.chains.iter();
        let mut rules = chains.flat_map(|contents| &contents.rules);
        rules.find(|rule| rule.handle == Some(handle))
    }

    /// The operations that make this ruleset where there is none, in one transaction. State is included: counters, and the time until
    /// elements expire.
    #[must_use]
    pub fn operations(&self) -> Vec<Operation> {
        let mut operations = Vec::new();
        for table in &self.tables {
            table.append_operations(&mut operations);
        }
        operations
    }
}

/// A table with everything in it.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TableContents {
    /// The table.
    pub table: Table,
    /// Stateful objects.
    pub objects: Vec<Object>,
    /// Sets and maps, also anonymous ones.
    pub sets: Vec<SetContents>,
    /// Flowtables.
    pub flowtables: Vec<Flowtable>,
    /// Chains, also anonymous ones.
    pub chains: Vec<ChainContents>,
}

impl TableContents {
    /// An empty table.
    #[must_use]
    pub fn new(table: Table) -> Self {
        TableContents {
            table,
            objects: Vec::new(),
            sets: Vec::new(),
            flowtables: Vec::new(),
            chains: Vec::new(),
        }
    }

    /// The operations that make this table where it does not exist; see [`Ruleset::operations`].
    #[must_use]
    pub fn operations(&self) -> Vec<Operation> {
        let mut operations = Vec::new();
        self.append_operations(&mut operations);
        operations
    }

    fn append_operations(&self, operations: &mut Vec<Operation>) {
        operations.push(Operation::add(self.table.clone().configuration()));
        for contents in &self.chains {
            operations.push(Operation::add(contents.chain.clone().configuration()));
        }
        let rules = self.chains.iter().flat_map(|contents| &contents.rules);
        let changed: HashSet<&str> = rules
            .flat_map(|rule| &rule.expressions)
            .filter_map(|expression| match expression {
                Expression::Dynset(dynset) => Some(&*dynset.set),
                _ => None,
            })
            .collect();
        operations.extend(self.objects.iter().cloned().map(Operation::add));
        operations.extend(self.flowtables.iter().cloned().map(Operation::add));
        for contents in &self.sets {
            let mut set = contents.set.clone().configuration();
            // The kernel gives such a set a size when the first rule changes it, but refuses the rule for a set made with a size.
            if !set.flags.intersects(SetFlags::EVAL | SetFlags::TIMEOUT) && changed.contains(&*set.key.name) {
                set.size = None;
            }
            operations.push(Operation::add(set));
            // The kernel lists ranges from the last one to the first, and then the end before the first one. That end is not counted
            // for the size of the set if it is there before what exceeds the size.
            let mut elements = contents.elements.clone();
            if elements.last().is_some_and(is_first_end) {
                elements.reverse();
            }
            operations.push(Operation::add(Elements::new(contents.set.key.clone(), elements)));
        }
        let mut done = HashSet::new();
        for contents in &self.chains {
            self.append_rules(contents, &mut done, operations);
        }
    }

    /// The rules of a chain, after those of the anonymous chains that they jump to: the kernel refuses rules for them later.
    fn append_rules<'a>(
        &'a self,
        contents: &'a ChainContents,
        done: &mut HashSet<&'a str>,
        operations: &mut Vec<Operation>,
    ) {
        if !done.insert(&contents.chain.key.name) {
            return;
        }
        for rule in &contents.rules {
            for target in rule.expressions.iter().filter_map(Expression::chain) {
                let mut chains = self.chains.iter();
                if let Some(target) = chains
                    .find(|contents| contents.chain.is_anonymous() && *contents.chain.key.name == *target)
                {
                    self.append_rules(target, done, operations);
                }
            }
            operations.push(Operation::add(Rule {
                position: None,
                handle: None,
                ..rule.clone()
            }));
        }
    }
}

/// The end of the range before all others, whose key is zero.
fn is_first_end(element: &Element) -> bool {
    element.flags.contains(ElementFlags::INTERVAL_END) && element.key.as_bytes().iter().all(|byte| *byte == 0)
}

/// A set or map with its elements.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SetContents {
    /// The set.
    pub set: Set,
    /// Its elements.
    pub elements: Vec<Element>,
}

impl SetContents {
    /// These elements of a set.
    #[must_use]
    pub fn new(set: Set, elements: Vec<Element>) -> Self {
        SetContents { set, elements }
    }
}

/// A chain with its rules.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ChainContents {
    /// The chain.
    pub chain: Chain,
    /// Its rules, in order.
    pub rules: Vec<Rule>,
}

impl ChainContents {
    /// These rules of a chain.
    #[must_use]
    pub fn new(chain: Chain, rules: Vec<Rule>) -> Self {
        ChainContents { chain, rules }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DataType, Item, TableFamily, Value};

    #[test]
    fn a_rule_is_found_by_the_handle_in_its_table() {
        let mut ruleset = Ruleset::default();
        let key = |name: &str| TableKey::new(TableFamily::Ip, name);
        for name in ["a", "b"] {
            let mut contents = TableContents::new(Table::new(key(name)));
            for chain in ["c", "d"] {
                let chain = Chain::new(key(name).chain(chain));
                let mut rule = Rule::new(chain.key.clone(), Vec::new()).with_comment(name);
                rule.handle = Some(if *chain.key.name == *"c" { 4 } else { 5 });
                contents.chains.push(ChainContents::new(
                    chain,
                    vec![Rule::new(rule.chain.clone(), Vec::new()), rule],
                ));
            }
            ruleset.tables.push(contents);
        }
        let found = |name: &str, handle| {
            let rule = ruleset.rule(&key(name), handle)?;
            Some((rule.comment()?.to_owned(), rule.chain.name.to_string()))
        };
        assert_eq!(found("a", 4), Some(("a".to_owned(), "c".to_owned())));
        assert_eq!(found("b", 5), Some(("b".to_owned(), "d".to_owned())));
        assert_eq!(found("b", 6), None);
        assert_eq!(found("missing", 4), None);
        assert_eq!(ruleset.table(&key("b")), ruleset.tables.get(1));
    }

    #[test]
    fn ranges_are_written_from_the_first_one_on() {
        let table = TableKey::new(TableFamily::Ip, "t");
        let set = Set::new(table.set("s"), &[DataType::Ipv4Address]).with_intervals();
        let mut listed = set.interval(Value::new(&[10, 0, 0, 0]), Value::new(&[10, 0, 0, 9]));
        listed.reverse();
        listed.push(Element::new(Value::new(&[0; 4])).with_flags(ElementFlags::INTERVAL_END));
        let mut contents = TableContents::new(Table::new(table));
        contents.sets.push(SetContents::new(set, listed.clone()));
        let written = contents
            .operations()
            .into_iter()
            .find_map(|operation| match operation {
                Operation::Add(Item::Elements(elements)) => Some(elements.elements),
                _ => None,
            });
        listed.reverse();
        assert_eq!(written, Some(listed));
    }
}
