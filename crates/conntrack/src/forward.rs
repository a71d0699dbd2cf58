//! [`Conntrack`] behind a `Box` or a mutable reference.

use crate::client::Conntrack;
use crate::deletion::Deletion;
use crate::error::Error;
use crate::filter::Filter;
use crate::flow::{Flow, FlowKey};
use crate::flow_update::Changes;
use crate::flows::Flows;
use crate::new_flow::NewFlow;
use crate::operation::{Operation, Scope};
use crate::stale_filter::StaleFlows;
use crate::statistics::Totals;

macro_rules! forward {
    ($($pointer:ty),*) => {$(
        /// The table behind the pointer.
        impl<T: Conntrack + ?Sized> Conntrack for $pointer {
            fn execute(&mut self, operations: &[Operation]) -> Vec<Result<(), Error>> {
                (**self).execute(operations)
            }

            fn flows<'a>(&'a mut self, filter: &Filter) -> Result<Flows<'a>, Error> {
                (**self).flows(filter)
            }

            fn flow(&mut self, key: &FlowKey) -> Result<Flow, Error> {
                (**self).flow(key)
            }

            fn delete_matching(&mut self, filter: &Filter) -> Result<Deletion, Error> {
                (**self).delete_matching(filter)
            }

            fn delete_all(&mut self, keys: &[FlowKey]) -> Deletion {
                (**self).delete_all(keys)
            }

            fn totals(&mut self) -> Result<Totals, Error> {
                (**self).totals()
            }

            fn list(&mut self, filter: &Filter) -> Result<Vec<Flow>, Error> {
                (**self).list(filter)
            }

            fn list_any(&mut self, filters: &[Filter]) -> Result<Vec<Flow>, Error> {
                (**self).list_any(filters)
            }

            fn delete_any(&mut self, filters: &[Filter]) -> Result<Deletion, Error> {
                (**self).delete_any(filters)
            }

            fn add(&mut self, flow: &NewFlow) -> Result<(), Error> {
                (**self).add(flow)
            }

            fn ensure(&mut self, flow: &NewFlow) -> Result<(), Error> {
                (**self).ensure(flow)
            }

            fn update(&mut self, key: &FlowKey, changes: &Changes) -> Result<(), Error> {
                (**self).update(key, changes)
            }

            fn delete(&mut self, key: &FlowKey) -> Result<(), Error> {
                (**self).delete(key)
            }

            fn flush(&mut self, scope: Scope) -> Result<(), Error> {
                (**self).flush(scope)
            }

            fn stale(&mut self, question: &StaleFlows) -> Result<Vec<Flow>, Error> {
                (**self).stale(question)
            }

            fn delete_stale(&mut self, question: &StaleFlows) -> Result<Deletion, Error> {
                (**self).delete_stale(question)
            }

            fn execute_one(&mut self, operation: Operation) -> Result<(), Error> {
                (**self).execute_one(operation)
            }
        }
    )*};
}

forward!(Box<T>, &mut T);
