//! What can go wrong.

use std::time::Duration;

use crate::chain::ChainName;
use crate::family::Family;
use crate::restore::Edit;
use crate::table::Table;

/// Errors of this crate. One can be handed out per operation of a batch.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A value does not have the form the kernel or the tools need.
    #[error("{field} {value:?} {reason}")]
    Invalid {
        /// Which value.
        field: &'static str,
        /// What was given.
        value: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// A value is longer than the kernel or the tools keep.
    #[error("{field} {value:?} has length {length}, more than {limit} ({constant})")]
    TooLong {
        /// Which value.
        field: &'static str,
        /// What was given.
        value: String,
        /// Its length, in bytes or elements.
        length: usize,
        /// The greatest length.
        limit: usize,
        /// Where the limit comes from.
        constant: &'static str,
    },
    /// A text is not what `iptables-save` prints.
    #[error("line {line} of the saved rule set ({text:?}) {reason}")]
    Parse {
        /// Line, counted from 1.
        line: usize,
        /// The line.
        text: String,
        /// What is wrong with it.
        reason: String,
    },
    /// The tool or the kernel refused an input. The tables in `applied` stand; of the refused table and
    /// those after it nothing does.
    #[error("{tool} refused {refused}: {text}")]
    Refused {
        /// The tool.
        tool: String,
        /// What was refused, as narrowly as could be found out.
        refused: Box<Refused>,
        /// Why, sorted for callers.
        kind: RefusedKind,
        /// The tool's own words.
        text: String,
        /// Exit status of the tool; none if a signal ended it.
        status: Option<i32>,
        /// Tables of the input whose COMMIT was done before: these stand. Empty with [`Refused::Whole`], where
        /// the tool named no place and only reading the tables tells.
        applied: Vec<Table>,
    },
    /// Another process held the lock of the tables all the time we were willing to wait. Nothing was done.
    #[error("the xtables lock was held for {waited:?}{}", holder.as_ref().map(|holder| format!(" by {holder}")).unwrap_or_default())]
    Locked {
        /// How long we waited.
        waited: Duration,
        /// Who held it at the end, if that could be seen.
        holder: Option<LockHolder>,
    },
    /// The tool did not end within the time limit and was killed. What it had committed stands; a table is
    /// there whole or not at all.
    #[error("{tool} did not end within {limit:?} and was killed")]
    TimedOut {
        /// The tool.
        tool: String,
        /// The limit.
        limit: Duration,
    },
    /// The tool wrote more than we are willing to take.
    #[error("{tool} wrote more than {limit} bytes and was killed")]
    TooMuchOutput {
        /// The tool.
        tool: String,
        /// The limit in bytes.
        limit: usize,
    },
    /// The tool is not there or could not be started.
    #[error("starting {tool}: {text}")]
    NotStarted {
        /// The tool or the file.
        tool: String,
        /// Kind of the system's error.
        kind: std::io::ErrorKind,
        /// The system's words.
        text: String,
    },
    /// An implementation of [`Iptables`](crate::Iptables) other than the kernel's failed; see [`Error::custom`].
    #[error("cannot {attempt}")]
    Custom {
        /// What was attempted on what.
        attempt: String,
        /// Why it failed.
        #[source]
        cause: Cause,
    },
    /// An implementation of [`Iptables`](crate::Iptables) returned fewer outcomes than it was given operations.
    #[error("cannot tell what became of the operation: the backend returned no outcome for it")]
    OutcomeMissing,
    /// The tool said something that could not be understood.
    #[error("{tool} answered something unexpected: {text}")]
    Unexpected {
        /// The tool.
        tool: String,
        /// What it said.
        text: String,
    },
}

/// The cause in [`Error::Custom`]: the text given to [`Error::custom`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Cause(pub String);

/// What was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refused {
    /// This line of the input.
    Edit {
        /// Table it stands in.
        table: Table,
        /// The line.
        edit: Edit,
    },
    /// Something in this table that could not be narrowed down.
    Table(Table),
    /// Reading, or an input as a whole: the tool named no place, for instance because it was not allowed to do
    /// anything, or died. Then only reading the tables tells what stands.
    Whole(Family),
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Refused::Edit { table, edit } => write!(f, "{edit:?} in table {table}", edit = edit.to_string()),
            Refused::Table(table) => write!(f, "table {table}"),
            Refused::Whole(family) => write!(f, "{family}"),
        }
    }
}

/// Why something was refused, as far as the tools' words tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RefusedKind {
    /// A chain, a rule, a set, a match or a target that is not there.
    NotFound,
    /// A chain that is there already.
    AlreadyExists,
    /// A chain that rules refer to or that still holds rules.
    InUse,
    /// A match, target or table that this kernel or tool does not have.
    Unsupported,
    /// The capability `CAP_NET_ADMIN` is missing.
    PermissionDenied,
    /// The kernel had no memory left, or was changed under the tool (exit status 4 without more).
    Resource,
    /// The table holds nftables rules that the tool does not know, so it cannot print the table or compare rules with
    /// those in it.
    Unreadable,
    /// Anything else: most of all a rule that makes no sense.
    Other,
}

/// Who holds the lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockHolder {
    /// Process number, as seen from our own process namespace.
    pub pid: u32,
    /// The first words of its command line; empty if it could not be read.
    pub command: String,
}

impl std::fmt::Display for LockHolder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "process {}", self.pid)?;
        if !self.command.is_empty() {
            write!(f, " ({})", self.command)?;
        }
        Ok(())
    }
}

impl Error {
    pub(crate) fn invalid(field: &'static str, value: &str, reason: &'static str) -> Self {
        Error::Invalid {
            field,
            value: value.into(),
            reason,
        }
    }

    /// An error of an implementation of [`Iptables`](crate::Iptables) other than the kernel's. `attempt` says what was
    /// attempted on what and is printed after "cannot". `cause` is the source. All predicates are false for this error.
    ///
    /// ```
    /// let error = kernlink_iptables_restore::Error::custom("restore table filter", "the table is reserved");
    /// assert_eq!(error.to_string(), "cannot restore table filter");
    /// assert_eq!(std::error::Error::source(&error).unwrap().to_string(), "the table is reserved");
    /// ```
    pub fn custom(attempt: impl Into<String>, cause: impl Into<String>) -> Self {
        Error::Custom {
            attempt: attempt.into(),
            cause: Cause(cause.into()),
        }
    }

    /// The same refusal of an input that was only checked: no table of it was changed.
    pub(crate) fn of_a_test(mut self) -> Self {
        if let Error::Refused { applied, .. } = &mut self {
            applied.clear();
        }
        self
    }

    fn kind(&self) -> Option<RefusedKind> {
        match self {
            Error::Refused { kind, .. } => Some(*kind),
            _ => None,
        }
    }

    /// A chain, rule, set, match or target that the input names is not there.
    pub fn is_not_found(&self) -> bool {
        self.kind() == Some(RefusedKind::NotFound)
    }

    /// A chain to be made is there already.
    pub fn is_already_exists(&self) -> bool {
        self.kind() == Some(RefusedKind::AlreadyExists)
    }

    /// A chain to be deleted is referred to, or holds rules.
    pub fn is_in_use(&self) -> bool {
        self.kind() == Some(RefusedKind::InUse)
    }

    /// This kernel or this tool does not have what is asked for, or the tool is not installed.
    pub fn is_unsupported(&self) -> bool {
        self.kind() == Some(RefusedKind::Unsupported)
            || matches!(
                self,
                Error::NotStarted {
                    kind: std::io::ErrorKind::NotFound,
                    ..
                }
            )
    }

    /// The process may not change tables.
    pub fn is_permission_denied(&self) -> bool {
        self.kind() == Some(RefusedKind::PermissionDenied)
            || matches!(
                self,
                Error::NotStarted {
                    kind: std::io::ErrorKind::PermissionDenied,
                    ..
                }
            )
    }

    /// The tables could be read, but not printed by the tool or not understood by us: they hold a rule of somebody else with a
    /// line feed in a text, a chain that was made with `nft` and has a long name, or nftables rules that the tool does not know.
    ///
    /// [`Save::tolerant`](crate::Save::tolerant) reads past all of these. Trying again does not help; neither does a missing
    /// permission or tool lead to this.
    pub fn is_unreadable(&self) -> bool {
        matches!(self, Error::Parse { .. }) || self.kind() == Some(RefusedKind::Unreadable)
    }

    /// Trying again later may help: the lock was held, the time was up, or the kernel lacked something.
    pub fn is_temporary(&self) -> bool {
        matches!(self, Error::Locked { .. } | Error::TimedOut { .. })
            || self.kind() == Some(RefusedKind::Resource)
    }

    /// The operation may have been executed, wholly or for some of its tables, although it failed: the tool was killed or died,
    /// or it named no place in its input. Only reading the tables shows what is there.
    ///
    /// Also true of a tool that was killed while it read the tables, which changes nothing.
    pub fn is_outcome_unknown(&self) -> bool {
        match self {
            Error::TimedOut { .. } | Error::TooMuchOutput { .. } | Error::OutcomeMissing => true,
            Error::Refused {
                refused,
                kind,
                status,
                ..
            } => {
                let is_unchanged = matches!(kind, RefusedKind::PermissionDenied | RefusedKind::Unreadable);
                status.is_none() || (matches!(**refused, Refused::Whole(_)) && !is_unchanged)
            }
            _ => false,
        }
    }

    /// Tables that stand although the input as a whole was refused; empty for other errors, and where the tool
    /// named no place.
    pub fn applied(&self) -> &[Table] {
        match self {
            Error::Refused { applied, .. } => applied,
            _ => &[],
        }
    }

    /// The chain that the refused line is about, if it is known.
    pub fn chain(&self) -> Option<&ChainName> {
        match self {
            Error::Refused { refused, .. } => match refused.as_ref() {
                Refused::Edit { edit, .. } => Some(edit.chain()),
                _ => None,
            },
            _ => None,
        }
    }
}
