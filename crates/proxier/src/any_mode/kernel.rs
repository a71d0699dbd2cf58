//! The kernel APIs of the configured mode.

use std::fmt;

use super::error::Error;
use super::mode::Mode;
use super::operation::Operation;
use crate::data_path::DataPath;
use crate::iptables_mode::{self, IptablesMode};
use crate::ipvs_mode::{self, IpvsMode};

/// The kernel APIs of both modes. Those of a mode are opened when it is used first: iptables mode needs no IPVS, no sets and no dummy
/// link.
#[derive(Default)]
pub struct Kernel {
    ipvs: Option<ipvs_mode::Kernel>,
    iptables: Option<iptables_mode::Kernel>,
}

impl Kernel {
    /// The kernel, of which nothing is open. The first sync opens what the configured mode needs, in the network namespace of the thread
    /// that calls [`sync`](crate::Proxier::sync).
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The kernel APIs of a mode, in the calling thread's network namespace. The thread that calls [`sync`](crate::Proxier::sync) must be
    /// in the same: the iptables tools run in its namespace, and the APIs of the other mode are opened there if the mode changes.
    ///
    /// # Errors
    /// The first API that the mode needs and that cannot be opened.
    pub fn open(mode: Mode) -> Result<Self, Error> {
        let mut kernel = Self::new();
        match mode {
            Mode::Ipvs => _ = kernel.ipvs()?,
            Mode::Iptables => _ = kernel.iptables()?,
        }
        Ok(kernel)
    }

    /// The in-memory fakes of all kernel APIs of both modes, without objects. The modes do not share objects.
    #[cfg(feature = "fake")]
    #[must_use]
    pub fn fake() -> Self {
        Self::new()
            .with_ipvs(ipvs_mode::Kernel::fake())
            .with_iptables(iptables_mode::Kernel::fake())
    }

    /// Sets the kernel APIs of IPVS mode.
    #[must_use]
    pub fn with_ipvs(mut self, kernel: ipvs_mode::Kernel) -> Self {
        self.ipvs = Some(kernel);
        self
    }

    /// Sets the kernel APIs of iptables mode.
    #[must_use]
    pub fn with_iptables(mut self, kernel: iptables_mode::Kernel) -> Self {
        self.iptables = Some(kernel);
        self
    }

    /// The kernel APIs of IPVS mode; opens them if they are not open.
    ///
    /// # Errors
    /// The first API that cannot be opened.
    pub fn ipvs(&mut self) -> Result<&mut ipvs_mode::Kernel, Error> {
        Ok(match &mut self.ipvs {
            Some(kernel) => kernel,
            closed => closed.insert(ipvs_mode::Kernel::open()?),
        })
    }

    /// The kernel APIs of iptables mode; opens them if they are not open.
    ///
    /// # Errors
    /// The first API that cannot be opened.
    pub fn iptables(&mut self) -> Result<&mut iptables_mode::Kernel, Error> {
        Ok(match &mut self.iptables {
            Some(kernel) => kernel,
            closed => closed.insert(iptables_mode::Kernel::open()?),
        })
    }

    /// Whether the link of IPVS mode exists, which a node keeps as long as anything of this mode is left. No module is loaded for it.
    ///
    /// # Errors
    /// If the links cannot be read.
    pub fn has_ipvs_link(&mut self) -> Result<bool, Error> {
        let links = &mut self.iptables()?.links;
        iptables_mode::has_ipvs_link(&mut **links).map_err(Error::from)
    }

    /// Executes operations in order, and returns one outcome for each, in order. Consecutive operations of one mode are passed on together.
    pub(super) fn execute_all(&mut self, operations: &[&Operation]) -> Vec<Result<(), Error>> {
        let mut outcomes = Vec::with_capacity(operations.len());
        for run in operations.chunk_by(|a, b| a.mode() == b.mode()) {
            let first = outcomes.len();
            match run.first().map(|operation| operation.mode()) {
                Some(Mode::Ipvs) => outcomes.extend(self.execute_ipvs(run)),
                Some(Mode::Iptables) => outcomes.extend(self.execute_iptables(run)),
                None => {}
            }
            // Too few or too many outcomes must not shift those of the next run.
            outcomes.resize(first + run.len(), Err(Error::OutcomeMissing));
        }
        outcomes
    }

    fn execute_ipvs(&mut self, run: &[&Operation]) -> Vec<Result<(), Error>> {
        let operations = run.iter().filter_map(|operation| match operation {
            Operation::Ipvs(operation) => Some(operation),
            Operation::Iptables(_) => None,
        });
        match self.ipvs() {
            Ok(kernel) => {
                let operations: Vec<&ipvs_mode::Operation> = operations.collect();
                converted(IpvsMode::execute(kernel, &operations))
            }
            Err(error) => operations.map(|_| Err(error.clone())).collect(),
        }
    }

    fn execute_iptables(&mut self, run: &[&Operation]) -> Vec<Result<(), Error>> {
        let operations = run.iter().filter_map(|operation| match operation {
            Operation::Iptables(operation) => Some(operation),
            Operation::Ipvs(_) => None,
        });
        match self.iptables() {
            Ok(kernel) => {
                let operations: Vec<&iptables_mode::Operation> = operations.collect();
                converted(IptablesMode::execute(kernel, &operations))
            }
            Err(error) => operations.map(|_| Err(error.clone())).collect(),
        }
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
