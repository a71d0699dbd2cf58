//! Kernel APIs of a proxier, which record the processes that they start and the sysctls that they use.

use std::sync::{Arc, Mutex, PoisonError};

use kernlink_iptables_restore::{Completion, Error, Invocation, LocalRunner, Runner};
use kernlink_proxier::host::{KernelSysctls, Sysctl, SysctlError, Sysctls};

/// What was done other than over netlink, in order. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Record(Arc<Mutex<Vec<Entry>>>);

/// One of these things.
#[derive(Clone, Debug)]
pub enum Entry {
    /// A program was started.
    Process(Invocation),
    /// A sysctl was written.
    WriteSysctl(Sysctl),
    /// The sysctl of this name was read.
    ReadSysctl(String),
}

impl Record {
    /// Runs programs and records them.
    #[must_use]
    pub fn runner(&self, inner: LocalRunner) -> Box<dyn Runner> {
        Box::new(Recorded {
            inner,
            record: self.clone(),
        })
    }

    /// Reads and writes sysctls and records them.
    #[must_use]
    pub fn sysctls(&self, inner: KernelSysctls) -> Box<dyn Sysctls> {
        Box::new(Recorded {
            inner,
            record: self.clone(),
        })
    }

    /// Takes the entries.
    pub fn take(&self) -> Vec<Entry> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn push(&self, entry: Entry) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).push(entry);
    }
}

struct Recorded<T> {
    inner: T,
    record: Record,
}

impl Runner for Recorded<LocalRunner> {
    fn run(&mut self, invocation: Invocation) -> Result<Completion, Error> {
        self.record.push(Entry::Process(invocation.clone()));
        self.inner.run(invocation)
    }

    fn run_all(&mut self, invocations: Vec<Invocation>) -> Vec<Result<Completion, Error>> {
        for invocation in &invocations {
            self.record.push(Entry::Process(invocation.clone()));
        }
        self.inner.run_all(invocations)
    }
}

impl Sysctls for Recorded<KernelSysctls> {
    fn execute(&mut self, sysctls: &[Sysctl]) -> Vec<Result<(), SysctlError>> {
        for sysctl in sysctls {
            self.record.push(Entry::WriteSysctl(sysctl.clone()));
        }
        self.inner.execute(sysctls)
    }

    fn read(&mut self, name: &str) -> Result<Option<String>, SysctlError> {
        self.record.push(Entry::ReadSysctl(name.to_owned()));
        self.inner.read(name)
    }
}
