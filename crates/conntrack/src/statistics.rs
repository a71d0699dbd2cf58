//! Statistics of the table.

/// The number of flows and its limit (`conntrack -C`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Totals {
    /// Flows in this network namespace.
    #[doc(alias = "nf_conntrack_count")]
    pub entries: u32,
    /// Maximum number of flows of a network namespace, 0 for no limit. `None` if it is unknown: before Linux 4.18, and from the
    /// provided method [`Conntrack::totals`](crate::Conntrack::totals).
    #[doc(alias = "nf_conntrack_max")]
    pub limit: Option<u32>,
}

/// Counters of one processor since the network namespace was created (`conntrack -S`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct CpuStatistics {
    /// Processor number, from 0.
    pub cpu: u16,
    /// Lookups by other parts of the kernel that found a flow.
    pub found: u32,
    /// Packets that could not be tracked.
    pub invalid: u32,
    /// Flows added to the table.
    pub insert: u32,
    /// Flows that could not be added to the table, mostly because another packet of the same flow added it first.
    pub insert_failed: u32,
    /// Packets dropped because tracking failed, for example without memory.
    pub drop: u32,
    /// Flows dropped early to make room.
    pub early_drop: u32,
    /// Packets with an ICMP error or a wrong checksum.
    pub error: u32,
    /// Lookups repeated because the table was resized.
    pub search_restart: u32,
    /// Resolved races between two packets of one new flow.
    pub clash_resolve: u32,
    /// Flows refused because their hash bucket was too long; Linux 5.15 and later.
    pub chain_too_long: u32,
}

/// Counters of one processor about expectations (`conntrack -S exp`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct ExpectationStatistics {
    /// Processor number, from 0.
    pub cpu: u16,
    /// Expectations that a flow matched.
    pub new: u32,
    /// Expectations added.
    pub create: u32,
    /// Expectations deleted.
    pub delete: u32,
}
