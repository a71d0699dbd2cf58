//! The state of iptables mode: the desired and observed chains and rules.

mod dirty;
mod ports;
mod record;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;
use std::time::Instant;

use kernlink_engine::Readings;
use kernlink_engine::plan::Subject;
use kernlink_engine::retire::Interim;
use kernlink_engine::table::Table;
use kernlink_host::CONNTRACK_BUCKETS;
use kernlink_host::flows::UdpFrontends;
use kernlink_iptables_restore::{ChainName, Rule, Table as RuleTable};
use kernlink_netfilter::{MissingExtensions, interim_rules};
use kernlink_services::{Family, InterfaceAddress, NodeFacts, ObjectName};

use self::ports::PortObjects;
use super::chains::{Counters, FixedChain, Jump, static_rules};
use super::config::Config;
use super::events::Events;
use super::key::Key;
use super::observed::{Observed, ObservedChain, fingerprint};
use super::port_chain::PortChain;
use super::rule_key::{Fingerprint, RuleKey, RuleText, rule_text};
use super::totals::Sums;
use super::touched::Touched;

/// The desired and observed chains and rules of iptables mode.
#[derive(Clone, Debug)]
pub struct State {
    pub(super) config: Arc<Config>,
    /// The families that are served, and those that were served before the configuration changed or by an earlier process.
    pub(super) managed: BTreeSet<Family>,
    /// By family, whether it was searched for chains of an earlier process.
    pub(super) is_searched: [bool; 2],
    pub(super) node: NodeFacts,
    pub(super) interfaces: Vec<InterfaceAddress>,
    pub(super) counters: Counters,
    /// The accounting objects that rules name.
    pub(super) accounting: Table<Box<str>, ()>,
    /// By family, if a retiring mode has any: the rules of `KUBE-POSTROUTING` that it needs meanwhile.
    interim_rules: [Option<Vec<Rule>>; 2],
    /// By family, whether a retiring mode may have virtual IPs on a link.
    has_virtual_ips: [bool; 2],
    /// The extensions that rules do without.
    pub(super) missing: MissingExtensions,
    /// Whether an extension was found to be missing since the last listing. Then everything is planned again, because the rules differ.
    pub(super) has_changed_support: bool,
    /// Whether a rule with an accounting object was refused.
    refuses_counters: bool,
    pub(super) sysctls: Table<Box<str>, Box<str>>,
    /// Whether the kernel accepts packets outside the window of a TCP connection, as last read or written. `None`: not read yet.
    pub(super) tcp_be_liberal: Option<bool>,
    pub(super) readings: Readings,
    /// Events that no sync has returned yet.
    pub(super) events: Events,
    pub(super) flows: UdpFrontends,
    /// The chains of service ports in table `nat`, by family.
    pub(super) chains: [Table<ChainName, PortChain, Fingerprint>; 2],
    /// Their rules in shared chains, by family.
    pub(super) rules: [Table<RuleKey, ()>; 2],
    /// By family.
    pub(super) fixed: [FixedChains; 2],
    /// The objects whose last operation was refused without a change: they are as recorded.
    refused: BTreeSet<Key>,
    /// What the planned steps change that are not done yet.
    pub(super) touched: BTreeMap<Key, Vec<Touched>>,
    /// The objects of each service port, by its id.
    ports: Vec<PortObjects>,
    /// The number of endpoints of all service ports, by family.
    pub(super) endpoints: [usize; 2],
    /// By family.
    pub(super) sums: [Sums; 2],
    /// Whether the sync in progress, or the last one, read the whole kernel.
    pub(super) is_full: bool,
    /// Whether rules of endpoints have comments, by family.
    has_comments: [bool; 2],
    /// Whether all service ports are to be compiled again.
    pub(super) is_outdated: bool,
    /// The time of the plan or sync in progress, or of the last one.
    pub(super) now: Option<Instant>,
    /// Whether an operation of this sync changed what the fixed chains depend on.
    pub(super) changes_fixed: bool,
    /// Whether one of the last sync did: the next sync, which is due at once, writes them.
    pub(super) is_fixed_outdated: bool,
    /// By family, how often the watched chains were read again.
    turns: [usize; 2],
}

/// The fixed chains of a family as last read or written.
#[derive(Clone, Debug, Default)]
pub(super) struct FixedChains {
    pub(super) observed: BTreeMap<FixedChain, ObservedChain>,
    /// Whether each of the [`jumps`](super::chains::jumps) exists.
    jumps: Vec<bool>,
    /// The jumps without a condition that another mode left.
    leftover_jumps: Vec<Jump>,
    /// Whether all tables could be read.
    is_readable: bool,
    /// Tables that the last listing could not read. Their recorded content is what this process wrote.
    unread: BTreeSet<RuleTable>,
    /// Whether the tool or the kernel does not have the tables.
    is_unsupported: bool,
    pub(super) is_dirty: bool,
    /// Whether it was read and its rules are not distinguished yet.
    is_new: bool,
    /// Whether the last reading found another state than the recorded one.
    pub(super) is_changed: bool,
}

impl FixedChains {
    /// Whether a reading shows that what is recorded was changed or removed.
    fn is_changed_in(&self, read: &Observed) -> bool {
        let is_lost = |(chain, recorded): (&FixedChain, &ObservedChain)| match read.fixed.get(chain) {
            None => true,
            Some(found) if chain.is_shared() || *chain == FixedChain::FilterFirewall => {
                !recorded.own.iter().all(|text| found.rules.contains(text))
            }
            Some(found) => found.rules != recorded.rules,
        };
        let mut jumps = self.jumps.iter().zip(&read.jumps);
        self.is_readable
            && read.unread.is_empty()
            && (self.observed.iter().any(is_lost) || jumps.any(|(recorded, found)| *recorded && !*found))
    }
}

impl State {
    /// The state before Services and kernel were read: that of a node without Services.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        let mut state = Self {
            config: Arc::new(config.clone()),
            managed: BTreeSet::new(),
            is_searched: [false; 2],
            node: NodeFacts::default(),
            interfaces: Vec::new(),
            counters: Counters::ALL,
            accounting: Table::default(),
            interim_rules: Default::default(),
            has_virtual_ips: [false; 2],
            missing: MissingExtensions::default(),
            has_changed_support: false,
            refuses_counters: false,
            sysctls: Table::default(),
            tcp_be_liberal: None,
            readings: Readings::new("tables", false),
            events: Events::default(),
            flows: UdpFrontends::default(),
            chains: std::array::from_fn(|_| Table::default()),
            rules: std::array::from_fn(|_| Table::default()),
            fixed: std::array::from_fn(|_| FixedChains::default()),
            refused: BTreeSet::new(),
            touched: BTreeMap::new(),
            ports: Vec::new(),
            endpoints: [0; 2],
            sums: Default::default(),
            is_full: false,
            has_comments: [true; 2],
            is_outdated: false,
            now: None,
            changes_fixed: false,
            is_fixed_outdated: false,
            turns: [0; 2],
        };
        state.configure();
        state
    }

    pub(crate) fn configure(&mut self) {
        self.managed.extend(&self.config.services.families);
        for family in self.managed.clone() {
            self.set_fixed_dirty(family);
        }
    }

    /// Manages a family that is not configured.
    pub(super) fn manage(&mut self, family: Family) {
        self.managed.insert(family);
        self.set_fixed_dirty(family);
    }

    /// Records the accounting objects that exist, and sets those that rules name: those that are available, and none after a rule with one
    /// was refused, because the kernel or the tool lacks the match.
    pub(super) fn observe_accounting(&mut self, available: Counters, existing: Vec<Box<str>>) {
        let objects = existing.into_iter().map(|name| (name, ()));
        self.accounting.observe_all(objects);
        let counters = if self.refuses_counters {
            Counters::default()
        } else {
            available
        };
        self.set_counters(counters);
    }

    fn set_counters(&mut self, counters: Counters) {
        self.is_outdated |= counters != self.counters;
        self.counters = counters;
        for (name, is_named) in counters.by_name() {
            self.accounting
                .set(name.into(), is_named.then_some(()), Subject::DataPath);
        }
    }

    /// Sets whether the kernel accepts packets outside the window of a TCP connection; without a value it does not.
    pub(super) fn set_tcp_be_liberal(&mut self, value: Option<&str>) {
        let is_liberal = Some(value.is_some_and(|value| value != "0"));
        if is_liberal != self.tcp_be_liberal {
            self.tcp_be_liberal = is_liberal;
            for family in self.managed.clone() {
                self.set_fixed_dirty(family);
            }
        }
    }

    /// The whole kernel is read by the plan or sync in progress.
    pub(super) fn set_full(&mut self) {
        self.is_full = true;
        self.has_changed_support = false;
    }

    /// Counts a reading of the watched chains. Returns the number of those before.
    pub(super) fn next_turn(&mut self, family: Family) -> usize {
        let turns = &mut self.turns[family.index()];
        std::mem::replace(turns, turns.wrapping_add(1))
    }

    pub(super) fn sums(&self, family: Family) -> &Sums {
        &self.sums[family.index()]
    }

    /// Records that the tables of a family, which were read before, cannot be read now.
    pub(super) fn record_unread(&mut self, family: Family) {
        self.readings.fail(family, self.now);
    }

    /// Sets the desired sysctls, which depend on the configuration and the number of processors.
    pub(super) fn configure_sysctls(&mut self, processors: u32) {
        let mut desired: BTreeMap<Box<str>, Box<str>> = super::sysctls::sysctls(&self.config, processors)
            .into_iter()
            .map(|sysctl| (sysctl.name, sysctl.value))
            .collect();
        if let Some(buckets) = self.config.conntrack.buckets(processors) {
            desired.insert(CONNTRACK_BUCKETS.into(), buckets.to_string().into());
        }
        let names = self.sysctls.iter_desired().map(|(name, _)| name.clone());
        let withdrawn: Vec<Box<str>> = names.filter(|name| !desired.contains_key(name)).collect();
        for name in withdrawn {
            self.sysctls.remove(&name, &Subject::Node);
        }
        for (name, value) in desired {
            self.sysctls.set(name, Some(value), Subject::Node);
        }
    }

    /// The configuration.
    #[must_use]
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The families that are served.
    pub fn families(&self) -> impl Iterator<Item = Family> + '_ {
        self.config.services.families.iter().copied()
    }

    pub(super) fn tables(
        &mut self,
        family: Family,
    ) -> (
        &mut Table<ChainName, PortChain, Fingerprint>,
        &mut Table<RuleKey, ()>,
    ) {
        (&mut self.chains[family.index()], &mut self.rules[family.index()])
    }

    /// The rules of a fixed chain that do not depend on Services, as they are while retiring modes need rules.
    pub(super) fn static_rules(&self, chain: FixedChain, family: Family) -> Vec<Rule> {
        let mut rules = self.rules_of(chain, family, self.has_virtual_ips[family.index()]);
        if chain == FixedChain::NatPostrouting {
            let interim = self.interim_rules[family.index()].iter().flatten();
            rules.splice(..0, interim.cloned());
        }
        rules
    }

    /// The rules of a fixed chain that do not depend on Services.
    pub(super) fn configured_rules(&self, chain: FixedChain, family: Family) -> Vec<Rule> {
        self.rules_of(chain, family, false)
    }

    fn rules_of(&self, chain: FixedChain, family: Family, has_virtual_ips: bool) -> Vec<Rule> {
        let is_liberal = self
            .tcp_be_liberal
            .unwrap_or(self.config.conntrack.tcp_be_liberal);
        let (config, node) = (&self.config, &self.node);
        static_rules(
            chain,
            config,
            family,
            node,
            self.counters,
            is_liberal,
            has_virtual_ips,
        )
    }

    /// The chains of service ports of a family with their rules, by service port, in kube-proxy's order.
    pub(super) fn port_chains(&self, family: Family) -> Vec<(ChainName, Vec<Rule>)> {
        let names = self.sorted_ports(family).into_iter();
        names
            .flat_map(|port| port.chains.iter())
            .filter_map(|name| Some((*name, self.chains[family.index()].desired(name)?.rules())))
            .collect()
    }

    /// The rules of service ports in a fixed chain, in their normal form, by service port.
    pub(super) fn shared_rules(&self, chain: FixedChain, family: Family) -> Vec<Rule> {
        let ports = self.sorted_ports(family).into_iter();
        let rules = ports.flat_map(|port| port.rules.iter());
        rules
            .filter(|(of, _)| *of == chain)
            .filter_map(|(_, text)| text.parse().ok())
            .collect()
    }

    fn sorted_ports(&self, family: Family) -> Vec<&PortObjects> {
        let mut ports: Vec<&PortObjects> = self
            .ports
            .iter()
            .filter(|port| port.family == Some(family))
            .collect();
        ports.sort_by_key(|port| &port.name);
        ports
    }

    /// The fixed chains of a family as last read or written.
    pub(super) fn fixed(&self, family: Family) -> &BTreeMap<FixedChain, ObservedChain> {
        &self.fixed[family.index()].observed
    }

    pub(super) fn has_jump(&self, family: Family, position: usize) -> bool {
        let jumps = &self.fixed[family.index()].jumps;
        jumps.get(position).copied().unwrap_or_default()
    }

    /// The jumps without a condition that another mode left.
    pub(super) fn leftover_jumps(&self, family: Family) -> &[Jump] {
        &self.fixed[family.index()].leftover_jumps
    }

    /// Sets the rules of `KUBE-POSTROUTING` that retiring modes need.
    pub(super) fn set_interim(&mut self, interim: &[Interim]) {
        let chain = FixedChain::NatPostrouting;
        for family in Family::ALL {
            let rules = interim_rules(interim, family, chain.table(), &chain.name());
            let known = &mut self.interim_rules[family.index()];
            let is_equal = known.iter().flatten().eq(rules.iter().flatten());
            *known = rules;
            if !is_equal && self.managed.contains(&family) {
                self.set_fixed_dirty(family);
            }
        }
    }

    /// Sets the families in which a retiring mode may have virtual IPs on a link.
    pub(super) fn set_virtual_ips(&mut self, families: &BTreeSet<Family>) {
        for family in Family::ALL {
            let known = &mut self.has_virtual_ips[family.index()];
            let is_equal = *known == families.contains(&family);
            *known = families.contains(&family);
            if !is_equal && self.managed.contains(&family) {
                self.set_fixed_dirty(family);
            }
        }
    }

    /// Whether another mode may serve Services of this family: one needs rules of `KUBE-POSTROUTING`, or will not any more.
    pub(super) fn has_interim_rules(&self, family: Family) -> bool {
        self.interim_rules[family.index()].is_some()
    }

    /// Whether a table could not be read.
    pub(super) fn is_unread(&self, family: Family, table: RuleTable) -> bool {
        self.fixed[family.index()].unread.contains(&table)
    }

    /// Whether the tables of a family could be read.
    pub(super) fn is_readable(&self, family: Family) -> bool {
        self.fixed[family.index()].is_readable
    }

    pub(super) fn is_fixed_dirty(&self, family: Family) -> bool {
        self.fixed[family.index()].is_dirty
    }

    pub(super) fn set_fixed_dirty(&mut self, family: Family) {
        self.fixed[family.index()].is_dirty = true;
    }

    /// Whether rules of Services can be added to the fixed chains of a family.
    pub(super) fn is_fixed_in_place(&self, family: Family) -> bool {
        let observed = self.fixed(family);
        let mut needed =
            FixedChain::of(&self.config, family).filter(|chain| *chain != FixedChain::FilterFirewall);
        needed.all(|chain| observed.contains_key(&chain))
    }

    /// Whether the chains and rules of a Service are in place, as last read or written, and the chains and jumps that all Services share.
    pub(super) fn serves(&self, family: Family, service: &ObjectName) -> bool {
        let changes = self.touched.get(&Key::Service(family, service.clone()));
        let jumps = &self.fixed[family.index()].jumps;
        self.config.services.families.contains(&family)
            && self.is_fixed_in_place(family)
            && !jumps.is_empty()
            && jumps.iter().all(|exists| *exists)
            && changes.is_none_or(|changes| changes.iter().all(|changed| self.is_in_place(family, changed)))
    }

    /// Whether a chain or rule that a step changes is as it is desired: a step that failed may have been executed, or another program may have
    /// done the same.
    fn is_in_place(&self, family: Family, changed: &Touched) -> bool {
        match changed {
            Touched::Chain(name) => {
                let chains = &self.chains[family.index()];
                chains.desired(name).is_none_or(|desired| {
                    let observed = chains.observed(name);
                    observed.is_some_and(|observed| *observed == fingerprint(&desired.rules(), family))
                })
            }
            Touched::Rule(key) => {
                let rules = &self.rules[family.index()];
                rules.is_desired(key) == rules.is_observed(key)
            }
        }
    }

    /// Replaces what was read of a family, and makes it dirty. What is recorded of tables that could not be read stays, without the jumps.
    pub(super) fn observe_rules(&mut self, family: Family, read: Observed) {
        let is_changed = self.fixed[family.index()].is_changed_in(&read);
        let (chain_table, _) = self.tables(family);
        if read.unread.contains(&RuleTable::Nat) {
            chain_table.set_all_dirty();
        } else {
            chain_table.observe_all(read.chains);
        }
        let fixed = &mut self.fixed[family.index()];
        let recorded = std::mem::take(&mut fixed.observed).into_iter();
        let mut observed = read.fixed;
        observed.extend(recorded.filter(|(chain, _)| read.unread.contains(&chain.table())));
        *fixed = FixedChains {
            is_changed,
            observed,
            jumps: read.jumps,
            leftover_jumps: read.leftover_jumps,
            is_readable: read.unread.is_empty(),
            unread: read.unread,
            is_unsupported: fixed.is_unsupported,
            is_dirty: true,
            is_new: true,
        };
    }

    /// Forgets what a table that cannot be read contains: all of it is written again.
    pub(super) fn forget(&mut self, family: Family, table: RuleTable) {
        let fixed = &mut self.fixed[family.index()];
        if !fixed.unread.contains(&table) {
            return;
        }
        fixed.observed.retain(|chain, _| chain.table() != table);
        fixed.is_dirty = true;
        let (chains, rules) = self.tables(family);
        if table == RuleTable::Nat {
            let names: Vec<ChainName> = chains.iter_observed().map(|(name, _)| *name).collect();
            for name in names {
                chains.observe(name, None);
                chains.set_dirty(name);
            }
        }
        let of_table = rules.iter_observed().map(|(key, ())| key);
        let keys: Vec<RuleKey> = of_table
            .filter(|key| key.chain.table() == table)
            .cloned()
            .collect();
        for key in keys {
            rules.observe(key.clone(), None);
            rules.set_dirty(key);
        }
    }

    pub(super) fn set_unsupported(&mut self, family: Family, is_unsupported: bool) {
        self.fixed[family.index()].is_unsupported = is_unsupported;
    }

    /// Whether the host does not have the tables of a family.
    pub(super) fn is_unsupported(&self, family: Family) -> bool {
        self.fixed[family.index()].is_unsupported
    }

    /// Whether nothing is written in a family: the host does not have its tables, and no Service needs them.
    pub(super) fn is_without_tables(&self, family: Family) -> bool {
        let (chains, rules) = (&self.chains[family.index()], &self.rules[family.index()]);
        let has_services = chains.iter_desired().next().is_some() || rules.iter_desired().next().is_some();
        self.is_unsupported(family) && !has_services
    }

    /// Records what was read of the objects of these keys, and makes them dirty. All others stay as they are.
    pub(super) fn observe_objects(&mut self, family: Family, observed: &Observed, keys: &[&Key]) {
        let fingerprints: HashMap<&ChainName, &Fingerprint> = observed
            .chains
            .iter()
            .map(|(name, found)| (name, found))
            .collect();
        // It is not known whether a rule exists: a second copy of it would stay for ever.
        for table in &observed.unread {
            self.forget(family, *table);
        }
        for key in keys {
            let touched = match key {
                Key::Chain(_, name) => vec![Touched::Chain(*name)],
                _ => self.touched.get(*key).cloned().unwrap_or_default(),
            };
            let (chains, rules) = self.tables(family);
            for object in touched {
                match object {
                    Touched::Chain(name) => {
                        chains.observe(name, fingerprints.get(&name).map(|found| **found));
                        chains.set_dirty(name);
                    }
                    Touched::Rule(rule) => {
                        let chain = observed.fixed.get(&rule.chain);
                        let exists = chain.is_some_and(|chain| chain.rules.contains(&rule.text));
                        rules.observe(rule.clone(), exists.then_some(()));
                        rules.set_dirty(rule);
                    }
                }
            }
        }
    }

    /// Distinguishes the rules of Services in shared chains from those that do not depend on Services, if they were read since the last
    /// call. Facts of the node must be known: some of the latter depend on them.
    pub(super) fn split_rules(&mut self, family: Family) {
        if !std::mem::take(&mut self.fixed[family.index()].is_new) {
            return;
        }
        let mut rules = Vec::new();
        let mut fixed = std::mem::take(&mut self.fixed[family.index()].observed);
        let unread = self.fixed[family.index()].unread.clone();
        let is_read = |chain: &FixedChain| !unread.contains(&chain.table());
        let shared = fixed.iter_mut().filter(|(chain, _)| chain.is_shared());
        for (chain, found) in shared.filter(|(chain, _)| is_read(chain)) {
            let own = self.static_texts(*chain, family);
            let of_services = found.rules.iter().filter(|text| !own.contains(text));
            rules.extend(of_services.map(|text| (RuleKey::new(*chain, text), ())));
            found.own = own;
        }
        if let Some(firewall) = fixed.get_mut(&FixedChain::FilterFirewall) {
            firewall.own = self.static_texts(FixedChain::FilterFirewall, family);
            firewall.own.retain(|text| firewall.rules.contains(text));
        }
        self.fixed[family.index()].observed = fixed;
        let (_, rule_table) = self.tables(family);
        let recorded = rule_table.iter_observed();
        let recorded = recorded.filter(|(key, ())| !is_read(&key.chain));
        rules.extend(recorded.map(|(key, ())| (key.clone(), ())));
        rule_table.observe_all(rules);
    }

    fn static_texts(&self, chain: FixedChain, family: Family) -> Vec<RuleText> {
        let rules = self.static_rules(chain, family);
        rules.iter().map(|rule| rule_text(rule, family)).collect()
    }
}
