//! Names of chains.

use std::fmt;
use std::str::FromStr;

use crate::error::Error;
use crate::uapi::XT_EXTENSION_MAXNAMELEN;

/// The name of a chain: 1 to [`ChainName::LIMIT`] bytes that the tools accept as a chain name.
///
/// Stored inline and `Copy`, because a large rule set contains a hundred thousand chain names.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[doc(alias = "XT_EXTENSION_MAXNAMELEN")]
pub struct ChainName {
    // Bytes after `length` are zero, so that the derived comparisons compare the text.
    bytes: [u8; Self::LIMIT],
    length: u8,
}

impl ChainName {
    /// Longest name in bytes: [`XT_EXTENSION_MAXNAMELEN`] less the closing NUL.
    pub const LIMIT: usize = XT_EXTENSION_MAXNAMELEN - 1;

    /// Checks a name.
    ///
    /// # Errors
    ///
    /// [`Error::TooLong`] above [`ChainName::LIMIT`] bytes; [`Error::Invalid`] if the name is empty, starts
    /// with `-`, `!` or `:`, contains whitespace, a control character or a double quote, or is the name of a target. The tools refuse
    /// these names or parse them as something else.
    pub fn new(name: &str) -> Result<Self, Error> {
        if is_target(name) {
            return Err(Error::invalid(
                "chain name",
                name,
                "must not be the name of a target",
            ));
        }
        ChainName::from_saved(name)
    }

    /// The name of an existing chain. It can be the name of a target whose extension is not installed.
    pub(crate) fn from_saved(name: &str) -> Result<Self, Error> {
        if name.len() > Self::LIMIT {
            return Err(Error::TooLong {
                field: "chain name",
                value: name.into(),
                length: name.len(),
                limit: Self::LIMIT,
                constant: "XT_EXTENSION_MAXNAMELEN - 1",
            });
        }
        let reason = if name.is_empty() {
            Some("must not be empty")
        } else if name.starts_with(['-', '!', ':']) {
            Some("must not start with '-', '!' or ':'")
        } else if !is_plain(name) && name.contains(|c: char| c.is_whitespace() || c.is_control() || c == '"')
        {
            Some("must not contain whitespace, control characters or double quotes")
        } else {
            None
        };
        if let Some(reason) = reason {
            return Err(Error::invalid("chain name", name, reason));
        }
        let mut bytes = [0; Self::LIMIT];
        for (slot, byte) in bytes.iter_mut().zip(name.bytes()) {
            *slot = byte;
        }
        // At most LIMIT, which fits into a byte.
        Ok(ChainName {
            bytes,
            length: name.len() as u8,
        })
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        let bytes = self.bytes.get(..usize::from(self.length)).unwrap_or_default();
        // Copied from a complete str.
        std::str::from_utf8(bytes).unwrap_or_default()
    }
}

/// Standard targets and targets of xtables extensions, which the tools refuse as chain names.
///
/// Source: `extensions/` of iptables 1.8.11.
const TARGETS: [&str; 56] = [
    "ACCEPT",
    "AUDIT",
    "BALANCE",
    "CHECKSUM",
    "CLASSIFY",
    "CLUSTERIP",
    "CONNMARK",
    "CONNSECMARK",
    "CT",
    "DNAT",
    "DNPT",
    "DROP",
    "DSCP",
    "ECN",
    "ERROR",
    "FTOS",
    "HL",
    "HMARK",
    "IDLETIMER",
    "LED",
    "LOG",
    "MARK",
    "MASQUERADE",
    "MIRROR",
    "NETMAP",
    "NFLOG",
    "NFQUEUE",
    "NOTRACK",
    "QUEUE",
    "RATEEST",
    "REDIRECT",
    "REJECT",
    "RETURN",
    "ROUTE",
    "SAME",
    "SECMARK",
    "SET",
    "SNAT",
    "SNPT",
    "STANDARD",
    "SYNPROXY",
    "TARPIT",
    "TCPMSS",
    "TCPOPTSTRIP",
    "TEE",
    "TOS",
    "TPROXY",
    "TRACE",
    "TTL",
    "ULOG",
    "XOR",
    "standard",
    "ACCOUNT",
    "CHAOS",
    "DELUDE",
    "ECHO",
];

/// Whether the name consists of characters that are always valid: a fast path for nearly all names.
fn is_plain(name: &str) -> bool {
    name.bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
}

/// Whether `name` is the name of a target.
pub(crate) fn is_target(name: &str) -> bool {
    // The longest has eleven letters; most chain names are longer.
    name.len() <= 11 && TARGETS.contains(&name)
}

impl fmt::Display for ChainName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for ChainName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ChainName({:?})", self.as_str())
    }
}

impl FromStr for ChainName {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        ChainName::new(text)
    }
}

impl TryFrom<&str> for ChainName {
    type Error = Error;

    fn try_from(text: &str) -> Result<Self, Error> {
        ChainName::new(text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_longer_than_the_limit_are_refused() {
        let longest = "KUBE-SVC-ABCDEFGHIJKLMNOPQRS";
        assert_eq!(longest.len(), 28);
        assert_eq!(ChainName::new(longest).unwrap().as_str(), longest);
        let error = ChainName::new(&format!("{longest}T")).unwrap_err();
        assert!(error.to_string().contains("28"), "{error}");
    }

    #[test]
    fn names_that_the_tools_would_parse_as_something_else_are_refused() {
        for name in [
            "",
            "-A",
            "!x",
            ":x",
            "a b",
            "a\tb",
            "a\nb",
            "a\"b",
            "a\0",
            "MASQUERADE",
            "ACCEPT",
        ] {
            assert!(ChainName::new(name).is_err(), "{name:?}");
        }
    }

    #[test]
    fn names_are_ordered_as_text() {
        let [a, b, c] = ["A", "AB", "B"].map(|name| ChainName::new(name).unwrap());
        assert!(a < b && b < c);
    }
}
