//! Why the kernel refused an operation.

use std::fmt;

use kernlink_netlink::{Errno, Refusal};

use crate::operation::Operation;
use crate::requirement::Requirement;

/// The kernel's refusal, and what it means for nf_tables.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Reason {
    /// Error number, text and offset.
    pub refusal: Refusal,
    /// What the operation uses and the running kernel is too old for, if the error number may mean that.
    pub requirement: Option<Requirement>,
}

impl Reason {
    /// The reason of a refusal.
    #[must_use]
    pub fn new(refusal: Refusal) -> Self {
        Reason {
            refusal,
            requirement: None,
        }
    }

    /// The reason why an operation was refused.
    pub(crate) fn of_operation(refusal: Refusal, operation: &Operation) -> Self {
        let requirement = may_be_unsupported(refusal.errno).then(|| Requirement::of_operation(operation));
        Reason {
            requirement: requirement.flatten(),
            ..Reason::new(refusal)
        }
    }

    /// What the error number means, and the remedy; `None` for numbers without a meaning of their own.
    #[must_use]
    pub fn explanation(&self) -> Option<&'static str> {
        Some(match self.refusal.errno {
            Errno::ENOENT => {
                "something that the operation names does not exist, or is deleted earlier in the transaction"
            }
            Errno::EEXIST => "it exists already, or exists with other properties that cannot be changed",
            Errno::EBUSY => {
                "it is in use; first delete the rules, elements and chains that refer to it, in the same transaction"
            }
            Errno::EPERM | Errno::EACCES => {
                "another socket owns the table (flag owner), or CAP_NET_ADMIN in the user namespace of the network \
                 namespace is missing"
            }
            Errno::ENFILE => "the set is full; expired elements count until they are collected",
            Errno::EMLINK => "jumps form a loop, or are deeper than 16 chains",
            Errno::EOPNOTSUPP => {
                "the kernel does not support it, or not in this family, type of chain, hook or set"
            }
            Errno::ENODATA => "an expression reads a register that no earlier expression of the rule writes",
            Errno::ERANGE => "a register, a length or a number is out of range",
            Errno::EOVERFLOW => "a number is too large",
            Errno::EINVAL => "an attribute is missing, or has an invalid value or length",
            _ => return None,
        })
    }
}

/// Whether a kernel that does not have a message, a flag or an expression answers with this number.
pub(crate) fn may_be_unsupported(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::EINVAL | Errno::EOPNOTSUPP | Errno::EPROTONOSUPPORT | Errno::ENOENT | Errno::ERANGE
    )
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.refusal.fmt(f)?;
        if let Some(requirement) = &self.requirement {
            return write!(f, ": {requirement}");
        }
        match self.explanation() {
            Some(explanation) => write!(f, ": {explanation}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for Reason {}
