//! The kernel APIs that IPVS mode programs: one trait object for each kernel crate, and sysctls.

mod sets;

use std::fmt;

use kernlink_conntrack::Conntrack;
use kernlink_dummylink::DummyLinks;
use kernlink_ipset::IpSets;
use kernlink_iptables_restore::Iptables;
use kernlink_ipvs::Ipvs;

pub use self::sets::KernelSets;
use super::error::Error;
use super::operation::Operation;
#[cfg(feature = "fake")]
pub use kernlink_host::FakeSysctls;
pub use kernlink_host::{KernelConntrack, KernelSysctls, Sysctls};

/// The most operations of one call: it has copies of them.
const MOST_AT_ONCE: usize = 4_096;

/// The kernel APIs of IPVS mode. Each can be replaced by the embedder.
pub struct Kernel {
    /// Virtual servers and real servers.
    pub ipvs: Box<dyn Ipvs>,
    /// Sets.
    pub sets: Box<dyn IpSets>,
    /// Chains and rules.
    pub rules: Box<dyn Iptables>,
    /// The dummy link and addresses.
    pub links: Box<dyn DummyLinks>,
    /// Tracked flows.
    pub conntrack: Box<dyn Conntrack>,
    /// Sysctls.
    pub sysctls: Box<dyn Sysctls>,
}

impl Kernel {
    /// The kernel, in the calling thread's network namespace. The iptables tools run in the namespace of the thread that calls
    /// [`sync`](kernlink_engine::Proxier::sync), which must be the same.
    ///
    /// Without ipset, connection tracking over netlink, dummy links or the iptables tools, each use of the missing one fails until it is
    /// there; a sync does what can be done without it, and reports it.
    ///
    /// # Errors
    /// If the kernel has no IPVS, the process may not use it, or a socket or the network namespace cannot be opened.
    pub fn open() -> Result<Self, Error> {
        Ok(Self {
            ipvs: Box::new(kernlink_ipvs::Client::open()?),
            sets: Box::new(KernelSets::open()?),
            rules: Box::new(kernlink_iptables_restore::Client::new()),
            links: Box::new(kernlink_dummylink::Client::open()?),
            conntrack: Box::new(KernelConntrack::open()?),
            sysctls: Box::new(KernelSysctls::open()?),
        })
    }

    /// The in-memory fakes of all kernel APIs, without objects.
    #[cfg(feature = "fake")]
    #[must_use]
    pub fn fake() -> Self {
        Self {
            ipvs: Box::new(kernlink_ipvs::Fake::new()),
            sets: Box::new(kernlink_ipset::Fake::new()),
            rules: Box::new(kernlink_iptables_restore::Fake::new()),
            links: Box::new(kernlink_dummylink::Fake::new()),
            conntrack: Box::new(kernlink_conntrack::Fake::new()),
            sysctls: Box::new(FakeSysctls::default()),
        }
    }

    /// Executes one operation.
    ///
    /// # Errors
    /// The error of the kernel API.
    pub fn execute(&mut self, operation: &Operation) -> Result<(), Error> {
        let outcome = self.execute_all(&[operation]).pop();
        outcome.unwrap_or(Err(Error::OutcomeMissing))
    }

    /// Executes operations in order. Consecutive operations of one API are one call, or a few if they are many. Returns one outcome for each
    /// operation, in order.
    pub fn execute_all(&mut self, operations: &[&Operation]) -> Vec<Result<(), Error>> {
        let mut outcomes = Vec::with_capacity(operations.len());
        let runs = operations.chunk_by(|a, b| a.api() == b.api());
        for run in runs.flat_map(|run| run.chunks(MOST_AT_ONCE)) {
            let first = outcomes.len();
            match run.first() {
                Some(Operation::Sysctl(_)) => outcomes.extend(convert(self.sysctls.execute(&collect(
                    run,
                    |operation| match operation {
                        Operation::Sysctl(operation) => Some(operation.clone()),
                        _ => None,
                    },
                )))),
                Some(Operation::Link(_)) => outcomes.extend(convert(self.links.execute(&collect(
                    run,
                    |operation| match operation {
                        Operation::Link(operation) => Some(operation.clone()),
                        _ => None,
                    },
                )))),
                Some(Operation::Set(_)) => outcomes.extend(convert(self.sets.execute(&collect(
                    run,
                    |operation| match operation {
                        Operation::Set(operation) => Some(operation.clone()),
                        _ => None,
                    },
                )))),
                Some(Operation::ReplaceSet(_)) => {
                    let replacements = collect(run, |operation| match operation {
                        Operation::ReplaceSet(replacement) => Some(replacement),
                        _ => None,
                    });
                    let sets = &mut *self.sets;
                    let replaced = replacements.into_iter();
                    outcomes.extend(convert(replaced.map(|replacement| replacement.execute(sets))));
                }
                Some(Operation::Rules(_)) => outcomes.extend(convert(self.rules.execute(&collect(
                    run,
                    |operation| match operation {
                        Operation::Rules(operation) => Some((**operation).clone()),
                        _ => None,
                    },
                )))),
                Some(Operation::Ipvs(_)) => outcomes.extend(convert(self.ipvs.execute(&collect(
                    run,
                    |operation| match operation {
                        Operation::Ipvs(operation) => Some(operation.clone()),
                        _ => None,
                    },
                )))),
                Some(Operation::Flows(_)) => {
                    let passes = collect(run, |operation| match operation {
                        Operation::Flows(operation) => Some(operation),
                        _ => None,
                    });
                    let conntrack = &mut *self.conntrack;
                    outcomes.extend(convert(passes.iter().map(|pass| pass.execute(conntrack))));
                }
                None => {}
            }
            // Too few or too many outcomes of one API must not shift the outcomes of the next one.
            outcomes.resize(first + run.len(), Err(Error::OutcomeMissing));
        }
        outcomes
    }
}

fn collect<'a, T>(run: &[&'a Operation], take: impl Fn(&'a Operation) -> Option<T>) -> Vec<T> {
    run.iter().filter_map(|operation| take(operation)).collect()
}

fn convert<E: Into<Error>>(
    outcomes: impl IntoIterator<Item = Result<(), E>>,
) -> impl Iterator<Item = Result<(), Error>> {
    outcomes.into_iter().map(|outcome| outcome.map_err(Into::into))
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernel").finish_non_exhaustive()
    }
}
