//! Lines of `iptables-save` output that were skipped.

use std::fmt;

use crate::chain::ChainName;
use crate::error::Error;

/// A line of `iptables-save` output that a [lenient](crate::Save::lenient) read skipped.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnreadableLine {
    /// The number of the line, from 1; 0 if the tool failed to print the table.
    pub line: usize,
    /// The line, with the lines that continue a quoted text with line feeds; or the message of the tool that failed.
    pub text: String,
    /// Why it was skipped.
    pub reason: String,
}

impl UnreadableLine {
    /// The chain that it adds a rule to: what follows `-A`. `None` if it is another line.
    #[must_use]
    pub fn chain(&self) -> Option<ChainName> {
        let mut tokens = self.text.split_ascii_whitespace();
        tokens.next().filter(|option| *option == "-A")?;
        ChainName::new(tokens.next()?).ok()
    }

    /// The chains that it may jump to: every text after `-j` or `-g` that is a valid name of a chain, such as that of an extension.
    pub fn targets(&self) -> impl Iterator<Item = ChainName> {
        let tokens = self.text.split_ascii_whitespace();
        let pairs = tokens.clone().zip(tokens.skip(1));
        let targets = pairs.filter(|(option, _)| matches!(*option, "-j" | "-g"));
        targets.filter_map(|(_, target)| ChainName::new(target).ok())
    }

    /// The reason and the text, without the number of the line, which changes with the rules before it.
    #[must_use]
    pub fn description(&self) -> String {
        format!("{}: {:?}", self.reason, self.text)
    }

    /// Whether it contains `-j` or `-g` followed by `chain`.
    pub(crate) fn jumps_to(&self, chain: &ChainName) -> bool {
        self.targets().any(|target| target == *chain)
    }

    /// The error of a strict read of the same line.
    pub(crate) fn to_error(&self) -> Error {
        Error::Parse {
            line: self.line,
            text: self.text.clone(),
            reason: self.reason.clone(),
        }
    }
}

impl fmt::Display for UnreadableLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.line > 0 {
            write!(f, "line {}: ", self.line)?;
        }
        f.write_str(&self.description())
    }
}
