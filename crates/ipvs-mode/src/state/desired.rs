//! The desired objects, for listings and tests.

use std::net::IpAddr;
use std::sync::Arc;

use kernlink_engine::plan::Subject;
use kernlink_ipset::Entry;
use kernlink_ipvs::{RealServer, VirtualServer, VirtualServerKey};
use kernlink_services::{Family, FrontendKey};

use super::{DesiredServer, State};
use crate::sets::SetId;

/// The desired value of a virtual server.
#[derive(Clone, Copy, Debug)]
pub struct DesiredVirtualServer<'a> {
    /// The key and the attributes.
    pub virtual_server: &'a VirtualServer,
    /// Its real servers, sorted by key, each once; may be empty.
    pub real_servers: &'a Arc<[RealServer]>,
    /// The set entries that its frontend needs.
    pub entries: &'a [(SetId, Entry)],
    /// What the virtual server is for.
    pub subject: &'a Subject,
}

impl State {
    /// The desired virtual servers of a family, sorted by key.
    pub fn virtual_servers(&self, family: Family) -> impl Iterator<Item = DesiredVirtualServer<'_>> {
        let keys = self.servers.sorted_keys().into_iter();
        let of_family = keys.filter(move |key| key.address().map(Family::of) == Some(family));
        of_family.filter_map(|key| self.virtual_server(key))
    }

    /// The desired virtual server with a key.
    #[must_use]
    pub fn virtual_server(&self, key: &VirtualServerKey) -> Option<DesiredVirtualServer<'_>> {
        let desired = self.servers.desired(key)?;
        Some(DesiredVirtualServer {
            virtual_server: &desired.virtual_server,
            real_servers: &desired.real_servers,
            entries: self.entries_of(desired),
            subject: self.servers.subject(key)?,
        })
    }

    /// The set entries that the frontend of a virtual server needs.
    pub(crate) fn entries_of(&self, server: &DesiredServer) -> &[(SetId, Entry)] {
        let (id, position) = server.owner;
        let port = self.ports.get(id.index());
        let frontend = port.and_then(|port| port.frontends.get(position as usize));
        frontend.map_or(&[], |frontend| &frontend.entries)
    }

    /// The desired addresses of the dummy link of a family, sorted. Each has the full prefix length.
    pub fn addresses(&self, family: Family) -> impl Iterator<Item = IpAddr> + '_ {
        let keys = self.addresses.sorted_keys().into_iter();
        keys.map(|key| key.address())
            .filter(move |address| Family::of(*address) == family)
    }

    /// The desired entries of a set, sorted.
    #[must_use]
    pub fn entries(&self, set: SetId, family: Family) -> impl ExactSizeIterator<Item = &Entry> {
        self.entries[family.index()][set.index()]
            .sorted_keys()
            .into_iter()
    }

    /// Whether an entry of a set is desired.
    #[must_use]
    pub fn has_entry(&self, set: SetId, family: Family, entry: &Entry) -> bool {
        self.entries[family.index()][set.index()].is_desired(entry)
    }

    /// The frontends of a family that processes of this node must not reach, sorted.
    pub fn denied_to_node(&self, family: Family) -> impl Iterator<Item = &FrontendKey> {
        self.denied_to_node[family.index()].keys()
    }
}
