//! Parsing the options of a match or a target.

use std::str::FromStr;

use crate::condition::Condition;
use crate::wire::token::Token;

/// The tokens of a rule and the index of the next one.
pub(crate) struct Options<'w, 't> {
    pub(crate) tokens: &'w [Token<'t>],
    pub(crate) at: usize,
}

/// An option: `--name`, with or without `!` before it.
pub(crate) struct Flag<'w> {
    pub(crate) name: &'w str,
    pub(crate) negated: bool,
    start: usize,
}

impl Flag<'_> {
    /// The value, negated if the option is.
    pub(crate) fn condition<T>(&self, value: T) -> Condition<T> {
        if self.negated {
            Condition::Not(value)
        } else {
            Condition::Is(value)
        }
    }

    /// `None` if the option is negated.
    pub(crate) fn not_negated(&self) -> Option<()> {
        (!self.negated).then_some(())
    }
}

impl<'w> Options<'w, '_> {
    pub(crate) fn peek(&self) -> Option<&'w str> {
        self.tokens.get(self.at).map(|token| token.text.as_ref())
    }

    pub(crate) fn next(&mut self) -> Option<&'w str> {
        let token = self.peek()?;
        self.at += 1;
        Some(token)
    }

    /// The next token if it is a long option, or `!` followed by one.
    pub(crate) fn flag(&mut self) -> Option<Flag<'w>> {
        let start = self.at;
        let long = |at: usize| {
            let token = self.tokens.get(at)?;
            (!token.is_quoted && token.text.starts_with("--")).then_some(token.text.as_ref())
        };
        let negated = self
            .tokens
            .get(start)
            .is_some_and(|token| !token.is_quoted && token.is("!"));
        let at = start + usize::from(negated);
        let name = long(at)?;
        self.at = at + 1;
        Some(Flag { name, negated, start })
    }

    /// Makes an option the next token again, because it belongs to another match or target.
    pub(crate) fn put_back(&mut self, flag: &Flag<'_>) {
        self.at = flag.start;
    }

    /// The next token, parsed.
    pub(crate) fn value<T: FromStr>(&mut self) -> Option<T> {
        self.next()?.parse().ok()
    }

    /// The next token as a [`number`].
    pub(crate) fn number(&mut self) -> Option<u32> {
        number(self.next()?)
    }

    /// `value` or `value/mask`, each decimal or hexadecimal.
    pub(crate) fn mark(&mut self) -> Option<(u32, Option<u32>)> {
        let token = self.next()?;
        match token.split_once('/') {
            Some((value, mask)) => Some((number(value)?, Some(number(mask)?))),
            None => Some((number(token)?, None)),
        }
    }
}

/// Parses a decimal number, or a hexadecimal one after `0x`. A leading zero, which means octal to the tools, is refused.
pub(crate) fn number(text: &str) -> Option<u32> {
    if let Some(digits) = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        return digits
            .bytes()
            .all(|byte| byte.is_ascii_hexdigit())
            .then(|| u32::from_str_radix(digits, 16).ok())
            .flatten();
    }
    decimal(text)
}

/// Parses a decimal number without sign and leading zero.
pub(crate) fn decimal<T: FromStr>(text: &str) -> Option<T> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    (digits && (text.len() == 1 || !text.starts_with('0')))
        .then(|| text.parse().ok())
        .flatten()
}

/// Sets a value; `None` if it was set before. An option given twice is kept verbatim.
pub(crate) fn set_once<T>(target: &mut Option<T>, value: T) -> Option<()> {
    target.replace(value).is_none().then_some(())
}

/// As [`set_once`], for an option without a value.
pub(crate) fn set_flag_once(flag: &mut bool) -> Option<()> {
    (!std::mem::replace(flag, true)).then_some(())
}
