//! nftables mode on a node that it does not serve any more.

use std::fmt::Write;
use std::time::Instant;

use kernlink_base::ErrorChain;
use kernlink_engine::retire::{Leftovers, Removed, Retire};
use kernlink_nftables::{Error, ItemKey, Operation, TableKey};
use kernlink_services::Family;

use crate::kernel::Kernel;
use crate::layout::{KUBE_PROXY_TABLE, Slot};

/// Finds and removes what nftables mode left: its tables, and those of kube-proxy's nftables mode.
#[derive(Debug)]
pub struct Retiring(Kernel);

impl Retiring {
    /// Through these kernel APIs.
    #[must_use]
    pub fn new(kernel: Kernel) -> Self {
        Self(kernel)
    }

    /// The tables that exist, and why those of a family could not be read.
    fn tables(&mut self) -> (Vec<TableKey>, Vec<String>) {
        let (mut found, mut problems) = (Vec::new(), Vec::new());
        for family in Family::ALL {
            match self.0.tables.tables(Some(family.into())) {
                Ok(tables) => {
                    let tables = tables.into_iter().map(|table| table.key);
                    found.extend(tables.filter(|table| is_owned(family, table)));
                }
                // Without nf_tables there is no table.
                Err(error) if error.is_unsupported() => {}
                Err(error) => problems.push(ErrorChain(&error).to_string()),
            }
        }
        (found, problems)
    }
}

/// Whether a table is of nftables mode, of kernlink or of kube-proxy.
fn is_owned(family: Family, table: &TableKey) -> bool {
    *table.name == *KUBE_PROXY_TABLE || Slot::ALL.into_iter().any(|slot| slot.table(family) == *table)
}

impl Retire for Retiring {
    fn leftovers(&mut self, _now: Instant) -> Leftovers {
        let (tables, problems) = self.tables();
        let mut left = Leftovers::default();
        for table in tables {
            // Writing to a string does not fail.
            let _ = writeln!(left.commands, "nft delete table {table}");
        }
        left.problems = problems;
        left
    }

    fn remove(&mut self, _now: Instant) -> Removed {
        let (tables, problems) = self.tables();
        let mut removed = Removed::default();
        removed.failures = problems;
        for table in tables {
            let operation = Operation::delete(ItemKey::Table(table.clone()));
            match self.0.tables.apply(&[operation]) {
                Ok(()) => removed.done += 1,
                Err(error) if error.is_not_found() => {}
                Err(error) => removed.failures.push(failure(&table, &error)),
            }
        }
        removed
    }
}

fn failure(table: &TableKey, error: &Error) -> String {
    format!("table {table} cannot be deleted: {}", ErrorChain(error))
}
