//! The entries of frontends at addresses that are bound before and after the plan.
//!
//! `KUBE-IPVS-FILTER` rejects new connections to a bound address, except those to an entry of the sets below. With the entry and without a
//! virtual server they reach the node itself, and a process that listens on all addresses there. So such an entry exists only together
//! with its virtual server: it is added after it and removed before it. All others are added before and removed after it, because no client
//! reaches the address between the two steps, or the rules do not reject connections to it.

use std::net::IpAddr;

use kernlink_dummylink::AddressKey;
use kernlink_engine::plan::Needs;
use kernlink_ipset::Entry;
use kernlink_ipvs::VirtualServerKey;
use kernlink_services::Family;

use super::entries::delete_entry;
use super::{Need, Planner, ServerDifference};
use crate::key::Key;
use crate::order::Phase;
use crate::ownership::{Identified, identified};
use crate::sets::{self, SetId};
use crate::state::DesiredServer;

/// The sets whose entries `KUBE-IPVS-FILTER` does not reject, if each belongs to one virtual server.
const ADMITTING: [SetId; 4] = [
    SetId::ClusterIp,
    SetId::ExternalIp,
    SetId::ExternalIpLocal,
    SetId::LoadBalancer,
];

impl Planner<'_, '_, '_> {
    /// Whether an address is bound before and after the plan.
    fn stays_bound(&self, address: IpAddr) -> bool {
        let addresses = &self.state.addresses;
        AddressKey::host(address).is_ok_and(|key| addresses.is_observed(&key) && addresses.is_desired(&key))
    }

    /// The virtual server that must exist before an entry is added.
    pub(super) fn server_before_entry(&self, id: SetId, entry: &Entry) -> Option<VirtualServerKey> {
        let Some(Identified::VirtualServer(key)) = identified(id, entry).filter(|_| ADMITTING.contains(&id))
        else {
            return None;
        };
        let servers = &self.state.servers;
        let is_new = servers.is_desired(&key) && !servers.is_observed(&key);
        (is_new && self.stays_bound(key.address()?)).then_some(key)
    }

    /// Adds the entries that follow their virtual servers.
    pub(super) fn add_frontends(&mut self) {
        for (family, id, entry, subject) in std::mem::take(&mut self.after_servers) {
            let Some(key) = self.server_before_entry(id, &entry) else {
                continue;
            };
            let added = self.builder.after(&Key::VirtualServer(key), false);
            self.add_entry(Phase::AddFrontends, family, id, &entry, subject, added);
        }
    }

    /// The entries that the first real servers of a virtual server need: without them connections of this node are not masqueraded.
    pub(super) fn frontend_needs(
        &self,
        difference: &ServerDifference<'_>,
        desired: &DesiredServer,
    ) -> Vec<Need> {
        let has_servers = difference
            .observed
            .is_some_and(|known| !known.real_servers.is_empty());
        let Some(address) = difference
            .key
            .address()
            .filter(|address| !has_servers && self.stays_bound(*address))
        else {
            return Vec::new();
        };
        let family = Family::of(address);
        let entries = self.state.entries_of(desired).iter();
        let entries = entries.filter(|(id, _)| ADMITTING.contains(id));
        entries
            .flat_map(|(id, entry)| self.entry_needs(family, *id, entry.clone()))
            .collect()
    }

    /// What the removal of an entry needs if its frontend is to be admitted by another set from now on: without either entry, connections to
    /// it are rejected.
    pub(super) fn successor_needs(&self, family: Family, id: SetId, entry: &Entry) -> Vec<Need> {
        let tables = &self.state.entries[family.index()];
        let successors = ADMITTING
            .iter()
            .filter(|other| **other != id && ADMITTING.contains(&id));
        let mut successors = successors
            .filter(|other| tables[other.index()].is_desired(entry))
            .peekable();
        let Some(first) = successors.peek().map(|first| **first) else {
            return Vec::new();
        };
        let mut added = Vec::new();
        for other in successors {
            if tables[other.index()].is_observed(entry) {
                return Vec::new();
            }
            if added.is_empty() {
                added = self.steps_of_entry(family, *other, entry);
            }
        }
        if added.is_empty() {
            added.push(Need::Waiting(Key::Entry(family, first, entry.clone())));
        }
        added
    }

    /// Removes the entries that precede the removal of their virtual servers.
    pub(super) fn remove_frontends(&mut self) {
        let withdrawn = |difference: &ServerDifference<'_>| {
            let is_owned = difference.observed.is_some_and(|known| known.is_owned);
            (difference.desired.is_none() && is_owned).then(|| (*difference.key, difference.subject.clone()))
        };
        let withdrawn: Vec<_> = self.servers.iter().filter_map(withdrawn).collect();
        for (key, subject) in withdrawn {
            let (Some(address), Some(entry)) = (key.address(), sets::of_virtual_server(&key)) else {
                continue;
            };
            let family = Family::of(address);
            if !self.state.managed.contains(&family) || !self.stays_bound(address) {
                continue;
            }
            for id in ADMITTING {
                let table = &self.state.entries[family.index()][id.index()];
                if !table.is_observed(&entry) || table.is_desired(&entry) {
                    continue;
                }
                self.builder.push(
                    Phase::RemoveFrontends,
                    Key::Entry(family, id, entry.clone()),
                    subject.clone(),
                    delete_entry(family, id, &entry),
                    Needs::none(),
                );
            }
        }
    }

    /// The removals of entries that the removal of a virtual server needs.
    pub(super) fn removed_frontends(&self, key: &VirtualServerKey) -> Vec<Need> {
        let (Some(address), Some(entry)) = (key.address(), sets::of_virtual_server(key)) else {
            return Vec::new();
        };
        let family = Family::of(address);
        let is_withdrawn = |id: &SetId| !self.state.entries[family.index()][id.index()].is_desired(&entry);
        let withdrawn = ADMITTING.into_iter().filter(is_withdrawn);
        withdrawn
            .flat_map(|id| self.steps_of_entry(family, id, &entry))
            .collect()
    }
}
