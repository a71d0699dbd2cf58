//! Steps that write the chains of service ports, and their rules in the fixed chains.

use std::collections::{BTreeMap, HashMap};
use std::num::NonZeroUsize;

use foldhash::quality::RandomState;
use kernlink_base::parallel;
use kernlink_engine::DataPath;
use kernlink_engine::data_path::BuilderOf;
use kernlink_engine::plan::{Needs, Subject};
use kernlink_iptables_restore::{ChainName, Edit, Table};
use kernlink_services::{Family, ObjectName};

use super::flows::{Withdrawn, steps_of};
use super::replaced::{Replaced, take_replaced};
use super::{Fixed, Need};
use crate::key::Key;
use crate::order::{FILTER_FIRST, NAT_FIRST, Phase};
use crate::port_chain::subject_of;
use crate::rule_key::RuleKey;
use crate::state::State;
use crate::touched::Touched;
use crate::write::{Part, Writer};

/// The fewest Services whose chains are compared by a thread of their own; it takes longer to start one than to compare fewer.
const FEWEST_SERVICES: NonZeroUsize = NonZeroUsize::new(200).unwrap();

/// Adds the steps of a family for Services. Returns what they withdraw.
pub(super) fn plan_services(
    state: &State,
    family: Family,
    fixed: &Fixed,
    builder: &mut BuilderOf<'_, State>,
    touched: &mut BTreeMap<Key, Vec<Touched>>,
) -> Withdrawn {
    let mut parts: HashMap<Subject, Part<'_>, RandomState> = HashMap::default();
    let mut unused: Vec<(Subject, ChainName)> = Vec::new();
    for difference in state.chains[family.index()].unsorted_differences() {
        if difference.desired.is_none() {
            if difference.observed.is_none() {
                continue;
            }
            unused.push((difference.subject.clone(), *difference.key));
        }
        let part = parts.entry(difference.subject.clone()).or_default();
        part.chains.push(difference);
    }
    for difference in state.rules[family.index()].differences() {
        let key = difference.key;
        let is_rewritten = fixed.rewritten.contains(&key.chain);
        let is_observed = difference.observed.is_some() && (!is_rewritten || difference.desired.is_some());
        let is_added = match (difference.desired.is_some(), is_observed) {
            (true, false) => true,
            (false, true) => false,
            _ => continue,
        };
        let is_withdrawn = difference.subject == Subject::DataPath;
        let part = parts.entry(subject_of(difference)).or_default();
        part.rules.push((key.clone(), is_added));
        if is_withdrawn {
            part.withdrawn.push(key.clone());
        }
    }
    let mut parts: Vec<(Subject, Part)> = parts.into_iter().collect();
    parts.sort_by(|(a, _), (b, _)| a.cmp(b));
    let mut leftovers = None;
    let mut all_withdrawn = Withdrawn::new();
    let (phase, service_needs) = fixed.of_services();
    // Chains that are emptied without knowing their rules are filled by the same input.
    let is_served_by_another = state.has_interim_rules(family) && !fixed.is_blind;
    let mut of_services: Vec<(ObjectName, Part<'_>)> = Vec::with_capacity(parts.len());
    for (subject, part) in parts {
        match subject {
            Subject::Service(name) => of_services.push((name, part)),
            _ => leftovers = Some(part),
        }
    }
    let all_replaced = take_replaced(state, family, &mut of_services);
    let writes = parallel::map(of_services, FEWEST_SERVICES, |(name, mut part)| {
        let order = if is_served_by_another && !part.is_translated() {
            NAT_FIRST
        } else {
            FILTER_FIRST
        };
        let withdrawn = std::mem::take(&mut part.withdrawn);
        let write = part.write(family, Key::Service(family, name.clone()), order);
        (name, withdrawn, write)
    });
    for (name, withdrawn, write) in writes {
        let Some((write, changes)) = write else { continue };
        let key = write.key.clone();
        touched.insert(key.clone(), changes);
        let needs = Needs::all(service_needs.iter().cloned());
        let need = builder.push(phase, key, Subject::Service(name), write, needs);
        add(&mut all_withdrawn, withdrawn, &need);
    }
    for Replaced {
        service: name,
        mut part,
        owners,
    } in all_replaced
    {
        let withdrawn = std::mem::take(&mut part.withdrawn);
        let key = Key::Replaced(family, name.clone());
        let Some((write, changes)) = part.write(family, key.clone(), NAT_FIRST) else {
            continue;
        };
        touched.insert(key.clone(), changes);
        let owners = owners.into_iter();
        let owners = owners.flat_map(|owner| builder.after(&Key::Service(family, owner), false));
        let needs = Needs::all(service_needs.iter().cloned().chain(owners));
        let need = builder.push(phase, key, Subject::Service(name), write, needs);
        add(&mut all_withdrawn, withdrawn, &need);
    }
    let leftovers = leftovers.and_then(|mut part| {
        let withdrawn = std::mem::take(&mut part.withdrawn);
        let (write, changes) = part.write(family, Key::Leftovers(family), FILTER_FIRST)?;
        Some((withdrawn, write, changes))
    });
    // Chains are deleted after they are emptied, by these steps or earlier ones.
    let deletions = match &leftovers {
        Some(_) => Phase::Leftovers,
        None => Phase::Services,
    };
    let mut leftover_needs = fixed.needs.clone();
    if let Some((withdrawn, write, changes)) = leftovers {
        // Present Services are served by the previous rules until their own ones are written.
        let unwritten = unwritten(state, family, touched, builder);
        let written: Vec<Need> = written(family, touched)
            .flat_map(|name| steps_of(builder, family, name))
            .collect();
        let key = write.key.clone();
        touched.insert(key.clone(), changes);
        let needs = fixed.needs.iter().cloned().chain(written);
        let needs = Needs::all(needs.chain(unwritten));
        let need = builder.push(Phase::Leftovers, key, Subject::DataPath, write, needs);
        add(&mut all_withdrawn, withdrawn, &need);
        leftover_needs.push(need);
    }
    unused.sort();
    for (subject, name) in unused {
        let key = Key::Chain(family, name);
        let mut writer = Writer::new(family);
        writer.edit(Table::Nat, Edit::delete_chain(name));
        writer.effects.deleted.push(name);
        let needs: Vec<Need> = match &subject {
            // The kernel refuses to delete a chain that another one jumps to. So it may be passed to the tool together with the step that
            // ends its use, and is not tried before.
            Subject::Service(name) => {
                let [service, replaced] = Key::of_service(family, name);
                let writes = builder.steps_of(&service).into_iter();
                let waits = writes.filter(|need| matches!(need, Need::Waiting(_)));
                let needs = fixed.needs.iter().cloned().chain(waits);
                needs.chain(builder.steps_of(&replaced)).collect()
            }
            _ => leftover_needs.clone(),
        };
        let needs = Needs::all(needs);
        let write = writer.finish(key.clone(), FILTER_FIRST);
        builder.push(deletions, key, subject, write, needs);
    }
    all_withdrawn
}

/// Adds rules that a step withdraws.
fn add(all: &mut Withdrawn, rules: Vec<RuleKey>, step: &Need) {
    if !rules.is_empty() {
        all.push((rules, step.clone()));
    }
}

/// The Services of a family that steps of this plan write.
fn written(family: Family, touched: &BTreeMap<Key, Vec<Touched>>) -> impl Iterator<Item = &ObjectName> {
    touched.keys().filter_map(move |key| match key {
        Key::Service(of, name) if *of == family => Some(name),
        Key::Replaced(of, name) if *of == family => {
            let is_written = touched.contains_key(&Key::Service(family, name.clone()));
            (!is_written).then_some(name)
        }
        _ => None,
    })
}

/// The Services whose last operation failed and that no step of this plan writes.
fn unwritten(
    state: &State,
    family: Family,
    touched: &BTreeMap<Key, Vec<Touched>>,
    builder: &mut BuilderOf<'_, State>,
) -> Vec<Need> {
    let of_family = |key: &&Key| matches!(key, Key::Service(of, _) if *of == family);
    // A dirty one was compared, and has nothing to do.
    let is_unwritten = |key: &&Key| !touched.contains_key(key) && !state.is_dirty(key);
    let unwritten = state.touched.keys().filter(of_family).filter(is_unwritten);
    let waiting = unwritten.filter(|key| builder.is_waiting(key));
    waiting.cloned().map(Need::Waiting).collect()
}
