//! Steps of the dummy link and its addresses.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;

use kernlink_dummylink::{AddressKey, DummyLink, LinkAddress, LinkName, Operation};
use kernlink_engine::plan::{Needs, Subject};
use kernlink_engine::table::Difference;
use kernlink_ipset::Entry;
use kernlink_services::Family;

use super::{Need, Planner};
use crate::key::Key;
use crate::order::Phase;
use crate::sets::SetId;

impl Planner<'_, '_, '_> {
    pub(super) fn links(&mut self) {
        let Some(link) = self.state.config().link() else {
            return;
        };
        if self.state.links.is_observed(&link) {
            return;
        }
        // If it was not read, it may exist, and be of another kind.
        if self.state.readings.has_links && self.state.links.is_dirty(&link) {
            let operation = Operation::EnsureLink(DummyLink::new(link));
            self.builder.push(
                Phase::Link,
                Key::Link(link),
                Subject::DataPath,
                operation,
                Needs::none(),
            );
        }
    }

    /// The steps that unbind an address.
    pub(super) fn unbound(&self, address: IpAddr) -> Vec<Need> {
        match AddressKey::host(address) {
            Ok(key) if !self.state.addresses.is_desired(&key) => self.builder.steps_of(&Key::Address(key)),
            _ => Vec::new(),
        }
    }

    pub(super) fn unbind_addresses(&mut self) {
        let Some(link) = self.state.config().link() else {
            return;
        };
        for difference in self.state.addresses.differences() {
            let key = *difference.key;
            let family = Family::of(key.address());
            let is_managed = self.state.managed.contains(&family) && self.state.is_ownership_known(family);
            if difference.observed.is_some() && difference.desired.is_none() && is_managed {
                let operation = Operation::DeleteAddress(link, key);
                self.builder.push(
                    Phase::UnbindAddresses,
                    Key::Address(key),
                    difference.subject,
                    operation,
                    Needs::none(),
                );
            }
        }
    }

    pub(super) fn bind_addresses(&mut self) {
        let Some(link) = self.state.config().link() else {
            return;
        };
        let differences = self.state.addresses.differences();
        let missing = |difference: &&Difference<'_, AddressKey, (), ()>| {
            difference.desired.is_some() && difference.observed.is_none()
        };
        if !differences.iter().any(|difference| missing(&difference)) {
            return;
        }
        // The dirty virtual servers of each address: `None` for one that exists.
        let mut servers: HashMap<IpAddr, Vec<Option<Need>>> = HashMap::new();
        for difference in self
            .servers
            .iter()
            .filter(|difference| difference.desired.is_some())
        {
            if let Some(address) = difference.key.address() {
                let need = self.added_server(difference).pop();
                servers.entry(address).or_default().push(need);
            }
        }
        // Each service port that references an address has one virtual server there. These addresses have virtual servers that are
        // not dirty.
        let incomplete: HashSet<IpAddr> = differences
            .iter()
            .filter(|difference| missing(difference))
            .map(|difference| difference.key)
            .filter(|key| {
                let dirty = servers.get(&key.address()).map_or(0, Vec::len);
                dirty < self.state.addresses.references(key)
            })
            .map(AddressKey::address)
            .collect();
        if !incomplete.is_empty() {
            for (key, _) in self.state.servers.iter_desired() {
                let address = key.address().filter(|address| incomplete.contains(address));
                if let Some(address) = address.filter(|_| !self.state.servers.is_dirty(key)) {
                    let is_there = self.state.servers.is_observed(key);
                    let need = (!is_there).then_some(Need::Waiting(Key::VirtualServer(*key)));
                    servers.entry(address).or_default().push(need);
                }
            }
        }
        for difference in differences.iter().filter(missing) {
            let address = difference.key.address();
            let family = Family::of(address);
            let Ok(host) = LinkAddress::host(address) else {
                continue;
            };
            let is_linked = self.state.links.is_observed(&link);
            let mut needs: Vec<Need> = match is_linked {
                true => Vec::new(),
                false => self.builder.after(&Key::Link(link), false),
            };
            needs.extend(self.sysctl_needs(family));
            // Without KUBE-IPVS-FILTER clients reach processes of the node that listen on all addresses.
            needs.extend(self.rules_needs(family));
            let entry = Entry::ip(address);
            needs.extend(self.entry_needs(family, SetId::IpvsIps, entry));
            // Without a virtual server nothing serves the traffic to the address.
            let of_address = servers.remove(&address).unwrap_or_default();
            let any: Vec<Need> = if of_address.iter().any(Option::is_none) {
                Vec::new()
            } else {
                of_address.into_iter().flatten().collect()
            };
            let need = self.builder.push(
                Phase::BindAddresses,
                Key::Address(*difference.key),
                difference.subject.clone(),
                Operation::EnsureAddress(link, host),
                Needs::all(needs).and_any(any),
            );
            self.bound.push(need);
        }
    }

    pub(super) fn remove_links(&mut self) {
        for difference in self.state.links.differences() {
            if difference.desired.is_none() && difference.observed.is_some() {
                let name: LinkName = *difference.key;
                self.builder.push(
                    Phase::RemoveLink,
                    Key::Link(name),
                    difference.subject,
                    Operation::DeleteLink(name),
                    Needs::all(self.bound.iter().cloned()),
                );
            }
        }
    }
}
