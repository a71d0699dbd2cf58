//! The chains and rules that match the sets, and the jumps to these chains.
//!
//! Text and order are those of kube-proxy, with one exception: in `KUBE-SERVICES` the jump to `KUBE-NODE-PORT` is the last rule.
//! kube-proxy has it before the two rules that accept traffic to virtual IPs. There, whether such traffic is masqueraded can depend on a
//! node port with the same number.

use std::collections::BTreeSet;

use ipnet::IpNet;
use kernlink_engine::retire::Name;
use kernlink_iptables_restore::matches::{
    AddressType, AddressTypes, Addrtype, ConntrackMatch, ConntrackState, IpvsMatch, Physdev, SetDirection,
};
use kernlink_iptables_restore::targets::{MarkTarget, Masquerade};
use kernlink_iptables_restore::{
    Chain, ChainName, Condition, Desired, Match, Network, Position, Protocol as IpProtocol, Rule, Ruleset,
    SetName, Table, Target,
};
pub use kernlink_netfilter::Jump;
use kernlink_netfilter::{
    Extension, LOOPBACK_IPV4, LOOPBACK_IPV6, chain_name, comment_match, local_match, mark_match,
    masquerade_sources,
};
use kernlink_services::{Family, FrontendKey, Protocol};

use super::config::Config;
use super::extensions::{IPVS, PHYSDEV, REJECT};
use super::sets::SetId;

/// The owned chains of each table, in kube-proxy's order of creation.
pub const CHAINS: &[(Table, &[&str])] = &[
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

pub(super) const SERVICES: &str = "KUBE-SERVICES";
pub(super) const POSTROUTING: &str = "KUBE-POSTROUTING";
const NODE_PORT: &str = "KUBE-NODE-PORT";
const LOAD_BALANCER: &str = "KUBE-LOAD-BALANCER";
const MARK_MASQ: &str = "KUBE-MARK-MASQ";
const FORWARD: &str = "KUBE-FORWARD";
const PROXY_FIREWALL: &str = "KUBE-PROXY-FIREWALL";
const SOURCE_RANGES_FIREWALL: &str = "KUBE-SOURCE-RANGES-FIREWALL";
const IPVS_FILTER: &str = "KUBE-IPVS-FILTER";
const IPVS_OUT_FILTER: &str = "KUBE-IPVS-OUT-FILTER";

/// The jumps, in the order in which kube-proxy inserts them at the top: the last one of a chain is its first rule.
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

/// Whether IPVS mode may have a chain with this name.
#[must_use]
pub fn has_chain(name: &Name<'_>) -> bool {
    let mut chains = CHAINS.iter().filter(|(of, _)| of.as_str() == name.table);
    chains.any(|(_, names)| names.contains(&name.name))
}

/// Whether a chain is one of IPVS mode.
pub(super) fn is_chain_of_ipvs_mode(table: Table, name: &ChainName) -> bool {
    let mut chains = CHAINS.iter().filter(|(of, _)| *of == table);
    chains.any(|(_, names)| names.contains(&name.as_str()))
}

/// Whether no other mode has an equal jump, if `is_kept` decides about chains. That to `KUBE-PROXY-FIREWALL` has a comment and conditions of
/// its own in each mode.
pub(super) fn is_only_of_ipvs_mode(jump: &Jump, is_kept: impl Fn(Table, &ChainName) -> bool) -> bool {
    let to = jump.rule.target.as_ref().and_then(|target| target.chain());
    to.is_some_and(|to| to.as_str() == PROXY_FIREWALL || !is_kept(jump.table, to))
}

/// Whether rules look up the load balancers with source ranges, and drop packets of other clients.
pub(super) fn looks_up_source_ranges(ruleset: &Ruleset, family: Family) -> bool {
    let chain = |name: &str| ruleset.chain(Table::Filter, &chain_name(name));
    let set = SetId::LoadBalancerFirewall.name(family).to_string();
    let looks_up = |rule: &Rule| rule.to_string().contains(&set);
    let drops = |rule: &Rule| matches!(rule.target, Some(Target::Drop));
    chain(PROXY_FIREWALL).is_some_and(|chain| chain.rules().any(looks_up))
        && chain(SOURCE_RANGES_FIREWALL).is_some_and(|chain| chain.rules().any(drops))
}

/// The set of the virtual IPs.
pub(super) fn virtual_ips(family: Family) -> SetName {
    set_name(SetId::IpvsIps, family)
}

/// The rule that masquerades connections from a virtual IP: the kernel selects it as the source of the node's own connections to it, and
/// replies from other hosts do not return to this node. A rule that translates the connection does not
/// always masquerade it.
pub(super) fn masquerade_virtual_ips(family: Family) -> Rule {
    masquerade_sources(virtual_ips(family))
}

/// The rule that masquerades connections of a pod to itself through a Service.
pub(super) fn masquerade_hairpin(family: Family) -> Rule {
    use SetDirection::{Destination, Source};
    let set = set_name(SetId::LoopBack, family);
    Rule::new()
        .with(comment_match(SetId::LoopBack.comment()))
        .with(Match::set(set, &[Destination, Destination, Source]))
        .with_target(Target::Masquerade(Masquerade::default()))
}

/// The sets that rules look up even if they are empty, the one of the bound addresses last.
pub(super) const ALWAYS_READ: [SetId; 6] = [
    SetId::LoadBalancer,
    SetId::ClusterIp,
    SetId::ExternalIp,
    SetId::ExternalIpLocal,
    SetId::HealthCheckNodePort,
    SetId::IpvsIps,
];

/// What the rules of a family depend on.
pub(super) struct RuleInputs<'a> {
    pub(super) config: &'a Config,
    pub(super) family: Family,
    /// The network of this node's pods.
    pub(super) pod_cidr: Option<IpNet>,
    /// The sets with an entry, by [`SetId::index`].
    pub(super) filled: [bool; SetId::KUBE_PROXY.len()],
    /// The sets that exist or can be created, by [`SetId::index`]. Rules that look up others would be refused, with all rules of the family.
    pub(super) usable: [bool; SetId::KUBE_PROXY.len()],
    /// The extensions that rules do without.
    pub(super) missing: &'a BTreeSet<Extension>,
    /// The frontends that processes of this node must not reach, sorted.
    pub(super) denied_to_node: Vec<FrontendKey>,
}

/// The chains of a family with their rules.
pub(super) fn rules(inputs: &RuleInputs<'_>) -> Ruleset {
    let mut ruleset = Ruleset::new();
    for &(table, chains) in CHAINS {
        let table_rules = ruleset.table_mut(table);
        for chain in chains {
            table_rules.insert(chain_name(chain), Chain::with_rules(inputs.chain(table, chain)));
        }
    }
    ruleset
}

/// The desired chains and jumps of a family.
#[expect(clippy::expect_used, reason = "constants that every test of a plan checks")]
pub(super) fn desired(family: Family, ruleset: &Ruleset) -> Desired {
    let mut desired = Desired::new(family);
    for (table, rules) in ruleset.tables() {
        for (name, chain) in rules.chains() {
            let rules = chain.rules().cloned();
            desired
                .set_chain(table, *name, rules)
                .expect("a chain that is not built in");
        }
    }
    // Each is inserted at the top of its chain, so the last one becomes the first rule.
    for jump in jumps().into_iter().rev() {
        let table = jump.table;
        let jump = kernlink_iptables_restore::Jump {
            from: jump.chain,
            rule: jump.rule,
            position: Position::First,
        };
        desired
            .add_jump(table, jump)
            .expect("a jump to one of the chains");
    }
    desired
}

/// The fields of a packet that a rule matches with a set.
#[derive(Clone, Copy)]
enum Lookup {
    /// Destination address and port, or port only.
    Destination,
    /// Destination address and port, and source address.
    DestinationAndSource,
    /// Source address and destination port.
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
                let rule = self.lookup_rule(SetId::HealthCheckNodePort, Lookup::Destination, Target::Accept);
                self.if_usable(SetId::HealthCheckNodePort, rule).collect()
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
            (Table::Filter, IPVS_OUT_FILTER) => {
                let denied = self.denied_to_node.iter();
                denied.map(|frontend| self.deny_node(frontend)).collect()
            }
            _ => Vec::new(),
        }
    }

    /// The rules that select traffic for masquerading, and that accept traffic to virtual IPs before other rules of the table rewrite it.
    fn services(&self) -> Vec<Rule> {
        let loopback = match self.family {
            Family::Ipv4 => LOOPBACK_IPV4,
            Family::Ipv6 => LOOPBACK_IPV6,
        };
        let mut rules = vec![
            Rule::new()
                .with(Match::source(loopback))
                .with_target(Target::Return),
        ];
        rules.extend(self.set_rule(SetId::LoadBalancer, Target::Jump(chain_name(LOAD_BALANCER))));
        if self.has(SetId::ClusterIp) {
            rules.push(self.masquerade_cluster_ip());
        }
        if self.has(SetId::ExternalIp) {
            rules.push(self.lookup_rule(
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

    /// The rule that sets the masquerade mark on traffic to cluster IPs that does not come from pods of this node. Where pods cannot be
    /// recognised, the mark is set only on traffic from the cluster IP itself, which the kernel may select as the source of the node's own
    /// connections.
    fn masquerade_cluster_ip(&self) -> Rule {
        let config = self.config;
        let not_local = if config.masquerade_all {
            None
        } else {
            let detection = &config.local_detection;
            Some(local_match(detection, self.family, self.pod_cidr, false))
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
        let mut routed = rule();
        if !self.missing.contains(&PHYSDEV) {
            routed = routed.with(not_bridged);
        }
        [
            routed.with(from_elsewhere).with_target(Target::Accept),
            rule()
                .with(Match::destination_type(AddressType::Local))
                .with_target(Target::Accept),
        ]
    }

    fn postrouting(&self) -> Vec<Rule> {
        let mark = self.mark();
        let hairpin = self.has(SetId::LoopBack).then(|| masquerade_hairpin(self.family));
        let mut rules: Vec<Rule> = hairpin.into_iter().collect();
        let masquerade = Masquerade {
            random_fully: self.config.random_fully,
            ..Masquerade::default()
        };
        let without_mark = Match::Mark(Condition::Not(mark_match(mark)));
        rules.extend([
            Rule::new().with(without_mark).with_target(Target::Return),
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
                let mut rule = self.lookup_rule(set, Lookup::Destination, target);
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

    /// Virtual IPs are local addresses. These rules reject connections to them that no virtual server serves; otherwise processes of the
    /// node that listen on all addresses would accept them.
    fn ipvs_filter(&self) -> Vec<Rule> {
        let [served @ .., bound] = ALWAYS_READ;
        let served = served.into_iter().flat_map(|set| {
            let rule = Rule::new()
                .with(self.set_match(set, Lookup::Destination))
                .with_target(Target::Return);
            self.if_usable(set, rule)
        });
        let reject = if self.missing.contains(&REJECT) {
            Target::Drop
        } else {
            Target::Reject(None)
        };
        let rejected = Rule::new()
            .with(Match::conntrack_states([ConntrackState::New]))
            .with(self.set_match(bound, Lookup::Destination))
            .with_target(reject);
        served.chain(self.if_usable(bound, rejected)).collect()
    }

    /// A rule that looks up a set, unless the set cannot be used. No address is bound then if it is that of the bound addresses.
    fn if_usable(&self, set: SetId, rule: Rule) -> std::option::IntoIter<Rule> {
        let is_usable = self.usable.get(set.index()).copied().unwrap_or_default();
        is_usable.then_some(rule).into_iter()
    }

    /// A rule that matches the entries of a set, unless the set is empty.
    fn set_rule(&self, set: SetId, target: Target) -> Vec<Rule> {
        let lookup = match set {
            SetId::LoadBalancerSourceCidr | SetId::LoadBalancerSourceIp => Lookup::DestinationAndSource,
            _ => Lookup::Destination,
        };
        if self.has(set) {
            vec![self.lookup_rule(set, lookup, target)]
        } else {
            Vec::new()
        }
    }

    fn lookup_rule(&self, set: SetId, lookup: Lookup, target: Target) -> Rule {
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
        Match::set(set_name(set, self.family), directions)
    }

    /// The rule that drops packets from this node to a frontend. The kernel selects the virtual IP itself as their source address, which
    /// distinguishes them from the packets of other hosts. IPVS has changed their destination before they reach the rule.
    fn deny_node(&self, frontend: &FrontendKey) -> Rule {
        let protocol = Some(Condition::Is(match frontend.protocol {
            Protocol::Tcp => IpProtocol::Tcp,
            Protocol::Udp => IpProtocol::Udp,
            Protocol::Sctp => IpProtocol::Sctp,
        }));
        let address = Some(Condition::Is(Network::host(frontend.address)));
        let destination = if self.missing.contains(&IPVS) {
            Match::Conntrack(Box::new(ConntrackMatch {
                protocol,
                original_destination: address,
                original_destination_ports: Some(Condition::Is(frontend.port.into())),
                ..ConntrackMatch::default()
            }))
        } else {
            Match::Ipvs(Box::new(IpvsMatch {
                protocol,
                address,
                port: Some(Condition::Is(frontend.port)),
                ..IpvsMatch::default()
            }))
        };
        Rule::new()
            .with(Match::source(Network::host(frontend.address)))
            .with(destination)
            .with_target(Target::Drop)
    }

    fn has(&self, set: SetId) -> bool {
        self.filled.get(set.index()).copied().unwrap_or_default()
    }

    fn mark(&self) -> u32 {
        self.config.masquerade_bit.mark()
    }
}

fn set_name(set: SetId, family: Family) -> SetName {
    // Set names have the same limit in both crates.
    #[expect(clippy::expect_used, reason = "constants that a test checks")]
    SetName::new(set.text(family)).expect("a set name of at most 31 characters")
}
