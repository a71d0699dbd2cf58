//! Makes a plan: compares the dirty objects and adds the steps that change them.

mod flows;
mod rules;

use kernlink_engine::Subject;
use kernlink_engine::data_path::BuilderOf;
use kernlink_engine::plan::Needs;
use kernlink_iptables_restore::{Edit, Restore, Table};
use kernlink_services::Family;

use self::flows::plan_flows;
use self::rules::{Written, plan_rules};
use super::chains::PortalChain;
use super::key::Key;
use super::operation::{Operation, Write};
use super::order::Phase;
use super::state::{PresentRules, State};

type Need = kernlink_engine::plan::Need<Key>;
type Builder<'a> = BuilderOf<'a, State>;

/// Adds the steps for everything that is dirty.
pub(super) fn plan(state: &mut State, builder: &mut Builder<'_>) {
    state.find_stale_flows();
    let state = &*state;
    plan_listeners(state, builder);
    plan_claims(state, builder);
    let mut written: [Written; 2] = Default::default();
    for &family in &state.managed {
        if !state.chains[family.index()].is_readable {
            continue;
        }
        for table in [Table::Filter, Table::Nat] {
            plan_chains(state, family, table, builder);
        }
        written[family.index()] = plan_rules(state, family, builder);
        plan_flows(state, family, &written[family.index()], builder);
    }
    plan_closing(state, builder, &written);
}

fn plan_listeners(state: &State, builder: &mut Builder<'_>) {
    for difference in state.listeners.differences() {
        let Some(desired) = difference.desired else {
            continue;
        };
        if difference.observed == Some(desired) {
            continue;
        }
        let key = *difference.key;
        let operation = Operation::Listen {
            key,
            portal: desired.portal.clone(),
            serving: desired.serving.clone(),
        };
        builder.push(
            Phase::Listeners,
            Key::Listener(key),
            difference.subject,
            operation,
            Needs::none(),
        );
    }
}

fn plan_claims(state: &State, builder: &mut Builder<'_>) {
    for difference in state.claims.differences() {
        if difference.desired.is_some() && difference.observed.is_none() {
            let key = *difference.key;
            let operation = Operation::Claim(key);
            builder.push(
                Phase::Claims,
                Key::Claim(key),
                difference.subject,
                operation,
                Needs::none(),
            );
        }
    }
}

/// Creates the missing chains and jumps of a table.
fn plan_chains(state: &State, family: Family, table: Table, builder: &mut Builder<'_>) {
    let [chains, jumps] = missing_chains(state, family, table);
    let key = Key::Chains(family, table);
    if (chains.is_empty() && jumps.is_empty()) || !state.dirty_chains.contains(&(family, table)) {
        return;
    }
    let mut restore = Restore::new(family);
    let edits = restore.table_mut(table);
    edits.extend(chains.iter().map(|chain| Edit::declare(chain.name())));
    // Each is inserted at the top: the last one becomes the first rule.
    edits.extend(jumps.iter().map(|chain| chain.add_jump()));
    let write = Write {
        restore,
        key: key.clone(),
        rules: PresentRules::default(),
        chains,
        jumps,
    };
    builder.push(Phase::Chains, key, Subject::DataPath, write, Needs::none());
}

/// The chains of a table that do not exist or cannot be read, and those without a jump to them.
fn missing_chains(state: &State, family: Family, table: Table) -> [Vec<PortalChain>; 2] {
    let observed = &state.chains[family.index()];
    let of_table = || {
        let all = PortalChain::ALL.iter().copied();
        all.filter(|chain| chain.table() == table)
    };
    let chains =
        of_table().filter(|chain| !observed.present.contains(chain) || observed.unreadable.contains(chain));
    let jumps = of_table().filter(|chain| !observed.jumps.contains(chain));
    [chains.collect(), jumps.collect()]
}

/// Closes what is no longer desired, after the rules that lead to it. It is not known which do if the tables cannot be read.
fn plan_closing(state: &State, builder: &mut Builder<'_>, written: &[Written; 2]) {
    for difference in state.listeners.differences() {
        let key = *difference.key;
        let family = Family::of(key.address.ip()).index();
        if difference.desired.is_some() || difference.observed.is_none() || !state.chains[family].is_readable
        {
            continue;
        }
        let needs = Needs::all(written[family].deletions(key.transport, key.address.port()));
        let operation = Operation::Close(key);
        builder.push(
            Phase::Closing,
            Key::Listener(key),
            difference.subject,
            operation,
            needs,
        );
    }
    for difference in state.claims.differences() {
        if difference.desired.is_none() && difference.observed.is_some() {
            let key = *difference.key;
            let operation = Operation::Release(key);
            builder.push(
                Phase::Releases,
                Key::Claim(key),
                difference.subject,
                operation,
                Needs::none(),
            );
        }
    }
}
