//! [`Conntrack`] for `Box<T>` and `&mut T`.

use crate::client::Conntrack;
use crate::deletion::Deletion;
use crate::error::Error;
use crate::filter::Filter;
use crate::flow::{Flow, FlowKey};
use crate::flow_update::FlowUpdate;
use crate::flows::Flows;
use crate::new_flow::NewFlow;
use crate::operation::{FlushScope, Operation};
use crate::stale_filter::StaleFilter;
use crate::statistics::Totals;

macro_rules! forward {
    ($($pointer:ty),*) => {$(
        /// Calls the same method of the target.
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

            fn delete_many(&mut self, keys: &[FlowKey]) -> Deletion {
                (**self).delete_many(keys)
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

            fn update(&mut self, key: &FlowKey, update: &FlowUpdate) -> Result<(), Error> {
                (**self).update(key, update)
            }

            fn delete(&mut self, key: &FlowKey) -> Result<(), Error> {
                (**self).delete(key)
            }

            fn flush(&mut self, scope: FlushScope) -> Result<(), Error> {
                (**self).flush(scope)
            }

            fn list_stale(&mut self, filter: &StaleFilter) -> Result<Vec<Flow>, Error> {
                (**self).list_stale(filter)
            }

            fn delete_stale(&mut self, filter: &StaleFilter) -> Result<Deletion, Error> {
                (**self).delete_stale(filter)
            }

            fn execute_one(&mut self, operation: Operation) -> Result<(), Error> {
                (**self).execute_one(operation)
            }
        }
    )*};
}

forward!(Box<T>, &mut T);
