//! Errors.

// Circle of imports: an error holds the edit that the kernel refused, and every part of an edit is checked with this error type.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use kernlink_base::Family;

use crate::chain::ChainName;
use crate::restore::Edit;
use crate::table::Table;

/// An error of this crate. The predicates distinguish the cases; the text is for operators.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A value does not have the form that the kernel and the tools require.
    #[error("invalid {field} {value:?}: {reason}")]
    Invalid {
        /// The kind of value: `chain name`.
        field: &'static str,
        /// The value.
        value: String,
        /// What is wrong or what is valid.
        reason: &'static str,
    },
    /// A value is longer than the kernel or the tools can store.
    #[error("invalid {field} {value:?}: length {length} exceeds {limit} ({constant})")]
    TooLong {
        /// The kind of value: `chain name`.
        field: &'static str,
        /// The value.
        value: String,
        /// Its length in bytes or elements.
        length: usize,
        /// The maximum length.
        limit: usize,
        /// The constant or field of the kernel or the tools that sets the limit.
        constant: &'static str,
    },
    /// A line of the output of `iptables-save` could not be parsed.
    #[error("cannot parse line {line} of iptables-save output {text:?}: {reason}")]
    Parse {
        /// The number of the line, from 1; 0 if the tool failed to print a table.
        line: usize,
        /// The line.
        text: String,
        /// What is wrong or what was expected.
        reason: String,
    },
    /// The tool or the kernel refused an input. The tables in `applied` were changed; the refused table and those after it were not.
    #[error("{tool} refused {refused}: {text}")]
    Refused {
        /// The tool.
        tool: String,
        /// The refused part of the input.
        refused: Box<Refused>,
        /// The reason.
        kind: RefusedKind,
        /// The message of the tool, without numbers of lines if the refused part of the input is known: they differ from input to input.
        text: String,
        /// Exit status of the tool; `None` if a signal terminated it.
        status: Option<i32>,
        /// Tables of the input that were committed before the failure. Empty with [`Refused::Whole`], because the tool did not
        /// report where it failed: only reading the tables shows what was changed.
        applied: Vec<Table>,
    },
    /// Another process held the xtables lock during the whole wait. Nothing was changed.
    #[error("cannot take the xtables lock within {waited:?}{}", holder.as_ref().map(|holder| format!(": held by {holder}")).unwrap_or_default())]
    Locked {
        /// The wait.
        waited: Duration,
        /// The process that held it at the end, if it could be determined.
        holder: Option<LockHolder>,
    },
    /// The tool did not finish within the timeout and was killed. Tables that it had committed are changed; no table is changed
    /// partially.
    #[error("{tool} did not finish within {timeout:?} and was killed")]
    TimedOut {
        /// The tool.
        tool: String,
        /// The timeout.
        timeout: Duration,
    },
    /// The tool was killed or not started, because this process ends: see [`end_tools`](crate::end_tools). As after a timeout, no table is
    /// changed partially.
    #[error("{tool} was ended, because this process ends")]
    Ended {
        /// The tool.
        tool: String,
    },
    /// The tool wrote more than the output limit and was killed.
    #[error("{tool} wrote more than {limit} bytes and was killed")]
    TooMuchOutput {
        /// The tool.
        tool: String,
        /// The limit in bytes.
        limit: usize,
    },
    /// The tool does not exist or could not be started.
    #[error("cannot start {tool}: {text}")]
    NotStarted {
        /// The tool.
        tool: String,
        /// The kind of the I/O error.
        kind: io::ErrorKind,
        /// The text of the I/O error.
        text: String,
    },
    /// The lock file could not be opened or locked.
    #[error("cannot lock {}: {text}", path.display())]
    LockFile {
        /// The lock file.
        path: PathBuf,
        /// The kind of the I/O error.
        kind: io::ErrorKind,
        /// The text of the I/O error.
        text: String,
    },
    /// An implementation of [`Iptables`](crate::Iptables) other than the kernel's failed; see [`Error::custom`].
    #[error("cannot {action}")]
    Custom {
        /// What was attempted on what.
        action: String,
        /// Why it failed.
        #[source]
        cause: Cause,
    },
    /// An implementation of [`Iptables`](crate::Iptables) returned fewer outcomes than it was given operations.
    #[error("the outcome of the operation is unknown: the implementation of Iptables returned none")]
    OutcomeMissing,
    /// The output of the tool could not be parsed.
    #[error("unexpected output of {tool}: {text:?}")]
    Unexpected {
        /// The tool.
        tool: String,
        /// The output.
        text: String,
    },
}

/// The cause in [`Error::Custom`]: the text given to [`Error::custom`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Cause(pub String);

/// The part of an input that was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refused {
    /// One line.
    Edit {
        /// The table.
        table: Table,
        /// The edit.
        edit: Edit,
    },
    /// An unknown line of this table.
    Table(Table),
    /// A read, or an unknown part of the input: the tool named no line, for example because it had no permission or crashed.
    /// Only reading the tables shows what was changed.
    Whole(Family),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Refused::Edit { table, edit } => write!(f, "{edit:?} in table {table}", edit = edit.to_string()),
            Refused::Table(table) => write!(f, "table {table}"),
            Refused::Whole(family) => write!(f, "{family}"),
        }
    }
}

/// The reason of a refusal, from the message of the tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum RefusedKind {
    /// A chain, rule, set, match or target does not exist.
    NotFound,
    /// A chain exists already.
    AlreadyExists,
    /// Rules refer to the chain, or it contains rules.
    InUse,
    /// This kernel or tool does not support a match, target or table.
    Unsupported,
    /// The capability `CAP_NET_ADMIN` is missing.
    PermissionDenied,
    /// The kernel is out of memory, or another process changed the tables at the same time (exit status 4 without a reason).
    Resource,
    /// The table contains nftables rules that the tool does not support, so it cannot print the table or compare its rules.
    Unreadable,
    /// Any other reason: usually an invalid rule.
    Other,
}

/// The process that holds the lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LockHolder {
    /// Process ID in the PID namespace of this process.
    pub pid: u32,
    /// Its command line, up to 200 characters; empty if it could not be read.
    pub command: String,
}

impl fmt::Display for LockHolder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
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

    /// An error of an implementation of [`Iptables`](crate::Iptables) other than the kernel's. `action` is what was
    /// attempted on what, printed after "cannot". `cause` is the source. All predicates are false for this error.
    ///
    /// ```
    /// let error = kernlink_iptables_restore::Error::custom("restore table filter", "the table is reserved");
    /// assert_eq!(error.to_string(), "cannot restore table filter");
    /// assert_eq!(std::error::Error::source(&error).unwrap().to_string(), "the table is reserved");
    /// ```
    pub fn custom(action: impl Into<String>, cause: impl Into<String>) -> Self {
        Error::Custom {
            action: action.into(),
            cause: Cause(cause.into()),
        }
    }

    /// The same refusal of an input that was only checked.
    pub(crate) fn without_applied(mut self) -> Self {
        if let Error::Refused { applied, .. } = &mut self {
            applied.clear();
        }
        self
    }

    fn io_kind(&self) -> Option<io::ErrorKind> {
        match self {
            Error::NotStarted { kind, .. } | Error::LockFile { kind, .. } => Some(*kind),
            _ => None,
        }
    }

    fn kind(&self) -> Option<RefusedKind> {
        match self {
            Error::Refused { kind, .. } => Some(*kind),
            _ => None,
        }
    }

    /// Whether a chain, rule, set, match or target of the input does not exist.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.kind() == Some(RefusedKind::NotFound)
    }

    /// Whether a chain to be created exists already.
    #[must_use]
    pub fn is_already_exists(&self) -> bool {
        self.kind() == Some(RefusedKind::AlreadyExists)
    }

    /// Whether a chain to be deleted is referred to by rules or contains rules.
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        self.kind() == Some(RefusedKind::InUse)
    }

    /// Whether the kernel or the tool does not support the request, or the tool is not installed.
    #[must_use]
    pub fn is_unsupported(&self) -> bool {
        self.kind() == Some(RefusedKind::Unsupported) || self.io_kind() == Some(io::ErrorKind::NotFound)
    }

    /// Whether the process lacks the permission to change tables.
    #[must_use]
    pub fn is_permission_denied(&self) -> bool {
        self.kind() == Some(RefusedKind::PermissionDenied)
            || self.io_kind() == Some(io::ErrorKind::PermissionDenied)
    }

    /// Whether the tables contain what the tool cannot print or this crate cannot parse: a foreign rule with a line feed in a comment,
    /// a chain with a long name that was created with `nft`, or nftables rules that the tool does not support.
    ///
    /// [`Save::lenient`](crate::Save::lenient) skips all of these. A retry does not help. Never true because of a missing permission or
    /// tool.
    #[must_use]
    pub fn is_unreadable(&self) -> bool {
        matches!(self, Error::Parse { .. }) || self.kind() == Some(RefusedKind::Unreadable)
    }

    /// Whether a retry may succeed: the lock was held, the tool timed out, or the kernel was out of resources.
    #[must_use]
    pub fn is_temporary(&self) -> bool {
        matches!(self, Error::Locked { .. } | Error::TimedOut { .. })
            || self.kind() == Some(RefusedKind::Resource)
    }

    /// Whether the failed operation may have changed some or all of its tables: the tool was killed or crashed, or it named no line of its
    /// input. Only reading the tables shows what was changed.
    ///
    /// Also true if the tool was killed while reading tables, which changes nothing.
    #[must_use]
    pub fn is_outcome_unknown(&self) -> bool {
        match self {
            Error::TimedOut { .. }
            | Error::Ended { .. }
            | Error::TooMuchOutput { .. }
            | Error::OutcomeMissing => true,
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

    /// The matches and targets that the kernel or the tool lacks, as the message of a refusal names them: `physdev`, `REJECT`. A name after
    /// `-j` that is neither a chain nor a target is among them too. Empty for other errors.
    pub fn missing_extensions(&self) -> impl Iterator<Item = &str> {
        let text = match self {
            Error::Refused { text, .. } => text.as_str(),
            _ => "",
        };
        let names = |before: &'static str, after: &'static str| {
            let parts = text.split(before).skip(1);
            parts.filter_map(move |rest| rest.split_once(after).map(|(name, _)| name))
        };
        names("Extension ", " revision ")
            .chain(names("Couldn't load match `", "'"))
            .chain(names("Couldn't load target `", "'"))
    }

    /// Tables that were changed before the input was refused; empty for other errors, and if the tool named no line.
    #[must_use]
    pub fn applied(&self) -> &[Table] {
        match self {
            Error::Refused { applied, .. } => applied,
            _ => &[],
        }
    }

    /// The chain of the refused line, if the line is known.
    #[must_use]
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
