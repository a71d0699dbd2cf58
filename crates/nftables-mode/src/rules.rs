//! The tables: their chains and rules, which depend on the configuration only.
//!
//! Registers: the key of a frontend, which is address, protocol and port, is in the first ones. What follows them is named in `builder.rs`.

mod affinity;
mod builder;
mod choices;
mod filter;
mod hooks;

use std::net::IpAddr;

use ipnet::IpNet;
use kernlink_nftables::{Chain, Operation, Rule, Table, TableFlags, TableKey};
use kernlink_services::Family;

use self::builder::Builder;
use crate::layout::SetName;

/// What the rules of a family depend on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Parameters {
    pub(crate) family: Family,
    /// The bit of the packet mark that requests masquerading.
    pub(crate) mark: u32,
    pub(crate) masquerade_all: bool,
    /// How traffic from pods of this node is recognised. `None`: it is not.
    pub(crate) pods: Option<Pods>,
}

/// How traffic from pods of this node is recognised.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Pods {
    /// By its source.
    Network(IpNet),
    /// By the name of the input interface.
    Interface(Box<str>),
    /// By the first characters of the name of the input interface.
    Prefix(Box<str>),
}

/// Chains and rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) chains: Vec<Chain>,
    pub(crate) rules: Vec<Rule>,
}

impl Part {
    /// The operations that add it.
    pub(crate) fn creation(&self) -> impl Iterator<Item = Operation> + '_ {
        let chains = self.chains.iter().cloned().map(Operation::add);
        chains.chain(self.rules.iter().cloned().map(Operation::add))
    }
}

/// The chains and rules of a table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Skeleton {
    /// What no hook has.
    pub(crate) inner: Part,
    /// The base chains and their rules: with them packets reach the table.
    pub(crate) base: Part,
}

impl Skeleton {
    pub(crate) fn new(table: &TableKey, parameters: &Parameters) -> Self {
        let mut builder = Builder {
            parameters,
            table: table.clone(),
            part: Part::default(),
            address: match parameters.family {
                Family::Ipv4 => 1,
                Family::Ipv6 => 4,
            },
        };
        builder.choices();
        builder.affinity();
        builder.kinds();
        builder.firewall();
        builder.checks();
        let inner = std::mem::take(&mut builder.part);
        builder.hooks();
        Self {
            inner,
            base: builder.part,
        }
    }
}

/// The operations that make a table with its sets and what no hook has.
pub(crate) fn creation(
    table: &TableKey,
    skeleton: &Skeleton,
    family: Family,
    flags: TableFlags,
) -> Vec<Operation> {
    let mut operations = vec![Operation::add(Table::new(table.clone()).with_flags(flags))];
    let sets = SetName::ALL.iter().map(|name| name.set(table, family));
    operations.extend(sets.map(Operation::add));
    operations.extend(skeleton.inner.creation());
    operations
}

/// How often an element is looked for that a transaction may replace: see [`class`](crate::class).
const LOOKUPS: usize = 2;

/// The chain that decides whether the frontend of a packet is restricted.
const RESTRICTIONS: &str = "restrictions";

/// The chain that refuses packets to frontends that have no endpoint.
const CHECK_ENDPOINTS: &str = "check-endpoints";

/// The chain that refuses these, and packets to cluster IPs.
const CHECK_SERVICES: &str = "check-services";

/// Whether an address may be the destination of translated packets.
pub(crate) fn is_destination(address: IpAddr) -> bool {
    let is_broadcast = matches!(address, IpAddr::V4(v4) if v4.is_broadcast());
    !address.is_unspecified() && !address.is_multicast() && !is_broadcast
}

#[cfg(test)]
mod tests {
    use kernlink_nftables::{Expression, Immediate, Item, SetFlags, Verdict};

    use super::*;
    use crate::layout::Slot;

    fn skeleton(family: Family) -> (TableKey, Skeleton) {
        let table = Slot::First.table(family);
        let parameters = Parameters {
            family,
            mark: 1 << 14,
            masquerade_all: false,
            pods: None,
        };
        let skeleton = Skeleton::new(&table, &parameters);
        (table, skeleton)
    }

    fn rules_of<'a>(part: &'a Part, chain: &'a str) -> impl Iterator<Item = &'a Rule> {
        part.rules.iter().filter(move |rule| *rule.chain.name == *chain)
    }

    fn jumps_to(rule: &Rule, chain: &str) -> bool {
        let jump = Expression::from(Immediate::verdict(Verdict::Jump(chain.into())));
        rule.expressions.contains(&jump)
    }

    #[test]
    fn one_rule_of_each_filter_hook_leads_to_the_restrictions_or_the_checks() {
        for family in Family::ALL {
            let (_, skeleton) = skeleton(family);
            for (chain, to) in [
                ("filter-prerouting-pre-dnat", RESTRICTIONS),
                ("filter-output-pre-dnat", RESTRICTIONS),
                ("filter-input", CHECK_ENDPOINTS),
                ("filter-forward", CHECK_SERVICES),
                ("filter-output", CHECK_SERVICES),
            ] {
                let rules: Vec<_> = rules_of(&skeleton.base, chain).collect();
                assert_eq!(rules.len(), 1, "{chain}");
                assert!(jumps_to(rules[0], to), "{chain}");
            }
        }
    }

    /// A lookup may miss an element that a transaction replaces: one that follows it finds the new one. Each chain that decides by a lookup of what is
    /// replaced has it twice.
    #[test]
    fn what_a_transaction_replaces_is_looked_up_twice() {
        for family in Family::ALL {
            let (_, skeleton) = skeleton(family);
            let lookups = |part: &Part, chain: &str, set: SetName| {
                let uses_set = |rule: &&Rule| {
                    let mut expressions = rule.expressions.iter();
                    expressions.any(|expression| {
                        matches!(expression, Expression::Lookup(lookup) if *lookup.set == *set.text())
                    })
                };
                rules_of(part, chain).filter(uses_set).count()
            };
            let groups = crate::ranges::groups(family).count();
            for (chain, expected) in [(RESTRICTIONS, 2), ("source-ranges", 2 * groups)] {
                let found = lookups(&skeleton.inner, chain, SetName::RestrictedFrontends);
                assert_eq!(found, expected, "{chain}");
            }
            for (chain, set) in [
                ("nat-prerouting", SetName::Frontends),
                ("nat-output", SetName::Frontends),
            ] {
                assert_eq!(lookups(&skeleton.base, chain, set), 2, "{chain}");
            }
            for chain in ["balance-0", "short-balance-0", "affinity-0", "short-affinity-0"] {
                let attempt = chain
                    .replace("balance", "try")
                    .replace("affinity", "affinity-try");
                let jumps = rules_of(&skeleton.inner, chain).filter(|rule| jumps_to(rule, &attempt));
                assert_eq!(jumps.count(), 2, "{chain}");
            }
        }
    }

    /// Linux before 6.5 refuses others.
    #[test]
    fn every_lookup_in_a_map_writes_its_value_to_a_register() {
        for family in Family::ALL {
            let (table, skeleton) = skeleton(family);
            let operations = creation(&table, &skeleton, family, TableFlags::empty());
            let maps: Vec<_> = operations
                .iter()
                .filter_map(|operation| match operation {
                    Operation::Add(Item::Set(set)) if set.flags.contains(SetFlags::MAP) => {
                        Some(set.key.name.clone())
                    }
                    _ => None,
                })
                .collect();
            assert!(!maps.is_empty());
            let parts = [&skeleton.inner, &skeleton.base];
            for rule in parts.iter().flat_map(|part| &part.rules) {
                for expression in &rule.expressions {
                    if let Expression::Lookup(lookup) = expression
                        && maps.contains(&lookup.set)
                    {
                        assert!(lookup.destination.is_some(), "{}: {lookup:?}", rule.chain);
                    }
                }
            }
        }
    }
}
