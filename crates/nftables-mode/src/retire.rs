//! nftables mode on a node that it does not serve any more: the tables of kernlink, and those of kube-proxy's nftables mode.
//!
//! The tables translate new connections, before or after those of another mode. A frontend that the serving mode does not serve yet keeps its
//! elements; with the last one the tables are deleted. Established connections continue without them: connection tracking translates
//! their packets.
//!
//! The tables also refuse packets to cluster IPs that nothing translated, such as those that IPVS accepts. With the elements of the first
//! frontends what refuses packets to them is deleted.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::IpAddr;
use std::time::Instant;

use ipnet::IpNet;
use kernlink_base::ErrorChain;
use kernlink_engine::retire::{Kept, Retire, Retired, RetiredStep, Round, Unserved};
use kernlink_nftables::{
    Commands, Data, Element, Elements, Error, Expression, ItemKey, Nftables, Operation, Set, TableKey,
    Verdict,
};
use kernlink_services::{Family, FrontendKey, Protocol};

use crate::item::{Shared, protocol_of, read_frontend};
use crate::layout::{KUBE_PROXY_TABLE, SetName, Slot};
use crate::ranges;

/// The most elements that are deleted by one transaction.
const MOST_ELEMENTS: usize = 4_000;

/// The maps of kube-proxy's table whose keys are frontends.
const KUBE_PROXY_SETS: [&str; 3] = ["service-ips", "no-endpoint-services", "firewall-ips"];
/// Those whose keys are protocol and port.
const KUBE_PROXY_NODE_PORTS: [&str; 2] = ["service-nodeports", "no-endpoint-nodeports"];

/// Finds and removes what nftables mode left: its tables, and those of kube-proxy's nftables mode.
pub struct Retiring(Box<dyn Nftables>);

impl Retiring {
    /// Through these tables.
    #[must_use]
    pub fn new(tables: Box<dyn Nftables>) -> Self {
        Self(tables)
    }

    /// The tables that exist, and why those of a family could not be read.
    fn tables(&mut self) -> (Vec<(Family, TableKey)>, Vec<String>) {
        let (mut found, mut problems) = (Vec::new(), Vec::new());
        for family in Family::ALL {
            match self.0.tables(Some(family.into())) {
                Ok(tables) => {
                    let tables = tables.into_iter().map(|table| table.key);
                    let owned = tables.filter(|table| is_owned(family, table));
                    found.extend(owned.map(|table| (family, table)));
                }
                // Without nf_tables there is no table.
                Err(error) if error.is_unsupported() => {}
                Err(error) => problems.push(text(&error)),
            }
        }
        (found, problems)
    }

    /// Executes operations as one step, if requested.
    fn step(
        &mut self,
        round: &Round<'_>,
        family: Family,
        operations: &[Operation],
        sets: Vec<Set>,
    ) -> RetiredStep {
        let command = if let [operation @ Operation::Delete(ItemKey::Table(_))] = operations {
            format!("nft {operation}")
        } else {
            let commands = Commands::new(operations).with_sets(sets).to_string();
            format!("nft -f - <<END\n{commands}END")
        };
        round.step(family, command, || match self.0.apply(operations) {
            // Another program was faster.
            Err(error) if !error.is_not_found() => Err(text(&error)),
            _ => Ok(()),
        })
    }

    /// What is to be deleted of a table while some of its frontends stay. `None`: nothing of it stays.
    fn remaining(
        &mut self,
        family: Family,
        table: &TableKey,
        round: &Round<'_>,
    ) -> Result<Option<Remaining>, Error> {
        if round.unserved.keys().all(|key| key.family() != family) {
            return Ok(None);
        }
        let sets = self.0.sets(table)?;
        let is_kube_proxy = *table.name == *KUBE_PROXY_TABLE;
        let mut contents: Vec<(Set, Vec<Element>)> = Vec::new();
        for set in sets {
            let name = &*set.key.name;
            let is_of_frontends = if is_kube_proxy {
                KUBE_PROXY_SETS.contains(&name) || KUBE_PROXY_NODE_PORTS.contains(&name)
            } else {
                SetName::named(name).is_some_and(SetName::is_of_frontends)
            };
            if is_of_frontends || [CLUSTER_IPS, SERVICE_CIDRS].contains(&name) {
                let elements = self.0.list_elements(&set.key)?;
                contents.push((set, elements));
            }
        }
        let mut remaining = Remaining::default();
        let admitted = admitted(family, &contents);
        let (mut serving, mut node_ports) = (BTreeSet::new(), BTreeSet::new());
        for (set, elements) in contents
            .iter()
            .filter(|(set, _)| SERVING.contains(&&*set.key.name))
        {
            for owner in elements.iter().filter_map(|element| owner(family, set, element)) {
                match owner {
                    Owner::Frontend(frontend) => _ = serving.insert(frontend),
                    Owner::NodePort(protocol, port) => _ = node_ports.insert((protocol, port)),
                }
            }
        }
        for (key, unserved) in round.unserved {
            let is_here = serving.contains(key) || node_ports.contains(&(key.protocol, key.port));
            if key.family() == family && is_here && !is_restricted(unserved, admitted.get(key)) {
                remaining.held.insert(*key);
            }
        }
        if remaining.held.is_empty() {
            return Ok(None);
        }
        let is_held = |owner: &Owner| match owner {
            Owner::Frontend(frontend) => remaining.held.contains(frontend),
            Owner::NodePort(protocol, port) => {
                let mut held = remaining.held.iter();
                held.any(|held| (held.protocol, held.port) == (*protocol, *port))
            }
        };
        // A frontend of a held address may be served by the other mode already.
        let mut checked: BTreeSet<IpAddr> = remaining.held.iter().map(|held| held.address).collect();
        for (set, elements) in &contents {
            for owner in elements.iter().filter_map(|element| owner(family, set, element)) {
                if let Owner::Frontend(frontend) = &owner
                    && !is_held(&owner)
                {
                    checked.remove(&frontend.address);
                }
            }
        }
        let stays = |set: &Set, element: &Element| {
            if *set.key.name == *CLUSTER_IPS {
                let read = Shared::read(family, SetName::ClusterIps, &element.key);
                matches!(read, Some(Shared::ClusterIp(address)) if checked.contains(&address))
            } else {
                owner(family, set, element).is_some_and(|owner| is_held(&owner))
            }
        };
        let mut deleted = Vec::new();
        for (set, elements) in contents {
            let elements = elements.iter().filter(|element| !stays(&set, element));
            let elements: Vec<Element> = elements.map(Element::key_only).collect();
            deleted.push((set, elements));
        }
        deleted.sort_by_key(|(set, _)| rank(&set.key.name));
        remaining.deleted = deleted;
        if is_kube_proxy {
            remaining.rules = self.drop_rules(table)?;
        }
        Ok(Some(remaining))
    }

    /// The deletions of the rules of kube-proxy that drop packets to all other addresses of the ServiceCIDRs.
    fn drop_rules(&mut self, table: &TableKey) -> Result<Vec<Operation>, Error> {
        let rules = match self.0.rules(table, Some(KUBE_PROXY_CHECK_CLUSTER_IPS)) {
            Ok(rules) => rules,
            Err(error) if error.is_not_found() => Vec::new(),
            Err(error) => return Err(error),
        };
        let drops = |expression: &Expression| {
            matches!(expression, Expression::Immediate(immediate)
                if immediate.data == Data::Verdict(Verdict::Drop))
        };
        let rules = rules.iter().filter(|rule| rule.expressions.iter().any(drops));
        Ok(rules
            .filter_map(kernlink_nftables::Rule::key)
            .map(Operation::delete)
            .collect())
    }
}

/// The sets whose elements lead to endpoints.
const SERVING: [&str; 3] = ["frontends", KUBE_PROXY_SETS[0], KUBE_PROXY_NODE_PORTS[0]];

/// The set of cluster IPs, in both tables.
const CLUSTER_IPS: &str = "cluster-ips";
/// The set of the networks of cluster IPs, in the tables of kernlink.
const SERVICE_CIDRS: &str = "service-cidrs";
/// The chain of kube-proxy's table that refuses packets to cluster IPs.
const KUBE_PROXY_CHECK_CLUSTER_IPS: &str = "cluster-ips-check";

/// In which order elements are deleted where one transaction cannot hold all: first what refuses packets, and what admits clients last, so
/// that at no time a client is served that is not to be.
fn rank(set: &str) -> u8 {
    match set {
        // The two ends of an interval in one transaction.
        SERVICE_CIDRS => 0,
        CLUSTER_IPS
        | "no-endpoints"
        | "no-local-endpoints"
        | "no-endpoint-services"
        | "no-endpoint-nodeports" => 1,
        _ if SERVING.contains(&set) => 2,
        "restricted-frontends" | "firewall-ips" => 4,
        "allowed-sources" => 5,
        _ => 3,
    }
}

/// What of a table stays, and what is deleted.
#[derive(Default)]
struct Remaining {
    held: BTreeSet<FrontendKey>,
    /// Deletions of rules.
    rules: Vec<Operation>,
    deleted: Vec<(Set, Vec<Element>)>,
}

impl Remaining {
    /// The transactions that delete it, each with its sets.
    fn transactions(self) -> Vec<(Vec<Operation>, Vec<Set>)> {
        let mut transactions = Vec::new();
        let (mut operations, mut sets, mut room) = (self.rules, Vec::new(), MOST_ELEMENTS);
        for (set, elements) in self.deleted {
            let mut elements = elements.into_iter().peekable();
            while elements.peek().is_some() {
                if room == 0 {
                    transactions.push((std::mem::take(&mut operations), std::mem::take(&mut sets)));
                    room = MOST_ELEMENTS;
                }
                let part: Vec<Element> = elements.by_ref().take(room).collect();
                room -= part.len();
                let part = Elements::new(set.key.clone(), part);
                operations.push(Operation::delete(ItemKey::Elements(part)));
                sets.push(set.clone());
            }
        }
        if !operations.is_empty() {
            transactions.push((operations, sets));
        }
        transactions
    }
}

/// What an element belongs to.
enum Owner {
    Frontend(FrontendKey),
    NodePort(Protocol, u16),
}

fn owner(family: Family, set: &Set, element: &Element) -> Option<Owner> {
    if KUBE_PROXY_NODE_PORTS.contains(&&*set.key.name) {
        let [protocol, _, _, _, high, low, ..] = element.key.as_bytes() else {
            return None;
        };
        let protocol = protocol_of(*protocol)?;
        return Some(Owner::NodePort(protocol, u16::from_be_bytes([*high, *low])));
    }
    read_frontend(family, &element.key).map(|(key, _)| Owner::Frontend(key))
}

/// The source ranges of the restricted frontends, by the sets of kernlink. Those of kube-proxy are in rules.
fn admitted(family: Family, contents: &[(Set, Vec<Element>)]) -> BTreeMap<FrontendKey, Vec<IpNet>> {
    let mut admitted: BTreeMap<FrontendKey, Vec<IpNet>> = BTreeMap::new();
    for (set, elements) in contents {
        let is_of_sources = match SetName::named(&set.key.name) {
            Some(SetName::RestrictedFrontends) => false,
            Some(SetName::AllowedSources) => true,
            _ => continue,
        };
        for (key, rest) in elements
            .iter()
            .filter_map(|element| read_frontend(family, &element.key))
        {
            let ranges = admitted.entry(key).or_default();
            ranges.extend(ranges::read(rest).filter(|_| is_of_sources));
        }
    }
    admitted
}

/// Whether a frontend must not stay: a client would be admitted that its present ranges do not admit.
fn is_restricted(unserved: &Unserved, admitted: Option<&Vec<IpNet>>) -> bool {
    if unserved.source_ranges.is_empty() {
        return false;
    }
    match admitted {
        Some(ranges) => !ranges.iter().all(|range| {
            let is_host = range.prefix_len() == range.max_prefix_len();
            // The frontend itself, for packets from the node.
            is_host
                || unserved
                    .source_ranges
                    .iter()
                    .any(|present| present.contains(range))
        }),
        // It admits all, or it is not known whom.
        None => true,
    }
}

/// Whether a table is of nftables mode, of kernlink or of kube-proxy.
fn is_owned(family: Family, table: &TableKey) -> bool {
    *table.name == *KUBE_PROXY_TABLE || Slot::ALL.into_iter().any(|slot| slot.table(family) == *table)
}

fn text(error: &Error) -> String {
    ErrorChain(error).to_string()
}

impl fmt::Debug for Retiring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Retiring").finish_non_exhaustive()
    }
}

impl Retire for Retiring {
    fn mode(&self) -> &'static str {
        "nftables mode"
    }

    fn is_read_again(&self) -> bool {
        true
    }

    fn read(&mut self, _now: Instant, _kept: Kept<'_>) -> Result<bool, String> {
        let (tables, problems) = self.tables();
        match problems.into_iter().next() {
            Some(problem) => Err(problem),
            None => Ok(!tables.is_empty()),
        }
    }

    fn is_serving(&mut self) -> Result<bool, String> {
        let (tables, problems) = self.tables();
        for (_, table) in tables {
            let chains = self.0.chains(&table).map_err(|error| text(&error))?;
            if chains.iter().any(|chain| chain.base.is_some()) {
                return Ok(true);
            }
        }
        problems.into_iter().next().map_or(Ok(false), Err)
    }

    fn retire(&mut self, round: &Round<'_>) -> Retired {
        let mut retired = Retired::default();
        let (tables, problems) = self.tables();
        retired.problems = problems;
        retired.is_gone = tables.is_empty() && retired.problems.is_empty();
        for (family, table) in tables {
            match self.remaining(family, &table, round) {
                Ok(None) => {
                    let operation = Operation::delete(ItemKey::Table(table));
                    let step = self.step(round, family, &[operation], Vec::new());
                    retired.steps.push(step);
                }
                Ok(Some(remaining)) => {
                    retired.held.extend(&remaining.held);
                    for (operations, sets) in remaining.transactions() {
                        retired.steps.push(self.step(round, family, &operations, sets));
                    }
                }
                Err(error) => retired.problems.push(text(&error)),
            }
        }
        retired
    }
}
