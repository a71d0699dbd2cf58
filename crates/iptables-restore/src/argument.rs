//! Arguments of a rule that are kept verbatim.

use std::borrow::Cow;
use std::fmt;
use std::hash::{Hash, Hasher};

use crate::error::Error;
use crate::text::check_text;
use crate::wire::token::{Token, needs_quotes, push_quoted};

/// One argument of a rule, kept as written, for matches and targets that this crate has no type for.
///
/// Two arguments with the same text are equal, also if one of them was quoted without need or was separated by more spaces.
#[derive(Clone, Debug)]
pub struct Argument {
    text: Box<str>,
    is_quoted: bool,
    /// Spaces before it in addition to the one that is always there. Some extensions print two.
    extra_spaces: u16,
}

impl Argument {
    /// An argument that is rendered in quotes where the tools need them.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if `text` contains a line feed or a NUL, which quotes do not protect, and [`Error::TooLong`] above
    /// [`Argument::LIMIT`] bytes.
    pub fn new(text: &str) -> Result<Self, Error> {
        check_text(
            "argument",
            text,
            Self::LIMIT,
            "size of the buffer of add_param_to_argv - 2",
        )?;
        Ok(Argument {
            text: text.into(),
            is_quoted: needs_quotes(text),
            extra_spaces: 0,
        })
    }

    /// Longest argument in bytes: the buffer of the tools (1024) less two.
    ///
    /// Source: `add_param` in `iptables/xshared.c`, iptables 1.8.9.
    pub const LIMIT: usize = 1022;

    /// The text without quotes and escapes.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.text
    }

    pub(crate) fn from_token(token: &Token<'_>) -> Self {
        Argument {
            text: token.text.as_ref().into(),
            is_quoted: token.is_quoted,
            extra_spaces: token.extra_spaces,
        }
    }

    pub(crate) fn to_token(&self) -> Token<'_> {
        Token {
            text: Cow::Borrowed(&self.text),
            is_quoted: self.is_quoted,
            extra_spaces: self.extra_spaces,
            is_match_option: false,
        }
    }

    /// Appends the argument with the spaces before it.
    pub(crate) fn push_spaced(&self, out: &mut String) {
        for _ in 0..=self.extra_spaces {
            out.push(' ');
        }
        self.push(out);
    }

    fn push(&self, out: &mut String) {
        if self.is_quoted || needs_quotes(&self.text) {
            push_quoted(out, &self.text);
        } else {
            out.push_str(&self.text);
        }
    }
}

impl PartialEq for Argument {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Argument {}

impl Hash for Argument {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.text.hash(state);
    }
}

impl fmt::Display for Argument {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        self.push(&mut text);
        f.write_str(&text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::token::split;

    #[test]
    fn an_argument_is_parsed_as_it_was_rendered() {
        for text in [
            "", "a", "a b", "\"", "\\", "'", "a\\", "\\\"", "é ü", "!", "--x", "a\tb",
        ] {
            let argument = Argument::new(text).unwrap().to_string();
            let mut tokens = Vec::new();
            split(&argument, &mut tokens).unwrap();
            assert_eq!(tokens.len(), 1);
            assert_eq!(tokens[0].text, text);
        }
        assert!(Argument::new("a\nb").is_err() && Argument::new("a\0").is_err());
    }
}
