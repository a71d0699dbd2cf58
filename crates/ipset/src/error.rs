//! What can go wrong.

use std::fmt;

use kernlink_netlink::Errno;

use crate::element::Mismatch;
use crate::operation::{Action, Operation};
use crate::set_type::SetType;
use crate::uapi::*;

/// Why something could not be done.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The kernel refused.
    #[error("cannot {action}")]
    Refused {
        /// What was attempted.
        action: Box<Action>,
        /// Why.
        #[source]
        refusal: Box<Refusal>,
    },
    /// The entry has not the shape of the set's entries. Nothing was sent.
    #[error("cannot {action}: {mismatch}")]
    WrongEntry {
        /// What was attempted.
        action: Box<Action>,
        /// The set's type, the dimension and the reason.
        mismatch: Box<Mismatch>,
    },
    /// An option of the set or of an entry has no meaning for the type, or a value that the kernel cannot take.
    /// Nothing was sent.
    #[error("cannot {action}: {problem}")]
    WrongOption {
        /// What was attempted.
        action: Box<Action>,
        /// The option, and what is wrong with it.
        problem: Box<WrongOption>,
    },
    /// The running kernel does not know this yet. Nothing was sent.
    #[error("cannot {action}: {unsupported}")]
    Unsupported {
        /// What was attempted.
        action: Box<Action>,
        /// What is missing, and since when kernels have it.
        unsupported: Box<Unsupported>,
    },
    /// What was listed changed at every attempt.
    #[error("cannot {action}: it changed during each of {attempts} attempts")]
    Changed {
        /// What was attempted.
        action: Box<Action>,
        /// How many times.
        attempts: u32,
    },
    /// An operation before this one failed and the caller asked to stop there, or the kernel did not answer one before this
    /// one within the connection's timeout.
    #[error("not attempted after an earlier failure")]
    NotAttempted,
    /// An implementation of [`IpSets`](crate::IpSets) other than the kernel's failed; see [`Error::custom`].
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
    #[error("cannot tell what became of the operation: the backend returned no outcome for it")]
    OutcomeMissing,
    /// The netlink connection failed; whether the kernel did what it was asked is not known where
    /// [`kernlink_netlink::Error::is_outcome_unknown`] says so.
    #[error("cannot {action}")]
    Netlink {
        /// What was attempted.
        action: Box<Action>,
        /// What happened.
        #[source]
        error: Box<kernlink_netlink::Error>,
    },
}

/// The cause in [`Error::Custom`]: the text given to [`Error::custom`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Cause(pub String);

/// The kernel's no: what its number means here, and what it said besides.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refusal {
    /// What the number means for this command and set type.
    pub reason: Reason,
    /// The number, and the kernel's own words if it sent any.
    pub kernel: kernlink_netlink::Refusal,
}

/// An option that cannot be meant.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WrongOption {
    /// The word for it in the notation of ipset(8).
    pub option: &'static str,
    /// What is wrong with it.
    pub reason: Box<str>,
}

/// What the running kernel lacks.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Unsupported {
    /// What is missing, such as `bitmask of hash:ip`.
    pub what: Box<str>,
    /// The revision of the set type that has it; `None` where that is not the point.
    pub needed_revision: Option<u8>,
    /// The newest revision that the running kernel has; `None` where it has not even the type.
    pub kernel_revision: Option<u8>,
    /// The first kernel that has it, as `major.minor`.
    pub first_kernel: &'static str,
}

/// The meaning of a refusal. The same number can mean different things: compare the table in the crate's documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// There is no set of this name.
    NoSuchSet,
    /// There is a set of this name, and it differs or must not be there.
    SetExists,
    /// There is no set of the second name.
    NoSuchSecondSet,
    /// A rule or a list uses the set, or another process is listing it.
    Busy,
    /// The two sets differ in type or family.
    DifferentTypes,
    /// No room for another set: at most 65 534 in a namespace.
    TooManySets,
    /// The kernel does not know the set type, or not this revision of it; or its module is not there.
    UnknownType,
    /// The message is malformed: an error of this crate, or a kernel that does not know an attribute.
    Protocol,
    /// The entry is in the set.
    EntryExists,
    /// The entry is not in the set.
    NoSuchEntry,
    /// A prefix length that the set cannot hold.
    InvalidPrefixLength,
    /// A netmask that the set cannot have.
    InvalidNetmask,
    /// A family that the type does not have.
    InvalidFamily,
    /// A time-out for a set without time-outs.
    NoTimeouts,
    /// Not an IPv4 address in a set of IPv4.
    NotIpv4,
    /// Not an IPv6 address in a set of IPv6.
    NotIpv6,
    /// Counters for a set without them.
    NoCounters,
    /// A comment for a set without them.
    NoComments,
    /// A mark mask of 0.
    InvalidMarkmask,
    /// A mark, class or queue for a set without them.
    NoSkbinfo,
    /// A bitmask of 0, or one beside a netmask.
    InvalidBitmask,
    /// The set holds as many entries as it can.
    Full {
        /// How many it can hold; `None` where that could not be found out.
        maxelem: Option<u32>,
    },
    /// An all-zero address, Ethernet address or protocol, which a hash cannot hold.
    NullElement,
    /// A protocol number that the set cannot hold.
    InvalidProtocol,
    /// A port without its protocol.
    MissingProtocol,
    /// A range in a set that takes none.
    RangeNotSupported,
    /// A range that the set cannot take.
    InvalidRange,
    /// Outside of the range of the bitmap.
    OutOfRange,
    /// More than 65 536 elements in the range of a bitmap.
    RangeTooLarge,
    /// The set that was to become a member, or be one, does not exist.
    NoSuchMember,
    /// A list of sets as member of a list of sets.
    ListInList,
    /// Before or after, without a set.
    MissingReference,
    /// The set that was named by before or after does not exist.
    NoSuchReference,
    /// The set that was named by before or after is not in the list, or not at that place.
    ReferenceNotInList,
    /// The caller lacks `CAP_NET_ADMIN` in the user namespace that owns the network namespace.
    PermissionDenied,
    /// The kernel has no ipset, and could not load it.
    NoIpset,
    /// Out of memory.
    NoMemory,
    /// Another number; from 4352 up its meaning depends on the set's type, which could not be found out.
    Other(i32),
}

impl Reason {
    /// The meaning of a number for what was attempted, on a set of this type where that is known.
    pub(crate) fn of(errno: Errno, action: &Action, set_type: Option<SetType>) -> Self {
        let change = match action {
            Action::Change(operation) => Some(operation),
            _ => None,
        };
        match errno {
            Errno::ENOENT => Reason::NoSuchSet,
            Errno::EEXIST => Reason::SetExists,
            Errno::EBUSY => Reason::Busy,
            Errno::EPERM | Errno::EACCES => Reason::PermissionDenied,
            Errno::ENOMEM => Reason::NoMemory,
            Errno::EOPNOTSUPP => Reason::NoIpset,
            Errno::ERANGE => Reason::InvalidRange,
            Errno(IPSET_ERR_PROTOCOL) => Reason::Protocol,
            Errno(IPSET_ERR_FIND_TYPE) => Reason::UnknownType,
            Errno(IPSET_ERR_MAX_SETS) => Reason::TooManySets,
            Errno(IPSET_ERR_BUSY | IPSET_ERR_REFERENCED) => Reason::Busy,
            Errno(IPSET_ERR_EXIST_SETNAME2) => match change {
                Some(Operation::Rename { .. }) => Reason::SetExists,
                _ => Reason::NoSuchSecondSet,
            },
            Errno(IPSET_ERR_TYPE_MISMATCH) => Reason::DifferentTypes,
            Errno(IPSET_ERR_EXIST) => match change {
                Some(Operation::Add { .. } | Operation::AddRange { .. }) => Reason::EntryExists,
                _ => Reason::NoSuchEntry,
            },
            Errno(IPSET_ERR_INVALID_CIDR) => Reason::InvalidPrefixLength,
            Errno(IPSET_ERR_INVALID_NETMASK) => Reason::InvalidNetmask,
            Errno(IPSET_ERR_INVALID_FAMILY) => Reason::InvalidFamily,
            Errno(IPSET_ERR_TIMEOUT) => Reason::NoTimeouts,
            Errno(IPSET_ERR_IPADDR_IPV4) => Reason::NotIpv4,
            Errno(IPSET_ERR_IPADDR_IPV6) => Reason::NotIpv6,
            Errno(IPSET_ERR_COUNTER) => Reason::NoCounters,
            Errno(IPSET_ERR_COMMENT) => Reason::NoComments,
            Errno(IPSET_ERR_INVALID_MARKMASK) => Reason::InvalidMarkmask,
            Errno(IPSET_ERR_SKBINFO) => Reason::NoSkbinfo,
            Errno(IPSET_ERR_BITMASK_NETMASK_EXCL) => Reason::InvalidBitmask,
            Errno(code) => set_type.map_or(Reason::Other(code), |set_type| Self::of_type(code, set_type)),
        }
    }

    fn of_type(code: i32, set_type: SetType) -> Self {
        if set_type.is_hash() {
            match code {
                IPSET_ERR_HASH_FULL => Reason::Full { maxelem: None },
                IPSET_ERR_HASH_ELEM => Reason::NullElement,
                IPSET_ERR_INVALID_PROTO => Reason::InvalidProtocol,
                IPSET_ERR_MISSING_PROTO => Reason::MissingProtocol,
                IPSET_ERR_HASH_RANGE_UNSUPPORTED => Reason::RangeNotSupported,
                IPSET_ERR_HASH_RANGE => Reason::InvalidRange,
                other => Reason::Other(other),
            }
        } else if set_type.is_bitmap() {
            match code {
                IPSET_ERR_BITMAP_RANGE => Reason::OutOfRange,
                IPSET_ERR_BITMAP_RANGE_SIZE => Reason::RangeTooLarge,
                other => Reason::Other(other),
            }
        } else if set_type == SetType::ListSet {
            match code {
                IPSET_ERR_NAME => Reason::NoSuchMember,
                IPSET_ERR_LOOP => Reason::ListInList,
                IPSET_ERR_BEFORE => Reason::MissingReference,
                IPSET_ERR_NAMEREF => Reason::NoSuchReference,
                IPSET_ERR_LIST_FULL => Reason::Full { maxelem: None },
                IPSET_ERR_REF_EXIST => Reason::ReferenceNotInList,
                other => Reason::Other(other),
            }
        } else {
            Reason::Other(code)
        }
    }
}

impl Error {
    /// An error of an implementation of [`IpSets`](crate::IpSets) other than the kernel's. `attempt` is the
    /// [`Operation`], or a text that is printed after "cannot". `cause` is the source. All predicates are false for this
    /// error.
    ///
    /// ```
    /// let set = kernlink_ipset::SetName::new("KUBE-CLUSTER-IP").unwrap();
    /// let error = kernlink_ipset::Error::custom(kernlink_ipset::Operation::destroy(set), "the set is reserved");
    /// assert_eq!(error.to_string(), "cannot destroy KUBE-CLUSTER-IP");
    /// assert_eq!(std::error::Error::source(&error).unwrap().to_string(), "the set is reserved");
    /// ```
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

    /// What the kernel's refusal means, where it refused.
    pub fn reason(&self) -> Option<Reason> {
        match self {
            Error::Refused { refusal, .. } => Some(refusal.reason),
            _ => None,
        }
    }

    /// There is no such set, entry or member.
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

    /// The set or entry is there.
    pub fn is_already_exists(&self) -> bool {
        matches!(self.reason(), Some(Reason::SetExists | Reason::EntryExists))
    }

    /// The running kernel cannot do this, or the implementation of [`IpSets`](crate::IpSets) does not have the method.
    pub fn is_unsupported(&self) -> bool {
        matches!(self, Error::Unsupported { .. } | Error::NotImplemented { .. })
            || matches!(self.reason(), Some(Reason::UnknownType | Reason::NoIpset))
    }

    /// The caller may not do this.
    pub fn is_permission_denied(&self) -> bool {
        matches!(self.reason(), Some(Reason::PermissionDenied))
            || matches!(self, Error::Netlink { error, .. } if matches!(error.errno(), Some(Errno::EPERM | Errno::EACCES)))
    }

    /// A rule or list uses the set, or another process listed it at every attempt.
    pub fn is_busy(&self) -> bool {
        matches!(self.reason(), Some(Reason::Busy))
    }

    /// The set holds as many entries as it can.
    pub fn is_full(&self) -> bool {
        matches!(self.reason(), Some(Reason::Full { .. }))
    }

    /// The entry or an option cannot be meant for this set. Nothing was sent to the kernel.
    pub fn is_invalid(&self) -> bool {
        matches!(self, Error::WrongEntry { .. } | Error::WrongOption { .. })
    }

    /// An earlier operation failed and the caller asked to stop there, or was not answered in time. This one was not sent.
    pub fn is_not_attempted(&self) -> bool {
        matches!(self, Error::NotAttempted)
    }

    /// The operation may have been executed although it failed here: its answer was lost or did not come in time.
    pub fn is_outcome_unknown(&self) -> bool {
        match self {
            Error::Netlink { error, .. } => error.is_outcome_unknown(),
            Error::OutcomeMissing => true,
            _ => false,
        }
    }

    /// The kernel did not answer, or the socket failed: what is sent next is not answered either.
    pub(crate) fn is_silence(&self) -> bool {
        use kernlink_netlink::Error::{Socket, TimedOut};
        matches!(self, Error::Netlink { error, .. } if matches!(**error, TimedOut | Socket { .. }))
    }

    /// What a refusal or a broken connection means for what was attempted.
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

    pub(crate) fn wrong_option(action: Action, option: &'static str, reason: impl Into<Box<str>>) -> Self {
        let problem = Box::new(WrongOption {
            option,
            reason: reason.into(),
        });
        Error::WrongOption {
            action: Box::new(action),
            problem,
        }
    }

    pub(crate) fn wrong_entry(action: Action, mismatch: Mismatch) -> Self {
        Error::WrongEntry {
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

    /// The same, said about something else: of a range's expansion about the range.
    pub(crate) fn about(mut self, about: Action) -> Self {
        match &mut self {
            Error::Refused { action, .. }
            | Error::WrongEntry { action, .. }
            | Error::WrongOption { action, .. }
            | Error::Unsupported { action, .. }
            | Error::Changed { action, .. }
            | Error::Custom { action, .. }
            | Error::NotImplemented { action }
            | Error::Netlink { action, .. } => **action = about,
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

impl fmt::Display for WrongOption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.option, self.reason)
    }
}

impl fmt::Display for Unsupported {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} needs Linux {} or newer", self.what, self.first_kernel)?;
        match (self.needed_revision, self.kernel_revision) {
            (Some(needed), Some(has)) => {
                write!(f, " (revision {needed} of the set type, this kernel has {has})")
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Reason::NoSuchSet => "there is no such set",
            Reason::SetExists => "there is another set of this name",
            Reason::NoSuchSecondSet => "there is no set of the second name",
            Reason::Busy => "the set is used by a rule or list, or is being listed",
            Reason::DifferentTypes => "the sets differ in type or family",
            Reason::TooManySets => "there is no room for another set",
            Reason::UnknownType => {
                "the kernel does not know this set type, family or revision, and finds no module (such as ip_set_hash_ip) for it"
            }
            Reason::Protocol => "the kernel does not understand the message",
            Reason::EntryExists => "the entry is in the set already",
            Reason::NoSuchEntry => "the entry is not in the set",
            Reason::InvalidPrefixLength => "the set cannot hold this prefix length",
            Reason::InvalidNetmask => "the set cannot have this netmask",
            Reason::InvalidFamily => "the set type does not have this family",
            Reason::NoTimeouts => "the set was created without timeout",
            Reason::NotIpv4 => "an IPv4 address is wanted",
            Reason::NotIpv6 => "an IPv6 address is wanted",
            Reason::NoCounters => "the set was created without counters",
            Reason::NoComments => "the set was created without comment",
            Reason::InvalidMarkmask => "the mark mask must not be 0",
            Reason::NoSkbinfo => "the set was created without skbinfo",
            Reason::InvalidBitmask => "the bitmask must not be 0, and excludes a netmask",
            Reason::Full {
                maxelem: Some(maxelem),
            } => return write!(f, "the set is full, it takes {maxelem} entries"),
            Reason::Full { maxelem: None } => "the set is full",
            Reason::NullElement => "an all-zero element cannot be held",
            Reason::InvalidProtocol => "the set cannot hold this protocol",
            Reason::MissingProtocol => "the protocol of the port is missing",
            Reason::RangeNotSupported => "the set takes no range",
            Reason::InvalidRange => "the set cannot take this range",
            Reason::OutOfRange => "the entry is outside of the range of the set",
            Reason::RangeTooLarge => "the range has more than 65536 elements",
            Reason::NoSuchMember => "there is no set of the member's name",
            Reason::ListInList => "a list of sets cannot be in a list of sets",
            Reason::MissingReference => "before or after which set is missing",
            Reason::NoSuchReference => "there is no set of the name given to before or after",
            Reason::ReferenceNotInList => "the set named by before or after is not at that place of the list",
            Reason::PermissionDenied => "CAP_NET_ADMIN is wanted",
            Reason::NoIpset => "the kernel has no ipset, or its module ip_set could not be loaded",
            Reason::NoMemory => "out of memory",
            Reason::Other(code) => return write!(f, "the kernel answered {code}"),
        };
        f.write_str(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outcome_is_small_because_a_batch_has_one_for_each_operation() {
        assert!(
            size_of::<Result<(), Error>>() <= 24,
            "{}",
            size_of::<Result<(), Error>>()
        );
    }
}
