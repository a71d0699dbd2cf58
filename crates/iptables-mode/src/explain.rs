//! The chains and rules that serve a service port, for an operator: as they should be, and as they are.

use std::collections::BTreeMap;
use std::collections::BTreeSet;

use kernlink_base::ErrorChain;
use kernlink_engine::{Found, KernelObject};
use kernlink_iptables_restore::{Chain, ChainName, Error, Iptables, Table};
use kernlink_services::{Family, ServicePortId};

use super::chains::FixedChain;
use super::rule_key::{RuleText, rule_text};
use super::state::State;

/// A program is started for each chain that is read.
const MOST_CHAINS: usize = 32;

/// The chains and rules of a service port, as they should be. They are read on another thread.
#[derive(Clone, Debug)]
pub struct PortRules {
    family: Family,
    /// In table `nat`, with their rules.
    chains: Vec<(ChainName, Vec<RuleText>)>,
    /// Its rules in chains that all Services share.
    shared: BTreeMap<FixedChain, Vec<RuleText>>,
}

impl State {
    /// The chains and rules of a service port. `None` if it does not exist.
    #[must_use]
    pub fn port_rules(&self, id: ServicePortId) -> Option<PortRules> {
        let (family, chains, rules) = self.objects_of(id)?;
        let tables = &self.chains[family.index()];
        let mut shared: BTreeMap<FixedChain, Vec<RuleText>> = BTreeMap::new();
        for (chain, rule) in rules {
            shared.entry(*chain).or_default().push(rule.clone());
        }
        Some(PortRules {
            family,
            chains: chains
                .iter()
                .filter_map(|name| {
                    let rules = tables.desired(name)?.rules();
                    let rules = rules.iter().map(|rule| rule_text(rule, family)).collect();
                    Some((*name, rules))
                })
                .collect(),
            shared,
        })
    }
}

impl PortRules {
    /// Reads the chains, each by its name: those of the service port, and the shared ones that have rules of it.
    pub fn find(&self, iptables: &mut dyn Iptables) -> Vec<KernelObject> {
        let mut objects = Vec::new();
        for (fixed, rules) in &self.shared {
            let name = fixed.name();
            let found = match iptables.list_chain(self.family, fixed.table(), &name) {
                Ok(Some(chain)) => texts(&chain, self.family),
                outcome => {
                    objects.push(without_chain(fixed.table(), &name, outcome.err().as_ref()));
                    continue;
                }
            };
            let found: BTreeSet<&str> = found.iter().map(AsRef::as_ref).collect();
            for rule in rules {
                let desired = line(fixed.table(), &name, rule);
                objects.push(match found.contains(&**rule) {
                    true => KernelObject::same(desired),
                    false => KernelObject::missing(desired),
                });
            }
        }
        for (name, rules) in self.chains.iter().take(MOST_CHAINS) {
            let found = match iptables.list_chain(self.family, Table::Nat, name) {
                Ok(Some(chain)) => texts(&chain, self.family),
                outcome => {
                    objects.push(without_chain(Table::Nat, name, outcome.err().as_ref()));
                    continue;
                }
            };
            let lines = |rules: &[RuleText]| {
                let lines: Vec<String> = rules.iter().map(|rule| line(Table::Nat, name, rule)).collect();
                lines.join("\n")
            };
            objects.push(match found == *rules {
                true => KernelObject::same(lines(rules)),
                false if found.is_empty() => KernelObject::different(lines(rules), "an empty chain"),
                false => KernelObject::different(lines(rules), lines(&found)),
            });
        }
        let more = self.chains.len().saturating_sub(MOST_CHAINS);
        if more > 0 {
            objects.push(KernelObject {
                desired: format!("{more} more chains of table nat"),
                found: Found::NotRead,
            });
        }
        objects
    }
}

/// The rules of a chain in their normal form; those that cannot be parsed at their places.
fn texts(chain: &Chain, family: Family) -> Vec<RuleText> {
    let mut rules: Vec<RuleText> = chain
        .rules
        .iter()
        .map(|rule| rule_text(&rule.rule, family))
        .collect();
    for place in chain.unreadable.keys() {
        rules.insert((*place).min(rules.len()), "a rule that cannot be parsed".into());
    }
    rules
}

fn line(table: Table, chain: &ChainName, rule: &str) -> String {
    format!("-t {table} -A {chain} {rule}")
}

fn without_chain(table: Table, chain: &ChainName, error: Option<&Error>) -> KernelObject {
    let desired = format!("-t {table} -N {chain}");
    match error {
        Some(error) => KernelObject::unknown(desired, ErrorChain(error).to_string()),
        None => KernelObject::missing(desired),
    }
}
