//! The kernel APIs of the proxier, which record the processes that they start and the sysctls that they use.

use std::sync::{Arc, Mutex, PoisonError};

use kernlink_iptables_restore::{Completion, Error, Invocation, LocalRunner, Runner};
use kernlink_proxier::ipvs_mode::error::SysctlError;
use kernlink_proxier::ipvs_mode::kernel::{KernelSysctls, Sysctls};
use kernlink_proxier::ipvs_mode::{Kernel, Sysctl};

use crate::Result;
use crate::tools::Tools;

/// What was done other than over netlink, in order. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Record(Arc<Mutex<Vec<Entry>>>);

#[derive(Clone, Debug)]
pub(crate) enum Entry {
    Process(Invocation),
    WriteSysctl(Sysctl),
    ReadSysctl(String),
}

impl Record {
    /// The kernel in the calling thread's network namespace.
    pub(crate) fn open_kernel(&self) -> Result<Kernel> {
        let mut kernel = Kernel::open()?;
        let tools = Tools::in_memory()?;
        let runner = Recorded {
            inner: tools.runner(),
            record: self.clone(),
        };
        kernel.rules = Box::new(tools.client(Box::new(runner)));
        kernel.sysctls = Box::new(Recorded {
            inner: KernelSysctls::open()?,
            record: self.clone(),
        });
        Ok(kernel)
    }

    /// Takes the entries.
    pub(crate) fn take(&self) -> Vec<Entry> {
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
    fn run(&mut self, invocation: Invocation) -> std::result::Result<Completion, Error> {
        self.record.push(Entry::Process(invocation.clone()));
        self.inner.run(invocation)
    }
}

impl Sysctls for Recorded<KernelSysctls> {
    fn execute(&mut self, sysctls: &[Sysctl]) -> Vec<std::result::Result<(), SysctlError>> {
        for sysctl in sysctls {
            self.record.push(Entry::WriteSysctl(sysctl.clone()));
        }
        self.inner.execute(sysctls)
    }

    fn read(&mut self, name: &str) -> std::result::Result<Option<String>, SysctlError> {
        self.record.push(Entry::ReadSysctl(name.to_owned()));
        self.inner.read(name)
    }
}
