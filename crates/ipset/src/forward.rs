//! [`IpSets`] for `Box<T>` and `&mut T`.

use crate::{
    Entry, EntryRange, Error, IpSets, Operation, Revisions, Set, SetContents, SetFamily, SetHeader, SetName,
    SetType,
};

macro_rules! forward {
    ($($pointer:ty),*) => {$(
        /// Forwards every method.
        impl<T: IpSets + ?Sized> IpSets for $pointer {
            fn execute(&mut self, operations: &[Operation]) -> Vec<Result<(), Error>> {
                (**self).execute(operations)
            }

            fn execute_until_failure(&mut self, operations: &[Operation]) -> Vec<Result<(), Error>> {
                (**self).execute_until_failure(operations)
            }

            fn list(&mut self) -> Result<Vec<SetContents>, Error> {
                (**self).list()
            }

            fn list_set(&mut self, name: &SetName) -> Result<SetContents, Error> {
                (**self).list_set(name)
            }

            fn headers(&mut self) -> Result<Vec<SetHeader>, Error> {
                (**self).headers()
            }

            fn header(&mut self, name: &SetName) -> Result<SetHeader, Error> {
                (**self).header(name)
            }

            fn names(&mut self) -> Result<Vec<SetName>, Error> {
                (**self).names()
            }

            fn test_all(&mut self, set: &SetName, entries: &[Entry]) -> Vec<Result<bool, Error>> {
                (**self).test_all(set, entries)
            }

            fn index_of(&mut self, name: &SetName) -> Result<u16, Error> {
                (**self).index_of(name)
            }

            fn name_of(&mut self, index: u16) -> Result<SetName, Error> {
                (**self).name_of(index)
            }

            fn revisions(&mut self, set_type: SetType, family: SetFamily) -> Result<Option<Revisions>, Error> {
                (**self).revisions(set_type, family)
            }

            fn destroy_all(&mut self) -> Result<(), Error> {
                (**self).destroy_all()
            }

            fn flush_all(&mut self) -> Result<(), Error> {
                (**self).flush_all()
            }

            fn create(&mut self, set: &Set) -> Result<(), Error> {
                (**self).create(set)
            }

            fn ensure_set(&mut self, set: &Set) -> Result<(), Error> {
                (**self).ensure_set(set)
            }

            fn destroy(&mut self, set: &SetName) -> Result<(), Error> {
                (**self).destroy(set)
            }

            fn flush(&mut self, set: &SetName) -> Result<(), Error> {
                (**self).flush(set)
            }

            fn rename(&mut self, from: &SetName, to: &SetName) -> Result<(), Error> {
                (**self).rename(from, to)
            }

            fn swap(&mut self, first: &SetName, second: &SetName) -> Result<(), Error> {
                (**self).swap(first, second)
            }

            fn add(&mut self, set: &SetName, entry: &Entry) -> Result<(), Error> {
                (**self).add(set, entry)
            }

            fn ensure(&mut self, set: &SetName, entry: &Entry) -> Result<(), Error> {
                (**self).ensure(set, entry)
            }

            fn delete(&mut self, set: &SetName, entry: &Entry) -> Result<(), Error> {
                (**self).delete(set, entry)
            }

            fn add_range(&mut self, set: &SetName, range: &EntryRange) -> Result<(), Error> {
                (**self).add_range(set, range)
            }

            fn test(&mut self, set: &SetName, entry: &Entry) -> Result<bool, Error> {
                (**self).test(set, entry)
            }

            fn replace(&mut self, set: &SetName, entries: &[Entry]) -> Result<(), Error> {
                (**self).replace(set, entries)
            }

            fn execute_one(&mut self, operation: Operation) -> Result<(), Error> {
                (**self).execute_one(operation)
            }
        }
    )*};
}

forward!(Box<T>, &mut T);
