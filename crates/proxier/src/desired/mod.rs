//! What the kernel should hold: the contributions of all service ports, folded.
//!
//! [`DesiredState::fold`] takes the Services that a change touched, computes their [`Contribution`]s and replaces the ones folded
//! in before. Each key (a virtual server with its real servers, an address, a set entry, a health-check port) has the claims of all
//! who want it, oldest Service first; the first has it. A frontend is served as a whole: one that does not get its virtual server
//! gets neither address nor entries, until the owner goes.
//!
//! A planner reads, for each family:
//! - [`DesiredState::virtual_servers`] and [`DesiredState::virtual_server`]: a [`VirtualServer`] and its [`RealServer`]s, by key;
//! - [`DesiredState::addresses`]: what the dummy link must carry, each with the full prefix length;
//! - [`DesiredState::sets`]: every set with its definition and its entries in order, also the empty ones;
//! - [`DesiredState::rules`]: the chains with their rules, and [`rules::jumps`]: what leads to them;
//! - [`DesiredState::health_checks`]: which Service and how many endpoints a health-check node port answers for;
//!
//! and for both together [`DesiredState::sysctls`] and [`DesiredState::ipvs_timeouts`]. [`DesiredState::take_changes`] names the
//! keys that changed since it was asked last, so that a plan need not look at all of them.

mod addresses;
mod changes;
mod claims;
mod contribution;
mod health_checks;
mod listing;
pub mod rules;
pub mod sets;
mod sysctls;
mod virtual_servers;

use std::collections::{BTreeMap, BTreeSet, btree_map};
use std::net::IpAddr;
use std::sync::Arc;

use kernlink_ipset::{Element, Entry, Set};
use kernlink_ipvs::{RealServer, VirtualServer, VirtualServerKey};

pub use changes::{ChangedKeys, Changes};
pub use contribution::{Blocked, Contribution, FrontendClaim, contribution};
pub use listing::Listings;
pub use sets::SetId;
pub use sysctls::{KernelVersion, ParseKernelVersionError, Sysctl};

use crate::config::{Config, IpvsTimeouts};
use crate::event::{Event, Reason};
use crate::family::Family;
use crate::model::{HealthCheck, Model, ServicePortKey, ThisNode, Touched};
use crate::name_map::NameMap;
use crate::source::ObjectName;
use claims::{Claimed, Claims, Ledger, PortId, Released, claim, precedence, release};

/// What the kernel should hold.
#[derive(Clone, Debug)]
pub struct DesiredState {
    config: Arc<Config>,
    this_node: ThisNode,
    ledger: Ledger,
    ports_of: NameMap<Vec<PortId>>,
    families: [FamilyState; 2],
    changes: Changes,
    /// While folding: what was said about the virtual servers whose claims change.
    noted: BTreeMap<VirtualServerKey, Vec<Event>>,
}

/// The claims on the keys of one family.
#[derive(Clone, Debug)]
struct FamilyState {
    virtual_servers: BTreeMap<VirtualServerKey, Claims>,
    /// The keys above that several want.
    contested: BTreeSet<VirtualServerKey>,
    /// Those of [`SetId::IpvsIps`] are the addresses to bind too.
    sets: [BTreeMap<Entry, Claims>; SetId::ALL.len()],
    blocked: BTreeMap<Blocked, Claims>,
    health_checks: BTreeMap<u16, Claims>,
}

/// What a fold did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Folded {
    /// How many contributions were computed.
    pub contributions: usize,
    /// How many map entries were looked up to change them.
    pub map_entries: usize,
    /// What an operator should know that was not so before.
    pub events: Vec<Event>,
}

/// A virtual server that should be there.
#[derive(Clone, Copy, Debug)]
pub struct WantedServer<'a> {
    /// Its key and settings.
    pub virtual_server: &'a VirtualServer,
    /// Its real servers, sorted by key, each once; may be empty.
    pub real_servers: &'a Arc<[RealServer]>,
    /// The set entries that go with it and with nothing else of the service port's; they show that it is ours.
    pub entries: &'a [(SetId, Entry)],
    /// The service port it belongs to.
    pub owner: &'a ServicePortKey,
}

/// A set that should be there.
#[derive(Clone, Debug)]
pub struct WantedSet<'a> {
    /// Which set.
    pub id: SetId,
    /// Name, type and options.
    pub definition: Set,
    entries: &'a BTreeMap<Entry, Claims>,
}

impl<'a> WantedSet<'a> {
    /// The entries, sorted, each once.
    pub fn entries(&self) -> impl ExactSizeIterator<Item = &'a Entry> + use<'a> {
        self.entries.keys()
    }

    /// Whether an entry should be there.
    #[must_use]
    pub fn contains(&self, entry: &Entry) -> bool {
        self.entries.contains_key(entry)
    }

    /// How many entries there should be.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether the set should be empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

impl DesiredState {
    /// What a node without Services should hold: sets, rules and settings.
    #[must_use]
    pub fn new(model: &Model) -> Self {
        let family = FamilyState {
            virtual_servers: BTreeMap::new(),
            contested: BTreeSet::new(),
            sets: std::array::from_fn(|_| BTreeMap::new()),
            blocked: BTreeMap::new(),
            health_checks: BTreeMap::new(),
        };
        Self {
            config: Arc::clone(model.config()),
            this_node: model.this_node().clone(),
            ledger: Ledger::default(),
            ports_of: NameMap::default(),
            families: [family.clone(), family],
            changes: Changes::Everything,
            noted: BTreeMap::new(),
        }
    }

    /// Folds in what was touched.
    pub fn fold(&mut self, model: &Model, touched: &Touched) -> Folded {
        let mut folded = Folded::default();
        if touched.settings {
            self.config = Arc::clone(model.config());
            self.this_node = model.this_node().clone();
            self.changes.note(|keys| {
                keys.settings = true;
                keys.rules.extend(Family::ALL);
            });
        }
        // What is gone leaves first, so that its keys pass on without a word about a conflict that is over.
        if self.ports_of.is_empty() {
            self.ports_of.reserve(touched.services.len());
            self.ledger.reserve(touched.services.len());
        } else {
            for service in &touched.services {
                if self.ports_of.contains_key(service) && !model.has_exposures(service) {
                    self.fold_service(service, Vec::new(), &mut folded);
                }
            }
        }
        for service in &touched.services {
            let contributions: Vec<_> = model.exposures(service).map(contribution).collect();
            folded.contributions += contributions.len();
            self.fold_service(service, contributions, &mut folded);
        }
        // Conflicts are said as they are in the end, whatever the order in which the claims came in.
        for (key, before) in std::mem::take(&mut self.noted) {
            let Some(family) = key.address().map(Family::of) else {
                continue;
            };
            let now = self.families[family.index()].conflicts(key, &self.ledger);
            folded
                .events
                .extend(now.into_iter().filter(|event| !before.contains(event)));
        }
        folded.events.sort();
        folded.events.dedup();
        folded
    }

    /// Replaces all contributions of a Service.
    fn fold_service(&mut self, service: &ObjectName, contributions: Vec<Contribution>, folded: &mut Folded) {
        let mut before = self.ports_of.get(service).cloned().unwrap_or_default();
        let mut now = Vec::with_capacity(contributions.len());
        if before.is_empty() {
            for contribution in contributions {
                now.extend(self.add(contribution, folded));
            }
            if !now.is_empty() {
                self.ports_of.insert(service.clone(), now);
            }
            return;
        }
        let mut added = Vec::new();
        for contribution in contributions {
            let same = |id: &PortId| {
                self.ledger
                    .get(*id)
                    .is_some_and(|known| known.key == contribution.key)
            };
            match before.iter().position(same) {
                Some(position) => {
                    let id = before.swap_remove(position);
                    now.push(id);
                    self.replace(id, contribution, folded);
                }
                None => added.push(contribution),
            }
        }
        for id in before {
            self.remove(id, folded);
        }
        for contribution in added {
            now.extend(self.add(contribution, folded));
        }
        if now.is_empty() {
            self.ports_of.remove(service);
        } else {
            self.ports_of.insert(service.clone(), now);
        }
    }

    fn add(&mut self, contribution: Contribution, folded: &mut Folded) -> Option<PortId> {
        folded.events.extend(contribution.events.iter().cloned());
        let id = self.ledger.add(contribution)?;
        self.exchange(id, None, folded);
        Some(id)
    }

    fn remove(&mut self, id: PortId, folded: &mut Folded) {
        let before = self.ledger.replace(id, None);
        self.exchange(id, before, folded);
        self.ledger.release(id);
    }

    fn replace(&mut self, id: PortId, contribution: Contribution, folded: &mut Folded) {
        let Some(known) = self.ledger.get(id) else { return };
        if *known == contribution {
            return;
        }
        let news = contribution
            .events
            .iter()
            .filter(|event| !known.events.contains(event));
        folded.events.extend(news.cloned());
        if precedence(known, &contribution).is_eq() {
            let before = self.ledger.replace(id, Some(contribution));
            self.exchange(id, before, folded);
        } else {
            // Its place among the claims is another now.
            let before = self.ledger.replace(id, None);
            self.exchange(id, before, folded);
            self.ledger.replace(id, Some(contribution));
            self.exchange(id, None, folded);
        }
    }

    /// Brings the claims from `before` to what the ledger has for a place now, and all others to what that leaves them.
    fn exchange(&mut self, id: PortId, before: Option<Contribution>, folded: &mut Folded) {
        let Some(family) = before.as_ref().or(self.ledger.get(id)).map(|c| c.key.family) else {
            return;
        };
        let state = &mut self.families[family.index()];
        let ledger = &self.ledger;
        let changes = &mut self.changes;
        let noted = &mut self.noted;
        let keys = |c: Option<&Contribution>| -> Vec<VirtualServerKey> {
            c.into_iter()
                .flat_map(|c| &c.frontends)
                .map(|claim| claim.virtual_server.key)
                .collect()
        };
        let (old_keys, new_keys) = (keys(before.as_ref()), keys(ledger.get(id)));
        let held_before: Vec<VirtualServerKey> = state.held_by(id, &old_keys);
        // Others that a key comes to or is taken from, with what they held until now.
        let mut others: BTreeMap<PortId, Vec<VirtualServerKey>> = BTreeMap::new();
        let mut note_other = |state: &FamilyState, other: PortId| {
            others
                .entry(other)
                .or_insert_with(|| state.held_by(other, &keys(ledger.get(other))));
        };
        for key in old_keys.iter().filter(|key| !new_keys.contains(key)) {
            folded.map_entries += 1;
            if state.contested.contains(key) {
                noted.entry(*key).or_insert_with(|| state.conflicts(*key, ledger));
            }
            let next = state
                .virtual_servers
                .get(key)
                .filter(|claims| claims.first() == id);
            if let Some(next) = next.and_then(|claims| claims.others().first().copied()) {
                note_other(state, next);
            }
            if release(&mut state.virtual_servers, key, id) != Released::Nothing {
                changes.note(|keys| _ = keys.virtual_servers.insert(*key));
            }
            if state
                .virtual_servers
                .get(key)
                .is_none_or(|claims| claims.others().is_empty())
            {
                state.contested.remove(key);
            }
        }
        let mut is_uncontested = before.is_none();
        for key in new_keys.iter().filter(|key| !old_keys.contains(key)) {
            folded.map_entries += 1;
            match state.virtual_servers.entry(*key) {
                // Nearly always: nobody else wants it.
                btree_map::Entry::Vacant(entry) => _ = entry.insert(Claims::of(id)),
                btree_map::Entry::Occupied(entry) => {
                    let holder = entry.get().first();
                    is_uncontested = false;
                    noted.entry(*key).or_insert_with(|| state.conflicts(*key, ledger));
                    note_other(state, holder);
                    state.contested.insert(*key);
                    if !claim(&mut state.virtual_servers, *key, id, ledger).is_first() {
                        continue;
                    }
                }
            }
            changes.note(|keys| _ = keys.virtual_servers.insert(*key));
        }
        // The same key with other settings or servers.
        if let (Some(old), Some(new)) = (&before, ledger.get(id)) {
            for claim in &new.frontends {
                let key = claim.virtual_server.key;
                let same = |c: &&FrontendClaim| c.virtual_server.key == key;
                let old_claim = old.frontends.iter().find(same);
                let differs = old_claim.is_some_and(|old| {
                    old.virtual_server != claim.virtual_server || old.real_servers != claim.real_servers
                });
                if differs && held_before.contains(&key) {
                    folded.map_entries += 1;
                    changes.note(|keys| _ = keys.virtual_servers.insert(key));
                }
            }
        }
        let held_now = if is_uncontested {
            new_keys
        } else {
            state.held_by(id, &new_keys)
        };
        let mut moves = Moves {
            state,
            ledger,
            changes,
            folded,
            family,
        };
        moves.exchange(
            id,
            before.as_ref().map(|c| (c, &*held_before)),
            ledger.get(id).map(|c| (c, &*held_now)),
        );
        for (other, held_before) in others {
            let Some(contribution) = ledger.get(other).filter(|_| other != id) else {
                continue;
            };
            let held_now = moves.state.held_by(other, &keys(Some(contribution)));
            moves.exchange(
                other,
                Some((contribution, &held_before)),
                Some((contribution, &held_now)),
            );
        }
        moves.health_checks(id, before.as_ref(), ledger.get(id));
    }

    /// What changed since this was asked last.
    pub fn take_changes(&mut self) -> Changes {
        std::mem::take(&mut self.changes)
    }

    /// The families that are served.
    pub fn families(&self) -> impl Iterator<Item = Family> + '_ {
        self.config.families.iter().copied()
    }

    /// The configuration folded in.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The virtual servers of a family that should be there, by key.
    pub fn virtual_servers(&self, family: Family) -> impl Iterator<Item = WantedServer<'_>> {
        let servers = &self.families[family.index()].virtual_servers;
        servers
            .iter()
            .filter_map(|(key, claims)| self.wanted(key, claims))
    }

    /// The virtual server of a key, if it should be there.
    #[must_use]
    pub fn virtual_server(&self, key: &VirtualServerKey) -> Option<WantedServer<'_>> {
        let family = Family::of(key.address()?);
        self.wanted(key, self.families[family.index()].virtual_servers.get(key)?)
    }

    fn wanted(&self, key: &VirtualServerKey, claims: &Claims) -> Option<WantedServer<'_>> {
        let owner = self.ledger.get(claims.first())?;
        let claim = owner
            .frontends
            .iter()
            .find(|claim| claim.virtual_server.key == *key)?;
        Some(WantedServer {
            virtual_server: &claim.virtual_server,
            real_servers: &claim.real_servers,
            entries: &claim.entries,
            owner: &owner.key,
        })
    }

    /// The addresses of a family that the dummy link must carry, sorted. The prefix length is the full one.
    pub fn addresses(&self, family: Family) -> impl Iterator<Item = IpAddr> + '_ {
        let entries = &self.families[family.index()].sets[SetId::IpvsIps.index()];
        entries.keys().filter_map(address)
    }

    /// Whether the dummy link must carry an address.
    #[must_use]
    pub fn has_address(&self, address: IpAddr) -> bool {
        self.set(SetId::IpvsIps, Family::of(address))
            .contains(&Entry::ip(address))
    }

    /// All sets of a family, in kube-proxy's order.
    pub fn sets(&self, family: Family) -> impl Iterator<Item = WantedSet<'_>> {
        SetId::ALL.into_iter().map(move |id| self.set(id, family))
    }

    /// One set of a family.
    #[must_use]
    pub fn set(&self, id: SetId, family: Family) -> WantedSet<'_> {
        WantedSet {
            id,
            definition: id.definition(family),
            entries: &self.families[family.index()].sets[id.index()],
        }
    }

    /// The frontends of a family that processes of this node must not reach, sorted.
    pub fn blocked(&self, family: Family) -> impl Iterator<Item = &Blocked> {
        self.families[family.index()].blocked.keys()
    }

    /// The health-check node ports of a family, by port.
    pub fn health_checks(&self, family: Family) -> impl Iterator<Item = &HealthCheck> {
        let checks = &self.families[family.index()].health_checks;
        checks
            .values()
            .filter_map(|claims| self.ledger.get(claims.first())?.health_check.as_ref())
    }

    /// The IPVS timeouts; those that are zero are left alone.
    #[must_use]
    pub fn ipvs_timeouts(&self) -> IpvsTimeouts {
        self.config.ipvs_timeouts
    }

    /// The contribution folded in last for a service port.
    #[must_use]
    pub fn contribution(&self, key: &ServicePortKey) -> Option<&Contribution> {
        let ids = self.ports_of.get(&key.name.service)?;
        ids.iter()
            .filter_map(|&id| self.ledger.get(id))
            .find(|contribution| contribution.key == *key)
    }

    /// Everything an operator should know about the present state of Services on this node, sorted.
    #[must_use]
    pub fn events(&self) -> Vec<Event> {
        let mut events: Vec<Event> = self.ledger.iter().flat_map(|c| &c.events).cloned().collect();
        for state in &self.families {
            for key in &state.contested {
                let Some(claims) = state.virtual_servers.get(key) else {
                    continue;
                };
                let losers = claims.others().iter();
                events
                    .extend(losers.filter_map(|&loser| conflict(&self.ledger, *key, claims.first(), loser)));
            }
            for (&port, claims) in &state.health_checks {
                let losers = claims.others().iter();
                events.extend(
                    losers.filter_map(|&loser| {
                        health_check_conflict(&self.ledger, port, claims.first(), loser)
                    }),
                );
            }
        }
        events.sort();
        events.dedup();
        events
    }
}

/// What to say about a frontend that lost its virtual server.
fn conflict(ledger: &Ledger, key: VirtualServerKey, winner: PortId, loser: PortId) -> Option<Event> {
    let owner = &ledger.get(winner)?.key;
    let loser = ledger.get(loser)?;
    let claim = loser
        .frontends
        .iter()
        .find(|claim| claim.virtual_server.key == key)?;
    let reason = Reason::Conflict {
        kind: claim.kind,
        address: key.address()?,
        port: key.port()?,
        protocol: loser.key.name.protocol,
        owner: owner.name.clone(),
    };
    Some(Event::service(loser.key.name.service.clone(), reason))
}

/// What to say about a Service that lost its health-check node port to another.
fn health_check_conflict(ledger: &Ledger, port: u16, winner: PortId, loser: PortId) -> Option<Event> {
    let owner = &ledger.get(winner)?.key.name.service;
    let loser = &ledger.get(loser)?.key.name.service;
    let reason = Reason::HealthCheckConflict {
        port,
        owner: owner.clone(),
    };
    (loser != owner).then(|| Event::service(loser.clone(), reason))
}

impl FamilyState {
    /// What to say about all that want a virtual server and do not get it.
    fn conflicts(&self, key: VirtualServerKey, ledger: &Ledger) -> Vec<Event> {
        let Some(claims) = self.virtual_servers.get(&key) else {
            return Vec::new();
        };
        let losers = claims.others().iter();
        losers
            .filter_map(|&loser| conflict(ledger, key, claims.first(), loser))
            .collect()
    }

    /// Which of these keys a place has.
    fn held_by(&self, id: PortId, keys: &[VirtualServerKey]) -> Vec<VirtualServerKey> {
        let held = |key: &&VirtualServerKey| self.virtual_servers.get(key).is_some_and(|c| c.first() == id);
        keys.iter().filter(held).copied().collect()
    }
}

/// A key that follows from holding virtual servers.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Following<'a> {
    Entry(SetId, &'a Entry),
    Blocked(Blocked),
}

/// What a contribution comes to with the virtual servers it has: sorted, each once.
fn following<'a>(contribution: &'a Contribution, held: &[VirtualServerKey]) -> Vec<Following<'a>> {
    let mut keys: Vec<Following<'a>> = Vec::with_capacity(contribution.entries.len() + 4);
    let entry = |(set, entry): &'a (SetId, Entry)| Following::Entry(*set, entry);
    keys.extend(contribution.entries.iter().map(entry));
    for claim in contribution
        .frontends
        .iter()
        .filter(|claim| held.contains(&claim.virtual_server.key))
    {
        keys.extend(claim.entries.iter().map(entry));
        keys.extend(claim.blocked.map(Following::Blocked));
    }
    keys.sort_unstable();
    keys.dedup();
    keys
}

/// The address that an entry of [`SetId::IpvsIps`] names.
fn address(entry: &Entry) -> Option<IpAddr> {
    match entry.element() {
        Element::Ip(address) => Some(*address),
        _ => None,
    }
}

/// Moves claims on keys that follow from virtual servers.
struct Moves<'a> {
    state: &'a mut FamilyState,
    ledger: &'a Ledger,
    changes: &'a mut Changes,
    folded: &'a mut Folded,
    family: Family,
}

impl Moves<'_> {
    fn exchange(
        &mut self,
        id: PortId,
        before: Option<(&Contribution, &[VirtualServerKey])>,
        now: Option<(&Contribution, &[VirtualServerKey])>,
    ) {
        let before = before.map_or_else(Vec::new, |(contribution, held)| following(contribution, held));
        let now = now.map_or_else(Vec::new, |(contribution, held)| following(contribution, held));
        for key in before.iter().filter(|key| now.binary_search(key).is_err()) {
            self.release(id, *key);
        }
        for key in now.iter().filter(|key| before.binary_search(key).is_err()) {
            self.claim(id, *key);
        }
    }

    fn claim(&mut self, id: PortId, key: Following<'_>) {
        self.folded.map_entries += 1;
        let family = self.family;
        match key {
            Following::Entry(set, entry) => {
                let entries = &mut self.state.sets[set.index()];
                let was_empty = entries.is_empty();
                if claim(entries, entry.clone(), id, self.ledger) == Claimed::Alone {
                    self.note_entry(set, entry, was_empty);
                }
            }
            Following::Blocked(blocked) => {
                if claim(&mut self.state.blocked, blocked, id, self.ledger) == Claimed::Alone {
                    self.changes.note(|keys| _ = keys.rules.insert(family));
                }
            }
        }
    }

    fn release(&mut self, id: PortId, key: Following<'_>) {
        self.folded.map_entries += 1;
        let family = self.family;
        match key {
            Following::Entry(set, entry) => {
                let entries = &mut self.state.sets[set.index()];
                if release(entries, entry, id) == Released::Gone {
                    let is_empty = entries.is_empty();
                    self.note_entry(set, entry, is_empty);
                }
            }
            Following::Blocked(blocked) => {
                if release(&mut self.state.blocked, &blocked, id) == Released::Gone {
                    self.changes.note(|keys| _ = keys.rules.insert(family));
                }
            }
        }
    }

    /// Notes an entry that came or went. Which sets are empty decides which rules there are.
    fn note_entry(&mut self, set: SetId, entry: &Entry, rules: bool) {
        let family = self.family;
        self.changes.note(|keys| {
            keys.entries.insert((family, set, entry.clone()));
            if set == SetId::IpvsIps {
                keys.addresses.extend(address(entry));
            }
            if rules {
                keys.rules.insert(family);
            }
        });
    }

    fn health_checks(&mut self, id: PortId, before: Option<&Contribution>, now: Option<&Contribution>) {
        let check = |c: Option<&Contribution>| c.and_then(|c| c.health_check.clone());
        let (before, now) = (check(before), check(now));
        if before == now {
            return;
        }
        let checks = &mut self.state.health_checks;
        let port = |check: &Option<HealthCheck>| check.as_ref().map(|check| check.port.get());
        let (old, new) = (port(&before), port(&now));
        if old != new {
            if let Some(port) = old {
                self.folded.map_entries += 1;
                release(checks, &port, id);
            }
            if let Some(port) = new {
                self.folded.map_entries += 1;
                let (winner, loser) = match claim(checks, port, id, self.ledger) {
                    Claimed::Alone => (id, None),
                    Claimed::Over(displaced) => (id, Some(displaced)),
                    Claimed::Behind(winner) => (winner, Some(id)),
                };
                let event = loser.and_then(|loser| health_check_conflict(self.ledger, port, winner, loser));
                self.folded.events.extend(event);
            }
        }
        let family = self.family;
        let ports = old.into_iter().chain(new).map(|port| (family, port));
        self.changes.note(|keys| keys.health_checks.extend(ports));
    }
}
