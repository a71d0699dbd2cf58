//! The kernel APIs that iptables mode programs.

use std::fmt;

use kernlink_conntrack::Conntrack;
use kernlink_dummylink::DummyLinks;
use kernlink_iptables_restore::{Edit, Iptables, Refused, Restore, Table, Variant};
use kernlink_services::Family;

use super::accounting::{Accounting, KernelAccounting};
use super::error::Error;
use super::operation::{EnsureChain, Operation, Write};
use crate::netfilter::{KernelConntrack, KernelSysctls, Sysctls};

/// The maximum number of edits that are passed to one `iptables-restore`, unless one Service alone needs more. Legacy tools read and write
/// the whole table each time, so few large inputs are fastest.
const MOST_EDITS: usize = 100_000;

/// The same for the nft tools, which write what changes only, and whose time grows with the square of the number of chains in the input.
const MOST_EDITS_NFT: usize = 4_000;

/// The kernel APIs of iptables mode. Each can be replaced by the embedder.
pub struct Kernel {
    /// Chains and rules.
    pub rules: Box<dyn Iptables>,
    /// The addresses of the node; nothing else is read, and nothing is changed.
    pub links: Box<dyn DummyLinks>,
    /// Tracked flows.
    pub conntrack: Box<dyn Conntrack>,
    /// Accounting objects.
    pub accounting: Box<dyn Accounting>,
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
            rules: Box::new(kernlink_iptables_restore::Client::new()),
            links: Box::new(kernlink_dummylink::Client::open()?),
            conntrack: Box::new(KernelConntrack::open()?),
            accounting: Box::new(KernelAccounting::open()?),
            sysctls: Box::new(KernelSysctls::open()?),
        })
    }

    /// The in-memory fakes of all kernel APIs, without objects.
    #[cfg(feature = "fake")]
    #[must_use]
    pub fn fake() -> Self {
        Self {
            rules: Box::new(kernlink_iptables_restore::Fake::new()),
            links: Box::new(kernlink_dummylink::Fake::new()),
            conntrack: Box::new(kernlink_conntrack::Fake::new()),
            accounting: Box::new(super::accounting::FakeAccounting::default()),
            sysctls: Box::new(crate::netfilter::FakeSysctls::default()),
        }
    }

    /// Executes operations in order and returns one outcome for each, in order. Writes of one family that follow each other are passed
    /// to the tool together.
    pub(super) fn execute_all(&mut self, operations: &[&Operation]) -> Vec<Result<(), Error>> {
        let mut outcomes: Vec<Result<(), Error>> = Vec::with_capacity(operations.len());
        let mut writes: Vec<&Write> = Vec::new();
        let mut edits = 0;
        for operation in operations {
            let write = match operation {
                Operation::Write(write) => Some(&**write),
                _ => None,
            };
            let more = write.map_or(0, |write| edits_of(&write.restore));
            let joins = write.is_some_and(|write| {
                let is_same = |first: &&Write| first.family() == write.family();
                writes.first().is_none_or(is_same) && edits + more <= self.most_edits(write.family())
            });
            if !joins {
                outcomes.extend(self.write_all(&writes));
                writes.clear();
                edits = 0;
            }
            match (operation, write) {
                (_, Some(write)) => {
                    edits += more;
                    writes.push(write);
                }
                (Operation::Sysctl(sysctl), _) => {
                    let outcome = self.sysctls.execute(std::slice::from_ref(sysctl)).pop();
                    outcomes
                        .push(outcome.map_or(Err(Error::OutcomeMissing), |done| done.map_err(Into::into)));
                }
                (Operation::EnsureJump { operation, .. }, _) => {
                    let outcome = self.rules.execute(std::slice::from_ref(&**operation)).pop();
                    outcomes
                        .push(outcome.map_or(Err(Error::OutcomeMissing), |done| done.map_err(Into::into)));
                }
                (Operation::EnsureAccounting(name), _) => {
                    outcomes.push(self.accounting.ensure(name).map_err(Into::into));
                }
                (Operation::Flows(flows), _) => {
                    outcomes.push(flows.execute(&mut *self.conntrack).map_err(Into::into));
                }
                (Operation::EnsureChain(ensure), _) => outcomes.push(self.ensure_chain(ensure)),
                (Operation::Write(_), None) => {}
            }
        }
        outcomes.extend(self.write_all(&writes));
        outcomes
    }

    fn ensure_chain(&mut self, ensure: &EnsureChain) -> Result<(), Error> {
        match self.rules.restore(&ensure.creation()) {
            Err(error) if !error.is_already_exists() => return Err(error.into()),
            _ => {}
        }
        for addition in ensure.additions() {
            self.rules.execute_one(addition)?;
        }
        Ok(())
    }

    fn most_edits(&mut self, family: Family) -> usize {
        match self.rules.variant(family) {
            Some(Variant::Nft) => MOST_EDITS_NFT,
            _ => MOST_EDITS,
        }
    }

    /// Passes writes of one family to the tool together. If one of them is refused, the others are passed again without it.
    fn write_all(&mut self, writes: &[&Write]) -> Vec<Result<(), Error>> {
        let mut outcomes: Vec<Option<Result<(), Error>>> = vec![None; writes.len()];
        self.write_parts(writes, &(0..writes.len()).collect::<Vec<_>>(), &[], &mut outcomes);
        outcomes
            .into_iter()
            .map(|outcome| outcome.unwrap_or(Err(Error::OutcomeMissing)))
            .collect()
    }

    /// Writes the parts with these positions, without the tables that are written already.
    fn write_parts(
        &mut self,
        writes: &[&Write],
        parts: &[usize],
        written: &[Table],
        outcomes: &mut [Option<Result<(), Error>>],
    ) {
        let mut set = |parts: &[usize], outcome: &Result<(), Error>| {
            for &part in parts {
                if let Some(place) = outcomes.get_mut(part) {
                    *place = Some(outcome.clone());
                }
            }
        };
        let Some(family) = parts
            .first()
            .and_then(|&part| writes.get(part))
            .map(|write| write.family())
        else {
            return;
        };
        let mut restore = Restore::new(family);
        // Table `filter` first for all parts: what restricts a Service is in place before its traffic is translated.
        let tables = [Table::Filter, Table::Nat].into_iter();
        for table in tables.filter(|table| !written.contains(table)) {
            for write in parts.iter().filter_map(|&part| writes.get(part)) {
                for (_, edits) in write.restore.tables().filter(|(of, _)| *of == table) {
                    restore.table_mut(table).extend(edits.iter().cloned());
                }
            }
        }
        if restore.is_empty() {
            return set(parts, &Ok(()));
        }
        let error = match self.rules.restore(&restore) {
            Ok(()) => return set(parts, &Ok(())),
            Err(error) => error,
        };
        drop(restore);
        let kernlink_iptables_restore::Error::Refused { refused, applied, .. } = &error else {
            // The tool could not be started, or its outcome is unknown: this is about all parts.
            let error = if written.is_empty() {
                error.into()
            } else {
                Error::PartlyWritten(error)
            };
            return set(parts, &Err(error));
        };
        if matches!(**refused, Refused::Whole(_)) {
            // Which tables are written is not known. To pass the edits again could execute them twice.
            return set(parts, &Err(error.into()));
        }
        // The tables before the refused one are written and stay as they are.
        let written: Vec<Table> = written.iter().chain(applied).copied().collect();
        let refusal = |part: usize| {
            let write = writes.get(part);
            let is_partly_written = write.is_some_and(|write| {
                let mut tables = write.restore.tables();
                tables.any(|(table, edits)| !edits.is_empty() && written.contains(&table))
            });
            if is_partly_written {
                Error::PartlyWritten(error.clone())
            } else {
                error.clone().into()
            }
        };
        let named = match &**refused {
            Refused::Edit { table, edit } => parts.iter().position(|&part| {
                writes
                    .get(part)
                    .is_some_and(|write| has_edit(write, *table, edit))
            }),
            _ => None,
        };
        match (named, parts) {
            (_, &[part]) => set(parts, &Err(refusal(part))),
            (Some(position), _) => {
                let (before, rest) = parts.split_at(position);
                let (refused, after) = rest.split_at(1);
                for &part in refused {
                    set(&[part], &Err(refusal(part)));
                }
                let others: Vec<usize> = before.iter().chain(after).copied().collect();
                self.write_parts(writes, &others, &written, outcomes);
            }
            (None, _) => {
                let (first, second) = parts.split_at(parts.len() / 2);
                self.write_parts(writes, first, &written, outcomes);
                self.write_parts(writes, second, &written, outcomes);
            }
        }
    }
}

fn edits_of(restore: &Restore) -> usize {
    restore.tables().map(|(_, edits)| edits.len()).sum()
}

fn has_edit(write: &Write, table: Table, edit: &Edit) -> bool {
    let mut tables = write.restore.tables();
    tables.any(|(of, edits)| of == table && edits.contains(edit))
}

impl fmt::Debug for Kernel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kernel").finish_non_exhaustive()
    }
}
