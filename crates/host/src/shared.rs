//! Fakes of kernel APIs that several processes share, and whose calls can have faults: for the
//! [contract of data paths](kernlink_engine::contract).

use std::fmt;
use std::slice;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kernlink_conntrack::{self as conntrack, Conntrack, Filter, Flows};
use kernlink_dummylink::{self as link, DummyLinks, HostAddress, Link, Selection};
use kernlink_engine::contract::Calls;
use kernlink_netlink::Errno;

use super::sysctls::{FakeSysctls, Sysctl, SysctlError, SysctlErrorCause, Sysctls};

/// Why a call with a fault fails.
const FAULT: &str = "a fault of the contract";

/// A fake that clones share. Each operation and each reading is a call.
#[derive(Debug, Default)]
pub struct Shared<T> {
    fake: Arc<Mutex<T>>,
    calls: Calls,
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Self {
        Self {
            fake: Arc::clone(&self.fake),
            calls: self.calls.clone(),
        }
    }
}

impl<T> Shared<T> {
    /// This fake, with these calls.
    #[must_use]
    pub fn new(fake: T, calls: &Calls) -> Self {
        Self {
            fake: Arc::new(Mutex::new(fake)),
            calls: calls.clone(),
        }
    }

    /// The same fake, for a test: its calls are not counted and have no faults.
    #[must_use]
    pub fn without_faults(&self) -> Self {
        Self {
            fake: Arc::clone(&self.fake),
            calls: Calls::default(),
        }
    }

    /// The fake, to look at it or to change it.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.fake.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The calls.
    #[must_use]
    pub fn calls(&self) -> &Calls {
        &self.calls
    }

    /// Makes a call for each operation.
    pub fn execute_each<O: fmt::Display, E>(
        &self,
        operations: &[O],
        execute: impl Fn(&mut T, &[O]) -> Vec<Result<(), E>>,
        refused: impl Fn(&O) -> E,
        unknown: impl Fn() -> E,
    ) -> Vec<Result<(), E>> {
        let each = |operation: &O| {
            let one = || {
                let outcome = execute(&mut self.lock(), slice::from_ref(operation)).pop();
                outcome.unwrap_or_else(|| Err(unknown()))
            };
            self.calls.change(operation, one, || refused(operation), &unknown)
        };
        operations.iter().map(each).collect()
    }
}

impl<T: DummyLinks> DummyLinks for Shared<T> {
    fn execute(&mut self, operations: &[link::Operation]) -> Vec<Result<(), link::Error>> {
        self.execute_each(
            operations,
            |fake, operations| fake.execute(operations),
            |operation| link::Error::custom(operation, FAULT),
            || link::Error::OutcomeMissing,
        )
    }

    fn links(&mut self) -> Result<Vec<Link>, link::Error> {
        let failed = || link::Error::custom("list links", FAULT);
        self.calls.read(&"links", || self.lock().links(), failed)
    }

    fn list(&mut self, selection: Selection) -> Result<Vec<HostAddress>, link::Error> {
        let failed = || link::Error::custom("list addresses", FAULT);
        self.calls
            .read(&"addresses", || self.lock().list(selection), failed)
    }
}

impl<T: Conntrack> Conntrack for Shared<T> {
    fn execute(&mut self, operations: &[conntrack::Operation]) -> Vec<Result<(), conntrack::Error>> {
        self.execute_each(
            operations,
            |fake, operations| fake.execute(operations),
            |operation| conntrack::Error::custom(operation.to_string(), FAULT),
            || conntrack::Error::OutcomeMissing,
        )
    }

    fn flows<'a>(&'a mut self, filter: &Filter) -> Result<Flows<'a>, conntrack::Error> {
        let list = || self.lock().list(filter);
        let failed = || conntrack::Error::custom("list flows", FAULT);
        let flows = self.calls.read(&"flows", list, failed)?;
        Ok(Flows::new(flows.into_iter().map(Ok)))
    }

    fn totals(&mut self) -> Result<conntrack::Totals, conntrack::Error> {
        let failed = || conntrack::Error::custom("read totals", FAULT);
        self.calls
            .read(&"totals of flows", || self.lock().totals(), failed)
    }
}

impl Sysctls for Shared<FakeSysctls> {
    fn execute(&mut self, sysctls: &[Sysctl]) -> Vec<Result<(), SysctlError>> {
        self.execute_each(
            sysctls,
            |fake, sysctls| fake.execute(sysctls),
            |sysctl| fault("write", &sysctl.name),
            || fault("write", "of the contract"),
        )
    }

    fn read(&mut self, name: &str) -> Result<Option<String>, SysctlError> {
        let read = || self.lock().read(name);
        self.calls.read(&name, read, || fault("read", name))
    }
}

fn fault(verb: &'static str, name: &str) -> SysctlError {
    SysctlError {
        verb,
        name: name.into(),
        cause: SysctlErrorCause::File(Errno::EIO),
    }
}
