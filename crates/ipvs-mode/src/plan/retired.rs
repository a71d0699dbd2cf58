//! Steps that remove everything that is owned from a node that IPVS mode does not serve any more.
//!
//! If another mode serves the node, connections end before. New connections do not reach IPVS: the rules of the other mode translate them before. A Service that the other mode does not serve yet keeps
//! its virtual servers as they are ([`State::hold`]). Each plan removes what nothing needs any more; the
//! next one follows at once:
//!
//! 1. Real servers get weight 0, with a deadline if they have a limit.
//! 2. Virtual servers without connections are deleted, then their set entries, so that `KUBE-IPVS-FILTER` rejects connections to their
//!    addresses. Flows to UDP virtual servers are deleted before; the next packet of a client begins one that the other mode translates.
//! 3. Addresses without virtual servers are removed unless connections of this node use them as their source.
//! 4. If there are no more of these: jumps and chains, then the sets that the chains named, last the link. A node without the link has
//!    nothing of IPVS mode. Chains stay that another mode has too, of which anything is on the node: their rules are its own then.
//!
//! If no mode serves the node, one plan removes everything, in the same order except that addresses are removed first. A step that fails
//! prevents only those that would fail too, and those that a later removal needs: the ledger and the link stay as long as a virtual server does.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use kernlink_dummylink::Operation as LinkOperation;
use kernlink_engine::data_path::BuilderOf;
use kernlink_engine::plan::{Needs, Subject};
use kernlink_host::flows::{DeleteFlows, FlowDestination};
use kernlink_ipset::{Entry, Operation as SetOperation, SetName};
use kernlink_iptables_restore::{ChainName, Operation as RulesOperation, Restore, Ruleset, Table};
use kernlink_ipvs::{Operation, Protocol, RealServerKey, VirtualServerKey};
use kernlink_netfilter::{Jump, Owned, kept_chain, removal};
use kernlink_services::Family;

use crate::drain::{self, Drain, refuses_at_weight_0};
use crate::key::Key;
use crate::order::Phase;
use crate::ownership::FRONTEND_SETS;
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
        let deleted = planner.virtual_servers();
        planner.rest(deleted);
    } else if planner.state.has_served() {
        planner.virtual_servers();
        planner.addresses();
    } else if planner.state.are_tables_read() {
        planner.rest([Vec::new(), Vec::new()]);
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

    /// Drains and deletes virtual servers. Returns the deletions, by family.
    fn virtual_servers(&mut self) -> [Vec<Need>; 2] {
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
        let flows = self.udp_flows(&unused);
        let mut deletions = [Vec::new(), Vec::new()];
        for key in unused {
            let is_udp = key.protocol() == Some(Protocol::Udp) && !self.is_at_once();
            let family = key.address().map(Family::of);
            let flows = flows.iter().filter(|(of, _)| is_udp && family == Some(*of));
            let needs = Needs::all(flows.map(|(_, need)| need.clone()));
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
            if let Some(family) = family {
                deletions[family.index()].push(deleted);
            }
        }
        deletions
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

    /// The deletions of flows to UDP virtual servers, by family.
    fn udp_flows(&mut self, unused: &[VirtualServerKey]) -> Vec<(Family, Need)> {
        let mut needs = Vec::new();
        for family in Family::ALL {
            let udp = unused.iter().filter(|key| key.protocol() == Some(Protocol::Udp));
            let of_family = udp.filter_map(udp_address);
            let destinations: Vec<FlowDestination> = of_family
                .filter(|address| Family::of(address.ip()) == family)
                .map(FlowDestination::withdrawn)
                .collect();
            if destinations.is_empty() {
                continue;
            }
            let operation = DeleteFlows::new(family, destinations).keeping_translated();
            // The next packet of a client begins a flow that no other mode translates.
            let phase = if self.is_at_once() {
                Phase::DeleteFlows
            } else {
                Phase::DeleteFlowsFirst
            };
            let need = self.push(phase, Key::Flows(family), operation, Needs::none());
            needs.push((family, need));
        }
        needs
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

    /// Removes the addresses without virtual servers, or all.
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
        addresses.retain(|key| {
            let address = key.address();
            let is_unused = || !is_used(&address) || self.state.is_overdue(&address);
            is_at_once || (unserved.contains(&address) && is_unused())
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

    /// Removes jumps, chains, sets and the link, the last of them after these deletions of virtual servers.
    fn rest(&mut self, deleted: [Vec<Need>; 2]) {
        let is_at_once = self.is_at_once();
        let mut needs = Vec::new();
        let mut used: BTreeSet<SetName> = BTreeSet::new();
        for family in Family::ALL {
            if let ObservedRules::Saved(saved) = &self.state.chains[family.index()].observed {
                let removal = chains(saved, family, self.state);
                used.extend(removal.used_sets);
                self.staying.extend(removal.kept.iter().map(kept_chain));
                if !removal.restore.is_empty() {
                    let operation = RulesOperation::Restore(removal.restore);
                    needs.push(self.push(Phase::RemoveRules, Key::Rules(family), operation, Needs::none()));
                }
            }
        }
        let mut sets: Vec<(Key, SetName)> = Vec::new();
        let owned = self.state.sets.iter_observed();
        sets.extend(owned.map(|(&(family, id), set)| (Key::Set(family, id), set.name)));
        let temporary = self.state.temporary_sets.iter_observed();
        sets.extend(temporary.map(|(&(family, id), ())| {
            (
                Key::TemporarySet(family, id),
                replacement::temporary_of(family, id),
            )
        }));
        for family in Family::ALL {
            let set = self.state.drains.set(family);
            sets.extend(set.map(|set| (Key::DrainSet(family), set.name)));
        }
        // The ledger last: until then another process recognises what is left by it.
        let is_ledger = |key: &Key| matches!(key, Key::Set(_, SetId::Ledger));
        sets.sort_by(|(a, _), (b, _)| (is_ledger(a), a).cmp(&(is_ledger(b), b)));
        let (staying, removed): (Vec<_>, Vec<_>) =
            sets.into_iter().partition(|(_, name)| used.contains(name));
        for (key, name) in removed {
            let before = match key {
                Key::Set(family, SetId::Ledger) => &*deleted[family.index()],
                _ => &[],
            };
            let needs_of_set = Needs::all(needs.iter().chain(before).cloned());
            let operation = SetOperation::destroy(name);
            let need = self.push(Phase::RemoveSets, key, operation, needs_of_set);
            if !is_at_once {
                needs.push(need);
            }
        }
        if is_at_once {
            self.flush(staying, &deleted);
            needs = deleted.concat();
        } else if !staying.is_empty() && self.steps > 0 {
            // A rule that iptables mode removes in the same plan may still name a set: the next plan compares it again.
            return;
        }
        if let Some(link) = self
            .state
            .config()
            .link()
            .filter(|link| self.state.links.is_observed(link))
        {
            let operation = LinkOperation::DeleteLink(link);
            self.push(Phase::RemoveLink, Key::Link(link), operation, Needs::all(needs));
        }
    }

    /// Empties sets that rules name which stay.
    fn flush(&mut self, staying: Vec<(Key, SetName)>, deleted: &[Vec<Need>; 2]) {
        for (key, name) in staying {
            let has_entries = match &key {
                Key::Set(family, set) => {
                    let entries = &self.state.entries[family.index()][set.index()];
                    entries.iter_observed().len() > 0
                }
                _ => false,
            };
            if has_entries {
                let needs = match key {
                    Key::Set(family, SetId::Ledger) => Needs::all(deleted[family.index()].iter().cloned()),
                    _ => Needs::none(),
                };
                let operation = SetOperation::Flush { set: name };
                self.push(Phase::RemoveSets, key, operation, needs);
            }
            self.staying
                .push(format!("set {name} stays: rules that stay name it"));
        }
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
