//! Lines of a saved rule set that are not understood.

use std::fmt;

use crate::chain::ChainName;
use crate::error::Error;

/// A line of a saved rule set that a [tolerant](crate::Save::tolerant) read skipped.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UnreadableLine {
    /// Number of the line in the output of the tool, counted from 1; 0 if the tool failed to print the table.
    pub line: usize,
    /// The line, with those that continue it after a line feed in a quoted text; or the message of the tool that failed.
    pub text: String,
    /// Why it was skipped.
    pub reason: String,
}

impl UnreadableLine {
    /// Whether it is, as far as its words tell, a rule that jumps or goes to `chain`.
    pub(crate) fn leads_to(&self, chain: &ChainName) -> bool {
        let words = self.text.split_ascii_whitespace();
        words
            .clone()
            .zip(words.skip(1))
            .any(|(option, target)| matches!(option, "-j" | "-g") && target == chain.as_str())
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
        match self.line {
            0 => write!(f, "{:?}: {}", self.text, self.reason),
            line => write!(f, "line {line} ({:?}) {}", self.text, self.reason),
        }
    }
}
