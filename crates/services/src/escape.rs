//! Text from objects on one line.

use std::fmt::{self, Write};

/// A formatter that escapes every character that could end the line, move the cursor or change the direction of the text.
/// Names come from objects, which anyone may have written.
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
