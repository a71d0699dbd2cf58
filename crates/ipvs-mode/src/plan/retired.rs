//! Steps that remove everything that is owned from a node that IPVS mode does not serve any more.
//!
//! If another mode serves the node, connections end before. New connections do not reach IPVS: the rules of the other mode translate them before. A
//! Service that the other mode does not serve yet keeps its virtual servers as they are ([`State::hold`]). Each plan removes what nothing needs any
//! more; the next one follows at once:
//!
//! 1. Real servers get weight 0, with a deadline if they have a limit.
//! 2. Virtual servers without connections are deleted, then their set entries, so that `KUBE-IPVS-FILTER` rejects connections to their
//!    addresses. Flows to UDP virtual servers are deleted before; the next packet of a client begins one that the other mode translates.
//! 3. Addresses without virtual servers are removed unless connections of this node use them as their source.
//! 4. If there are no more of these: jumps and chains, then the sets that the chains named, last the link. A node without the link has
//!    nothing of IPVS mode. Chains stay that another mode has too, of which anything is on the node: their rules are its own then. All of this
//!    waits until the tables of all families can be read.
//!
//! If no mode serves the node, one plan removes everything, in the same order except that addresses are removed first. A step that fails
//! prevents only those that would fail too, and those that a later removal needs: what identifies a virtual server as owned stays as long as the
//! virtual server does, and so does the link. That is the ledger; in a family without one, the sets of frontends and node ports, and addresses
//! that no set names. They also stay until the flows to UDP virtual servers are deleted: by them a later removal finds these flows.
//!
//! A family that has virtual servers stays as it is if it is not known which of them are owned.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use kernlink_dummylink::{AddressKey, Operation as LinkOperation};
use kernlink_engine::data_path::BuilderOf;
use kernlink_engine::plan::{Needs, Subject};
use kernlink_host::flows::{DeleteFlows, FlowDestination};
use kernlink_ipset::{Entry, Operation as SetOperation, SetName};
use kernlink_iptables_restore::{ChainName, Operation as RulesOperation, Restore, Ruleset, Table};
use kernlink_ipvs::{Operation, Protocol, RealServerKey, VirtualServerKey};
use kernlink_netfilter::{Jump, Owned, kept_chain, removal};
use kernlink_services::Family;

use crate::drain::{self, Drain, refuses_at_weight_0};
use crate::facts::{Facts, has_ledger};
use crate::key::Key;
use crate::order::Phase;
use crate::ownership::{FRONTEND_SETS, identifying_sets, is_leftover};
use crate::replacement;
use crate::rules;
use crate::sets::{SetId, of_virtual_server};
use crate::state::{ObservedRealServer, ObservedRules, ObservedServer, State, udp_address};

type Need = kernlink_engine::plan::Need<Key>;

/// Adds the steps.
pub(crate) fn plan(state: &mut State, builder: &mut BuilderOf<'_, State>) {
    if !state.retired.as_ref().is_some_and(|retired| retired.is_dirty) {
        return;
    }
    let mut planner = Planner {
        state,
        builder,
        steps: 0,
        drain_sets: [None, None],
        staying: Vec::new(),
    };
    if planner.is_at_once() {
        planner.addresses();
        let removed = planner.virtual_servers();
        planner.rest(&removed);
    } else if planner.state.has_served() {
        planner.virtual_servers();
        planner.addresses();
    } else if planner.state.are_tables_read() {
        planner.rest(&Default::default());
    }
    let (steps, staying) = (planner.steps, planner.staying);
    if let Some(retired) = &mut state.retired {
        retired.steps = steps;
        retired.staying = staying;
    }
}

struct Planner<'a, 'b, 'c> {
    state: &'a State,
    builder: &'b mut BuilderOf<'c, State>,
    /// The number of steps.
    steps: usize,
    /// The steps that create the sets of deadlines, by family.
    drain_sets: [Option<Need>; 2],
    /// What stays although it is owned, and why.
    staying: Vec<String>,
}

/// The steps that remove the virtual servers of a family.
#[derive(Default)]
struct RemovedServers {
    /// Their deletions.
    servers: Vec<(VirtualServerKey, Need)>,
    /// The deletion of the flows to those of UDP.
    flows: Option<Need>,
}

impl RemovedServers {
    /// What the removal of their last trace needs.
    fn needs(&self) -> impl Iterator<Item = Need> + '_ {
        let servers = self.servers.iter().map(|(_, need)| need);
        servers.chain(&self.flows).cloned()
    }
}

impl Planner<'_, '_, '_> {
    fn push(
        &mut self,
        phase: Phase,
        key: Key,
        operation: impl Into<crate::Operation>,
        needs: Needs<Key>,
    ) -> Need {
        let need = self.builder.push(phase, key, Subject::DataPath, operation, needs);
        self.steps += usize::from(matches!(need, Need::Step(_)));
        need
    }

    fn is_at_once(&self) -> bool {
        let retired = self.state.retired.as_ref();
        retired.is_some_and(|retired| retired.is_at_once)
    }

    /// Drains and deletes virtual servers. Returns the steps, by family.
    fn virtual_servers(&mut self) -> [RemovedServers; 2] {
        let servers = self.state.servers.iter_observed();
        let retired = self.state.retired.as_ref();
        let is_held = |key: &VirtualServerKey| retired.is_some_and(|retired| retired.held.contains_key(key));
        let owned = servers.filter(|(key, server)| server.is_owned && !is_held(key));
        let mut owned: Vec<(VirtualServerKey, &ObservedServer)> =
            owned.map(|(key, server)| (*key, server)).collect();
        owned.sort_unstable_by_key(|(key, _)| *key);
        let mut unused = Vec::new();
        for (key, server) in owned {
            let drain = self.drain(&key, server);
            let has_ended = |(real, known): &(RealServerKey, _)| self.has_ended(&key, *real, *known, drain);
            if drain == Drain::AtOnce || server.real_servers.iter().all(has_ended) {
                unused.push(key);
            } else {
                self.drain_real_servers(key, server, drain);
            }
        }
        let mut removed: [RemovedServers; 2] = Default::default();
        for family in Family::ALL {
            removed[family.index()].flows = self.udp_flows(family, &unused);
        }
        for key in unused {
            let Some(family) = key.address().map(Family::of) else {
                continue;
            };
            let of_family = &mut removed[family.index()];
            let is_udp = key.protocol() == Some(Protocol::Udp) && !self.is_at_once();
            let needs = Needs::all(of_family.flows.clone().filter(|_| is_udp));
            let operation = Operation::DeleteVirtualServer(key);
            let deleted = self.push(
                Phase::RemoveVirtualServers,
                Key::VirtualServer(key),
                operation,
                needs,
            );
            if !self.is_at_once() {
                self.remove_entries(&key, &deleted);
            }
            of_family.servers.push((key, deleted));
        }
        removed
    }

    /// How the real servers of a virtual server leave. UDP has no connections that end. A hash scheduler refuses no client here, because
    /// there are no new ones.
    fn drain(&self, key: &VirtualServerKey, server: &ObservedServer) -> Drain {
        let default = self.state.config().services.defaults.drain_timeout;
        let scheduled = &server.virtual_server;
        let limit = match self.state.servers.desired(key).map(|desired| desired.drain) {
            Some(Drain::Connections { limit }) => limit,
            Some(Drain::AtOnce) if !refuses_at_weight_0(scheduled.scheduler, scheduled.scheduler_flags) => {
                Some(Duration::ZERO)
            }
            _ => default,
        };
        if self.is_at_once() || key.protocol() == Some(Protocol::Udp) || limit == Some(Duration::ZERO) {
            Drain::AtOnce
        } else {
            Drain::Connections { limit }
        }
    }

    /// Whether a real server has no more connections, or its limit has passed.
    fn has_ended(
        &self,
        key: &VirtualServerKey,
        real: RealServerKey,
        known: ObservedRealServer,
        drain: Drain,
    ) -> bool {
        let drains = &self.state.drains;
        let deadline = drains.deadline(key, real.address).map(|deadline| deadline.at);
        let has_passed = |(at, now): (Instant, Instant)| at <= now;
        let is_limited = matches!(drain, Drain::Connections { limit: Some(_) });
        let is_over = is_limited && deadline.zip(drains.now()).is_some_and(has_passed);
        known.is_draining() && (drains.is_idle(*key, real) || is_over)
    }

    fn drain_real_servers(&mut self, key: VirtualServerKey, server: &ObservedServer, drain: Drain) {
        if let Drain::Connections { limit: Some(limit) } = drain {
            let addresses = server.real_servers.iter().map(|(real, _)| real.address);
            for address in addresses.collect::<BTreeSet<IpAddr>>() {
                self.add_deadline(&key, address, limit);
            }
        }
        for (real, known) in &server.real_servers {
            if !known.is_draining() {
                let operation = Operation::UpdateRealServer {
                    virtual_server: key,
                    real_server: known.draining(*real),
                };
                self.push(
                    Phase::RemoveRealServers,
                    Key::RealServer(key, *real),
                    operation,
                    Needs::none(),
                );
            }
        }
    }

    fn add_deadline(&mut self, key: &VirtualServerKey, address: IpAddr, limit: Duration) {
        let known = self.state.drains.deadline(key, address);
        let Some(entry) = drain::entry(key, address).filter(|_| known.is_none()) else {
            return;
        };
        let family = Family::of(address);
        let needs = Needs::all(self.drain_set(family));
        let entry = entry.with_timeout(drain::timeout(limit));
        let operation = SetOperation::ensure(drain::set_name(family), entry);
        self.push(
            Phase::AddDeadlines,
            Key::Deadline(*key, address),
            operation,
            needs,
        );
    }

    fn drain_set(&mut self, family: Family) -> Option<Need> {
        if self.state.drains.set(family).is_some() {
            return None;
        }
        if self.drain_sets[family.index()].is_none() {
            let operation = SetOperation::ensure_set(drain::definition(family));
            let need = self.push(Phase::Sets, Key::DrainSet(family), operation, Needs::none());
            self.drain_sets[family.index()] = Some(need);
        }
        self.drain_sets[family.index()].clone()
    }

    /// Deletes the flows to these UDP virtual servers of a family. At once also those to UDP frontends of which only an entry is left: an earlier
    /// removal deleted the virtual server, but not the flows.
    fn udp_flows(&mut self, family: Family, unused: &[VirtualServerKey]) -> Option<Need> {
        let retired = self.state.retired.as_ref()?;
        if retired.is_conntrack_missing {
            return None;
        }
        let of_servers = unused.iter().filter_map(udp_address);
        let mut addresses: BTreeSet<SocketAddr> = of_servers
            .filter(|address| Family::of(address.ip()) == family)
            .collect();
        // The next packet of a client begins a flow that no other mode translates.
        let phase = if retired.is_at_once {
            addresses.extend(self.left_over_flows(family));
            Phase::DeleteFlows
        } else {
            Phase::DeleteFlowsFirst
        };
        if addresses.is_empty() {
            return None;
        }
        let destinations = addresses.into_iter().map(FlowDestination::withdrawn);
        let operation = DeleteFlows::new(family, destinations).keeping_translated();
        Some(self.push(phase, Key::Flows(family), operation, Needs::none()))
    }

    /// The UDP frontends of a family that a set names and that have no virtual server.
    fn left_over_flows(&self, family: Family) -> Vec<SocketAddr> {
        let interfaces = self.state.interfaces.iter().map(|interface| interface.address);
        let node_addresses: Vec<IpAddr> = interfaces
            .filter(|address| Family::of(*address) == family)
            .collect();
        let mut addresses = Vec::new();
        for set in self.identifying_sets(family) {
            let entries = self.state.entries[family.index()][set.index()].iter_observed();
            let left_over = entries.map(|(entry, ())| self.state.left_over(*set, entry, &node_addresses));
            addresses.extend(left_over.flatten());
        }
        addresses
    }

    /// Removes the entries that admit connections to the frontend of a virtual server.
    fn remove_entries(&mut self, key: &VirtualServerKey, deleted: &Need) {
        let (Some(address), Some(entry)) = (key.address(), of_virtual_server(key)) else {
            return;
        };
        let family = Family::of(address);
        for set in FRONTEND_SETS {
            if self.state.entries[family.index()][set.index()].is_observed(&entry) {
                self.remove_entry(family, set, entry.clone(), deleted);
            }
        }
    }

    fn remove_entry(&mut self, family: Family, set: SetId, entry: Entry, need: &Need) {
        let operation = SetOperation::delete(set.name(family), entry.clone());
        let needs = Needs::all([need.clone()]);
        self.push(
            Phase::RemoveEntries,
            Key::Entry(family, set, entry),
            operation,
            needs,
        );
    }

    /// Removes the addresses without virtual servers. At once all, except those that alone identify a virtual server.
    fn addresses(&mut self) {
        let (Some(link), Some(retired)) = (self.state.config().link(), &self.state.retired) else {
            return;
        };
        let unserved = self.state.unserved_addresses();
        let is_used = |address: &IpAddr| {
            retired
                .sources
                .as_ref()
                .is_none_or(|sources| sources.contains(address))
        };
        let mut addresses: Vec<_> = self
            .state
            .addresses
            .iter_observed()
            .map(|(key, ())| *key)
            .collect();
        let is_at_once = self.is_at_once();
        let identifying = if is_at_once {
            self.identifying_addresses()
        } else {
            BTreeSet::new()
        };
        addresses.retain(|key| {
            let address = key.address();
            if is_at_once {
                return self.state.may_remove(Family::of(address)) && !identifying.contains(&address);
            }
            let is_unused = || !is_used(&address) || self.state.is_overdue(&address);
            unserved.contains(&address) && is_unused()
        });
        addresses.sort_unstable();
        for key in addresses {
            let operation = LinkOperation::DeleteAddress(link, key);
            let need = self.push(
                Phase::UnbindAddresses,
                Key::Address(key),
                operation,
                Needs::none(),
            );
            let family = Family::of(key.address());
            let entry = Entry::ip(key.address());
            if !is_at_once && self.state.entries[family.index()][SetId::IpvsIps.index()].is_observed(&entry) {
                self.remove_entry(family, SetId::IpvsIps, entry, &need);
            }
        }
    }

    /// The sets whose entries identify the virtual servers of a family as owned.
    fn identifying_sets(&self, family: Family) -> &'static [SetId] {
        identifying_sets(has_ledger(self.state, family))
    }

    /// The addresses that alone identify a virtual server as owned.
    fn identifying_addresses(&self) -> BTreeSet<IpAddr> {
        let facts = Facts::of(self.state);
        let servers = self.state.servers.iter_observed();
        let owned = servers.filter(|(_, server)| server.is_owned);
        let addresses = owned.filter_map(|(key, _)| key.address());
        let is_alone =
            |address: &IpAddr| !has_ledger(self.state, Family::of(*address)) && is_leftover(&facts, *address);
        addresses.filter(is_alone).collect()
    }

    /// Removes jumps, chains, sets and the link, the last of them after these steps.
    fn rest(&mut self, removed: &[RemovedServers; 2]) {
        let is_at_once = self.is_at_once();
        let families = Family::ALL.into_iter();
        let families: Vec<Family> = families.filter(|family| self.state.may_remove(*family)).collect();
        for family in Family::ALL.iter().filter(|family| !families.contains(family)) {
            let text = format!(
                "what IPVS mode left of {family} stays: it is not known which {family} virtual servers are owned"
            );
            self.staying.push(text);
        }
        let mut rules: [Option<Need>; 2] = [None, None];
        let mut used: BTreeSet<SetName> = BTreeSet::new();
        for family in families.iter().copied() {
            if let ObservedRules::Saved(saved) = &self.state.chains[family.index()].observed {
                let removal = chains(saved, family, self.state);
                used.extend(removal.used_sets);
                self.staying.extend(removal.kept.iter().map(kept_chain));
                if !removal.restore.is_empty() {
                    let operation = RulesOperation::Restore(removal.restore);
                    let need = self.push(Phase::RemoveRules, Key::Rules(family), operation, Needs::none());
                    rules[family.index()] = Some(need);
                }
            }
        }
        let sets = self.owned_sets(&families);
        let (staying, unused): (Vec<_>, Vec<_>) = sets.into_iter().partition(|set| used.contains(&set.name));
        let mut destroyed = Vec::new();
        for set in unused {
            let needs = Needs::all(
                rules[set.family.index()]
                    .iter()
                    .cloned()
                    .chain(set.needs(removed)),
            );
            let operation = SetOperation::destroy(set.name);
            destroyed.push(self.push(Phase::RemoveSets, set.key, operation, needs));
        }
        let needs: Vec<Need> = if is_at_once {
            self.flush(staying, removed);
            removed.iter().flat_map(RemovedServers::needs).collect()
        } else if !staying.is_empty() && self.steps > 0 {
            // A rule that iptables mode removes in the same plan may still name a set: the next plan compares it again.
            return;
        } else {
            rules.into_iter().flatten().chain(destroyed).collect()
        };
        let Some(link) = self.state.config().link() else {
            return;
        };
        if families.len() < Family::ALL.len() || !self.state.links.is_observed(&link) {
            return;
        }
        let identifying = if is_at_once {
            self.identifying_addresses()
        } else {
            BTreeSet::new()
        };
        for address in identifying {
            let Ok(key) = AddressKey::host(address) else {
                continue;
            };
            let of_address = removed.iter().flat_map(|removed| &removed.servers);
            let of_address = of_address.filter(|(server, _)| server.address() == Some(address));
            let needs = Needs::all(of_address.map(|(_, need)| need.clone()));
            let operation = LinkOperation::DeleteAddress(link, key);
            self.push(Phase::RemoveLink, Key::Address(key), operation, needs);
        }
        let operation = LinkOperation::DeleteLink(link);
        self.push(Phase::RemoveLink, Key::Link(link), operation, Needs::all(needs));
    }

    /// The owned sets of these families, in the order of their removal.
    fn owned_sets(&self, families: &[Family]) -> Vec<OwnedSet> {
        let mut sets = Vec::new();
        let owned = self.state.sets.iter_observed();
        sets.extend(owned.map(|(&(family, id), set)| OwnedSet {
            family,
            key: Key::Set(family, id),
            name: set.name,
            identifies: self.identifying_sets(family).contains(&id),
        }));
        let temporary = self.state.temporary_sets.iter_observed();
        sets.extend(temporary.map(|(&(family, id), ())| OwnedSet {
            family,
            key: Key::TemporarySet(family, id),
            name: replacement::temporary_of(family, id),
            identifies: false,
        }));
        for family in Family::ALL {
            let set = self.state.drains.set(family);
            sets.extend(set.map(|set| OwnedSet {
                family,
                key: Key::DrainSet(family),
                name: set.name,
                identifies: false,
            }));
        }
        sets.retain(|set| families.contains(&set.family));
        // The ledger last: until then another process recognises what is left by it.
        let is_ledger = |key: &Key| matches!(key, Key::Set(_, SetId::Ledger));
        sets.sort_by(|a, b| (is_ledger(&a.key), &a.key).cmp(&(is_ledger(&b.key), &b.key)));
        sets
    }

    /// Empties sets that rules name which stay.
    fn flush(&mut self, staying: Vec<OwnedSet>, removed: &[RemovedServers; 2]) {
        for set in staying {
            let may_have_entries = match &set.key {
                Key::Set(family, id) => {
                    let entries = &self.state.entries[family.index()][id.index()];
                    entries.iter_observed().len() > 0 || !self.state.is_set_known(*family, *id)
                }
                _ => false,
            };
            if may_have_entries {
                let needs = Needs::all(set.needs(removed));
                let operation = SetOperation::Flush { set: set.name };
                self.push(Phase::RemoveSets, set.key, operation, needs);
            }
            self.staying
                .push(format!("set {} stays: rules that stay name it", set.name));
        }
    }
}

/// A set that is removed.
struct OwnedSet {
    family: Family,
    key: Key,
    name: SetName,
    /// Whether its entries identify virtual servers as owned.
    identifies: bool,
}

impl OwnedSet {
    /// The steps before which its entries must stay.
    fn needs(&self, removed: &[RemovedServers; 2]) -> Vec<Need> {
        let of_family = Some(&removed[self.family.index()]).filter(|_| self.identifies);
        of_family.into_iter().flat_map(RemovedServers::needs).collect()
    }
}

/// The removal of chains of a family.
struct ChainRemoval {
    restore: Restore,
    /// The chains that stay, because foreign rules use them.
    kept: Vec<(Family, Table, ChainName)>,
    /// The sets that rules name which stay.
    used_sets: BTreeSet<SetName>,
}

fn chains(saved: &Ruleset, family: Family, state: &State) -> ChainRemoval {
    let mut restore = Restore::new(family);
    let (mut used_sets, mut kept) = (BTreeSet::new(), Vec::new());
    let is_kept = |table: Table, name: &ChainName| state.is_kept(family, table, name.as_str());
    let jumps = rules::jumps().into_iter();
    let jumps: Vec<Jump> = jumps
        .filter(|jump| rules::is_only_of_ipvs_mode(jump, is_kept))
        .collect();
    for table in [Table::Filter, Table::Nat] {
        let is_owned = |name: &ChainName| rules::is_chain_of_ipvs_mode(table, name) && !is_kept(table, name);
        let owned = Owned {
            is_owned: &is_owned,
            jumps: &jumps,
            rewritten: &[],
        };
        let removal = removal(saved, family, table, &owned);
        let staying = saved.table(table).into_iter().flat_map(|rules| rules.chains());
        let staying = staying.filter(|(name, _)| !is_owned(name) || removal.kept.contains(name));
        for (_, chain) in staying {
            let readable = chain.rules().map(ToString::to_string);
            let unreadable = chain.unreadable.values().map(|line| line.text.clone());
            for text in readable.chain(unreadable) {
                used_sets.extend(sets_in(&text));
            }
        }
        kept.extend(removal.kept.iter().map(|name| (family, table, *name)));
        if !removal.edits.is_empty() {
            *restore.table_mut(table) = removal.edits;
        }
    }
    ChainRemoval {
        restore,
        kept,
        used_sets,
    }
}

/// The sets that a rule names.
fn sets_in(rule: &str) -> impl Iterator<Item = SetName> {
    let words = rule.split_ascii_whitespace();
    let pairs = words.clone().zip(words.skip(1));
    let options = ["--match-set", "--add-set", "--del-set", "--map-set"];
    let names = pairs.filter(move |(option, _)| options.contains(option));
    names.filter_map(|(_, name)| SetName::new(name).ok())
}
