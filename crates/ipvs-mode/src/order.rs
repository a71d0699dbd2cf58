//! The order of the phases, and the outage that each position in it avoids.

use std::fmt;

/// A phase of a plan, in the order of execution.
///
/// A new frontend becomes reachable only after everything that serves it is in place. A withdrawn frontend becomes unreachable before
/// anything that serves it is removed. The entry of a virtual server in the ledger is added before it and removed after it. So an owned
/// virtual server can be distinguished from a foreign one at any time, also after the process ended between two steps. No packet to a
/// virtual IP reaches a process of the node: its address is bound after the virtual server is in place and removed before it, and the
/// rules admit packets to a port of an address that stays bound only as long as the port has a virtual server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Phase {
    /// Sysctls. `net.ipv4.vs.conntrack` must be 1 before the first connection; otherwise its replies are not masqueraded.
    Sysctls,
    /// The dummy link, before its addresses.
    Link,
    /// Sets without entries. Rules that name a set that does not exist cannot be loaded.
    Sets,
    /// The ledger, if it is empty although owned virtual servers exist: all of them in one step, before anything else identifies them
    /// differently. If it held only some of them when the process ended, the next process would treat the others as foreign.
    Ledger,
    /// Withdrawn addresses, removed before their virtual servers: otherwise clients would reach the node itself instead, and a process that
    /// listens on all addresses there.
    UnbindAddresses,
    /// Entries of sets. Allowed sources and local-policy entries are added before the entry that makes them apply to a frontend, and all
    /// entries before the virtual server, except those of [`AddFrontends`](Self::AddFrontends). So the virtual server never accepts a
    /// source that is not allowed, and never forwards without masquerading.
    AddEntries,
    /// Chains and jumps: one restore for each family. After the sets that they name, and before virtual servers and addresses, so that the
    /// first packet already passes through them. Whether the entries or the rules come first does not matter.
    Rules,
    /// Virtual servers, added without real servers or changed in place, which keeps their connections.
    VirtualServers,
    /// Entries of new frontends at addresses that are bound already, after their virtual servers: `KUBE-IPVS-FILTER` rejects connections
    /// to the port until then. Otherwise a process of the node that listens on all addresses would accept them. Before the real servers:
    /// without the entry connections of this node are not masqueraded, and hang.
    AddFrontends,
    /// Withdrawn entries of local-policy sets whose frontends stay, removed before remote real servers are added. Otherwise traffic to
    /// these is not masqueraded, and its connections hang.
    RemoveLocalEntries,
    /// Real servers, added or changed in place, except those of [`FirstUdpRealServers`](Self::FirstUdpRealServers): before the address, so
    /// that no client reaches a virtual server without real servers, and before others are removed, so that a virtual server whose endpoints
    /// are all replaced always has real servers.
    RealServers,
    /// Addresses: after this phase clients reach the frontend.
    BindAddresses,
    /// Stale flows to UDP virtual servers that get their first real server, deleted while IPVS drops their packets. If an endpoint received
    /// a packet of such a flow, which began without masquerading, its reply could begin a flow of its own with the addresses of the client's
    /// packets: these would not be masqueraded as long as the client sends.
    DeleteFlowsOfNew,
    /// The first real servers of UDP virtual servers.
    FirstUdpRealServers,
    /// Deadlines of real servers that begin to drain, added before their weight becomes 0. Otherwise, if the process ends between the two,
    /// the next one starts the limit again.
    AddDeadlines,
    /// Real servers that are withdrawn: their weight becomes 0, or they are deleted. After the additions, so that a virtual server always
    /// has a real server that accepts connections.
    RemoveRealServers,
    /// Entries of local-policy sets for frontends that had remote real servers, added after these are removed. Otherwise traffic to them
    /// is no longer masqueraded, and its connections hang.
    AddLocalEntries,
    /// Flows to UDP virtual servers of a node that another mode serves, deleted before these: the next packet of a client begins a flow
    /// that the other mode translates. Otherwise the packets between the two steps are lost.
    DeleteFlowsFirst,
    /// Entries of withdrawn frontends at addresses that stay bound, removed before their virtual servers: `KUBE-IPVS-FILTER` rejects new
    /// connections to the port from then on, and established ones continue. Otherwise a process of the node that listens on all
    /// addresses would accept connections between the two steps.
    RemoveFrontends,
    /// Virtual servers that are withdrawn, each with its real servers in one operation.
    RemoveVirtualServers,
    /// Stale UDP flows, deleted after all changes of virtual servers, real servers and rules: the next packet of a client begins a new
    /// flow. If that happened before, the flow would have the removed real server again, and the replies would be lost as long as the client
    /// sends. Before the entries: they name the frontends whose flows are to be deleted, if the process ends here.
    DeleteFlows,
    /// Deadlines of real servers that no longer drain, removed after these are deleted or have their weight again. A deadline that stayed
    /// would be taken for that of a real server with the same address that drains later.
    RemoveDeadlines,
    /// Withdrawn entries, removed after the virtual servers that they identify as owned. An entry that restricts a frontend to an
    /// allow-list is removed before the entries of the list; otherwise the packets of all its clients are dropped.
    RemoveEntries,
    /// Rules of sets that have become empty, removed after the entries: as long as an entry exists, traffic to its frontend is
    /// masqueraded and restricted.
    RemoveRules,
    /// Sets of a node that IPVS mode does not serve, removed after the rules that name them, the ledger last.
    RemoveSets,
    /// A dummy link that the configuration no longer names, removed after its addresses are bound to the new one; or that of a node that
    /// IPVS mode does not serve, removed after everything else, since by it a process notices that something is left. Before it, addresses that
    /// alone identified a virtual server as owned.
    RemoveLink,
}

impl fmt::Display for Phase {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Phase::Sysctls => "sysctls",
            Phase::Link => "link",
            Phase::Sets => "sets",
            Phase::Ledger => "ledger",
            Phase::UnbindAddresses => "unbind addresses",
            Phase::AddEntries => "add entries",
            Phase::Rules => "rules",
            Phase::VirtualServers => "virtual servers",
            Phase::AddFrontends => "add frontends at bound addresses",
            Phase::RemoveLocalEntries => "remove local-policy entries",
            Phase::RealServers => "real servers",
            Phase::BindAddresses => "bind addresses",
            Phase::DeleteFlowsOfNew => "delete stale flows to new virtual servers",
            Phase::FirstUdpRealServers => "first UDP real servers",
            Phase::AddDeadlines => "add deadlines",
            Phase::RemoveRealServers => "remove real servers",
            Phase::AddLocalEntries => "add local-policy entries",
            Phase::DeleteFlowsFirst => "delete flows to UDP virtual servers",
            Phase::RemoveFrontends => "remove frontends at bound addresses",
            Phase::RemoveVirtualServers => "remove virtual servers",
            Phase::DeleteFlows => "delete stale flows",
            Phase::RemoveDeadlines => "remove deadlines",
            Phase::RemoveEntries => "remove entries",
            Phase::RemoveRules => "remove rules",
            Phase::RemoveSets => "remove sets",
            Phase::RemoveLink => "remove link",
        })
    }
}
