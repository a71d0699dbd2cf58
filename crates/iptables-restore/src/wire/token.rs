//! Splitting a line into tokens as the tools do, and quoting text so that they read it back as one token.
//!
//! The rules are those of `add_param_to_argv` in `iptables/xshared.c`, iptables 1.8.9. Whitespace outside double quotes ends a
//! token. The closing quote ends it too, even if more text follows directly. Inside quotes a backslash escapes the next
//! character; outside, a backslash is an ordinary character.

use std::borrow::Cow;

/// A token of a line; borrowed from the line unless it contained an escape.
#[derive(Clone, Debug)]
pub(crate) struct Token<'t> {
    pub(crate) text: Cow<'t, str>,
    pub(crate) is_quoted: bool,
    /// Spaces before it in addition to the first.
    pub(crate) extra_spaces: u16,
    /// The token has the name of an option of the rule itself, but is an option of a match before it.
    pub(crate) is_match_option: bool,
}

impl Token<'_> {
    pub(crate) fn is(&self, text: &str) -> bool {
        self.text == text
    }
}

/// Splits `line` and appends to `tokens`. An unclosed quote is an error.
pub(crate) fn split<'t>(line: &'t str, tokens: &mut Vec<Token<'t>>) -> Result<(), &'static str> {
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
        let first = tokens.is_empty();
        let next = next_token(line, at, tokens)?;
        // A line has far fewer spaces than this can count.
        if let Some(token) = tokens.last_mut().filter(|_| !first && at - end > 1) {
            token.extra_spaces = u16::try_from(at - end - 1).unwrap_or(u16::MAX);
        }
        at = next;
    }
}

/// Reads the token at `start` and returns where the next may begin.
fn next_token<'t>(line: &'t str, start: usize, tokens: &mut Vec<Token<'t>>) -> Result<usize, &'static str> {
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
        tokens.push(Token {
            text: Cow::Borrowed(slice(start, open)),
            is_quoted: false,
            extra_spaces: 0,
            is_match_option: slice(start, open) == "--proto" && has_policy_match(tokens),
        });
        return Ok(open);
    }
    let mut text = Cow::Borrowed(slice(start, open));
    let mut from = open + 1;
    loop {
        let rest = bytes.get(from..).unwrap_or_default();
        let Some(length) = rest.iter().position(|byte| matches!(byte, b'\\' | b'"')) else {
            return Err("has an unclosed double quote");
        };
        let piece = slice(from, from + length);
        if text.is_empty() {
            text = Cow::Borrowed(piece);
        } else if !piece.is_empty() {
            text.to_mut().push_str(piece);
        }
        from += length;
        if bytes.get(from) == Some(&b'"') {
            tokens.push(Token {
                text,
                is_quoted: true,
                extra_spaces: 0,
                is_match_option: false,
            });
            return Ok(from + 1);
        }
        let Some(escaped) = slice(from + 1, line.len()).chars().next() else {
            return Err("ends in a backslash within quotes");
        };
        text.to_mut().push(escaped);
        from += 1 + escaped.len_utf8();
    }
}

/// Whether `tokens` contain the policy match. After it, `--proto` is an option of that match: the tools prefer an exact name to
/// an abbreviation, here of `--protocol`. No other extension of iptables 1.8.9 has an option with the name of an option of the
/// rule itself, or with an abbreviation of one that this crate accepts.
fn has_policy_match(tokens: &[Token<'_>]) -> bool {
    tokens.windows(2).any(|pair| {
        matches!(pair, [option, name] if !option.is_quoted && (option.is("-m") || option.is("--match")) && name.is("policy"))
    })
}

/// Whether the tools would not read `text` without quotes back as one token.
pub(crate) fn needs_quotes(text: &str) -> bool {
    text.is_empty() || text.contains([' ', '\t', '"', '\n'])
}

/// Appends `text` in double quotes, escaping what `xtables_save_string` escapes.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(line: &str) -> Vec<String> {
        let mut tokens = Vec::new();
        split(line, &mut tokens).unwrap();
        tokens.into_iter().map(|token| token.text.into_owned()).collect()
    }

    #[test]
    fn spaces_quotes_and_escapes_split_as_in_the_tool() {
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
}
