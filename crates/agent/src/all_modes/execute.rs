//! The execution of operations of all modes.

use kernlink_proxier::iptables_mode::IptablesMode;
use kernlink_proxier::ipvs_mode::IpvsMode;
use kernlink_userspace::UserspaceMode;

use super::active::OneMode;
use super::error::Error;
use super::kernel::Kernel;
use super::operation::Operation;

impl Kernel {
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
        match run.first() {
            Some(Operation::Ipvs(_)) => executed::<IpvsMode>(self.ipvs(), run),
            Some(Operation::Iptables(_)) => executed::<IptablesMode>(self.iptables(), run),
            Some(Operation::Userspace(_)) => match self.opened_userspace() {
                Some(opened) => executed::<UserspaceMode>(Ok(opened), run),
                // The first listing opens it.
                None => Vec::new(),
            },
            Some(Operation::RemoveLeftovers(_)) => {
                let removals = run.iter().filter_map(|operation| match operation {
                    Operation::RemoveLeftovers(removal) => Some(removal),
                    _ => None,
                });
                removals.map(|removal| removal.execute(self)).collect()
            }
            None => Vec::new(),
        }
    }
}

/// Executes operations of one mode.
fn executed<M: OneMode>(kernel: Result<&mut M::Kernel, Error>, run: &[&Operation]) -> Vec<Result<(), Error>> {
    let operations: Vec<&M::Operation> = run
        .iter()
        .filter_map(|operation| M::operation(operation))
        .collect();
    match kernel {
        Ok(kernel) => {
            let outcomes = M::execute(kernel, &operations).into_iter();
            outcomes.map(|outcome| outcome.map_err(Into::into)).collect()
        }
        Err(error) => operations.iter().map(|_| Err(error.clone())).collect(),
    }
}
