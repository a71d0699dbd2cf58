//! Short kernel names: of schedulers, persistence engines and interfaces.

use std::fmt;

/// A name of 1 to 15 bytes without white space, control characters or NUL, held in place so that it is `Copy`.
///
/// All three C constants for such names (`IP_VS_SCHEDNAME_MAXLEN`, `IP_VS_PENAME_MAXLEN`, `IP_VS_IFNAME_MAXLEN`) are 16,
/// the closing NUL included.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct ShortName {
    bytes: [u8; 16],
}

/// A name that the kernel could not take.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidName {
    /// The name has no characters.
    #[error("{what} name is empty")]
    Empty {
        /// What is named: "scheduler", "persistence engine" or "interface".
        what: &'static str,
    },
    /// The name does not fit.
    #[error("{what} name {name:?} has {length} bytes, but {limit} leaves room for 15")]
    TooLong {
        /// What is named.
        what: &'static str,
        /// The name as given.
        name: String,
        /// Its length in bytes.
        length: usize,
        /// The header constant that sets the limit.
        limit: &'static str,
    },
    /// White space, a control character or NUL, none of which the kernel's names or the operator's notation can hold.
    #[error("{what} name {name:?} holds the character {character:?}")]
    Character {
        /// What is named.
        what: &'static str,
        /// The name as given.
        name: String,
        /// The first character that cannot be.
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

    /// For the names this crate knows; a longer one does not compile, as every use is in a constant.
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
        // Both constructors copied a whole `str`, so neither fallback is ever taken.
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
            "scheduler name \"abcdefghijklmnop\" has 16 bytes, but IP_VS_SCHEDNAME_MAXLEN leaves room for 15"
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
