//! What events of the kernel require: a pure state machine.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use kernlink_dummylink::{AddressKey, Event as LinkEvent, HostAddress, LinkName, Snapshot};
use kernlink_netlink::Event as RulesEvent;
use kernlink_netlink::nftables::{Change, ElementChange, Notification};
use kernlink_services::Family;

use super::notification::RulesNotification;
use super::pace::Pace;
use super::{Changed, ChangedElement, RulesSource, WatchEvent, WatchOptions, WatchedTable};

/// How many full listings, readings of tables and readings of changed elements may follow each other, and how often more of them follow.
const BURST: u32 = 10;
const REFILL: Duration = Duration::from_secs(10);

/// How many changed elements of a table are read one by one. After more of them, all are read.
const MOST_ELEMENTS: usize = 1_000;

/// Turns events into objects to read again. Own changes cause events too: the objects are then found as recorded.
#[derive(Clone, Debug)]
pub(super) struct Changes {
    /// The link with the addresses that the data path binds, if it does.
    link: Option<LinkName>,
    /// The index of the link, if it exists.
    index: Option<u32>,
    /// The addresses that may be missing.
    removed: BTreeSet<AddressKey>,
    /// The addresses of the node, each with the index of its link.
    node: BTreeSet<(IpAddr, u32)>,
    resync: Pace,
    addresses: Pace,
    node_addresses: Pace,
    rules: Vec<WatchedFamily>,
    /// The tables whose changes require that they are read.
    tables: Vec<WatchedTable>,
    /// Whether nf_tables sends notifications.
    has_rules_events: bool,
    /// How often rules without events are read.
    check_interval: Duration,
}

/// The rules of one family.
#[derive(Clone, Debug)]
struct WatchedFamily {
    family: Family,
    source: RulesSource,
    /// Whether the current transaction changed a relevant chain.
    is_changed: bool,
    pace: Pace,
    /// The elements that other programs changed, by table.
    elements: BTreeMap<Box<str>, ChangedElements>,
    elements_pace: Pace,
    /// When they are read without an event.
    check: Option<Instant>,
}

#[derive(Clone, Debug)]
enum ChangedElements {
    These(BTreeSet<ChangedElement>),
    Many,
}

impl Default for ChangedElements {
    fn default() -> Self {
        ChangedElements::These(BTreeSet::new())
    }
}

impl ChangedElements {
    fn add(&mut self, element: ChangedElement) {
        if let ChangedElements::These(elements) = self {
            elements.insert(element);
            if elements.len() > MOST_ELEMENTS {
                *self = ChangedElements::Many;
            }
        }
    }

    fn keys(self, family: Family, table: Box<str>) -> Vec<Changed> {
        match self {
            ChangedElements::These(elements) => elements.into_iter().map(Changed::Element).collect(),
            ChangedElements::Many => vec![Changed::Elements(family, table)],
        }
    }
}

impl Changes {
    pub(super) fn new(link: Option<LinkName>, tables: Vec<WatchedTable>, options: &WatchOptions) -> Self {
        let paced = || Pace::new(BURST, REFILL);
        let unlimited = || Pace::new(1, Duration::ZERO);
        let families = options.rules.iter().map(|(family, source)| WatchedFamily {
            family: *family,
            source: *source,
            is_changed: false,
            pace: paced(),
            elements: BTreeMap::new(),
            elements_pace: paced(),
            check: None,
        });
        Self {
            link,
            index: None,
            removed: BTreeSet::new(),
            node: BTreeSet::new(),
            resync: paced(),
            addresses: unlimited(),
            node_addresses: unlimited(),
            rules: families.collect(),
            tables,
            has_rules_events: false,
            check_interval: options.check_interval,
        }
    }

    /// nf_tables begins or ceases to send notifications.
    pub(super) fn set_rules_events(&mut self, has_events: bool, now: Instant) {
        self.has_rules_events = has_events;
        for rules in &mut self.rules {
            rules.is_changed = false;
            rules.check = match rules.source {
                RulesSource::Events if has_events => None,
                _ => check_after(self.check_interval, now),
            };
        }
    }

    /// Starts with a listing of links and addresses.
    pub(super) fn start(&mut self, snapshot: &Snapshot) {
        let own = snapshot.links.iter().find(|link| self.is_own_name(&link.name));
        self.index = own.map(|link| link.index);
        let of_node = snapshot
            .addresses
            .iter()
            .filter(|address| !self.is_own(address) && is_relevant(address.address.key.address()));
        self.node = of_node.map(node_address).collect();
    }

    /// Events were lost: anything may have changed.
    pub(super) fn request_resync(&mut self, now: Instant) {
        self.resync.request(now);
    }

    /// A change of a link or an address.
    pub(super) fn on_link_event(&mut self, event: &LinkEvent, now: Instant) {
        match event {
            LinkEvent::LinkChanged(link) if self.is_own_name(&link.name) => {
                // Another index: it was deleted and added again.
                if self.index.is_some_and(|index| index != link.index) {
                    self.resync.request(now);
                }
                self.index = Some(link.index);
            }
            // Renamed, or deleted.
            LinkEvent::LinkChanged(link) | LinkEvent::LinkDeleted(link) if Some(link.index) == self.index => {
                self.index = None;
                self.resync.request(now);
            }
            LinkEvent::AddressDeleted(address)
                if self.is_own(address) && is_relevant(address.address.key.address()) =>
            {
                self.removed.insert(address.address.key);
                self.addresses.request(now);
            }
            // An address that is added there is bound by this process, or found by the next listing.
            LinkEvent::AddressChanged(address) if self.is_own(address) => {}
            LinkEvent::AddressChanged(address) if is_relevant(address.address.key.address()) => {
                let ip = address.address.key.address();
                let is_new = !self.is_node_address(ip);
                self.node.insert(node_address(address));
                if is_new {
                    self.node_addresses.request(now);
                }
            }
            LinkEvent::AddressDeleted(address) => {
                let was_known = self.node.remove(&node_address(address));
                if was_known && !self.is_node_address(address.address.key.address()) {
                    self.node_addresses.request(now);
                }
            }
            _ => {}
        }
    }

    /// A notification of nf_tables.
    pub(super) fn on_rules_event(&mut self, event: &RulesEvent<RulesNotification>, now: Instant) {
        if let RulesEvent::Notification(RulesNotification::Elements(change)) = event {
            return self.on_element_event(change, now);
        }
        for rules in &mut self.rules {
            if rules.source != RulesSource::Events {
                continue;
            }
            match event {
                RulesEvent::Notification(RulesNotification::Rules(Notification::Change(change))) => {
                    rules.is_changed |= family(change.family) == Some(rules.family)
                        && is_relevant_change(change, &self.tables);
                }
                // All changes of a transaction precede it.
                RulesEvent::Notification(RulesNotification::Rules(Notification::Generation(_))) => {
                    if std::mem::take(&mut rules.is_changed) {
                        rules.pace.request(now);
                    }
                }
                // Notifications were lost.
                _ => rules.pace.request(now),
            }
        }
    }

    /// Elements that another program changed.
    fn on_element_event(&mut self, change: &ElementChange, now: Instant) {
        let mut tables = self.tables.iter();
        if !tables.any(|table| table.has_elements && table.name == change.table) {
            return;
        }
        let changed = family(change.family);
        let is_watched =
            |rules: &&mut WatchedFamily| rules.source == RulesSource::Events && Some(rules.family) == changed;
        for rules in self.rules.iter_mut().filter(is_watched) {
            let elements = rules.elements.entry(change.table.clone()).or_default();
            for key in &change.keys {
                elements.add(ChangedElement::new(rules.family, &change.table, &change.set, key));
            }
            rules.elements_pace.request(now);
        }
    }

    /// When [`take`](Self::take) returns something.
    pub(super) fn next(&self) -> Option<Instant> {
        let links = [&self.resync, &self.addresses, &self.node_addresses].map(Pace::due);
        let rules = self.rules.iter();
        let rules = rules.flat_map(|rules| [rules.pace.due(), rules.elements_pace.due(), rules.check]);
        links.into_iter().chain(rules).flatten().min()
    }

    /// What is due at `now`.
    pub(super) fn take(&mut self, now: Instant) -> Option<WatchEvent<Changed>> {
        if self.resync.take(now) {
            // Everything is read then.
            self.removed.clear();
            self.addresses.withdraw();
            self.node_addresses.withdraw();
            for rules in &mut self.rules {
                rules.pace.withdraw();
                // A table with many elements is not read as a whole: what is known to have changed is read too.
                rules.check = rules.check.and_then(|_| check_after(self.check_interval, now));
            }
            return Some(WatchEvent::Resync);
        }
        let mut keys = Vec::new();
        if self.addresses.take(now) {
            keys.extend(
                std::mem::take(&mut self.removed)
                    .into_iter()
                    .map(Changed::Address),
            );
        }
        for rules in &mut self.rules {
            let is_check = rules.check.is_some_and(|check| check <= now);
            if is_check {
                rules.check = check_after(self.check_interval, now);
            }
            if rules.pace.take(now) || is_check {
                keys.push(Changed::Rules(rules.family));
            }
            if rules.elements_pace.take(now) {
                let family = rules.family;
                let changed = std::mem::take(&mut rules.elements).into_iter();
                keys.extend(changed.flat_map(|(table, elements)| elements.keys(family, table)));
            }
        }
        if !keys.is_empty() {
            return Some(WatchEvent::Recheck(keys));
        }
        self.node_addresses.take(now).then_some(WatchEvent::Addresses)
    }

    fn is_own_name(&self, name: &LinkName) -> bool {
        self.link.as_ref() == Some(name)
    }

    /// Whether an address is on the link.
    fn is_own(&self, address: &HostAddress) -> bool {
        self.is_own_name(&address.link) || Some(address.link_index) == self.index
    }

    /// Whether an address is on any link of the node.
    fn is_node_address(&self, address: IpAddr) -> bool {
        self.node
            .range((address, 0)..=(address, u32::MAX))
            .next()
            .is_some()
    }
}

fn node_address(address: &HostAddress) -> (IpAddr, u32) {
    (address.address.key.address(), address.link_index)
}

/// Whether frontends can be at an address: not if it is a loopback address, or an IPv6 link-local one, of which each link has one.
fn is_relevant(address: IpAddr) -> bool {
    !address.is_loopback() && !matches!(address, IpAddr::V6(v6) if v6.is_unicast_link_local())
}

fn family(number: u8) -> Option<Family> {
    match number {
        NFPROTO_IPV4 => Some(Family::Ipv4),
        NFPROTO_IPV6 => Some(Family::Ipv6),
        _ => None,
    }
}

const NFPROTO_IPV4: u8 = 2;
const NFPROTO_IPV6: u8 = 10;

/// The time of the next reading without an event; `None` if the interval is 0.
fn check_after(interval: Duration, now: Instant) -> Option<Instant> {
    now.checked_add(interval).filter(|check| *check > now)
}

/// Whether a change may concern one of these tables: the table was added or deleted, or a watched chain of it was changed.
fn is_relevant_change(change: &Change, tables: &[WatchedTable]) -> bool {
    let mut tables = tables.iter().filter(|table| table.name == change.table);
    tables.any(|table| match (&change.chain, &table.chains) {
        (None, _) | (_, None) => true,
        (Some(changed), Some(chains)) => chains.contains(changed),
    })
}

#[cfg(test)]
mod tests;
