//! Compares what is dirty and adds the steps that make the kernel equal to the desired state.

mod flows;

use std::sync::Arc;

use kernlink_engine::data_path::BuilderOf;
use kernlink_engine::plan::{Needs, Subject};
use kernlink_host::Sysctl;
use kernlink_nftables::TableKey;
use kernlink_services::Family;

use self::flows::plan_flows;
use crate::key::Key;
use crate::layout::Slot;
use crate::operation::{Create, Operation, Switch, Write};
use crate::order::Phase;
use crate::rules::Parameters;
use crate::state::State;

type Builder<'a> = BuilderOf<'a, State>;
type Need = kernlink_engine::plan::Need<Key>;

/// Adds the steps of everything that is dirty.
pub(crate) fn plan(state: &State, builder: &mut Builder<'_>) {
    plan_sysctls(state, builder);
    for family in Family::ALL {
        let switch = plan_family(state, family, builder);
        plan_flows(state, family, switch.as_ref(), builder);
    }
}

fn plan_sysctls(state: &State, builder: &mut Builder<'_>) {
    for difference in state.sysctls.differences() {
        let (Some(value), name) = (difference.desired, difference.key) else {
            continue;
        };
        if difference
            .observed
            .is_some_and(|observed| is_enough(name, value, observed))
        {
            continue;
        }
        let sysctl = Sysctl::new(name.clone(), value.clone());
        let key = Key::Sysctl(name.clone());
        builder.push(Phase::Sysctls, key, Subject::Node, sysctl, Needs::none());
    }
}

/// Whether a sysctl need not be changed: the size of the connection table is never reduced.
fn is_enough(name: &str, value: &str, observed: &str) -> bool {
    if name != kernlink_host::CONNTRACK_BUCKETS {
        return value == observed;
    }
    match (value.parse::<u64>(), observed.parse::<u64>()) {
        (Ok(value), Ok(observed)) => observed >= value,
        _ => value == observed,
    }
}

/// What of a table the steps of a plan are for.
struct Target {
    slot: Slot,
    parameters: Parameters,
    /// What a step needs that writes to the table: the step that makes it, if it does not exist.
    creation: Vec<Need>,
    is_hooked: bool,
}

/// Returns the switch to another table, if there is one.
fn plan_family(state: &State, family: Family, builder: &mut Builder<'_>) -> Option<Need> {
    let of_family = state.family(family);
    // Without a reading it is not known what an earlier process left.
    if !of_family.is_read {
        return None;
    }
    if !of_family.is_served {
        plan_deletions(state, family, None, builder);
        return None;
    }
    let target = plan_table(state, family, builder);
    let dirty = of_family.dirty_services();
    for &name in &dirty {
        let Some(write) = of_family.write(name, state.ports(), target.slot) else {
            continue;
        };
        let needs = Needs::all(target.creation.iter().cloned());
        push_write(builder, write, Subject::Service(name.clone()), needs);
    }
    for key in &of_family.leftovers {
        if let Some(write) = of_family.write_leftover(key, target.slot) {
            let needs = Needs::all(target.creation.iter().cloned());
            push_write(builder, write, Subject::DataPath, needs);
        }
    }
    for element in of_family.shared_leftovers() {
        let mut write = Write::new(Key::Shared(family, element), family, target.slot);
        write.deleted.push(element);
        let needs = Needs::all(target.creation.iter().cloned());
        push_write(builder, write, Subject::DataPath, needs);
    }
    if let Some(write) = of_family.write_networks(target.slot) {
        let needs = Needs::all(target.creation.iter().cloned());
        push_write(builder, write, Subject::DataPath, needs);
    }
    if target.is_hooked {
        let serving = target.slot.table(family);
        plan_deletions(state, family, Some(&serving), builder);
        None
    } else {
        let switch = Switch {
            slot: target.slot,
            parameters: target.parameters,
            deleted: of_family
                .old
                .iter()
                .map(|old| old.key.clone())
                .filter(|key| *key != target.slot.table(family))
                .collect(),
        };
        // The other table serves until this one has what it is to serve.
        let failed = of_family.failed_services(state.ports(), target.slot);
        let mut needs = target.creation;
        if of_family.is_held(failed.len(), state.now) {
            let written = dirty.iter().map(|&name| Key::Service(family, name.clone()));
            let written = written.chain([Key::ServiceCidrs(family)]);
            needs.extend(written.flat_map(|key| builder.steps_of(&key)));
            needs.extend(failed.iter().flat_map(|key| builder.after(key, false)));
        }
        Some(builder.push(
            Phase::Switch,
            Key::Switch(family),
            Subject::DataPath,
            Operation::Switch(Box::new(switch)),
            Needs::all(needs),
        ))
    }
}

fn push_write(builder: &mut Builder<'_>, write: Write, subject: Subject, needs: Needs<Key>) {
    let key = write.key.clone();
    builder.push(
        Phase::Services,
        key,
        subject,
        Operation::Write(Arc::new(write)),
        needs,
    );
}

/// The table that elements are written to, with the step that makes it.
fn plan_table(state: &State, family: Family, builder: &mut Builder<'_>) -> Target {
    let of_family = state.family(family);
    if let Some(table) = &of_family.table {
        if table.is_ownerless {
            let own = Operation::Own(family, table.slot);
            builder.push(
                Phase::Tables,
                Key::Owner(family),
                Subject::DataPath,
                own,
                Needs::none(),
            );
        }
        return Target {
            slot: table.slot,
            parameters: table.parameters.clone(),
            creation: Vec::new(),
            is_hooked: table.is_hooked,
        };
    }
    let parameters = state.parameters(family);
    let serves = |slot: Slot| {
        let table = slot.table(family);
        of_family.old.iter().any(|old| old.key == table && old.is_hooked)
    };
    let slot = if serves(Slot::First) {
        Slot::Second
    } else {
        Slot::First
    };
    let table = slot.table(family);
    let create = Create {
        slot,
        parameters: parameters.clone(),
        replaces: of_family.old.iter().any(|old| old.key == table),
        // Nothing serves yet.
        has_base_chains: !of_family.old.iter().any(|old| old.is_hooked),
    };
    let is_hooked = create.has_base_chains;
    let creation = builder.push(
        Phase::Tables,
        Key::Table(family),
        Subject::DataPath,
        Operation::Create(Box::new(create)),
        Needs::none(),
    );
    Target {
        slot,
        parameters,
        creation: vec![creation],
        is_hooked,
    }
}

/// The tables that are not needed any more. One of the name of the table that serves was replaced with it.
fn plan_deletions(state: &State, family: Family, serving: Option<&TableKey>, builder: &mut Builder<'_>) {
    let old = &state.family(family).old;
    for old in old.iter().filter(|old| Some(&old.key) != serving) {
        let key = Key::OldTable(family, old.key.name.clone());
        let operation = Operation::DeleteTable(old.key.clone());
        builder.push(Phase::Switch, key, Subject::DataPath, operation, Needs::none());
    }
}
