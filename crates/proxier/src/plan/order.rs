//! The order of the phases, and the outage that each place in it avoids.

use std::fmt;

/// A phase of a plan, in the order of execution.
///
/// What a Service gains is built from the inside out: nothing is reachable before all behind it stands. What it loses goes
/// from the outside in. A frontend's set entry frames its virtual server in time, so that at every moment, and in whatever
/// state a dying process leaves the kernel, a virtual server of ours can be told from a foreign one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum PhaseKind {
    /// Kernel settings. `net.ipv4.vs.conntrack` must be on before the first connection, or its answers are not masqueraded.
    Settings,
    /// The dummy link, for the addresses to come.
    Link,
    /// Sets without entries. Rules that name a set that is not there cannot be loaded.
    Sets,
    /// Addresses that are no longer wanted go first: a client sees "no such host" rather than a virtual server that loses its
    /// real servers one by one.
    UnbindAddresses,
    /// Entries of sets. Those that narrow (allowed sources, local policy) come before those that make a frontend subject to
    /// them, and all before the virtual server: it never answers a source that it must not, nor without masquerading.
    AddEntries,
    /// Chains and jumps: one restore a family. Behind the entries, since an allow-list that is loaded empty drops everything;
    /// before virtual servers and addresses, so that not even the first packet goes past them.
    Rules,
    /// Virtual servers, added without real servers or changed in place, which keeps their connections.
    VirtualServers,
    /// Real servers, added or changed in place: before the address, so that no client meets a virtual server without any, and
    /// before others are removed, so that a virtual server whose endpoints are all replaced always has some.
    RealServers,
    /// Addresses: from here on clients arrive.
    BindAddresses,
    /// Real servers that are no longer wanted.
    RemoveRealServers,
    /// Virtual servers that are no longer wanted, each with its real servers.
    RemoveVirtualServers,
    /// Entries that are no longer wanted, behind the virtual servers that they mark as ours; those that make a frontend subject
    /// to an allow-list before the list's own entries.
    RemoveEntries,
}

impl fmt::Display for PhaseKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            PhaseKind::Settings => "settings",
            PhaseKind::Link => "link",
            PhaseKind::Sets => "sets",
            PhaseKind::UnbindAddresses => "unbind addresses",
            PhaseKind::AddEntries => "add entries",
            PhaseKind::Rules => "rules",
            PhaseKind::VirtualServers => "virtual servers",
            PhaseKind::RealServers => "real servers",
            PhaseKind::BindAddresses => "bind addresses",
            PhaseKind::RemoveRealServers => "remove real servers",
            PhaseKind::RemoveVirtualServers => "remove virtual servers",
            PhaseKind::RemoveEntries => "remove entries",
        })
    }
}
