//! Reads the kernel: portal chains, and the addresses of the node.

use std::collections::{BTreeMap, BTreeSet};

use kernlink_base::ErrorChain;
use kernlink_host::flows::{Reading, read_flows};
use kernlink_iptables_restore::{Error as RulesError, Iptables, Ruleset, Save, Table};
use kernlink_netfilter::{rules_code, unreadable_rules};
use kernlink_services::{Event, Family};

use super::chains::PortalChain;
use super::error::Error;
use super::kernel::Kernel;
use super::key::{Key, RulesKey};
use super::rules::{key_of, rule_text};
use super::state::{ChainRule, Chains, PresentRules, State};

/// Reads everything that a plan depends on, except UDP flows ([`observe_flows`]), and makes all objects dirty. If the tables of a family cannot be read, its rules are not
/// changed.
pub(super) fn observe(state: &mut State, kernel: &mut Kernel) -> Result<Vec<Event>, Error> {
    // No other program changes the sockets of this process.
    state.listeners.set_all_dirty();
    state.claims.set_all_dirty();
    let mut events = Vec::new();
    for family in Family::ALL {
        if !state.managed.contains(&family) && !has_leftovers(state, kernel, family) {
            continue;
        }
        events.extend(observe_family(state, kernel, family));
    }
    Ok(events)
}

/// Whether an earlier process left portal rules in a family that is not configured: from now on it is managed, so that they are removed. Each
/// such family is searched until it could be read once.
fn has_leftovers(state: &mut State, kernel: &mut Kernel, family: Family) -> bool {
    if state.is_searched[family.index()] {
        return false;
    }
    let tables = match read(&mut *kernel.rules, family) {
        Ok(tables) => tables,
        // Without the tables there is no rule.
        Err(error) => {
            state.is_searched[family.index()] = error.is_unsupported();
            return false;
        }
    };
    let has_rules = PortalChain::ALL.iter().copied().any(|chain| {
        let found = tables.chain(chain.table(), &chain.name());
        found.is_some_and(|found| found.rules().next().is_some())
    });
    state.is_searched[family.index()] = has_rules || is_readable(&tables);
    if has_rules {
        state.managed.insert(family);
    }
    has_rules
}

/// Reads the UDP flows to portals after the rules were read first: an earlier process may have ended between a change of rules and the
/// deletion of the flows that it made stale. Those to node ports are found by the addresses of the node. If they cannot be read, the next listing tries again.
pub(super) fn observe_flows(state: &mut State, kernel: &mut Kernel) -> Option<Event> {
    if state.flows.reading() == Reading::Done {
        return None;
    }
    let read = if state.has_udp_rules() {
        read_flows(&mut *kernel.conntrack, |destination| {
            state.is_captured(destination)
        })
    } else {
        // Whether the kernel has the module.
        kernel.conntrack.totals().map(|_| BTreeSet::new())
    };
    state.flows.record_reading(read)
}

/// Reads the tables of the families of some keys again.
pub(super) fn observe_keys(state: &mut State, kernel: &mut Kernel, keys: &[Key]) {
    let families: BTreeSet<Family> = keys
        .iter()
        .filter_map(|key| match key {
            Key::Chains(family, _) => Some(*family),
            Key::Rules(key) => Some(key.family),
            Key::Listener(_) | Key::Claim(_) | Key::Flows(_) => None,
        })
        .collect();
    for family in families {
        observe_again(state, kernel, family);
    }
    if state.flows.reading() == Reading::Due {
        // The next listing reports what cannot be read.
        observe_flows(state, kernel);
    }
}

/// Reads the tables of a family again. If they cannot be read, the other family is not affected.
pub(super) fn observe_again(state: &mut State, kernel: &mut Kernel, family: Family) {
    let was_readable = state.chains[family.index()].is_readable;
    match read(&mut *kernel.rules, family) {
        Ok(tables) => {
            if was_readable {
                state.events.extend(unreadable_rules(&tables, family));
            }
            state.observe_tables(family, &tables);
        }
        Err(error) => {
            let event = record_unread(state, family, &error);
            // Otherwise the last listing reported it.
            state.events.extend(was_readable.then_some(event));
        }
    }
}

fn observe_family(state: &mut State, kernel: &mut Kernel, family: Family) -> Vec<Event> {
    let mut events = Vec::new();
    match read(&mut *kernel.rules, family) {
        Ok(tables) => {
            events.extend(unreadable_rules(&tables, family));
            state.observe_tables(family, &tables);
        }
        Err(error) => events.push(record_unread(state, family, &error)),
    }
    events
}

/// Records that the tables of a family cannot be read. Nothing of the family is changed until they can.
fn record_unread(state: &mut State, family: Family, error: &RulesError) -> Event {
    state.chains[family.index()].is_readable = false;
    state.is_unread[family.index()] = true;
    state.read_later(family, error.is_unsupported());
    let text = format!(
        "{family} tables cannot be read, portal rules are not changed: {}",
        ErrorChain(error)
    );
    Event::host(rules_code(error), text)
}

fn read(iptables: &mut dyn Iptables, family: Family) -> Result<Ruleset, RulesError> {
    let mut tables = Ruleset::new();
    for table in [Table::Nat, Table::Filter] {
        tables.merge(iptables.save(&Save::table(family, table).lenient())?);
    }
    Ok(tables)
}

/// Whether the tool could print both tables.
fn is_readable(tables: &Ruleset) -> bool {
    let mut all = [Table::Nat, Table::Filter].into_iter();
    !all.any(|table| tables.is_unreadable(table))
}

impl State {
    fn observe_tables(&mut self, family: Family, tables: &Ruleset) {
        let mut chains = Chains {
            is_readable: is_readable(tables),
            ..Chains::default()
        };
        let mut rules: BTreeMap<RulesKey, PresentRules> = BTreeMap::new();
        let mut ports = Vec::new();
        for &chain in PortalChain::ALL {
            let (from, jump, _) = chain.jump();
            let built_in = tables.chain(chain.table(), &from);
            if built_in.is_some_and(|from| from.contains(&jump, family)) {
                chains.jumps.insert(chain);
            }
            let Some(found) = tables.chain(chain.table(), &chain.name()) else {
                continue;
            };
            chains.present.insert(chain);
            if !found.unreadable.is_empty() {
                chains.unreadable.insert(chain);
            }
            for rule in found.rules() {
                let (key, listening) = key_of(family, chain, rule);
                if let Some(listening) = listening.filter(|_| chain.table() == Table::Nat) {
                    ports.push(((family, key.transport, key.address, key.port), listening));
                }
                let text = rule_text(rule, family);
                rules.entry(key).or_default().add(ChainRule { chain, text });
            }
        }
        self.is_unread[family.index()] = !chains.is_readable;
        if chains.is_readable {
            self.read_again[family.index()] = None;
        } else {
            self.read_later(family, false);
        }
        self.rules[family.index()].observe_all(rules);
        let was_readable = std::mem::replace(&mut self.chains[family.index()], chains).is_readable;
        for table in [Table::Nat, Table::Filter] {
            self.dirty_chains.insert((family, table));
        }
        let is_readable = self.chains[family.index()].is_readable;
        if is_readable && !was_readable {
            // Listening ports were not closed while rules may have led to them.
            self.listeners.set_all_dirty();
        }
        if is_readable && !std::mem::replace(&mut self.is_recorded[family.index()], true) {
            self.flows.read_again();
            for (key, port) in ports {
                if !self.recorded.contains_key(&key) {
                    self.record_port(key, port);
                }
            }
        }
    }
}
