//! Words of a rule: how the tools split a line, and how a word is written so that they read it back.
//!
//! The splitting is that of `add_param_to_argv` in `iptables/xshared.c`, iptables 1.8.9: blanks outside
//! double quotes end a word; so does the closing quote, even with more text right behind it; inside quotes
//! a backslash takes the next character as it is; outside, a backslash is an ordinary character.

use std::borrow::Cow;
use std::fmt;
use std::hash::{Hash, Hasher};

use crate::error::Error;

/// One word of a rule, kept as written, for what this crate has no type for.
///
/// Two words with the same text are equal, whether one was written in quotes that it does not need or not, and
/// however many blanks stood before it.
#[derive(Clone, Debug)]
pub struct Word {
    text: Box<str>,
    quoted: bool,
    /// Blanks before it, beyond the one that there always is: some extensions print two.
    more_blanks: u16,
}

impl Word {
    /// A word that is written in quotes where the tools need that.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] if `text` holds a line feed or a NUL, which no quoting carries, and
    /// [`Error::TooLong`] above [`Word::LIMIT`] bytes.
    pub fn new(text: &str) -> Result<Self, Error> {
        check_text(
            "word",
            text,
            Self::LIMIT,
            "size of the buffer of add_param_to_argv - 1",
        )?;
        Ok(Word {
            text: text.into(),
            quoted: needs_quotes(text),
            more_blanks: 0,
        })
    }

    /// Longest word in bytes that the tools take: their buffer of 1024 less two.
    ///
    /// Source: `add_param` in `iptables/xshared.c`, iptables 1.8.9.
    pub const LIMIT: usize = 1022;

    /// The word, quotes and escapes resolved.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    pub(crate) fn to_raw(&self) -> RawWord<'_> {
        RawWord {
            text: Cow::Borrowed(&self.text),
            quoted: self.quoted,
            more_blanks: self.more_blanks,
            is_claimed: false,
        }
    }
}

impl PartialEq for Word {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Word {}

impl Hash for Word {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.text.hash(state);
    }
}

impl fmt::Display for Word {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        push_word(&mut text, self);
        f.write_str(&text)
    }
}

/// Refuses what cannot stand in a word at all, and what is too long.
pub(crate) fn check_text(
    field: &'static str,
    text: &str,
    limit: usize,
    constant: &'static str,
) -> Result<(), Error> {
    if text.contains('\n') {
        return Err(Error::invalid(
            field,
            text,
            "holds a line feed, which ends the line inside quotes too",
        ));
    }
    if text.contains('\0') {
        return Err(Error::invalid(field, text, "holds a NUL, which ends the text"));
    }
    if text.len() > limit {
        return Err(Error::TooLong {
            field,
            value: text.into(),
            length: text.len(),
            limit,
            constant,
        });
    }
    Ok(())
}

/// A word of a line being read; borrowed from the line unless it held an escape.
#[derive(Clone, Debug)]
pub(crate) struct RawWord<'t> {
    pub(crate) text: Cow<'t, str>,
    pub(crate) quoted: bool,
    pub(crate) more_blanks: u16,
    /// It is an option of a match named before it, although it looks like one of the rule itself.
    pub(crate) is_claimed: bool,
}

impl RawWord<'_> {
    pub(crate) fn to_word(&self) -> Word {
        Word {
            text: self.text.as_ref().into(),
            quoted: self.quoted,
            more_blanks: self.more_blanks,
        }
    }

    pub(crate) fn is(&self, text: &str) -> bool {
        self.text == text
    }
}

/// Splits `line` as the tools do, appending to `words`. An unclosed quote is an error.
pub(crate) fn split<'t>(line: &'t str, words: &mut Vec<RawWord<'t>>) -> Result<(), &'static str> {
    let bytes = line.as_bytes();
    let mut at = 0;
    loop {
        let end = at;
        while matches!(bytes.get(at), Some(b' ' | b'\t' | b'\n')) {
            at += 1;
        }
        if at >= bytes.len() {
            return Ok(());
        }
        let first = words.is_empty();
        let next = next_word(line, at, words)?;
        // A line has far fewer blanks than this can count.
        if let Some(word) = words.last_mut().filter(|_| !first && at - end > 1) {
            word.more_blanks = u16::try_from(at - end - 1).unwrap_or(u16::MAX);
        }
        at = next;
    }
}

/// Reads the word at `start` and returns where the next may begin.
fn next_word<'t>(line: &'t str, start: usize, words: &mut Vec<RawWord<'t>>) -> Result<usize, &'static str> {
    let bytes = line.as_bytes();
    let plain = |from: usize| {
        let rest = bytes.get(from..).unwrap_or_default();
        from + rest
            .iter()
            .position(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b'"'))
            .unwrap_or(rest.len())
    };
    let slice = |from: usize, to: usize| line.get(from..to).unwrap_or_default();
    let open = plain(start);
    if bytes.get(open) != Some(&b'"') {
        words.push(RawWord {
            text: Cow::Borrowed(slice(start, open)),
            quoted: false,
            more_blanks: 0,
            is_claimed: slice(start, open) == "--proto" && names_policy(words),
        });
        return Ok(open);
    }
    let mut text = Cow::Borrowed(slice(start, open));
    let mut from = open + 1;
    loop {
        let rest = bytes.get(from..).unwrap_or_default();
        let Some(length) = rest.iter().position(|byte| matches!(byte, b'\\' | b'"')) else {
            return Err("a double quote is not closed");
        };
        let piece = slice(from, from + length);
        if text.is_empty() {
            text = Cow::Borrowed(piece);
        } else if !piece.is_empty() {
            text.to_mut().push_str(piece);
        }
        from += length;
        if bytes.get(from) == Some(&b'"') {
            words.push(RawWord {
                text,
                quoted: true,
                more_blanks: 0,
                is_claimed: false,
            });
            return Ok(from + 1);
        }
        let Some(escaped) = slice(from + 1, line.len()).chars().next() else {
            return Err("the line ends in a backslash");
        };
        text.to_mut().push(escaped);
        from += 1 + escaped.len_utf8();
    }
}

/// Whether the policy match is among `words`. From there on `--proto` is its option: the tools take a whole name before
/// an abbreviation, here of `--protocol`. No other extension of iptables 1.8.9 has an option with the name of one of the
/// rule itself, or with an abbreviation that this crate reads.
fn names_policy(words: &[RawWord<'_>]) -> bool {
    words.windows(2).any(|pair| {
        matches!(pair, [option, name] if !option.quoted && (option.is("-m") || option.is("--match")) && name.is("policy"))
    })
}

/// Whether the tools would not read `text` back as one word if it stood there bare.
pub(crate) fn needs_quotes(text: &str) -> bool {
    text.is_empty() || text.contains([' ', '\t', '"', '\n'])
}

/// Writes `text` in double quotes, escaping what `xtables_save_string` escapes.
///
/// Source: `libxtables/xtables.c`, iptables 1.8.9.
pub(crate) fn push_quoted(out: &mut String, text: &str) {
    out.push('"');
    let mut rest = text;
    while let Some(at) = rest.find(['"', '\\', '\'']) {
        let (before, after) = rest.split_at(at);
        out.push_str(before);
        out.push('\\');
        let mut characters = after.chars();
        out.extend(characters.next());
        rest = characters.as_str();
    }
    out.push_str(rest);
    out.push('"');
}

/// Writes `word` with the blanks before it.
pub(crate) fn push_spaced(out: &mut String, word: &Word) {
    for _ in 0..=word.more_blanks {
        out.push(' ');
    }
    push_word(out, word);
}

fn push_word(out: &mut String, word: &Word) {
    if word.quoted || needs_quotes(&word.text) {
        push_quoted(out, &word.text);
    } else {
        out.push_str(&word.text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(line: &str) -> Vec<String> {
        let mut words = Vec::new();
        split(line, &mut words).unwrap();
        words.into_iter().map(|word| word.text.into_owned()).collect()
    }

    #[test]
    fn blanks_quotes_and_escapes_split_as_in_the_tool() {
        assert_eq!(texts("  -A  INPUT\t-j X "), ["-A", "INPUT", "-j", "X"]);
        assert_eq!(
            texts(r#"--comment "it\'s \"x\" \\ é""#),
            ["--comment", r#"it's "x" \ é"#]
        );
        assert_eq!(texts(r#"a\ b"#), [r"a\", "b"]);
        assert_eq!(texts(r#""a"b"#), ["a", "b"]);
        assert_eq!(texts(r#"a"b c"d"#), ["ab c", "d"]);
        assert_eq!(texts(r#""" x"#), ["", "x"]);
        assert!(split(r#""a"#, &mut Vec::new()).is_err());
        assert!(split(r#""a\"#, &mut Vec::new()).is_err());
    }

    #[test]
    fn a_word_is_read_back_as_it_was() {
        for text in [
            "", "a", "a b", "\"", "\\", "'", "a\\", "\\\"", "é ü", "!", "--x", "a\tb",
        ] {
            let word = Word::new(text).unwrap();
            assert_eq!(texts(&word.to_string()), [text], "{text:?}");
        }
        assert!(Word::new("a\nb").is_err() && Word::new("a\0").is_err());
    }
}
