//! What can be done with the tables, whoever does it.

use std::fmt;

use crate::error::Error;
use crate::family::Family;
use crate::restore::Restore;
use crate::ruleset::Ruleset;
use crate::table::Table;

/// A change.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Operation {
    /// Gives an input to one `iptables-restore`.
    ///
    /// Doing it again is without effect for inputs that declare the chains they fill, and puts in a second
    /// time what they append or insert elsewhere.
    Restore(Restore),
}

impl From<Restore> for Operation {
    fn from(restore: Restore) -> Self {
        Operation::Restore(restore)
    }
}

impl fmt::Display for Operation {
    /// As a shell would run it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Operation::Restore(restore) => restore.fmt(f),
        }
    }
}

/// What is to be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Save {
    /// Which tool.
    pub family: Family,
    /// Only this table; none for every table that is there. A table that is asked for by name is made if it
    /// is not there and the kernel can.
    pub table: Option<Table>,
    /// Whether the counters of the rules are wanted; those of policies always come.
    pub counters: bool,
}

impl Save {
    /// Every table that is there, without the counters of rules.
    pub fn all(family: Family) -> Self {
        Save {
            family,
            table: None,
            counters: false,
        }
    }

    /// One table, without the counters of rules.
    pub fn table(family: Family, table: Table) -> Self {
        Save {
            family,
            table: Some(table),
            counters: false,
        }
    }

    /// With the counters of rules.
    pub fn with_counters(mut self) -> Self {
        self.counters = true;
        self
    }
}

/// The tables of one network namespace.
pub trait Iptables: Send {
    /// Does each operation, in order, and says how each went. The outcomes are as many as the operations and
    /// in their order. An operation that fails does not keep those after it from being tried.
    ///
    /// One process is started for each operation, whatever the number of chains and rules in it; none for an
    /// operation that changes nothing.
    fn execute(&mut self, operations: &[Operation]) -> Vec<Result<(), Error>>;

    /// Reads tables. `iptables-save`.
    ///
    /// # Errors
    ///
    /// [`Error::is_permission_denied`], [`Error::is_unsupported`] (no such tool or table). No table at all is an
    /// empty [`Ruleset`].
    fn save(&mut self, request: &Save) -> Result<Ruleset, Error>;

    /// Has an input checked and changes nothing. `iptables-restore --test`.
    ///
    /// An input that passes may still be refused: the kernel has not seen it.
    ///
    /// # Errors
    ///
    /// As for [`restore`](Self::restore).
    fn test(&mut self, restore: &Restore) -> Result<(), Error>;

    /// Does one restore. `iptables-restore --noflush --counters`, without `--noflush` in mode
    /// [`Replace`](crate::RestoreMode::Replace).
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] with the edit that caused it and the tables that stand; [`Error::Locked`].
    fn restore(&mut self, restore: &Restore) -> Result<(), Error> {
        let outcome = self.execute(&[Operation::Restore(restore.clone())]).pop();
        outcome.unwrap_or_else(|| {
            Err(Error::Unexpected {
                tool: restore.family.tool().into(),
                text: "gave no outcome".into(),
            })
        })
    }
}
