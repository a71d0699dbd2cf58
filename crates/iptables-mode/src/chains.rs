//! The chains that do not belong to one service port: their names, static rules, and the jumps to them.
//!
//! Source: `syncProxyRules` in `pkg/proxy/iptables/proxier.go` of Kubernetes v1.36.3.

use std::sync::LazyLock;

use kernlink_iptables_restore::matches::{AddressType, ConntrackMatch, ConntrackState, ConntrackStates};
use kernlink_iptables_restore::targets::{MarkTarget, Masquerade};
use kernlink_iptables_restore::{ChainName, Condition, Match, Network, Rule, Table, Target};
pub use kernlink_netfilter::Jump;
use kernlink_netfilter::{LOOPBACK_IPV4, LOOPBACK_IPV6, chain_name, comment_match, mark_match};
use kernlink_services::{Family, NodeFacts};

use super::config::Config;

/// A chain that exists once in each family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum FixedChain {
    /// Table `filter`: cluster IPs without endpoints.
    FilterServices,
    /// Table `filter`: external frontends without endpoints.
    FilterExternalServices,
    /// Table `filter`: forwarding of masqueraded traffic.
    FilterForward,
    /// Table `filter`: health-check node ports.
    FilterNodePorts,
    /// Table `filter`: traffic that the source ranges of a load balancer do not admit.
    FilterProxyFirewall,
    /// Table `filter`: packets from other hosts to loopback addresses. Only IPv4, while node ports are served on loopback addresses.
    /// The kubelet has the same chain.
    FilterFirewall,
    /// Table `nat`: all frontends but node ports.
    NatServices,
    /// Table `nat`: node ports.
    NatNodePorts,
    /// Table `nat`: masquerades packets that have the mark.
    NatPostrouting,
    /// Table `nat`: sets the mark.
    NatMarkMasq,
}

impl FixedChain {
    /// All chains, in kube-proxy's order of declaration.
    pub const ALL: &[FixedChain] = &[
        FixedChain::FilterServices,
        FixedChain::FilterExternalServices,
        FixedChain::FilterForward,
        FixedChain::FilterNodePorts,
        FixedChain::FilterProxyFirewall,
        FixedChain::FilterFirewall,
        FixedChain::NatServices,
        FixedChain::NatNodePorts,
        FixedChain::NatPostrouting,
        FixedChain::NatMarkMasq,
    ];

    /// The table.
    #[must_use]
    pub fn table(self) -> Table {
        match self {
            FixedChain::FilterServices
            | FixedChain::FilterExternalServices
            | FixedChain::FilterForward
            | FixedChain::FilterNodePorts
            | FixedChain::FilterProxyFirewall
            | FixedChain::FilterFirewall => Table::Filter,
            FixedChain::NatServices
            | FixedChain::NatNodePorts
            | FixedChain::NatPostrouting
            | FixedChain::NatMarkMasq => Table::Nat,
        }
    }

    /// The name as text.
    #[must_use]
    pub fn text(self) -> &'static str {
        match self {
            FixedChain::FilterServices | FixedChain::NatServices => "KUBE-SERVICES",
            FixedChain::FilterExternalServices => "KUBE-EXTERNAL-SERVICES",
            FixedChain::FilterForward => "KUBE-FORWARD",
            FixedChain::FilterNodePorts | FixedChain::NatNodePorts => "KUBE-NODEPORTS",
            FixedChain::FilterProxyFirewall => "KUBE-PROXY-FIREWALL",
            FixedChain::FilterFirewall => "KUBE-FIREWALL",
            FixedChain::NatPostrouting => "KUBE-POSTROUTING",
            FixedChain::NatMarkMasq => "KUBE-MARK-MASQ",
        }
    }

    /// The name.
    #[must_use]
    pub fn name(self) -> ChainName {
        chain_name(self.text())
    }

    /// Whether Services have rules in it.
    pub(super) fn is_shared(self) -> bool {
        matches!(
            self,
            FixedChain::FilterServices
                | FixedChain::FilterExternalServices
                | FixedChain::FilterNodePorts
                | FixedChain::FilterProxyFirewall
                | FixedChain::NatServices
                | FixedChain::NatNodePorts
        )
    }

    /// The chains of a family.
    pub(super) fn of(config: &Config, family: Family) -> impl Iterator<Item = FixedChain> {
        let has_firewall = family == Family::Ipv4 && config.serves_loopback_node_ports();
        Self::ALL
            .iter()
            .copied()
            .filter(move |chain| has_firewall || *chain != FixedChain::FilterFirewall)
    }
}

/// The jumps of a family, in the order in which kube-proxy inserts them at the top: the last one of a chain is its first rule.
///
/// Those to `KUBE-FIREWALL` are also written for IPv6 by kube-proxy, to a chain that stays empty.
pub(super) fn jumps() -> &'static [Jump] {
    static JUMPS: LazyLock<Vec<Jump>> = LazyLock::new(new_jumps);
    &JUMPS
}

fn new_jumps() -> Vec<Jump> {
    let external = "kubernetes externally-visible service portals";
    let portals = "kubernetes service portals";
    let firewall = "kubernetes load balancer firewall";
    let jump = |to: FixedChain, from: &str, is_new: bool, comment: Option<&str>| {
        let mut rule = Rule::new();
        if is_new {
            rule = rule.with(Match::conntrack_states([ConntrackState::New]));
        }
        rule.matches.extend(comment.map(comment_match));
        Jump {
            table: to.table(),
            chain: chain_name(from),
            rule: rule.jump(to.name()),
        }
    };
    use FixedChain as C;
    vec![
        jump(C::FilterExternalServices, "INPUT", true, Some(external)),
        jump(C::FilterExternalServices, "FORWARD", true, Some(external)),
        jump(
            C::FilterNodePorts,
            "INPUT",
            false,
            Some("kubernetes health check service ports"),
        ),
        jump(C::FilterServices, "FORWARD", true, Some(portals)),
        jump(C::FilterServices, "OUTPUT", true, Some(portals)),
        jump(
            C::FilterForward,
            "FORWARD",
            false,
            Some("kubernetes forwarding rules"),
        ),
        jump(C::FilterProxyFirewall, "INPUT", true, Some(firewall)),
        jump(C::FilterProxyFirewall, "OUTPUT", true, Some(firewall)),
        jump(C::FilterProxyFirewall, "FORWARD", true, Some(firewall)),
        jump(C::NatServices, "OUTPUT", false, Some(portals)),
        jump(C::NatServices, "PREROUTING", false, Some(portals)),
        jump(
            C::NatPostrouting,
            "POSTROUTING",
            false,
            Some("kubernetes postrouting rules"),
        ),
        jump(C::FilterFirewall, "INPUT", false, None),
        jump(C::FilterFirewall, "OUTPUT", false, None),
    ]
}

/// The rules of a fixed chain that do not depend on Services. In a chain with rules of service ports they come last. `is_liberal` is whether
/// the kernel accepts packets outside the window of a TCP connection, `has_virtual_ips` whether a retiring mode may have addresses of Services on
/// a link of its own.
pub(super) fn static_rules(
    chain: FixedChain,
    config: &Config,
    family: Family,
    node: &NodeFacts,
    counters: Counters,
    is_liberal: bool,
    has_virtual_ips: bool,
) -> Vec<Rule> {
    let mark = config.masquerade_bit.mark();
    match chain {
        FixedChain::FilterForward => forward(mark, counters, is_liberal),
        FixedChain::FilterFirewall => vec![block_loopback()],
        FixedChain::NatServices => node_port_rules(config, family, node, has_virtual_ips),
        FixedChain::NatPostrouting => vec![
            Rule::new()
                .with(Match::Mark(Condition::Not(mark_match(mark))))
                .with_target(Target::Return),
            Rule::new().with_target(Target::Mark(MarkTarget::Xor(mark))),
            Rule::new()
                .with(comment_match("kubernetes service traffic requiring SNAT"))
                .with_target(Target::Masquerade(Masquerade {
                    random_fully: config.random_fully,
                    ..Masquerade::default()
                })),
        ],
        FixedChain::NatMarkMasq => vec![Rule::new().with_target(Target::Mark(MarkTarget::Or(mark)))],
        FixedChain::FilterServices
        | FixedChain::FilterExternalServices
        | FixedChain::FilterNodePorts
        | FixedChain::FilterProxyFirewall
        | FixedChain::NatNodePorts => Vec::new(),
    }
}

/// The accounting objects of nfacct that rules may name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// `ct_state_invalid_dropped_pkts`: packets that conntrack considers invalid.
    pub invalid_dropped: bool,
    /// `localhost_nps_accepted_pkts`: connections to node ports on loopback addresses.
    pub loopback_accepted: bool,
}

impl Counters {
    /// Both objects.
    pub const ALL: Counters = Counters {
        invalid_dropped: true,
        loopback_accepted: true,
    };

    /// Each object by name, and whether rules may name it.
    pub(super) fn by_name(self) -> [(&'static str, bool); 2] {
        [
            (INVALID_DROPPED, self.invalid_dropped),
            (LOOPBACK_ACCEPTED, self.loopback_accepted),
        ]
    }
}

pub(super) const INVALID_DROPPED: &str = "ct_state_invalid_dropped_pkts";
pub(super) const LOOPBACK_ACCEPTED: &str = "localhost_nps_accepted_pkts";

fn forward(mark: u32, counters: Counters, is_liberal: bool) -> Vec<Rule> {
    let mut rules = Vec::new();
    if !is_liberal {
        // Otherwise the client resets connections for which it receives such a packet untranslated (kubernetes issue 74839).
        let mut rule = Rule::new().with(Match::conntrack_states([ConntrackState::Invalid]));
        if counters.invalid_dropped {
            rule = rule.with(nfacct(INVALID_DROPPED));
        }
        rules.push(rule.with_target(Target::Drop));
    }
    rules.extend([
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
    ]);
    rules
}

/// `route_localnet` lets packets from other hosts reach loopback addresses; this rule drops them (CVE-2020-8558).
fn block_loopback() -> Rule {
    let states = [
        ConntrackState::Related,
        ConntrackState::Established,
        ConntrackState::Dnat,
    ];
    let conntrack = ConntrackMatch {
        state: Some(Condition::Not(ConntrackStates::new(states))),
        ..ConntrackMatch::default()
    };
    Rule::new()
        .with(comment_match("block incoming localnet connections"))
        .with(Match::destination(LOOPBACK_IPV4))
        .with(Match::Source(Condition::Not(LOOPBACK_IPV4.into())))
        .with(Match::Conntrack(Box::new(conntrack)))
        .with_target(Target::Drop)
}

/// The last rules of `KUBE-SERVICES`: packets to addresses that accept node ports. Virtual IPs that a retiring mode has on a link are local
/// addresses, but do not accept any: a node port of one Service may be the port of another one at such an address. So the addresses are named
/// meanwhile.
fn node_port_rules(config: &Config, family: Family, node: &NodeFacts, has_virtual_ips: bool) -> Vec<Rule> {
    let rule = || {
        Rule::new().with(comment_match(
            "kubernetes service nodeports; NOTE: this must be the last rule in this chain",
        ))
    };
    let to = FixedChain::NatNodePorts.name();
    let serves_loopback = family == Family::Ipv4 && config.serves_loopback_node_ports();
    if node.accepts_all_node_ports(family) && !has_virtual_ips {
        let mut rule = rule().with(Match::destination_type(AddressType::Local));
        if !serves_loopback {
            let loopback = match family {
                Family::Ipv4 => LOOPBACK_IPV4,
                Family::Ipv6 => LOOPBACK_IPV6,
            };
            rule = rule.with(Match::Destination(Condition::Not(loopback.into())));
        }
        return vec![rule.jump(to)];
    }
    let loopback = node.loopback_node_port_addresses(family).iter();
    let addresses = loopback
        .filter(|_| serves_loopback)
        .chain(node.node_port_addresses(family));
    addresses
        .map(|address| rule().with(Match::destination(Network::host(*address))).jump(to))
        .collect()
}

/// `-m nfacct --nfacct-name name`, with the two spaces with which the tools print it.
pub(super) fn nfacct(name: &str) -> Match {
    #[expect(clippy::expect_used, reason = "constants that a test checks")]
    let rule: Rule = format!("-m nfacct --nfacct-name  {name}")
        .parse()
        .expect("a rule with a match");
    rule.matches
        .into_iter()
        .next()
        .unwrap_or(Match::Verbatim(Vec::new()))
}
