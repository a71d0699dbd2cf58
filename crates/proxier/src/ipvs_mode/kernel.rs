//! The kernel APIs that IPVS mode programs: one trait object for each kernel crate, and sysctls.

use std::fmt;

use kernlink_dummylink::DummyLinks;
use kernlink_ipset::IpSets;
use kernlink_iptables_restore::Iptables;
use kernlink_ipvs::Ipvs;
use kernlink_netlink::Namespace;

use super::error::{Error, SysctlError};
use super::operation::{Operation, SysctlOperation};

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
            rules: Box::new(kernlink_iptables_restore::Command::new()),
            links: Box::new(kernlink_dummylink::Client::open()?),
            sysctls: Box::new(KernelSysctls::open()?),
        })
    }

    /// An empty kernel in memory.
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
    /// That of the API.
    pub fn execute(&mut self, operation: &Operation) -> Result<(), Error> {
        let outcome = self.execute_all(&[operation]).pop();
        outcome.unwrap_or(Err(Error::NoOutcome))
    }

    /// Executes operations in order, with one call for those in a row that one API takes. Returns one outcome for each, in order.
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
            // An implementation that returns too few or too many outcomes must not shift those of the next API.
            outcomes.resize(first + run.len(), Err(Error::NoOutcome));
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

/// Sysctls by name, as `sysctl` takes it: `net.ipv4.ip_forward`. A parameter of a module is named by its path.
pub trait Sysctls: Send {
    /// Writes sysctls in order and returns one outcome for each, in order.
    fn execute(&mut self, operations: &[SysctlOperation]) -> Vec<Result<(), SysctlError>>;

    /// The value of a sysctl without surrounding white space; `None` if the kernel does not have it.
    ///
    /// # Errors
    /// [`SysctlError`] if it exists and cannot be read.
    fn read(&mut self, name: &str) -> Result<Option<String>, SysctlError>;
}

/// The sysctls of the running kernel; those of the network are those of one network namespace.
#[derive(Debug)]
pub struct KernelSysctls {
    namespace: Namespace,
}

impl KernelSysctls {
    /// The sysctls of the calling thread's network namespace, from whatever thread they are used later.
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
    fn execute(&mut self, operations: &[SysctlOperation]) -> Vec<Result<(), SysctlError>> {
        let write = |operation: &SysctlOperation| {
            std::fs::write(Self::path(&operation.name), &*operation.value)
                .map_err(|error| SysctlError::new("write", &operation.name, &error))
        };
        let outcomes = self.namespace.run(|| operations.iter().map(write).collect());
        outcomes.unwrap_or_else(|error| vec![Err(SysctlError::namespace(error)); operations.len()])
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

/// Sysctls in memory. One that was never written is 0.
#[cfg(feature = "fake")]
#[derive(Clone, Debug, Default)]
pub struct FakeSysctls {
    values: std::collections::BTreeMap<Box<str>, Box<str>>,
}

#[cfg(feature = "fake")]
impl Sysctls for FakeSysctls {
    fn execute(&mut self, operations: &[SysctlOperation]) -> Vec<Result<(), SysctlError>> {
        for operation in operations {
            self.values
                .insert(operation.name.clone(), operation.value.clone());
        }
        vec![Ok(()); operations.len()]
    }

    fn read(&mut self, name: &str) -> Result<Option<String>, SysctlError> {
        let value = self.values.get(name);
        Ok(Some(
            value.map_or_else(|| "0".to_owned(), |value| value.to_string()),
        ))
    }
}
