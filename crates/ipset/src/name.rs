//! Names of sets, set types and interfaces.

use std::fmt;
use std::str::FromStr;

use crate::inline_bytes::InlineBytes;
use crate::uapi::{IFNAMSIZ, IPSET_MAXNAMELEN};

/// The name of a set: 1 to 31 bytes without NUL. A longer name is an error; it is not truncated.
///
/// The kernel accepts any bytes except NUL. Names that other programs chose may contain spaces and need not be UTF-8; they are
/// listed unchanged. The notation of `ipset save` cannot represent a name with a space.
#[doc(alias = "SETNAME")]
#[doc(alias = "IPSET_ATTR_SETNAME")]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SetName(InlineBytes<{ IPSET_MAXNAMELEN - 1 }>);

/// The name of a set type as the kernel spells it, such as `hash:ip,port`: 1 to 31 bytes without NUL.
#[doc(alias = "IPSET_ATTR_TYPENAME")]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TypeName(InlineBytes<{ IPSET_MAXNAMELEN - 1 }>);

/// The name of a network interface, or a prefix of names: 1 to 15 bytes without NUL.
#[doc(alias = "IFNAMSIZ")]
#[doc(alias = "IPSET_ATTR_IFACE")]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InterfaceName(InlineBytes<{ IFNAMSIZ - 1 }>);

/// Why a name is invalid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// The name is empty.
    #[error("a {what} must not be empty")]
    Empty {
        /// The kind of name.
        what: &'static str,
    },
    /// The name is longer than the kernel's buffer.
    #[error("{what} {name:?} has {len} bytes; the maximum is {limit} ({constant} includes the NUL)")]
    TooLong {
        /// The kind of name.
        what: &'static str,
        /// The invalid name.
        name: String,
        /// Its length in bytes.
        len: usize,
        /// The maximum in bytes, without the NUL.
        limit: usize,
        /// The kernel's constant for the size of the buffer.
        constant: &'static str,
    },
    /// The name contains a NUL.
    #[error("{what} {name:?} must not contain a NUL byte")]
    Nul {
        /// The kind of name.
        what: &'static str,
        /// The invalid name.
        name: String,
    },
}

impl NameError {
    /// The text without the name.
    pub(crate) fn reason(&self) -> String {
        match self {
            NameError::Empty { .. } => "must not be empty".to_owned(),
            NameError::TooLong {
                len, limit, constant, ..
            } => format!("has {len} bytes; the maximum is {limit} ({constant} includes the NUL)"),
            NameError::Nul { .. } => "must not contain a NUL byte".to_owned(),
        }
    }
}

macro_rules! name {
    ($name:ident, $what:literal, $limit:expr, $constant:literal) => {
        impl $name {
            #[doc = concat!("A ", $what, ".\n\n# Errors\n\nIf the name is empty, too long (`", $constant, "`), or contains a NUL.")]
            pub fn new(name: &str) -> Result<Self, NameError> {
                Self::from_bytes(name.as_bytes())
            }

            #[doc = concat!("A ", $what, ", which need not be UTF-8.\n\n# Errors\n\nAs for [`Self::new`].")]
            pub fn from_bytes(name: &[u8]) -> Result<Self, NameError> {
                let text = || String::from_utf8_lossy(name).into_owned();
                if name.is_empty() {
                    return Err(NameError::Empty { what: $what });
                }
                if name.len() > $limit {
                    return Err(NameError::TooLong { what: $what, name: text(), len: name.len(), limit: $limit, constant: $constant });
                }
                InlineBytes::new(name).map($name).ok_or_else(|| NameError::Nul { what: $what, name: text() })
            }

            /// The bytes, without a NUL.
            #[must_use]
            pub fn as_bytes(&self) -> &[u8] {
                self.0.as_bytes()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:?}", String::from_utf8_lossy(self.as_bytes()))
            }
        }

        impl FromStr for $name {
            type Err = NameError;

            fn from_str(name: &str) -> Result<Self, NameError> {
                Self::new(name)
            }
        }

        impl TryFrom<&str> for $name {
            type Error = NameError;

            fn try_from(name: &str) -> Result<Self, NameError> {
                Self::new(name)
            }
        }
    };
}

name!(SetName, "set name", IPSET_MAXNAMELEN - 1, "IPSET_MAXNAMELEN");
name!(
    TypeName,
    "set type name",
    IPSET_MAXNAMELEN - 1,
    "IPSET_MAXNAMELEN"
);
name!(InterfaceName, "interface name", IFNAMSIZ - 1, "IFNAMSIZ");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_of_31_bytes_is_valid_and_one_of_32_is_not() {
        let name = SetName::new("KUBE-6-LOAD-BALANCER-SOURCE-CID").unwrap();
        assert_eq!(name.to_string(), "KUBE-6-LOAD-BALANCER-SOURCE-CID");
        let error = SetName::new("KUBE-6-LOAD-BALANCER-SOURCE-CIDR").unwrap_err();
        assert_eq!(
            error.to_string(),
            "set name \"KUBE-6-LOAD-BALANCER-SOURCE-CIDR\" has 32 bytes; the maximum is 31 (IPSET_MAXNAMELEN includes the NUL)"
        );
    }

    #[test]
    fn empty_names_and_names_with_a_nul_are_refused() {
        assert_eq!(
            SetName::new("").unwrap_err().to_string(),
            "a set name must not be empty"
        );
        assert_eq!(
            SetName::new("a\0b").unwrap_err().to_string(),
            "set name \"a\\0b\" must not contain a NUL byte"
        );
    }

    #[test]
    fn names_are_ordered_as_text() {
        let mut names = ["b", "ab", "a", "B", "aa"].map(|name| SetName::new(name).unwrap());
        names.sort();
        assert_eq!(names.map(|name| name.to_string()), ["B", "a", "aa", "ab", "b"]);
    }
}
