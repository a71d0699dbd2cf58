//! [`Nftables`] for `Box<T>` and `&mut T`.

use crate::chain::{Chain, ChainKey};
use crate::client::{ElementIter, Nftables};
use crate::element::{Element, Elements};
use crate::error::Error;
use crate::flowtable::Flowtable;
use crate::object::Object;
use crate::operation::Operation;
use crate::rule::Rule;
use crate::ruleset::{Ruleset, TableContents};
use crate::set::{Set, SetKey};
use crate::table::{Table, TableKey};
use crate::table_family::TableFamily;

macro_rules! forward {
    ($($pointer:ty),*) => {$(
        /// Calls the same method of the target.
        impl<T: Nftables + ?Sized> Nftables for $pointer {
            fn execute_at(
                &mut self,
                generation: Option<u32>,
                transaction: &[Operation],
            ) -> Vec<Result<(), Error>> {
                (**self).execute_at(generation, transaction)
            }

            fn execute(&mut self, transaction: &[Operation]) -> Vec<Result<(), Error>> {
                (**self).execute(transaction)
            }

            fn apply(&mut self, transaction: &[Operation]) -> Result<(), Error> {
                (**self).apply(transaction)
            }

            fn execute_rest(&mut self, operations: &[Operation]) -> Vec<Result<(), Error>> {
                (**self).execute_rest(operations)
            }

            fn execute_rest_by_element(
                &mut self,
                operations: &[Operation],
            ) -> Vec<Result<Vec<(usize, Error)>, Error>> {
                (**self).execute_rest_by_element(operations)
            }

            fn add_elements(&mut self, elements: &Elements, in_transaction: usize) -> Result<(), Error> {
                (**self).add_elements(elements, in_transaction)
            }

            fn port(&self) -> Option<u32> {
                (**self).port()
            }

            fn generation(&mut self) -> Result<u32, Error> {
                (**self).generation()
            }

            fn tables(&mut self, family: Option<TableFamily>) -> Result<Vec<Table>, Error> {
                (**self).tables(family)
            }

            fn chains(&mut self, table: &TableKey) -> Result<Vec<Chain>, Error> {
                (**self).chains(table)
            }

            fn rules(&mut self, table: &TableKey, chain: Option<&str>) -> Result<Vec<Rule>, Error> {
                (**self).rules(table, chain)
            }

            fn sets(&mut self, table: &TableKey) -> Result<Vec<Set>, Error> {
                (**self).sets(table)
            }

            fn elements<'a>(&'a mut self, set: &SetKey) -> Result<ElementIter<'a>, Error> {
                (**self).elements(set)
            }

            fn list_elements(&mut self, set: &SetKey) -> Result<Vec<Element>, Error> {
                (**self).list_elements(set)
            }

            fn find_elements(&mut self, elements: &Elements) -> Result<Vec<Option<Element>>, Error> {
                (**self).find_elements(elements)
            }

            fn objects(&mut self, table: &TableKey) -> Result<Vec<Object>, Error> {
                (**self).objects(table)
            }

            fn flowtables(&mut self, table: &TableKey) -> Result<Vec<Flowtable>, Error> {
                (**self).flowtables(table)
            }

            fn table(&mut self, key: &TableKey) -> Result<Option<Table>, Error> {
                (**self).table(key)
            }

            fn chain(&mut self, key: &ChainKey) -> Result<Option<Chain>, Error> {
                (**self).chain(key)
            }

            fn set(&mut self, key: &SetKey) -> Result<Option<Set>, Error> {
                (**self).set(key)
            }

            fn table_contents(&mut self, key: &TableKey) -> Result<Option<TableContents>, Error> {
                (**self).table_contents(key)
            }

            fn ruleset(&mut self) -> Result<Ruleset, Error> {
                (**self).ruleset()
            }
        }
    )*};
}

forward!(Box<T>, &mut T);
