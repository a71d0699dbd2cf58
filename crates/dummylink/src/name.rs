//! Names of links and labels of addresses.

use std::fmt;
use std::str::FromStr;

/// Name of a network interface: 1 to 15 bytes, no `/`, `:`, `%` or white space, not `.` or `..`.
///
/// The limit is `IFNAMSIZ`, 16 bytes with the terminating NUL
/// ([`if.h`](https://github.com/torvalds/linux/blob/v6.12/include/uapi/linux/if.h#L33)); the rest
/// are the rules of the kernel's
/// [`dev_valid_name`](https://github.com/torvalds/linux/blob/v6.12/net/core/dev.c#L1072).
/// `%` is invalid because the kernel replaces `%d` by a number.
///
/// Names from the kernel may contain bytes that are not UTF-8. They are kept, and printed as
/// replacement characters.
#[doc(alias = "IFNAMSIZ")]
#[doc(alias = "IFLA_IFNAME")]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LinkName {
    /// The name, followed by zero bytes.
    bytes: [u8; LinkName::MAX_LENGTH],
}

impl LinkName {
    /// The longest name in bytes: `IFNAMSIZ` - 1.
    pub const MAX_LENGTH: usize = 15;

    /// Checks a name.
    ///
    /// # Errors
    /// [`InvalidLinkName`] with the name and the violated rule.
    pub fn new(name: &str) -> Result<Self, InvalidLinkName> {
        let refuse = |reason| {
            Err(InvalidLinkName {
                name: name.into(),
                reason,
            })
        };
        if name.is_empty() {
            return refuse("it is empty");
        }
        if name == "." || name == ".." {
            return refuse("`.` and `..` are reserved");
        }
        if name
            .bytes()
            .any(|byte| matches!(byte, b'/' | b':' | b'%' | 0) || is_kernel_space(byte))
        {
            return refuse("it contains `/`, `:`, `%`, white space or a NUL byte");
        }
        Self::from_kernel(name.as_bytes()).map_or_else(|| refuse(TOO_LONG), Ok)
    }

    /// A name from the kernel. `None` if it is longer than 15 bytes.
    pub(crate) fn from_kernel(name: &[u8]) -> Option<Self> {
        let mut bytes = [0; Self::MAX_LENGTH];
        bytes.get_mut(..name.len())?.copy_from_slice(name);
        Some(LinkName { bytes })
    }

    /// The bytes of the name, without the terminating NUL.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.split(|byte| *byte == 0).next().unwrap_or_default()
    }
}

const TOO_LONG: &str = "it is longer than 15 bytes (IFNAMSIZ - 1)";

/// White space of the kernel's `isspace`, which includes 0xa0 (Latin-1), a byte that also occurs in UTF-8
/// sequences.
fn is_kernel_space(byte: u8) -> bool {
    matches!(byte, b' ' | 0x09..=0x0d | 0xa0)
}

impl fmt::Display for LinkName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&String::from_utf8_lossy(self.as_bytes()))
    }
}

impl fmt::Debug for LinkName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&String::from_utf8_lossy(self.as_bytes()), f)
    }
}

impl FromStr for LinkName {
    type Err = InvalidLinkName;

    fn from_str(name: &str) -> Result<Self, InvalidLinkName> {
        Self::new(name)
    }
}

impl TryFrom<&str> for LinkName {
    type Error = InvalidLinkName;

    fn try_from(name: &str) -> Result<Self, InvalidLinkName> {
        Self::new(name)
    }
}

/// Label of an IPv4 address: 1 to 15 bytes, by convention the link's name, a colon and a suffix.
#[doc(alias = "IFA_LABEL")]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Label(LinkName);

impl Label {
    /// Checks a label.
    ///
    /// # Errors
    /// [`InvalidLinkName`] if it is empty, longer than 15 bytes or contains a NUL byte.
    pub fn new(label: &str) -> Result<Self, InvalidLinkName> {
        let invalid = |reason| InvalidLinkName {
            name: label.into(),
            reason,
        };
        if label.is_empty() {
            return Err(invalid("it is empty"));
        }
        if label.contains('\0') {
            return Err(invalid("it contains a NUL byte"));
        }
        Self::from_kernel(label.as_bytes()).ok_or_else(|| invalid(TOO_LONG))
    }

    /// A label from the kernel. `None` if it is longer than 15 bytes.
    pub(crate) fn from_kernel(label: &[u8]) -> Option<Self> {
        LinkName::from_kernel(label).map(Label)
    }

    /// The bytes of the label, without the terminating NUL.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }
}

impl FromStr for Label {
    type Err = InvalidLinkName;

    fn from_str(label: &str) -> Result<Self, InvalidLinkName> {
        Self::new(label)
    }
}

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, f)
    }
}

/// A text that is not a valid link name or address label.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid link name or label {name:?}: {reason}")]
pub struct InvalidLinkName {
    /// The text.
    pub name: Box<str>,
    /// The violated rule.
    pub reason: &'static str,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_has_at_most_fifteen_bytes() {
        assert_eq!(LinkName::new("abcdefghijklmno").unwrap().as_bytes().len(), 15);
        let error = LinkName::new("abcdefghijklmnop").unwrap_err();
        assert!(error.to_string().contains("IFNAMSIZ"), "{error}");
        // Eight characters, sixteen bytes.
        assert!(LinkName::new("éééééééé").is_err());
    }

    #[test]
    fn names_that_the_kernel_refuses_are_invalid() {
        for name in [
            "", ".", "..", "a/b", "a b", "a:b", "a%d", "a\tb", "a\0b", "a\u{a0}b",
        ] {
            assert!(LinkName::new(name).is_err(), "{name:?}");
        }
        for name in ["kube-ipvs0", "...", "a.b", "é"] {
            assert_eq!(LinkName::new(name).unwrap().to_string(), name);
        }
    }

    #[test]
    fn a_name_from_the_kernel_may_contain_bytes_that_are_not_utf8() {
        let name = LinkName::from_kernel(b"\xffeth").unwrap();
        assert_eq!(name.as_bytes(), b"\xffeth");
        assert_eq!(name.to_string(), "\u{fffd}eth");
        assert_eq!(LinkName::from_kernel(&[b'a'; 16]), None);
    }
}
