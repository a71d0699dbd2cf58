//! The kernel APIs that IPVS mode programs: one trait object for each kernel crate, and sysctls.

use std::fmt;

use kernlink_dummylink::DummyLinks;
use kernlink_ipset::IpSets;
use kernlink_iptables_restore::Iptables;
use kernlink_ipvs::Ipvs;
use kernlink_netlink::Namespace;

use super::error::{Error, SysctlError};
use super::operation::Operation;
use super::sysctls::Sysctl;

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
    /// Sysctls.
    pub sysctls: Box<dyn Sysctls>,
}

impl Kernel {
    /// The kernel, in the calling thread's network namespace. The iptables tools run in the namespace of the thread that calls
    /// [`sync`](crate::Proxier::sync), which must be the same.
    ///
    /// # Errors
    /// The first API that cannot be opened.
    pub fn open() -> Result<Self, Error> {
        Ok(Self {
            ipvs: Box::new(kernlink_ipvs::Client::open()?),
            sets: Box::new(kernlink_ipset::Client::open()?),
            rules: Box::new(kernlink_iptables_restore::Client::new()),
            links: Box::new(kernlink_dummylink::Client::open()?),
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

    /// Executes operations in order. Consecutive operations of one API are one call. Returns one outcome for each operation, in order.
    pub fn execute_all(&mut self, operations: &[&Operation]) -> Vec<Result<(), Error>> {
        let mut outcomes = Vec::with_capacity(operations.len());
        for run in operations.chunk_by(|a, b| a.api() == b.api()) {
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
                None => {}
            }
            // Too few or too many outcomes of one API must not shift the outcomes of the next one.
            outcomes.resize(first + run.len(), Err(Error::OutcomeMissing));
        }
        outcomes
    }
}

fn collect<T>(run: &[&Operation], take: impl Fn(&Operation) -> Option<T>) -> Vec<T> {
    run.iter().filter_map(|operation| take(operation)).collect()
}

fn convert<E: Into<Error>>(outcomes: Vec<Result<(), E>>) -> impl Iterator<Item = Result<(), Error>> {
    outcomes.into_iter().map(|outcome| outcome.map_err(Into::into))
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernel").finish_non_exhaustive()
    }
}

/// Access to sysctls.
pub trait Sysctls: Send {
    /// Writes values in order and returns one outcome for each, in order.
    fn execute(&mut self, sysctls: &[Sysctl]) -> Vec<Result<(), SysctlError>>;

    /// The value of a sysctl by [name](Sysctl::name), without white space around it; `None` if the kernel does not have the sysctl.
    ///
    /// # Errors
    /// [`SysctlError`] if it exists and cannot be read.
    fn read(&mut self, name: &str) -> Result<Option<String>, SysctlError>;
}

/// The sysctls of the running kernel, with the `net` sysctls of one network namespace.
#[derive(Debug)]
pub struct KernelSysctls {
    namespace: Namespace,
}

impl KernelSysctls {
    /// The sysctls of the calling thread's network namespace. They can be used from any thread.
    ///
    /// # Errors
    /// If the namespace cannot be opened.
    pub fn open() -> Result<Self, SysctlError> {
        match Namespace::current() {
            Ok(namespace) => Ok(Self { namespace }),
            Err(error) => Err(SysctlError::namespace(error)),
        }
    }

    fn path(name: &str) -> String {
        if name.starts_with('/') {
            name.to_owned()
        } else {
            format!("/proc/sys/{}", name.replace('.', "/"))
        }
    }
}

impl Sysctls for KernelSysctls {
    fn execute(&mut self, sysctls: &[Sysctl]) -> Vec<Result<(), SysctlError>> {
        let write = |sysctl: &Sysctl| {
            std::fs::write(Self::path(&sysctl.name), &*sysctl.value)
                .map_err(|error| SysctlError::new("write", &sysctl.name, &error))
        };
        let outcomes = self.namespace.run(|| sysctls.iter().map(write).collect());
        outcomes.unwrap_or_else(|error| vec![Err(SysctlError::namespace(error)); sysctls.len()])
    }

    fn read(&mut self, name: &str) -> Result<Option<String>, SysctlError> {
        let read = || match std::fs::read_to_string(Self::path(name)) {
            Ok(text) => Ok(Some(text.trim().to_owned())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(SysctlError::new("read", name, &error)),
        };
        self.namespace.run(read).map_err(SysctlError::namespace)?
    }
}

/// The fake of [`Sysctls`]. A sysctl that was never written is 0.
#[cfg(feature = "fake")]
#[derive(Clone, Debug, Default)]
pub struct FakeSysctls {
    values: std::collections::BTreeMap<Box<str>, Box<str>>,
}

#[cfg(feature = "fake")]
impl Sysctls for FakeSysctls {
    fn execute(&mut self, sysctls: &[Sysctl]) -> Vec<Result<(), SysctlError>> {
        for sysctl in sysctls {
            self.values.insert(sysctl.name.clone(), sysctl.value.clone());
        }
        vec![Ok(()); sysctls.len()]
    }

    fn read(&mut self, name: &str) -> Result<Option<String>, SysctlError> {
        let value = self.values.get(name);
        Ok(Some(
            value.map_or_else(|| "0".to_owned(), |value| value.to_string()),
        ))
    }
}
