//! Meanings of the kernel's refusals.

use std::fmt;

use kernlink_netlink::Errno;

use crate::operation::{Action, Operation};
use crate::set_type::SetType;
use crate::uapi::*;

/// The meaning of a refusal. One number has several meanings, which depend on the command and the set type: see the table in the
/// crate's documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Reason {
    /// No set has this name.
    NoSuchSet,
    /// A set with this name exists: with other options, or the caller required that it does not exist.
    SetExists {
        /// The type of that set; `None` if it could not be read.
        set_type: Option<SetType>,
    },
    /// No set has the second name.
    NoSuchSecondSet,
    /// A rule or a list uses the set, or another process is listing it.
    Busy,
    /// The two sets differ in type or family.
    DifferentTypes,
    /// The network namespace has the maximum number of sets, 65 472.
    TooManySets,
    /// The kernel does not have the set type, the family or the revision, and could not load a module for it.
    UnknownType,
    /// The message is malformed: an error in this crate, or an attribute that the kernel does not support.
    Protocol,
    /// The entry is already in the set.
    EntryExists,
    /// The entry is not in the set.
    NoSuchEntry,
    /// A prefix length that the set type does not support.
    InvalidPrefixLength,
    /// A netmask that the set type does not support.
    InvalidNetmask,
    /// A family that the set type does not support.
    InvalidFamily,
    /// A timeout for an entry of a set without timeouts.
    NoTimeouts,
    /// The address is not IPv4, as the set requires.
    NotIpv4,
    /// The address is not IPv6, as the set requires.
    NotIpv6,
    /// Counters for an entry of a set without counters.
    NoCounters,
    /// A comment for an entry of a set without comments.
    NoComments,
    /// A mark mask of 0.
    InvalidMarkmask,
    /// A mark, class or queue for an entry of a set without skbinfo.
    NoSkbinfo,
    /// A bitmask of 0, or a bitmask together with a netmask.
    InvalidBitmask,
    /// The set has the maximum number of entries.
    Full {
        /// The maximum; `None` if it could not be read.
        maxelem: Option<u32>,
    },
    /// An all-zero address or Ethernet address, which a hash does not support.
    NullElement,
    /// A protocol number that the set type does not support.
    InvalidProtocol,
    /// A port without its protocol.
    MissingProtocol,
    /// A range for a set type or family for which the kernel supports none.
    RangeNotSupported,
    /// A range that is invalid or too long.
    InvalidRange,
    /// The entry is outside the range of the bitmap.
    OutOfRange,
    /// The range of the bitmap has more than 65 536 elements.
    RangeTooLarge,
    /// The member set does not exist.
    NoSuchMember,
    /// A `list:set` as member of a `list:set`.
    ListInList,
    /// `before` or `after` without a set name.
    MissingReference,
    /// The set named by `before` or `after` does not exist.
    NoSuchReference,
    /// The set named by `before` or `after` is not in the list, or not at that position.
    ReferenceNotInList,
    /// The caller lacks `CAP_NET_ADMIN` in the user namespace that owns the network namespace.
    PermissionDenied,
    /// The kernel does not support ipset, and could not load the module `ip_set`.
    NoIpset,
    /// Out of memory.
    NoMemory,
    /// Any other number. From 4352 up the meaning depends on the set type, which could not be read.
    Other(i32),
}

impl Reason {
    /// The meaning of an error number for an action on a set of this type; `None` for an unknown type.
    pub(crate) fn of(errno: Errno, action: &Action, set_type: Option<SetType>) -> Self {
        let change = match action {
            Action::Change(operation) => Some(operation),
            _ => None,
        };
        match errno {
            Errno::ENOENT => Reason::NoSuchSet,
            Errno::EEXIST => Reason::SetExists { set_type: None },
            Errno::EBUSY => Reason::Busy,
            Errno::EPERM | Errno::EACCES => Reason::PermissionDenied,
            Errno::ENOMEM => Reason::NoMemory,
            Errno::EOPNOTSUPP => Reason::NoIpset,
            // netfilter returns EINVAL for a subsystem that it does not have. ipset does not return it for a listing of all sets.
            Errno::EINVAL if *action == Action::ListAll => Reason::NoIpset,
            Errno::ERANGE => Reason::InvalidRange,
            Errno(IPSET_ERR_PROTOCOL) => Reason::Protocol,
            Errno(IPSET_ERR_FIND_TYPE) => Reason::UnknownType,
            Errno(IPSET_ERR_MAX_SETS) => Reason::TooManySets,
            Errno(IPSET_ERR_BUSY | IPSET_ERR_REFERENCED) => Reason::Busy,
            Errno(IPSET_ERR_EXIST_SETNAME2) => match change {
                Some(Operation::Rename { .. }) => Reason::SetExists { set_type: None },
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

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Reason::NoSuchSet => "the set does not exist",
            Reason::SetExists {
                set_type: Some(set_type),
            } => return write!(f, "a set with this name exists; its type is {set_type}"),
            Reason::SetExists { set_type: None } => "a set with this name exists",
            Reason::NoSuchSecondSet => "the second set does not exist",
            Reason::Busy => "the set is in use by a rule or list, or is being listed",
            Reason::DifferentTypes => "the sets differ in type or family",
            Reason::TooManySets => "the network namespace has the maximum number of sets",
            Reason::UnknownType => {
                "the kernel does not support this set type, family or revision, and could not load a module for it (such as ip_set_hash_ip)"
            }
            Reason::Protocol => "the kernel rejected the message as malformed",
            Reason::EntryExists => "the entry is already in the set",
            Reason::NoSuchEntry => "the entry is not in the set",
            Reason::InvalidPrefixLength => "the prefix length is not valid for the set type",
            Reason::InvalidNetmask => "the netmask is not valid for the set type",
            Reason::InvalidFamily => "the family is not valid for the set type",
            Reason::NoTimeouts => "the set was created without timeout",
            Reason::NotIpv4 => "an IPv4 address is required",
            Reason::NotIpv6 => "an IPv6 address is required",
            Reason::NoCounters => "the set was created without counters",
            Reason::NoComments => "the set was created without comment",
            Reason::InvalidMarkmask => "the mark mask must not be 0",
            Reason::NoSkbinfo => "the set was created without skbinfo",
            Reason::InvalidBitmask => "the bitmask must not be 0 and must not be combined with a netmask",
            Reason::Full {
                maxelem: Some(maxelem),
            } => return write!(f, "the set is full: at most {maxelem} entries"),
            Reason::Full { maxelem: None } => "the set is full",
            Reason::NullElement => "the set type does not support an all-zero element",
            Reason::InvalidProtocol => "the protocol is not valid for the set type",
            Reason::MissingProtocol => "the protocol of the port is missing",
            Reason::RangeNotSupported => "the set type does not support ranges",
            Reason::InvalidRange => "the range is not valid for the set",
            Reason::OutOfRange => "the entry is outside the range of the set",
            Reason::RangeTooLarge => "the range has more than 65536 elements",
            Reason::NoSuchMember => "the member set does not exist",
            Reason::ListInList => "a list:set cannot be a member of a list:set",
            Reason::MissingReference => "before or after requires the name of a set",
            Reason::NoSuchReference => "the set named by before or after does not exist",
            Reason::ReferenceNotInList => {
                "the set named by before or after is not at that position of the list"
            }
            Reason::PermissionDenied => "CAP_NET_ADMIN is required",
            Reason::NoIpset => {
                "the kernel does not support ipset, or the module ip_set could not be loaded; load it with `modprobe ip_set` as root"
            }
            Reason::NoMemory => "out of memory",
            Reason::Other(code) => return write!(f, "the kernel returned error {code}"),
        };
        f.write_str(text)
    }
}
