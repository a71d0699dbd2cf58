//! The identity of rules: of one in a shared chain, and of all in a chain.

use kernlink_iptables_restore::{Rule, Style};
use kernlink_services::Family;

use super::chains::FixedChain;

/// A rule of a service port in a chain that all service ports share: its normal form, as `iptables-save` prints it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct RuleKey {
    pub(super) chain: FixedChain,
    pub(super) text: Box<str>,
}

/// Identifies the rules of a chain: two hashes of their normal forms.
pub(super) type Fingerprint = [u64; 2];

impl RuleKey {
    pub(super) fn new(chain: FixedChain, text: &str) -> Self {
        Self {
            chain,
            text: text.into(),
        }
    }
}

/// The normal form of a rule as `iptables-save` prints it.
pub(super) fn rule_text(rule: &Rule, family: Family) -> Box<str> {
    rule.normal_form(family).render(Style::SAVE).into()
}
