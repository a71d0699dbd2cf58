//! The chains and rules that read the sets, and the jumps that lead to them.
//!
//! Text and order are kube-proxy's, except that in `KUBE-SERVICES` the jump to `KUBE-NODE-PORT` is the last rule: kube-proxy has it
//! before the two rules that accept traffic to virtual IPs, so that such traffic is masqueraded, or not, because its port happens
//! to be the number of a node port.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use kernlink_iptables_restore::matches::{
    AddressType, AddressTypes, Addrtype, ConntrackState, IpvsMatch, Physdev, SetDirection,
};
use kernlink_iptables_restore::targets::{MarkTarget, Masquerade};
use kernlink_iptables_restore::{
    Chain, ChainName, Condition, Match, Network, Place, Protocol as IpProtocol, Rule, Ruleset, Table, Target,
    Wanted,
};

use kernlink_services::{Family, Protocol};

use super::config::{Config, LocalDetection};
use super::sets::SetId;

/// The owned chains of each table, in kube-proxy's order of creation.
pub const CHAINS: [(Table, &[&str]); 2] = [
    (
        Table::Nat,
        &[SERVICES, POSTROUTING, NODE_PORT, LOAD_BALANCER, MARK_MASQ],
    ),
    (
        Table::Filter,
        &[
            FORWARD,
            NODE_PORT,
            PROXY_FIREWALL,
            SOURCE_RANGES_FIREWALL,
            IPVS_FILTER,
            IPVS_OUT_FILTER,
        ],
    ),
];

const SERVICES: &str = "KUBE-SERVICES";
const POSTROUTING: &str = "KUBE-POSTROUTING";
const NODE_PORT: &str = "KUBE-NODE-PORT";
const LOAD_BALANCER: &str = "KUBE-LOAD-BALANCER";
const MARK_MASQ: &str = "KUBE-MARK-MASQ";
const FORWARD: &str = "KUBE-FORWARD";
const PROXY_FIREWALL: &str = "KUBE-PROXY-FIREWALL";
const SOURCE_RANGES_FIREWALL: &str = "KUBE-SOURCE-RANGES-FIREWALL";
const IPVS_FILTER: &str = "KUBE-IPVS-FILTER";
const IPVS_OUT_FILTER: &str = "KUBE-IPVS-OUT-FILTER";

/// A rule in a built-in chain that leads to an owned one. It is put at the top of its chain if it is not there; where it stands
/// then does not matter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Jump {
    /// The table.
    pub table: Table,
    /// The built-in chain.
    pub chain: ChainName,
    /// The rule.
    pub rule: Rule,
}

/// The jumps, in the order in which kube-proxy puts them in: the last one of a chain ends up at its top.
#[must_use]
pub fn jumps() -> Vec<Jump> {
    [
        (Table::Nat, "OUTPUT", SERVICES, "kubernetes service portals"),
        (Table::Nat, "PREROUTING", SERVICES, "kubernetes service portals"),
        (
            Table::Nat,
            "POSTROUTING",
            POSTROUTING,
            "kubernetes postrouting rules",
        ),
        (Table::Filter, "FORWARD", FORWARD, "kubernetes forwarding rules"),
        (Table::Filter, "INPUT", NODE_PORT, "kubernetes health check rules"),
        (
            Table::Filter,
            "INPUT",
            PROXY_FIREWALL,
            "kube-proxy firewall rules",
        ),
        (
            Table::Filter,
            "FORWARD",
            PROXY_FIREWALL,
            "kube-proxy firewall rules",
        ),
        (
            Table::Filter,
            "INPUT",
            IPVS_FILTER,
            "kubernetes ipvs access filter",
        ),
        (
            Table::Filter,
            "OUTPUT",
            IPVS_OUT_FILTER,
            "kubernetes ipvs access filter",
        ),
    ]
    .into_iter()
    .map(|(table, from, to, comment)| Jump {
        table,
        chain: chain_name(from),
        rule: Rule::new().with(comment_match(comment)).jump(chain_name(to)),
    })
    .collect()
}

/// A frontend that processes of this node must not reach, because the node is in none of its source ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Blocked {
    /// The virtual IP.
    pub address: IpAddr,
    /// The protocol.
    pub protocol: Protocol,
    /// The port.
    pub port: u16,
}

/// What the rules of a family depend on.
pub(super) struct RuleInputs<'a> {
    pub(super) config: &'a Config,
    pub(super) family: Family,
    /// The network of this node's pods.
    pub(super) pod_cidr: Option<ipnet::IpNet>,
    /// The sets with an entry, by [`SetId::index`].
    pub(super) filled: [bool; SetId::ALL.len()],
    /// Sorted.
    pub(super) blocked: Vec<Blocked>,
}

/// The chains of a family with their rules.
pub(super) fn rules(inputs: &RuleInputs<'_>) -> Ruleset {
    let mut ruleset = Ruleset::new();
    for (table, chains) in CHAINS {
        let table_rules = ruleset.table_mut(table);
        for chain in chains {
            table_rules.insert(chain_name(chain), Chain::with_rules(inputs.chain(table, chain)));
        }
    }
    ruleset
}

/// The chains and jumps of a family, as iptables compares them with what it has.
#[expect(clippy::expect_used, reason = "constants that every test of a plan checks")]
pub(super) fn wanted(family: Family, ruleset: &Ruleset) -> Wanted {
    let mut wanted = Wanted::new(iptables_family(family));
    for (table, rules) in ruleset.tables() {
        for (name, chain) in rules.chains() {
            let rules = chain.rules().cloned();
            wanted
                .set_chain(table, *name, rules)
                .expect("a chain that is not built in");
        }
    }
    // kube-proxy puts one after the other at the top of its chain, so the last one listed comes first.
    for jump in jumps().into_iter().rev() {
        let table = jump.table;
        let jump = kernlink_iptables_restore::Jump {
            from: jump.chain,
            rule: jump.rule,
            place: Place::First,
        };
        wanted.add_jump(table, jump).expect("a jump to one of the chains");
    }
    wanted
}

/// A family as the iptables tools name it.
pub(super) fn iptables_family(family: Family) -> kernlink_iptables_restore::Family {
    match family {
        Family::Ipv4 => kernlink_iptables_restore::Family::Ipv4,
        Family::Ipv6 => kernlink_iptables_restore::Family::Ipv6,
    }
}

/// The family of one of the iptables tools.
pub(super) fn family_of(family: kernlink_iptables_restore::Family) -> Family {
    match family {
        kernlink_iptables_restore::Family::Ipv4 => Family::Ipv4,
        kernlink_iptables_restore::Family::Ipv6 => Family::Ipv6,
    }
}

/// How a rule looks a packet up in a set.
#[derive(Clone, Copy)]
enum Lookup {
    /// By its destination: address and port, or port alone.
    Destination,
    /// By its destination, and its source address.
    DestinationAndSource,
    /// By its source address and destination port.
    SourceAddress,
}

impl RuleInputs<'_> {
    fn chain(&self, table: Table, chain: &str) -> Vec<Rule> {
        match (table, chain) {
            (Table::Nat, SERVICES) => self.services(),
            (Table::Nat, POSTROUTING) => self.postrouting(),
            (Table::Nat, NODE_PORT) => self.node_ports(),
            (Table::Nat, LOAD_BALANCER) => {
                let mut rules = self.set_rule(SetId::LoadBalancerLocal, Target::Return);
                rules.push(Rule::new().jump(chain_name(MARK_MASQ)));
                rules
            }
            (Table::Nat, MARK_MASQ) => {
                vec![Rule::new().with_target(Target::Mark(MarkTarget::Or(self.mark())))]
            }
            (Table::Filter, FORWARD) => self.forward(),
            (Table::Filter, NODE_PORT) => {
                vec![self.look_up(SetId::HealthCheckNodePort, Lookup::Destination, Target::Accept)]
            }
            (Table::Filter, PROXY_FIREWALL) => self.set_rule(
                SetId::LoadBalancerFirewall,
                Target::Jump(chain_name(SOURCE_RANGES_FIREWALL)),
            ),
            (Table::Filter, SOURCE_RANGES_FIREWALL) => {
                let mut rules = self.set_rule(SetId::LoadBalancerSourceCidr, Target::Return);
                rules.extend(self.set_rule(SetId::LoadBalancerSourceIp, Target::Return));
                rules.push(Rule::new().with_target(Target::Drop));
                rules
            }
            (Table::Filter, IPVS_FILTER) => self.ipvs_filter(),
            (Table::Filter, IPVS_OUT_FILTER) => self.blocked.iter().map(block).collect(),
            _ => Vec::new(),
        }
    }

    /// Decides what is masqueraded, and keeps other users of the table from rewriting traffic to virtual IPs.
    fn services(&self) -> Vec<Rule> {
        let loopback = match self.family {
            Family::Ipv4 => network(IpAddr::V4(Ipv4Addr::new(127, 0, 0, 0)), 8),
            Family::Ipv6 => network(IpAddr::V6(Ipv6Addr::LOCALHOST), 128),
        };
        let mut rules = vec![
            Rule::new()
                .with(Match::source(loopback))
                .with_target(Target::Return),
        ];
        rules.extend(self.set_rule(SetId::LoadBalancer, Target::Jump(chain_name(LOAD_BALANCER))));
        if self.has(SetId::ClusterIp) {
            rules.push(self.mark_cluster_ip());
        }
        if self.has(SetId::ExternalIp) {
            rules.push(self.look_up(
                SetId::ExternalIp,
                Lookup::Destination,
                Target::Jump(chain_name(MARK_MASQ)),
            ));
            rules.extend(self.accept_external(SetId::ExternalIp));
        }
        if self.has(SetId::ExternalIpLocal) {
            rules.extend(self.accept_external(SetId::ExternalIpLocal));
        }
        for set in [SetId::ClusterIp, SetId::LoadBalancer] {
            if self.has(set) {
                rules.push(
                    Rule::new()
                        .with(self.set_match(set, Lookup::Destination))
                        .with_target(Target::Accept),
                );
            }
        }
        let local = Match::destination_type(AddressType::Local);
        rules.push(Rule::new().with(local).jump(chain_name(NODE_PORT)));
        rules
    }

    /// Marks traffic to cluster IPs that does not come from pods of this node. Where pods cannot be told from others, only what
    /// comes from the virtual IP itself is marked: the kernel may choose that as the source of the node's own connections.
    fn mark_cluster_ip(&self) -> Rule {
        let config = self.config;
        let family = self.family;
        let cidr = |net: Option<ipnet::IpNet>| {
            net.map(|net| Match::Source(Condition::Not(network(net.network(), net.prefix_len()))))
        };
        let not_local = match &config.local_detection {
            LocalDetection::ClusterCidr(nets) => {
                cidr(nets.iter().find(|net| Family::of(net.addr()) == family).copied())
            }
            LocalDetection::NodeCidr => cidr(self.pod_cidr),
            LocalDetection::BridgeInterface(name) => Some(Match::InInterface(Condition::Not(name.clone()))),
            LocalDetection::InterfacePrefix(prefix) => {
                Some(Match::InInterface(Condition::Not(prefix.clone())))
            }
        };
        let not_local = if config.masquerade_all {
            None
        } else {
            Some(not_local)
        };
        let (lookup, condition) = match not_local {
            None => (Lookup::Destination, None),
            Some(None) => (Lookup::SourceAddress, None),
            Some(Some(condition)) => (Lookup::Destination, Some(condition)),
        };
        let mut rule = Rule::new()
            .with(comment_match(SetId::ClusterIp.comment()))
            .with(self.set_match(SetId::ClusterIp, lookup));
        rule.matches.extend(condition);
        rule.jump(chain_name(MARK_MASQ))
    }

    fn accept_external(&self, set: SetId) -> [Rule; 2] {
        let rule = || {
            Rule::new()
                .with(comment_match(set.comment()))
                .with(self.set_match(set, Lookup::Destination))
        };
        let not_bridged = Match::Physdev(Box::new(Physdev {
            is_in: Some(Condition::Not(())),
            ..Physdev::default()
        }));
        let from_elsewhere = Match::Addrtype(Addrtype {
            source: Some(Condition::Not(AddressTypes::new([AddressType::Local]))),
            ..Addrtype::default()
        });
        [
            rule()
                .with(not_bridged)
                .with(from_elsewhere)
                .with_target(Target::Accept),
            rule()
                .with(Match::destination_type(AddressType::Local))
                .with_target(Target::Accept),
        ]
    }

    fn postrouting(&self) -> Vec<Rule> {
        let mark = self.mark();
        let mut rules = self.set_rule(SetId::LoopBack, Target::Masquerade(Masquerade::default()));
        let masquerade = Masquerade {
            random_fully: self.config.random_fully,
            ..Masquerade::default()
        };
        let unmarked = Match::Mark(Condition::Not(mark_match(mark)));
        rules.extend([
            Rule::new().with(unmarked).with_target(Target::Return),
            Rule::new().with_target(Target::Mark(MarkTarget::Xor(mark))),
            Rule::new()
                .with(comment_match("kubernetes service traffic requiring SNAT"))
                .with_target(Target::Masquerade(masquerade)),
        ]);
        rules
    }

    fn node_ports(&self) -> Vec<Rule> {
        let sets = [
            (IpProtocol::Tcp, SetId::NodePortLocalTcp, SetId::NodePortTcp),
            (IpProtocol::Udp, SetId::NodePortLocalUdp, SetId::NodePortUdp),
            (IpProtocol::Sctp, SetId::NodePortLocalSctp, SetId::NodePortSctp),
        ];
        let mut rules = Vec::new();
        for (protocol, local, all) in sets {
            let targets = [
                (local, Target::Return),
                (all, Target::Jump(chain_name(MARK_MASQ))),
            ];
            for (set, target) in targets.into_iter().filter(|(set, _)| self.has(*set)) {
                let mut rule = self.look_up(set, Lookup::Destination, target);
                rule.matches.insert(0, Match::protocol(protocol));
                rules.push(rule);
            }
        }
        rules
    }

    fn forward(&self) -> Vec<Rule> {
        let mark = self.mark();
        vec![
            Rule::new()
                .with(comment_match("kubernetes forwarding rules"))
                .with(Match::Mark(Condition::Is(mark_match(mark))))
                .with_target(Target::Accept),
            Rule::new()
                .with(comment_match("kubernetes forwarding conntrack rule"))
                .with(Match::conntrack_states([
                    ConntrackState::Related,
                    ConntrackState::Established,
                ]))
                .with_target(Target::Accept),
        ]
    }

    /// Virtual IPs are local addresses, so whatever the node listens on at all addresses would answer there too.
    fn ipvs_filter(&self) -> Vec<Rule> {
        let served = [
            SetId::LoadBalancer,
            SetId::ClusterIp,
            SetId::ExternalIp,
            SetId::ExternalIpLocal,
            SetId::HealthCheckNodePort,
        ];
        let mut rules: Vec<Rule> = served
            .into_iter()
            .map(|set| {
                Rule::new()
                    .with(self.set_match(set, Lookup::Destination))
                    .with_target(Target::Return)
            })
            .collect();
        rules.push(
            Rule::new()
                .with(Match::conntrack_states([ConntrackState::New]))
                .with(self.set_match(SetId::IpvsIps, Lookup::Destination))
                .with_target(Target::Reject(None)),
        );
        rules
    }

    /// A rule for what is in a set, unless nothing is.
    fn set_rule(&self, set: SetId, target: Target) -> Vec<Rule> {
        let lookup = match set {
            SetId::LoopBack | SetId::LoadBalancerSourceCidr | SetId::LoadBalancerSourceIp => {
                Lookup::DestinationAndSource
            }
            _ => Lookup::Destination,
        };
        if self.has(set) {
            vec![self.look_up(set, lookup, target)]
        } else {
            Vec::new()
        }
    }

    fn look_up(&self, set: SetId, lookup: Lookup, target: Target) -> Rule {
        Rule::new()
            .with(comment_match(set.comment()))
            .with(self.set_match(set, lookup))
            .with_target(target)
    }

    fn set_match(&self, set: SetId, lookup: Lookup) -> Match {
        use SetDirection::{Destination, Source};
        let by_port_alone = set.set_type().dimensions().len() == 1;
        let directions: &[SetDirection] = match lookup {
            Lookup::Destination if by_port_alone => &[Destination],
            Lookup::Destination => &[Destination, Destination],
            Lookup::DestinationAndSource => &[Destination, Destination, Source],
            Lookup::SourceAddress => &[Source, Destination],
        };
        // Set names fit: their limit is the same in both crates, and a test walks through them.
        #[expect(clippy::expect_used, reason = "constants that a test checks")]
        let name = kernlink_iptables_restore::SetName::new(set.text(self.family))
            .expect("a set name of at most 31 characters");
        Match::set(name, directions)
    }

    fn has(&self, set: SetId) -> bool {
        self.filled.get(set.index()).copied().unwrap_or_default()
    }

    fn mark(&self) -> u32 {
        self.config.masquerade_bit.mark()
    }
}

/// A process of the node that talks to a virtual IP gets that very IP as its source, so the source tells it from others.
fn block(blocked: &Blocked) -> Rule {
    let protocol = match blocked.protocol {
        Protocol::Tcp => IpProtocol::Tcp,
        Protocol::Udp => IpProtocol::Udp,
        Protocol::Sctp => IpProtocol::Sctp,
    };
    let virtual_server = IpvsMatch {
        protocol: Some(Condition::Is(protocol)),
        address: Some(Condition::Is(Network::host(blocked.address))),
        port: Some(Condition::Is(blocked.port)),
        ..IpvsMatch::default()
    };
    Rule::new()
        .with(Match::source(Network::host(blocked.address)))
        .with(Match::Ipvs(Box::new(virtual_server)))
        .with_target(Target::Drop)
}

fn mark_match(mark: u32) -> kernlink_iptables_restore::matches::MarkMatch {
    kernlink_iptables_restore::matches::MarkMatch {
        value: mark,
        mask: Some(mark),
    }
}

fn chain_name(name: &str) -> ChainName {
    // Only constants of this file come here, and a test writes every rule there is.
    #[expect(clippy::expect_used, reason = "constants that a test checks")]
    ChainName::new(name).expect("a chain name that fits the kernel")
}

fn comment_match(text: &str) -> Match {
    // Only constants of this folder come here, and a test writes every rule there is.
    #[expect(clippy::expect_used, reason = "constants that a test checks")]
    Match::comment(text).expect("a comment that fits the kernel")
}

fn network(address: IpAddr, prefix: u8) -> Network {
    // An IpNet never has a prefix longer than its address.
    #[expect(clippy::expect_used, reason = "the same limit holds for both types")]
    Network::new(address, prefix).expect("a prefix no longer than the address")
}
