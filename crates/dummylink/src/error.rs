//! Errors.

use kernlink_netlink::{Errno, Refusal};

use crate::LinkName;

/// Why an operation or a listing failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The link does not exist.
    #[error("{operation} failed: link {link} does not exist")]
    LinkMissing {
        /// The operation or listing, as the arguments of `ip`.
        operation: Box<str>,
        /// The link.
        link: LinkName,
    },
    /// The link is not a dummy link. It was not changed.
    #[error("{operation} failed: link {link} is of kind {kind}, not dummy")]
    WrongKind {
        /// The operation or listing, as the arguments of `ip`.
        operation: Box<str>,
        /// The link.
        link: LinkName,
        /// Kind; `(none)` for hardware and the loopback link.
        kind: Box<str>,
    },
    /// The operation is invalid, and the kernel would accept it with another meaning. It was not sent.
    #[error("{operation} failed: {reason}")]
    Invalid {
        /// The operation or listing, as the arguments of `ip`.
        operation: Box<str>,
        /// The field, and why it is invalid.
        reason: &'static str,
    },
    /// The kernel refused the operation.
    #[error("{operation} failed{}", if self.is_module_missing() { NEEDS_MODULE } else { "" })]
    Refused {
        /// The operation or listing, as the arguments of `ip`.
        operation: Box<str>,
        /// The kernel's reason.
        #[source]
        refusal: Refusal,
    },
    /// An implementation of [`DummyLinks`](crate::DummyLinks) other than the kernel's failed; see [`Error::custom`].
    #[error("{operation} failed")]
    Custom {
        /// The operation or listing, as the arguments of `ip`.
        operation: Box<str>,
        /// Cause.
        #[source]
        cause: Cause,
    },
    /// An implementation of [`DummyLinks`](crate::DummyLinks) does not have this method.
    #[error("{operation} failed: not supported by this implementation of DummyLinks")]
    NotImplemented {
        /// The operation or listing, as the arguments of `ip`.
        operation: Box<str>,
    },
    /// An implementation of [`DummyLinks`](crate::DummyLinks) returned fewer outcomes than operations.
    #[error("the outcome of the operation is unknown: the implementation of DummyLinks returned none")]
    OutcomeMissing,
    /// The kernel did not answer, or the answer cannot be decoded.
    #[error("{operation} failed")]
    Netlink {
        /// The operation or listing, as the arguments of `ip`.
        operation: Box<str>,
        /// Cause.
        #[source]
        error: kernlink_netlink::Error,
    },
}

/// The cause in [`Error::Custom`]: the text given to [`Error::custom`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Cause(pub String);

/// Text of [`Error::Refused`] if the kernel does not support dummy links.
const NEEDS_MODULE: &str =
    ": the kernel module dummy is missing; load it with `modprobe dummy` as root on the host";

impl Error {
    /// An error of an implementation of [`DummyLinks`](crate::DummyLinks) other than the kernel's. `operation` is the
    /// [`Operation`](crate::Operation), or a text that is printed before "failed". `cause` is the source. All predicates are
    /// false for this error.
    ///
    /// ```
    /// let link = kernlink_dummylink::LinkName::new("kube-ipvs0").unwrap();
    /// let delete = kernlink_dummylink::Operation::DeleteLink(link);
    /// let error = kernlink_dummylink::Error::custom(delete, "the link is reserved");
    /// assert_eq!(error.to_string(), "link delete kube-ipvs0 type dummy failed");
    /// assert_eq!(std::error::Error::source(&error).unwrap().to_string(), "the link is reserved");
    /// ```
    pub fn custom(operation: impl ToString, cause: impl Into<String>) -> Self {
        Error::Custom {
            operation: operation.to_string().into(),
            cause: Cause(cause.into()),
        }
    }

    pub(crate) fn netlink(operation: impl ToString, error: kernlink_netlink::Error) -> Self {
        let operation = operation.to_string().into();
        match error {
            kernlink_netlink::Error::Refused(refusal) => Error::Refused { operation, refusal },
            error => Error::Netlink { operation, error },
        }
    }

    /// The kernel's error number, if there is one.
    #[must_use]
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Error::Refused { refusal, .. } => Some(refusal.errno),
            Error::Netlink { error, .. } => error.errno(),
            _ => None,
        }
    }

    /// The link, the address or the route does not exist.
    ///
    /// The kernel's error number is `ENODEV` for a link, `EADDRNOTAVAIL` when an address is deleted or
    /// changed, and `ESRCH` for a route. `EADDRNOTAVAIL` when an address is added has another meaning and is not included.
    #[must_use]
    pub fn is_not_found(&self) -> bool {
        let deletes_or_changes_address = matches!(self, Error::Refused { operation, .. }
            if operation.starts_with("address delete") || operation.starts_with("address change"));
        match self.errno() {
            Some(Errno::EADDRNOTAVAIL) => deletes_or_changes_address,
            Some(Errno::ESRCH) => true,
            _ => self.is_link_missing(),
        }
    }

    /// The link does not exist (`ENODEV`). The kernel also reports this for an IPv6 route over a
    /// link whose MTU is below 1280 bytes, which does not support IPv6.
    #[must_use]
    pub fn is_link_missing(&self) -> bool {
        matches!(self, Error::LinkMissing { .. }) || self.errno() == Some(Errno::ENODEV)
    }

    /// The link is not a dummy link.
    #[must_use]
    pub fn is_wrong_kind(&self) -> bool {
        matches!(self, Error::WrongKind { .. })
    }

    /// The link, address or route exists (`EEXIST`). For an IPv6 address the kernel reports this if the link has it with any
    /// prefix length.
    #[must_use]
    pub fn is_already_exists(&self) -> bool {
        self.errno() == Some(Errno::EEXIST)
    }

    /// The kernel does not support the operation: the dummy module or the address family is missing. Or the implementation of
    /// [`DummyLinks`](crate::DummyLinks) does not support the method.
    #[must_use]
    pub fn is_unsupported(&self) -> bool {
        matches!(self, Error::NotImplemented { .. })
            || matches!(self.errno(), Some(Errno::EOPNOTSUPP | Errno::EAFNOSUPPORT))
    }

    /// The kernel does not support dummy links and could not load the module.
    #[must_use]
    pub fn is_module_missing(&self) -> bool {
        matches!(self, Error::Refused { operation, refusal }
            if refusal.errno == Errno::EOPNOTSUPP && operation.starts_with("link "))
    }

    /// The caller lacks `CAP_NET_ADMIN` in the network namespace's user namespace.
    #[must_use]
    pub fn is_permission_denied(&self) -> bool {
        self.errno() == Some(Errno::EPERM)
    }

    /// IPv6 is disabled on the link by the sysctl `net.ipv6.conf.LINK.disable_ipv6`; IPv6 addresses and routes cannot be
    /// added (`EACCES`, in
    /// [`addrconf_add_dev`](https://github.com/torvalds/linux/blob/v6.12/net/ipv6/addrconf.c)).
    #[must_use]
    pub fn is_ipv6_disabled(&self) -> bool {
        matches!(self, Error::Refused { refusal, .. } if refusal.errno == Errno::EACCES)
    }

    /// The operation may have been executed in spite of this error: the kernel's answer was lost or did not
    /// arrive within the timeout.
    #[must_use]
    pub fn is_outcome_unknown(&self) -> bool {
        match self {
            Error::Netlink { error, .. } => error.is_outcome_unknown(),
            Error::OutcomeMissing => true,
            _ => false,
        }
    }
}
