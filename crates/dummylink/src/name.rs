//! Names of links.

use std::fmt;
use std::str::FromStr;

/// Name of a network interface: 1 to 15 bytes, no `/`, `:`, `%` or white space, not `.` or `..`.
///
/// The limit is `IFNAMSIZ`, 16 bytes with the NUL that ends the name
/// ([`if.h`](https://github.com/torvalds/linux/blob/v6.12/include/uapi/linux/if.h#L33)); the rest
/// is what the kernel's
/// [`dev_valid_name`](https://github.com/torvalds/linux/blob/v6.12/net/core/dev.c#L1072) refuses.
/// `%` is refused because the kernel takes `%d` for a number that it chooses.
///
/// Names that a kernel hands out may hold bytes that are not UTF-8; they are kept and shown with
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

    /// A name the kernel accepts.
    ///
    /// # Errors
    /// [`InvalidLinkName`] with the name and the rule it breaks.
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
            return refuse("it is a directory's name");
        }
        if name
            .bytes()
            .any(|byte| matches!(byte, b'/' | b':' | b'%' | 0) || is_kernel_space(byte))
        {
            return refuse("it holds '/', ':', '%', white space or a zero byte");
        }
        Self::from_kernel(name.as_bytes()).map_or_else(
            || refuse("it has more than the 15 bytes that IFNAMSIZ allows"),
            Ok,
        )
    }

    /// A name as the kernel sent it. `None` if it is longer than any name of the kernel.
    pub(crate) fn from_kernel(name: &[u8]) -> Option<Self> {
        let mut bytes = [0; Self::MAX_LENGTH];
        bytes.get_mut(..name.len())?.copy_from_slice(name);
        Some(LinkName { bytes })
    }

    /// The name's bytes, without the NUL that ends it.
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.split(|byte| *byte == 0).next().unwrap_or_default()
    }
}

/// What the kernel's `isspace` takes for white space: in Latin-1, so 0xa0 too, which can be part
/// of a UTF-8 sequence.
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

/// Label of an IPv4 address: 1 to 15 bytes, by custom the link's name, a colon and more.
#[doc(alias = "IFA_LABEL")]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Label(LinkName);

impl Label {
    /// A label the kernel accepts.
    ///
    /// # Errors
    /// [`InvalidLinkName`] if it is empty, longer than 15 bytes or holds a zero byte.
    pub fn new(label: &str) -> Result<Self, InvalidLinkName> {
        let invalid = |reason| InvalidLinkName {
            name: label.into(),
            reason,
        };
        if label.is_empty() {
            return Err(invalid("it is empty"));
        }
        if label.contains('\0') {
            return Err(invalid("it holds a zero byte"));
        }
        Self::from_kernel(label.as_bytes())
            .ok_or_else(|| invalid("it has more than the 15 bytes that IFNAMSIZ allows"))
    }

    /// A label as the kernel sent it. `None` if it is longer than any label of the kernel.
    pub(crate) fn from_kernel(label: &[u8]) -> Option<Self> {
        LinkName::from_kernel(label).map(Label)
    }

    /// The label's bytes, without the NUL that ends it.
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

/// A text that is not the name of a link, or not the label of an address.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name:?} cannot be the name or label of a link: {reason}")]
pub struct InvalidLinkName {
    /// The text.
    pub name: Box<str>,
    /// The rule that it breaks.
    pub reason: &'static str,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fifteen_bytes_are_a_name_and_sixteen_are_not() {
        assert_eq!(LinkName::new("abcdefghijklmno").unwrap().as_bytes().len(), 15);
        let error = LinkName::new("abcdefghijklmnop").unwrap_err();
        assert!(error.to_string().contains("IFNAMSIZ"), "{error}");
        // Eight characters, sixteen bytes.
        assert!(LinkName::new("éééééééé").is_err());
    }

    #[test]
    fn what_the_kernel_refuses_is_refused() {
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
    fn a_name_of_the_kernel_may_be_no_text() {
        let name = LinkName::from_kernel(b"\xffeth").unwrap();
        assert_eq!(name.as_bytes(), b"\xffeth");
        assert_eq!(name.to_string(), "\u{fffd}eth");
        assert_eq!(LinkName::from_kernel(&[b'a'; 16]), None);
    }
}
