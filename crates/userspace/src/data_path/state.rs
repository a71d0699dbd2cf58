//! The state of userspace mode: desired and observed sockets and rules, and the listening port of each portal.

mod flows;
mod placement;
mod rules;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::IpAddr;
use std::sync::Arc;
use std::time::Instant;

use kernlink_engine::Backoff;
use kernlink_engine::table::Table;
use kernlink_host::flows::TrackedFlows;
use kernlink_iptables_restore::Table as RulesTable;
use kernlink_services::{Event, Family, InterfaceAddress, NodeFacts, ServicePortId, Services};

pub(super) use self::rules::{ChainRule, DesiredRules, PresentRules};
use super::chains::PortalChain;
use super::compile::compile;
use super::config::Config;
use super::key::{Key, RulesKey};
use super::operation::Write;
use super::portal::{Portal, PortalKey};
use crate::ports::PortAllocator;
use crate::proxy::{ListenerKey, Serving, Transport};

/// What a listening port serves, and for which portal.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Listening {
    pub(super) portal: Box<str>,
    pub(super) serving: Serving,
}

/// The chains of a family as last read or written.
#[derive(Clone, Debug, Default)]
pub(super) struct Chains {
    pub(super) present: BTreeSet<PortalChain>,
    pub(super) jumps: BTreeSet<PortalChain>,
    /// Chains with rules that cannot be parsed: they are emptied.
    pub(super) unreadable: BTreeSet<PortalChain>,
    /// Whether both tables could be read. Otherwise no rule of the family is changed.
    pub(super) is_readable: bool,
}

/// A portal with its listening port.
#[derive(Clone, Debug)]
pub(super) struct Placed {
    pub(super) portal: Portal,
    pub(super) listener: ListenerKey,
    /// The keys of its rules, and the number of rules.
    rules: Vec<RulesKey>,
    rule_count: usize,
    claims: Vec<ListenerKey>,
}

/// Portals for which there is no listening port.
#[derive(Debug)]
pub(super) struct Shortage {
    first: PortalKey,
    /// The number of portals, with the first one.
    portals: usize,
}

/// What a recorded rule matches: protocol, address and port.
pub(super) type RecordedKey = (Family, Transport, Option<IpAddr>, u16);

/// The desired and observed sockets and rules of userspace mode.
#[derive(Debug)]
pub struct State {
    pub(super) config: Arc<Config>,
    /// The time of the plan or sync that runs, or of the last one; `None` before the first one.
    pub(super) now: Option<Instant>,
    /// The families that are served, and those that were served before the configuration changed or by an earlier process.
    pub(super) managed: BTreeSet<Family>,
    /// By family, whether it was searched for rules of an earlier process.
    pub(super) is_searched: [bool; 2],
    pub(super) interfaces: Vec<InterfaceAddress>,
    pub(super) node: NodeFacts,
    /// By family, whether a retiring mode may have virtual IPs on a link.
    pub(super) has_virtual_ips: [bool; 2],
    pub(super) listeners: Table<ListenerKey, Listening>,
    pub(super) claims: Table<ListenerKey, ()>,
    /// By family.
    pub(super) rules: [Table<RulesKey, DesiredRules, PresentRules>; 2],
    /// By family: the number of desired rules.
    pub(super) rule_counts: [usize; 2],
    /// By family.
    pub(super) chains: [Chains; 2],
    pub(super) dirty_chains: BTreeSet<(Family, RulesTable)>,
    pub(super) flows: TrackedFlows,
    /// The ports of listening ports, by family and protocol.
    pub(super) allocators: [[PortAllocator; 2]; 2],
    /// The listening ports to which rules led when they were read first: the portals of an earlier process.
    pub(super) recorded: BTreeMap<RecordedKey, u16>,
    /// Whether the rules of each family were read. Before, its Services get no listening ports: a rule of an earlier process may lead to
    /// any port.
    pub(super) is_recorded: [bool; 2],
    /// Whether the last listing of each family could not read its rules.
    pub(super) is_unread: [bool; 2],
    /// Events about rules that could not be read outside a listing, which no sync has returned yet.
    pub(super) events: Vec<Event>,
    /// When rules of each family that could not be read are read again, and the number of attempts that failed.
    pub(super) read_again: [Option<(Instant, u32)>; 2],
    /// The portals of each service port, by its id.
    pub(super) placed: Vec<Vec<Placed>>,
    /// The service port of each listening port.
    pub(super) owners: HashMap<ListenerKey, usize>,
    /// The service ports that have a portal without listening port.
    pub(super) unplaced: BTreeSet<ServicePortId>,
    /// Those that had one before the present compilation, which was reported.
    pub(super) waiting: BTreeSet<ServicePortId>,
    /// Those that have none since the compilation that runs.
    pub(super) shortages: BTreeMap<(Family, Transport), Shortage>,
    /// Listening ports that no portal has any more, until they are closed: rules may still lead to them.
    pub(super) closing: BTreeSet<ListenerKey>,
    /// Listening ports that other programs use. Their portals get another one when they are tried again.
    pub(super) busy: BTreeSet<ListenerKey>,
    /// Whether all service ports are to be compiled again.
    pub(super) is_outdated: bool,
}

impl State {
    /// The state before Services and kernel were read.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        let seed = u64::from(std::process::id());
        let allocator = || PortAllocator::new(config.port_range, seed.wrapping_mul(0x9e37_79b9));
        let mut state = Self {
            config: Arc::new(config.clone()),
            now: None,
            managed: BTreeSet::new(),
            is_searched: [false; 2],
            interfaces: Vec::new(),
            node: NodeFacts::default(),
            has_virtual_ips: [false; 2],
            listeners: Table::default(),
            claims: Table::default(),
            rules: std::array::from_fn(|_| Table::default()),
            rule_counts: [0; 2],
            chains: std::array::from_fn(|_| Chains::default()),
            dirty_chains: BTreeSet::new(),
            flows: TrackedFlows::default(),
            allocators: std::array::from_fn(|_| std::array::from_fn(|_| allocator())),
            recorded: BTreeMap::new(),
            is_recorded: [false; 2],
            is_unread: [false; 2],
            events: Vec::new(),
            read_again: [None; 2],
            placed: Vec::new(),
            owners: HashMap::new(),
            unplaced: BTreeSet::new(),
            waiting: BTreeSet::new(),
            shortages: BTreeMap::new(),
            closing: BTreeSet::new(),
            busy: BTreeSet::new(),
            is_outdated: false,
        };
        state.managed.extend(&state.config.services.families);
        state
    }

    /// The configuration.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Reserves the listening port of a rule that an earlier process wrote, until its portal is compiled.
    pub(super) fn record_port(&mut self, key: RecordedKey, port: u16) {
        let (family, transport, ..) = key;
        // Several rules lead to one port: only the first one reserves it.
        self.allocators[family.index()][index(transport)].reserve(port);
        self.recorded.insert(key, port);
    }

    pub(super) fn compile_port(&mut self, id: ServicePortId, services: &Services) -> Vec<Event> {
        if self.placed.len() <= id.index() {
            self.placed.resize_with(id.index() + 1, Vec::new);
        }
        let Some(place) = self.placed.get_mut(id.index()) else {
            return Vec::new();
        };
        let mut before = std::mem::take(place);
        let mut now = Vec::new();
        let mut events = Vec::new();
        if let Some(port) = services.port(id) {
            let has_virtual_ips = self.has_virtual_ips[port.key.family.index()];
            let owned = services.owned_frontends(id);
            let (portals, compiled) = compile(port, owned, &self.node, has_virtual_ips);
            events = compiled;
            for portal in portals {
                if !self.is_recorded[portal.key.family().index()] {
                    self.unplaced.insert(id);
                    continue;
                }
                let previous = before.iter().position(|placed| placed.portal.key == portal.key);
                let previous = previous.map(|position| before.swap_remove(position));
                match self.place(id, port, portal, previous.as_ref()) {
                    Ok(placed) => now.push(placed),
                    Err(event) => events.extend(event),
                }
                if let Some(previous) = previous {
                    self.withdraw(&previous, now.last());
                }
            }
        }
        for placed in before {
            self.withdraw(&placed, None);
        }
        for placed in &now {
            self.owners.insert(placed.listener, id.index());
        }
        if let Some(place) = self.placed.get_mut(id.index()) {
            *place = now;
        }
        events
    }

    /// Sets when rules of a family that could not be read are read again. A host that does not support them, and never did, is asked again by the
    /// next listing only.
    pub(super) fn read_later(&mut self, family: Family, is_unsupported: bool) {
        let family = family.index();
        let is_unsupported = is_unsupported && !self.is_recorded[family];
        self.read_again[family] = self.now.filter(|_| !is_unsupported).map(|now| {
            let failures = self.read_again[family].map_or(1, |(_, failures)| failures.saturating_add(1));
            (now + Backoff::default().delay(failures, u64::MAX), failures)
        });
    }

    /// The families whose rules could not be read.
    pub(super) fn unread_families(&self) -> impl Iterator<Item = Family> + '_ {
        let families = self.managed.iter().copied();
        families.filter(|family| !self.is_recorded[family.index()] || self.is_unread[family.index()])
    }

    /// When the rules of a family that could not be read are read again.
    pub(super) fn reading_of(&self, family: Family) -> Option<Instant> {
        self.read_again[family.index()].map(|(time, _)| time)
    }

    pub(super) fn next_reading(&self) -> Option<Instant> {
        let times = self
            .unread_families()
            .filter_map(|family| self.reading_of(family));
        times.min()
    }

    pub(super) fn record_write(&mut self, write: &Write) {
        let family = write.family();
        let chains = &mut self.chains[family.index()];
        for chain in &write.chains {
            chains.present.insert(*chain);
            chains.unreadable.remove(chain);
        }
        chains.jumps.extend(&write.jumps);
        let rules = &mut self.rules[family.index()];
        if !write.chains.is_empty() {
            let present = rules.iter_observed();
            let kept = present.map(|(key, present)| (*key, present.without(&write.chains)));
            for (key, kept) in kept.collect::<Vec<_>>() {
                rules.observe(key, (!kept.is_empty()).then_some(kept));
            }
        }
        if let Key::Rules(key) = write.key {
            let after = write.rules.clone();
            rules.observe(key, (!after.is_empty()).then_some(after));
        }
    }
}

pub(super) fn index(transport: Transport) -> usize {
    match transport {
        Transport::Tcp => 0,
        Transport::Udp => 1,
    }
}
