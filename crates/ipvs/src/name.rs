//! Short kernel names: of schedulers, persistence engines and interfaces.

use std::fmt;

/// A name of 1 to 15 bytes without white space, control characters or NUL, stored inline so that it is `Copy`.
///
/// The C constants for such names (`IP_VS_SCHEDNAME_MAXLEN`, `IP_VS_PENAME_MAXLEN`, `IP_VS_IFNAME_MAXLEN`) are 16, including the
/// terminating NUL.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ShortName {
    bytes: [u8; 16],
}

/// A name that is not valid for the kernel.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidName {
    /// The name is empty.
    #[error("empty {what} name; valid: 1 to 15 bytes")]
    Empty {
        /// The kind of object: "scheduler", "persistence engine" or "interface".
        what: &'static str,
    },
    /// The name has more than 15 bytes.
    #[error("invalid {what} name {name:?} of {length} bytes; valid: 1 to 15 bytes ({limit})")]
    TooLong {
        /// The kind of object.
        what: &'static str,
        /// The name.
        name: String,
        /// Its length in bytes.
        length: usize,
        /// The C constant of the limit.
        limit: &'static str,
    },
    /// The name contains white space, a control character or NUL.
    #[error("invalid {what} name {name:?}; it must not contain {character:?}")]
    Character {
        /// The kind of object.
        what: &'static str,
        /// The name.
        name: String,
        /// The first invalid character.
        character: char,
    },
}

impl ShortName {
    pub(crate) fn new(what: &'static str, limit: &'static str, name: &str) -> Result<Self, InvalidName> {
        if name.is_empty() {
            return Err(InvalidName::Empty { what });
        }
        if let Some(character) = name.chars().find(|c| c.is_whitespace() || c.is_control()) {
            return Err(InvalidName::Character {
                what,
                name: name.to_owned(),
                character,
            });
        }
        let mut bytes = [0; 16];
        match bytes.get_mut(..name.len()) {
            Some(room) if name.len() < 16 => room.copy_from_slice(name.as_bytes()),
            _ => {
                return Err(InvalidName::TooLong {
                    what,
                    name: name.to_owned(),
                    length: name.len(),
                    limit,
                });
            }
        }
        Ok(Self { bytes })
    }

    /// For constants of this crate. A name of more than 15 bytes does not compile.
    pub(crate) const fn known(name: &'static str) -> Self {
        let mut bytes = [0; 16];
        let from = name.as_bytes();
        assert!(from.len() < 16);
        let mut i = 0;
        while i < from.len() {
            bytes[i] = from[i];
            i += 1;
        }
        Self { bytes }
    }

    pub(crate) fn as_str(&self) -> &str {
        let used = self
            .bytes
            .iter()
            .position(|b| *b == 0)
            .unwrap_or(self.bytes.len());
        // Both constructors copied a whole `str`, so the fallbacks are not reachable.
        std::str::from_utf8(self.bytes.get(..used).unwrap_or_default()).unwrap_or_default()
    }
}

impl fmt::Display for ShortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl fmt::Debug for ShortName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fifteen_bytes_fit_and_sixteen_do_not() {
        let name = |s: &str| ShortName::new("scheduler", "IP_VS_SCHEDNAME_MAXLEN", s);
        assert_eq!(name("abcdefghijklmno").unwrap().as_str(), "abcdefghijklmno");
        let error = name("abcdefghijklmnop").unwrap_err();
        assert_eq!(
            error.to_string(),
            "invalid scheduler name \"abcdefghijklmnop\" of 16 bytes; valid: 1 to 15 bytes (IP_VS_SCHEDNAME_MAXLEN)"
        );
    }

    #[test]
    fn empty_and_unprintable_names_are_refused() {
        for bad in ["", "a b", "a\0", "a\n"] {
            assert!(
                ShortName::new("interface", "IP_VS_IFNAME_MAXLEN", bad).is_err(),
                "{bad:?}"
            );
        }
    }
}
