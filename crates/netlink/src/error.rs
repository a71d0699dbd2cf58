//! Errors.

use std::fmt;
use std::path::Path;

/// An error number of the kernel, positive.
///
/// Numbers from 4096 are private to a subsystem (ipset uses them) and are printed as a number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Errno(pub i32);

macro_rules! errno_constants {
    ($($name:ident),* $(,)?) => {
        /// Common error numbers, under their C names.
        #[allow(missing_docs, reason = "the C names are documented in man 3 errno")]
        impl Errno { $(pub const $name: Errno = Errno(nix::libc::$name);)* }
    };
}

errno_constants!(
    EACCES,
    EADDRNOTAVAIL,
    EAFNOSUPPORT,
    EAGAIN,
    EBUSY,
    EEXIST,
    EINTR,
    EINVAL,
    EIO,
    EMLINK,
    EMSGSIZE,
    ENFILE,
    ENOBUFS,
    ENODATA,
    ENODEV,
    ENOENT,
    ENOMEM,
    ENOSPC,
    ENOTSUP,
    ENXIO,
    EOPNOTSUPP,
    EOVERFLOW,
    EPERM,
    EPROTO,
    EPROTONOSUPPORT,
    ERANGE,
    ERESTART,
    ESRCH,
);

impl Errno {
    /// The error number of an I/O error; [`Errno::EIO`] if it has none.
    pub fn from_io(error: &std::io::Error) -> Self {
        error.raw_os_error().map_or(Errno::EIO, Errno)
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match nix::errno::Errno::from_raw(self.0) {
            nix::errno::Errno::UnknownErrno => write!(f, "error number {}", self.0),
            known => write!(f, "{} ({known:?})", known.desc()),
        }
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match nix::errno::Errno::from_raw(self.0) {
            nix::errno::Errno::UnknownErrno => write!(f, "Errno({})", self.0),
            known => write!(f, "{known:?}"),
        }
    }
}

impl std::error::Error for Errno {}

/// The kernel's refusal of one request: an error number and, if the kernel sent them, a text and the offset of the
/// invalid attribute
/// ([extended acknowledgement](https://github.com/torvalds/linux/blob/v6.12/include/uapi/linux/netlink.h#L121)).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refusal {
    /// The error number.
    pub errno: Errno,
    /// The kernel's text (`NLMSGERR_ATTR_MSG`).
    pub message: Option<Box<str>>,
    /// Offset of the invalid attribute in bytes, counted from the start of the request's netlink header
    /// (`NLMSGERR_ATTR_OFFS`).
    pub offset: Option<u32>,
    /// Type of an attribute that is missing in the request (`NLMSGERR_ATTR_MISS_TYPE`).
    pub missing_attribute: Option<u32>,
}

impl Refusal {
    /// A refusal with an error number only.
    #[must_use]
    pub fn new(errno: Errno) -> Self {
        Refusal {
            errno,
            message: None,
            offset: None,
            missing_attribute: None,
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.errno.fmt(f)?;
        if let Some(message) = &self.message {
            write!(f, ": {message}")?;
        }
        if let Some(kind) = self.missing_attribute {
            write!(f, ", attribute {kind} is missing")?;
        }
        if let Some(offset) = self.offset {
            write!(f, ", at byte {offset} of the request")?;
        }
        Ok(())
    }
}

impl std::error::Error for Refusal {}

/// Why a request failed, or could not be sent or answered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A system call on the socket failed.
    #[error("cannot {call} the netlink socket")]
    Socket {
        /// What was attempted: `open`, `bind`, `configure`, `attach a filter to`, `read the address of`, `send on`, `receive from`.
        call: &'static str,
        /// Cause.
        #[source]
        errno: Errno,
    },
    /// The kernel refused the request.
    #[error("the kernel refused the request")]
    Refused(#[source] Refusal),
    /// The kernel did not answer within the connection's timeout. The request may have been executed.
    #[error("the kernel did not answer within the timeout")]
    TimedOut,
    /// The request was not sent and not executed, because the outcome of an earlier request of the same batch is unknown.
    #[error("the request was not sent: the outcome of an earlier request of the batch is unknown")]
    NotSent,
    /// The kernel dropped answers because the receive buffer was full (`ENOBUFS`). Requests without an answer
    /// may or may not have been executed.
    #[error("the receive buffer overflowed and the kernel's answer is lost")]
    Overrun,
    /// A datagram was longer than the receive buffer.
    #[error("a datagram of {size} bytes does not fit the receive buffer of {capacity} bytes")]
    Truncated {
        /// Length of the datagram in bytes.
        size: usize,
        /// Length of the buffer in bytes.
        capacity: usize,
    },
    /// The listed objects changed during every attempt of a dump (`NLM_F_DUMP_INTR`).
    #[error("the dump was interrupted by changes in each of {attempts} attempts")]
    DumpInterrupted {
        /// Number of attempts.
        attempts: u32,
    },
    /// The kernel sent a message that cannot be decoded.
    #[error("malformed {what}")]
    Malformed {
        /// What was decoded, and what is invalid.
        what: &'static str,
    },
    /// An attribute's payload has not the length of its type.
    #[error("invalid length of attribute {kind}: {length} bytes; valid: {expected}")]
    AttributeLength {
        /// Type of the attribute, without its flag bits.
        kind: u16,
        /// Length of its payload in bytes.
        length: usize,
        /// Valid length in bytes.
        expected: usize,
    },
    /// A size of the receive buffer that the kernel does not support.
    #[error(
        "invalid receive buffer of {bytes} bytes; valid: 0 to {}",
        crate::transport::MAX_RECEIVE_BUFFER
    )]
    ReceiveBuffer {
        /// The requested size in bytes.
        bytes: usize,
    },
    /// A socket filter without instructions, or with more than the kernel accepts.
    #[error(
        "invalid socket filter of {instructions} instructions; valid: 1 to {} (BPF_MAXINSNS)",
        crate::MAX_FILTER_INSTRUCTIONS
    )]
    FilterLength {
        /// The number of instructions.
        instructions: usize,
    },
    /// A request does not fit into a message: an attribute is longer than 65 535 bytes, or the message
    /// is longer than the socket can send.
    #[error("{what} exceeds the netlink limit of {limit} bytes")]
    TooLarge {
        /// What is too large.
        what: &'static str,
        /// The limit in bytes.
        limit: usize,
    },
    /// There is no generic netlink family of this name, and the kernel could not load a module for it.
    #[error("generic netlink family {name:?} does not exist, and the kernel loaded no module for it")]
    UnknownFamily {
        /// The requested name.
        name: Box<str>,
    },
    /// A network namespace could not be opened or entered.
    #[error("cannot {call} the network namespace{}{}", if path.is_some() { " " } else { "" }, path.as_deref().unwrap_or(Path::new("")).display())]
    Namespace {
        /// What was attempted: `open`, `enter`, `start a thread for`.
        call: &'static str,
        /// Its path; `None` if it was given as a file descriptor.
        path: Option<Box<Path>>,
        /// Cause.
        #[source]
        errno: Errno,
    },
    /// A request that is not the next one of the `Script` (feature `fake`).
    #[error("unexpected request {sent}; the script expects {expected}")]
    UnexpectedRequest {
        /// The expected request in hexadecimal, or `nothing more`.
        expected: Box<str>,
        /// The request in hexadecimal.
        sent: Box<str>,
    },
}

impl Error {
    /// The error number if the kernel refused the request or a system call failed.
    #[must_use]
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Error::Refused(refusal) => Some(refusal.errno),
            Error::Socket { errno, .. } | Error::Namespace { errno, .. } => Some(*errno),
            _ => None,
        }
    }

    /// Whether the request may have been executed in spite of this error: its answer was lost or could not be decoded.
    #[must_use]
    pub fn is_outcome_unknown(&self) -> bool {
        match self {
            Error::TimedOut
            | Error::Overrun
            | Error::Truncated { .. }
            | Error::Malformed { .. }
            | Error::AttributeLength { .. } => true,
            Error::Socket { call, .. } => *call == "receive from",
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_errno_prints_text_and_name() {
        assert_eq!(Errno::ESRCH.to_string(), "No such process (ESRCH)");
        assert_eq!(Errno(4103).to_string(), "error number 4103");
        assert_eq!(format!("{:?}", Errno(4103)), "Errno(4103)");
    }

    #[test]
    fn a_refusal_prints_all_its_fields() {
        let refusal = Refusal {
            message: Some("Unknown device type".into()),
            offset: Some(44),
            missing_attribute: Some(3),
            ..Refusal::new(Errno::EOPNOTSUPP)
        };
        assert_eq!(
            refusal.to_string(),
            "Operation not supported on transport endpoint (EOPNOTSUPP): Unknown device type, \
             attribute 3 is missing, at byte 44 of the request"
        );
    }
}
