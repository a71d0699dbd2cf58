//! The order of the phases, and the outage that each position in it avoids.

use std::fmt;

/// A phase of a plan, in the order of execution.
///
/// What a Service gains is built from the inside out: nothing is reachable before all behind it is in place. What it loses is removed
/// from the outside in. The set entry of a frontend is added before its virtual server and removed after it, so that at every moment,
/// and in whatever state a process that dies leaves the kernel, an owned virtual server can be told from a foreign one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Phase {
    /// Sysctls. `net.ipv4.vs.conntrack` must be on before the first connection, or its answers are not masqueraded.
    Sysctls,
    /// The dummy link, for the addresses to come.
    Link,
    /// Sets without entries. Rules that name a set that does not exist cannot be loaded.
    Sets,
    /// Addresses that are withdrawn are removed first: a client gets no answer rather than one of a virtual server that loses its
    /// real servers one by one.
    UnbindAddresses,
    /// Entries of sets. Those that narrow (allowed sources, local policy) come before those that subject a frontend to them, and all
    /// before the virtual server: it never answers a source that it must not answer, nor without masquerading.
    AddEntries,
    /// Chains and jumps: one restore for each family. After the entries, since an allow-list that is loaded empty drops everything;
    /// before virtual servers and addresses, so that not even the first packet passes without them.
    Rules,
    /// Virtual servers, added without real servers or changed in place, which keeps their connections.
    VirtualServers,
    /// Entries of local-policy sets of frontends that stay: before remote real servers are added, or traffic to these would not be
    /// masqueraded and hang.
    RemoveLocalEntries,
    /// Real servers, added or changed in place: before the address, so that no client meets a virtual server without any, and before
    /// others are removed, so that a virtual server whose endpoints are all replaced always has some.
    RealServers,
    /// Addresses: from here on clients arrive.
    BindAddresses,
    /// Real servers that are withdrawn.
    RemoveRealServers,
    /// Entries of local-policy sets of frontends that had remote real servers: after these are removed, or traffic to them would no
    /// longer be masqueraded and hang.
    AddLocalEntries,
    /// Virtual servers that are withdrawn, each with its real servers.
    RemoveVirtualServers,
    /// Entries that are withdrawn, after the virtual servers that they identify as owned; those that subject a frontend to an
    /// allow-list before the entries of the list, or all its clients would be dropped.
    RemoveEntries,
    /// A dummy link that the configuration does not name any more, after its addresses are bound to the new one.
    RemoveLink,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Phase::Sysctls => "sysctls",
            Phase::Link => "link",
            Phase::Sets => "sets",
            Phase::UnbindAddresses => "unbind addresses",
            Phase::AddEntries => "add entries",
            Phase::Rules => "rules",
            Phase::VirtualServers => "virtual servers",
            Phase::RemoveLocalEntries => "remove local-policy entries",
            Phase::RealServers => "real servers",
            Phase::BindAddresses => "bind addresses",
            Phase::RemoveRealServers => "remove real servers",
            Phase::AddLocalEntries => "add local-policy entries",
            Phase::RemoveVirtualServers => "remove virtual servers",
            Phase::RemoveEntries => "remove entries",
            Phase::RemoveLink => "remove link",
        })
    }
}
