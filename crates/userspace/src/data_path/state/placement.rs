//! Gives portals their listening ports, and keeps the desired objects of each portal.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use kernlink_iptables_restore::Error as RulesError;
use kernlink_proxier::Subject;
use kernlink_services::{Event, Family, ServicePort, ServicePortId};

use super::{Listening, Placed, RuleKey, RuleNeeds, State, index};
use crate::data_path::compile::event;
use crate::data_path::key::{Key, Part, RulesKey};
use crate::data_path::portal::{Entrance, Portal};
use crate::data_path::rules::{Destination, is_node_port, rule_text, rules};
use crate::proxy::{ListenerKey, Transport};

impl State {
    /// Adds the objects of a portal. It keeps the port that it has, or that a former process gave it.
    pub(super) fn place(
        &mut self,
        id: ServicePortId,
        port: &ServicePort,
        portal: Portal,
        former: Option<&Placed>,
    ) -> Result<Placed, Event> {
        let family = portal.key.family();
        let transport = portal.key.transport;
        let kept = former.map(|former| former.listener.address.port());
        let kept = kept.filter(|port| self.config.port_range.contains(*port));
        let listening = kept
            .or_else(|| self.adopt(&portal))
            .or_else(|| self.allocators[family.index()][index(transport)].allocate(self.now));
        let Some(listening) = listening else {
            self.unplaced.insert(id);
            let range = self.config.port_range;
            let text = format!(
                "no free {transport} port in {range} for {}; it is not served",
                portal.key
            );
            return Err(event(port, "NoFreePort", text));
        };
        self.add(portal, listening).map_err(|error| {
            self.allocators[family.index()][index(transport)].release(listening);
            event(
                port,
                "InvalidRule",
                format!("the rules of {} are invalid: {error}", port.key.name),
            )
        })
    }

    /// The port to which the rules of a former process lead.
    fn adopt(&mut self, portal: &Portal) -> Option<u16> {
        let key = &portal.key;
        let recorded = portal.entrances.iter().find_map(|entrance| {
            let of = (key.family(), key.transport, entrance.address, entrance.port);
            self.recorded.get(&of).copied()
        })?;
        // Another portal may have the port: the rules of a former process could be inconsistent.
        let is_free = !self.is_taken(key.family(), key.transport, recorded);
        (is_free && self.config.port_range.contains(recorded)).then_some(recorded)
    }

    /// Whether a portal has the listening port.
    pub(super) fn is_taken(&self, family: Family, transport: Transport, port: u16) -> bool {
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
        let rules = rules(&portal, to)?;
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
        let claims = self.claims_of(&portal);
        for (claim, _) in &claims {
            self.claims.add(*claim, (), subject.clone());
        }
        let claims_for = |part: Part| -> Arc<[ListenerKey]> {
            let claims = claims.iter().filter(|(_, of)| *of == part);
            claims.map(|(claim, _)| *claim).collect()
        };
        let mut keys = Vec::new();
        for (position, (chain, rule)) in rules.iter().enumerate() {
            let part = Part::of(*chain);
            let key = RuleKey {
                with: RulesKey {
                    family,
                    part,
                    transport,
                    port: listening,
                },
                chain: *chain,
                text: rule_text(rule, family),
            };
            let needs = RuleNeeds {
                listener,
                claims: claims_for(part),
                position,
            };
            self.rules[family.index()].add(key.clone(), needs, subject.clone());
            keys.push(key);
        }
        // What an earlier plan did not achieve becomes a part of the next operation on the same rules.
        for part in [Part::Admission, Part::Portals, Part::NodePorts] {
            self.set_dirty(&Key::Rules(RulesKey {
                family,
                part,
                transport,
                port: listening,
            }));
        }
        Ok(Placed {
            portal,
            listener,
            rules: keys,
            claims: claims.iter().map(|(claim, _)| *claim).collect(),
        })
    }

    /// The ports that another program could bind, and the part of the rules that needs each claim.
    fn claims_of(&self, portal: &Portal) -> Vec<(ListenerKey, Part)> {
        if !self.config.claims_ports {
            return Vec::new();
        }
        let all = match portal.key.family() {
            Family::Ipv4 => IpAddr::from([0u8; 4]),
            Family::Ipv6 => IpAddr::from([0u16; 8]),
        };
        let local = portal.entrances.iter();
        let local = local.filter(|entrance| is_node_port(entrance) || entrance.is_node_address);
        let claim = |entrance: &Entrance| {
            let key = ListenerKey {
                transport: portal.key.transport,
                address: SocketAddr::new(entrance.address.unwrap_or(all), entrance.port),
            };
            let part = if is_node_port(entrance) {
                Part::NodePorts
            } else {
                Part::Portals
            };
            (key, part)
        };
        let mut claims: Vec<(ListenerKey, Part)> = local.map(claim).collect();
        claims.sort_unstable();
        claims.dedup_by_key(|(key, _)| *key);
        claims
    }

    /// Removes the references of a portal. `successor` is the same portal after a change: it may have the same listening port.
    pub(super) fn withdraw(&mut self, placed: &Placed, successor: Option<&Placed>) {
        let family = placed.portal.key.family();
        for rule in &placed.rules {
            self.rules[family.index()].remove(rule);
        }
        for claim in placed.claims.iter() {
            self.claims.remove(claim);
        }
        let key = placed.listener;
        self.listeners.remove(&key);
        if successor.is_none_or(|successor| successor.listener != key) {
            self.owners.remove(&key);
            self.busy.remove(&key);
        }
        let port = key.address.port();
        if successor.is_none_or(|successor| successor.listener.address.port() != port) {
            self.allocators[family.index()][index(key.transport)].release(port);
        }
    }

    /// Moves a portal whose port another program has to another port.
    pub(super) fn move_port(&mut self, key: ListenerKey) {
        let Some(&id) = self.owners.get(&key) else {
            return;
        };
        let Some(portals) = self.placed.get_mut(id) else {
            return;
        };
        let Some(position) = portals.iter().position(|placed| placed.listener == key) else {
            return;
        };
        let former = portals.swap_remove(position);
        let family = former.portal.key.family();
        let allocator = &mut self.allocators[family.index()][index(key.transport)];
        let Some(port) = allocator.allocate(self.now) else {
            // It stays where it is and is tried again.
            portals.push(former);
            return;
        };
        let kept = match self.add(former.portal.clone(), port) {
            Ok(placed) => {
                self.withdraw(&former, Some(&placed));
                self.owners.insert(placed.listener, id);
                let allocator = &mut self.allocators[family.index()][index(key.transport)];
                allocator.release_busy(key.address.port(), self.now);
                placed
            }
            Err(_) => {
                self.allocators[family.index()][index(key.transport)].release(port);
                former
            }
        };
        if let Some(portals) = self.placed.get_mut(id) {
            portals.push(kept);
        }
    }
}
