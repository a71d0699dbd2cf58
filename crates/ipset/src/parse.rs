//! Parsing: the error, and numbers.

use std::fmt;

/// An invalid word of a text, with the reason.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ParseError {
    what: &'static str,
    text: String,
    reason: String,
}

impl ParseError {
    pub(crate) fn new(what: &'static str, text: impl fmt::Display, reason: impl fmt::Display) -> Self {
        ParseError {
            what,
            text: text.to_string(),
            reason: reason.to_string(),
        }
    }

    /// What was expected, such as "port" or "address".
    #[must_use]
    pub fn what(&self) -> &'static str {
        self.what
    }

    /// The invalid text.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The reason, as a predicate: "is not a number from 0 to 65535".
    #[must_use]
    pub fn reason(&self) -> &str {
        &self.reason
    }
}

impl fmt::Display for ParseError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {:?} {}", self.what, self.text, self.reason)
    }
}

impl std::error::Error for ParseError {}

/// Parses a number in decimal, in hexadecimal with the prefix `0x`, or in octal with the prefix `0`, as `strtoull(3)` does.
pub(crate) fn number(what: &'static str, text: &str, max: u64) -> Result<u64, ParseError> {
    let (digits, radix) = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(hexadecimal) => (hexadecimal, 16),
        None if text.len() > 1 && text.starts_with('0') => (text, 8),
        None => (text, 10),
    };
    // The standard library would accept a sign.
    let plain = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    match u64::from_str_radix(digits, radix) {
        Ok(number) if plain && number <= max => Ok(number),
        _ => Err(ParseError::new(
            what,
            text,
            format_args!("is not a number from 0 to {max}"),
        )),
    }
}
