//! What can go wrong.

use kernlink_netlink::{Errno, Refusal};

use crate::LinkName;

/// Why an operation or a listing failed. The predicates tell the cases apart that callers treat
/// differently.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// There is no link of this name.
    #[error("cannot {operation}: there is no link {link}")]
    LinkMissing {
        /// What was attempted.
        operation: Box<str>,
        /// The link.
        link: LinkName,
    },
    /// There is a link of this name, but it is not a dummy link. It is never changed.
    #[error("cannot {operation}: link {link} is of kind {kind}, not dummy")]
    WrongKind {
        /// What was attempted.
        operation: Box<str>,
        /// The link.
        link: LinkName,
        /// Its kind; `(none)` for hardware and the loopback link.
        kind: Box<str>,
    },
    /// The kernel would take this for something else, so it is not sent.
    #[error("cannot {operation}: {reason}")]
    Invalid {
        /// What was attempted.
        operation: Box<str>,
        /// The field, and what is wrong with it.
        reason: &'static str,
    },
    /// The kernel refused.
    #[error("cannot {operation}{}", if self.is_module_missing() { NEEDS_MODULE } else { "" })]
    Refused {
        /// What was attempted.
        operation: Box<str>,
        /// The kernel's reason.
        #[source]
        refusal: Refusal,
    },
    /// An implementation of [`DummyLinks`](crate::DummyLinks) other than the kernel's failed; see [`Error::custom`].
    #[error("cannot {operation}")]
    Custom {
        /// What was attempted.
        operation: Box<str>,
        /// Why it failed.
        #[source]
        cause: Cause,
    },
    /// An implementation of [`DummyLinks`](crate::DummyLinks) does not have this method.
    #[error("cannot {operation}: not supported by this implementation of DummyLinks")]
    NotImplemented {
        /// What was attempted.
        operation: Box<str>,
    },
    /// An implementation of [`DummyLinks`](crate::DummyLinks) returned fewer outcomes than it was given operations.
    #[error("cannot tell what became of the operation: the backend returned no outcome for it")]
    OutcomeMissing,
    /// No answer of the kernel, or none that makes sense.
    #[error("cannot {operation}")]
    Netlink {
        /// What was attempted.
        operation: Box<str>,
        /// What went wrong.
        #[source]
        error: kernlink_netlink::Error,
    },
}

/// The cause in [`Error::Custom`]: the text given to [`Error::custom`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Cause(pub String);

/// What is said of a link that the kernel cannot make.
const NEEDS_MODULE: &str = ", which takes the module dummy (`modprobe dummy` as root of the host)";

impl Error {
    /// An error of an implementation of [`DummyLinks`](crate::DummyLinks) other than the kernel's. `operation` is the
    /// [`Operation`](crate::Operation), or a text that is printed after "cannot". `cause` is the source. All predicates are
    /// false for this error.
    ///
    /// ```
    /// let link = kernlink_dummylink::LinkName::new("kube-ipvs0").unwrap();
    /// let delete = kernlink_dummylink::Operation::DeleteLink(link);
    /// let error = kernlink_dummylink::Error::custom(delete, "the link is reserved");
    /// assert_eq!(error.to_string(), "cannot link delete kube-ipvs0 type dummy");
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

    /// The kernel's error number, where there is one.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Error::Refused { refusal, .. } => Some(refusal.errno),
            Error::Netlink { error, .. } => error.errno(),
            _ => None,
        }
    }

    /// The link, the address or the route is not there.
    ///
    /// The kernel's number is `ENODEV` for a link, `EADDRNOTAVAIL` for an address that is to be deleted or
    /// changed (and for one that cannot be added, which is not meant here) and `ESRCH` for a route.
    pub fn is_not_found(&self) -> bool {
        let names_an_address_of_the_link = matches!(self, Error::Refused { operation, .. }
            if operation.starts_with("address delete") || operation.starts_with("address change"));
        match self.errno() {
            Some(Errno::EADDRNOTAVAIL) => names_an_address_of_the_link,
            Some(Errno::ESRCH) => true,
            _ => self.is_link_missing(),
        }
    }

    /// The link is not there. The kernel's number for this, `ENODEV`, also comes back for an IPv6 route over a
    /// link whose MTU is below 1280 bytes, which has no IPv6.
    pub fn is_link_missing(&self) -> bool {
        matches!(self, Error::LinkMissing { .. }) || self.errno() == Some(Errno::ENODEV)
    }

    /// A link of this name is there but is no dummy link.
    pub fn is_wrong_kind(&self) -> bool {
        matches!(self, Error::WrongKind { .. })
    }

    /// What should be added is there already. Of an IPv6 address the kernel says so for every
    /// prefix length if one is there.
    pub fn is_already_exists(&self) -> bool {
        self.errno() == Some(Errno::EEXIST)
    }

    /// The kernel lacks what is needed: the dummy module, or the address family. Or the implementation of
    /// [`DummyLinks`](crate::DummyLinks) does not have the method.
    pub fn is_unsupported(&self) -> bool {
        matches!(self, Error::NotImplemented { .. })
            || matches!(self.errno(), Some(Errno::EOPNOTSUPP | Errno::EAFNOSUPPORT))
    }

    /// The kernel has no dummy links and could not load a module for them.
    pub fn is_module_missing(&self) -> bool {
        matches!(self, Error::Refused { operation, refusal }
            if refusal.errno == Errno::EOPNOTSUPP && operation.starts_with("link "))
    }

    /// The caller lacks `CAP_NET_ADMIN` in the network namespace's user namespace.
    pub fn is_permission_denied(&self) -> bool {
        self.errno() == Some(Errno::EPERM)
    }

    /// IPv6 is switched off on the link by the sysctl `net.ipv6.conf.LINK.disable_ipv6`, so it takes no IPv6
    /// address and no IPv6 route (`EACCES`, in
    /// [`addrconf_add_dev`](https://github.com/torvalds/linux/blob/v6.12/net/ipv6/addrconf.c)).
    pub fn is_ipv6_disabled(&self) -> bool {
        matches!(self, Error::Refused { refusal, .. } if refusal.errno == Errno::EACCES)
    }

    /// The operation may have been executed although it failed here: the kernel's answer was lost or did not
    /// come in time.
    pub fn is_outcome_unknown(&self) -> bool {
        match self {
            Error::Netlink { error, .. } => error.is_outcome_unknown(),
            Error::OutcomeMissing => true,
            _ => false,
        }
    }
}
