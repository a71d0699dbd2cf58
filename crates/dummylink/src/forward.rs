//! [`DummyLinks`] for `Box<T>` and `&mut T`.

use crate::{
    AddressKey, DummyLink, DummyLinks, Error, HostAddress, Link, LinkAddress, LinkName, LocalRoute,
    Operation, Ownership, ReplaceReport, Selection,
};

macro_rules! forward {
    ($($pointer:ty),*) => {$(
        /// Forwards every method.
        impl<T: DummyLinks + ?Sized> DummyLinks for $pointer {
            fn execute(&mut self, operations: &[Operation]) -> Vec<Result<(), Error>> {
                (**self).execute(operations)
            }

            fn links(&mut self) -> Result<Vec<Link>, Error> {
                (**self).links()
            }

            fn link(&mut self, name: &LinkName) -> Result<Option<Link>, Error> {
                (**self).link(name)
            }

            fn list(&mut self, selection: Selection) -> Result<Vec<HostAddress>, Error> {
                (**self).list(selection)
            }

            fn routes(&mut self, link: &LinkName) -> Result<Vec<LocalRoute>, Error> {
                (**self).routes(link)
            }

            fn exists(&mut self, name: &LinkName) -> Result<bool, Error> {
                (**self).exists(name)
            }

            fn add_link(&mut self, link: &DummyLink) -> Result<(), Error> {
                (**self).add_link(link)
            }

            fn ensure_link(&mut self, link: &DummyLink) -> Result<(), Error> {
                (**self).ensure_link(link)
            }

            fn delete_link(&mut self, name: &LinkName) -> Result<(), Error> {
                (**self).delete_link(name)
            }

            fn add(&mut self, link: &LinkName, address: &LinkAddress) -> Result<(), Error> {
                (**self).add(link, address)
            }

            fn ensure(&mut self, link: &LinkName, address: &LinkAddress) -> Result<(), Error> {
                (**self).ensure(link, address)
            }

            fn delete(&mut self, link: &LinkName, key: &AddressKey) -> Result<(), Error> {
                (**self).delete(link, key)
            }

            fn add_route(&mut self, link: &LinkName, route: &LocalRoute) -> Result<(), Error> {
                (**self).add_route(link, route)
            }

            fn ensure_route(&mut self, link: &LinkName, route: &LocalRoute) -> Result<(), Error> {
                (**self).ensure_route(link, route)
            }

            fn delete_route(&mut self, link: &LinkName, route: &LocalRoute) -> Result<(), Error> {
                (**self).delete_route(link, route)
            }

            fn update(&mut self, link: &LinkName, address: &LinkAddress) -> Result<(), Error> {
                (**self).update(link, address)
            }

            fn replace(
                &mut self,
                link: &LinkName,
                desired: &[LinkAddress],
                ownership: &Ownership,
            ) -> Result<ReplaceReport, Error> {
                (**self).replace(link, desired, ownership)
            }

            fn execute_one(&mut self, operation: Operation) -> Result<(), Error> {
                (**self).execute_one(operation)
            }
        }
    )*};
}

forward!(Box<T>, &mut T);
