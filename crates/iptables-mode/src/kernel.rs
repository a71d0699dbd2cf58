//! The kernel APIs that iptables mode programs.

use std::fmt;

use kernlink_conntrack::Conntrack;
use kernlink_dummylink::DummyLinks;
use kernlink_host::{KernelConntrack, KernelSysctls, Sysctls};
use kernlink_iptables_restore::{EditSource, Iptables, Variant};
use kernlink_services::Family;

use super::accounting::{Accounting, KernelAccounting};
use super::batch;
use super::error::Error;
use super::operation::{EnsureChain, Operation, Write};

/// The maximum number of edits that are passed to one `iptables-restore`, unless one Service alone needs more. Legacy tools read and write
/// the whole table each time, so few inputs are fastest; but the time in which they read one grows faster than its size.
const MOST_EDITS: usize = 250_000;

/// The same for the nft tools, which write what changes only, and whose time grows with the square of the number of chains in the input.
const MOST_EDITS_NFT: usize = 4_000;

/// The kernel APIs of iptables mode. Each can be replaced by the embedder.
pub struct Kernel {
    /// Chains and rules.
    pub rules: Box<dyn Iptables>,
    /// The addresses of the node; nothing else is read, and nothing is changed.
    pub links: Box<dyn DummyLinks>,
    /// Tracked flows.
    pub conntrack: Box<dyn Conntrack>,
    /// Accounting objects.
    pub accounting: Box<dyn Accounting>,
    /// Sysctls.
    pub sysctls: Box<dyn Sysctls>,
}

impl Kernel {
    /// The kernel, in the calling thread's network namespace. The iptables tools run in the namespace of the thread that calls
    /// [`sync`](kernlink_engine::Proxier::sync), which must be the same.
    ///
    /// # Errors
    /// The first API that cannot be opened.
    pub fn open() -> Result<Self, Error> {
        Ok(Self {
            rules: Box::new(kernlink_iptables_restore::Client::new()),
            links: Box::new(kernlink_dummylink::Client::open()?),
            conntrack: Box::new(KernelConntrack::open()?),
            accounting: Box::new(KernelAccounting::open()?),
            sysctls: Box::new(KernelSysctls::open()?),
        })
    }

    /// The in-memory fakes of all kernel APIs, without objects.
    #[cfg(feature = "fake")]
    #[must_use]
    pub fn fake() -> Self {
        Self {
            rules: Box::new(kernlink_iptables_restore::Fake::new()),
            links: Box::new(kernlink_dummylink::Fake::new()),
            conntrack: Box::new(kernlink_conntrack::Fake::new()),
            accounting: Box::new(super::accounting::FakeAccounting::default()),
            sysctls: Box::new(kernlink_host::FakeSysctls::default()),
        }
    }

    /// Executes operations in order and returns one outcome for each, in order. Writes of one family that follow each other are passed
    /// to the tool together if they write the tables in the same order.
    pub(super) fn execute_all(&mut self, operations: &[&Operation]) -> Vec<Result<(), Error>> {
        let mut outcomes: Vec<Result<(), Error>> = Vec::with_capacity(operations.len());
        let mut writes: Vec<&Write> = Vec::new();
        let mut edits = 0;
        for operation in operations {
            let write = match operation {
                Operation::Write(write) => Some(&**write),
                _ => None,
            };
            let more = write.map_or(0, edits_of);
            let joins = write.is_some_and(|write| {
                let is_same = |first: &&Write| first.family() == write.family() && first.order == write.order;
                writes.first().is_none_or(is_same) && self.is_one_input(write.family(), edits + more)
            });
            if !joins {
                outcomes.extend(batch::write(&mut *self.rules, &writes));
                writes.clear();
                edits = 0;
            }
            match (operation, write) {
                (_, Some(write)) => {
                    edits += more;
                    writes.push(write);
                }
                (Operation::Sysctl(sysctl), _) => {
                    let outcome = self.sysctls.execute(std::slice::from_ref(sysctl)).pop();
                    outcomes
                        .push(outcome.map_or(Err(Error::OutcomeMissing), |done| done.map_err(Into::into)));
                }
                (Operation::EnsureJump { operation, .. }, _) => {
                    let outcome = self.rules.execute(std::slice::from_ref(&**operation)).pop();
                    outcomes
                        .push(outcome.map_or(Err(Error::OutcomeMissing), |done| done.map_err(Into::into)));
                }
                (Operation::EnsureAccounting(name), _) => {
                    outcomes.push(self.accounting.ensure(name).map_err(Into::into));
                }
                (Operation::Flows(flows), _) => {
                    outcomes.push(flows.execute(&mut *self.conntrack).map_err(Into::into));
                }
                (Operation::EnsureChain(ensure), _) => outcomes.push(self.ensure_chain(ensure)),
                (Operation::Write(_), None) => {}
            }
        }
        outcomes.extend(batch::write(&mut *self.rules, &writes));
        outcomes
    }

    fn ensure_chain(&mut self, ensure: &EnsureChain) -> Result<(), Error> {
        match self.rules.restore(&ensure.creation()) {
            Err(error) if !error.is_already_exists() => return Err(error.into()),
            _ => {}
        }
        for addition in ensure.additions() {
            self.rules.execute_one(addition)?;
        }
        Ok(())
    }

    /// Whether a batch of this size goes to one `iptables-restore`. Detects the variant only if the limits differ.
    fn is_one_input(&mut self, family: Family, edits: usize) -> bool {
        edits <= MOST_EDITS_NFT || edits <= MOST_EDITS && self.rules.variant(family) != Some(Variant::Nft)
    }
}

fn edits_of(write: &Write) -> usize {
    write.order.into_iter().map(|table| write.count(table)).sum()
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernel").finish_non_exhaustive()
    }
}
