//! Rules of frontends that pass from one Service to another: they are removed by steps of their own, after those of the new owner are written.
//! If the new owner is refused, the previous one continues to serve the frontend.

use std::collections::{BTreeSet, HashMap, HashSet};

use kernlink_iptables_restore::Table;
use kernlink_services::{Family, ObjectName};

use crate::chains::FixedChain;
use crate::key::Key;
use crate::rule_key::RuleKey;
use crate::state::State;
use crate::touched::Touched;
use crate::write::Part;

/// What a Service keeps until others are written.
pub(super) struct Replaced<'a> {
    pub(super) service: ObjectName,
    /// The rules of the frontends, and the chains that the Service does not need any more.
    pub(super) part: Part<'a>,
    /// The Services that have the frontends now.
    pub(super) owners: BTreeSet<ObjectName>,
}

/// The frontend of a rule in a chain that all service ports share.
#[derive(PartialEq, Eq, Hash)]
struct Captured {
    is_node_port: bool,
    /// Address, protocol and port, as `iptables-save` prints them.
    destination: [Option<Box<str>>; 3],
}

impl Captured {
    /// `None` for a rule that neither translates nor restricts a frontend.
    fn of(rule: &RuleKey) -> Option<Self> {
        let is_node_port = match rule.chain {
            FixedChain::NatNodePorts => true,
            FixedChain::NatServices | FixedChain::FilterProxyFirewall => false,
            _ => return None,
        };
        let after = |option: &str| {
            let mut words = rule.text.split(' ').skip_while(|word| *word != option);
            words.nth(1).map(Into::into)
        };
        Some(Self {
            is_node_port,
            destination: ["-d", "-p", "--dport"].map(after),
        })
    }
}

/// Takes from the parts what is removed after the writes of other Services.
pub(super) fn take_replaced<'a>(
    state: &State,
    family: Family,
    parts: &mut [(ObjectName, Part<'a>)],
) -> Vec<Replaced<'a>> {
    let owners = new_owners(state, family, parts);
    if owners.is_empty() {
        return Vec::new();
    }
    let mut replaced = Vec::new();
    for (name, part) in parts {
        let mut others = BTreeSet::new();
        let owner_of = |key: &RuleKey| {
            let owner = owners.get(&Captured::of(key)?)?;
            (owner != name).then_some(owner)
        };
        let mut later = Part::default();
        part.rules.retain(|(key, is_added)| {
            let owner = owner_of(key).filter(|_| !is_added);
            if let Some(owner) = owner {
                others.insert(owner.clone());
                later.rules.push((key.clone(), false));
            }
            owner.is_none()
        });
        if others.is_empty() {
            continue;
        }
        let is_later = |key: &RuleKey| later.rules.iter().any(|(other, _)| other == key);
        let (withdrawn, others_withdrawn) = std::mem::take(&mut part.withdrawn)
            .into_iter()
            .partition(is_later);
        later.withdrawn = withdrawn;
        part.withdrawn = others_withdrawn;
        // The rules may lead to them.
        let (kept, withdrawn) = std::mem::take(&mut part.chains)
            .into_iter()
            .partition(|chain| chain.desired.is_some());
        part.chains = kept;
        later.chains = withdrawn;
        replaced.push(Replaced {
            service: name.clone(),
            part: later,
            owners: others,
        });
    }
    replaced
}

/// The Services that are to serve frontends of which a rule is removed, and whose own rules are not in place yet.
fn new_owners(
    state: &State,
    family: Family,
    parts: &[(ObjectName, Part<'_>)],
) -> HashMap<Captured, ObjectName> {
    let rules = parts
        .iter()
        .flat_map(|(name, part)| part.rules.iter().map(move |rule| (name, rule)));
    let is_nat = |key: &RuleKey| key.chain.table() == Table::Nat;
    let removed = rules
        .clone()
        .filter(|(_, (key, is_added))| !is_added && is_nat(key));
    let removed: HashSet<Captured> = removed.filter_map(|(_, (key, _))| Captured::of(key)).collect();
    if removed.is_empty() {
        return HashMap::new();
    }
    let added = rules
        .filter(|(_, (_, is_added))| *is_added)
        .map(|(name, (key, _))| (name, key));
    // Those of operations that failed.
    let table = &state.rules[family.index()];
    let undone = state.touched.iter().filter_map(|(key, touched)| match key {
        Key::Service(of, name) if *of == family => Some((name, touched)),
        _ => None,
    });
    let undone = undone.flat_map(|(name, touched)| touched.iter().map(move |object| (name, object)));
    let undone = undone.filter_map(|(name, object)| match object {
        Touched::Rule(key) if table.is_desired(key) && !table.is_observed(key) => Some((name, key)),
        _ => None,
    });
    let missing = added.chain(undone).filter(|(_, key)| is_nat(key));
    let owners = missing.filter_map(|(name, key)| Some((Captured::of(key)?, name.clone())));
    owners
        .filter(|(captured, _)| removed.contains(captured))
        .collect()
}
