//! Reading the options of a match or a target.

use std::str::FromStr;

use crate::condition::Condition;
use crate::wire::token::RawWord;

/// The words of a rule and how far they have been read.
pub(crate) struct Options<'w, 't> {
    pub(crate) words: &'w [RawWord<'t>],
    pub(crate) at: usize,
}

/// An option being read: `--name`, with `!` before it or not.
pub(crate) struct Flag<'w> {
    pub(crate) name: &'w str,
    pub(crate) negated: bool,
    start: usize,
}

impl Flag<'_> {
    /// The value with the sign of this option.
    pub(crate) fn sign<T>(&self, value: T) -> Condition<T> {
        if self.negated {
            Condition::Not(value)
        } else {
            Condition::Is(value)
        }
    }

    /// Fails where `!` has no meaning.
    pub(crate) fn plain(&self) -> Option<()> {
        (!self.negated).then_some(())
    }
}

impl<'w> Options<'w, '_> {
    pub(crate) fn peek(&self) -> Option<&'w str> {
        self.words.get(self.at).map(|word| word.text.as_ref())
    }

    pub(crate) fn next(&mut self) -> Option<&'w str> {
        let word = self.peek()?;
        self.at += 1;
        Some(word)
    }

    /// The next word if it is a long option, or `!` and then one.
    pub(crate) fn flag(&mut self) -> Option<Flag<'w>> {
        let start = self.at;
        let long = |at: usize| {
            let word = self.words.get(at)?;
            (!word.quoted && word.text.starts_with("--")).then_some(word.text.as_ref())
        };
        let negated = self
            .words
            .get(start)
            .is_some_and(|word| !word.quoted && word.is("!"));
        let place = start + usize::from(negated);
        let name = long(place)?;
        self.at = place + 1;
        Some(Flag { name, negated, start })
    }

    /// Hands an option back: it belongs to something else.
    pub(crate) fn give_back(&mut self, flag: &Flag<'_>) {
        self.at = flag.start;
    }

    /// The next word as a value.
    pub(crate) fn value<T: FromStr>(&mut self) -> Option<T> {
        self.next()?.parse().ok()
    }

    /// The next word as a number without leading zeros surprises: decimal, or hexadecimal after `0x`.
    pub(crate) fn number(&mut self) -> Option<u32> {
        number(self.next()?)
    }

    /// `value` or `value/mask`, each decimal or hexadecimal.
    pub(crate) fn mark(&mut self) -> Option<(u32, Option<u32>)> {
        let word = self.next()?;
        match word.split_once('/') {
            Some((value, mask)) => Some((number(value)?, Some(number(mask)?))),
            None => Some((number(word)?, None)),
        }
    }
}

/// Decimal, or hexadecimal after `0x`. With a leading zero the tools would read octal: not taken.
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

/// Decimal digits without a sign or a leading zero.
pub(crate) fn decimal<T: FromStr>(text: &str) -> Option<T> {
    let digits = text.bytes().all(|byte| byte.is_ascii_digit());
    (digits && (text.len() == 1 || !text.starts_with('0')))
        .then(|| text.parse().ok())
        .flatten()
}

/// Puts a value where there is none yet. An option given twice is not understood.
pub(crate) fn once<T>(place: &mut Option<T>, value: T) -> Option<()> {
    place.replace(value).is_none().then_some(())
}

/// The same for an option without a value.
pub(crate) fn once_flag(place: &mut bool) -> Option<()> {
    (!std::mem::replace(place, true)).then_some(())
}
