//! Brings the desired state up to date with changes of the Services.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;

use kernlink_host::flows;
use kernlink_services::{Event, Family, FrontendKey, Protocol, Reason, ServicePortId, Services};

use super::State;
use super::family::{CurrentTable, FamilyState, FoundTable, OldTable};
use crate::class::MOST_ENDPOINTS;
use crate::item::Shared;
use crate::operation::Observed;
use crate::port::{FrontendSpec, PortSpec};
use crate::rules::Parameters;

/// The code of the event that a Service has more endpoints than are balanced.
const TOO_MANY_ENDPOINTS: &str = "TooManyEndpoints";

/// The annotation with the prefix length of the networks whose clients have an endpoint together.
const AFFINITY_MASK: &str = "kernlink.io/affinity-mask";

impl State {
    /// Decides for each family which table it uses, after the desired elements are known.
    pub(crate) fn settle_tables(&mut self) {
        for family in Family::ALL {
            let parameters = self.parameters(family);
            let state = self.family_mut(family);
            let abandoned = state.settle_table(&parameters);
            state.adopt();
            // With the table, frontends go that no Service has.
            for key in abandoned.iter().filter(|key| key.protocol == Protocol::Udp) {
                self.flows
                    .tracked
                    .add_stale(SocketAddr::new(key.address, key.port));
            }
        }
    }

    /// Brings the desired elements of a service port up to date.
    pub(crate) fn compile_port(&mut self, services: &Services, id: ServicePortId) {
        let index = id.index();
        if self.ports.len() <= index {
            self.ports.resize(index + 1, None);
        }
        let before = self.ports.get(index).cloned().flatten();
        let now = services
            .port(id)
            .filter(|port| self.family(port.key.family).is_served)
            .map(|port| {
                let mut last_pool = self.last_pool;
                let spec = PortSpec::new(port, services.owned_frontends(id), || {
                    let known = before
                        .as_ref()
                        .filter(|before| before.service == port.key.name.service);
                    let known = known
                        .and_then(|before| before.affinity)
                        .map(|affinity| affinity.pool);
                    let state = self.family(port.key.family);
                    let keys = services.owned_frontends(id).map(FrontendKey::of);
                    known.or_else(|| state.find_pool(keys)).unwrap_or_else(|| {
                        last_pool = last_pool.wrapping_add(1).max(1);
                        last_pool
                    })
                });
                self.last_pool = last_pool;
                spec
            });
        self.replace_port(id, before, now);
    }

    fn replace_port(&mut self, id: ServicePortId, before: Option<Arc<PortSpec>>, now: Option<PortSpec>) {
        if before.as_deref() == now.as_ref() {
            return;
        }
        let now = now.map(Arc::new);
        if let Some(slot) = self.ports.get_mut(id.index()) {
            slot.clone_from(&now);
        }
        self.replace_flows(id, before.as_deref(), now.as_deref());
        if let Some(now) = &now
            && now.is_limited
            && self.limited.insert(id)
        {
            let text = format!(
                "port {} has more than {MOST_ENDPOINTS} endpoints; new connections are balanced over {MOST_ENDPOINTS} of them",
                now.comment
            );
            let reason = Reason::DataPath {
                code: TOO_MANY_ENDPOINTS,
                text,
            };
            self.events.push(Event::service(now.service.clone(), reason));
        }
        if let Some(now) = now.as_ref().filter(|now| now.has_affinity_mask)
            && before.as_deref().is_none_or(|before| !before.has_affinity_mask)
        {
            let reason = Reason::OptionWithoutEffect {
                option: AFFINITY_MASK.to_owned(),
                why: "in nftables mode each address has an endpoint of its own".to_owned(),
            };
            self.events.push(Event::service(now.service.clone(), reason));
        }
        if now.as_ref().is_none_or(|now| !now.is_limited) {
            self.limited.remove(&id);
        }
        if let Some(before) = &before {
            let state = self.family_mut(before.family);
            state.remove_port(id, before);
        }
        if let Some(now) = &now {
            let state = self.family_mut(now.family);
            state.add_port(id, now);
        }
    }

    /// Replaces the UDP frontends of a service port.
    fn replace_flows(&mut self, id: ServicePortId, before: Option<&PortSpec>, now: Option<&PortSpec>) {
        let addresses = |spec: Option<&PortSpec>| -> Vec<SocketAddr> {
            let udp = spec.filter(|spec| spec.protocol == Protocol::Udp).into_iter();
            udp.flat_map(|spec| &spec.frontends)
                .map(|(key, _)| SocketAddr::new(key.address, key.port))
                .collect()
        };
        let (before_addresses, now_addresses) = (addresses(before), addresses(now));
        if before_addresses.is_empty() && now_addresses.is_empty() {
            return;
        }
        let Some(service) = now.or(before).map(|spec| spec.service.clone()) else {
            return;
        };
        let endpoints = now.map_or_else(|| Arc::new([]) as Arc<[SocketAddr]>, udp_endpoints);
        self.flows
            .replace(id, &service, &before_addresses, &now_addresses, &endpoints);
    }

    /// Numbers of service ports with session affinity up to this one are not given to others.
    pub(crate) fn reserve_pools(&mut self, last: u32) {
        self.last_pool = self.last_pool.max(last);
    }

    pub(crate) fn ports(&self) -> &[Option<Arc<PortSpec>>] {
        &self.ports
    }
}

impl FamilyState {
    fn remove_port(&mut self, id: ServicePortId, before: &Arc<PortSpec>) {
        self.dirty.insert(before.service.clone());
        if let Some(ids) = self.services.get_mut(&before.service) {
            ids.retain(|known| *known != id);
            if ids.is_empty() {
                self.services.remove(&before.service);
            }
        }
        for (key, _) in &before.frontends {
            let Some(entry) = self.entries.get_mut(key) else {
                continue;
            };
            if !entry
                .desired
                .as_ref()
                .is_some_and(|desired| Arc::ptr_eq(desired, before))
            {
                continue;
            }
            entry.desired = None;
            match &entry.observed {
                None => _ = self.entries.remove(key),
                Some(Observed::Written(written)) => {
                    let service = written.spec.service.clone();
                    // The Service that it was written for may have lost it to this one before.
                    self.dirty.insert(service.clone());
                    self.withdrawn.entry(service).or_default().insert(*key);
                }
                Some(Observed::Raw(_)) => {
                    self.leftovers.insert(*key);
                    self.dirty_leftovers.insert(*key);
                }
            }
        }
        for element in before.shared() {
            self.release(element, before);
        }
        if let Some(affinity) = before.affinity {
            self.used_pools.remove(&affinity.pool);
        }
        self.count(before, |total, number| *total = total.saturating_sub(number));
    }

    fn add_port(&mut self, id: ServicePortId, now: &Arc<PortSpec>) {
        self.dirty.insert(now.service.clone());
        let ids = self.services.entry(now.service.clone()).or_default();
        if !ids.contains(&id) {
            ids.push(id);
        }
        for (key, _) in &now.frontends {
            let entry = self.entries.entry(*key).or_default();
            entry.desired = Some(Arc::clone(now));
            if let Some(Observed::Written(written)) = &entry.observed
                && let Some(keys) = self.withdrawn.get_mut(&written.spec.service)
            {
                keys.remove(key);
                if keys.is_empty() {
                    self.withdrawn.remove(&written.spec.service);
                }
            }
            self.leftovers.remove(key);
            self.dirty_leftovers.remove(key);
        }
        for element in now.shared() {
            *self.shared.entry(element).or_default() += 1;
            self.withdrawn_shared.remove(&element);
        }
        if let Some(affinity) = now.affinity {
            self.used_pools.insert(affinity.pool);
        }
        self.count(now, |total, number| *total += number);
    }

    fn release(&mut self, element: Shared, port: &PortSpec) {
        let Some(count) = self.shared.get_mut(&element) else {
            return;
        };
        *count -= 1;
        if *count > 0 {
            return;
        }
        self.shared.remove(&element);
        if self.observed_shared.contains(&element) {
            self.withdrawn_shared.insert(element, Some(port.service.clone()));
        }
    }

    fn count(&mut self, port: &PortSpec, add: impl Fn(&mut usize, usize)) {
        let totals = &mut self.totals;
        add(&mut totals.frontends, port.frontends.len());
        add(&mut totals.endpoints, port.cluster.len() + port.local.len());
        let of_frontend = |(_, frontend): &(FrontendKey, FrontendSpec)| {
            let list = if frontend.is_local {
                &port.local
            } else {
                &port.cluster
            };
            let short = if frontend.is_local { port.cluster.len() } else { 0 };
            2 + list.len() + short
        };
        add(&mut totals.elements, port.frontends.iter().map(of_frontend).sum());
        add(&mut totals.with_affinity, usize::from(port.affinity.is_some()));
        add(
            &mut totals.no_local_internal,
            usize::from(port.lacks_local_internal),
        );
        add(
            &mut totals.no_local_external,
            usize::from(port.lacks_local_external),
        );
    }

    /// The number that one of these frontends has in the kernel since an earlier process.
    fn find_pool(&self, mut keys: impl Iterator<Item = FrontendKey>) -> Option<u32> {
        keys.find_map(|key| {
            self.pools
                .get(&key)
                .copied()
                .filter(|pool| !self.used_pools.contains(pool))
        })
    }

    /// Compares the table as it was read, or as it is recorded, with the desired rules. If they differ, the table is to be made again. Returns
    /// the frontends of the old one that no Service has and that this process did not write.
    fn settle_table(&mut self, parameters: &Parameters) -> BTreeSet<FrontendKey> {
        let mut abandoned = BTreeSet::new();
        if !self.is_read {
            return abandoned;
        }
        if !self.found.is_empty() || self.has_found {
            self.has_found = false;
            let recorded = self.table.take();
            for found in std::mem::take(&mut self.found) {
                self.settle_found(found, parameters);
            }
            self.is_table_changed = recorded.is_some() && self.table.is_none();
            if self.table.is_none() {
                abandoned = self.forget();
                self.is_table_dirty = true;
            }
        }
        let is_doubtful = std::mem::take(&mut self.is_table_doubtful);
        self.is_table_changed |= is_doubtful && self.table.is_some();
        let is_outdated =
            |table: &CurrentTable| !self.is_served || is_doubtful || table.parameters != *parameters;
        if let Some(table) = self.table.take_if(|table| is_outdated(table)) {
            self.old.push(OldTable {
                key: table.slot.table(self.family),
                is_hooked: table.is_hooked,
            });
            abandoned = self.forget();
            self.is_table_dirty = true;
        }
        abandoned
    }

    fn settle_found(&mut self, found: FoundTable, parameters: &Parameters) {
        let table = found.slot.table(self.family);
        let is_usable = self.is_served
            && found.is_hooked
            && self.table.is_none()
            && found.content.is_desired(&table, parameters);
        if is_usable {
            self.table = Some(CurrentTable {
                slot: found.slot,
                parameters: parameters.clone(),
                is_hooked: true,
                is_own: found.is_own,
                is_owned: found.is_owned,
                is_ownerless: found.is_ownerless,
            });
        } else {
            self.old.push(OldTable {
                key: table,
                is_hooked: found.is_hooked,
            });
        }
    }
}

/// The endpoints that flows of a UDP service port may have.
fn udp_endpoints(port: &PortSpec) -> Arc<[SocketAddr]> {
    let chosen = port.cluster.iter().chain(&port.local);
    flows::endpoints(chosen.map(|endpoint| SocketAddr::new(endpoint.address, endpoint.port)))
}
