//! What can go wrong on a netlink socket.

use std::fmt;
use std::path::Path;

/// An error number of the kernel, positive.
///
/// Numbers from 4096 up are private to a subsystem (ipset uses them) and have no text here.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Errno(pub i32);

macro_rules! errno_constants {
    ($($name:ident),* $(,)?) => {
        /// The numbers that netlink users tell apart, under their C names.
        #[allow(missing_docs, reason = "the C names say it all: man 3 errno")]
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
    EMSGSIZE,
    ENOBUFS,
    ENODEV,
    ENOENT,
    ENOMEM,
    ENOSPC,
    ENOTSUP,
    ENXIO,
    EOPNOTSUPP,
    EPERM,
    EPROTO,
    EPROTONOSUPPORT,
    ERANGE,
    ESRCH,
);

impl Errno {
    /// The number carried by an I/O error, [`Errno::EIO`] where it carries none.
    pub fn of(error: &std::io::Error) -> Self {
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

/// The kernel's "no" to one request: an error number and, where the kernel sent them, its own
/// words and the place in the request it objects to
/// ([extended acknowledgement](https://github.com/torvalds/linux/blob/v6.12/include/uapi/linux/netlink.h#L121)).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Refusal {
    /// The error number.
    pub errno: Errno,
    /// The kernel's own text (`NLMSGERR_ATTR_MSG`).
    pub message: Option<Box<str>>,
    /// Offset in bytes, from the start of the request's header, of the attribute that the kernel
    /// objects to (`NLMSGERR_ATTR_OFFS`).
    pub offset: Option<u32>,
    /// Type of an attribute that the request lacks (`NLMSGERR_ATTR_MISS_TYPE`).
    pub missing_attribute: Option<u32>,
}

impl Refusal {
    /// A refusal that is a bare error number.
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

/// What can go wrong between a request and its answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A system call on the socket failed.
    #[error("cannot {call} the netlink socket")]
    Socket {
        /// What was attempted: `open`, `bind`, `configure`, `attach a filter to`, `send on`, `receive from`.
        call: &'static str,
        /// Why it failed.
        #[source]
        errno: Errno,
    },
    /// The kernel refused the request.
    #[error("the kernel refused the request")]
    Refused(#[source] Refusal),
    /// No answer within the connection's timeout. The request may have been executed.
    #[error("no answer from the kernel within the timeout")]
    TimedOut,
    /// The request was not sent, because the outcome of an earlier one of the same batch is unknown. It was not executed.
    #[error("not sent, because the outcome of an earlier request is unknown")]
    NotSent,
    /// The kernel dropped answers because the receive buffer was full. Requests without an answer
    /// of their own may or may not have been executed.
    #[error("the receive buffer overran and the answer is lost")]
    Overrun,
    /// A datagram was longer than the receive buffer.
    #[error("a datagram of {size} bytes does not fit the receive buffer of {capacity} bytes")]
    Truncated {
        /// Length of the datagram in bytes.
        size: usize,
        /// Length of the buffer in bytes.
        capacity: usize,
    },
    /// What was listed changed during every attempt to list it (`NLM_F_DUMP_INTR`).
    #[error("the listing was interrupted by changes {attempts} times")]
    DumpInterrupted {
        /// How often the listing was started.
        attempts: u32,
    },
    /// The kernel sent bytes that do not make sense.
    #[error("malformed {what}")]
    Malformed {
        /// What was being read.
        what: &'static str,
    },
    /// An attribute's payload has another length than its type has.
    #[error("attribute {kind} has {length} bytes and not the {expected} of its type")]
    AttributeLength {
        /// Type of the attribute, without its flag bits.
        kind: u16,
        /// Length of its payload in bytes.
        length: usize,
        /// Length it should have.
        expected: usize,
    },
    /// A receive buffer that the kernel cannot make.
    #[error(
        "invalid receive buffer of {bytes} bytes; valid: 0 to {}",
        crate::transport::MAX_RECEIVE_BUFFER
    )]
    ReceiveBuffer {
        /// The size asked for.
        bytes: usize,
    },
    /// A socket filter without instructions, or with more than the kernel takes.
    #[error(
        "invalid socket filter of {instructions} instructions; valid: 1 to {} (BPF_MAXINSNS)",
        crate::MAX_FILTER_INSTRUCTIONS
    )]
    FilterLength {
        /// The number of instructions.
        instructions: usize,
    },
    /// A request does not fit into a message: an attribute longer than 65 535 bytes, or a message
    /// longer than the socket can send.
    #[error("{what} is longer than the {limit} bytes that netlink can carry")]
    TooLarge {
        /// What is too large.
        what: &'static str,
        /// The limit in bytes.
        limit: usize,
    },
    /// The kernel has no generic-netlink family of this name and could not load a module for it.
    #[error("the kernel has no generic-netlink family {name:?}")]
    UnknownFamily {
        /// The name that was looked up.
        name: Box<str>,
    },
    /// A network namespace could not be opened or entered.
    #[error("cannot {call} the network namespace{}{}", if path.is_some() { " " } else { "" }, path.as_deref().unwrap_or(Path::new("")).display())]
    Namespace {
        /// What was attempted: `open`, `enter`, `start a thread for`.
        call: &'static str,
        /// By which path it was opened; `None` of one that came as a file descriptor.
        path: Option<Box<Path>>,
        /// Why it failed.
        #[source]
        errno: Errno,
    },
    /// A scripted peer was sent something else than its script says (feature `fake`).
    #[error("the script expected {expected} and was sent {sent}")]
    OffScript {
        /// What the script says, in hexadecimal.
        expected: Box<str>,
        /// What came, in hexadecimal.
        sent: Box<str>,
    },
}

impl Error {
    /// The kernel's error number, where the kernel refused or a system call failed.
    pub fn errno(&self) -> Option<Errno> {
        match self {
            Error::Refused(refusal) => Some(refusal.errno),
            Error::Socket { errno, .. } | Error::Namespace { errno, .. } => Some(*errno),
            _ => None,
        }
    }

    /// Whether the request may have been executed although this error came back: its answer was lost or could not be read.
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
    fn errno_prints_text_and_name() {
        assert_eq!(Errno::ESRCH.to_string(), "No such process (ESRCH)");
        assert_eq!(Errno(4103).to_string(), "error number 4103");
        assert_eq!(format!("{:?}", Errno(4103)), "Errno(4103)");
    }

    #[test]
    fn refusal_prints_all_that_the_kernel_said() {
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
