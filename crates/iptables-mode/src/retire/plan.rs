//! What is removed from the tables of a family, and what stays for now.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use kernlink_engine::retire::{Kept, Round, Unserved};
use kernlink_iptables_restore::{ChainName, Edit, Restore, Rule, Ruleset, Table};
use kernlink_netfilter::{Jump, Owned, frontend_of_rule, name_of_chain, node_port_of_rule, removal};
use kernlink_services::{Family, FrontendKey, Protocol};

use crate::chains::FixedChain;
use crate::cleanup::{TABLES, is_owned, owned_jumps};
use crate::names::ChainKind;

/// What is removed, and what stays.
pub(super) struct Remaining {
    pub(super) restore: Restore,
    /// The unserved frontends whose rules stay.
    pub(super) held: BTreeSet<FrontendKey>,
    /// Their rules in `KUBE-SERVICES`, if the serving mode writes this chain.
    pub(super) interim: Vec<Rule>,
}

impl Remaining {
    pub(super) fn of(tables: &Ruleset, family: Family, round: &Round<'_>) -> Self {
        let served = Held::of(tables, family, round);
        let mut restore = Restore::new(family);
        for table in TABLES {
            let mut edits = Vec::new();
            if table == Table::Nat {
                for chain in [FixedChain::NatServices, FixedChain::NatNodePorts] {
                    edits.extend(served.released(tables, family, chain, round));
                }
            }
            // Rules of table `filter` reject and drop what is not translated, such as packets to frontends that got endpoints since.
            let is_removed = served.frontends.is_empty() || (table == Table::Filter && round.has_served);
            if is_removed {
                edits.extend(removed_from(tables, family, table, round.kept));
            }
            if !edits.is_empty() {
                *restore.table_mut(table) = edits;
            }
        }
        let is_kept = round.kept;
        let services = FixedChain::NatServices;
        let interim = if is_kept(&name_of_chain(family, services.table(), services.text())) {
            let rules = rules_of_services(tables, family, round.kept).into_iter();
            rules.filter(|rule| served.keeps(services, rule)).collect()
        } else {
            Vec::new()
        };
        Self {
            restore,
            held: served.frontends,
            interim,
        }
    }
}

/// The unserved frontends that rules translate.
struct Held {
    frontends: BTreeSet<FrontendKey>,
    /// The node ports among them.
    node_ports: BTreeSet<(Protocol, u16)>,
}

impl Held {
    fn of(tables: &Ruleset, family: Family, round: &Round<'_>) -> Self {
        let services = rules_in(tables, FixedChain::NatServices);
        let of_services: BTreeMap<FrontendKey, &Rule> = services
            .filter_map(|rule| Some((frontend_of_rule(rule)?, rule)))
            .collect();
        let ports = rules_in(tables, FixedChain::NatNodePorts).filter_map(node_port_of_rule);
        let ports: BTreeSet<(Protocol, u16)> = ports.collect();
        let mut held = Self {
            frontends: BTreeSet::new(),
            node_ports: BTreeSet::new(),
        };
        let unserved = round
            .unserved
            .iter()
            .filter(|(frontend, _)| frontend.family() == family);
        for (frontend, unserved) in unserved {
            let port = (frontend.protocol, frontend.port);
            match of_services.get(frontend) {
                Some(rule) if !admits_others(tables, frontend, rule, unserved) => {
                    held.frontends.insert(*frontend);
                }
                Some(_) => {}
                // A frontend with a rule of its own is no node port.
                None if ports.contains(&port) => {
                    held.frontends.insert(*frontend);
                    held.node_ports.insert(port);
                }
                None => {}
            }
        }
        held
    }

    /// Whether a rule of one of the two chains stays.
    fn keeps(&self, chain: FixedChain, rule: &Rule) -> bool {
        if chain == FixedChain::NatNodePorts {
            return node_port_of_rule(rule).is_some_and(|port| self.node_ports.contains(&port));
        }
        match frontend_of_rule(rule) {
            Some(frontend) => self.frontends.contains(&frontend),
            None => !self.node_ports.is_empty() && target(rule) == Some(&FixedChain::NatNodePorts.name()),
        }
    }

    /// The edits that remove the rules of a chain that do not stay. Those of the serving mode stay.
    fn released(&self, tables: &Ruleset, family: Family, chain: FixedChain, round: &Round<'_>) -> Vec<Edit> {
        let kept = round.kept;
        let is_kept = kept(&name_of_chain(family, chain.table(), chain.text()));
        if self.frontends.is_empty() && !is_kept {
            // The whole chain is removed.
            return Vec::new();
        }
        let Some(found) = tables.chain(Table::Nat, &chain.name()) else {
            return Vec::new();
        };
        let is_left = |rule: &Rule| !is_kept || leads_to_own_chain(rule, family, kept);
        let stays = |rule: &&Rule| !is_left(rule) || self.keeps(chain, rule);
        let staying: Vec<&Rule> = found.rules().filter(stays).collect();
        if staying.len() == found.rules().len() {
            return Vec::new();
        }
        if !found.unreadable.is_empty() || !round.executes {
            // The chain cannot be written as a whole, or is not yet as it will be.
            let removed = found.rules().filter(|rule| !stays(rule));
            return removed
                .map(|rule| Edit::delete(chain.name(), rule.clone()))
                .collect();
        }
        let rules = staying
            .into_iter()
            .map(|rule| Edit::append(chain.name(), rule.clone()));
        std::iter::once(Edit::declare(chain.name()))
            .chain(rules)
            .collect()
    }
}

fn rules_in(tables: &Ruleset, chain: FixedChain) -> impl Iterator<Item = &Rule> {
    let found = tables.chain(chain.table(), &chain.name()).into_iter();
    found.flat_map(|chain| chain.rules())
}

fn target(rule: &Rule) -> Option<&ChainName> {
    rule.target.as_ref().and_then(|target| target.chain())
}

/// Whether a rule of table `nat` leads to a chain that only iptables mode has.
fn leads_to_own_chain(rule: &Rule, family: Family, kept: Kept<'_>) -> bool {
    target(rule).is_some_and(|to| is_removed(family, Table::Nat, to, kept))
}

/// Whether a chain is owned and nothing else has it.
fn is_removed(family: Family, table: Table, name: &ChainName, kept: Kept<'_>) -> bool {
    is_owned(table, name) && !kept(&name_of_chain(family, table, name.as_str()))
}

/// The rules of `KUBE-SERVICES` in table `nat` that lead to chains that only iptables mode has.
pub(super) fn rules_of_services(tables: &Ruleset, family: Family, kept: Kept<'_>) -> Vec<Rule> {
    let rules = rules_in(tables, FixedChain::NatServices);
    rules
        .filter(|rule| leads_to_own_chain(rule, family, kept))
        .cloned()
        .collect()
}

/// The jumps that no other mode has. Those to `KUBE-PROXY-FIREWALL` have conditions of their own in each mode.
fn removed_jumps(family: Family, kept: Kept<'_>) -> Vec<Jump> {
    let firewall = FixedChain::FilterProxyFirewall.name();
    let is_removed = |jump: &Jump| {
        target(&jump.rule)
            .is_some_and(|to| *to == firewall || !kept(&name_of_chain(family, jump.table, to.as_str())))
    };
    owned_jumps().into_iter().filter(is_removed).collect()
}

/// Whether a family has chains or jumps that are removed.
pub(super) fn is_left(tables: &Ruleset, family: Family, kept: Kept<'_>) -> bool {
    let jumps = removed_jumps(family, kept);
    tables.tables().any(|(table, rules)| {
        let has_jump = || {
            let of_table = jumps.iter().filter(|jump| jump.table == table);
            let mut of_table = of_table.filter_map(|jump| Some((rules.chain(&jump.chain)?, jump)));
            of_table.any(|(chain, jump)| chain.contains(&jump.rule, family))
        };
        let mut chains = rules.chains();
        chains.any(|(name, _)| is_removed(family, table, name, kept)) || has_jump()
    })
}

/// The edits that remove the chains and jumps of a table.
fn removed_from(tables: &Ruleset, family: Family, table: Table, kept: Kept<'_>) -> Vec<Edit> {
    let fixed = FixedChain::ALL.iter().copied().map(FixedChain::text);
    // The serving mode writes them, and this plan removes the rules in them that lead to chains of iptables mode.
    let rewritten: Vec<&str> = fixed
        .filter(|name| kept(&name_of_chain(family, table, name)))
        .collect();
    let owned = Owned {
        is_owned: &|name: &ChainName| is_removed(family, table, name, kept),
        jumps: &removed_jumps(family, kept),
        rewritten: &rewritten,
    };
    removal(tables, family, table, &owned).edits
}

/// Whether a rule of `KUBE-SERVICES` translates connections to a frontend of clients that its source ranges do not admit.
fn admits_others(tables: &Ruleset, frontend: &FrontendKey, rule: &Rule, unserved: &Unserved) -> bool {
    let ranges = &unserved.source_ranges;
    if ranges.is_empty() {
        return false;
    }
    let Some(admitted) = admitted(tables, rule) else {
        return true;
    };
    let is_in_range = |net: &IpNet| ranges.iter().any(|range| range.contains(net));
    // Connections of the node to its load balancer may have this source.
    let is_itself = |net: &IpNet| *net == IpNet::from(frontend.address);
    admitted.iter().any(|net| !is_itself(net) && !is_in_range(net))
}

/// The sources that a rule with source ranges admits. `None`: all.
fn admitted(tables: &Ruleset, rule: &Rule) -> Option<Vec<IpNet>> {
    let firewall = target(rule)?;
    if !firewall.as_str().starts_with(ChainKind::Firewall.prefix()) {
        return None;
    }
    let is_mark = |name: &ChainName| name.as_str().starts_with("KUBE-MARK-");
    let mut sources = Vec::new();
    for rule in tables.chain(Table::Nat, firewall)?.rules() {
        if target(rule).is_some_and(|to| !is_mark(to)) {
            // Without a source it admits all.
            sources.push(source(rule)?);
        }
    }
    Some(sources)
}

/// The source of the packets that a rule matches. `None`: any.
fn source(rule: &Rule) -> Option<IpNet> {
    let text = rule.to_string();
    let mut words = text.split_ascii_whitespace().take_while(|word| *word != "!");
    words.find(|word| *word == "-s")?;
    let word = words.next()?;
    word.parse()
        .ok()
        .or_else(|| Some(IpNet::from(word.parse::<IpAddr>().ok()?)))
}
