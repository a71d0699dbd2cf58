//! Errors.

use kernlink_netlink::Errno;

use crate::notation::{Brief, OneElement};
use crate::operation::Operation;
use crate::reason::Reason;
use crate::requirement::Requirement;
use crate::validation::InvalidOperation;

/// An error of nf_tables. The predicates (`is_...`) distinguish the cases without error numbers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel refused an operation. Nothing of its transaction was executed.
    #[error("cannot {operation}")]
    Refused {
        /// The operation, as it prints; of an operation on elements the refused one, if the kernel named it.
        operation: Box<str>,
        /// The index of the refused element among those of the operation, if the kernel named it. It names only the first one of
        /// a message.
        element: Option<usize>,
        /// The reason.
        #[source]
        reason: Reason,
    },
    /// The kernel refused the transaction as a whole. Nothing of it was executed.
    #[error("cannot execute the transaction")]
    TransactionRefused {
        /// The reason.
        #[source]
        reason: Reason,
    },
    /// The ruleset is not of the generation that the transaction requires: another program changed it. Nothing of the transaction was
    /// executed. Read again what the transaction depends on.
    #[error("the ruleset is not of generation {required}: another program changed it")]
    GenerationChanged {
        /// The generation that the transaction requires.
        required: u32,
    },
    /// The operation was not executed, because another one of its transaction was refused or invalid.
    #[error("not executed, because operation {refused} of the transaction was refused")]
    NotExecuted {
        /// The index of the first operation that was refused or invalid.
        refused: usize,
    },
    /// The operation is invalid. Nothing of its transaction was sent.
    #[error("invalid operation: {operation}")]
    Invalid {
        /// The operation, as it prints.
        operation: Box<str>,
        /// The reason.
        #[source]
        problem: InvalidOperation,
    },
    /// The transaction could not be sent, or its outcome was not received; see [`is_outcome_unknown`](Error::is_outcome_unknown).
    #[error("cannot execute the transaction")]
    Failed {
        /// The cause.
        #[source]
        source: kernlink_netlink::Error,
    },
    /// A request that does not change the ruleset failed.
    #[error("cannot {attempt}")]
    Request {
        /// The attempted action, in the infinitive.
        attempt: Box<str>,
        /// The cause.
        #[source]
        source: kernlink_netlink::Error,
    },
    /// A request that the running kernel is too old for.
    #[error("cannot {attempt}: {requirement}")]
    Unsupported {
        /// The attempted action, in the infinitive.
        attempt: Box<str>,
        /// What the kernel does not have.
        requirement: Requirement,
        /// Its answer.
        #[source]
        source: kernlink_netlink::Error,
    },
    /// The ruleset changed during each attempt to read it.
    #[error("cannot {attempt}: changed by another program during all {attempts} attempts")]
    Interrupted {
        /// The attempted action, in the infinitive.
        attempt: Box<str>,
        /// The number of attempts.
        attempts: u32,
    },
    /// An error of another implementation of [`Nftables`](crate::Nftables); see [`Error::custom`].
    #[error("cannot {attempt}")]
    Custom {
        /// The attempted action and its object, in the infinitive.
        attempt: String,
        /// The cause.
        #[source]
        cause: Cause,
    },
    /// An implementation of [`Nftables`](crate::Nftables) returned fewer outcomes than it was given operations.
    #[error("the outcome of the operation is unknown: the implementation of Nftables returned none")]
    OutcomeMissing,
}

/// The cause of [`Error::Custom`]: the text given to [`Error::custom`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Cause(pub String);

impl Error {
    /// An error of another implementation of [`Nftables`](crate::Nftables). `attempt` is the attempted action and its object,
    /// printed after "cannot". `cause` is the source. All predicates are false for this error.
    ///
    /// ```
    /// let error = kernlink_nftables::Error::custom("delete table ip web", "the table is protected");
    /// assert_eq!(error.to_string(), "cannot delete table ip web");
    /// assert_eq!(std::error::Error::source(&error).unwrap().to_string(), "the table is protected");
    /// ```
    #[must_use]
    pub fn custom(attempt: impl Into<String>, cause: impl Into<String>) -> Self {
        Error::Custom {
            attempt: attempt.into(),
            cause: Cause(cause.into()),
        }
    }

    pub(crate) fn refused(operation: &Operation, element: Option<usize>, reason: Reason) -> Self {
        Error::Refused {
            operation: match element {
                Some(element) => OneElement(operation, element).to_string().into(),
                None => Brief(operation).to_string().into(),
            },
            element,
            reason,
        }
    }

    /// The same refusal, of this element of its operation.
    pub(crate) fn at_element(&self, index: usize) -> Self {
        let mut error = self.clone();
        if let Error::Refused { element, .. } = &mut error {
            *element = Some(index);
        }
        error
    }

    /// The error number, if the kernel refused a request or a system call failed.
    #[must_use]
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Error::Refused { reason, .. } | Error::TransactionRefused { reason } => {
                Some(reason.refusal.errno)
            }
            Error::GenerationChanged { .. } => Some(Errno::ERESTART),
            Error::Failed { source } | Error::Request { source, .. } | Error::Unsupported { source, .. } => {
                source.errno()
            }
            _ => None,
        }
    }

    fn is(&self, errno: Errno) -> bool {
        self.errno() == Some(errno)
    }

    /// What the operation or request uses and the running kernel is too old for.
    #[must_use]
    pub fn requirement(&self) -> Option<Requirement> {
        match self {
            Error::Refused { reason, .. } => reason.requirement,
            Error::Unsupported { requirement, .. } => Some(*requirement),
            _ => None,
        }
    }

    /// Something that the operation names does not exist (`ENOENT`). False if the kernel is too old for the operation: it answers the same
    /// for an unknown expression.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        self.is(Errno::ENOENT) && self.requirement().is_none()
    }

    /// It exists already, or exists with other properties (`EEXIST`).
    #[must_use]
    pub fn is_already_exists(&self) -> bool {
        self.is(Errno::EEXIST)
    }

    /// It is used by a rule, an element or a chain (`EBUSY`).
    #[must_use]
    pub fn is_busy(&self) -> bool {
        self.is(Errno::EBUSY)
    }

    /// The set is full (`ENFILE`).
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.is(Errno::ENFILE)
    }

    /// Jumps form a loop or are too deep (`EMLINK`).
    #[must_use]
    pub fn is_loop(&self) -> bool {
        self.is(Errno::EMLINK)
    }

    /// Another socket owns the table, or `CAP_NET_ADMIN` is missing (`EPERM`).
    #[must_use]
    pub fn is_permission_denied(&self) -> bool {
        self.is(Errno::EPERM) || self.is(Errno::EACCES)
    }

    /// The kernel does not support it: `EOPNOTSUPP`, `EPROTONOSUPPORT`, or it is too old for it; then [`requirement`](Self::requirement)
    /// names the feature.
    #[must_use]
    pub fn is_unsupported(&self) -> bool {
        self.requirement().is_some() || self.is(Errno::EOPNOTSUPP) || self.is(Errno::EPROTONOSUPPORT)
    }

    /// Another program changed the ruleset since the generation that the transaction requires.
    #[must_use]
    pub fn is_generation_changed(&self) -> bool {
        self.is(Errno::ERESTART)
    }

    /// The operation itself is not at fault: another one of its transaction was.
    #[must_use]
    pub fn is_not_executed(&self) -> bool {
        matches!(self, Error::NotExecuted { .. })
    }

    /// Whether the transaction may have been executed in spite of this error, because the answer was lost. Read the ruleset again.
    #[must_use]
    pub fn is_outcome_unknown(&self) -> bool {
        match self {
            Error::Failed { source } => source.is_outcome_unknown(),
            Error::OutcomeMissing => true,
            _ => false,
        }
    }
}
