//! The numbers of desired objects, and of what was written.

use std::time::Instant;

use kernlink_iptables_restore::Table;
use kernlink_services::Family;

use super::compile::Compiled;
use super::operation::Write;

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

/// The numbers of one family.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FamilyTotals {
    /// Desired chains of service ports and of their endpoints.
    pub chains: usize,
    /// Desired rules of service ports in the chains that all of them share.
    pub shared_rules: usize,
    /// Desired rules in the owned chains of table `filter`.
    pub filter_rules: usize,
    /// Desired rules in the owned chains of table `nat`.
    pub nat_rules: usize,
    /// Rules that were added to table `filter` by the last sync that wrote any rule of the family.
    pub last_filter_rules: usize,
    /// The same of table `nat`.
    pub last_nat_rules: usize,
    /// Service ports with the policy `Local` for internal traffic that have endpoints, but none on this node.
    pub no_local_internal: usize,
    /// The same for external traffic.
    pub no_local_external: usize,
    /// Writes that failed in syncs that did not read the whole kernel, since the start.
    pub partial_failures: u64,
}

/// The numbers of one service port.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct PortCounts {
    filter_rules: usize,
    nat_rules: usize,
    lacks_local_internal: bool,
    lacks_local_external: bool,
}

impl PortCounts {
    pub(super) fn of(compiled: &Compiled) -> Self {
        let in_filter = compiled
            .rules
            .iter()
            .filter(|(chain, _)| chain.table() == Table::Filter);
        let filter_rules = in_filter.count();
        let in_chains: usize = compiled
            .chains
            .iter()
            .map(|(_, chain)| chain.number_of_rules())
            .sum();
        Self {
            filter_rules,
            nat_rules: compiled.rules.len() - filter_rules + in_chains,
            lacks_local_internal: compiled.lacks_local_internal,
            lacks_local_external: compiled.lacks_local_external,
        }
    }
}

/// The sums of the numbers of all service ports of a family, and of what was written.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Sums {
    pub(super) filter_rules: usize,
    pub(super) nat_rules: usize,
    pub(super) no_local_internal: usize,
    pub(super) no_local_external: usize,
    pub(super) last_filter_rules: usize,
    pub(super) last_nat_rules: usize,
    /// The time of the sync that wrote them.
    pub(super) last: Option<Instant>,
    pub(super) partial_failures: u64,
}

impl Sums {
    /// Replaces the numbers of a service port.
    pub(super) fn replace(&mut self, before: PortCounts, now: PortCounts) {
        let replace = |sum: &mut usize, before: usize, now: usize| *sum = (*sum + now).saturating_sub(before);
        replace(&mut self.filter_rules, before.filter_rules, now.filter_rules);
        replace(&mut self.nat_rules, before.nat_rules, now.nat_rules);
        let (of_internal, internal) = (before.lacks_local_internal, now.lacks_local_internal);
        replace(&mut self.no_local_internal, of_internal.into(), internal.into());
        let (of_external, external) = (before.lacks_local_external, now.lacks_local_external);
        replace(&mut self.no_local_external, of_external.into(), external.into());
    }

    /// Counts the rules of a write that was done in the sync with this time.
    pub(super) fn record(&mut self, write: &Write, sync: Option<Instant>) {
        if self.last != sync {
            self.last = sync;
            (self.last_filter_rules, self.last_nat_rules) = (0, 0);
        }
        self.last_filter_rules += write.added_rules(Table::Filter);
        self.last_nat_rules += write.added_rules(Table::Nat);
    }

    /// Counts a write that failed in a sync that did not read the whole kernel.
    pub(super) fn record_partial_failure(&mut self) {
        self.partial_failures += 1;
    }
}
