//! Parsing the output of `iptables-save`, skipping what cannot be parsed.

use kernlink_base::Family;

use crate::chain::ChainName;
use crate::chain_reader::{ChainReader, KeepAll};
use crate::ruleset::{Chain, Ruleset};
use crate::save::Save;
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
        let mut lines = Lines::new(false);
        lines.parse(text, true, &Save::all(Family::Ipv4), &mut KeepAll);
        lines.finish()
    }
}

/// The output of `iptables-save` while it arrives. Only the lines are in memory that are not parsed yet, and what the reader of chains keeps.
pub(crate) struct LenientStream {
    /// What follows the last line feed.
    rest: Vec<u8>,
    /// Whole lines that are not parsed yet.
    text: String,
    /// The bytes of `text` without which its first line is not tried again.
    needed: usize,
    lines: Lines,
}

impl LenientStream {
    pub(crate) fn new() -> Self {
        Self {
            rest: Vec::new(),
            text: String::new(),
            needed: 0,
            lines: Lines::new(true),
        }
    }

    /// Parses what can be parsed without what follows.
    pub(crate) fn push(&mut self, bytes: &[u8], request: &Save, reader: &mut dyn ChainReader) {
        let whole = bytes
            .iter()
            .rposition(|byte| *byte == b'\n')
            .map_or(0, |last| last + 1);
        let (whole, rest) = bytes.split_at(whole);
        if !whole.is_empty() {
            self.rest.extend_from_slice(whole);
            // The tools truncate a long foreign comment within a character. Foreign rules are never rendered again.
            self.text.push_str(&String::from_utf8_lossy(&self.rest));
            self.rest.clear();
            if self.text.len() >= self.needed {
                let parsed = self.lines.parse(&self.text, false, request, reader);
                self.text.drain(..parsed);
                // A text in quotes that is not closed may be long: it is not read again for each part that arrives.
                self.needed = 2 * self.text.len();
            }
        }
        self.rest.extend_from_slice(rest);
    }

    /// Parses the rest. Returns what the reader kept, and what could not be parsed.
    pub(crate) fn finish(mut self, request: &Save, reader: &mut dyn ChainReader) -> Ruleset {
        self.text.push_str(&String::from_utf8_lossy(&self.rest));
        self.lines.parse(&self.text, true, request, reader);
        self.lines.finish()
    }
}

/// The previous line, whose text is in [`Lines::last_text`].
#[derive(Clone, Copy)]
enum Last {
    /// A rule that was parsed.
    Rule,
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

/// Whether a chain of the table that is being read was passed to the reader of chains.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Passed {
    /// Its rules may follow.
    #[default]
    No,
    /// It is in the result.
    Kept,
    /// It is not.
    Taken,
}

/// The lines parsed so far.
struct Lines {
    reader: Reader,
    /// Whether chains are passed to the reader of chains. If not, all are kept, and the rules of a chain need not be next to each other.
    passes: bool,
    /// The number of the next line.
    number: usize,
    last: Last,
    last_number: usize,
    last_text: String,
    in_skipped_table: bool,
    /// After this index no double quote closes a text.
    no_quote_from: usize,
    /// The index of the chain whose rules are being read.
    active: Option<usize>,
    /// By the index of the chain.
    passed: Vec<Passed>,
}

impl Lines {
    fn new(passes: bool) -> Self {
        Self {
            reader: Reader::new(),
            passes,
            number: 1,
            last: Last::Other,
            last_number: 0,
            last_text: String::new(),
            in_skipped_table: false,
            no_quote_from: usize::MAX,
            active: None,
            passed: Vec::new(),
        }
    }

    /// Parses whole lines: all of them at the end of the output, otherwise those whose end does not depend on what follows. Returns their
    /// length.
    fn parse(&mut self, text: &str, is_end: bool, request: &Save, reader: &mut dyn ChainReader) -> usize {
        let mut at = 0;
        while let Some(rest) = text.get(at..) {
            let length = match rest.find('\n') {
                Some(length) => length,
                None if is_end => rest.len(),
                None => break,
            };
            let Some(length) = self.line(text, at, length, is_end, request, reader) else {
                break;
            };
            let line = rest.get(..length).unwrap_or_default();
            let feeds = line.matches('\n').count();
            if !(rest.is_empty() && is_end) {
                self.last_number = self.number + feeds;
                self.last_text.clear();
                self.last_text.push_str(line);
            }
            self.number += feeds + 1;
            at += length + 1;
        }
        at.min(text.len())
    }

    /// Parses the line of `length` bytes at `start`, and the lines that continue it. Returns their length; `None` if that depends on what
    /// follows the text.
    fn line(
        &mut self,
        text: &str,
        start: usize,
        length: usize,
        is_end: bool,
        request: &Save,
        reader: &mut dyn ChainReader,
    ) -> Option<usize> {
        let number = self.number;
        let line = |length: usize| Line {
            number,
            text: text.get(start..start + length).unwrap_or_default(),
        };
        let one = line(length).text;
        if self.in_skipped_table {
            self.in_skipped_table = one != "COMMIT";
            return Some(length);
        }
        if one == "COMMIT" && self.passes {
            self.pass_rest(request, reader);
        }
        let Err(reason) = self.reader.line(one, number) else {
            self.last = Last::Other;
            if rule_part(one).is_some() {
                self.last = Last::Rule;
                self.activate(self.reader.chain, line(length), request, reader);
            } else if let Some((table, _)) = &self.reader.table
                && one.starts_with('*')
            {
                reader.begin(request, *table);
            }
            return Some(length);
        };
        let length = self.whole_length(text, start, length, is_end)?;
        self.skip(line(length), reason, request, reader);
        Some(length)
    }

    fn is_passed(&self, index: usize) -> bool {
        self.passed.get(index).is_some_and(|passed| *passed != Passed::No)
    }

    /// The rules of a chain follow: those of the one before are complete. Returns false if rules of the chain were passed already.
    fn activate(
        &mut self,
        index: usize,
        line: Line<'_>,
        request: &Save,
        reader: &mut dyn ChainReader,
    ) -> bool {
        if self.active == Some(index) || !self.passes {
            return true;
        }
        if let Some(before) = self.active.replace(index) {
            self.pass(before, request, reader);
        }
        if self.is_passed(index) {
            self.skip_table(line, "the rules of this chain are not next to each other");
            return false;
        }
        true
    }

    fn pass(&mut self, index: usize, request: &Save, reader: &mut dyn ChainReader) {
        let Some((table, rules)) = &mut self.reader.table else {
            return;
        };
        let Some((name, chain)) = rules.chain_at(index) else {
            return;
        };
        let passed = match reader.chain(request, *table, name, std::mem::take(chain)) {
            Some(kept) => {
                *chain = kept;
                Passed::Kept
            }
            None => Passed::Taken,
        };
        if self.passed.len() <= index {
            self.passed.resize(index + 1, Passed::No);
        }
        if let Some(place) = self.passed.get_mut(index) {
            *place = passed;
        }
    }

    /// Passes the chains of a complete table that were not passed yet.
    fn pass_rest(&mut self, request: &Save, reader: &mut dyn ChainReader) {
        let Some(count) = self.reader.table.as_ref().map(|(_, rules)| rules.chains().len()) else {
            return;
        };
        for index in 0..count {
            if !self.is_passed(index) {
                self.pass(index, request, reader);
            }
        }
        let passed = std::mem::take(&mut self.passed);
        if let Some((_, rules)) = &mut self.reader.table {
            rules.retain_at(|index| passed.get(index) != Some(&Passed::Taken));
        }
        self.active = None;
    }

    /// Leaves out the table that is being read.
    fn skip_table(&mut self, line: Line<'_>, reason: &str) {
        if let Some((table, _)) = self.reader.table.take() {
            let known = &mut self.reader.ruleset.unreadable_tables;
            known.insert(table, line.unreadable(reason.into()));
        }
        self.in_skipped_table = true;
        self.last = Last::Other;
        self.active = None;
        self.passed = Vec::new();
    }

    /// The length of a rule with the lines that continue a text in double quotes; `None` if that depends on what follows the text.
    fn whole_length(&mut self, text: &str, start: usize, length: usize, is_end: bool) -> Option<usize> {
        let mut whole = length;
        while let Some(line) = text.get(start..start + whole)
            && rule_part(line).is_some()
            && let Some(quote) = open_quote(line)
            // The tools print a space before and after a quoted text. Without it, the quote is part of a name.
            && line.get(..quote).is_some_and(|before| before.ends_with(' '))
            && start + quote < self.no_quote_from
        {
            let Some(close) = closing_quote(text, start + quote + 1) else {
                if !is_end {
                    return None;
                }
                self.no_quote_from = start + quote;
                break;
            };
            let rest = text.get(close + 1..).unwrap_or_default();
            if !is_end && !rest.contains('\n') {
                return None;
            }
            if !(rest.is_empty() || rest.starts_with([' ', '\n'])) {
                break;
            }
            whole = close + 1 + rest.find('\n').unwrap_or(rest.len()) - start;
        }
        // An unclosed quote is part of a name.
        let closed = text
            .get(start..start + whole)
            .is_some_and(|line| open_quote(line).is_none());
        Some(if closed { whole } else { length })
    }

    fn skip(&mut self, line: Line<'_>, reason: String, request: &Save, reader: &mut dyn ChainReader) {
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
            if let Some((name, index)) = name.and_then(|name| Some((name, rules.index_of(&name)?))) {
                if self.activate(index, line, request, reader)
                    && let Some((_, rules)) = &mut self.reader.table
                    && let Some((_, chain)) = rules.chain_at(index)
                {
                    chain.unreadable.insert(chain.len(), line.unreadable(reason));
                    self.last = Last::Skipped(name);
                }
                return;
            }
        } else if let Some(declared) = line.text.strip_prefix(':') {
            let name = declared.split(' ').next().unwrap_or_default();
            if let Ok(name) = ChainName::from_saved(name) {
                match rules.index_of(&name) {
                    None => drop(rules.insert(name, Chain::default())),
                    Some(index) => {
                        if self.passed.get(index).is_some_and(|passed| *passed != Passed::No) {
                            self.skip_table(line, "the chain is declared after its rules");
                        } else if let Some((_, chain)) = rules.chain_at(index) {
                            chain.unreadable.insert(chain.len(), line.unreadable(reason));
                        }
                        return;
                    }
                }
            }
        } else if !line.text.starts_with('*') {
            // A line feed in a name split the previous line: what was parsed of that line is not the rule.
            let name = match last {
                Last::Rule => rule_part(&self.last_text)
                    .and_then(|rule| rule.split(' ').next())
                    .and_then(|name| ChainName::from_saved(name).ok()),
                Last::Skipped(name) => Some(name),
                Last::Other => None,
            };
            if let Some(name) = name
                && let Some(chain) = rules.existing_chain_mut(&name)
            {
                if let Last::Rule = last {
                    let split = Line {
                        number: self.last_number,
                        text: &self.last_text,
                    };
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

    fn finish(self) -> Ruleset {
        let mut ruleset = self.reader.ruleset;
        if let Some((table, _)) = self.reader.table {
            let last = Line {
                number: self.last_number,
                text: self.last_text.lines().last().unwrap_or_default(),
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

    /// Records the names of the chains, and returns those that it is to keep.
    struct Recorder {
        passed: Vec<(Table, String, usize)>,
        keeps: bool,
    }

    impl ChainReader for Recorder {
        fn begin(&mut self, _: &Save, table: Table) {
            self.passed.retain(|(of, ..)| *of != table);
        }

        fn chain(&mut self, _: &Save, table: Table, name: &ChainName, chain: Chain) -> Option<Chain> {
            self.passed.push((table, name.to_string(), chain.len()));
            self.keeps.then_some(chain)
        }
    }

    /// Reads a text that arrives in parts of this size.
    fn stream(text: &[u8], size: usize, keeps: bool) -> (Ruleset, Vec<(Table, String, usize)>) {
        let passed = Vec::new();
        let mut recorder = Recorder { passed, keeps };
        let request = Save::all(Family::Ipv4);
        let mut stream = LenientStream::new();
        for part in text.chunks(size) {
            stream.push(part, &request, &mut recorder);
        }
        (stream.finish(&request, &mut recorder), recorder.passed)
    }

    fn read(text: &str) -> Ruleset {
        let ruleset = Ruleset::parse_lenient(text);
        for size in [1, 2, 7, 64, usize::MAX] {
            let (streamed, passed) = stream(text.as_bytes(), size, true);
            assert_eq!(streamed, ruleset, "in parts of {size}");
            for (table, rules) in ruleset.tables() {
                let mut of_table: Vec<_> = passed.iter().filter(|(of, ..)| *of == table).collect();
                let mut expected: Vec<(Table, String, usize)> = rules
                    .chains()
                    .map(|(name, chain)| (table, name.to_string(), chain.len()))
                    .collect();
                of_table.sort();
                expected.sort();
                assert!(of_table.into_iter().eq(&expected), "in parts of {size}");
            }
        }
        if let Ok(strict) = text.parse::<Ruleset>() {
            assert_eq!(ruleset, strict);
        }
        ruleset
    }

    #[test]
    fn a_chain_that_the_reader_does_not_keep_is_not_in_the_result() {
        let text = "*nat\n:A - [0:0]\n:B - [0:0]\n:C - [0:0]\n-A A -j B\n-A A -j C\n-A C -j B\nCOMMIT\n";
        for size in [1, 7, 1000] {
            let (ruleset, passed) = stream(text.as_bytes(), size, false);
            assert_eq!(ruleset.table(Table::Nat).unwrap().chains().len(), 0);
            let passed: Vec<(&str, usize)> =
                passed.iter().map(|(_, name, rules)| (&**name, *rules)).collect();
            assert_eq!(passed, [("A", 2), ("B", 0), ("C", 1)]);
        }
    }

    #[test]
    fn a_table_in_which_the_rules_of_a_chain_are_not_together_is_unreadable_if_chains_are_passed() {
        let rules = [
            "-A A -j B\n-A B -j ACCEPT\n-A A -j ACCEPT\n",
            "-A A -j B\n-A B -j ACCEPT\n-A A -m comment --comment \"\n\"\n",
            "-A A -j B\n-A B -j ACCEPT\n:A - [0:0]\n",
        ];
        for rules in rules {
            let text = format!("*nat\n:A - [0:0]\n:B - [0:0]\n{rules}COMMIT\n*filter\n:D - [0:0]\nCOMMIT\n");
            for keeps in [false, true] {
                let (ruleset, _) = stream(text.as_bytes(), 7, keeps);
                assert!(ruleset.is_unreadable(Table::Nat), "{text}");
                assert!(ruleset.table(Table::Nat).is_none() && ruleset.table(Table::Filter).is_some());
            }
            assert!(!Ruleset::parse_lenient(&text).is_unreadable(Table::Nat));
        }
    }

    #[test]
    fn a_character_may_arrive_in_parts() {
        let text = "*nat\n:A - [0:0]\n-A A -m comment --comment \"ü–\u{1F600}\" -j ACCEPT\nCOMMIT\n";
        for size in 1..9 {
            assert_eq!(
                stream(text.as_bytes(), size, true).0,
                Ruleset::parse_lenient(text)
            );
        }
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
