//! Reading and writing sysctls.

use std::fmt;

use kernlink_netlink::{Errno, Namespace};

/// A sysctl and its value.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Sysctl {
    /// The name as `sysctl` takes it, such as `net.ipv4.vs.conntrack`. A module parameter is named by its path.
    pub name: Box<str>,
    /// The value as it is written, without white space around it.
    pub value: Box<str>,
}

impl Sysctl {
    /// A sysctl with a value.
    #[must_use]
    pub fn new(name: impl Into<Box<str>>, value: impl Into<Box<str>>) -> Self {
        Self {
            name: name.into(),
            value: value.into(),
        }
    }
}

impl fmt::Display for Sysctl {
    /// As `sysctl` prints it: `net.ipv4.ip_forward = 1`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = {}", self.name, self.value)
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

/// A sysctl that could not be read or written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot {verb} sysctl {name}")]
pub struct SysctlError {
    /// What was attempted: `read` or `write`, or `access` for all sysctls of the network namespace.
    pub verb: &'static str,
    /// The name of the sysctl; `net` for all sysctls of the network namespace.
    pub name: Box<str>,
    /// The cause.
    #[source]
    pub cause: SysctlErrorCause,
}

/// Why a sysctl could not be read or written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SysctlErrorCause {
    /// The file of the sysctl could not be read or written.
    #[error(transparent)]
    File(Errno),
    /// The network namespace could not be entered.
    #[error(transparent)]
    Namespace(kernlink_netlink::Error),
}

impl SysctlError {
    /// A file that could not be read or written; `verb` is `read` or `write`.
    #[must_use]
    pub fn new(verb: &'static str, name: &str, error: &std::io::Error) -> Self {
        Self {
            verb,
            name: name.into(),
            cause: SysctlErrorCause::File(Errno::from_io(error)),
        }
    }

    /// The network namespace whose sysctls are meant could not be entered.
    #[must_use]
    pub fn namespace(error: kernlink_netlink::Error) -> Self {
        Self {
            verb: "access",
            name: "net".into(),
            cause: SysctlErrorCause::Namespace(error),
        }
    }

    /// Whether the process lacks the permission to read or write it (`EACCES`, `EPERM`).
    #[must_use]
    pub fn is_permission_denied(&self) -> bool {
        matches!(self.cause, SysctlErrorCause::File(Errno::EACCES | Errno::EPERM))
    }
}
