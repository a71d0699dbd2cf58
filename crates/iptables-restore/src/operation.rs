//! What can be done with the tables, whoever does it.

use std::fmt;

use crate::apply::apply;
use crate::desired::Jump;
use crate::error::Error;
use crate::family::Family;
use crate::restore::Restore;
use crate::rule::Rule;
use crate::ruleset::Ruleset;
use crate::table::Table;
use crate::wire::render::Style;

/// A change.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Operation {
    /// Gives an input to one `iptables-restore`.
    ///
    /// Doing it again is without effect for inputs that declare the chains they fill, and puts in a second
    /// time what they append or insert elsewhere.
    Restore(Restore),
    /// Puts a rule into a chain unless it is there: `iptables -C`, and if that finds nothing, `iptables -I` or `-A`.
    ///
    /// Needs no [`save`](Iptables::save), so it works where the table holds something that `iptables-save` cannot
    /// print. The places are coarser than those of [`diff`](crate::diff): [`Place::First`](crate::Place::First) and
    /// [`Place::Before`](crate::Place::Before) put the rule first, [`Place::Last`](crate::Place::Last) and
    /// [`Place::After`](crate::Place::After) put it last.
    ///
    /// In a chain that holds an nftables rule the tool cannot read, `-C` finds only what stands before that rule. If it finds
    /// nothing there, the rule is put first whatever its place, so that it is found the next time.
    ///
    /// Nobody is kept from writing between the two commands: if two programs do this with the same rule at the same time, it
    /// may be there twice.
    EnsureJump {
        /// Which tool.
        family: Family,
        /// The table of both chains.
        table: Table,
        /// The rule, its chain and its place. The chain it stands in and the chain it leads to must be there.
        jump: Box<Jump>,
    },
}

impl Operation {
    /// An [`Operation::EnsureJump`].
    pub fn ensure_jump(family: Family, table: Table, jump: Jump) -> Self {
        Operation::EnsureJump {
            family,
            table,
            jump: Box::new(jump),
        }
    }

    /// The family whose tables it changes.
    pub fn family(&self) -> Family {
        match self {
            Operation::Restore(restore) => restore.family,
            Operation::EnsureJump { family, .. } => *family,
        }
    }
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
            Operation::EnsureJump { family, table, jump } => {
                let tool = family.tool();
                let edit = jump.edit();
                write!(f, "{tool} -t {table} -C {}{} || ", jump.from, Shell(&jump.rule))?;
                write!(
                    f,
                    "{tool} -t {table} {} {}{}",
                    edit.option(),
                    jump.from,
                    Shell(&jump.rule)
                )
            }
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
    /// Whether what is not understood is skipped and recorded ([`Ruleset::unreadable`]) instead of refused.
    pub tolerant: bool,
}

impl Save {
    /// Every table that is there, without the counters of rules.
    pub fn all(family: Family) -> Self {
        Save {
            family,
            table: None,
            counters: false,
            tolerant: false,
        }
    }

    /// One table, without the counters of rules.
    pub fn table(family: Family, table: Table) -> Self {
        Save {
            family,
            table: Some(table),
            counters: false,
            tolerant: false,
        }
    }

    /// With the counters of rules.
    pub fn with_counters(mut self) -> Self {
        self.counters = true;
        self
    }

    /// Skips and records what is not understood, so that others' rules cannot keep ours from being read.
    ///
    /// Skipped are the lines that [`Ruleset::read_tolerant`] names, and tables that the tool fails to print because they hold
    /// nftables rules which it does not know: these are [`Ruleset::is_unreadable`]. If all tables are asked for and one of
    /// them fails, each of the five is asked for by name, which makes those that are not there.
    pub fn tolerant(mut self) -> Self {
        self.tolerant = true;
        self
    }
}

/// The tables of one network namespace: the kernel's through [`Command`](crate::Command), or tables in memory through `Fake`
/// (feature `fake`).
///
/// Your own implementation needs two methods: [`execute`](Self::execute) and [`save`](Self::save). A wrapper around a
/// [`Command`](crate::Command) should forward [`test`](Self::test) too: the provided one does not start `iptables-restore`.
/// [`Error::custom`] is for errors that do not come from the tools or the kernel.
///
/// ```
/// use kernlink_iptables_restore::{Error, Iptables, Operation, RestoreMode, Ruleset, Save};
///
/// /// Refuses inputs that would delete the rules of other programs.
/// struct Keeping<I>(I);
///
/// impl<I: Iptables> Iptables for Keeping<I> {
///     fn execute(&mut self, operations: &[Operation]) -> Vec<Result<(), Error>> {
///         let execute = |operation: &Operation| match operation {
///             Operation::Restore(restore) if restore.mode == RestoreMode::Replace => {
///                 Err(Error::custom("replace all rules", "other programs have rules on this host"))
///             }
///             operation => self.0.execute_one(operation.clone()),
///         };
///         operations.iter().map(execute).collect()
///     }
///
///     fn save(&mut self, request: &Save) -> Result<Ruleset, Error> {
///         self.0.save(request)
///     }
/// }
/// ```
pub trait Iptables: Send {
    /// Executes operations in order and returns one outcome for each, in order. A failed operation does not stop those
    /// behind it.
    ///
    /// [`Command`](crate::Command) starts one process for each [`Operation::Restore`], whatever the number of chains and
    /// rules in it, and none for an input without edits.
    fn execute(&mut self, operations: &[Operation]) -> Vec<Result<(), Error>>;

    /// Reads tables. `iptables-save`.
    ///
    /// # Errors
    ///
    /// [`Error::is_permission_denied`], [`Error::is_unsupported`] (no such tool or table); [`Error::is_unreadable`] if the
    /// tables hold what the tool cannot print or what is not understood, unless the request is
    /// [tolerant](Save::tolerant) or is for all tables and the tool succeeds without printing one
    /// ([`Ruleset::is_unreadable`]). No table at all is an empty [`Ruleset`].
    fn save(&mut self, request: &Save) -> Result<Ruleset, Error>;

    /// Checks an input and changes nothing. `iptables-restore --test`.
    ///
    /// An input that passes may still be refused by [`restore`](Self::restore): the kernel has not checked it. The provided
    /// method reads the tables by [`save`](Self::save) and restores into a copy in memory. It finds missing and existing
    /// chains, chains in use, missing rules, loops, and targets and matches in the wrong place; ipsets are taken as present,
    /// and matches and targets that this crate keeps verbatim are not checked.
    ///
    /// # Errors
    ///
    /// Those of [`restore`](Self::restore), and of [`save`](Self::save) from the provided method.
    fn test(&mut self, restore: &Restore) -> Result<(), Error> {
        restore.render_checked(Style::RESTORE)?;
        let mut ruleset = self.save(&Save::all(restore.family))?;
        let unreadable = &ruleset.unreadable_tables;
        if let Some(line) = restore.tables().find_map(|(table, _)| unreadable.get(&table)) {
            return Err(line.to_error());
        }
        apply(&mut ruleset, restore, None).map_err(|refusal| refusal.to_error(restore).of_a_test())
    }

    /// Executes one restore. `iptables-restore --noflush --counters`, without `--noflush` in mode
    /// [`Replace`](crate::RestoreMode::Replace).
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] with the refused edit and the tables that were changed before it; [`Error::Locked`].
    fn restore(&mut self, restore: &Restore) -> Result<(), Error> {
        self.execute_one(Operation::Restore(restore.clone()))
    }

    /// Adds a rule to a chain unless the chain has it; see [`Operation::EnsureJump`].
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] with the insertion; [`Error::is_not_found`] if one of the chains is not there; [`Error::Locked`].
    fn ensure_jump(&mut self, family: Family, table: Table, jump: &Jump) -> Result<(), Error> {
        self.execute_one(Operation::ensure_jump(family, table, jump.clone()))
    }

    /// Executes one operation.
    ///
    /// # Errors
    ///
    /// Those of the operation.
    fn execute_one(&mut self, operation: Operation) -> Result<(), Error> {
        self.execute(&[operation])
            .pop()
            .unwrap_or(Err(Error::OutcomeMissing))
    }
}

/// A rule as a shell takes it: in single quotes what is more than letters, digits and a few signs.
struct Shell<'r>(&'r Rule);

impl fmt::Display for Shell<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for word in self.0.words(Style::SAVE) {
            let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:,=+%@".contains(c);
            if !word.is_empty() && word.chars().all(plain) {
                write!(f, " {word}")?;
            } else {
                write!(f, " '{}'", word.replace('\'', "'\\''"))?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::desired::Place;

    #[test]
    fn a_jump_prints_as_commands_that_a_shell_reads_back() {
        let jump = Jump {
            from: "OUTPUT".parse().unwrap(),
            rule: "! -d 10.0.0.0/8 -m comment --comment \"it's mine\" -j KL-A"
                .parse()
                .unwrap(),
            place: Place::Last,
        };
        let operation = Operation::ensure_jump(Family::Ipv6, Table::Nat, jump);
        let rule = "'!' -d 10.0.0.0/8 -m comment --comment 'it'\\''s mine' -j KL-A";
        assert_eq!(
            operation.to_string(),
            format!("ip6tables -t nat -C OUTPUT {rule} || ip6tables -t nat -A OUTPUT {rule}")
        );
    }
}
