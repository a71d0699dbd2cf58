//! The APIs that userspace mode programs.

use std::fmt;
use std::io;

use kernlink_conntrack::Conntrack;
use kernlink_dummylink::DummyLinks;
use kernlink_host::KernelConntrack;
use kernlink_iptables_restore::{Error as RulesError, Iptables, Refused, Restore};
use tokio::runtime::Handle;

use super::error::Error;
use super::operation::{Operation, Write};
use super::sockets::Sockets;
use crate::limits::Limits;
use crate::proxy::Proxy;

/// The number of refused inputs after which what is left is not attempted: it is retried later. Each refusal costs a run of the tool.
const MOST_REFUSALS: usize = 32;

/// The APIs of userspace mode. Each can be replaced by the embedder.
pub struct Kernel {
    /// Chains and rules.
    pub rules: Box<dyn Iptables>,
    /// The addresses of the node; nothing else is read, and nothing is changed.
    pub links: Box<dyn DummyLinks>,
    /// Tracked connections: stale UDP flows are deleted.
    pub conntrack: Box<dyn Conntrack>,
    /// Listening ports and claims.
    pub sockets: Box<dyn Sockets>,
}

impl Kernel {
    /// The kernel, in the calling thread's network namespace. The iptables tools run, and sockets are opened, in the namespace of the
    /// thread that calls [`sync`](kernlink_engine::Proxier::sync), which must be the same, also for the threads of the runtime.
    ///
    /// # Errors
    /// The first API that cannot be opened.
    pub fn open(runtime: Handle, limits: Limits) -> io::Result<Self> {
        let proxy = Proxy::new(runtime, limits)?;
        Self::with_proxy(proxy)
    }

    /// The kernel, with this proxy.
    ///
    /// # Errors
    /// The addresses of the node cannot be read, or the network namespace cannot be opened.
    pub fn with_proxy(proxy: Proxy) -> io::Result<Self> {
        Ok(Self {
            rules: Box::new(kernlink_iptables_restore::Client::new()),
            links: Box::new(kernlink_dummylink::Client::open().map_err(io::Error::other)?),
            conntrack: Box::new(KernelConntrack::open().map_err(io::Error::other)?),
            sockets: Box::new(proxy),
        })
    }

    /// The in-memory fakes of all APIs, without objects.
    #[cfg(feature = "fake")]
    #[must_use]
    pub fn fake() -> Self {
        Self {
            rules: Box::new(kernlink_iptables_restore::Fake::new()),
            links: Box::new(kernlink_dummylink::Fake::new()),
            conntrack: Box::new(kernlink_conntrack::Fake::new()),
            sockets: Box::new(super::sockets::FakeSockets::default()),
        }
    }

    /// Executes operations in order and returns one outcome for each, in order. Writes of one table that follow each other are passed to
    /// the tool together.
    pub(super) fn execute_all(&mut self, operations: &[&Operation]) -> Vec<Result<(), Error>> {
        let mut outcomes = Vec::with_capacity(operations.len());
        let mut writes: Vec<&Write> = Vec::new();
        let mut refusals = 0;
        for operation in operations {
            if let Operation::Write(write) = operation {
                let place = |write: &Write| {
                    write
                        .restore
                        .tables()
                        .map(|(table, _)| (write.family(), table))
                        .next()
                };
                if writes.first().is_some_and(|first| place(first) != place(write)) {
                    self.write(&writes, &mut refusals, &mut outcomes);
                    writes.clear();
                    // Of another family or table.
                    refusals = 0;
                }
                writes.push(write);
                continue;
            }
            self.write(&writes, &mut refusals, &mut outcomes);
            writes.clear();
            outcomes.push(self.execute_alone(operation));
        }
        self.write(&writes, &mut refusals, &mut outcomes);
        outcomes
    }

    fn execute_alone(&mut self, operation: &Operation) -> Result<(), Error> {
        match operation {
            Operation::Listen { key, serving, .. } => self
                .sockets
                .listen(*key, serving)
                .map_err(|error| Error::listen(*key, &error)),
            Operation::Claim(key) => self
                .sockets
                .claim(*key)
                .map_err(|error| Error::claim(*key, &error)),
            Operation::Close(key) => {
                self.sockets.close(key);
                Ok(())
            }
            Operation::Release(key) => {
                self.sockets.release(key);
                Ok(())
            }
            Operation::DeleteFlows(pass) => Ok(pass.execute(&mut *self.conntrack)?),
            Operation::Write(_) => Err(Error::OutcomeMissing),
        }
    }

    /// Passes writes of one table to the tool together. The kernel applies all of them or none. If it refuses them, they are passed in
    /// halves, until the refused ones are alone or [`MOST_REFUSALS`] inputs were refused.
    fn write(&mut self, writes: &[&Write], refusals: &mut usize, outcomes: &mut Vec<Result<(), Error>>) {
        let Some(first) = writes.first() else {
            return;
        };
        if *refusals >= MOST_REFUSALS {
            let refused = *refusals;
            return outcomes.extend(writes.iter().map(|_| Err(Error::NotAttempted { refused })));
        }
        let mut restore = Restore::new(first.family());
        for write in writes {
            for (table, edits) in write.restore.tables() {
                restore.table_mut(table).extend(edits.iter().cloned());
            }
        }
        let Err(error) = self.rules.restore(&restore) else {
            return outcomes.extend(writes.iter().map(|_| Ok(())));
        };
        // With another error the tool could not be started, or it is not known what was written.
        let is_divisible =
            matches!(&error, RulesError::Refused { refused, .. } if !matches!(**refused, Refused::Whole(_)));
        *refusals += usize::from(is_divisible);
        if writes.len() == 1 || !is_divisible {
            return outcomes.extend(writes.iter().map(|_| Err(error.clone().into())));
        }
        let (before, after) = writes.split_at(writes.len() / 2);
        self.write(before, refusals, outcomes);
        self.write(after, refusals, outcomes);
    }
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernel").finish_non_exhaustive()
    }
}
