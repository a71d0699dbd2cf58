//! Sets and chains that have no name until a transaction is executed.

use std::borrow::Cow;
use std::collections::HashMap;

use crate::chain::ChainKey;
use crate::expression::Expression;
use crate::operation::{Item, Operation};
use crate::set::{Set, SetFlags, SetKey};
use crate::table::TableKey;

/// The numbers, unique in a transaction, of the anonymous sets and chains that it makes. The kernel chooses their names; until then
/// other messages of the transaction refer to them by these numbers.
#[derive(Debug, Default)]
pub(crate) struct Names<'a> {
    sets: HashMap<(&'a TableKey, &'a str), u32>,
    chains: HashMap<(&'a TableKey, &'a str), u32>,
}

impl<'a> Names<'a> {
    /// An operation with the index `n` has the number `n + 1`.
    pub(crate) fn new(operations: &'a [Operation]) -> Self {
        let mut names = Names::default();
        for (operation, id) in operations.iter().zip(1..) {
            let (Operation::Add(item) | Operation::Create(item)) = operation else {
                continue;
            };
            match item {
                Item::Set(set) if set.flags.contains(SetFlags::ANONYMOUS) => {
                    names.sets.insert((&set.key.table, &set.key.name), id);
                }
                Item::Chain(chain) if chain.is_anonymous() => {
                    names.chains.insert((&chain.key.table, &chain.key.name), id);
                }
                _ => {}
            }
        }
        names
    }

    pub(crate) fn set(&self, key: &SetKey) -> Option<u32> {
        self.set_named(&key.table, &key.name)
    }

    pub(crate) fn chain(&self, key: &ChainKey) -> Option<u32> {
        self.chain_named(&key.table, &key.name)
    }

    pub(crate) fn chain_named(&self, table: &TableKey, name: &str) -> Option<u32> {
        self.chains.get(&(table, name)).copied()
    }

    fn set_named(&self, table: &TableKey, name: &str) -> Option<u32> {
        self.sets.get(&(table, name)).copied()
    }

    /// The expression, with the number of the anonymous set that it names.
    pub(crate) fn resolve<'e>(&self, table: &TableKey, expression: &'e Expression) -> Cow<'e, Expression> {
        let Some(id) = expression.set().and_then(|name| self.set_named(table, name)) else {
            return Cow::Borrowed(expression);
        };
        let mut expression = expression.clone();
        let (name, set_id) = match &mut expression {
            Expression::Lookup(lookup) => (&mut lookup.set, &mut lookup.set_id),
            Expression::Dynset(dynset) => (&mut dynset.set, &mut dynset.set_id),
            Expression::ObjectMap(map) => (&mut map.set, &mut map.set_id),
            _ => return Cow::Owned(expression),
        };
        *name = Set::template(name).into();
        *set_id = Some(id);
        Cow::Owned(expression)
    }
}
