//! What iptables mode left on a node that IPVS mode serves now: its chains and jumps, and its rules in chains that both modes have.
//!
//! The rules of `KUBE-SERVICES` translate new connections before IPVS sees them. They stay, at the top of the chain, until everything that
//! serves the Services in IPVS mode is in place, and are removed then with the chains that they jump to. If operations of some Services fail,
//! only the rules of these stay: the others, and those of Services that do not exist any more, are removed by the next sync, with the chains of
//! table `filter`, and those that admit a client which source ranges do not admit any more. Established connections continue: connection tracking translates their packets without rules.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use kernlink_iptables_restore::matches::ConntrackState;
use kernlink_iptables_restore::{Chain, ChainName, Edit, Match, Restore, Rule, Ruleset, Table};
use kernlink_netfilter::{Jump, Owned, chain_name, comment_match, frontend_of_rule, removal};
use kernlink_services::{Family, FrontendKey};

use super::rules::{self, CHAINS, POSTROUTING, SERVICES};

/// The rules and chains of iptables mode in the tables of a family.
#[derive(Clone, Debug)]
pub(super) struct Leftovers {
    /// Those in `KUBE-SERVICES`, in order.
    services: Vec<Rule>,
    /// What removes the chains and jumps that only iptables mode has.
    filter: Vec<Edit>,
    /// Whether the next input that writes rules removes those of table `filter`.
    releases_filter: bool,
    nat: Vec<Edit>,
    /// The sources that rules admit to frontends with source ranges.
    admitted: BTreeMap<FrontendKey, Vec<IpNet>>,
}

impl Leftovers {
    /// What the tables of a family contain; `None` if there is nothing to remove. A chain that a foreign rule uses stays.
    pub(super) fn of(saved: &Ruleset, family: Family) -> Option<Self> {
        let jumps = jumps();
        let edits = |table: Table| {
            let owned = Owned {
                is_owned: &|name: &ChainName| is_only_chain_of_iptables_mode(table, name),
                jumps: &jumps,
                rewritten: shared_chains(table),
            };
            removal(saved, family, table, &owned).edits
        };
        let is_leftover = |rule: &&Rule| {
            let to = rule.target.as_ref().and_then(|target| target.chain());
            to.is_some_and(|to| is_only_chain_of_iptables_mode(Table::Nat, to))
        };
        let services = saved.chain(Table::Nat, &chain_name(SERVICES)).into_iter();
        let services: Vec<Rule> = services
            .flat_map(|chain| chain.rules())
            .filter(is_leftover)
            .cloned()
            .collect();
        let admitted = services.iter().filter_map(|rule| admitted(saved, rule)).collect();
        let leftovers = Self {
            services,
            admitted,
            filter: edits(Table::Filter),
            releases_filter: false,
            nat: edits(Table::Nat),
        };
        let is_empty =
            leftovers.services.is_empty() && leftovers.filter.is_empty() && leftovers.nat.is_empty();
        (!is_empty).then_some(leftovers)
    }

    /// Adds the rules that stay for now to the chains of IPVS mode.
    pub(super) fn add_to(&self, ruleset: &mut Ruleset, family: Family) {
        if self.services.is_empty() {
            return;
        }
        let nat = ruleset.table_mut(Table::Nat);
        let mut prepend = |name: &str, first: Vec<Rule>| {
            let name = chain_name(name);
            let rules = nat
                .chain(&name)
                .into_iter()
                .flat_map(|chain| chain.rules().cloned());
            let rules: Vec<Rule> = first.into_iter().chain(rules).collect();
            nat.insert(name, Chain::with_rules(rules));
        };
        prepend(SERVICES, self.services.clone());
        // Virtual IPs become local addresses before the rules are removed.
        prepend(POSTROUTING, vec![rules::masquerade_virtual_ips(family)]);
    }

    /// The removal, after the chains that both modes have are written by `changed`. Table `filter` first: its rules drop packets that are
    /// not translated.
    pub(super) fn removal(&self, family: Family, changed: Option<Restore>) -> Restore {
        let mut restore = Restore::new(family);
        if !self.releases_filter {
            let filter = self.filter.iter().cloned();
            restore.table_mut(Table::Filter).extend(filter);
        }
        for (table, edits) in changed.iter().flat_map(Restore::tables) {
            restore.table_mut(table).extend(edits.iter().cloned());
        }
        restore.table_mut(Table::Nat).extend(self.nat.iter().cloned());
        restore
    }
}

impl Leftovers {
    /// Whether rules translate connections to a frontend of clients that these ranges do not admit.
    pub(super) fn admits_others(&self, frontend: &FrontendKey, ranges: &[IpNet]) -> bool {
        let is_in_range = |net: &IpNet| ranges.iter().any(|range| range.contains(net));
        // Connections of the node to its load balancer may have this source.
        let is_itself = |net: &IpNet| *net == IpNet::from(frontend.address);
        let admitted = self.admitted.get(frontend);
        admitted.is_none_or(|nets| nets.iter().any(|net| !is_itself(net) && !is_in_range(net)))
    }

    /// Keeps only the rules of `KUBE-SERVICES` for frontends that IPVS does not serve, except `revoked` ones. Returns whether there is anything to
    /// write: rules that are not needed any more, or the chains of table `filter`, which reject and drop what is not translated.
    ///
    /// Does nothing if all frontends are served: then everything is removed together.
    pub(super) fn release(
        &mut self,
        unserved: &BTreeSet<FrontendKey>,
        revoked: &BTreeSet<FrontendKey>,
    ) -> bool {
        let named: Vec<Option<FrontendKey>> = self.services.iter().map(frontend_of_rule).collect();
        let known: BTreeSet<FrontendKey> = named.iter().flatten().copied().collect();
        // Node ports have one rule for all.
        let has_others = !unserved.is_subset(&known);
        let is_kept = |of: &Option<FrontendKey>| {
            of.map_or(has_others, |of| unserved.contains(&of) && !revoked.contains(&of))
        };
        if known.is_disjoint(revoked) && !named.iter().any(is_kept) {
            return false;
        }
        let before = self.services.len();
        let mut named = named.iter();
        self.services.retain(|_| named.next().is_some_and(is_kept));
        self.releases_filter = !self.filter.is_empty();
        self.releases_filter || self.services.len() < before
    }

    /// What an input that writes rules removes first.
    pub(super) fn released(&self) -> &[Edit] {
        if self.releases_filter { &self.filter } else { &[] }
    }

    /// Records that such an input was executed.
    pub(super) fn record_released(&mut self) {
        if std::mem::take(&mut self.releases_filter) {
            self.filter.clear();
        }
    }
}

/// The frontend of a rule of `KUBE-SERVICES` with source ranges, and the sources that they admit.
fn admitted(saved: &Ruleset, rule: &Rule) -> Option<(FrontendKey, Vec<IpNet>)> {
    let firewall = rule.target.as_ref()?.chain()?;
    if !firewall.as_str().starts_with("KUBE-FW-") {
        return None;
    }
    let is_mark = |name: &ChainName| name.as_str().starts_with("KUBE-MARK-");
    let mut sources = Vec::new();
    for rule in saved.chain(Table::Nat, firewall)?.rules() {
        let to = rule.target.as_ref().and_then(|target| target.chain());
        if to.is_some_and(|to| !is_mark(to)) {
            // Without a source it admits all.
            sources.push(source(rule)?);
        }
    }
    Some((frontend_of_rule(rule)?, sources))
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

fn shared_chains(table: Table) -> &'static [&'static str] {
    let chains = CHAINS.iter().find(|(of, _)| *of == table);
    chains.map_or(&[], |(_, chains)| *chains)
}

/// Whether a chain is one of iptables mode, and IPVS mode has none with this name. `KUBE-FIREWALL` belongs to the kubelet too.
pub(super) fn is_only_chain_of_iptables_mode(table: Table, name: &ChainName) -> bool {
    let name = name.as_str();
    let prefixes = ["KUBE-SVC-", "KUBE-SVL-", "KUBE-EXT-", "KUBE-FW-", "KUBE-SEP-"];
    match table {
        Table::Filter => [FILTER_SERVICES, EXTERNAL_SERVICES, NODE_PORTS, CANARY].contains(&name),
        Table::Nat => {
            [NODE_PORTS, CANARY].contains(&name) || prefixes.iter().any(|prefix| name.starts_with(prefix))
        }
        _ => false,
    }
}

const FILTER_SERVICES: &str = "KUBE-SERVICES";
const EXTERNAL_SERVICES: &str = "KUBE-EXTERNAL-SERVICES";
const NODE_PORTS: &str = "KUBE-NODEPORTS";
const PROXY_FIREWALL: &str = "KUBE-PROXY-FIREWALL";
const CANARY: &str = "KUBE-PROXY-CANARY";

/// The jumps of iptables mode that IPVS mode does not have.
pub(super) fn jumps() -> Vec<Jump> {
    let external = "kubernetes externally-visible service portals";
    let checks = "kubernetes health check service ports";
    let portals = "kubernetes service portals";
    let firewall = "kubernetes load balancer firewall";
    let jumps = [
        ("INPUT", EXTERNAL_SERVICES, true, external),
        ("FORWARD", EXTERNAL_SERVICES, true, external),
        ("INPUT", NODE_PORTS, false, checks),
        ("FORWARD", FILTER_SERVICES, true, portals),
        ("OUTPUT", FILTER_SERVICES, true, portals),
        ("INPUT", PROXY_FIREWALL, true, firewall),
        ("OUTPUT", PROXY_FIREWALL, true, firewall),
        ("FORWARD", PROXY_FIREWALL, true, firewall),
    ];
    let jump = |(from, to, is_new, comment): (&str, &str, bool, &str)| {
        let mut rule = Rule::new();
        if is_new {
            rule = rule.with(Match::conntrack_states([ConntrackState::New]));
        }
        Jump {
            table: Table::Filter,
            chain: chain_name(from),
            rule: rule.with(comment_match(comment)).jump(chain_name(to)),
        }
    };
    jumps.into_iter().map(jump).collect()
}
