//! The state of IPVS mode on a node that it does not serve any more: what is removed when its connections have ended, and when it is read again.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use kernlink_engine::plan::Subject;
use kernlink_engine::retire::Kept;
use kernlink_ipset::{Element, Entry};
use kernlink_iptables_restore::{Rule, Table};
use kernlink_ipvs::VirtualServerKey;
use kernlink_netfilter::name_of_chain;
use kernlink_services::{Family, FrontendKey, ObjectName};

use super::{ObservedRules, State};
use crate::error::Error;
use crate::key::Key;
use crate::rules;
use crate::sets::{SetId, of_virtual_server, protocol_port};
use crate::virtual_servers::{frontend_of, key_of};

/// How often the connections of this node from virtual IPs are read while they keep an address. A listing of connection tracking is larger
/// than one of a few virtual servers.
pub(crate) const SOURCES_INTERVAL: Duration = Duration::from_secs(60);

/// How often it is compared whether the other mode serves what is held.
const HELD_INTERVAL: Duration = Duration::from_secs(5);

/// What is known in addition about IPVS mode on a node that it does not serve any more.
#[derive(Clone, Debug, Default)]
pub(crate) struct Retired {
    /// Whether everything is removed by one plan, and no connection is waited for: no other mode serves the node.
    pub(crate) is_at_once: bool,
    /// What such a plan leaves although it is owned, and why.
    pub(crate) staying: Vec<String>,
    /// The chains that stay, because another mode has them too.
    pub(crate) kept: BTreeSet<(Family, Table, &'static str)>,
    /// Whether anything was read or failed since the last plan.
    pub(crate) is_dirty: bool,
    /// The addresses of the dummy link without virtual servers that connections of this node have as their source. `None`: not read.
    pub(crate) sources: Option<BTreeSet<IpAddr>>,
    /// Whether the kernel does not show connections: nothing waits for them, and no flow is deleted.
    pub(crate) is_conntrack_missing: bool,
    /// Since when an address has no virtual servers.
    unserved: BTreeMap<IpAddr, Instant>,
    /// The families whose tables were read after the last virtual server and address were removed.
    tables_read: BTreeSet<Family>,
    /// The virtual servers that serve a Service which the other mode does not serve yet.
    pub(crate) held: BTreeMap<VirtualServerKey, ObjectName>,
    /// The number of steps of the last plan.
    pub(crate) steps: usize,
    /// When [`due`](State::retired_due) returns objects.
    next: Option<Instant>,
    /// Whether a plan found nothing left to remove.
    pub(crate) is_finished: bool,
}

impl State {
    /// From now on everything that is owned is removed: another mode serves the node. Real servers get no new connections and drain; what
    /// is removed only with them follows.
    pub(crate) fn retire(&mut self) {
        self.managed.extend(Family::ALL);
        self.retired = Some(Retired::default());
    }

    /// From now on everything that is owned is removed by one plan: no mode serves the node.
    pub(crate) fn retire_at_once(&mut self) {
        self.managed.extend(Family::ALL);
        self.retired = Some(Retired {
            is_at_once: true,
            ..Retired::default()
        });
    }

    /// Whether another mode serves the node. What could not be read is then read again before anything is removed.
    pub(crate) fn has_successor(&self) -> bool {
        self.retired.as_ref().is_some_and(|retired| !retired.is_at_once)
    }

    /// Sets which chains stay, and compares everything in the next plan.
    pub(crate) fn keep(&mut self, kept: Kept<'_>) {
        let Some(retired) = &mut self.retired else { return };
        retired.is_dirty = true;
        retired.kept.clear();
        for family in Family::ALL {
            for &(table, names) in rules::CHAINS {
                let stay = names
                    .iter()
                    .filter(|name| kept(&name_of_chain(family, table, name)));
                retired.kept.extend(stay.map(|name| (family, table, *name)));
            }
        }
    }

    /// Whether a chain stays.
    pub(crate) fn is_kept(&self, family: Family, table: Table, name: &str) -> bool {
        let retired = self.retired.as_ref();
        retired.is_some_and(|retired| retired.kept.contains(&(family, table, name)))
    }

    /// Keeps the virtual servers of frontends that the other mode does not serve yet, with the real servers that they have. `is_served`:
    /// whether it does. Those that no Service has any more are not kept, nor those of which source ranges were added or removed since:
    /// their sets are not changed any more.
    pub(crate) fn hold(&mut self, is_served: impl Fn(&FrontendKey) -> bool) {
        if !self.retired.as_ref().is_some_and(|retired| retired.is_dirty) {
            return;
        }
        let servers = self.servers.iter_observed();
        let owned = servers.filter(|(_, server)| server.is_owned);
        let is_held = |key: &VirtualServerKey| {
            let Some(Subject::Service(service)) = self.servers.subject(key) else {
                return None;
            };
            let frontend = frontend_of(key).filter(|_| self.servers.is_desired(key))?;
            let is_held = !is_served(&frontend) && !self.is_newly_restricted(&frontend);
            is_held.then(|| service.clone())
        };
        let held = owned.filter_map(|(key, _)| Some((*key, is_held(key)?)));
        let held: BTreeMap<VirtualServerKey, ObjectName> = held.collect();
        let Some(retired) = &mut self.retired else { return };
        let before = std::mem::replace(&mut retired.held, held);
        for key in before.keys().filter(|key| !retired.held.contains_key(key)) {
            // Its real servers begin to drain.
            self.servers.set_dirty(*key);
        }
    }

    /// Whether the sets admit clients to a frontend that its Service does not admit any more.
    fn is_newly_restricted(&self, frontend: &FrontendKey) -> bool {
        let sets = &self.entries[frontend.family().index()];
        let firewall = &sets[SetId::LoadBalancerFirewall.index()];
        let is_unrestricted = of_virtual_server(&key_of(frontend))
            .is_none_or(|entry| firewall.is_desired(&entry) && !firewall.is_observed(&entry));
        let admits_others = |set: SetId| {
            let table = &sets[set.index()];
            let mut observed = table.iter_observed().map(|(entry, ())| entry);
            observed.any(|entry| is_of_frontend(entry, frontend) && !table.is_desired(entry))
        };
        is_unrestricted
            || admits_others(SetId::LoadBalancerSourceCidr)
            || admits_others(SetId::LoadBalancerSourceIp)
    }

    /// The frontends that are [held](Self::hold).
    pub(crate) fn held(&self) -> BTreeSet<FrontendKey> {
        let retired = self.retired.iter();
        retired
            .flat_map(|retired| retired.held.keys().filter_map(frontend_of))
            .collect()
    }

    /// Whether everything was removed after [`retire`](Self::retire).
    #[must_use]
    pub(crate) fn is_gone(&self) -> bool {
        self.retired.as_ref().is_some_and(|retired| retired.is_finished)
    }

    /// The rules of `KUBE-POSTROUTING` that a family needs as long as it has virtual IPs, or virtual servers that may serve: the other mode
    /// writes this chain before its own rules translate all connections.
    #[must_use]
    pub(crate) fn needed_rules(&self, family: Family) -> Vec<Rule> {
        let mut rules = Vec::new();
        if self.has_virtual_ips(family) && self.sets.is_observed(&(family, SetId::IpvsIps)) {
            rules.push(rules::masquerade_virtual_ips(family));
        }
        if self.has_served() && self.sets.is_observed(&(family, SetId::LoopBack)) {
            rules.push(rules::masquerade_hairpin(family));
        }
        rules
    }

    /// Whether the dummy link has addresses of a family, or may have: they were never read. A reading that fails later changes nothing, because only
    /// this program adds addresses to the link, and removes them.
    pub(crate) fn may_have_virtual_ips(&self, family: Family) -> bool {
        !self.readings.has_links || self.has_virtual_ips(family)
    }

    /// Whether the dummy link has addresses of a family.
    pub(crate) fn has_virtual_ips(&self, family: Family) -> bool {
        let mut addresses = self.addresses.iter_observed();
        addresses.any(|(key, ())| Family::of(key.address()) == family)
    }

    /// Whether owned virtual servers and addresses exist.
    pub(crate) fn has_served(&self) -> bool {
        let mut servers = self.servers.iter_observed();
        self.addresses.iter_observed().len() > 0 || servers.any(|(_, server)| server.is_owned)
    }

    /// The addresses of the dummy link that no owned virtual server has.
    pub(crate) fn unserved_addresses(&self) -> BTreeSet<IpAddr> {
        let servers = self.servers.iter_observed();
        let owned = servers.filter(|(_, server)| server.is_owned);
        let served: BTreeSet<IpAddr> = owned.filter_map(|(key, _)| key.address()).collect();
        let addresses = self.addresses.iter_observed();
        let addresses = addresses.map(|(key, ())| key.address());
        addresses.filter(|address| !served.contains(address)).collect()
    }

    /// Whether what is owned of a family may be removed: it is known which virtual servers are, or it has no virtual server.
    pub(crate) fn may_remove(&self, family: Family) -> bool {
        let mut addresses = self.servers.iter_observed().filter_map(|(key, _)| key.address());
        self.is_ownership_known(family) || !addresses.any(|address| Family::of(address) == family)
    }

    /// Whether the limit of an address that connections of this node still use has passed.
    pub(crate) fn is_overdue(&self, address: &IpAddr) -> bool {
        let limit = self.config.services.defaults.drain_timeout;
        let since = self
            .retired
            .as_ref()
            .and_then(|retired| retired.unserved.get(address));
        let passed = since.zip(self.drains.now()).map(|(since, now)| now - *since);
        limit.zip(passed).is_some_and(|(limit, passed)| passed >= limit)
    }

    /// Whether the tables of all families were read after everything that Services need was removed.
    pub(crate) fn are_tables_read(&self) -> bool {
        let retired = self.retired.as_ref();
        retired.is_some_and(|retired| {
            Family::ALL
                .iter()
                .all(|family| retired.tables_read.contains(family))
        })
    }

    /// Records that the tables of a family were read.
    pub(crate) fn retired_tables_read(&mut self, family: Family) {
        let has_served = self.has_served();
        if let Some(retired) = self.retired.as_mut().filter(|_| !has_served) {
            retired.tables_read.insert(family);
        }
    }

    /// Records that everything was read: the other mode may have changed the tables since they were read before.
    pub(crate) fn retired_listed(&mut self) {
        if let Some(retired) = &mut self.retired {
            retired.is_dirty = true;
            retired.is_finished = false;
            retired.tables_read.clear();
        }
    }

    /// Whether it is known which chains exist, if nothing that Services need is left.
    ///
    /// # Errors
    /// Why the tables of a family could not be read. A host without them has no chains.
    pub(crate) fn check_tables(&self) -> Result<(), Error> {
        if self.has_served() {
            return Ok(());
        }
        for chains in &self.chains {
            match &chains.observed {
                ObservedRules::Unreadable(Error::Rules(error), _) if error.is_unsupported() => {}
                ObservedRules::Unreadable(error, _) => return Err(error.clone()),
                _ => {}
            }
        }
        Ok(())
    }

    /// The objects to read again. Each plan with steps is followed by another one at once.
    pub(crate) fn retired_due(&self, now: Instant) -> Vec<Key> {
        let is_due = |next: Instant| next <= now;
        if !self
            .retired
            .as_ref()
            .and_then(|retired| retired.next)
            .is_some_and(is_due)
        {
            return Vec::new();
        }
        if self.has_served() {
            Family::ALL.map(Key::Flows).into()
        } else {
            Family::ALL.map(Key::Rules).into()
        }
    }

    /// When [`retired_due`](Self::retired_due) returns objects.
    pub(crate) fn retired_next(&self) -> Option<Instant> {
        self.retired.as_ref()?.next
    }

    /// Ends the sync in progress.
    pub(crate) fn finish_retired(&mut self) {
        let is_dirty = self.retired.as_ref().is_some_and(|retired| retired.is_dirty);
        let Some(now) = self.drains.now().filter(|_| is_dirty) else {
            return;
        };
        let unserved = self.unserved_addresses();
        let (has_served, are_tables_read) = (self.has_served(), self.are_tables_read());
        let Some(retired) = &mut self.retired else { return };
        let has_held = !retired.held.is_empty();
        retired.is_dirty = false;
        retired.unserved.retain(|address, _| unserved.contains(address));
        for address in &unserved {
            retired.unserved.entry(*address).or_insert(now);
        }
        retired.is_finished = !has_served && are_tables_read && retired.steps == 0;
        retired.next = if retired.is_finished {
            None
        } else if retired.steps > 0 || (!has_served && !are_tables_read) {
            Some(now)
        } else if has_held {
            Some(now + HELD_INTERVAL)
        } else {
            (!unserved.is_empty()).then(|| now + SOURCES_INTERVAL)
        };
    }
}

/// Whether an entry admits clients to a frontend.
fn is_of_frontend(entry: &Entry, frontend: &FrontendKey) -> bool {
    let (Element::IpPortNet { ip, port, .. } | Element::IpPortIp { ip, port, .. }) = entry.element() else {
        return false;
    };
    *ip == frontend.address && *port == protocol_port(frontend.protocol, frontend.port)
}
