//! The steps that write rules. What has a successor is deleted with the write that adds it, or after it.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use kernlink_engine::Subject;
use kernlink_engine::plan::Needs;
use kernlink_iptables_restore::{Edit, Restore, Rule, Table};
use kernlink_services::Family;

use super::{Builder, Need, missing_chains};
use crate::data_path::chains::PortalChain;
use crate::data_path::key::{Key, Part, RulesKey};
use crate::data_path::operation::Write;
use crate::data_path::order::Phase;
use crate::data_path::rules::key_of;
use crate::data_path::state::{ChainRule, DesiredRules, PresentRules, State};
use crate::proxy::{ListenerKey, Transport};

/// The steps that write rules.
#[derive(Default)]
pub(super) struct Written {
    pub(super) steps: Vec<(RulesKey, Subject, Need)>,
    /// Those that delete rules about a listening port.
    deletions: BTreeMap<(Transport, u16), Vec<Need>>,
    /// Those that add rules of a node port.
    node_ports: BTreeMap<(Transport, u16), Vec<Need>>,
}

/// The rules of a key that differ.
struct Change<'a> {
    key: RulesKey,
    subject: Subject,
    desired: Option<&'a DesiredRules>,
    added: Vec<&'a ChainRule>,
    /// With the number of copies.
    deleted: Vec<(ChainRule, usize)>,
}

/// Adds the steps for the rules of a family.
pub(super) fn plan_rules(state: &State, family: Family, builder: &mut Builder<'_>) -> Written {
    let is_complete = |table: Table| missing_chains(state, family, table).iter().all(Vec::is_empty);
    let complete = [Table::Filter, Table::Nat].map(|table| (table, is_complete(table)));
    let mut changes = changes(state, family);
    changes.sort_by_cached_key(Change::order);
    let mut written = Written::default();
    for change in changes {
        let table = change.key.part.table();
        let mut needs = builder.after(&Key::Chains(family, table), complete.contains(&(table, true)));
        needs.extend(change.needs(state, &written, builder));
        let phase = if change.added.is_empty() {
            Phase::Deletions
        } else {
            Phase::Additions
        };
        let Some(write) = change.write() else {
            continue;
        };
        let subject = change.subject.clone();
        let need = builder.push(phase, Key::Rules(change.key), subject, write, Needs::all(needs));
        written.add(change, need);
    }
    written
}

impl Written {
    fn add(&mut self, change: Change<'_>, need: Need) {
        let key = change.key;
        for port in change.ports_of_deleted() {
            let of_port = self.deletions.entry((key.transport, port)).or_default();
            of_port.push(need.clone());
        }
        if key.part == Part::NodePorts && !change.added.is_empty() {
            let of_port = self.node_ports.entry((key.transport, key.port)).or_default();
            of_port.push(need.clone());
        }
        self.steps.push((key, change.subject, need));
    }

    /// The steps that delete the rules about a listening port.
    pub(super) fn deletions(&self, transport: Transport, port: u16) -> impl Iterator<Item = Need> {
        let of_port = self.deletions.get(&(transport, port));
        of_port.into_iter().flatten().cloned()
    }
}

fn changes(state: &State, family: Family) -> Vec<Change<'_>> {
    // The step that creates the chains empties these.
    let emptied = &state.chains[family.index()].unreadable;
    let none = PresentRules::default();
    let mut changes = Vec::new();
    for difference in state.rules[family.index()].differences() {
        let observed = difference.observed.unwrap_or(&none);
        let present = if emptied.is_empty() {
            Cow::Borrowed(observed)
        } else {
            Cow::Owned(observed.without(emptied))
        };
        let desired = difference.desired.map_or(&[][..], |desired| &desired.rules);
        let is_added = |rule: &&ChainRule| present.copies(rule) == 0;
        let surplus = present.iter().map(|(rule, copies)| {
            let kept = usize::from(desired.contains(rule));
            (rule, copies.saturating_sub(kept))
        });
        let surplus = surplus.filter(|(_, copies)| *copies > 0);
        let change = Change {
            key: *difference.key,
            subject: difference.subject,
            desired: difference.desired,
            added: desired.iter().filter(is_added).collect(),
            deleted: surplus.map(|(rule, copies)| (rule.clone(), copies)).collect(),
        };
        if !change.added.is_empty() || !change.deleted.is_empty() {
            changes.push(change);
        }
    }
    changes
}

impl Change<'_> {
    /// Traffic is admitted before rules lead it to the listening port, and until none does. The rules of a portal keep their order.
    fn order(&self) -> (u8, Part, Option<(ListenerKey, usize)>, RulesKey) {
        let rank = match (self.key.part, self.added.is_empty()) {
            (Part::Admission, false) => 0,
            (_, false) => 1,
            (Part::Portals | Part::NodePorts, true) => 2,
            (Part::Admission, true) => 3,
        };
        let place = self.desired.map(|desired| (desired.listener, desired.position));
        (rank, self.key.part, place, self.key)
    }

    /// What the step needs besides the chains.
    fn needs(&self, state: &State, written: &Written, builder: &Builder<'_>) -> Vec<Need> {
        let mut needs = Vec::new();
        if let Some(desired) = self.desired.filter(|_| !self.added.is_empty()) {
            let listener = desired.listener;
            if !state.listeners.is_observed(&listener) {
                needs.extend(builder.after(&Key::Listener(listener), false));
            }
            if let Some(claim) = desired.claim.filter(|claim| !state.claims.is_observed(claim)) {
                needs.extend(builder.after(&Key::Claim(claim), false));
            }
            return needs;
        }
        match self.key.part {
            // Rules for each address replace the one for every address, and the other way round.
            Part::NodePorts => {
                let replacing = written.node_ports.get(&(self.key.transport, self.key.port));
                needs.extend(replacing.into_iter().flatten().cloned());
            }
            Part::Admission => needs.extend(written.deletions(self.key.transport, self.key.port)),
            Part::Portals => {}
        }
        needs
    }

    /// Rules are added before others are deleted: the kernel applies the table as a whole, and no frontend is without a rule.
    fn write(&self) -> Option<Write> {
        let mut edits = Vec::new();
        for rule in &self.added {
            edits.push(Edit::append(rule.chain.name(), rule.text.parse::<Rule>().ok()?));
        }
        for (rule, copies) in &self.deleted {
            let text = rule.text.parse::<Rule>().ok()?;
            let delete = || Edit::delete(rule.chain.name(), text.clone());
            edits.extend((0..*copies).map(|_| delete()));
        }
        let mut restore = Restore::new(self.key.family);
        *restore.table_mut(self.key.part.table()) = edits;
        Some(Write {
            restore,
            key: Key::Rules(self.key),
            rules: self.desired.map(DesiredRules::written).unwrap_or_default(),
            chains: Vec::new(),
            jumps: Vec::new(),
        })
    }

    fn ports_of_deleted(&self) -> BTreeSet<u16> {
        let listening = |chain: PortalChain, text: &str| {
            let rule = text.parse::<Rule>().ok()?;
            key_of(self.key.family, chain, &rule).1
        };
        let deleted = self.deleted.iter();
        deleted
            .filter_map(|(rule, _)| listening(rule.chain, &rule.text))
            .collect()
    }
}
