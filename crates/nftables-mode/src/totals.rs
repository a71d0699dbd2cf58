//! The numbers of desired objects.

use kernlink_services::Family;

/// The numbers of desired objects of nftables mode.
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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct FamilyTotals {
    /// Frontends: addresses, protocols and ports of Services.
    pub frontends: usize,
    /// Endpoints of ports of Services, once for each policy that the port needs.
    pub endpoints: usize,
    /// Elements of sets and maps, about.
    pub elements: usize,
    /// Ports of Services with session affinity.
    pub with_affinity: usize,
    /// Service ports with the policy `Local` for internal traffic that have endpoints, but none on this node.
    pub no_local_internal: usize,
    /// The same for external traffic.
    pub no_local_external: usize,
    /// Transactions that failed, since the start: of Services, and of the table itself.
    pub failures: u64,
    /// Deletions of tables of an earlier process or of kube-proxy that failed, since the start.
    pub cleanup_failures: u64,
}
