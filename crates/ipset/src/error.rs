//! Errors.

use std::fmt;

use kernlink_netlink::Errno;

use crate::element::Mismatch;
use crate::operation::Action;
use crate::reason::Reason;
use crate::set_type::SetType;
use crate::uapi::IPSET_ERR_PROTOCOL;

/// Why an action failed. The text names the action; the cause is the [source](std::error::Error::source).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel refused the action.
    #[error("cannot {action}")]
    Refused {
        /// What was attempted.
        action: Box<Action>,
        /// Why.
        #[source]
        refusal: Box<Refusal>,
    },
    /// The set cannot hold such an entry. Nothing was sent.
    #[error("cannot {action}: {mismatch}")]
    InvalidEntry {
        /// What was attempted.
        action: Box<Action>,
        /// The set's type, the dimension and the reason.
        mismatch: Box<Mismatch>,
    },
    /// An option of a set or of an entry is not valid for the set type, or has an invalid value. Nothing was sent.
    #[error("cannot {action}: {problem}")]
    InvalidOption {
        /// What was attempted.
        action: Box<Action>,
        /// The option and the reason.
        problem: Box<InvalidOption>,
    },
    /// The running kernel is too old. Nothing was sent.
    #[error("cannot {action}: {unsupported}")]
    Unsupported {
        /// What was attempted.
        action: Box<Action>,
        /// The missing feature, and the first kernel that has it.
        unsupported: Box<Unsupported>,
    },
    /// The set or sets changed during every attempt to list them.
    #[error("cannot {action}: changed by another process during all {attempts} attempts")]
    Changed {
        /// What was attempted.
        action: Box<Action>,
        /// The number of attempts.
        attempts: u32,
    },
    /// An earlier operation failed and the caller requested to stop at the first failure, or the kernel did not answer an earlier
    /// operation within the connection's timeout.
    #[error("not attempted after an earlier failure")]
    NotAttempted,
    /// An implementation of [`IpSets`](crate::IpSets) other than [`Client`](crate::Client) failed; see [`Error::custom`].
    #[error("cannot {action}")]
    Custom {
        /// What was attempted.
        action: Box<Action>,
        /// Why it failed.
        #[source]
        cause: Box<Cause>,
    },
    /// An implementation of [`IpSets`](crate::IpSets) does not have this method.
    #[error("cannot {action}: not supported by this implementation of IpSets")]
    NotImplemented {
        /// What was attempted.
        action: Box<Action>,
    },
    /// An implementation of [`IpSets`](crate::IpSets) returned fewer outcomes than it was given operations.
    #[error("the outcome of the operation is unknown: the implementation of IpSets returned none")]
    OutcomeMissing,
    /// The netlink connection failed. The kernel may have executed the operation if
    /// [`is_outcome_unknown`](kernlink_netlink::Error::is_outcome_unknown) is true for the source.
    #[error("cannot {action}")]
    Netlink {
        /// What was attempted.
        action: Box<Action>,
        /// The failure.
        #[source]
        error: Box<kernlink_netlink::Error>,
    },
}

/// The cause in [`Error::Custom`]: the text given to [`Error::custom`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Cause(pub String);

/// A refusal by the kernel: its error number, and the meaning of the number for the action.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refusal {
    /// The meaning of the number for this command and set type.
    pub reason: Reason,
    /// The number, and the kernel's message if it sent one.
    pub kernel: kernlink_netlink::Refusal,
}

/// An invalid option of a set or entry.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct InvalidOption {
    /// The name in the notation of ipset(8), such as `maxelem`.
    pub option: &'static str,
    /// Why it is invalid.
    pub reason: Box<str>,
}

/// A feature that the running kernel does not have.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unsupported {
    /// The feature, such as `bitmask of hash:ip`.
    pub what: Box<str>,
    /// The first revision of the set type with the feature; `None` if the feature does not depend on a revision.
    pub needed_revision: Option<u8>,
    /// The newest revision of the set type in the running kernel; `None` if the kernel does not have the type, or if the feature
    /// does not depend on a revision.
    pub kernel_revision: Option<u8>,
    /// The first kernel with the feature, as `major.minor`.
    pub first_kernel: &'static str,
}

impl Error {
    /// An error of an implementation of [`IpSets`](crate::IpSets) other than [`Client`](crate::Client). `action` is the
    /// [`Operation`](crate::Operation), or a text that is printed after "cannot". `cause` is the source. All predicates are false
    /// for this error.
    ///
    /// ```
    /// let set = kernlink_ipset::SetName::new("KUBE-CLUSTER-IP").unwrap();
    /// let error = kernlink_ipset::Error::custom(kernlink_ipset::Operation::destroy(set), "the set is reserved");
    /// assert_eq!(error.to_string(), "cannot destroy KUBE-CLUSTER-IP");
    /// assert_eq!(std::error::Error::source(&error).unwrap().to_string(), "the set is reserved");
    /// ```
    #[must_use]
    pub fn custom(action: impl Into<Action>, cause: impl Into<String>) -> Self {
        Error::Custom {
            action: Box::new(action.into()),
            cause: Box::new(Cause(cause.into())),
        }
    }

    pub(crate) fn not_implemented(action: Action) -> Self {
        Error::NotImplemented {
            action: Box::new(action),
        }
    }

    /// The meaning of a refusal by the kernel; `None` for other errors.
    #[must_use]
    pub fn reason(&self) -> Option<Reason> {
        match self {
            Error::Refused { refusal, .. } => Some(refusal.reason),
            _ => None,
        }
    }

    /// Whether the set, entry or member does not exist.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        matches!(
            self.reason(),
            Some(
                Reason::NoSuchSet
                    | Reason::NoSuchSecondSet
                    | Reason::NoSuchEntry
                    | Reason::NoSuchMember
                    | Reason::NoSuchReference
                    | Reason::ReferenceNotInList
            )
        )
    }

    /// Whether the set or entry exists already.
    #[must_use]
    pub fn is_already_exists(&self) -> bool {
        matches!(
            self.reason(),
            Some(Reason::SetExists { .. } | Reason::EntryExists)
        )
    }

    /// Whether the running kernel, or the implementation of [`IpSets`](crate::IpSets), does not support the action.
    #[must_use]
    pub fn is_unsupported(&self) -> bool {
        matches!(self, Error::Unsupported { .. } | Error::NotImplemented { .. })
            || matches!(self.reason(), Some(Reason::UnknownType | Reason::NoIpset))
            // The kernel has no netlink of netfilter.
            || matches!(self, Error::Netlink { error, .. } if error.errno() == Some(Errno::EPROTONOSUPPORT))
    }

    /// Whether the caller lacks `CAP_NET_ADMIN`.
    #[must_use]
    pub fn is_permission_denied(&self) -> bool {
        matches!(self.reason(), Some(Reason::PermissionDenied))
            || matches!(self, Error::Netlink { error, .. } if matches!(error.errno(), Some(Errno::EPERM | Errno::EACCES)))
    }

    /// Whether a rule or list uses the set, or another process was listing it during every attempt.
    #[must_use]
    pub fn is_busy(&self) -> bool {
        matches!(self.reason(), Some(Reason::Busy))
    }

    /// Whether the set has the maximum number of entries.
    #[must_use]
    pub fn is_full(&self) -> bool {
        matches!(self.reason(), Some(Reason::Full { .. }))
    }

    /// Whether the entry or an option is not valid for the set. Nothing was sent to the kernel.
    #[must_use]
    pub fn is_invalid(&self) -> bool {
        matches!(self, Error::InvalidEntry { .. } | Error::InvalidOption { .. })
    }

    /// Whether this is [`Error::NotAttempted`]. The operation was not sent.
    #[must_use]
    pub fn is_not_attempted(&self) -> bool {
        matches!(self, Error::NotAttempted)
    }

    /// Whether the operation may have been executed: its answer was lost, or did not arrive within the timeout.
    #[must_use]
    pub fn is_outcome_unknown(&self) -> bool {
        match self {
            Error::Netlink { error, .. } => error.is_outcome_unknown(),
            Error::OutcomeMissing => true,
            _ => false,
        }
    }

    /// Whether the kernel did not answer, or the socket failed. Nothing more should be sent then.
    pub(crate) fn is_unanswered(&self) -> bool {
        use kernlink_netlink::Error::{Socket, TimedOut};
        matches!(self, Error::Netlink { error, .. } if matches!(**error, TimedOut | Socket { .. }))
    }

    /// The error for a failed request: a refusal with its meaning, or a failure of the connection.
    pub(crate) fn new(action: Action, error: kernlink_netlink::Error, set_type: Option<SetType>) -> Self {
        let action = Box::new(action);
        match error {
            kernlink_netlink::Error::NotSent => Error::NotAttempted,
            kernlink_netlink::Error::Refused(kernel) => {
                let reason = Reason::of(kernel.errno, &action, set_type);
                Error::Refused {
                    action,
                    refusal: Box::new(Refusal { reason, kernel }),
                }
            }
            error => Error::Netlink {
                action,
                error: Box::new(error),
            },
        }
    }

    pub(crate) fn invalid_option(action: Action, option: &'static str, reason: impl Into<Box<str>>) -> Self {
        let problem = Box::new(InvalidOption {
            option,
            reason: reason.into(),
        });
        Error::InvalidOption {
            action: Box::new(action),
            problem,
        }
    }

    pub(crate) fn invalid_entry(action: Action, mismatch: Mismatch) -> Self {
        Error::InvalidEntry {
            action: Box::new(action),
            mismatch: Box::new(mismatch),
        }
    }

    pub(crate) fn of_errno(action: Action, errno: Errno, set_type: Option<SetType>) -> Self {
        Self::new(
            action,
            kernlink_netlink::Error::Refused(kernlink_netlink::Refusal::new(errno)),
            set_type,
        )
    }

    /// The same error with another action, for example the operation on a range instead of the one on an entry of the range.
    pub(crate) fn with_action(mut self, new: Action) -> Self {
        match &mut self {
            Error::Refused { action, .. }
            | Error::InvalidEntry { action, .. }
            | Error::InvalidOption { action, .. }
            | Error::Unsupported { action, .. }
            | Error::Changed { action, .. }
            | Error::Custom { action, .. }
            | Error::NotImplemented { action }
            | Error::Netlink { action, .. } => **action = new,
            Error::NotAttempted | Error::OutcomeMissing => {}
        }
        self
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.reason, self.kernel.errno) {
            (Reason::Other(_), errno) if errno.0 < IPSET_ERR_PROTOCOL => write!(f, "{}", self.kernel)?,
            (reason, errno) => {
                write!(f, "{reason} (error {})", errno.0)?;
                if let Some(message) = &self.kernel.message {
                    write!(f, ": {message}")?;
                }
            }
        }
        Ok(())
    }
}

impl std::error::Error for Refusal {}

impl fmt::Display for InvalidOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.option, self.reason)
    }
}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} requires Linux {} or newer", self.what, self.first_kernel)?;
        match (self.needed_revision, self.kernel_revision) {
            (Some(needed), Some(has)) => {
                write!(
                    f,
                    " (revision {needed} of the set type; this kernel has revision {has})"
                )
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outcome_takes_no_more_than_24_bytes() {
        assert!(
            size_of::<Result<(), Error>>() <= 24,
            "{}",
            size_of::<Result<(), Error>>()
        );
    }
}
