//! The order of the phases, and the outage that each position in it avoids.

use std::fmt;

use kernlink_iptables_restore::Table;

/// A phase of a plan, in the order of execution.
///
/// What a Service needs is written by one input of `iptables-restore`, which the kernel applies as a whole for each table: no packet
/// meets a chain that is half written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Phase {
    /// Sysctls.
    Sysctls,
    /// Accounting objects, which must exist before rules name them.
    Accounting,
    /// The fixed chains and the jumps to them. Rules of Services are added to these chains and jump to `KUBE-MARK-MASQ`, which must
    /// exist.
    Fixed,
    /// The sysctl `route_localnet`, with which packets of other hosts reach loopback addresses: after the rule that drops them and the jumps
    /// to it.
    RouteLocalnet,
    /// Chains and rules of Services, those that are withdrawn included: the rules that jump to a chain are removed before it.
    Services,
    /// Chains of withdrawn Services and rules that name no Service, such as those of another mode. They are removed after all Services were written:
    /// chains of present Services may still jump to them, and until then they are what serves and restricts present Services.
    Leftovers,
    /// Stale UDP flows, after the rules by which the next packet begins a new flow.
    DeleteFlows,
}

/// The order in which tables are written, each at once.
pub(super) type TableOrder = [Table; 2];

/// What restricts a Service is in place before its traffic is translated.
pub(super) const FILTER_FIRST: TableOrder = [Table::Filter, Table::Nat];

/// For a Service that another mode serves until its rules are in table `nat`: the rules of table `filter` drop packets that are not translated.
/// The rules of that mode restrict the Service until then.
pub(super) const NAT_FIRST: TableOrder = [Table::Nat, Table::Filter];

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Phase::Sysctls => "sysctls",
            Phase::Accounting => "accounting objects",
            Phase::Fixed => "fixed chains",
            Phase::RouteLocalnet => "routing of loopback addresses",
            Phase::Services => "Services",
            Phase::Leftovers => "withdrawn Services",
            Phase::DeleteFlows => "stale UDP flows",
        })
    }
}
