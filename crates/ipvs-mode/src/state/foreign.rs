//! Foreign virtual servers at the keys of desired ones.

use std::collections::{BTreeMap, BTreeSet};

use kernlink_ipset::Entry;
use kernlink_ipvs::{RealServerKey, VirtualServer, VirtualServerKey};
use kernlink_services::{Event, Family, ObjectName, Reason, ServicePortId};

use super::{ObservedRealServer, ObservedServer, State};
use crate::compile::Compiled;
use crate::ownership::{Identified, identified};
use crate::sets::{self, SetId};

/// The foreign virtual servers, and the frontends that are not served because of them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Foreign {
    /// The foreign virtual servers as last read.
    pub(crate) keys: BTreeSet<VirtualServerKey>,
    /// Those of them that an entry of a frontend set named when they were listed for the first time: a Service that needs the key takes them
    /// over.
    served: BTreeSet<VirtualServerKey>,
    /// The frontends that are not served, because a foreign virtual server with other attributes or real servers has their key, and their
    /// service ports.
    pub(super) withheld: BTreeMap<VirtualServerKey, ServicePortId>,
    /// Virtual servers that this process could not add because another program had added them. The ledger names them already.
    existing: BTreeSet<VirtualServerKey>,
    /// Whether foreign virtual servers were read since the last decision.
    is_changed: bool,
    /// Those at bound addresses for which an event was returned.
    pub(super) reported: BTreeSet<VirtualServerKey>,
}

impl State {
    /// Records that a virtual server could not be added because it exists.
    pub(crate) fn refuse_as_existing(&mut self, key: VirtualServerKey) {
        self.foreign.existing.insert(key);
    }

    /// Whether a virtual server that is read for the first time was added by another program although the ledger names it, and is not equal
    /// to the desired one.
    pub(crate) fn is_of_another_program(
        &self,
        key: &VirtualServerKey,
        server: &VirtualServer,
        real_servers: &[(RealServerKey, ObservedRealServer)],
    ) -> bool {
        let desired = self.servers.desired(key);
        let observed = ObservedServer {
            virtual_server: server.clone(),
            real_servers: real_servers.to_vec(),
            is_owned: false,
        };
        let is_equal = desired
            .is_some_and(|desired| observed.agrees_with(&desired.virtual_server, &desired.real_servers));
        self.foreign.existing.contains(key) && !is_equal
    }

    /// Forgets a virtual server that could not be added, after it was decided who owns it.
    pub(crate) fn forget_existing(&mut self, key: &VirtualServerKey) {
        self.foreign.existing.remove(key);
    }

    /// Whether a foreign virtual server of a listing was not foreign before, and did not appear where this process was about to add one.
    pub(crate) fn is_new_foreign(&self, key: &VirtualServerKey) -> bool {
        !self.foreign.keys.contains(key) && !self.foreign.existing.contains(key)
    }

    /// Sets the foreign virtual servers after a listing. `served`: the new ones that entries of frontend sets name.
    pub(crate) fn set_foreign(
        &mut self,
        keys: BTreeSet<VirtualServerKey>,
        served: BTreeSet<VirtualServerKey>,
    ) {
        self.foreign.served.retain(|key| keys.contains(key));
        self.foreign.served.extend(served);
        self.foreign.keys = keys;
        self.foreign.is_changed = true;
    }

    /// Records that a virtual server was read, and whether it exists and is foreign.
    pub(crate) fn observe_foreign(&mut self, key: VirtualServerKey, is_foreign: bool) {
        let was_foreign = if is_foreign {
            !self.foreign.keys.insert(key)
        } else {
            self.foreign.served.remove(&key);
            self.foreign.keys.remove(&key)
        };
        self.foreign.is_changed |= is_foreign || was_foreign;
    }

    /// Records whether the ledger of a family, which was read, is empty although owned virtual servers exist.
    pub(crate) fn check_ledger(&mut self, family: Family) {
        let is_empty = self.entries[family.index()][SetId::Ledger.index()]
            .iter_observed()
            .len()
            == 0;
        let mut servers = self.servers.iter_observed();
        let is_owned = |(key, server): (&VirtualServerKey, &ObservedServer)| {
            server.is_owned && key.address().map(Family::of) == Some(family)
        };
        if is_empty && self.managed.contains(&family) && servers.any(is_owned) {
            self.without_ledger.insert(family);
        } else {
            self.without_ledger.remove(&family);
        }
    }

    /// Whether the ledger names a virtual server.
    pub(crate) fn is_in_ledger(&self, key: &VirtualServerKey) -> bool {
        let family = key.address().map(Family::of);
        let Some((family, entry)) = family.zip(sets::of_virtual_server(key)) else {
            return false;
        };
        self.entries[family.index()][SetId::Ledger.index()].is_observed(&entry)
    }

    /// Records that the ledger names a virtual server: from now on it is owned.
    pub(crate) fn adopt(&mut self, entry: &Entry) {
        let Some(Identified::VirtualServer(key)) = identified(SetId::Ledger, entry) else {
            return;
        };
        self.foreign.served.remove(&key);
        if self.foreign.keys.remove(&key)
            && let Some(known) = self.servers.observed_mut(&key)
        {
            known.is_owned = true;
        }
    }

    /// Whether foreign virtual servers were read since the last decision.
    pub(super) fn are_foreign_changed(&self) -> bool {
        self.foreign.is_changed
    }

    /// The service ports whose frontends may be decided differently, because foreign virtual servers were read since they were compiled.
    pub(super) fn ports_to_decide(&mut self) -> BTreeSet<ServicePortId> {
        if !std::mem::take(&mut self.foreign.is_changed) {
            return BTreeSet::new();
        }
        let desired = self.foreign.keys.iter();
        let desired = desired.filter_map(|key| Some(self.servers.desired(key)?.owner.0));
        desired.chain(self.foreign.withheld.values().copied()).collect()
    }

    /// Removes the frontends of a service port that are not served, because a foreign virtual server has their key, is not equal to the
    /// desired one, and no frontend set named it; adds an event for each.
    pub(super) fn withhold_foreign(
        &mut self,
        id: ServicePortId,
        service: &ObjectName,
        compiled: &mut Compiled,
    ) {
        if self.foreign.keys.is_empty() || self.config.adopt_foreign {
            return;
        }
        let Compiled {
            frontends, events, ..
        } = compiled;
        frontends.retain(|frontend| {
            let key = frontend.virtual_server.key;
            let foreign = self.servers.observed(&key);
            let is_foreign = self.foreign.keys.contains(&key) && !self.foreign.served.contains(&key);
            let foreign = foreign.filter(|known| !known.is_owned && is_foreign);
            let differs = foreign
                .is_some_and(|known| !known.agrees_with(&frontend.virtual_server, &frontend.real_servers));
            if differs {
                self.foreign.withheld.insert(key, id);
                events.push(Event::service(service.clone(), differs_from_foreign(&key)));
            }
            !differs
        });
    }

    /// Forgets the frontends of a service port that were not served.
    pub(super) fn release_withheld(&mut self, id: ServicePortId) {
        if !self.foreign.withheld.is_empty() {
            self.foreign.withheld.retain(|_, of| *of != id);
        }
    }
}

fn differs_from_foreign(key: &VirtualServerKey) -> Reason {
    Reason::DataPath {
        code: "ForeignVirtualServer",
        text: format!(
            "virtual server {key} is foreign and differs from the desired one; it is not changed, and the frontend is not served. It is \
             served when the foreign virtual server is deleted or equal, or with adopt_foreign"
        ),
    }
}
