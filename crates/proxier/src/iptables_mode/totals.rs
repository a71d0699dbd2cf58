//! The numbers of desired objects.

use kernlink_services::Family;

use super::state::State;

/// The numbers of desired objects of iptables mode.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Totals {
    /// By [`Family::index`].
    pub families: [FamilyTotals; 2],
}

impl Totals {
    /// The numbers of one family.
    #[must_use]
    pub fn family(&self, family: Family) -> &FamilyTotals {
        &self.families[family.index()]
    }
}

/// The numbers of desired objects of one family.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FamilyTotals {
    /// Chains of service ports and of their endpoints.
    pub chains: usize,
    /// Rules of service ports in the chains that all of them share.
    pub shared_rules: usize,
}

impl State {
    pub(super) fn totals(&self) -> Totals {
        Totals {
            families: Family::ALL.map(|family| FamilyTotals {
                chains: self.chains[family.index()].len(),
                shared_rules: self.rules[family.index()].len(),
            }),
        }
    }
}
