//! Rules.

use std::fmt;
use std::str::FromStr;

use crate::chain::ChainName;
use crate::error::Error;
use crate::family::Family;
use crate::matches::Match;
use crate::options::Options;
use crate::render::{Printer, Style};
use crate::targets::Target;
use crate::words::{RawWord, Word, split};

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
        let mut options = Options { words, at: 0 };
        let mut rule = Rule {
            matches: Vec::with_capacity(4),
            target: None,
        };
        while options.at < words.len() {
            rule.read_part(&mut options);
        }
        rule
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
        let begins = |word: &RawWord<'_>| !word.quoted && GLOBAL_OPTIONS.contains(&word.text.as_ref());
        let mut end = start + 1;
        let word = |at: usize| options.words.get(at);
        // A sign and the option it belongs to stay together.
        let is_sign = |at: usize| word(at).is_some_and(|word| !word.quoted && word.is("!"));
        if is_sign(start) {
            end += 1;
        }
        // The option's own value, whatever it looks like.
        if word(end - 1).is_some_and(begins) {
            end += 1;
        }
        while let Some(next) = word(end) {
            let option = if is_sign(end) { word(end + 1) } else { Some(next) };
            if option.is_some_and(begins) {
                break;
            }
            end += 1;
        }
        let end = end.min(options.words.len());
        let words = options.words.get(start..end).unwrap_or_default();
        let is_target = words.first().is_some_and(|word| {
            !word.quoted && matches!(word.text.as_ref(), "-j" | "-g" | "--jump" | "--goto")
        });
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
            (None, Some(Match::Verbatim(before))) if !words.first().is_some_and(starts_part) => {
                before.extend(words);
            }
            _ => self.matches.push(Match::Verbatim(words)),
        }
    }
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

fn starts_part(word: &Word) -> bool {
    !word.is_quoted() && (word.as_str() == "!" || GLOBAL_OPTIONS.contains(&word.as_str()))
}

/// Options that belong to the rule and not to a match or target.
const GLOBAL_OPTIONS: [&str; 21] = [
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
        let word = options.words.get(options.at).filter(|word| !word.quoted)?;
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
            "-f" | "--fragment" => Match::Fragment(sign(negated, ())),
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
    fn from_str(text: &str) -> Result<Self, Error> {
        if text.contains(['\n', '\0']) {
            return Err(Error::invalid("rule", text, "holds a line feed or a NUL"));
        }
        let mut words = Vec::new();
        split(text, &mut words).map_err(|reason| Error::invalid("rule", text, reason))?;
        Ok(Rule::read(&words))
    }
}
