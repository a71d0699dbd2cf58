//! Escaping of text that comes from objects.

use std::borrow::Cow;
use std::fmt::{self, Write};

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

/// The largest number of characters of [`excerpt`], without the ellipsis.
const EXCERPT: usize = 80;

/// The first 80 characters of a text that a user of the cluster wrote, followed by `…` if there are more, for messages.
#[must_use]
pub fn excerpt(text: &str) -> Cow<'_, str> {
    match text.char_indices().nth(EXCERPT) {
        None => Cow::Borrowed(text),
        Some((end, _)) => Cow::Owned(format!("{}…", text.get(..end).unwrap_or_default())),
    }
}
