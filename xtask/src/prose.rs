//! The text that people read in a file: the paragraphs of a document, and the comments and string literals of a Rust source.

/// Lines of text that belong together, each with its number in the file: one document, one comment or one string literal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Prose {
    pub(crate) kind: Kind,
    pub(crate) lines: Vec<(usize, String)>,
}

/// Where a text is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Document,
    Comment,
    Literal,
}

/// The text of a Markdown document. Of its code blocks, only the comments and literals of Rust ones.
pub(crate) fn markdown(text: &str) -> Vec<Prose> {
    let lines = text.lines().enumerate();
    let lines = lines.map(|(index, line)| (index + 1, line.to_owned())).collect();
    without_code(Kind::Document, lines)
}

/// The comments and string literals of a Rust source.
pub(crate) fn rust(text: &str) -> Vec<Prose> {
    rust_from(text, 1)
}

fn rust_from(text: &str, first_line: usize) -> Vec<Prose> {
    let mut scanner = Scanner {
        text: text.chars().collect(),
        at: 0,
        line: first_line,
        comment: Vec::new(),
        found: Vec::new(),
    };
    scanner.scan();
    scanner.found
}

/// Separates the code blocks between fences from the text.
fn without_code(kind: Kind, lines: Vec<(usize, String)>) -> Vec<Prose> {
    let mut found = Vec::new();
    let mut text = Vec::new();
    let mut lines = lines.into_iter();
    while let Some((number, line)) = lines.next() {
        let Some(info) = line.trim_start().strip_prefix("```") else {
            text.push((number, line));
            continue;
        };
        if info.contains('`') {
            text.push((number, line));
            continue;
        }
        let code: Vec<_> = lines
            .by_ref()
            .map(|(_, line)| line)
            .take_while(|line| line.trim() != "```")
            .collect();
        if is_rust(kind, info) {
            found.extend(rust_from(&code.join("\n"), number + 1));
        }
        // What precedes a block and what follows it are not one sentence.
        found.push(Prose {
            kind,
            lines: std::mem::take(&mut text),
        });
    }
    found.push(Prose { kind, lines: text });
    found.retain(|prose| prose.lines.iter().any(|(_, line)| !line.trim().is_empty()));
    found
}

/// Whether a code block is Rust by the text after its fence: in documentation comments that is the default.
fn is_rust(kind: Kind, info: &str) -> bool {
    match info.trim().split(',').next() {
        None | Some("") => kind == Kind::Comment,
        Some(language) => {
            ["rust", "no_run", "should_panic", "compile_fail", "ignore"].contains(&language.trim())
        }
    }
}

struct Scanner {
    text: Vec<char>,
    at: usize,
    line: usize,
    /// The lines of the comment that may continue on the next line.
    comment: Vec<(usize, String)>,
    found: Vec<Prose>,
}

impl Scanner {
    fn peek(&self, offset: usize) -> Option<char> {
        self.text.get(self.at + offset).copied()
    }

    /// The next character. Counts lines.
    fn next(&mut self) -> Option<char> {
        let next = self.peek(0)?;
        self.at += 1;
        if next == '\n' {
            self.line += 1;
        }
        Some(next)
    }

    fn scan(&mut self) {
        while let Some(next) = self.peek(0) {
            match next {
                '/' if self.peek(1) == Some('/') => self.line_comment(),
                '/' if self.peek(1) == Some('*') => self.block_comment(),
                '"' => self.literal(),
                '\'' => self.character_or_lifetime(),
                _ if next.is_alphanumeric() || next == '_' => self.word(),
                _ => {
                    self.next();
                }
            }
        }
        self.end_comment();
    }

    fn line_comment(&mut self) {
        let line = self.line;
        let mut text = String::new();
        while let Some(next) = self.peek(0)
            && next != '\n'
        {
            text.push(next);
            self.next();
        }
        if self.comment.last().is_some_and(|(last, _)| last + 1 != line) {
            self.end_comment();
        }
        let text = text.trim_start_matches('/');
        let text = text.strip_prefix('!').unwrap_or(text);
        self.comment.push((line, text.to_owned()));
    }

    fn end_comment(&mut self) {
        let lines = std::mem::take(&mut self.comment);
        self.found.extend(without_code(Kind::Comment, lines));
    }

    fn block_comment(&mut self) {
        let line = self.line;
        let mut depth = 0;
        let mut text = String::new();
        while let Some(next) = self.next() {
            match (next, self.peek(0)) {
                ('/', Some('*')) => {
                    self.next();
                    depth += 1;
                }
                ('*', Some('/')) => {
                    self.next();
                    depth -= 1;
                    if depth == 0 {
                        break;
                    }
                }
                _ => text.push(next),
            }
        }
        let lines = numbered(&text, line);
        self.found.extend(without_code(Kind::Comment, lines));
    }

    /// A string literal whose escapes are processed. An escaped character separates words.
    fn literal(&mut self) {
        let line = self.line;
        let mut text = String::new();
        self.next();
        while let Some(next) = self.next() {
            match next {
                '"' => break,
                '\\' => match self.next() {
                    Some('\n') => text.push('\n'),
                    Some('u') => {
                        while self.next().is_some_and(|next| next != '}') {}
                        text.push(' ');
                    }
                    Some('x') => {
                        self.next();
                        self.next();
                        text.push(' ');
                    }
                    _ => text.push(' '),
                },
                _ => text.push(next),
            }
        }
        self.push_literal(&text, line);
    }

    fn raw_literal(&mut self) {
        let line = self.line;
        let mut hashes = 0;
        while self.peek(0) == Some('#') {
            self.next();
            hashes += 1;
        }
        self.next();
        let mut text = String::new();
        while let Some(next) = self.next() {
            if next == '"' && (0..hashes).all(|offset| self.peek(offset) == Some('#')) {
                self.at += hashes;
                break;
            }
            text.push(next);
        }
        self.push_literal(&text, line);
    }

    fn push_literal(&mut self, text: &str, line: usize) {
        if !text.trim().is_empty() {
            self.found.push(Prose {
                kind: Kind::Literal,
                lines: numbered(text, line),
            });
        }
    }

    fn character_or_lifetime(&mut self) {
        self.next();
        if self.peek(0) == Some('\\') {
            self.next();
            self.next();
            while self.next().is_some_and(|next| next != '\'') {}
        } else if self.peek(1) == Some('\'') {
            self.next();
            self.next();
        }
    }

    /// A name, a number, or the prefix of a literal.
    fn word(&mut self) {
        let start = self.at;
        while self
            .peek(0)
            .is_some_and(|next| next.is_alphanumeric() || next == '_')
        {
            self.next();
        }
        let word: String = self.text[start..self.at].iter().collect();
        let hashes = (0..).take_while(|&offset| self.peek(offset) == Some('#')).count();
        if ["r", "br", "cr"].contains(&word.as_str()) && self.peek(hashes) == Some('"') {
            self.raw_literal();
        }
    }
}

/// The lines of a document outside of code blocks between fences, with their numbers.
pub(crate) fn outside_fences(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut is_code = false;
    (1..).zip(text.lines()).filter(move |(_, line)| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    })
}

fn numbered(text: &str, first_line: usize) -> Vec<(usize, String)> {
    let lines = text.split('\n').enumerate();
    lines
        .map(|(index, line)| (first_line + index, line.to_owned()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The lines found, as `kind line: text`.
    fn lines(prose: &[Prose]) -> Vec<String> {
        let lines = prose.iter().flat_map(|prose| {
            let line =
                move |(number, line): &(usize, String)| format!("{:?} {number}: {}", prose.kind, line.trim());
            prose.lines.iter().map(line)
        });
        lines.filter(|line| !line.ends_with(": ")).collect()
    }

    #[test]
    fn comments_and_literals_of_rust_are_found() {
        let text = "//! One\n//! two\nfn name() { // three\n  let x = \"four\\nfive\"; /* six\n /* seven */ eight */\n\
                    r#\"nine \" \"#; b\"ten\"; '\"'; '\\''; 'a; \"eleven\" }";
        let mut found = lines(&rust(text));
        found.sort();
        assert_eq!(
            found,
            [
                "Comment 1: One",
                "Comment 2: two",
                "Comment 3: three",
                "Comment 4: six",
                "Comment 5: seven  eight",
                "Literal 4: four five",
                "Literal 6: eleven",
                "Literal 6: nine \"",
                "Literal 6: ten",
            ]
        );
    }

    #[test]
    fn code_blocks_are_not_text_but_their_comments_are() {
        let text = "/// One\n/// ```\n/// two(); // three\n/// ```\n/// four\n/// ```text\n/// five\n/// ```\nfn six() {}";
        let mut found = lines(&rust(text));
        found.sort();
        assert_eq!(found, ["Comment 1: One", "Comment 3: three", "Comment 5: four"]);
        let text = "One\n```\n\"two\"\n```\n```rust\n// three\n```\n";
        let mut found = lines(&markdown(text));
        found.sort();
        assert_eq!(found, ["Comment 6: three", "Document 1: One"]);
    }
}
