//! Gives portals their listening ports, and keeps the desired objects of each portal.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use kernlink_engine::Subject;
use kernlink_iptables_restore::Error as RulesError;
use kernlink_services::{Event, Family, Reason, ServicePort, ServicePortId};

use super::{ChainRule, DesiredRules, Listening, Placed, Shortage, State, index};
use crate::data_path::compile::event;
use crate::data_path::portal::{Entrance, Portal};
use crate::data_path::rules::{Destination, is_node_port, rule_text, rules};
use crate::proxy::{ListenerKey, Transport};

impl State {
    /// Adds the objects of a portal. It keeps the port that it has, or that an earlier process gave it. The error is an event, unless there is
    /// no port: that is reported for all portals together, see [`shortage_events`](Self::shortage_events).
    pub(super) fn place(
        &mut self,
        id: ServicePortId,
        port: &ServicePort,
        portal: Portal,
        previous: Option<&Placed>,
    ) -> Result<Placed, Option<Event>> {
        let family = portal.key.family();
        let transport = portal.key.transport;
        let kept = previous.map(|previous| previous.listener.address.port());
        let kept = kept.filter(|port| self.config.port_range.contains(*port));
        let listening = kept
            .or_else(|| self.adopt(&portal))
            .or_else(|| self.allocators[family.index()][index(transport)].allocate(self.now?));
        let Some(listening) = listening else {
            self.unplaced.insert(id);
            if !self.waiting.contains(&id) {
                let first = || Shortage {
                    first: portal.key.clone(),
                    portals: 0,
                };
                let shortage = self.shortages.entry((family, transport)).or_insert_with(first);
                shortage.portals += 1;
            }
            return Err(None);
        };
        self.add(portal, listening).map_err(|error| {
            self.allocators[family.index()][index(transport)].release(listening);
            let text = format!("the rules of {} are invalid: {error}", port.key.name);
            Some(event(port, "InvalidRule", text))
        })
    }

    /// Two events for each family and protocol of which portals have no port since this compilation: one about the range, whose text does not depend
    /// on the portals, and one that names the first portal.
    pub(in crate::data_path) fn shortage_events(&mut self) -> Vec<Event> {
        let range = self.config.port_range;
        let events = |((family, transport), shortage): ((Family, Transport), Shortage)| {
            let more = match shortage.portals - 1 {
                0 => String::new(),
                1 => " and 1 more portal".to_owned(),
                more => format!(" and {more} more portals"),
            };
            let first = shortage.first;
            let reason = |text| Reason::DataPath {
                code: "NoFreePort",
                text,
            };
            let cause = format!(
                "portRange: {range} has no free {transport} port for {family}; portals without a port are not served; valid: a range with a port for \
                 each portal"
            );
            let portals = format!("not served, because portRange has no free port: {first}{more}");
            [
                Event::configuration(reason(cause)),
                Event::service(first.port.name.service, reason(portals)),
            ]
        };
        std::mem::take(&mut self.shortages)
            .into_iter()
            .flat_map(events)
            .collect()
    }

    /// The port to which the rules of an earlier process lead.
    fn adopt(&mut self, portal: &Portal) -> Option<u16> {
        let key = &portal.key;
        let recorded = portal.entrances.iter().find_map(|entrance| {
            let of = (key.family(), key.transport, entrance.address, entrance.port);
            self.recorded.get(&of).copied()
        })?;
        // Another portal may have the port: the rules of an earlier process could be inconsistent.
        let is_free = !self.is_taken(key.family(), key.transport, recorded);
        (is_free && self.config.port_range.contains(recorded)).then_some(recorded)
    }

    /// Whether a portal has the listening port.
    pub(in crate::data_path) fn is_taken(&self, family: Family, transport: Transport, port: u16) -> bool {
        let to = Destination {
            listen: self.config.listen_address(family),
            host: self.node.node_ip(family),
            port,
        };
        self.owners.contains_key(&ListenerKey {
            transport,
            address: to.socket(family),
        })
    }

    fn add(&mut self, portal: Portal, listening: u16) -> Result<Placed, RulesError> {
        let family = portal.key.family();
        let transport = portal.key.transport;
        let to = Destination {
            listen: self.config.listen_address(family),
            host: self.node.node_ip(family),
            port: listening,
        };
        let groups = rules(&portal, to)?;
        let listener = ListenerKey {
            transport,
            address: to.socket(family),
        };
        let subject = Subject::Service(portal.key.port.name.service.clone());
        let value = Listening {
            portal: portal.key.to_string().into(),
            serving: portal.serving.clone(),
        };
        self.listeners.add(listener, value, subject.clone());
        self.owners.insert(listener, usize::MAX);
        let mut claims = Vec::new();
        let mut keys = Vec::new();
        let mut rule_count = 0;
        for (position, group) in groups.iter().enumerate() {
            let entrance = group.entrance.as_ref();
            let claim = entrance.and_then(|entrance| self.claim_of(transport, family, entrance));
            if let Some(claim) = claim {
                self.claims.add(claim, (), subject.clone());
                claims.push(claim);
            }
            let rules = group.rules.iter().map(|(chain, rule)| ChainRule {
                chain: *chain,
                text: rule_text(rule, family),
            });
            let desired = DesiredRules {
                listener,
                claim,
                position,
                rules: rules.collect(),
                captures_all: entrance.is_some_and(Entrance::captures_all),
            };
            rule_count += desired.rules.len();
            self.rules[family.index()].add(group.key, desired, subject.clone());
            keys.push(group.key);
        }
        self.rule_counts[family.index()] += rule_count;
        Ok(Placed {
            portal,
            listener,
            rules: keys,
            rule_count,
            claims,
        })
    }

    /// The port that another program could bind.
    fn claim_of(&self, transport: Transport, family: Family, entrance: &Entrance) -> Option<ListenerKey> {
        let is_claimed = is_node_port(entrance) || entrance.is_node_address;
        if !self.config.claims_ports || !is_claimed {
            return None;
        }
        let all = match family {
            Family::Ipv4 => IpAddr::from([0u8; 4]),
            Family::Ipv6 => IpAddr::from([0u16; 8]),
        };
        // A node port at every address has one claim, also while its addresses are named: two would exclude each other.
        let is_at_all = is_node_port(entrance) && self.node.accepts_all_node_ports(family);
        let address = entrance.address.filter(|_| !is_at_all).unwrap_or(all);
        Some(ListenerKey {
            transport,
            address: SocketAddr::new(address, entrance.port),
        })
    }

    /// Removes the references of a portal. `successor` is the same portal after a change: it may have the same listening port.
    pub(super) fn withdraw(&mut self, placed: &Placed, successor: Option<&Placed>) {
        let family = placed.portal.key.family();
        let subject = Subject::Service(placed.portal.key.port.name.service.clone());
        for rule in &placed.rules {
            self.rules[family.index()].remove(rule, &subject);
        }
        self.rule_counts[family.index()] -= placed.rule_count;
        for claim in &placed.claims {
            self.claims.remove(claim, &subject);
        }
        let key = placed.listener;
        self.listeners.remove(&key, &subject);
        if successor.is_none_or(|successor| successor.listener != key) {
            self.owners.remove(&key);
            self.busy.remove(&key);
        }
        let port = key.address.port();
        if successor.is_none_or(|successor| successor.listener.address.port() != port) {
            if self.listeners.is_observed(&key) {
                self.closing.insert(key);
            } else {
                self.allocators[family.index()][index(key.transport)].release(port);
            }
        }
    }

    /// Makes the ports free that were closed, after the rules that led to them were deleted.
    pub(in crate::data_path) fn release_closed(&mut self) {
        let listeners = &self.listeners;
        let (open, closed) = std::mem::take(&mut self.closing)
            .into_iter()
            .partition(|key| listeners.is_observed(key));
        self.closing = open;
        let closed: BTreeSet<ListenerKey> = closed;
        for key in closed {
            let family = Family::of(key.address.ip());
            self.allocators[family.index()][index(key.transport)].release(key.address.port());
        }
    }

    /// Moves a portal whose port another program has to another port.
    pub(in crate::data_path) fn move_port(&mut self, key: ListenerKey) {
        let Some(&id) = self.owners.get(&key) else {
            return;
        };
        let Some(portals) = self.placed.get_mut(id) else {
            return;
        };
        let Some(position) = portals.iter().position(|placed| placed.listener == key) else {
            return;
        };
        let previous = portals.swap_remove(position);
        let family = previous.portal.key.family();
        let allocator = &mut self.allocators[family.index()][index(key.transport)];
        let Some(port) = self.now.and_then(|now| allocator.allocate(now)) else {
            // It stays where it is and is tried again.
            portals.push(previous);
            return;
        };
        let kept = match self.add(previous.portal.clone(), port) {
            Ok(placed) => {
                self.withdraw(&previous, Some(&placed));
                self.owners.insert(placed.listener, id);
                let allocator = &mut self.allocators[family.index()][index(key.transport)];
                if let Some(now) = self.now {
                    allocator.release_busy(key.address.port(), now);
                }
                placed
            }
            Err(_) => {
                self.allocators[family.index()][index(key.transport)].release(port);
                previous
            }
        };
        if let Some(portals) = self.placed.get_mut(id) {
            portals.push(kept);
        }
    }
}
