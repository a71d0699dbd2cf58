//! The identity of rules: of one in a shared chain, and of all in a chain.

use std::sync::Arc;

use kernlink_iptables_restore::{Rule, Style};
use kernlink_services::Family;

use super::chains::FixedChain;

/// A rule of a service port in a chain that all service ports share: its normal form, as `iptables-save` prints it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct RuleKey {
    pub(super) chain: FixedChain,
    pub(super) text: RuleText,
}

/// A rule in its normal form, as `iptables-save` prints it. The desired rule, the step that writes it, and the observed one share it.
pub(super) type RuleText = Arc<str>;

/// Identifies the rules of a chain: two hashes of their normal forms.
pub(super) type Fingerprint = [u64; 2];

impl RuleKey {
    pub(super) fn new(chain: FixedChain, text: &RuleText) -> Self {
        Self {
            chain,
            text: Arc::clone(text),
        }
    }
}

/// The normal form of a rule as `iptables-save` prints it.
pub(super) fn rule_text(rule: &Rule, family: Family) -> RuleText {
    rule.normal_form(family).render(Style::SAVE).into()
}
