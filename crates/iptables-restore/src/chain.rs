//! Names of chains.

use std::fmt;
use std::str::FromStr;

use crate::error::Error;

/// Name of a chain: 1 to [`ChainName::LIMIT`] bytes that the tools take for a chain and nothing else.
///
/// Kept in place and `Copy`, because a large rule set names its chains a hundred thousand times.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[doc(alias = "XT_EXTENSION_MAXNAMELEN")]
pub struct ChainName {
    // Bytes after `length` are zero, so that the derived comparisons are those of the text.
    bytes: [u8; Self::LIMIT],
    length: u8,
}

impl ChainName {
    /// Longest name in bytes: `XT_EXTENSION_MAXNAMELEN` (29) less the closing NUL.
    ///
    /// Source: `include/uapi/linux/netfilter/x_tables.h`, Linux 6.1.
    pub const LIMIT: usize = 28;

    /// Takes `name` if it fits the kernel and the tools.
    ///
    /// # Errors
    ///
    /// [`Error::TooLong`] above [`ChainName::LIMIT`] bytes; [`Error::Invalid`] if the name is empty, starts
    /// with `-`, `!` or `:`, holds a blank, a control character or a double quote, or is the name of a
    /// target (the tools refuse all of these, or would read them as something else).
    pub fn new(name: &str) -> Result<Self, Error> {
        if is_target(name) {
            return Err(Error::invalid("chain name", name, "is the name of a target"));
        }
        ChainName::found(name)
    }

    /// The name of a chain that is there. Whether the name of a target may be that of a chain depends on the extensions
    /// that are installed, so somebody may have such a chain.
    pub(crate) fn found(name: &str) -> Result<Self, Error> {
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
            Some("is empty")
        } else if name.starts_with(['-', '!', ':']) {
            Some("starts with '-', '!' or ':'")
        } else if !is_plain(name) && name.contains(|c: char| c.is_whitespace() || c.is_control() || c == '"')
        {
            Some("holds a blank, a control character or a double quote")
        } else {
            None
        };
        if let Some(reason) = reason {
            return Err(Error::invalid("chain name", name, reason));
        }
        let mut bytes = [0; Self::LIMIT];
        for (place, byte) in bytes.iter_mut().zip(name.bytes()) {
            *place = byte;
        }
        // The length is at most LIMIT, which fits a byte.
        Ok(ChainName {
            bytes,
            length: name.len() as u8,
        })
    }

    /// The name.
    pub fn as_str(&self) -> &str {
        let bytes = self.bytes.get(..usize::from(self.length)).unwrap_or_default();
        // Filled from a whole str only.
        std::str::from_utf8(bytes).unwrap_or_default()
    }
}

/// Targets of xtables extensions, and the standard ones; the tools refuse them as chain names.
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

/// The quick answer for nearly every name there is.
fn is_plain(name: &str) -> bool {
    name.bytes()
        .all(|byte| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_')
}

/// Whether `name` is that of a target and so cannot be that of a chain.
pub(crate) fn is_target(name: &str) -> bool {
    // The longest of them has eleven letters; most chains are longer.
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
    fn names_up_to_the_limit_are_kept_and_longer_ones_refused_with_it() {
        let longest = "KUBE-SVC-ABCDEFGHIJKLMNOPQRS";
        assert_eq!(longest.len(), 28);
        assert_eq!(ChainName::new(longest).unwrap().as_str(), longest);
        let error = ChainName::new(&format!("{longest}T")).unwrap_err();
        assert!(error.to_string().contains("28"), "{error}");
    }

    #[test]
    fn what_the_tools_would_read_as_something_else_is_refused() {
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
    fn names_order_as_their_text() {
        let [a, b, c] = ["A", "AB", "B"].map(|name| ChainName::new(name).unwrap());
        assert!(a < b && b < c);
    }
}
