//! Makes a plan: compares the dirty chains and rules and adds the steps that change them.

mod flows;
mod replaced;
mod services;

use std::collections::{BTreeMap, BTreeSet};

use kernlink_engine::data_path::BuilderOf;
use kernlink_engine::plan::{Needs, Subject};
use kernlink_host::CONNTRACK_BUCKETS;
use kernlink_host::Sysctl;
use kernlink_iptables_restore::{Edit, Operation as RulesOperation, Position, Rule, Table};
use kernlink_services::Family;

use self::flows::plan_flows;
use self::services::plan_services;
use super::chains::{FixedChain, Jump, jumps};
use super::key::Key;
use super::observed::{ObservedChain, counts};
use super::operation::{EnsureChain, Operation};
use super::order::{FILTER_FIRST, Phase};
use super::rule_key::{RuleKey, RuleText, rule_text};
use super::state::State;
use super::sysctls::ROUTE_LOCALNET;
use super::touched::Touched;
use super::write::Writer;

type Need = kernlink_engine::plan::Need<Key>;

/// Adds the steps for everything that is dirty.
pub(super) fn plan(state: &mut State, builder: &mut BuilderOf<'_, State>) {
    state.complete_dirty();
    state.forget_replaced();
    plan_sysctls(state, builder, |name| name != ROUTE_LOCALNET, Phase::Sysctls, &[]);
    plan_accounting(state, builder);
    state.flows.compare_observed();
    let mut touched: BTreeMap<Key, Vec<Touched>> = BTreeMap::new();
    for family in state.managed.clone() {
        state.split_rules(family);
        if state.is_without_tables(family) {
            continue;
        }
        if state.is_unsupported(family) && !state.is_fixed_in_place(family) {
            // No Service needed them before.
            state.set_fixed_dirty(family);
        }
        let mut fixed = plan_fixed(state, family, builder);
        let withdrawn = plan_services(state, family, &fixed, builder, &mut touched);
        plan_jumps(state, family, &mut fixed, builder);
        if family == Family::Ipv4 {
            let is_it = |name: &str| name == ROUTE_LOCALNET;
            plan_sysctls(state, builder, is_it, Phase::RouteLocalnet, &fixed.protection);
        }
        plan_flows(state, family, withdrawn, builder);
    }
    // A destination of a Service without a step was compared by the first listing.
    let undone = &state.touched;
    state.flows.retain_changed(|service| {
        let families = Family::ALL.into_iter();
        let mut keys = families.flat_map(|family| Key::of_service(family, service));
        keys.any(|key| touched.contains_key(&key) || undone.contains_key(&key))
    });
    // Those of failed steps that are not planned now are kept until they are done.
    state.touched.extend(touched);
}

/// Adds the steps for the sysctls with these names.
fn plan_sysctls(
    state: &State,
    builder: &mut BuilderOf<'_, State>,
    is_included: impl Fn(&str) -> bool,
    phase: Phase,
    needs: &[Need],
) {
    for difference in state.sysctls.differences() {
        if !is_included(difference.key) {
            continue;
        }
        let (Some(desired), Some(observed)) = (difference.desired, difference.observed) else {
            // The kernel does not have the sysctl, or it could not be read, which an event reports.
            continue;
        };
        let is_enough = **difference.key == *CONNTRACK_BUCKETS
            && observed.parse::<u64>().ok() >= desired.parse::<u64>().ok();
        if observed != desired && !is_enough {
            builder.push(
                phase,
                Key::Sysctl(difference.key.clone()),
                difference.subject,
                Sysctl::new(difference.key.clone(), desired.clone()),
                Needs::all(needs.iter().cloned()),
            );
        }
    }
}

/// Adds the steps that create the accounting objects that rules name. No step needs them: a rule that names a missing object is refused, and
/// then no rule names one.
fn plan_accounting(state: &State, builder: &mut BuilderOf<'_, State>) {
    for difference in state.accounting.differences() {
        if difference.desired.is_some() && difference.observed.is_none() {
            let name = difference.key.clone();
            builder.push(
                Phase::Accounting,
                Key::Accounting(name.clone()),
                Subject::DataPath,
                Operation::EnsureAccounting(name),
                Needs::none(),
            );
        }
    }
}

/// The needs of steps that require the fixed chains of a family, and the chains whose rules of Services are written again.
#[derive(Default)]
pub(super) struct Fixed {
    pub(super) needs: Vec<Need>,
    /// What must be done before packets to loopback addresses may pass.
    protection: Vec<Need>,
    pub(super) rewritten: BTreeSet<FixedChain>,
    /// Whether a chain with rules of Services is emptied without knowing them. The Services are written by the same input then, after which
    /// the chains are complete.
    pub(super) is_blind: bool,
}

impl Fixed {
    /// The phase of steps for Services, and their needs.
    pub(super) fn of_services(&self) -> (Phase, Vec<Need>) {
        // A step that needs another one is not in the same input. If the chains alone are refused, the previous ones stay in use.
        match self.needs.as_slice() {
            [Need::Step(_)] if self.is_blind => (Phase::Fixed, Vec::new()),
            needs => (Phase::Services, needs.to_vec()),
        }
    }
}

fn plan_fixed(state: &State, family: Family, builder: &mut BuilderOf<'_, State>) -> Fixed {
    let observed = state.fixed(family);
    let firewall = FixedChain::FilterFirewall;
    let to_firewall = Rule::new().jump(firewall.name());
    if !state.is_fixed_dirty(family) {
        let is_waiting = !state.is_fixed_in_place(family);
        let needs: Vec<Need> = is_waiting
            .then_some(Need::Waiting(Key::Fixed(family)))
            .into_iter()
            .collect();
        let mut protection = needs.clone();
        if !observed.contains_key(&firewall) {
            protection.push(Need::Waiting(Key::Firewall(family)));
        }
        for (position, jump) in jumps().iter().enumerate() {
            if jump.rule == to_firewall && !state.has_jump(family, position) {
                protection.push(Need::Waiting(Key::Jump(family, position)));
            }
        }
        return Fixed {
            needs,
            protection,
            ..Fixed::default()
        };
    }
    let is_firewall_unknown = is_firewall_unknown(state, family);
    let mut fixed = Fixed::default();
    let mut write = Writer::new(family);
    // Chains are declared first: the rules jump to each other's chains.
    let mut rules_and_edits: Vec<(Table, Edit)> = Vec::new();
    // A family that is no longer served keeps the fixed chains, without rules of Services.
    for chain in FixedChain::of(state.config(), family) {
        if chain == firewall && is_firewall_unknown {
            continue;
        }
        let rules = state.static_rules(chain, family);
        let name = chain.name();
        let edits = match observed.get(&chain) {
            Some(found) => change(chain, found, &rules, family),
            None => Change::Rewrite,
        };
        match edits {
            Change::None => continue,
            Change::Rewrite => {
                fixed.rewritten.insert(chain);
                fixed.is_blind |=
                    chain.is_shared() && !observed.contains_key(&chain) && !state.is_readable(family);
                write.effects.rewritten.push(chain);
                write.edit(chain.table(), Edit::declare(name));
                // Rules of Services that are in the kernel are written again at once: the chains that they jump to exist.
                let table = &state.rules[family.index()];
                let observed = table.iter_observed().map(|(key, ())| key);
                let mut kept: Vec<&RuleKey> = observed
                    .filter(|key| key.chain == chain && table.is_desired(key))
                    .collect();
                kept.sort_unstable();
                for key in kept {
                    let Ok(rule) = key.text.parse::<Rule>() else {
                        continue;
                    };
                    rules_and_edits.push((chain.table(), Edit::append(name, rule)));
                    write.effects.rules.push(key.clone());
                }
                let rules = rules
                    .into_iter()
                    .map(|rule| (chain.table(), Edit::append(name, rule)));
                rules_and_edits.extend(rules);
            }
            Change::Edits(edits) => {
                rules_and_edits.extend(edits.into_iter().map(|edit| (chain.table(), edit)));
            }
        }
        write.effects.fixed.push(chain);
    }
    // kube-proxy has the jumps to this chain in both families, and rules in it in one.
    let has_firewall_rules = FixedChain::of(state.config(), family).any(|chain| chain == firewall);
    if !observed.contains_key(&firewall) && !has_firewall_rules && !is_firewall_unknown {
        write.edit(firewall.table(), Edit::declare(firewall.name()));
        write.effects.fixed.push(firewall);
    }
    for (table, edit) in rules_and_edits {
        write.edit(table, edit);
    }
    if state.is_readable(family) {
        let missing = missing_jumps(state, family);
        for jump in state.leftover_jumps(family) {
            write.edit(jump.table, Edit::delete(jump.chain, jump.rule.clone()));
        }
        for (_, jump) in &missing {
            write.edit(jump.table, Edit::insert(jump.chain, jump.rule.clone()));
        }
        write.effects.jumps = !missing.is_empty();
    }
    if !write.is_empty() {
        let key = Key::Fixed(family);
        let need = builder.push(
            Phase::Fixed,
            key,
            Subject::DataPath,
            write.finish(Key::Fixed(family), FILTER_FIRST),
            Needs::none(),
        );
        fixed.protection.push(need.clone());
        fixed.needs.push(need);
    }
    fixed
}

/// The kubelet may have rules in `KUBE-FIREWALL`, which is not emptied without knowing them.
fn is_firewall_unknown(state: &State, family: Family) -> bool {
    !state.is_readable(family) && !state.fixed(family).contains_key(&FixedChain::FilterFirewall)
}

fn missing_jumps(state: &State, family: Family) -> Vec<(usize, Jump)> {
    let jumps = jumps().iter().cloned().enumerate();
    jumps
        .filter(|(position, _)| !state.has_jump(family, *position))
        .collect()
}

/// Adds the jumps of a family whose tables cannot be read, and its rule of `KUBE-FIREWALL`.
fn plan_jumps(state: &State, family: Family, fixed: &mut Fixed, builder: &mut BuilderOf<'_, State>) {
    if !state.is_fixed_dirty(family) || state.is_readable(family) {
        return;
    }
    let firewall = FixedChain::FilterFirewall;
    if is_firewall_unknown(state, family) {
        let has_firewall_rules = FixedChain::of(state.config(), family).any(|chain| chain == firewall);
        let rules = if has_firewall_rules {
            state.static_rules(firewall, family)
        } else {
            Vec::new()
        };
        let operation = Operation::EnsureChain(Box::new(EnsureChain::new(family, firewall, rules)));
        let key = Key::Firewall(family);
        let need = builder.push(Phase::Fixed, key, Subject::DataPath, operation, Needs::none());
        fixed.protection.push(need);
    }
    let to_firewall = Rule::new().jump(firewall.name());
    let mut jumps_to_firewall = Vec::new();
    for (position, jump) in missing_jumps(state, family) {
        let is_to_firewall = jump.rule == to_firewall;
        let jump_rule = kernlink_iptables_restore::Jump {
            from: jump.chain,
            rule: jump.rule,
            position: Position::First,
        };
        let operation = Operation::EnsureJump {
            position,
            operation: Box::new(RulesOperation::ensure_jump(family, jump.table, jump_rule)),
        };
        let key = Key::Jump(family, position);
        let needs = if is_to_firewall {
            &fixed.protection
        } else {
            &fixed.needs
        };
        let needs = Needs::all(needs.iter().cloned());
        let need = builder.push(Phase::Fixed, key, Subject::DataPath, operation, needs);
        if is_to_firewall {
            jumps_to_firewall.push(need);
        }
    }
    fixed.protection.extend(jumps_to_firewall);
}

/// How a fixed chain is brought in place.
enum Change {
    None,
    /// It is emptied and filled. The rules of Services are added by their own steps.
    Rewrite,
    Edits(Vec<Edit>),
}

fn change(chain: FixedChain, found: &ObservedChain, rules: &[Rule], family: Family) -> Change {
    let name = chain.name();
    let texts: Vec<RuleText> = rules.iter().map(|rule| rule_text(rule, family)).collect();
    if chain == FixedChain::FilterFirewall {
        // The kubelet has rules in this chain too.
        let missing = rules
            .iter()
            .zip(&texts)
            .filter(|(_, text)| !found.rules.contains(text));
        let edits: Vec<Edit> = missing
            .map(|(rule, _)| Edit::append(name, rule.clone()))
            .collect();
        return if edits.is_empty() {
            Change::None
        } else {
            Change::Edits(edits)
        };
    }
    if !chain.is_shared() {
        let is_equal = found.rules == texts && !found.has_unreadable;
        return if is_equal { Change::None } else { Change::Rewrite };
    }
    if found.has_unreadable || counts(&found.rules).values().any(|count| *count > 1) {
        return Change::Rewrite;
    }
    // The rules that do not depend on Services must be the last ones, in order.
    let has_withdrawn = found
        .own
        .iter()
        .any(|text| found.rules.contains(text) && !texts.contains(text));
    if found.rules.ends_with(&texts) && !has_withdrawn {
        return Change::None;
    }
    let own = found.own.iter().filter(|text| found.rules.contains(text));
    let mut edits: Vec<Edit> = own
        .filter_map(|text| Some(Edit::delete(name, text.parse().ok()?)))
        .collect();
    edits.extend(rules.iter().map(|rule| Edit::append(name, rule.clone())));
    Change::Edits(edits)
}
