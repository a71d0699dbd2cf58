//! [`Iptables`] for `Box<T>` and `&mut T`.

use kernlink_base::Family;

use crate::chain::ChainName;
use crate::chain_reader::ChainReader;
use crate::client::Iptables;
use crate::desired::Jump;
use crate::error::Error;
use crate::joined::Joined;
use crate::operation::Operation;
use crate::restore::Restore;
use crate::ruleset::{Chain, Ruleset};
use crate::save::Save;
use crate::table::Table;
use crate::variant::Variant;

macro_rules! forward {
    ($($pointer:ty),*) => {$(
        /// Forwards every method.
        impl<T: Iptables + ?Sized> Iptables for $pointer {
            fn execute(&mut self, operations: &[Operation]) -> Vec<Result<(), Error>> {
                (**self).execute(operations)
            }

            fn save(&mut self, request: &Save) -> Result<Ruleset, Error> {
                (**self).save(request)
            }

            fn save_all(&mut self, requests: &[Save]) -> Vec<Result<Ruleset, Error>> {
                (**self).save_all(requests)
            }

            fn save_chains(
                &mut self,
                requests: &[Save],
                reader: &mut dyn ChainReader,
            ) -> Vec<Result<Ruleset, Error>> {
                (**self).save_chains(requests, reader)
            }

            fn test(&mut self, restore: &Restore) -> Result<(), Error> {
                (**self).test(restore)
            }

            fn list_chain(
                &mut self,
                family: Family,
                table: Table,
                chain: &ChainName,
            ) -> Result<Option<Chain>, Error> {
                (**self).list_chain(family, table, chain)
            }

            fn restore(&mut self, restore: &Restore) -> Result<(), Error> {
                (**self).restore(restore)
            }

            fn restore_joined(&mut self, joined: &Joined<'_>) -> Result<(), Error> {
                (**self).restore_joined(joined)
            }

            fn ensure_jump(&mut self, family: Family, table: Table, jump: &Jump) -> Result<(), Error> {
                (**self).ensure_jump(family, table, jump)
            }

            fn variant(&mut self, family: Family) -> Option<Variant> {
                (**self).variant(family)
            }

            fn execute_one(&mut self, operation: Operation) -> Result<(), Error> {
                (**self).execute_one(operation)
            }
        }
    )*};
}

forward!(Box<T>, &mut T);
