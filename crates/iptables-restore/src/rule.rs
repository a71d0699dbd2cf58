//! Rules.

use std::fmt;
use std::str::FromStr;

use crate::chain::ChainName;
use crate::error::Error;
use crate::family::Family;
use crate::matches::Match;
use crate::targets::Target;
use crate::wire::options::Options;
use crate::wire::render::{Printer, Style};
use crate::wire::token::{RawWord, Word, split};

/// One rule: what it tests, in the order it is written, and what then happens.
///
/// Counters are not part of it; see [`CountedRule`](crate::CountedRule). The chain is not either.
///
/// Equality is that of the values. For equality of meaning compare [`Rule::normal_form`]s, or call
/// [`Rule::means_the_same`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Rule {
    /// What is tested; all must hold. Empty for every packet.
    pub matches: Vec<Match>,
    /// What happens then; none only counts.
    pub target: Option<Target>,
}

impl Rule {
    /// A rule for every packet that only counts.
    pub fn new() -> Self {
        Rule::default()
    }

    /// The rule with one more test, after those it has.
    pub fn with(mut self, test: Match) -> Self {
        self.matches.push(test);
        self
    }

    /// The rule with this target.
    pub fn with_target(mut self, target: Target) -> Self {
        self.target = Some(target);
        self
    }

    /// The rule with a comment after the tests it has.
    ///
    /// # Errors
    ///
    /// As [`Comment::new`](crate::Comment::new).
    pub fn with_comment(self, text: &str) -> Result<Self, Error> {
        Ok(self.with(Match::comment(text)?))
    }

    /// The rule jumping to `chain`.
    pub fn jump(self, chain: ChainName) -> Self {
        self.with_target(Target::Jump(chain))
    }

    /// The rule in `style`, without chain: `-s 10.0.0.0/8 -j ACCEPT`.
    pub fn render(&self, style: Style) -> String {
        let mut text = String::new();
        self.render_into(&mut text, style);
        text.split_off(usize::from(!text.is_empty()))
    }

    /// The words of the rule, as arguments of the tool.
    pub(crate) fn words(&self, style: Style) -> Vec<String> {
        let text = self.render(style);
        let mut words = Vec::new();
        // What was rendered has its quotes closed.
        let _ = split(&text, &mut words);
        words.into_iter().map(|word| word.text.into_owned()).collect()
    }

    /// Appends the rule, with a blank before each word.
    pub(crate) fn render_into(&self, out: &mut String, style: Style) {
        let mut printer = Printer { out, style };
        for test in &self.matches {
            test.print(&mut printer);
        }
        if let Some(target) = &self.target {
            target.print(&mut printer);
        }
    }

    /// Whether both rules do the same: whether their normal forms are equal.
    pub fn means_the_same(&self, other: &Rule, family: Family) -> bool {
        self == other || self.normal_form(family) == other.normal_form(family)
    }

    /// Reads the words of a rule.
    pub(crate) fn read(words: &[RawWord<'_>]) -> Self {
        Self::read_settling(words, 3)
    }

    /// Reads the words so that the rule's text reads the same, which may take so many readings of its text.
    fn read_settling(words: &[RawWord<'_>], readings: u8) -> Self {
        // What the tools print has no option away from its match, so nothing is noted for it.
        Self::read_noting(words, None).unwrap_or_else(|| {
            let noted = Self::read_noting(words, Some(Vec::new())).unwrap_or_default();
            // What has an option twice, or one that is unknown, is better kept in the order in which it was written.
            if noted.reread(|words| Self::read_noting(words, None)).as_ref() == Some(&noted) {
                return noted;
            }
            let in_order = Self::read_in_order(words);
            if readings == 0 {
                return in_order;
            }
            // Matches print before the target: where one came behind it, the options around have another place now.
            let again = in_order.reread(|words| Some(Self::read_settling(words, readings - 1)));
            again.unwrap_or(in_order)
        })
    }

    /// What is read of this rule's own text.
    fn reread(&self, read: impl FnOnce(&[RawWord<'_>]) -> Option<Self>) -> Option<Self> {
        let text = self.render(Style::SAVE);
        let mut words = Vec::new();
        split(&text, &mut words).ok()?;
        read(&words)
    }

    /// Reads the words, each option where it stands.
    fn read_in_order(words: &[RawWord<'_>]) -> Self {
        let mut options = Options { words, at: 0 };
        let mut rule = Rule::default();
        while options.at < words.len() {
            rule.read_part(&mut options);
        }
        rule
    }

    /// Reads the words; none if there is an option that belongs further ahead, and `named` is not there to say where.
    fn read_noting(words: &[RawWord<'_>], mut named: Option<Vec<Named>>) -> Option<Self> {
        let mut options = Options { words, at: 0 };
        let mut rule = Rule {
            matches: Vec::with_capacity(4),
            target: None,
        };
        while options.at < words.len() {
            let (start, count) = (options.at, rule.matches.len());
            if continues(words, start) && rule.read_continuation(&mut options, named.as_mut()?) {
                continue;
            }
            rule.read_part(&mut options);
            if let Some(named) = &mut named
                && rule.matches.len() > count
                && (words.get(start).is_some_and(names_match) || continues(words, start))
            {
                named.push(Named {
                    place: count,
                    words: (start..options.at).collect(),
                });
            }
        }
        Some(rule)
    }

    /// Takes options that belong to a match or target named further ahead, as `--dport` in
    /// `-m tcp -p tcp --dport 22`. The tools never print them so, but people write them.
    fn read_continuation(&mut self, options: &mut Options<'_, '_>, named: &mut [Named]) -> bool {
        let start = options.at;
        let first = start + usize::from(options.words.get(start).is_some_and(is_sign));
        // One option at a time: the next may be for another match.
        let rest = options.words.iter().enumerate().skip(first + 1);
        let end = rest
            .take_while(|(_, word)| !is_option(word) && !is_sign(word) && !begins_part(word))
            .last()
            .map_or(first + 1, |(place, _)| place + 1);
        let word = |place: &usize| options.words.get(*place).cloned();
        let protocols = self
            .matches
            .iter()
            .filter(|test| matches!(test, Match::Protocol(_)));
        let protocols: Vec<Match> = protocols.cloned().collect();
        for which in (0..named.len()).rev() {
            let Some(earlier) = named.get_mut(which) else {
                continue;
            };
            let before = earlier.words.len();
            earlier.words.extend(start..end);
            let words: Vec<RawWord<'_>> = earlier.words.iter().filter_map(word).collect();
            let mut again = Options { words: &words, at: 0 };
            if let Some(Part::Match(test)) = Part::read(&mut again, &protocols)
                && again.at == words.len()
                && let Some(place) = self.matches.get_mut(earlier.place)
            {
                *place = test;
                let place = earlier.place;
                self.put_protocol_before(place, named);
                options.at = end;
                return true;
            }
            earlier.words.truncate(before);
        }
        if let Some(target) = &mut self.target {
            let before = verbatim_words(target);
            let before = before.iter().map(Word::to_raw);
            let more = options.words.get(start..end).unwrap_or_default();
            let all: Vec<RawWord<'_>> = before.chain(more.iter().cloned()).collect();
            let mut again = Options { words: &all, at: 0 };
            if let Some(Part::Target(read)) = Part::read(&mut again, &[])
                && again.at == all.len()
            {
                *target = read;
                options.at = end;
                return true;
            }
        }
        false
    }

    /// Some matches want their protocol before their options, which now stand further ahead.
    fn put_protocol_before(&mut self, place: usize, named: &mut [Named]) {
        let protocol = |test: &Match| matches!(test, Match::Protocol(_));
        let Some(found) = self.matches.iter().skip(place).position(protocol) else {
            return;
        };
        let moved = self.matches.remove(place + found);
        self.matches.insert(place, moved);
        for named in named
            .iter_mut()
            .filter(|named| (place..place + found).contains(&named.place))
        {
            named.place += 1;
        }
    }

    fn read_part(&mut self, options: &mut Options<'_, '_>) {
        let start = options.at;
        match Part::read(options, &self.matches) {
            Some(Part::Match(test)) => self.matches.push(test),
            Some(Part::Target(target)) if self.target.is_none() => self.target = Some(target),
            _ => {
                options.at = start;
                self.keep_verbatim(options);
            }
        }
    }

    /// Takes the words up to the next option that begins a part, as they are.
    fn keep_verbatim(&mut self, options: &mut Options<'_, '_>) {
        let start = options.at;
        let end = end_of_part(options.words, start);
        let words = options.words.get(start..end).unwrap_or_default();
        let is_target = words.first().is_some_and(|word| {
            !word.quoted && matches!(word.text.as_ref(), "-j" | "-g" | "--jump" | "--goto")
        });
        let starts_part = words
            .first()
            .is_some_and(|word| is_sign(word) || begins_part(word));
        let words: Vec<Word> = words.iter().map(RawWord::to_word).collect();
        options.at = end;
        match (&mut self.target, self.matches.last_mut()) {
            (target @ None, _) if is_target => *target = Some(Target::Verbatim(words)),
            // What follows a target stays behind it, or it could mean something else.
            (Some(target), _) => {
                let mut all = verbatim_words(target);
                all.extend(words);
                *target = Target::Verbatim(all);
            }
            // Neighbours that begin with no option of their own belong together.
            (None, Some(Match::Verbatim(before))) if !starts_part => {
                before.extend(words);
            }
            _ => self.matches.push(Match::Verbatim(words)),
        }
    }
}

/// A match that was given by its name or an option of its protocol, and where the words stand that have been read of it
/// so far.
struct Named {
    /// Its place among the matches of the rule.
    place: usize,
    words: Vec<usize>,
}

fn names_match(word: &RawWord<'_>) -> bool {
    !word.quoted && (word.is("-m") || word.is("--match"))
}

/// Whether the next option is none that begins a part.
fn continues(words: &[RawWord<'_>], at: usize) -> bool {
    let sign = words.get(at).is_some_and(is_sign);
    words.get(at + usize::from(sign)).is_some_and(is_option)
}

fn is_option(word: &RawWord<'_>) -> bool {
    !word.quoted && word.text.starts_with("--") && !begins_part(word)
}

fn is_sign(word: &RawWord<'_>) -> bool {
    !word.quoted && word.is("!")
}

fn begins_part(word: &RawWord<'_>) -> bool {
    !word.quoted && !word.is_claimed && GLOBAL_OPTIONS.contains(&word.text.as_ref())
}

/// Where the words that begin at `start` end: before the next option that begins a part.
fn end_of_part(words: &[RawWord<'_>], start: usize) -> usize {
    let word = |at: usize| words.get(at);
    // A sign and the option it belongs to stay together.
    let mut end = start + 1 + usize::from(word(start).is_some_and(is_sign));
    // The option's own value, whatever it looks like.
    end += usize::from(word(end - 1).is_some_and(begins_part));
    while let Some(next) = word(end) {
        let option = if is_sign(next) { word(end + 1) } else { Some(next) };
        if option.is_some_and(begins_part) {
            break;
        }
        end += 1;
    }
    end.min(words.len())
}

/// The words that a target is written in.
fn verbatim_words(target: &Target) -> Vec<Word> {
    if let Target::Verbatim(words) = target {
        return words.clone();
    }
    let mut text = String::new();
    target.print(&mut Printer {
        out: &mut text,
        style: Style::SAVE,
    });
    let mut words = Vec::new();
    // What was rendered has its quotes closed.
    let _ = split(&text, &mut words);
    words.iter().map(RawWord::to_word).collect()
}

/// Options that belong to the rule and not to a match or target.
const GLOBAL_OPTIONS: [&str; 22] = [
    "-s",
    "-d",
    "-i",
    "-o",
    "-p",
    "-f",
    "-m",
    "-j",
    "-g",
    "--source",
    "--src",
    "--destination",
    "--dst",
    "--in-interface",
    "--out-interface",
    "--protocol",
    "--proto",
    "--fragment",
    "--fragments",
    "--match",
    "--jump",
    "--goto",
];

enum Part {
    Match(Match),
    Target(Target),
}

impl Part {
    fn read(options: &mut Options<'_, '_>, before: &[Match]) -> Option<Self> {
        let negated = options
            .words
            .get(options.at)
            .is_some_and(|word| !word.quoted && word.is("!"));
        if negated {
            options.at += 1;
        }
        let word = options
            .words
            .get(options.at)
            .filter(|word| !word.quoted && !word.is_claimed)?;
        let option = word.text.as_ref();
        if let Some(implied) = Self::implied(option, before) {
            options.at -= usize::from(negated);
            let start = options.at;
            let test = Match::read(implied, options)?;
            // An option of something else leaves the match without any.
            return (options.at > start).then_some(Part::Match(test));
        }
        options.at += 1;
        fn sign<T>(negated: bool, value: T) -> crate::Condition<T> {
            if negated {
                crate::Condition::Not(value)
            } else {
                crate::Condition::Is(value)
            }
        }
        let test = match option {
            "-s" | "--source" | "--src" => Match::Source(sign(negated, options.value()?)),
            "-d" | "--destination" | "--dst" => Match::Destination(sign(negated, options.value()?)),
            "-i" | "--in-interface" => Match::InInterface(sign(negated, options.value()?)),
            "-o" | "--out-interface" => Match::OutInterface(sign(negated, options.value()?)),
            "-p" | "--protocol" | "--proto" => Match::Protocol(sign(negated, options.value()?)),
            "-f" | "--fragment" | "--fragments" => Match::Fragment(sign(negated, ())),
            _ if negated => return None,
            "-m" | "--match" => {
                let name = options.next()?;
                Match::read(name, options)?
            }
            "-j" | "--jump" => return Target::read_jump(options).map(Part::Target),
            "-g" | "--goto" => return Some(Part::Target(Target::Goto(options.value()?))),
            _ => return None,
        };
        Some(Part::Match(test))
    }

    /// The match that an option without `-m` belongs to: that of the protocol tested before.
    fn implied(option: &str, before: &[Match]) -> Option<&'static str> {
        if !option.starts_with("--") || GLOBAL_OPTIONS.contains(&option) {
            return None;
        }
        let protocol = before.iter().rev().find_map(|test| match test {
            Match::Protocol(crate::Condition::Is(protocol)) => Some(protocol.number()),
            _ => None,
        });
        match (protocol?, option) {
            (6, _) if !before.iter().any(|test| matches!(test, Match::Tcp(_))) => Some("tcp"),
            (17, _) if !before.iter().any(|test| matches!(test, Match::Udp(_))) => Some("udp"),
            (132, _) if !before.iter().any(|test| matches!(test, Match::Sctp(_))) => Some("sctp"),
            (1, "--icmp-type") => Some("icmp"),
            (58, "--icmpv6-type") => Some("icmp6"),
            _ => None,
        }
    }
}

impl fmt::Display for Rule {
    /// As `iptables-save` prints it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.render(Style::SAVE))
    }
}

impl FromStr for Rule {
    type Err = Error;

    /// Reads the words after `-A CHAIN`. What has no type here is kept verbatim.
    ///
    /// So are names of ports, users and hosts, for which the tools print numbers: a rule with one never equals its saved form.
    /// [`Names::rule`](crate::Names::rule) resolves them as the tools do.
    fn from_str(text: &str) -> Result<Self, Error> {
        if text.contains(['\n', '\0']) {
            return Err(Error::invalid("rule", text, "holds a line feed or a NUL"));
        }
        let mut words = Vec::new();
        split(text, &mut words).map_err(|reason| Error::invalid("rule", text, reason))?;
        Ok(Rule::read(&words))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_a_match_or_target_named_further_ahead_find_it() {
        for (written, read) in [
            (
                "-m tcp -p tcp --dport 22 -j ACCEPT",
                "-p tcp -m tcp --dport 22 -j ACCEPT",
            ),
            (
                "-m state --state NEW -m tcp -p tcp --dport 22 -j ACCEPT",
                "-m state --state NEW -p tcp -m tcp --dport 22 -j ACCEPT",
            ),
            (
                "-m multiport -m comment --comment x -p tcp ! --dports 1,2",
                "-p tcp -m multiport ! --dports 1,2 -m comment --comment x",
            ),
            (
                "-m udp -m multiport -p udp --dport 5 --sports 1,2",
                "-p udp -m udp --dport 5 -m multiport --sports 1,2",
            ),
            (
                "-j DNAT -p tcp --to-destination 192.0.2.1:80",
                "-p tcp -j DNAT --to-destination 192.0.2.1:80",
            ),
            (
                "-p tcp -j REJECT -s 192.0.2.1 --reject-with tcp-reset",
                "-p tcp -s 192.0.2.1 -j REJECT --reject-with tcp-reset",
            ),
            (
                "-p tcp -j ACCEPT --dport 80",
                "-p tcp -m tcp --dport 80 -j ACCEPT",
            ),
        ] {
            let rule: Rule = written.parse().unwrap();
            assert_eq!(rule.to_string(), read, "{rule:?}");
            let typed = !rule.matches.iter().any(|test| matches!(test, Match::Verbatim(_)));
            assert!(
                typed && !matches!(rule.target, Some(Target::Verbatim(_))),
                "{rule:?}"
            );
            assert_eq!(read.parse(), Ok(rule));
        }
    }

    /// As the tool prints them; the last as people may write them.
    #[test]
    fn the_protocol_of_the_policy_match_is_not_that_of_the_rule() {
        for text in [
            "-m policy --dir in --pol ipsec --proto esp -j ACCEPT",
            "-p tcp -m policy --dir in --pol ipsec --strict --reqid 1 ! --proto esp --mode tunnel --next --reqid 2",
            "-m policy --dir out --pol ipsec -p udp -m udp --dport 500 --proto esp -j DROP",
        ] {
            let rule: Rule = text.parse().unwrap();
            assert_eq!(rule.to_string(), text);
            let protocol = |test: &Match| matches!(test, Match::Protocol(crate::Condition::Is(protocol)) if protocol.number() == 50);
            assert!(!rule.matches.iter().any(protocol), "{rule:?}");
            assert!(rule.normal_form(Family::Ipv4).to_string().contains("--proto esp"));
        }
        // Before the match is named, it abbreviates the option of the rule.
        let rule: Rule = "--proto esp -m policy --dir in --pol none".parse().unwrap();
        assert_eq!(rule.to_string(), "-p esp -m policy --dir in --pol none");
        let rule: Rule = "--proto tcp -m comment --comment \"-m policy\" --proto tcp"
            .parse()
            .unwrap();
        assert_eq!(
            rule.to_string(),
            "-p tcp -m comment --comment \"-m policy\" -p tcp"
        );
        let rule: Rule = "! --fragments -j DROP".parse().unwrap();
        assert_eq!(rule.to_string(), "! -f -j DROP");
    }

    #[test]
    fn options_that_nothing_knows_stay_where_they_are() {
        for text in [
            "-p tcp -m tcp --dport 22 -j ACCEPT --unheard-of",
            "-p sctp -m sctp --dport 5 --chunk-types only SACK",
            "-m unheard-of --x -p tcp --y 5 -j ACCEPT",
            "-m tcp -p tcp --dport 22 -m mark --mark 0x1 --dport 22 --x",
            "-m state --state NEW -m tcp -p tcp --dport 22 -!!--x 1 -m state --y NE -W mtcp -p tcp --dport 22",
        ] {
            let rule: Rule = text.parse().unwrap();
            assert_eq!(rule.to_string(), text);
            assert_eq!(rule.to_string().parse(), Ok(rule));
        }
    }

    #[test]
    fn a_rule_with_two_targets_reads_as_it_prints() {
        for text in [
            "-p tcp -m tcp --dport 53 -j tcp --dport 53 -j DNAT --to-destination 127.0.0.11:3 -p udp -m udp --sport 4 -j SNAT",
            "-j A --dport 1 -m tcp -j B --sport 2 -m udp --dport 3",
        ] {
            let rule: Rule = text.parse().unwrap();
            assert_eq!(rule.to_string().parse(), Ok(rule));
        }
    }
}
