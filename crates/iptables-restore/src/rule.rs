//! Rules.

use std::fmt;
use std::str::FromStr;

use kernlink_base::Family;

use crate::chain::ChainName;
use crate::error::Error;
use crate::matches::Match;
use crate::style::Style;
use crate::targets::Target;
use crate::wire::render::Printer;
use crate::wire::token::split;

/// One rule: its matches in the order in which they are written, and its target.
///
/// The chain and the counters ([`CountedRule`](crate::CountedRule)) are not part of it.
///
/// `==` compares the values as written. [`Rule::is_equivalent`] compares the meaning.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Rule {
    /// All must match. If empty, the rule matches every packet.
    pub matches: Vec<Match>,
    /// What happens to a matching packet; `None` only counts it.
    pub target: Option<Target>,
}

impl Rule {
    /// A rule that matches every packet and only counts it.
    #[must_use]
    pub fn new() -> Self {
        Rule::default()
    }

    /// Appends a match.
    #[must_use]
    pub fn with(mut self, test: Match) -> Self {
        self.matches.push(test);
        self
    }

    /// Sets the target.
    #[must_use]
    pub fn with_target(mut self, target: Target) -> Self {
        self.target = Some(target);
        self
    }

    /// Appends a comment.
    ///
    /// # Errors
    ///
    /// As [`Comment::new`](crate::Comment::new).
    pub fn with_comment(self, text: &str) -> Result<Self, Error> {
        Ok(self.with(Match::comment(text)?))
    }

    /// Sets [`Target::Jump`] as the target.
    #[must_use]
    pub fn jump(self, chain: ChainName) -> Self {
        self.with_target(Target::Jump(chain))
    }

    /// The rule without its chain: `-s 10.0.0.0/8 -j ACCEPT`.
    #[must_use]
    pub fn render(&self, style: Style) -> String {
        let mut text = String::new();
        self.render_into(&mut text, style);
        text.split_off(usize::from(!text.is_empty()))
    }

    /// The rule as command-line arguments of the tool.
    pub(crate) fn arguments(&self, style: Style) -> Vec<String> {
        let text = self.render(style);
        let mut tokens = Vec::new();
        // Rendered text has no unclosed quotes.
        let _ = split(&text, &mut tokens);
        tokens.into_iter().map(|token| token.text.into_owned()).collect()
    }

    /// Appends the rule, with a space before each argument.
    pub(crate) fn render_into(&self, out: &mut String, style: Style) {
        let mut printer = Printer { out, style };
        for test in &self.matches {
            test.print(&mut printer);
        }
        if let Some(target) = &self.target {
            target.print(&mut printer);
        }
    }

    /// Whether both rules have the same meaning: whether their [normal forms](Self::normal_form) are equal.
    #[must_use]
    pub fn is_equivalent(&self, other: &Rule, family: Family) -> bool {
        self == other || self.normal_parts(family) == other.normal_parts(family)
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

    /// Parses the text after `-A CHAIN`. Matches and targets without a type are kept verbatim.
    ///
    /// Names of ports, users and hosts are kept verbatim too. The tools print numbers instead, so a rule with a name never equals its
    /// saved form. [`Names::parse_rule`](crate::Names::parse_rule) resolves names as the tools do.
    fn from_str(text: &str) -> Result<Self, Error> {
        if text.contains(['\n', '\0']) {
            return Err(Error::invalid(
                "rule",
                text,
                "must not contain a line feed or a NUL",
            ));
        }
        let mut tokens = Vec::new();
        split(text, &mut tokens).map_err(|reason| Error::invalid("rule", text, reason))?;
        Ok(Rule::from_tokens(&tokens))
    }
}
