//! iptables mode passes the contract of data paths.
#![cfg(feature = "fake")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test reports errors by panicking"
)]

#[path = "support/iptables_node.rs"]
mod iptables_node;
#[path = "support/requests.rs"]
mod requests;
#[path = "support/tracer.rs"]
mod tracer;

use std::collections::BTreeSet;
use std::net::SocketAddr;

use kernlink_dummylink::{LinkAddress, LinkName};
use kernlink_iptables_restore::{Chain, ChainName, Edit, Family, Rule, Ruleset, Table, Target};
use kernlink_netlink::{Errno, Error};
use kernlink_proxier::contract::{Calls, Fixture, Host, Random, Request, RetireFixture};
use kernlink_proxier::host::{FakeSysctls, LocalDetection, Shared};
use kernlink_proxier::iptables_mode::accounting::{Accounting, FakeAccounting};
use kernlink_proxier::iptables_mode::retire::Retiring;
use kernlink_proxier::iptables_mode::{Config, IptablesMode, Kernel, Operation};
use kernlink_proxier::ipvs_mode;
use kernlink_proxier::netfilter::SharedRules;
use kernlink_proxier::retire::Retire;

use crate::requests::{NODE, served};
use crate::tracer::Tracer;

#[derive(Clone, Debug)]
struct SharedAccounting(Shared<FakeAccounting>);

fn fault() -> Error {
    Error::Socket {
        call: "send on",
        errno: Errno::EIO,
    }
}

impl Accounting for SharedAccounting {
    fn ensure(&mut self, name: &str) -> Result<(), Error> {
        let ensure = || self.0.lock().ensure(name);
        let command = format!("nfacct add {name}");
        self.0.calls().change(&command, ensure, fault, || Error::TimedOut)
    }

    fn packets(&mut self, name: &str) -> Result<Option<u64>, Error> {
        let read = || self.0.lock().packets(name);
        self.0.calls().read(&name, read, fault)
    }
}

#[derive(Clone)]
struct Node {
    rules: SharedRules<kernlink_iptables_restore::Fake>,
    links: Shared<kernlink_dummylink::Fake>,
    conntrack: Shared<kernlink_conntrack::Fake>,
    accounting: SharedAccounting,
    sysctls: Shared<FakeSysctls>,
}

impl Node {
    fn new(calls: &Calls) -> Self {
        let eth0 = LinkName::new("eth0").unwrap();
        let addresses = NODE.map(|address| LinkAddress::host(address.parse().unwrap()).unwrap());
        let links = kernlink_dummylink::Fake::new().with_link(eth0, None, &addresses);
        let mut rules = kernlink_iptables_restore::Fake::new();
        rules.set_ruleset(Family::Ipv4, iptables_node::FOREIGN.parse().unwrap());
        Self {
            rules: SharedRules::new(rules, calls),
            links: Shared::new(links, calls),
            conntrack: Shared::new(kernlink_conntrack::Fake::new(), calls),
            accounting: SharedAccounting(Shared::new(FakeAccounting::default(), calls)),
            sysctls: Shared::new(FakeSysctls::default(), calls),
        }
    }

    fn tracer(&self) -> Tracer {
        let mut kernel = ipvs_mode::Kernel::fake();
        kernel.rules = Box::new(self.rules.without_faults());
        kernel.links = Box::new(self.links.without_faults());
        Tracer::of_kernel(&mut kernel)
    }
}

fn is_owned_name(name: &str) -> bool {
    name.starts_with("KUBE-")
}

/// Whether a rule is of another program: it is in the first rules of the host.
fn is_foreign(rule: &str) -> bool {
    [
        "CNI-HOSTPORT",
        "FOREIGN",
        "192.0.2.66",
        "10.244.0.9",
        "of the kubelet",
    ]
    .iter()
    .any(|text| rule.contains(text))
}

/// The chains of kube-proxy with rules, and the rules in other chains that lead to them.
fn owned_rules(ruleset: &Ruleset) -> Vec<(Table, ChainName, usize, Rule)> {
    let chains = ruleset.tables().flat_map(|(table, rules)| {
        rules
            .chains()
            .map(move |(name, chain)| (table, *name, chain.clone()))
    });
    let rules = chains.flat_map(|(table, name, chain)| {
        let rules: Vec<Rule> = chain.rules().cloned().collect();
        let rules = rules.into_iter().enumerate();
        rules.map(move |(index, rule)| (table, name, index, rule))
    });
    let is_owned = |(_, name, _, rule): &(Table, ChainName, usize, Rule)| {
        let leads_to_owned =
            matches!(&rule.target, Some(Target::Jump(chain)) if is_owned_name(chain.as_str()));
        (is_owned_name(name.as_str()) || leads_to_owned) && !is_foreign(&rule.to_string())
    };
    rules.filter(is_owned).collect()
}

/// Changes the rules of a chain.
fn edit(ruleset: &mut Ruleset, table: Table, name: ChainName, edit: impl FnOnce(&mut Vec<Rule>)) {
    let chain = ruleset.table_mut(table).chain_mut(name);
    let mut rules: Vec<Rule> = chain.rules().cloned().collect();
    edit(&mut rules);
    *chain = Chain::with_rules(rules);
}

impl Host for Node {
    type DataPath = IptablesMode;

    fn kernel(&self) -> Kernel {
        Kernel {
            rules: Box::new(self.rules.clone()),
            links: Box::new(self.links.clone()),
            conntrack: Box::new(self.conntrack.clone()),
            accounting: Box::new(self.accounting.clone()),
            sysctls: Box::new(self.sysctls.clone()),
        }
    }

    fn owned(&self) -> String {
        let mut lines: Vec<String> = self
            .accounting
            .0
            .lock()
            .objects
            .keys()
            .map(ToString::to_string)
            .collect();
        for family in Family::ALL {
            lines.push(format!("{family:?}"));
            let rules = self.rules.lock().ruleset(family);
            lines.extend(requests::chains(&rules, is_owned_name, |rule| !is_foreign(rule)));
        }
        lines.join("\n")
    }

    fn foreign(&self) -> String {
        let rules = self.rules.lock().ruleset(Family::Ipv4);
        requests::chains(
            &rules,
            |name| name == "FOREIGN" || name == "CNI-HOSTPORT",
            is_foreign,
        )
        .join("\n")
    }

    fn served(&self, requests: &[Request]) -> Vec<BTreeSet<SocketAddr>> {
        let tracer = self.tracer();
        requests.iter().map(|request| served(&tracer, request)).collect()
    }

    fn damage(&self, random: &mut Random) -> String {
        let family = random.choose(Family::ALL.into()).unwrap();
        let mut rules = self.rules.lock();
        let mut ruleset = rules.ruleset(family);
        let owned = owned_rules(&ruleset);
        let Some((table, chain, index, rule)) = random.choose(owned) else {
            return String::new();
        };
        let place = format!("{family:?} {table:?} {chain}");
        let damage = match random.below(5) {
            0 => {
                edit(&mut ruleset, table, chain, |rules| _ = rules.remove(index));
                format!("{place}: without {rule}")
            }
            // A second rule in a chain that other programs have too has no effect, and is not removed.
            1 if is_owned_name(chain.as_str()) && chain.as_str() != "KUBE-FIREWALL" => {
                edit(&mut ruleset, table, chain, |rules| rules.push(rule.clone()));
                format!("{place}: twice {rule}")
            }
            2 => {
                edit(&mut ruleset, table, chain, |rules| {
                    rules.retain(|rule| is_foreign(&rule.to_string()))
                });
                format!("{place}: empty")
            }
            3 => {
                let stray = ChainName::new("KUBE-SEP-AAAAAAAAAAAAAAAA").unwrap();
                let rules = [Rule::new().with_target(Target::Accept)];
                ruleset
                    .table_mut(Table::Nat)
                    .insert(stray, Chain::with_rules(rules));
                format!("{family:?} {stray} is added")
            }
            _ => {
                // With all rules that lead to it, as `iptables -X` requires.
                let names = ruleset.table(table).unwrap().chains().map(|(name, _)| *name);
                let names: Vec<ChainName> = names.collect();
                let target = match &rule.target {
                    Some(Target::Jump(target)) if is_owned_name(target.as_str()) => *target,
                    _ => chain,
                };
                if !is_owned_name(target.as_str()) || target.as_str() == "KUBE-FIREWALL" {
                    return format!("{place}: nothing");
                }
                for name in names {
                    let leads = |rule: &Rule| matches!(&rule.target, Some(Target::Jump(to)) if *to == target);
                    edit(&mut ruleset, table, name, |rules| {
                        rules.retain(|rule| !leads(rule))
                    });
                }
                ruleset.table_mut(table).remove(&target);
                format!("{family:?} {table:?} {target} is deleted")
            }
        };
        rules.set_ruleset(family, ruleset);
        damage
    }
}

/// iptables mode.
#[derive(Clone, Copy, Debug)]
struct IptablesFixture;

impl Fixture for IptablesFixture {
    type DataPath = IptablesMode;
    type Host = Node;

    fn config(&self) -> Config {
        let mut config = iptables_node::config();
        config.services.node_ips = NODE.map(|address| address.parse().unwrap()).into();
        let pods = ["10.244.0.0/16", "fd00:244::/64"].map(|net| net.parse().unwrap());
        config.local_detection = LocalDetection::ClusterCidr(pods.into());
        config
    }

    fn host(&self, calls: &Calls) -> Node {
        Node::new(calls)
    }

    /// The kernel does not delete a chain that a rule jumps to.
    fn is_safe_without_needs(&self, operation: &Operation) -> bool {
        let Operation::Write(write) = operation else {
            return false;
        };
        let restore = write.restore();
        let mut edits = restore.tables().flat_map(|(_, edits)| edits);
        edits.all(|edit| matches!(edit, Edit::DeleteChain { .. }))
    }

    /// `iptables-save` reads a table at once.
    fn has_torn_listings(&self) -> bool {
        false
    }
}

kernlink_proxier::contract_tests!(IptablesFixture);
kernlink_proxier::retire_tests!(IptablesFixture);

impl RetireFixture for IptablesFixture {
    fn retiring(&self, host: &Node) -> Box<dyn Retire> {
        Box::new(Retiring::new(Box::new(host.rules.clone())))
    }

    /// Counters stay, and the chain of the kubelet with its rule and the jumps to it. A built-in chain is a heading.
    fn stays(&self, line: &str) -> bool {
        let is_heading = ["Filter ", "Nat ", "Mangle "]
            .iter()
            .any(|table| line.starts_with(table));
        line.contains("KUBE-FIREWALL")
            || line.contains("block incoming localnet connections")
            || line.ends_with("_pkts")
            || (is_heading && !line.contains("KUBE-"))
    }
}
