//! Files with rules about tests: reasons, each with the tests that it is about.
//!
//! ```text
//! # A comment.
//! because: the reason
//! when: nodes<6 mode=nftables
//! test: REGULAR EXPRESSION
//! test: ANOTHER ONE
//! ```
//!
//! A rule without `when` always applies; otherwise all of its conditions must hold. Of a condition with several values, separated
//! by commas, one must hold.

use anyhow::{Context, Result, bail, ensure};
use regex::Regex;

/// A reason, and the tests that it is about.
#[derive(Clone, Debug)]
pub(super) struct Rule {
    pub(super) reason: String,
    conditions: Vec<Condition>,
    tests: Vec<Regex>,
}

/// What a rule depends on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Setup<'a> {
    /// `kernlink` or `kube-proxy`.
    pub(super) proxy: &'a str,
    pub(super) mode: &'a str,
    pub(super) nodes: usize,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Condition {
    FewerNodes(usize),
    Mode(Vec<String>),
    Proxy(Vec<String>),
}

impl Condition {
    fn parse(text: &str) -> Result<Self> {
        let values = |list: &str| list.split(',').map(str::to_owned).collect();
        if let Some(number) = text.strip_prefix("nodes<") {
            return Ok(Self::FewerNodes(
                number.parse().with_context(|| format!("condition `{text}`"))?,
            ));
        }
        if let Some(modes) = text.strip_prefix("mode=") {
            return Ok(Self::Mode(values(modes)));
        }
        if let Some(proxies) = text.strip_prefix("proxy=") {
            return Ok(Self::Proxy(values(proxies)));
        }
        bail!("unknown condition `{text}`; known: nodes<NUMBER, mode=MODE,..., proxy=PROXY,...")
    }

    fn holds(&self, setup: Setup<'_>) -> bool {
        match self {
            Self::FewerNodes(number) => setup.nodes < *number,
            Self::Mode(modes) => modes.iter().any(|mode| mode == setup.mode),
            Self::Proxy(proxies) => proxies.iter().any(|proxy| proxy == setup.proxy),
        }
    }
}

impl Rule {
    /// Reads the rules of a file.
    ///
    /// # Errors
    ///
    /// With the number of the line that is invalid.
    pub(super) fn parse(text: &str) -> Result<Vec<Self>> {
        let mut rules: Vec<Self> = Vec::new();
        for (number, line) in (1..).zip(text.lines()) {
            Self::parse_line(&mut rules, line).with_context(|| format!("line {number}"))?;
        }
        for rule in &rules {
            ensure!(
                !rule.tests.is_empty(),
                "`because: {}` without a test",
                rule.reason
            );
        }
        Ok(rules)
    }

    fn parse_line(rules: &mut Vec<Self>, line: &str) -> Result<()> {
        if line.trim().is_empty() || line.starts_with('#') {
            return Ok(());
        }
        let (key, value) = line
            .split_once(": ")
            .with_context(|| format!("`{line}`; expected KEY: VALUE"))?;
        if key == "because" {
            rules.push(Self {
                reason: value.to_owned(),
                conditions: Vec::new(),
                tests: Vec::new(),
            });
            return Ok(());
        }
        let rule = rules
            .last_mut()
            .with_context(|| format!("`{key}` before the first `because`"))?;
        match key {
            "when" => {
                for condition in value.split_whitespace() {
                    rule.conditions.push(Condition::parse(condition)?);
                }
            }
            "test" => rule
                .tests
                .push(Regex::new(value).with_context(|| format!("`{value}`"))?),
            other => bail!("unknown key `{other}`; known: because, when, test"),
        }
        Ok(())
    }

    /// Whether the rule is about this test.
    pub(super) fn applies(&self, test: &str, setup: Setup<'_>) -> bool {
        self.conditions.iter().all(|condition| condition.holds(setup))
            && self.tests.iter().any(|regex| regex.is_match(test))
    }

    /// The regular expressions that match none of these tests.
    pub(super) fn unused<'a>(&'a self, tests: &'a [String]) -> impl Iterator<Item = &'a str> {
        self.tests
            .iter()
            .filter(move |regex| !tests.iter().any(|test| regex.is_match(test)))
            .map(Regex::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# Rules.\n\nbecause: needs SCTP: no sockets\ntest: SCTP\ntest: ^b$\n\n\
                        because: zones\nwhen: nodes<6 mode=nftables,iptables proxy=kernlink\ntest: Zone\n";

    fn setup(nodes: usize) -> Setup<'static> {
        Setup {
            proxy: "kernlink",
            mode: "iptables",
            nodes,
        }
    }

    #[test]
    fn a_rule_applies_to_its_tests_if_all_conditions_hold() {
        let rules = Rule::parse(TEXT).unwrap();
        assert_eq!(rules[0].reason, "needs SCTP: no sockets");
        assert!(rules[0].applies("a SCTP test", setup(6)) && rules[0].applies("b", setup(6)));
        assert!(!rules[0].applies("bc", setup(6)));
        assert!(rules[1].applies("Zone", setup(5)));
        assert!(!rules[1].applies("Zone", setup(6)));
        let userspace = Setup {
            mode: "userspace",
            ..setup(3)
        };
        let kube_proxy = Setup {
            proxy: "kube-proxy",
            ..setup(3)
        };
        assert!(!rules[1].applies("Zone", userspace) && !rules[1].applies("Zone", kube_proxy));
    }

    #[test]
    fn regular_expressions_without_a_test_are_found() {
        let rules = Rule::parse(TEXT).unwrap();
        let tests = ["b".to_owned()];
        assert_eq!(rules[0].unused(&tests).collect::<Vec<_>>(), ["SCTP"]);
    }

    #[test]
    fn an_error_names_the_line() {
        for (text, expected) in [
            ("test: a\n", "line 1: `test` before the first `because`"),
            (
                "because: x\nwhen: kernel>6\n",
                "line 2: unknown condition `kernel>6`",
            ),
            ("because: x\nwhen: nodes<six\n", "line 2: condition `nodes<six`"),
            ("because: x\ntest: (\n", "line 2: `(`"),
            ("because: x\nTest: a\n", "line 2: unknown key `Test`"),
            ("because: x\na\n", "line 2: `a`; expected KEY: VALUE"),
            ("because: x\n", "`because: x` without a test"),
        ] {
            let error = format!("{:#}", Rule::parse(text).unwrap_err());
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
