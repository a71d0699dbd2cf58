//! Load balancers whose source ranges do not apply.
//!
//! The rules drop packets to a served load balancer from other clients if it is an entry of `KUBE-LOAD-BALANCER-FW`. While this entry, its set or
//! the rule that looks it up is missing, the load balancer is open to all clients. One that is served already is withdrawn then, until they are in
//! place; a new one is not added before.

use std::collections::{BTreeMap, BTreeSet};

use kernlink_ipset::{Element, Entry};
use kernlink_ipvs::{Protocol, VirtualServerKey};
use kernlink_services::{Event, Family, ObjectName, Reason, ServicePortId};

use super::{ObservedRules, State};
use crate::compile::Compiled;
use crate::rules;
use crate::sets::{SetId, of_virtual_server};

/// The sets that restrict a load balancer.
const RESTRICTING: [SetId; 3] = [
    SetId::LoadBalancerFirewall,
    SetId::LoadBalancerSourceCidr,
    SetId::LoadBalancerSourceIp,
];

/// The load balancers that are not served because their source ranges would not apply.
#[derive(Clone, Debug, Default)]
pub(super) struct Restrictions {
    /// Those that were served when their restriction could not be put in place.
    open: BTreeSet<VirtualServerKey>,
    /// Those of them that are withdrawn, and their service ports.
    withheld: BTreeMap<VirtualServerKey, ServicePortId>,
    /// Whether others are open since the last decision.
    is_changed: bool,
}

impl State {
    /// After a sync: finds the load balancers that are served without the restriction that they should have, and those whose restriction is in
    /// place again. Compares dirty entries only, unless rules are missing.
    pub(crate) fn check_restrictions(&mut self) {
        if self.retired.is_some() {
            return;
        }
        for family in self.managed.clone() {
            if !self.is_ownership_known(family) || !self.is_set_known(family, SetId::LoadBalancerFirewall) {
                continue;
            }
            let has_rule = self.has_rule_of_source_ranges(family);
            let table = &self.entries[family.index()][SetId::LoadBalancerFirewall.index()];
            let differences = table.differences().into_iter();
            let missing = differences
                .filter(|difference| difference.desired.is_some() && difference.observed.is_none());
            let mut entries: Vec<&Entry> = missing.map(|difference| difference.key).collect();
            if !has_rule {
                entries.extend(table.iter_desired().map(|(entry, ())| entry));
            }
            let is_served = |key: &VirtualServerKey| {
                let observed = self.servers.observed(key);
                observed.is_some_and(|server| server.is_owned)
            };
            let open: Vec<VirtualServerKey> = entries
                .into_iter()
                .filter_map(server_of)
                .filter(|key| is_served(key) && !self.restrictions.open.contains(key))
                .collect();
            let is_restricted = |key: &&VirtualServerKey| {
                let entry = of_virtual_server(key).filter(|_| key.address().map(Family::of) == Some(family));
                entry
                    .is_some_and(|entry| !table.is_desired(&entry) || (has_rule && table.is_observed(&entry)))
            };
            let restricted: Vec<VirtualServerKey> = self
                .restrictions
                .open
                .iter()
                .filter(is_restricted)
                .copied()
                .collect();
            let Restrictions {
                open: known,
                is_changed,
                ..
            } = &mut self.restrictions;
            *is_changed |= !open.is_empty() || !restricted.is_empty();
            known.extend(open);
            for key in restricted {
                known.remove(&key);
            }
        }
    }

    /// Whether the next sync decides about load balancers: it is due at once.
    pub(crate) fn is_restriction_changed(&self) -> bool {
        self.restrictions.is_changed
    }

    /// Whether the rules in the kernel look up the load balancers with source ranges, as far as it is known.
    fn has_rule_of_source_ranges(&self, family: Family) -> bool {
        match &self.chains[family.index()].observed {
            ObservedRules::Saved(ruleset)
            | ObservedRules::Written(ruleset)
            | ObservedRules::Unreadable(_, Some(ruleset)) => {
                let entries = &self.entries[family.index()][SetId::LoadBalancerFirewall.index()];
                entries.is_empty() || rules::looks_up_source_ranges(ruleset, family)
            }
            ObservedRules::Unknown | ObservedRules::Unreadable(_, None) => true,
        }
    }

    /// The service ports whose load balancers are decided differently now.
    pub(super) fn restrictions_to_decide(&mut self) -> BTreeSet<ServicePortId> {
        let Restrictions {
            open,
            withheld,
            is_changed,
        } = &mut self.restrictions;
        if !std::mem::take(is_changed) {
            return BTreeSet::new();
        }
        let served = open
            .iter()
            .filter_map(|key| Some(self.servers.desired(key)?.owner.0));
        let released = withheld.iter().filter(|(key, _)| !open.contains(key));
        served.chain(released.map(|(_, id)| *id)).collect()
    }

    /// Removes the load balancers of a service port that would be open to all clients, except for the entries that restrict them; adds an event
    /// for each.
    pub(super) fn withhold_open(&mut self, id: ServicePortId, service: &ObjectName, compiled: &mut Compiled) {
        let Restrictions { open, withheld, .. } = &mut self.restrictions;
        withheld.retain(|_, of| *of != id);
        if open.is_empty() {
            return;
        }
        let Compiled {
            frontends,
            entries,
            events,
        } = compiled;
        frontends.retain_mut(|frontend| {
            let key = frontend.virtual_server.key;
            let is_restricted = || {
                let mut sets = frontend.entries.iter();
                sets.any(|(set, _)| *set == SetId::LoadBalancerFirewall)
            };
            if !open.contains(&key) || !is_restricted() {
                return true;
            }
            withheld.insert(key, id);
            let restricting = std::mem::take(&mut frontend.entries);
            let restricting = restricting
                .into_iter()
                .filter(|(set, _)| RESTRICTING.contains(set));
            entries.extend(restricting);
            events.push(Event::service(service.clone(), is_open(&key)));
            false
        });
    }

    /// Forgets the load balancers of a service port that was removed.
    pub(super) fn release_open(&mut self, id: ServicePortId) {
        self.restrictions.withheld.retain(|_, of| *of != id);
    }
}

/// The virtual server of an entry with an address and a port.
fn server_of(entry: &Entry) -> Option<VirtualServerKey> {
    let Element::IpPort { ip, port } = entry.element() else {
        return None;
    };
    let protocol = Protocol::from_number(u16::from(port.protocol.0));
    Some(VirtualServerKey::new(*ip, port.port, protocol))
}

fn is_open(key: &VirtualServerKey) -> Reason {
    Reason::DataPath {
        code: "SourceRangesNotApplied",
        text: format!(
            "load balancer {key} is not served, because its source ranges cannot be applied: it would be open to all clients. It is served \
             when its entry of KUBE-LOAD-BALANCER-FW and the rule that looks it up are in place"
        ),
    }
}
