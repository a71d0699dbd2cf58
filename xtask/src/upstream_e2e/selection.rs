//! Which tests are run, and what result is expected of them.

use std::fmt;

use anyhow::{Context, Result, ensure};
use regex::Regex;

use super::{
    junit::Outcome,
    rules::{Rule, Setup},
};

/// Tests that are not run.
const LEFT_OUT: &str = include_str!("left-out.rules");
/// Tests that fail.
const FAILURES: &str = include_str!("failures.rules");

/// The part of a name that all tests of SIG Network have.
const SIG: &str = "[sig-network]";

/// The names of the tests of SIG Network in the output of `e2e.test --list-tests`: lines `    FILE:LINE: NAME`.
pub(super) fn names(list: &str) -> Result<Vec<String>> {
    let mut names: Vec<String> = Vec::new();
    for line in list.lines().filter(|line| line.starts_with("    ")) {
        let (place, name) = line
            .trim()
            .split_once(": ")
            .with_context(|| format!("`{line}`; expected FILE:LINE: NAME"))?;
        ensure!(place.contains(':'), "`{line}`; expected FILE:LINE: NAME");
        if name.contains(SIG) {
            names.push(name.to_owned());
        }
    }
    ensure!(!names.is_empty(), "e2e.test lists no test of SIG Network");
    names.sort();
    // A name that two tests have selects both.
    names.dedup();
    Ok(names)
}

/// The tests that are run, and how many are not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Selection {
    /// The number of tests of SIG Network.
    pub(super) known: usize,
    pub(super) tests: Vec<String>,
    /// The number of tests for each reason.
    pub(super) left_out: Vec<(String, usize)>,
    /// The number of tests that the regular expression of the command line does not match.
    pub(super) unfocused: usize,
    /// Regular expressions of rules that match no test.
    pub(super) unused: Vec<String>,
}

impl Selection {
    /// Selects tests by the rules of this repository, and a regular expression.
    pub(super) fn new(known: &[String], setup: Setup<'_>, focus: Option<&Regex>) -> Result<Self> {
        let rules = Rule::parse(LEFT_OUT).context("left-out.rules")?;
        Ok(Self::by_rules(known, &rules, setup, focus))
    }

    fn by_rules(known: &[String], rules: &[Rule], setup: Setup<'_>, focus: Option<&Regex>) -> Self {
        let mut counts = vec![0; rules.len()];
        let mut tests = Vec::new();
        let mut unfocused = 0;
        for test in known {
            // The first rule counts.
            let rule = rules.iter().position(|rule| rule.applies(test, setup));
            if let Some(count) = rule.and_then(|position| counts.get_mut(position)) {
                *count += 1;
            } else if focus.is_some_and(|focus| !focus.is_match(test)) {
                unfocused += 1;
            } else {
                tests.push(test.clone());
            }
        }
        let reasons = rules.iter().map(|rule| rule.reason.clone());
        Self {
            known: known.len(),
            tests,
            left_out: reasons.zip(counts).filter(|(_, count)| *count > 0).collect(),
            unfocused,
            unused: unused(rules, known),
        }
    }
}

impl fmt::Display for Selection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:5} tests name sig-network", self.known)?;
        for (reason, count) in &self.left_out {
            writeln!(f, "{count:5} left out: {reason}")?;
        }
        if self.unfocused > 0 {
            writeln!(f, "{:5} do not match --focus", self.unfocused)?;
        }
        write!(f, "{:5} selected", self.tests.len())?;
        for regex in &self.unused {
            write!(f, "\nleft-out.rules: no test matches {regex}")?;
        }
        Ok(())
    }
}

/// What the rules of this repository expect.
#[derive(Clone, Debug)]
pub(super) struct Expectations {
    failures: Vec<Rule>,
    /// Regular expressions of rules that match no test.
    pub(super) unused: Vec<String>,
}

/// How an outcome compares with what is expected.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Judgement {
    Expected,
    /// It fails for this known reason.
    KnownFailure(String),
    Unexpected(String),
}

impl Judgement {
    pub(super) fn is_unexpected(&self) -> bool {
        matches!(self, Self::Unexpected(_))
    }
}

impl Expectations {
    /// Those of this repository.
    pub(super) fn new(known: &[String]) -> Result<Self> {
        let failures = Rule::parse(FAILURES).context("failures.rules")?;
        Ok(Self {
            unused: unused(&failures, known),
            failures,
        })
    }

    /// Judges a test. `None`: it has no result.
    pub(super) fn judge(&self, test: &str, setup: Setup<'_>, outcome: Option<&Outcome>) -> Judgement {
        let failure = self.failures.iter().find(|rule| rule.applies(test, setup));
        match (outcome, failure) {
            (Some(Outcome::Passed), None) => Judgement::Expected,
            (Some(Outcome::Failed(_)), Some(rule)) => Judgement::KnownFailure(rule.reason.clone()),
            (Some(Outcome::Failed(message)), None) => Judgement::Unexpected(message.clone()),
            (Some(Outcome::Passed), Some(rule)) => {
                Judgement::Unexpected(format!("passed; expected a failure: {}", rule.reason))
            }
            (Some(Outcome::Skipped(reason)), _) => Judgement::Unexpected(format!("skipped itself: {reason}")),
            (None, _) => Judgement::Unexpected("no result".to_owned()),
        }
    }
}

/// The regular expressions of rules that match no test: the test has another name in this version.
fn unused(rules: &[Rule], known: &[String]) -> Vec<String> {
    let unused = rules.iter().flat_map(|rule| rule.unused(known));
    unused.map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const SETUP: Setup<'static> = Setup {
        proxy: "kernlink",
        mode: "nftables",
        nodes: 3,
    };

    fn known() -> Vec<String> {
        ["DNS a", "SCTP b", "SCTP DNS c", "Services d", "Services e"]
            .map(|name| format!("[sig-network] {name}"))
            .to_vec()
    }

    #[test]
    fn names_are_read_from_the_list_of_the_program() {
        let list = "The following spec names can be used with 'ginkgo run --focus/skip':\n    \
                    test/e2e/network/service.go:10: [sig-network] Services should: b\n    \
                    test/e2e/node/pods.go:7: [sig-node] Pods should\n    \
                    ../x.go:3: [sig-network] DNS a\n    ../x.go:9: [sig-network] DNS a\n\n";
        assert_eq!(
            names(list).unwrap(),
            ["[sig-network] DNS a", "[sig-network] Services should: b"]
        );
        names("I1125 starting\n").unwrap_err();
        names("    [sig-network] Services d\n").unwrap_err();
    }

    #[test]
    fn every_test_is_selected_or_counted_once() {
        let text = "because: no SCTP\ntest: SCTP\nbecause: no DNS\ntest: DNS\nbecause: zones\nwhen: nodes<2\ntest: Services\n";
        let rules = Rule::parse(text).unwrap();
        let focus = Regex::new("d$").unwrap();
        let selection = Selection::by_rules(&known(), &rules, SETUP, Some(&focus));
        assert_eq!(selection.tests, ["[sig-network] Services d"]);
        assert_eq!(
            selection.to_string(),
            "    5 tests name sig-network\n    2 left out: no SCTP\n    1 left out: no DNS\n    1 do not match --focus\n    1 selected"
        );
    }

    #[test]
    fn rules_without_a_test_are_found() {
        let rules = Rule::parse("because: x\ntest: IPX\ntest: DNS\n").unwrap();
        let selection = Selection::by_rules(&known(), &rules, SETUP, None);
        assert_eq!(selection.unused, ["IPX"]);
        assert!(
            selection
                .to_string()
                .ends_with("\nleft-out.rules: no test matches IPX")
        );
    }

    #[test]
    fn every_other_outcome_than_the_expected_one_is_unexpected() {
        let text = "because: listens without endpoints\nwhen: mode=nftables\ntest: Services d$\n";
        let expectations = Expectations {
            failures: Rule::parse(text).unwrap(),
            unused: Vec::new(),
        };
        let judge = |test, outcome: Option<Outcome>| expectations.judge(test, SETUP, outcome.as_ref());
        let failed = || Some(Outcome::Failed("no answer".to_owned()));
        assert_eq!(judge("Services e", Some(Outcome::Passed)), Judgement::Expected);
        assert_eq!(
            judge("Services e", failed()),
            Judgement::Unexpected("no answer".to_owned())
        );
        assert_eq!(
            judge("Services d", failed()),
            Judgement::KnownFailure("listens without endpoints".to_owned())
        );
        assert!(judge("Services d", Some(Outcome::Passed)).is_unexpected());
        for test in ["Services d", "Services e"] {
            assert!(judge(test, Some(Outcome::Skipped("zones".to_owned()))).is_unexpected());
            assert!(judge(test, None).is_unexpected());
        }
    }

    /// Whether they match tests is checked when the list of tests is known.
    #[test]
    fn the_files_of_this_repository_are_valid() {
        Rule::parse(LEFT_OUT).unwrap();
        Rule::parse(FAILURES).unwrap();
    }
}
