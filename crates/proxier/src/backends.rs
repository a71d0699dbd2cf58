//! What a plan is executed on: one trait object for each kernel crate, and kernel settings.

use kernlink_dummylink::DummyLinks;
use kernlink_ipset::IpSets;
use kernlink_iptables_restore::Iptables;
use kernlink_ipvs::Ipvs;

use crate::error::{BackendError, OperationError, SettingError};
use crate::plan::{Operation, SettingOperation};

/// The kernel, or what stands in for it. Every part can be replaced by the embedder.
pub struct Backends {
    /// Virtual servers.
    pub ipvs: Box<dyn Ipvs>,
    /// Sets.
    pub sets: Box<dyn IpSets>,
    /// Chains and rules.
    pub rules: Box<dyn Iptables>,
    /// The dummy link and addresses.
    pub links: Box<dyn DummyLinks>,
    /// Kernel settings.
    pub settings: Box<dyn Settings>,
}

impl Backends {
    /// The kernel, in the calling thread's network namespace. Threads that use the result must be in that namespace too: the
    /// iptables tools and `/proc/sys` go by the thread that calls.
    ///
    /// # Errors
    /// The first part of the kernel that cannot be reached, and why.
    pub fn kernel() -> Result<Self, BackendError> {
        Ok(Self {
            ipvs: Box::new(kernlink_ipvs::Client::open()?),
            sets: Box::new(kernlink_ipset::Client::open()?),
            rules: Box::new(kernlink_iptables_restore::Command::new()),
            links: Box::new(kernlink_dummylink::Client::open()?),
            settings: Box::new(KernelSettings),
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
            settings: Box::new(FakeSettings::default()),
        }
    }
}

impl Backends {
    /// Executes one operation on the backend that it is for. [`apply`](crate::apply::apply) executes many in few calls.
    ///
    /// # Errors
    /// That of the backend.
    pub fn execute(&mut self, operation: &Operation) -> Result<(), OperationError> {
        fn only<E: Into<OperationError>>(outcomes: Vec<Result<(), E>>) -> Result<(), OperationError> {
            let outcome = outcomes.into_iter().next();
            outcome.map_or(Err(OperationError::NoOutcome), |outcome| {
                outcome.map_err(Into::into)
            })
        }
        match operation {
            Operation::Setting(operation) => only(self.settings.execute(std::slice::from_ref(operation))),
            Operation::Link(operation) => only(self.links.execute(std::slice::from_ref(operation))),
            Operation::Set(operation) => only(self.sets.execute(std::slice::from_ref(operation))),
            Operation::Rules(operation) => only(self.rules.execute(std::slice::from_ref(operation))),
            Operation::Ipvs(operation) => only(self.ipvs.execute(std::slice::from_ref(operation))),
        }
    }
}

impl std::fmt::Debug for Backends {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Backends").finish_non_exhaustive()
    }
}

/// Kernel settings, by their name as `sysctl` takes it: `net.ipv4.ip_forward`. A module's parameter is named by its path.
pub trait Settings: Send {
    /// Writes settings in order, with one outcome for each, in order. Writing the value that is there is done again.
    fn execute(&mut self, operations: &[SettingOperation]) -> Vec<Result<(), SettingError>>;

    /// The value of a setting without white space around it; `None` if the kernel has no such setting.
    ///
    /// # Errors
    /// [`SettingError`] if it is there and cannot be read.
    fn read(&mut self, name: &str) -> Result<Option<String>, SettingError>;
}

/// The settings of the running kernel; those of the network are the calling thread's namespace's.
#[derive(Clone, Copy, Debug, Default)]
pub struct KernelSettings;

impl KernelSettings {
    fn path(name: &str) -> String {
        if name.starts_with('/') {
            name.to_owned()
        } else {
            format!("/proc/sys/{}", name.replace('.', "/"))
        }
    }
}

impl Settings for KernelSettings {
    fn execute(&mut self, operations: &[SettingOperation]) -> Vec<Result<(), SettingError>> {
        let write = |operation: &SettingOperation| {
            std::fs::write(Self::path(&operation.name), &*operation.value)
                .map_err(|error| SettingError::new("write", &operation.name, &error))
        };
        operations.iter().map(write).collect()
    }

    fn read(&mut self, name: &str) -> Result<Option<String>, SettingError> {
        match std::fs::read_to_string(Self::path(name)) {
            Ok(text) => Ok(Some(text.trim().to_owned())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(SettingError::new("read", name, &error)),
        }
    }
}

/// Settings in memory. A setting that was never written is 0.
#[cfg(feature = "fake")]
#[derive(Clone, Debug, Default)]
pub struct FakeSettings {
    values: std::collections::BTreeMap<Box<str>, Box<str>>,
}

#[cfg(feature = "fake")]
impl Settings for FakeSettings {
    fn execute(&mut self, operations: &[SettingOperation]) -> Vec<Result<(), SettingError>> {
        for operation in operations {
            self.values
                .insert(operation.name.clone(), operation.value.clone());
        }
        vec![Ok(()); operations.len()]
    }

    fn read(&mut self, name: &str) -> Result<Option<String>, SettingError> {
        Ok(Some(
            self.values
                .get(name)
                .map_or_else(|| "0".to_owned(), |value| value.to_string()),
        ))
    }
}
