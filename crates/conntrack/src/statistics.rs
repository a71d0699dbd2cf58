//! Counts that the kernel keeps about the table.

/// How full the table is (`conntrack -C`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Totals {
    /// Flows in this network namespace.
    #[doc(alias = "nf_conntrack_count")]
    pub entries: u32,
    /// The most flows that a namespace may have, 0 for no limit. `None` if it is not known: before Linux 4.18, and from the
    /// provided method [`Conntrack::totals`](crate::Conntrack::totals).
    #[doc(alias = "nf_conntrack_max")]
    pub limit: Option<u32>,
}

/// What one processor counted since the network namespace began (`conntrack -S`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct CpuStatistics {
    /// Number of the processor.
    pub cpu: u16,
    /// Packets that belonged to a known flow, of look-ups that other parts of the kernel ask for.
    pub found: u32,
    /// Packets that could not be tracked.
    pub invalid: u32,
    /// Flows put into the table.
    pub insert: u32,
    /// Flows that could not be put into the table, mostly because another packet of theirs was faster.
    pub insert_failed: u32,
    /// Packets dropped because tracking them failed, for want of memory among others.
    pub drop: u32,
    /// Flows given up early to make room.
    pub early_drop: u32,
    /// Packets with an ICMP error or a checksum that did not fit.
    pub error: u32,
    /// Look-ups repeated because the table was resized.
    pub search_restart: u32,
    /// Races of two packets of one new flow that were resolved.
    pub clash_resolve: u32,
    /// Flows refused because their hash bucket was too long; Linux 5.15 and later.
    pub chain_too_long: u32,
}

/// What one processor counted about expectations.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct ExpectationStatistics {
    /// Number of the processor.
    pub cpu: u16,
    /// Expectations that were met by a flow.
    pub new: u32,
    /// Expectations created.
    pub create: u32,
    /// Expectations deleted.
    pub delete: u32,
}
