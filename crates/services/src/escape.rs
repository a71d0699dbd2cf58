//! Escaping of text that comes from objects.

use std::borrow::Cow;
use std::fmt::{self, Write};

/// The longest text from an object that is kept in an event or a line of the log, in bytes.
pub const MAX_TEXT: usize = 200;

/// A text, or its beginning and its length if it is longer than [`MAX_TEXT`]. An annotation has up to 256 KiB.
#[must_use]
pub fn excerpt(text: &str) -> Cow<'_, str> {
    excerpt_of(text, MAX_TEXT)
}

/// As [`excerpt`], for another length in bytes.
#[must_use]
pub fn excerpt_of(text: &str, max: usize) -> Cow<'_, str> {
    if text.len() <= max {
        return Cow::Borrowed(text);
    }
    let start = text.get(..text.floor_char_boundary(max)).unwrap_or_default();
    Cow::Owned(format!("{start}… ({} bytes)", text.len()))
}

/// A writer that escapes control characters, line separators and characters that change the text direction, so that the output stays
/// on one line. Text from objects is not trusted: a user who may create a Service could otherwise forge lines of a log.
pub struct EscapeWriter<'a, 'b>(pub &'a mut fmt::Formatter<'b>);

impl fmt::Debug for EscapeWriter<'_, '_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("EscapeWriter").finish_non_exhaustive()
    }
}

impl Write for EscapeWriter<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut rest = text;
        while let Some((position, found)) = rest.char_indices().find(|(_, c)| is_escaped(*c)) {
            let (before, after) = rest.split_at(position);
            self.0.write_str(before)?;
            write!(self.0, "{}", found.escape_default())?;
            rest = after.get(found.len_utf8()..).unwrap_or_default();
        }
        self.0.write_str(rest)
    }
}

fn is_escaped(c: char) -> bool {
    c.is_control() || matches!(c, '\u{2028}' | '\u{2029}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_a_long_text_the_beginning_and_the_length_are_shown() {
        assert_eq!(excerpt(&"a".repeat(MAX_TEXT)), "a".repeat(MAX_TEXT));
        let text = "ä".repeat(MAX_TEXT);
        assert_eq!(
            excerpt(&text),
            format!("{}… (400 bytes)", "ä".repeat(MAX_TEXT / 2))
        );
        let text = format!("a{text}");
        let start = format!("a{}", "ä".repeat(MAX_TEXT / 2 - 1));
        assert_eq!(excerpt(&text), format!("{start}… (401 bytes)"));
    }
}
