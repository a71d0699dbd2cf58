//! The notation of `ipset save` and `ipset restore`.

use crate::parse::ParseError;

/// Splits at white space; what stands in quotation marks is one word, without them.
pub(crate) fn words(text: &str) -> Result<Vec<&str>, ParseError> {
    let mut words = Vec::new();
    let mut rest = text.trim_start();
    while !rest.is_empty() {
        let (word, behind) = match rest.strip_prefix('"') {
            Some(quoted) => quoted
                .split_once('"')
                .ok_or_else(|| ParseError::new("line", text, "has an open quotation mark"))?,
            None => rest.split_at(rest.find(char::is_whitespace).unwrap_or(rest.len())),
        };
        words.push(word);
        rest = behind.trim_start();
    }
    Ok(words)
}
