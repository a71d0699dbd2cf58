//! The steps that write rules. What has a successor is deleted with the write that adds it, or after it.

use std::collections::{BTreeMap, BTreeSet};

use kernlink_iptables_restore::{Edit, Restore, Rule, Table};
use kernlink_proxier::Subject;
use kernlink_proxier::plan::Needs;
use kernlink_services::Family;

use super::{Builder, Need};
use crate::data_path::chains::PortalChain;
use crate::data_path::key::{Key, Part, RulesKey};
use crate::data_path::operation::Write;
use crate::data_path::order::Phase;
use crate::data_path::rules::key_of;
use crate::data_path::state::{ChainRule, DesiredRules, PresentRules, State};
use crate::proxy::{ListenerKey, Transport};

/// What steps of this plan open or create.
pub(super) struct Opened<'a> {
    pub(super) listeners: &'a BTreeMap<ListenerKey, Need>,
    pub(super) claims: &'a BTreeMap<ListenerKey, Need>,
    pub(super) chains: &'a BTreeMap<Table, Need>,
}

/// A step that writes rules.
pub(super) struct Written {
    pub(super) key: RulesKey,
    pub(super) subject: Subject,
    pub(super) need: Need,
    adds: bool,
    /// The listening ports to which rules that it deletes lead.
    deletes: BTreeSet<u16>,
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
pub(super) fn plan_rules(
    state: &State,
    family: Family,
    opened: &Opened<'_>,
    builder: &mut Builder<'_>,
) -> Vec<Written> {
    let mut changes = changes(state, family);
    changes.sort_by_cached_key(Change::order);
    let mut written: Vec<Written> = Vec::with_capacity(changes.len());
    for change in changes {
        let needs = change.needs(state, opened, &written);
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
        written.push(Written {
            key: change.key,
            adds: !change.added.is_empty(),
            deletes: change.ports_of_deleted(),
            subject: change.subject,
            need,
        });
    }
    written
}

/// The steps that delete the rules about a listening port.
pub(super) fn deletions(written: &[Written], transport: Transport, port: u16) -> impl Iterator<Item = Need> {
    let of_port = move |write: &&Written| write.key.transport == transport && write.deletes.contains(&port);
    written.iter().filter(of_port).map(|write| write.need.clone())
}

fn changes(state: &State, family: Family) -> Vec<Change<'_>> {
    // The step that creates the chains empties these.
    let emptied = &state.chains[family.index()].unreadable;
    let none = PresentRules::default();
    let mut changes = Vec::new();
    for difference in state.rules[family.index()].differences() {
        let present = difference.observed.unwrap_or(&none).without(emptied);
        let desired = difference.desired.map_or(&[][..], |desired| &desired.rules);
        let is_added = |rule: &&ChainRule| present.copies(rule) == 0;
        let surplus = present.iter().map(|(rule, copies)| {
            let kept = usize::from(desired.contains(rule));
            (rule.clone(), copies.saturating_sub(kept))
        });
        let change = Change {
            key: *difference.key,
            subject: difference.subject,
            desired: difference.desired,
            added: desired.iter().filter(is_added).collect(),
            deleted: surplus.filter(|(_, copies)| *copies > 0).collect(),
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

    fn needs(&self, state: &State, opened: &Opened<'_>, written: &[Written]) -> Vec<Need> {
        let mut needs: Vec<Need> = opened
            .chains
            .get(&self.key.part.table())
            .cloned()
            .into_iter()
            .collect();
        if let Some(desired) = self.desired.filter(|_| !self.added.is_empty()) {
            let listener = desired.listener;
            if !state.listeners.is_observed(&listener) {
                let waiting = || Need::Waiting(Key::Listener(listener));
                needs.push(opened.listeners.get(&listener).cloned().unwrap_or_else(waiting));
            }
            if let Some(claim) = desired.claim.filter(|claim| !state.claims.is_observed(claim)) {
                let waiting = || Need::Waiting(Key::Claim(claim));
                needs.push(opened.claims.get(&claim).cloned().unwrap_or_else(waiting));
            }
            return needs;
        }
        match self.key.part {
            // Rules for each address replace the one for every address, and the other way round.
            Part::NodePorts => {
                let replaces = |write: &&Written| {
                    let of = |key: &RulesKey| (key.part, key.transport, key.port);
                    write.adds && of(&write.key) == of(&self.key)
                };
                needs.extend(written.iter().filter(replaces).map(|write| write.need.clone()));
            }
            Part::Admission => needs.extend(deletions(written, self.key.transport, self.key.port)),
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
