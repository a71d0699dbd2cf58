//! The APIs of all modes.

use std::fmt;

use kernlink_base::ErrorChain;
use kernlink_proxier::DataPath;
use kernlink_proxier::any_mode::{self, AnyMode};
use kernlink_userspace::limits::raise_descriptor_limit;
use kernlink_userspace::{AllStats, Proxy, UserspaceMode, data_path as userspace};
use tokio::runtime::{Builder, Runtime};

use super::config::{Config, UserspaceConfig};
use super::error::Error;
use super::mode::Mode;
use super::operation::Operation;

/// The APIs of all modes. Those of a mode are opened when it is used first.
pub struct Kernel {
    pub(super) in_kernel: any_mode::Kernel,
    userspace: Option<Userspace>,
}

/// The proxy of userspace mode.
struct Userspace {
    kernel: userspace::Kernel,
    stats: Option<AllStats>,
    /// Its threads. They end after the sockets were closed.
    _runtime: Option<Runtime>,
}

/// The open files that the process may have at least, as in kube-proxy.
const DESCRIPTORS: u64 = 64_000;

impl Kernel {
    /// The APIs that the configured mode needs, in the network namespace of the calling thread. In userspace mode the threads of the proxy
    /// start; it has no listening ports yet.
    ///
    /// # Errors
    /// The first API that cannot be opened.
    pub fn open(config: &Config) -> Result<Self, Error> {
        match config {
            Config::InKernel(config) => Ok(Self::with_in_kernel(any_mode::Kernel::open(config.mode())?)),
            Config::Userspace(config) => {
                let mut kernel = Self::with_in_kernel(any_mode::Kernel::new());
                kernel.userspace(config)?;
                Ok(kernel)
            }
        }
    }

    /// These APIs of iptables and IPVS mode.
    #[must_use]
    pub fn with_in_kernel(in_kernel: any_mode::Kernel) -> Self {
        Self {
            in_kernel,
            userspace: None,
        }
    }

    /// The in-memory fakes of all APIs, without objects. The modes do not share objects.
    #[cfg(test)]
    pub(crate) fn fake() -> Self {
        Self::with_in_kernel(any_mode::Kernel::fake()).with_userspace(userspace::Kernel::fake())
    }

    /// Sets the APIs of userspace mode.
    #[must_use]
    pub fn with_userspace(mut self, kernel: userspace::Kernel) -> Self {
        self.userspace = Some(Userspace {
            kernel,
            stats: None,
            _runtime: None,
        });
        self
    }

    /// The counters of the proxy of userspace mode, if it was started.
    #[must_use]
    pub fn stats(&self) -> Option<AllStats> {
        self.userspace.as_ref()?.stats.clone()
    }

    /// Whether the kernel has objects that serve Services, in any mode. `mode` is the configured one.
    ///
    /// # Errors
    /// What could not be read.
    pub fn has_services(&mut self, mode: Mode) -> Result<bool, Error> {
        let mode = match mode {
            Mode::InKernel(mode) => mode,
            Mode::Userspace => any_mode::Mode::Iptables,
        };
        let rules = &mut *self.in_kernel.iptables()?.rules;
        if userspace::has_portals(rules).map_err(userspace::Error::from)? {
            return Ok(true);
        }
        Ok(self.in_kernel.has_services(mode)?)
    }

    /// The APIs of userspace mode; opens them if they are not open.
    pub(super) fn userspace(&mut self, config: &UserspaceConfig) -> Result<&mut userspace::Kernel, Error> {
        let opened = match &mut self.userspace {
            Some(opened) => opened,
            closed => closed.insert(Userspace::open(config)?),
        };
        Ok(&mut opened.kernel)
    }

    /// Closes the listening ports of userspace mode. Open connections end.
    pub(super) fn close_userspace(&mut self) {
        self.userspace = None;
    }

    /// Executes operations in order, and returns one outcome for each, in order. Consecutive operations of one mode are passed on together.
    pub(super) fn execute_all(&mut self, operations: &[&Operation]) -> Vec<Result<(), Error>> {
        let mut outcomes = Vec::with_capacity(operations.len());
        let is_same =
            |a: &&Operation, b: &&Operation| std::mem::discriminant(*a) == std::mem::discriminant(*b);
        for run in operations.chunk_by(is_same) {
            let first = outcomes.len();
            outcomes.extend(self.execute_run(run));
            // Too few or too many outcomes must not shift those of the next run.
            outcomes.resize(first + run.len(), Err(Error::OutcomeMissing));
        }
        outcomes
    }

    fn execute_run(&mut self, run: &[&Operation]) -> Vec<Result<(), Error>> {
        let in_kernel: Vec<&any_mode::Operation> =
            run.iter().filter_map(|operation| operation.in_kernel()).collect();
        if !in_kernel.is_empty() {
            return converted(AnyMode::execute(&mut self.in_kernel, &in_kernel));
        }
        let of_userspace: Vec<&userspace::Operation> =
            run.iter().filter_map(|operation| operation.userspace()).collect();
        if !of_userspace.is_empty() {
            return match &mut self.userspace {
                Some(opened) => converted(UserspaceMode::execute(&mut opened.kernel, &of_userspace)),
                // The first listing opens it.
                None => Vec::new(),
            };
        }
        let removals = run.iter().filter_map(|operation| operation.removal());
        removals.map(|removal| removal.execute(self)).collect()
    }
}

impl Userspace {
    fn open(config: &UserspaceConfig) -> Result<Self, Error> {
        let failed = |error: std::io::Error| Error::Start(ErrorChain(&error).to_string());
        raise_descriptor_limit(DESCRIPTORS).map_err(failed)?;
        let runtime = Builder::new_multi_thread()
            .thread_name("kernlink-proxy")
            .enable_all()
            .build()
            .map_err(failed)?;
        let proxy = Proxy::new(runtime.handle().clone(), config.limits.clone()).map_err(failed)?;
        Ok(Self {
            stats: Some(proxy.all_stats()),
            kernel: userspace::Kernel::with_proxy(proxy).map_err(failed)?,
            _runtime: Some(runtime),
        })
    }
}

fn converted<E: Into<Error>>(outcomes: Vec<Result<(), E>>) -> Vec<Result<(), Error>> {
    let outcomes = outcomes.into_iter();
    outcomes.map(|outcome| outcome.map_err(Into::into)).collect()
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernel").finish_non_exhaustive()
    }
}
