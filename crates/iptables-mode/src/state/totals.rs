//! The numbers of desired objects.

use kernlink_iptables_restore::Table;

use super::State;
use crate::chains::FixedChain;
use crate::totals::{FamilyTotals, Totals};

impl State {
    pub(crate) fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        for family in self.families() {
            let sums = self.sums(family);
            let fixed = |table: Table| -> usize {
                let chains = FixedChain::of(self.config(), family).filter(|chain| chain.table() == table);
                chains.map(|chain| self.static_rules(chain, family).len()).sum()
            };
            totals.families[family.index()] = FamilyTotals {
                chains: self.chains[family.index()].len(),
                shared_rules: self.rules[family.index()].len(),
                filter_rules: sums.filter_rules + fixed(Table::Filter),
                nat_rules: sums.nat_rules + fixed(Table::Nat),
                last_filter_rules: sums.last_filter_rules,
                last_nat_rules: sums.last_nat_rules,
                no_local_internal: sums.no_local_internal,
                no_local_external: sums.no_local_external,
                partial_failures: sums.partial_failures,
            };
        }
        totals
    }
}
