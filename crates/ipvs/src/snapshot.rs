//! The whole table at one moment.

use std::collections::HashMap;

use crate::backend::Ipvs;
use crate::client::{Client, same_settings};
use crate::error::Error;
use crate::forwarding::ForwardingMethod;
use crate::real_server::{RealServer, RealServerKey, Weight};
use crate::stats::{ConnectionCounts, RealServerStatus, VirtualServerStatus};
use crate::table::{self, RowKey};
use crate::virtual_server::VirtualServerKey;

/// All virtual servers of a network namespace with their real servers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Snapshot {
    /// Every virtual server once, in the order of the keys.
    pub virtual_servers: Vec<SnapshotEntry>,
    /// Whether the kernel's table stood still meanwhile.
    pub consistency: Consistency,
}

impl Snapshot {
    /// A snapshot of these virtual servers, which are put in order.
    pub fn new(mut virtual_servers: Vec<SnapshotEntry>, consistency: Consistency) -> Self {
        virtual_servers.sort_by_key(|entry| entry.virtual_server.server.key);
        Self {
            virtual_servers,
            consistency,
        }
    }

    /// A virtual server by key.
    pub fn get(&self, key: &VirtualServerKey) -> Option<&SnapshotEntry> {
        let found = self
            .virtual_servers
            .binary_search_by_key(key, |entry| entry.virtual_server.server.key);
        self.virtual_servers.get(found.ok()?)
    }

    /// Number of all real servers.
    pub fn real_server_count(&self) -> usize {
        self.virtual_servers
            .iter()
            .map(|entry| entry.real_servers.len())
            .sum()
    }
}

/// Whether a snapshot shows one moment.
///
/// The kernel's listings go by position, so that a virtual server deleted meanwhile can hide another that exists, and it
/// never says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Consistency {
    /// The virtual servers and their settings were the same before and after, and the real servers were read between for
    /// exactly these virtual servers. The real servers of one virtual server are of one moment.
    Verified,
    /// Virtual servers came, went or changed during every attempt: some that exist may be missing, and some real servers
    /// too.
    Torn {
        /// How often it was tried.
        attempts: u32,
    },
}

/// A virtual server with its real servers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SnapshotEntry {
    /// The virtual server, with its counters.
    pub virtual_server: VirtualServerStatus,
    /// Its real servers, in the order of the keys; may be empty.
    pub real_servers: Vec<RealServerSummary>,
}

impl SnapshotEntry {
    /// A virtual server with these real servers, which are put in order.
    pub fn new(virtual_server: VirtualServerStatus, mut real_servers: Vec<RealServerSummary>) -> Self {
        real_servers.sort_by_key(|server| server.key);
        Self {
            virtual_server,
            real_servers,
        }
    }

    /// A real server by key.
    pub fn get(&self, key: &RealServerKey) -> Option<&RealServerSummary> {
        let found = self.real_servers.binary_search_by_key(key, |server| server.key);
        self.real_servers.get(found.ok()?)
    }
}

/// What one pass over the kernel's table tells of a real server. For thresholds, tunnel and statistics ask for the real
/// servers of its virtual server: [`Ipvs::list_real_servers`](crate::Ipvs::list_real_servers).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct RealServerSummary {
    /// Which real server.
    pub key: RealServerKey,
    /// How packets reach it.
    pub forwarding: ForwardingSummary,
    /// Its share of new connections.
    pub weight: Weight,
    /// Active connections now; see [`ConnectionCounts::active`].
    pub active_connections: u32,
    /// Other connections now; see [`ConnectionCounts::inactive`].
    pub inactive_connections: u32,
}

impl RealServerSummary {
    /// A summary without connections.
    pub fn new(key: RealServerKey, forwarding: ForwardingSummary, weight: Weight) -> Self {
        Self {
            key,
            forwarding,
            weight,
            active_connections: 0,
            inactive_connections: 0,
        }
    }

    /// Whether nothing that the summary tells speaks against these settings. Thresholds and tunnel it does not tell.
    pub fn agrees_with(&self, server: &RealServer) -> bool {
        self.key == server.key
            && self.weight == server.weight
            && self.forwarding == ForwardingSummary::from(server.forwarding)
    }

    /// Active and inactive connections together: 0 means that nothing is lost when the real server goes.
    pub fn total_connections(&self) -> u64 {
        u64::from(self.active_connections) + u64::from(self.inactive_connections)
    }
}

impl From<&RealServerStatus> for RealServerSummary {
    fn from(status: &RealServerStatus) -> Self {
        let ConnectionCounts { active, inactive, .. } = status.connections;
        Self {
            key: status.server.key,
            forwarding: status.server.forwarding.into(),
            weight: status.server.weight,
            active_connections: active,
            inactive_connections: inactive,
        }
    }
}

/// The forwarding method, as far as the kernel's table in `/proc` tells it: it prints `Masq` for all but three methods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum ForwardingSummary {
    /// [`ForwardingMethod::Masquerade`], or the rare [`ForwardingMethod::Bypass`] or an unknown method.
    MasqueradeOrOther,
    /// [`ForwardingMethod::Local`].
    Local,
    /// [`ForwardingMethod::Tunnel`].
    Tunnel,
    /// [`ForwardingMethod::DirectRoute`].
    DirectRoute,
}

impl From<ForwardingMethod> for ForwardingSummary {
    fn from(method: ForwardingMethod) -> Self {
        match method {
            ForwardingMethod::Local => Self::Local,
            ForwardingMethod::Tunnel => Self::Tunnel,
            ForwardingMethod::DirectRoute => Self::DirectRoute,
            ForwardingMethod::Masquerade | ForwardingMethod::Bypass | ForwardingMethod::Unknown(_) => {
                Self::MasqueradeOrOther
            }
        }
    }
}

/// How often a snapshot is taken before it is called torn.
const ATTEMPTS: u32 = 5;

/// How many of these attempts read real servers from `/proc`. Its table is read a page at a time, and where the next page begins
/// is counted over the virtual servers of all network namespaces, but found by counting those of one
/// ([`ip_vs_info_seq_next`](https://github.com/torvalds/linux/blob/v6.1/net/netfilter/ipvs/ip_vs_ctl.c)): with others'
/// virtual servers in between, a table of several pages lacks some of its own every time.
const PROC_ATTEMPTS: u32 = 2;

/// Takes a snapshot: virtual servers over netlink, their real servers in one pass over `/proc`, and the virtual servers once
/// more. Where `/proc` does not tell all of them, they are listed one by one.
pub(crate) fn take(client: &mut Client) -> Result<Snapshot, Error> {
    let mut before = client.dump_virtual_servers()?;
    let mut attempt = 1;
    loop {
        let mut real_servers = if attempt <= PROC_ATTEMPTS {
            RealServers::read(client, &before)?
        } else {
            RealServers::list(client, &before)?
        };
        let after = client.dump_virtual_servers()?;
        let stood_still = real_servers.are_of_all && same_settings(&before, &after);
        if stood_still || attempt == ATTEMPTS {
            let entries = after.into_iter().map(|virtual_server| {
                let found = real_servers.by_key.remove(&virtual_server.server.key);
                SnapshotEntry::new(virtual_server, found.unwrap_or_default())
            });
            let consistency = if stood_still {
                Consistency::Verified
            } else {
                Consistency::Torn { attempts: attempt }
            };
            return Ok(Snapshot {
                virtual_servers: entries.collect(),
                consistency,
            });
        }
        before = after;
        attempt += 1;
    }
}

/// The real servers of a whole table.
struct RealServers {
    by_key: HashMap<VirtualServerKey, Vec<RealServerSummary>>,
    /// Whether the table was of exactly the virtual servers it was read for.
    are_of_all: bool,
}

impl RealServers {
    /// By one listing for each virtual server.
    fn list(client: &mut Client, virtual_servers: &[VirtualServerStatus]) -> Result<Self, Error> {
        let mut by_key = HashMap::with_capacity(virtual_servers.len());
        for status in virtual_servers {
            by_key.insert(status.server.key, listed(client, &status.server.key)?);
        }
        Ok(Self {
            by_key,
            are_of_all: true,
        })
    }

    /// By one pass over `/proc`.
    fn read(client: &mut Client, virtual_servers: &[VirtualServerStatus]) -> Result<Self, Error> {
        let mut by_key = HashMap::with_capacity(virtual_servers.len());
        let mut is_each_known = true;
        let rows = match client.inside(table::read)? {
            Ok(rows) => rows,
            // Without its files in `/proc`, as in some sandboxes, the table is dearer to have.
            Err(Error::File { .. }) => return Self::list(client, virtual_servers),
            Err(error) => return Err(error),
        };
        // A row does not tell the family of a mark.
        let mut marks: HashMap<u32, Vec<VirtualServerKey>> = HashMap::new();
        for status in virtual_servers {
            if let VirtualServerKey::Mark { mark, .. } = status.server.key {
                marks.entry(mark.get()).or_default().push(status.server.key);
            }
        }
        for row in rows {
            match row.key {
                RowKey::Address(key) => {
                    by_key.insert(key, row.real_servers);
                }
                RowKey::Mark(mark) => match marks.get(&mark).map(Vec::as_slice) {
                    Some([key]) => {
                        by_key.insert(*key, row.real_servers);
                    }
                    Some(both) => {
                        for key in both {
                            by_key.insert(*key, listed(client, key)?);
                        }
                    }
                    None => is_each_known = false,
                },
            }
        }
        let are_of_all = is_each_known
            && by_key.len() == virtual_servers.len()
            && virtual_servers
                .iter()
                .all(|status| by_key.contains_key(&status.server.key));
        Ok(Self { by_key, are_of_all })
    }
}

fn listed(client: &mut Client, key: &VirtualServerKey) -> Result<Vec<RealServerSummary>, Error> {
    Ok(client
        .list_real_servers(key)?
        .iter()
        .map(RealServerSummary::from)
        .collect())
}
