//! The chains of a service port: what they contain, and their rules.
//!
//! Source: `writeServiceToEndpointRules` and `syncProxyRules` in `pkg/proxy/iptables/proxier.go` of Kubernetes v1.36.3.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;
use kernlink_engine::plan::Subject;
use kernlink_engine::table::Difference;
use kernlink_iptables_restore::matches::{
    AddressType, AddressTypes, Addrtype, Probability, Recent, RecentAction, SctpMatch, Statistic, TcpMatch,
    UdpMatch,
};
use kernlink_iptables_restore::targets::Nat;
use kernlink_iptables_restore::{
    ChainName, Comment, Condition, Match, Network, PortRange, Protocol as IpProtocol, RecentName, Rule,
    Target,
};
use kernlink_services::{ObjectName, Protocol};

use super::chains::FixedChain;
use super::rule_key::RuleKey;

/// The content of a chain of a service port. The desired value and the step that writes it share it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum PortChain {
    External(Arc<ExternalChain>),
    Firewall(Arc<FirewallChain>),
    Select(Arc<SelectChain>),
    Endpoint(Arc<EndpointChain>),
}

/// What the chains of a service port have in common.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PortLabel {
    /// `namespace/name:port`, for comments.
    pub(super) text: Box<str>,
    pub(super) protocol: Protocol,
}

/// `KUBE-EXT-*`: traffic to external frontends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ExternalChain {
    pub(super) label: Arc<PortLabel>,
    /// For the policy `Local`: the chain of the policy `Cluster`, for traffic from this node and its pods.
    pub(super) short_circuit: Option<ChainName>,
    /// For the policy `Local`: recognises traffic from pods. `None` if it cannot be recognised.
    pub(super) local: Option<Match>,
    /// The chain that selects an endpoint; `None` without one.
    pub(super) endpoints: Option<ChainName>,
}

/// `KUBE-FW-*`: source ranges of load-balancer IPs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FirewallChain {
    pub(super) label: Arc<PortLabel>,
    pub(super) ranges: Arc<[IpNet]>,
    /// Load-balancer IPs that processes of this node may use: the kernel selects such an address as the source of their packets.
    pub(super) node_sources: Vec<IpAddr>,
    pub(super) external: ChainName,
}

/// `KUBE-SVC-*` and `KUBE-SVL-*`: the selection of an endpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct SelectChain {
    pub(super) label: Arc<PortLabel>,
    /// The rule that masquerades traffic to the cluster IP, if it uses this chain.
    pub(super) masquerade: Option<Rule>,
    pub(super) endpoints: Vec<Selected>,
    /// The timeout of session affinity in seconds.
    pub(super) affinity: Option<u32>,
    pub(super) has_comments: bool,
}

/// An endpoint of a [`SelectChain`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Selected {
    pub(super) chain: ChainName,
    pub(super) endpoint: SocketAddr,
    /// The weight for new connections, relative to other endpoints; at least 1.
    pub(super) weight: u16,
}

/// `KUBE-SEP-*`: rewrites the destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct EndpointChain {
    pub(super) label: Arc<PortLabel>,
    pub(super) endpoint: SocketAddr,
    /// The list of recent clients, for session affinity.
    pub(super) recent: Option<ChainName>,
    pub(super) has_comments: bool,
}

impl PortLabel {
    /// The comment `format` of the label.
    pub(super) fn comment(&self, text: impl FnOnce(&str) -> String) -> Match {
        comment(&text(&self.text))
    }

    /// The matches of the protocol and the destination port, with the address if there is one.
    pub(super) fn destination(&self, address: Option<Network>, port: u16) -> Vec<Match> {
        let ports = Some(Condition::Is(PortRange::from(port)));
        let mut matches = vec![Match::protocol(ip_protocol(self.protocol))];
        matches.extend(address.map(Match::destination));
        matches.push(transport(self.protocol, ports));
        matches
    }
}

/// What a rule in a shared chain is for: a withdrawn one is for the Service that it names.
pub(super) fn subject_of(rule: Difference<'_, RuleKey, (), ()>) -> Subject {
    let is_withdrawn = rule.subject == Subject::DataPath;
    let service = is_withdrawn.then(|| service_of(&rule.key.text)).flatten();
    service.map_or(rule.subject, Subject::Service)
}

/// The Service that a rule of iptables mode in a shared chain names in its comment: `ns/name:port cluster IP`. Rules of IPVS mode name none.
pub(super) fn service_of(rule: &str) -> Option<ObjectName> {
    let rule: Rule = rule.parse().ok()?;
    let mut comments = rule.matches.iter().filter_map(|test| match test {
        Match::Comment(comment) => Some(comment.as_str()),
        _ => None,
    });
    let label = comments.next()?.split(' ').next()?;
    let (namespace, name) = label.split_once('/')?;
    let name = name.split(':').next().filter(|name| !name.is_empty())?;
    (!namespace.is_empty()).then(|| ObjectName::new(namespace, name))
}

impl PortChain {
    /// The rules, in order.
    pub(super) fn rules(&self) -> Vec<Rule> {
        match self {
            PortChain::External(chain) => chain.rules(),
            PortChain::Firewall(chain) => chain.rules(),
            PortChain::Select(chain) => chain.rules(),
            PortChain::Endpoint(chain) => chain.rules(),
        }
    }

    /// The number of [`rules`](Self::rules).
    pub(super) fn number_of_rules(&self) -> usize {
        match self {
            PortChain::External(chain) => {
                let by_policy = match &chain.short_circuit {
                    None => 1,
                    Some(_) => 2 + usize::from(chain.local.is_some()),
                };
                by_policy + usize::from(chain.endpoints.is_some())
            }
            PortChain::Firewall(chain) => chain.ranges.len() + chain.node_sources.len() + 1,
            PortChain::Select(chain) => {
                let for_each = 1 + usize::from(chain.affinity.is_some());
                usize::from(chain.masquerade.is_some()) + for_each * chain.endpoints.len()
            }
            PortChain::Endpoint(_) => 2,
        }
    }
}

impl ExternalChain {
    fn rules(&self) -> Vec<Rule> {
        let comment = |text: &str| {
            self.label
                .comment(|label| format!("{text} for {label} external destinations"))
        };
        let from_node = || {
            Match::Addrtype(Addrtype {
                source: Some(Condition::Is(AddressTypes::new([AddressType::Local]))),
                ..Addrtype::default()
            })
        };
        let mut rules = Vec::new();
        match &self.short_circuit {
            None => rules.push(
                Rule::new()
                    .with(comment("masquerade traffic"))
                    .jump(FixedChain::NatMarkMasq.name()),
            ),
            Some(cluster) => {
                if let Some(local) = &self.local {
                    rules.push(
                        Rule::new()
                            .with(comment("pod traffic"))
                            .with(local.clone())
                            .jump(*cluster),
                    );
                }
                rules.push(
                    Rule::new()
                        .with(comment("masquerade LOCAL traffic"))
                        .with(from_node())
                        .jump(FixedChain::NatMarkMasq.name()),
                );
                rules.push(
                    Rule::new()
                        .with(comment("route LOCAL traffic"))
                        .with(from_node())
                        .jump(*cluster),
                );
            }
        }
        rules.extend(self.endpoints.map(|chain| Rule::new().jump(chain)));
        rules
    }
}

impl FirewallChain {
    fn rules(&self) -> Vec<Rule> {
        let rule = || Rule::new().with(self.label.comment(|label| format!("{label} loadbalancer IP")));
        let sources = self.ranges.iter().map(|range| Network::from(*range));
        let own = self.node_sources.iter().copied().map(Network::host);
        let mut rules: Vec<Rule> = sources
            .chain(own)
            .map(|source| rule().with(Match::source(source)).jump(self.external))
            .collect();
        // Packets that are not translated here have the load-balancer IP as their destination, and are dropped in `KUBE-PROXY-FIREWALL`.
        rules.push(
            Rule::new().with(
                self.label.comment(|label| {
                    format!("other traffic to {label} will be dropped by KUBE-PROXY-FIREWALL")
                }),
            ),
        );
        rules
    }
}

impl SelectChain {
    fn rules(&self) -> Vec<Rule> {
        let masquerade = self.masquerade.iter();
        let mut rules: Vec<Rule> = Vec::with_capacity(masquerade.len() + 2 * self.endpoints.len());
        rules.extend(masquerade.cloned());
        let rule = |endpoint: &SocketAddr| {
            let mut rule = with_capacity(1 + usize::from(self.has_comments));
            if self.has_comments {
                rule = rule.with(self.label.comment(|label| format!("{label} -> {endpoint}")));
            }
            rule
        };
        if let Some(seconds) = self.affinity {
            for Selected { chain, endpoint, .. } in &self.endpoints {
                let recent = Recent {
                    seconds: Some(seconds),
                    reap: true,
                    ..recent(RecentAction::Check, *chain)
                };
                rules.push(rule(endpoint).with(Match::Recent(Box::new(recent))).jump(*chain));
            }
        }
        let mut left: u64 = self
            .endpoints
            .iter()
            .map(|selected| u64::from(selected.weight))
            .sum();
        for Selected {
            chain,
            endpoint,
            weight,
        } in &self.endpoints
        {
            let mut rule = rule(endpoint);
            let weight = u64::from(*weight);
            if left > weight {
                let probability = Statistic::Random(share(weight, left));
                rule = rule.with(Match::Statistic(Condition::Is(probability)));
            }
            left = left.saturating_sub(weight);
            rules.push(rule.jump(*chain));
        }
        rules
    }
}

impl EndpointChain {
    fn rules(&self) -> Vec<Rule> {
        let rule = |matches: usize| {
            let mut rule = with_capacity(matches + usize::from(self.has_comments));
            if self.has_comments {
                rule = rule.with(self.label.comment(str::to_owned));
            }
            rule
        };
        // A pod that connects to itself through its Service must see another source address than its own.
        let hairpin = rule(1)
            .with(Match::source(Network::host(self.endpoint.ip())))
            .jump(FixedChain::NatMarkMasq.name());
        let mut translate = rule(2 + usize::from(self.recent.is_some()));
        if let Some(chain) = self.recent {
            translate = translate.with(Match::Recent(Box::new(recent(RecentAction::Set, chain))));
        }
        let translate = translate
            .with(Match::protocol(ip_protocol(self.label.protocol)))
            .with(transport(self.label.protocol, None))
            .with_target(Target::Dnat(Box::new(Nat::to_port(
                self.endpoint.ip(),
                self.endpoint.port(),
            ))));
        vec![hairpin, translate]
    }
}

/// A rule with space for this number of matches.
fn with_capacity(matches: usize) -> Rule {
    Rule {
        matches: Vec::with_capacity(matches),
        target: None,
    }
}

/// The probability of a part of a whole that is not 0; kube-proxy writes it with ten decimals.
fn share(part: u64, whole: u64) -> Probability {
    #[expect(clippy::cast_precision_loss, reason = "the kernel stores 31 bits")]
    let probability = (1e10 * part as f64 / whole as f64).round() / 1e10;
    #[expect(clippy::expect_used, reason = "a part of a whole")]
    Probability::new(probability.clamp(0.0, 1.0)).expect("a probability from 0 to 1")
}

/// The list of recent clients of an endpoint has the name of its chain.
fn recent(action: RecentAction, chain: ChainName) -> Recent {
    #[expect(clippy::expect_used, reason = "the name of a chain is shorter than the limit")]
    let name = RecentName::new(chain.as_str()).expect("a name of a list that fits the kernel");
    Recent {
        name: Some(name),
        ..Recent::new(action)
    }
}

fn ip_protocol(protocol: Protocol) -> IpProtocol {
    match protocol {
        Protocol::Tcp => IpProtocol::Tcp,
        Protocol::Udp => IpProtocol::Udp,
        Protocol::Sctp => IpProtocol::Sctp,
    }
}

fn transport(protocol: Protocol, destination_ports: Option<Condition<PortRange>>) -> Match {
    match protocol {
        Protocol::Tcp => Match::Tcp(TcpMatch {
            destination_ports,
            ..TcpMatch::default()
        }),
        Protocol::Udp => Match::Udp(UdpMatch {
            destination_ports,
            ..UdpMatch::default()
        }),
        Protocol::Sctp => Match::Sctp(SctpMatch {
            destination_ports,
            ..SctpMatch::default()
        }),
    }
}

/// The match of TCP health-check node ports.
pub(super) fn tcp_port(port: u16) -> [Match; 2] {
    [
        Match::protocol(IpProtocol::Tcp),
        transport(Protocol::Tcp, Some(Condition::Is(PortRange::from(port)))),
    ]
}

/// A comment, truncated to the limit of the kernel. Names that the API server accepts fit; another source may deliver longer ones.
pub(super) fn comment(text: &str) -> Match {
    let mut length = text.len().min(Comment::LIMIT);
    while !text.is_char_boundary(length) {
        length -= 1;
    }
    let text = text.get(..length).unwrap_or_default();
    // Names are printed with control characters escaped.
    Match::comment(text).unwrap_or_else(|_| Match::Verbatim(Vec::new()))
}

#[cfg(test)]
mod tests {
    use kernlink_iptables_restore::Style;

    use super::*;

    #[test]
    fn a_rule_names_its_service_in_the_comment() {
        let service = |comment: &str| {
            let rule =
                format!("-d 10.96.0.1/32 -p tcp -m comment --comment {comment} -m tcp --dport 80 -j X");
            service_of(&rule).map(|name| name.to_string())
        };
        assert_eq!(service("\"ns/s:web cluster IP\"").as_deref(), Some("ns/s"));
        assert_eq!(service("ns/s:web").as_deref(), Some("ns/s"));
        assert_eq!(service("\"ns/s external IP\"").as_deref(), Some("ns/s"));
        assert_eq!(service("\"Kubernetes service lb portal\""), None);
        assert_eq!(service_of("-j KUBE-NODE-PORT"), None);
    }

    #[test]
    fn probabilities_are_those_that_the_kernel_stores_for_ten_decimals() {
        assert_eq!(share(1, 2).to_string(), "0.50000000000");
        assert_eq!(share(1, 3).to_string(), "0.33333333349");
        assert_eq!(share(7, 42).to_string(), "0.16666666651");
    }

    #[test]
    fn a_comment_that_is_too_long_is_truncated_at_a_character() {
        let text = "ü".repeat(200);
        let rule = Rule::new().with(comment(&text));
        let rendered = rule.render(Style::SAVE);
        assert!(rendered.contains("üü"), "{rendered}");
        let parsed: Rule = rendered.parse().unwrap();
        assert_eq!(parsed, rule);
    }
}
