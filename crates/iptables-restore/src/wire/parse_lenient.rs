//! Parsing the output of `iptables-save`, skipping what cannot be parsed.

use crate::chain::ChainName;
use crate::ruleset::{Chain, Ruleset};
use crate::unreadable::UnreadableLine;
use crate::wire::parse::{Reader, no_commit};

impl Ruleset {
    /// Parses the output of `iptables-save` as [`FromStr`](std::str::FromStr) does, but skips and records what cannot be parsed:
    /// see [`unreadable`](Self::unreadable).
    ///
    /// Skipped are
    ///
    /// - a rule with a line feed in a comment, which the tools print unescaped, with the lines that continue it;
    /// - a chain whose name is not a valid [`ChainName`], and its rules;
    /// - a table that the tool reports as not printed, that has no COMMIT, or that is not in [`Table::ALL`](crate::Table::ALL);
    /// - any other line that is an error for `FromStr`.
    ///
    /// A skipped rule keeps its position in its chain ([`Chain::unreadable`]).
    #[must_use]
    pub fn parse_lenient(text: &str) -> Self {
        let mut reader = LenientReader {
            reader: Reader::new(),
            last: Last::Other,
            in_skipped_table: false,
            no_quote_from: usize::MAX,
        };
        let (mut at, mut number) = (0, 1);
        while let Some(rest) = text.get(at..) {
            let length = reader.line(text, at, rest.find('\n').unwrap_or(rest.len()), number);
            number += rest.get(..length).unwrap_or_default().matches('\n').count() + 1;
            at += length + 1;
        }
        reader.finish(text)
    }
}

/// The previous line.
#[derive(Clone, Copy)]
enum Last<'t> {
    /// A rule that was parsed.
    Rule(Line<'t>),
    /// A skipped rule of this chain.
    Skipped(ChainName),
    Other,
}

#[derive(Clone, Copy)]
struct Line<'t> {
    number: usize,
    text: &'t str,
}

impl Line<'_> {
    fn unreadable(self, reason: String) -> UnreadableLine {
        UnreadableLine {
            line: self.number,
            text: self.text.into(),
            reason,
        }
    }
}

struct LenientReader<'t> {
    reader: Reader<'t>,
    last: Last<'t>,
    in_skipped_table: bool,
    /// After this index no double quote closes a text.
    no_quote_from: usize,
}

impl<'t> LenientReader<'t> {
    /// Parses the line of `length` bytes at `start`, and the lines that continue it. Returns their length.
    fn line(&mut self, text: &'t str, start: usize, length: usize, number: usize) -> usize {
        let line = |length: usize| Line {
            number,
            text: text.get(start..start + length).unwrap_or_default(),
        };
        if self.in_skipped_table {
            self.in_skipped_table = line(length).text != "COMMIT";
            return length;
        }
        let Err(reason) = self.reader.line(line(length).text, number) else {
            self.last = if rule_part(line(length).text).is_some() {
                Last::Rule(line(length))
            } else {
                Last::Other
            };
            return length;
        };
        let length = self.whole_length(text, start, length);
        self.skip(line(length), reason);
        length
    }

    /// The length of a rule with the lines that continue a text in double quotes.
    fn whole_length(&mut self, text: &str, start: usize, length: usize) -> usize {
        let mut whole = length;
        while let Some(line) = text.get(start..start + whole)
            && rule_part(line).is_some()
            && let Some(quote) = open_quote(line)
            // The tools print a space before and after a quoted text. Without it, the quote is part of a name.
            && line.get(..quote).is_some_and(|before| before.ends_with(' '))
            && start + quote < self.no_quote_from
        {
            let Some(close) = closing_quote(text, start + quote + 1) else {
                self.no_quote_from = start + quote;
                break;
            };
            let rest = text.get(close + 1..).unwrap_or_default();
            if !(rest.is_empty() || rest.starts_with([' ', '\n'])) {
                break;
            }
            whole = close + 1 + rest.find('\n').unwrap_or(rest.len()) - start;
        }
        // An unclosed quote is part of a name.
        let closed = text
            .get(start..start + whole)
            .is_some_and(|line| open_quote(line).is_none());
        if closed { whole } else { length }
    }

    fn skip(&mut self, line: Line<'t>, reason: String) {
        let last = std::mem::replace(&mut self.last, Last::Other);
        let Some((_, rules)) = &mut self.reader.table else {
            self.in_skipped_table = line.text.starts_with('*');
            let lines = &mut self.reader.ruleset.unreadable_lines;
            lines.push(line.unreadable(reason));
            return;
        };
        if let Some(rule) = rule_part(line.text) {
            let name = rule.split([' ', '\n']).next().unwrap_or_default();
            let name = ChainName::from_saved(name).ok();
            if let Some((name, chain)) = name.and_then(|name| Some((name, rules.existing_chain_mut(&name)?)))
            {
                chain.unreadable.insert(chain.len(), line.unreadable(reason));
                self.last = Last::Skipped(name);
                return;
            }
        } else if let Some(declared) = line.text.strip_prefix(':') {
            let name = declared.split(' ').next().unwrap_or_default();
            if let Ok(name) = ChainName::from_saved(name) {
                match rules.existing_chain_mut(&name) {
                    None => drop(rules.insert(name, Chain::default())),
                    Some(chain) => {
                        chain.unreadable.insert(chain.len(), line.unreadable(reason));
                        return;
                    }
                }
            }
        } else if !line.text.starts_with('*') {
            // A line feed in a name split the previous line: what was parsed of that line is not the rule.
            let name = match last {
                Last::Rule(split) => rule_part(split.text)
                    .and_then(|rule| rule.split(' ').next())
                    .and_then(|name| ChainName::from_saved(name).ok()),
                Last::Skipped(name) => Some(name),
                Last::Other => None,
            };
            if let Some(name) = name
                && let Some(chain) = rules.existing_chain_mut(&name)
            {
                if let Last::Rule(split) = last {
                    chain.rules.pop();
                    chain
                        .unreadable
                        .insert(chain.len(), split.unreadable(CONTINUED.into()));
                }
                if let Some(mut split) = chain.unreadable.last_entry() {
                    let text = &mut split.get_mut().text;
                    text.push('\n');
                    text.push_str(line.text);
                }
                self.last = Last::Skipped(name);
                return;
            }
        }
        rules.unreadable_lines.push(line.unreadable(reason));
    }

    fn finish(self, text: &str) -> Ruleset {
        let mut ruleset = self.reader.ruleset;
        if let Some((table, _)) = self.reader.table {
            let last = Line {
                number: text.lines().count(),
                text: text.lines().last().unwrap_or_default(),
            };
            let known = &mut ruleset.unreadable_tables;
            known.insert(table, last.unreadable(no_commit(table)));
        }
        ruleset
    }
}

const CONTINUED: &str = "the next line is not a table, a chain, a rule or COMMIT";

/// The text after `-A ` in the line of a rule, with or without counters.
fn rule_part(line: &str) -> Option<&str> {
    let rest = match line.strip_prefix('[') {
        Some(counted) => counted.split_once(' ')?.1,
        None => line,
    };
    rest.strip_prefix("-A ")
}

/// The index of a double quote that opens a text and is not closed within `line`.
fn open_quote(line: &str) -> Option<usize> {
    let mut at = 0;
    while let Some(open) = line.get(at..)?.find('"') {
        match closing_quote(line, at + open + 1) {
            Some(close) => at = close + 1,
            None => return Some(at + open),
        }
    }
    None
}

/// The index of the double quote that closes the text whose first byte is at `from`.
fn closing_quote(text: &str, from: usize) -> Option<usize> {
    let mut bytes = text.bytes().enumerate().skip(from);
    while let Some((at, byte)) = bytes.next() {
        match byte {
            b'"' => return Some(at),
            b'\\' => {
                bytes.next();
            }
            _ => {}
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::Table;

    fn read(text: &str) -> Ruleset {
        let ruleset = Ruleset::parse_lenient(text);
        if let Ok(strict) = text.parse::<Ruleset>() {
            assert_eq!(ruleset, strict);
        }
        ruleset
    }

    fn rules(ruleset: &Ruleset, chain: &str) -> Vec<String> {
        let chain = ruleset.chain(Table::Filter, &chain.parse().unwrap()).unwrap();
        chain
            .slots()
            .map(|rule| rule.map_or("?".into(), |rule| rule.to_string()))
            .collect()
    }

    fn lines(ruleset: &Ruleset) -> Vec<(usize, &str)> {
        let lines = ruleset.unreadable();
        lines
            .into_iter()
            .map(|line| (line.line, line.text.as_str()))
            .collect()
    }

    /// As both variants of 1.8.9 print such comments, the third one with text that looks like other lines.
    #[test]
    fn a_line_feed_in_a_comment_makes_only_that_rule_unreadable() {
        let text = "\
*filter
:INPUT ACCEPT [0:0]
:A - [0:0]
-A INPUT -p tcp -j ACCEPT
[1:2] -A INPUT -m comment --comment \"one
two\" -j ACCEPT
-A INPUT -j A
-A A -m comment --comment \"x
-A INPUT -j DROP
COMMIT\" -m comment --comment \"y \\\"
\" -j ACCEPT
-A A -j RETURN
COMMIT
";
        let ruleset = read(text);
        assert_eq!(rules(&ruleset, "INPUT"), ["-p tcp -j ACCEPT", "?", "-j A"]);
        assert_eq!(rules(&ruleset, "A"), ["?", "-j RETURN"]);
        assert_eq!(
            lines(&ruleset),
            [
                (5, "[1:2] -A INPUT -m comment --comment \"one\ntwo\" -j ACCEPT"),
                (
                    8,
                    "-A A -m comment --comment \"x\n-A INPUT -j DROP\nCOMMIT\" -m comment --comment \"y \\\"\n\" -j ACCEPT"
                ),
            ]
        );
        assert!(text.parse::<Ruleset>().unwrap_err().is_unreadable());
    }

    #[test]
    fn a_quote_in_a_name_makes_only_that_line_unreadable() {
        let ruleset = read(
            "\
*filter
:INPUT ACCEPT [0:0]
-A INPUT -i a\"b -j DROP
-A INPUT -m comment --comment \"to owned\" -j A
-A INPUT -i \"b -j DROP
-A INPUT -m comment --comment \"to owned\" -j B
-A INPUT -i \"c -j DROP
COMMIT
",
        );
        let comment = "-m comment --comment \"to owned\" -j";
        assert_eq!(
            rules(&ruleset, "INPUT"),
            ["?", &format!("{comment} A"), "?", &format!("{comment} B"), "?"]
        );
    }

    #[test]
    fn a_line_feed_in_a_name_makes_the_split_rule_unreadable() {
        let ruleset = read(
            "\
*filter
:INPUT ACCEPT [0:0]
-A INPUT -p tcp -j ACCEPT
-A INPUT -m recent --set --name a
b
c --mask 255.255.255.255 --rsource -j DROP
-A INPUT -j RETURN
COMMIT
",
        );
        assert_eq!(rules(&ruleset, "INPUT"), ["-p tcp -j ACCEPT", "?", "-j RETURN"]);
        let text = "-A INPUT -m recent --set --name a\nb\nc --mask 255.255.255.255 --rsource -j DROP";
        assert_eq!(lines(&ruleset), [(4, text)]);
    }

    #[test]
    fn a_chain_with_a_long_name_is_skipped_with_its_rules() {
        let long = "averyveryverylongchainnamethatisover28";
        let ruleset = read(&format!(
            "\
*filter
:INPUT ACCEPT [0:0]
:{long} - [0:0]
:A - [0:0]
-A INPUT -j {long}
-A INPUT -j A
-A {long} -s 192.0.2.1/32 -j A
-A A -j RETURN
COMMIT
"
        ));
        assert_eq!(rules(&ruleset, "INPUT"), [&format!("-j {long}"), "-j A"]);
        assert_eq!(rules(&ruleset, "A"), ["-j RETURN"]);
        assert_eq!(ruleset.table(Table::Filter).unwrap().chains().count(), 2);
        let numbers: Vec<_> = lines(&ruleset).iter().map(|(number, _)| *number).collect();
        assert_eq!(numbers, [3, 7]);
    }

    #[test]
    fn incomplete_tables_are_recorded() {
        let ruleset = read(
            "\
# Table `nat' is incompatible, use 'nft' tool.
*future
:INPUT ACCEPT [0:0]
-A INPUT -j ACCEPT
COMMIT
stray
*filter
:INPUT DENY [0:0]
-A INPUT -j ACCEPT
:INPUT ACCEPT [0:0]
COMMIT
*mangle
:INPUT ACCEPT [0:0]
",
        );
        assert_eq!(rules(&ruleset, "INPUT"), ["-j ACCEPT", "?"]);
        assert_eq!(ruleset.tables().count(), 1);
        assert!(ruleset.is_unreadable(Table::Nat) && ruleset.is_unreadable(Table::Mangle));
        let numbers: Vec<_> = lines(&ruleset).iter().map(|(number, _)| *number).collect();
        assert_eq!(numbers, [1, 2, 6, 8, 10, 13]);
    }

    #[test]
    fn unreadable_rules_keep_their_position_when_others_are_inserted_and_removed() {
        let mut ruleset = read(
            "*filter\n:A - [0:0]\n-A A -m comment --comment \"\n\"\n-A A -j ACCEPT\n-A A -m comment --comment \"\n\"\nCOMMIT\n",
        );
        let chain = ruleset.table_mut(Table::Filter).chain_mut("A".parse().unwrap());
        let rule = |text: &str| text.parse::<crate::Rule>().unwrap().into();
        assert!(chain.insert(1, rule("-j DROP")) && chain.insert(0, rule("-j RETURN")));
        assert!(!chain.insert(6, rule("-j DROP")) && chain.insert(5, rule("-p tcp")));
        assert_eq!(
            rules(&ruleset, "A"),
            ["-j RETURN", "?", "-j DROP", "-j ACCEPT", "?", "-p tcp"]
        );
        let chain = ruleset.table_mut(Table::Filter).chain_mut("A".parse().unwrap());
        assert!(chain.remove(1) && chain.remove(2) && !chain.remove(4));
        assert_eq!(rules(&ruleset, "A"), ["-j RETURN", "-j DROP", "?", "-p tcp"]);
    }
}
