//! A kernel without connection tracking over netlink.

use std::sync::{Arc, Mutex};

use kernlink_conntrack::{Conntrack, Error, Fake, Filter, Flows, Operation};
use kernlink_netlink::{Errno, Refusal};

/// A kernel without the module of connection tracking over netlink, until it is loaded.
pub(crate) struct WithoutModule {
    inner: Fake,
    is_loaded: Arc<Mutex<bool>>,
}

impl WithoutModule {
    pub(crate) fn new(inner: Fake, is_loaded: Arc<Mutex<bool>>) -> Self {
        Self { inner, is_loaded }
    }

    fn check(&self) -> Result<(), Error> {
        if *self.is_loaded.lock().unwrap() {
            return Ok(());
        }
        Err(Error::ModuleMissing {
            source: kernlink_netlink::Error::Refused(Refusal::new(Errno::EINVAL)),
        })
    }
}

impl Conntrack for WithoutModule {
    fn execute(&mut self, operations: &[Operation]) -> Vec<Result<(), Error>> {
        match self.check() {
            Ok(()) => self.inner.execute(operations),
            Err(error) => vec![Err(error); operations.len()],
        }
    }

    fn flows<'a>(&'a mut self, filter: &Filter) -> Result<Flows<'a>, Error> {
        self.check()?;
        self.inner.flows(filter)
    }
}
