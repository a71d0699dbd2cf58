//! What the planned steps change.

use kernlink_iptables_restore::ChainName;

use super::rule_key::RuleKey;

/// A chain or a rule that a step changes.
#[derive(Clone, Debug)]
pub(super) enum Touched {
    Chain(ChainName),
    Rule(RuleKey),
}
