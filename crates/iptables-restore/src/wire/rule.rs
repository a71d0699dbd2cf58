//! Parsing of rules.

use crate::argument::Argument;
use crate::condition::Condition;
use crate::matches::Match;
use crate::rule::Rule;
use crate::style::Style;
use crate::targets::Target;
use crate::wire::options::Options;
use crate::wire::render::Printer;
use crate::wire::token::{Token, split};

impl Rule {
    /// Parses the tokens of a rule.
    pub(crate) fn from_tokens(tokens: &[Token<'_>]) -> Self {
        Self::parse_until_stable(tokens, 3)
    }

    /// Parses the tokens so that the rendered rule parses to the same rule, by parsing rendered text at most `attempts` times.
    fn parse_until_stable(tokens: &[Token<'_>], attempts: u8) -> Self {
        // In the output of the tools every option follows its match directly. Then no match is recorded.
        Self::parse_recording(tokens, None).unwrap_or_else(|| {
            let recorded = Self::parse_recording(tokens, Some(Vec::new())).unwrap_or_default();
            // A rule with a repeated or unknown option keeps the order in which it was written.
            if recorded
                .reparse(|tokens| Self::parse_recording(tokens, None))
                .as_ref()
                == Some(&recorded)
            {
                return recorded;
            }
            let in_order = Self::parse_in_order(tokens);
            if attempts == 0 {
                return in_order;
            }
            // Matches are rendered before the target: if one followed it, the neighbouring options are now at another position.
            let again = in_order.reparse(|tokens| Some(Self::parse_until_stable(tokens, attempts - 1)));
            again.unwrap_or(in_order)
        })
    }

    /// Parses the rendered rule.
    fn reparse(&self, parse: impl FnOnce(&[Token<'_>]) -> Option<Self>) -> Option<Self> {
        let text = self.render(Style::SAVE);
        let mut tokens = Vec::new();
        split(&text, &mut tokens).ok()?;
        parse(&tokens)
    }

    /// Parses the tokens; every option belongs to the part before it.
    fn parse_in_order(tokens: &[Token<'_>]) -> Self {
        let mut options = Options { tokens, at: 0 };
        let mut rule = Rule::default();
        while options.at < tokens.len() {
            rule.parse_part(&mut options);
        }
        rule
    }

    /// Parses the tokens; `None` if an option belongs to an earlier match or target and `named`, the matches that can have it, is
    /// `None`.
    fn parse_recording(tokens: &[Token<'_>], mut named: Option<Vec<Named>>) -> Option<Self> {
        let mut options = Options { tokens, at: 0 };
        let mut rule = Rule {
            matches: Vec::with_capacity(4),
            target: None,
        };
        while options.at < tokens.len() {
            let (start, count) = (options.at, rule.matches.len());
            if continues(tokens, start) && rule.parse_continuation(&mut options, named.as_mut()?) {
                continue;
            }
            rule.parse_part(&mut options);
            if let Some(named) = &mut named
                && rule.matches.len() > count
                && (tokens.get(start).is_some_and(names_match) || continues(tokens, start))
            {
                named.push(Named {
                    index: count,
                    tokens: (start..options.at).collect(),
                });
            }
        }
        Some(rule)
    }

    /// Parses options of an earlier match or target, as `--dport` in `-m tcp -p tcp --dport 22`. The tools accept such rules but never
    /// print them.
    fn parse_continuation(&mut self, options: &mut Options<'_, '_>, named: &mut [Named]) -> bool {
        let start = options.at;
        let first = start + usize::from(options.tokens.get(start).is_some_and(is_negation));
        // One option at a time: the next may belong to another match.
        let rest = options.tokens.iter().enumerate().skip(first + 1);
        let end = rest
            .take_while(|(_, token)| !is_option(token) && !is_negation(token) && !is_rule_option(token))
            .last()
            .map_or(first + 1, |(at, _)| at + 1);
        let token = |at: &usize| options.tokens.get(*at).cloned();
        let protocols = self
            .matches
            .iter()
            .filter(|test| matches!(test, Match::Protocol(_)));
        let protocols: Vec<Match> = protocols.cloned().collect();
        for candidate in (0..named.len()).rev() {
            let Some(earlier) = named.get_mut(candidate) else {
                continue;
            };
            let before = earlier.tokens.len();
            earlier.tokens.extend(start..end);
            let tokens: Vec<Token<'_>> = earlier.tokens.iter().filter_map(token).collect();
            let mut again = Options {
                tokens: &tokens,
                at: 0,
            };
            if let Some(Part::Match(test)) = Part::read(&mut again, &protocols)
                && again.at == tokens.len()
                && let Some(slot) = self.matches.get_mut(earlier.index)
            {
                *slot = test;
                let index = earlier.index;
                self.put_protocol_before(index, named);
                options.at = end;
                return true;
            }
            earlier.tokens.truncate(before);
        }
        if let Some(target) = &mut self.target {
            let before = verbatim_arguments(target);
            let before = before.iter().map(Argument::to_token);
            let more = options.tokens.get(start..end).unwrap_or_default();
            let all: Vec<Token<'_>> = before.chain(more.iter().cloned()).collect();
            let mut again = Options { tokens: &all, at: 0 };
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

    /// Moves a later protocol before a match that needs it, because options were added to that match.
    fn put_protocol_before(&mut self, index: usize, named: &mut [Named]) {
        let protocol = |test: &Match| matches!(test, Match::Protocol(_));
        let Some(found) = self.matches.iter().skip(index).position(protocol) else {
            return;
        };
        let moved = self.matches.remove(index + found);
        self.matches.insert(index, moved);
        for named in named
            .iter_mut()
            .filter(|named| (index..index + found).contains(&named.index))
        {
            named.index += 1;
        }
    }

    fn parse_part(&mut self, options: &mut Options<'_, '_>) {
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

    /// Keeps the tokens before the next option of the rule itself verbatim.
    fn keep_verbatim(&mut self, options: &mut Options<'_, '_>) {
        let start = options.at;
        let end = end_of_part(options.tokens, start);
        let tokens = options.tokens.get(start..end).unwrap_or_default();
        let is_target = tokens.first().is_some_and(|token| {
            !token.is_quoted && matches!(token.text.as_ref(), "-j" | "-g" | "--jump" | "--goto")
        });
        let starts_with_rule_option = tokens
            .first()
            .is_some_and(|token| is_negation(token) || is_rule_option(token));
        let tokens: Vec<Argument> = tokens.iter().map(Argument::from_token).collect();
        options.at = end;
        match (&mut self.target, self.matches.last_mut()) {
            (target @ None, _) if is_target => *target = Some(Target::Verbatim(tokens)),
            // What follows a target is kept after it, because its meaning may depend on that.
            (Some(target), _) => {
                let mut all = verbatim_arguments(target);
                all.extend(tokens);
                *target = Target::Verbatim(all);
            }
            // Neighbours that do not start with an option of the rule belong together.
            (None, Some(Match::Verbatim(before))) if !starts_with_rule_option => {
                before.extend(tokens);
            }
            _ => self.matches.push(Match::Verbatim(tokens)),
        }
    }
}

/// A match that was given by its name or by an option of its protocol.
struct Named {
    /// Index among the matches of the rule.
    index: usize,
    /// Indices of its tokens.
    tokens: Vec<usize>,
}

fn names_match(token: &Token<'_>) -> bool {
    !token.is_quoted && (token.is("-m") || token.is("--match"))
}

/// Whether the next token is an option that is not one of the rule itself.
fn continues(tokens: &[Token<'_>], at: usize) -> bool {
    let sign = tokens.get(at).is_some_and(is_negation);
    tokens.get(at + usize::from(sign)).is_some_and(is_option)
}

fn is_option(token: &Token<'_>) -> bool {
    !token.is_quoted && token.text.starts_with("--") && !is_rule_option(token)
}

fn is_negation(token: &Token<'_>) -> bool {
    !token.is_quoted && token.is("!")
}

fn is_rule_option(token: &Token<'_>) -> bool {
    !token.is_quoted && !token.is_match_option && RULE_OPTIONS.contains(&token.text.as_ref())
}

/// The end of the part that starts at `start`: the index of the next option of the rule itself.
fn end_of_part(tokens: &[Token<'_>], start: usize) -> usize {
    let token = |at: usize| tokens.get(at);
    // `!` belongs to the option after it.
    let mut end = start + 1 + usize::from(token(start).is_some_and(is_negation));
    // The option's value, which may look like an option.
    end += usize::from(token(end - 1).is_some_and(is_rule_option));
    while let Some(next) = token(end) {
        let option = if is_negation(next) {
            token(end + 1)
        } else {
            Some(next)
        };
        if option.is_some_and(is_rule_option) {
            break;
        }
        end += 1;
    }
    end.min(tokens.len())
}

/// A target as arguments.
fn verbatim_arguments(target: &Target) -> Vec<Argument> {
    if let Target::Verbatim(tokens) = target {
        return tokens.clone();
    }
    let mut text = String::new();
    target.print(&mut Printer {
        out: &mut text,
        style: Style::SAVE,
    });
    let mut tokens = Vec::new();
    // Rendered text has no unclosed quotes.
    let _ = split(&text, &mut tokens);
    tokens.iter().map(Argument::from_token).collect()
}

/// Options of the rule itself, not of a match or target.
const RULE_OPTIONS: [&str; 22] = [
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
            .tokens
            .get(options.at)
            .is_some_and(|token| !token.is_quoted && token.is("!"));
        if negated {
            options.at += 1;
        }
        let token = options
            .tokens
            .get(options.at)
            .filter(|token| !token.is_quoted && !token.is_match_option)?;
        let option = token.text.as_ref();
        if let Some(implied) = Self::implied(option, before) {
            options.at -= usize::from(negated);
            let start = options.at;
            let test = Match::read(implied, options)?;
            // `Match::read` consumes nothing if the option is not one of this match.
            return (options.at > start).then_some(Part::Match(test));
        }
        options.at += 1;
        fn condition<T>(negated: bool, value: T) -> Condition<T> {
            if negated {
                Condition::Not(value)
            } else {
                Condition::Is(value)
            }
        }
        let test = match option {
            "-s" | "--source" | "--src" => Match::Source(condition(negated, options.value()?)),
            "-d" | "--destination" | "--dst" => Match::Destination(condition(negated, options.value()?)),
            "-i" | "--in-interface" => Match::InInterface(condition(negated, options.value()?)),
            "-o" | "--out-interface" => Match::OutInterface(condition(negated, options.value()?)),
            "-p" | "--protocol" | "--proto" => Match::Protocol(condition(negated, options.value()?)),
            "-f" | "--fragment" | "--fragments" => Match::Fragment(condition(negated, ())),
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

    /// The match that an option without `-m` belongs to: the match of the protocol given before.
    fn implied(option: &str, before: &[Match]) -> Option<&'static str> {
        if !option.starts_with("--") || RULE_OPTIONS.contains(&option) {
            return None;
        }
        let protocol = before.iter().rev().find_map(|test| match test {
            Match::Protocol(Condition::Is(protocol)) => Some(protocol.number()),
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

#[cfg(test)]
mod tests {
    use kernlink_base::Family;

    use super::*;

    #[test]
    fn options_are_assigned_to_an_earlier_match_or_target() {
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

    /// As the tool prints them, the last one as users may write it.
    #[test]
    fn the_protocol_of_the_policy_match_is_not_that_of_the_rule() {
        for text in [
            "-m policy --dir in --pol ipsec --proto esp -j ACCEPT",
            "-p tcp -m policy --dir in --pol ipsec --strict --reqid 1 ! --proto esp --mode tunnel --next --reqid 2",
            "-m policy --dir out --pol ipsec -p udp -m udp --dport 500 --proto esp -j DROP",
        ] {
            let rule: Rule = text.parse().unwrap();
            assert_eq!(rule.to_string(), text);
            let protocol = |test: &Match| matches!(test, Match::Protocol(Condition::Is(protocol)) if protocol.number() == 50);
            assert!(!rule.matches.iter().any(protocol), "{rule:?}");
            assert!(rule.normal_form(Family::Ipv4).to_string().contains("--proto esp"));
        }
        // Before the match it is an abbreviation of the option of the rule.
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
    fn unknown_options_keep_their_position() {
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
    fn a_rule_with_two_targets_parses_as_it_prints() {
        for text in [
            "-p tcp -m tcp --dport 53 -j tcp --dport 53 -j DNAT --to-destination 127.0.0.11:3 -p udp -m udp --sport 4 -j SNAT",
            "-j A --dport 1 -m tcp -j B --sport 2 -m udp --dport 3",
        ] {
            let rule: Rule = text.parse().unwrap();
            assert_eq!(rule.to_string().parse(), Ok(rule));
        }
    }
}
