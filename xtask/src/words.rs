//! The words to avoid, which `docs/glossary.md` lists, and where they occur.

use std::{collections::HashMap, fs, path::Path};

use anyhow::{Context, Result, bail, ensure};

use crate::{
    imports::matches,
    prose::{self, Kind, Prose},
    workspace::{self, Workspace},
};

const GLOSSARY: &str = "docs/glossary.md";

/// Fails with every place where a word to avoid occurs.
pub(crate) fn check(workspace: &Workspace) -> Result<()> {
    let root = workspace.root();
    let glossary = fs::read_to_string(root.join(GLOSSARY)).with_context(|| format!("reading {GLOSSARY}"))?;
    let glossary = Glossary::parse(&glossary).context(GLOSSARY)?;
    let mut found = Vec::new();
    for file in workspace::files(root, &["md", "rs"])? {
        if file != Path::new(GLOSSARY) {
            let text = fs::read_to_string(root.join(&file))
                .with_context(|| format!("reading {}", file.display()))?;
            found.extend(glossary.search(&file, &text));
        }
    }
    if found.is_empty() {
        return Ok(());
    }
    bail!("words to avoid, see {GLOSSARY}\n  {}", found.join("\n  "))
}

/// The tables of the glossary that are for this check.
#[derive(Debug, Default)]
struct Glossary {
    /// By their first word.
    avoid: HashMap<String, Vec<Avoid>>,
    exempt: Vec<Exempt>,
}

/// One or more words to avoid.
#[derive(Debug)]
struct Avoid {
    words: Vec<String>,
    /// What to write, for people.
    instead: String,
    /// Longer texts in which the words are allowed.
    allowed: Vec<Vec<String>>,
}

/// A file, or files, of which some or all text is not searched.
#[derive(Debug)]
struct Exempt {
    file: String,
    only_strings: bool,
}

impl Glossary {
    fn parse(text: &str) -> Result<Self> {
        let mut glossary = Self::default();
        for row in rows(text, "## Words to avoid") {
            let [words, instead, except] = row[..] else {
                bail!("not a row of three cells: {row:?}");
            };
            for avoid in quoted(words) {
                let words: Vec<_> = avoid.split_whitespace().map(str::to_lowercase).collect();
                let first = words.first().context("an entry without a word")?;
                glossary.avoid.entry(first.clone()).or_default().push(Avoid {
                    words,
                    instead: instead.to_owned(),
                    allowed: quoted(except)
                        .map(|text| text.split_whitespace().map(str::to_lowercase).collect())
                        .collect(),
                });
            }
        }
        ensure!(!glossary.avoid.is_empty(), "no table of words to avoid");
        for row in rows(text, "## Files not searched") {
            let [file, what, reason] = row[..] else {
                bail!("not a row of three cells: {row:?}");
            };
            ensure!(!reason.is_empty(), "no reason for {file}");
            ensure!(
                ["strings", "all"].contains(&what),
                "{file}: unknown `{what}`; known: strings, all"
            );
            glossary.exempt.push(Exempt {
                file: file.trim_matches('`').to_owned(),
                only_strings: what == "strings",
            });
        }
        Ok(glossary)
    }

    /// The places in a file at which words to avoid occur, as `file:line: ...`.
    fn search(&self, file: &Path, text: &str) -> Vec<String> {
        let name = file.to_string_lossy();
        let exempt: Vec<_> = self
            .exempt
            .iter()
            .filter(|exempt| matches(&exempt.file, &name))
            .collect();
        if exempt.iter().any(|exempt| !exempt.only_strings) {
            return Vec::new();
        }
        let prose = match file.extension().and_then(|extension| extension.to_str()) {
            Some("rs") => prose::rust(text),
            _ => prose::markdown(text),
        };
        let mut places: Vec<_> = prose
            .iter()
            .filter(|prose| exempt.is_empty() || prose.kind != Kind::Literal)
            .flat_map(|prose| self.find(prose))
            .collect();
        places.sort_by_key(|(line, _)| *line);
        places
            .into_iter()
            .map(|(line, avoid)| {
                let words = avoid.words.join(" ");
                format!("{name}:{line}: `{words}`; write {}", avoid.instead)
            })
            .collect()
    }

    fn find(&self, prose: &Prose) -> Vec<(usize, &Avoid)> {
        let tokens = tokens(prose);
        let has = |words: &[String], at: usize| {
            let there = tokens.get(at..at + words.len());
            there.is_some_and(|there| {
                there
                    .iter()
                    .zip(words)
                    .all(|((word, _), expected)| word == expected)
            })
        };
        let mut found = Vec::new();
        for (at, (word, line)) in tokens.iter().enumerate() {
            let avoided = self.avoid.get(word).into_iter().flatten().filter(|avoid| {
                let is_allowed = avoid.allowed.iter().any(|allowed| {
                    let first = (at + 1).saturating_sub(allowed.len());
                    (first..=at).any(|start| has(allowed, start))
                });
                has(&avoid.words, at) && !is_allowed
            });
            // `tells apart` is one violation, not also one of `tells`.
            found.extend(
                avoided
                    .max_by_key(|avoid| avoid.words.len())
                    .map(|avoid| (*line, avoid)),
            );
        }
        found
    }
}

/// The cells of the table below a heading, without its two header rows.
fn rows<'a>(text: &'a str, heading: &str) -> Vec<Vec<&'a str>> {
    text.lines()
        .skip_while(|line| *line != heading)
        .skip(1)
        .take_while(|line| !line.starts_with("## "))
        .filter_map(|line| line.strip_prefix('|')?.strip_suffix('|'))
        .skip(2)
        .map(|row| row.split('|').map(str::trim).collect())
        .collect()
}

/// The texts in backquotes.
fn quoted(cell: &str) -> impl Iterator<Item = &str> {
    cell.split('`').skip(1).step_by(2)
}

/// The words of a text in lower case, each with its line. An empty word is where a phrase ends: punctuation, text in
/// backquotes, a URL, a placeholder in braces.
fn tokens(prose: &Prose) -> Vec<(String, usize)> {
    let mut characters: Vec<(char, usize)> = Vec::new();
    for (number, line) in &prose.lines {
        characters.extend(line.chars().map(|character| (character, *number)));
        characters.push(('\n', *number));
    }
    let at = |index: usize| characters.get(index).map_or('\n', |(character, _)| *character);
    let mut tokens = Vec::new();
    let mut index = 0;
    while let Some(&(character, line)) = characters.get(index) {
        let start = index;
        if character.is_alphanumeric() || character == '_' {
            while at(index).is_alphanumeric()
                || at(index) == '_'
                || at(index) == '-' && at(index + 1).is_alphanumeric()
            {
                index += 1;
            }
            let word: String = characters[start..index]
                .iter()
                .map(|(character, _)| *character)
                .collect();
            tokens.push((word.to_lowercase(), line));
        } else if character.is_whitespace() {
            index += 1;
            if character == '\n' && is_blank(&characters[index..]) {
                tokens.push((String::new(), line));
            }
        } else {
            index = match character {
                '`' => end_of_code(&characters, index),
                '{' => end_of_placeholder(&characters, index),
                ':' if at(index + 1) == '/' && at(index + 2) == '/' => {
                    let rest = characters[index..].iter();
                    index
                        + rest
                            .take_while(|(character, _)| !character.is_whitespace())
                            .count()
                }
                _ => index + 1,
            };
            tokens.push((String::new(), line));
        }
    }
    tokens
}

/// Whether the line that begins here is blank, or there is none.
fn is_blank(characters: &[(char, usize)]) -> bool {
    let end = characters
        .iter()
        .position(|(character, _)| !character.is_whitespace() || *character == '\n');
    end.is_none_or(|end| characters[end].0 == '\n')
}

/// Where a code span ends: after as many backquotes as it begins with, in the same paragraph.
fn end_of_code(characters: &[(char, usize)], start: usize) -> usize {
    let run = |from: usize| {
        characters[from..]
            .iter()
            .take_while(|(character, _)| *character == '`')
            .count()
    };
    let opening = run(start);
    let mut index = start + opening;
    while index < characters.len() {
        match characters[index].0 {
            '`' if run(index) == opening => return index + opening,
            '`' => index += run(index),
            '\n' if is_blank(&characters[index + 1..]) => break,
            _ => index += 1,
        }
    }
    start + opening
}

/// Where `{name}` or `{name:?}` ends.
fn end_of_placeholder(characters: &[(char, usize)], start: usize) -> usize {
    let inside = characters[start + 1..].iter();
    let length = inside
        .take_while(|(character, _)| !character.is_whitespace() && !['{', '}'].contains(character))
        .count();
    match characters.get(start + 1 + length) {
        Some(('}', _)) => start + length + 2,
        _ => start + 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "\
# Glossary

| words | not | a table of something else |

## Words to avoid

Text.

| words | write | except in |
| --- | --- | --- |
| `frob`, `frob with` | adjust | |
| `gizmo` | part | `old gizmo`, `gizmo of the year` |

## Files not searched

| file | what | reason |
| --- | --- | --- |
| `tests/data/*` | all | recorded |
| `tests/*.rs` | strings | recorded |
";

    fn found(file: &str, text: &str) -> Vec<String> {
        Glossary::parse(LIST).unwrap().search(Path::new(file), text)
    }

    #[test]
    fn words_in_comments_and_literals_are_found_and_identifiers_are_not() {
        let text = "//! A Frob.\n\nfn frob() {\n    // To frob\n    // with it.\n    call(\"a {frob} and a gizmo\");\n}\n";
        assert_eq!(
            found("src/lib.rs", text),
            [
                "src/lib.rs:1: `frob`; write adjust",
                "src/lib.rs:4: `frob with`; write adjust",
                "src/lib.rs:6: `gizmo`; write part",
            ]
        );
    }

    #[test]
    fn words_in_documents_are_found_outside_of_code() {
        let text = "# Frob\n\n`frob` is now `a\nfrob`, ``frob ` frob``\n\n```\nfrob\n```\n\nan unpaired ` and a gizmo\n";
        assert_eq!(
            found("CHANGELOG.md", text),
            [
                "CHANGELOG.md:1: `frob`; write adjust",
                "CHANGELOG.md:10: `gizmo`; write part"
            ]
        );
    }

    #[test]
    fn parts_of_words_and_separated_words_are_not_found() {
        let text = "frobbing frob-like frob_it https://example.com/frob/gizmo\n";
        assert_eq!(found("README.md", text), [""; 0]);
        assert_eq!(
            found("README.md", "to frob. With care\n"),
            ["README.md:1: `frob`; write adjust"]
        );
    }

    #[test]
    fn a_word_is_allowed_in_a_longer_phrase() {
        let text = "An old gizmo, the gizmo of the\nyear.\n";
        assert_eq!(found("README.md", text), [""; 0]);
        assert_eq!(found("README.md", "A new gizmo of the day\n").len(), 1);
    }

    #[test]
    fn files_with_a_reason_are_not_searched() {
        let text = "// frob\nconst X: &str = \"frob\";";
        assert_eq!(found("tests/data/x.rs", text), [""; 0]);
        assert_eq!(found("tests/x.rs", text), ["tests/x.rs:1: `frob`; write adjust"]);
    }

    #[test]
    fn a_glossary_without_a_list_is_an_error() {
        assert!(Glossary::parse("# Glossary\n").is_err());
        let text = LIST.replace("| recorded |", "| |");
        assert!(
            Glossary::parse(&text)
                .unwrap_err()
                .to_string()
                .contains("no reason")
        );
    }

    #[test]
    fn the_glossary_of_this_workspace_is_valid() {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("..").join(GLOSSARY);
        let glossary = Glossary::parse(&fs::read_to_string(file).unwrap()).unwrap();
        assert!(glossary.avoid.len() > 20);
        let text = "a netfilter verdict";
        assert_eq!(glossary.search(Path::new("x.md"), text), [""; 0]);
    }
}
