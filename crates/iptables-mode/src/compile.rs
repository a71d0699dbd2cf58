//! Compiles a service port to the chains that belong to it and to its rules in the chains that all service ports share.
//!
//! Source: `syncProxyRules` in `pkg/proxy/iptables/proxier.go` of Kubernetes v1.36.3.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;
use kernlink_iptables_restore::matches::AddressType;
use kernlink_iptables_restore::{ChainName, Match, Network, Rule, Target};
use kernlink_netfilter::{Extension, LOOPBACK_IPV4, local_match};
use kernlink_services::{ChosenEndpoint, Family, Frontend, FrontendKind, ServicePort, TrafficPolicy};

use super::chains::{Counters, FixedChain, LOOPBACK_ACCEPTED, nfacct};
use super::config::Config;
use super::extensions::REJECT;
use super::names::{ChainKind, ChainNames};
use super::port_chain::{
    EndpointChain, ExternalChain, FirewallChain, PortChain, PortLabel, SelectChain, Selected, tcp_port,
};

/// What a service port is compiled to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Compiled {
    /// Its chains in table `nat`, in kube-proxy's order.
    pub(super) chains: Vec<(ChainName, PortChain)>,
    /// Its rules in chains that all service ports share, in kube-proxy's order.
    pub(super) rules: Vec<(FixedChain, Rule)>,
    /// Whether internal traffic is dropped because no endpoint is on this node.
    pub(super) lacks_local_internal: bool,
    /// The same for external traffic.
    pub(super) lacks_local_external: bool,
}

/// What the chains depend on in addition to the service port.
pub(super) struct Inputs<'a> {
    pub(super) config: &'a Config,
    /// The network of this node's pods.
    pub(super) pod_cidr: Option<IpNet>,
    pub(super) counters: Counters,
    /// Whether the rules of endpoints have comments.
    pub(super) has_comments: bool,
    /// The extensions that rules do without.
    pub(super) missing: &'a BTreeSet<Extension>,
}

impl Inputs<'_> {
    /// The match of traffic from pods, or of all other traffic. `None` if pods cannot be recognised.
    fn local(&self, family: Family, is_local: bool) -> Option<Match> {
        let detection = &self.config.local_detection;
        local_match(detection, family, self.pod_cidr, is_local)
    }
}

/// Compiles a service port with the frontends whose keys it owns.
pub(super) fn compile<'a>(
    port: &ServicePort,
    frontends: impl Iterator<Item = &'a Frontend>,
    inputs: &Inputs<'_>,
) -> Compiled {
    let mut compiler = Compiler {
        port,
        inputs,
        family: port.key.family,
        names: ChainNames::new(&port.key.name),
        label: Arc::new(PortLabel {
            text: port.key.name.to_string().into(),
            protocol: port.key.name.protocol,
        }),
        cluster: usable(&port.endpoints.cluster),
        local: usable(&port.endpoints.local),
        compiled: Compiled::default(),
    };
    compiler.run(&frontends.collect::<Vec<_>>());
    compiler.compiled
}

/// The endpoints that receive connections, in kube-proxy's order: as text.
fn usable(endpoints: &[ChosenEndpoint]) -> Vec<(SocketAddr, u16)> {
    let mut endpoints: Vec<(String, SocketAddr, u16)> = endpoints
        .iter()
        .filter(|endpoint| endpoint.weight > 0)
        .map(|endpoint| {
            let socket = SocketAddr::new(endpoint.address, endpoint.port);
            (socket.to_string(), socket, endpoint.weight)
        })
        .collect();
    endpoints.sort();
    endpoints
        .into_iter()
        .map(|(_, socket, weight)| (socket, weight))
        .collect()
}

struct Compiler<'a> {
    port: &'a ServicePort,
    inputs: &'a Inputs<'a>,
    family: Family,
    names: ChainNames,
    label: Arc<PortLabel>,
    cluster: Vec<(SocketAddr, u16)>,
    local: Vec<(SocketAddr, u16)>,
    compiled: Compiled,
}

/// What happens to new connections to a frontend.
#[derive(Clone, Debug)]
enum Service {
    /// They are forwarded; the chain selects the endpoint.
    Forwarded(ChainName),
    /// No endpoint accepts traffic.
    Rejected,
    /// No endpoint on this node accepts traffic.
    Dropped,
}

/// A node port, and the destinations that its rules match.
struct NodePort {
    number: u16,
    /// `None`: every address of the node that accepts node ports. Otherwise those at which the Service owns it: the others are cluster IPs, which
    /// have no rule in table `nat` while they have no endpoints, so that their traffic reaches the chain of node ports.
    destinations: Vec<Option<Network>>,
}

impl Compiler<'_> {
    fn run(&mut self, frontends: &[&Frontend]) {
        let of_kind = |kind: FrontendKind| frontends.iter().filter(move |frontend| frontend.kind == kind);
        let cluster_ip = of_kind(FrontendKind::ClusterIp).next();
        let node_port = self.node_port(frontends);
        let is_external = |frontend: &&&Frontend| frontend.kind != FrontendKind::ClusterIp;
        let has_external = frontends.iter().any(|frontend| is_external(&frontend)) || node_port.is_some();
        let external_policy = has_external.then_some(self.port.external_policy);

        let mut internal_chain = None;
        if let Some(frontend) = cluster_ip {
            let service = self.service(frontend.policy);
            self.compiled.lacks_local_internal = matches!(service, Service::Dropped);
            self.capture_cluster_ip(frontend, &service);
            if let Service::Forwarded(chain) = service {
                internal_chain = Some((chain, *frontend));
            }
        }
        if let Some(policy) = external_policy {
            self.compiled.lacks_local_external = matches!(self.service(policy), Service::Dropped);
            self.capture_external(frontends, policy, node_port);
        }
        if let Some(check) = &self.port.health_check {
            let comment = self
                .label
                .comment(|label| format!("{label} health check node port"));
            let [protocol, tcp] = tcp_port(check.port.get());
            let rule = Rule::new().with(comment).with(protocol).with(tcp);
            self.push(FixedChain::FilterNodePorts, rule.with_target(Target::Accept));
        }
        if let Some(policy) = external_policy.filter(|_| self.has_any()) {
            self.external_chain(policy);
            self.firewall_chain(frontends);
        }
        self.endpoint_chains(frontends, internal_chain);
    }

    /// Whether any endpoint, on any node, receives traffic.
    fn has_any(&self) -> bool {
        // All endpoints may have the weight 0.
        let have_weight = !self.cluster.is_empty() || self.port.endpoints.cluster.is_empty();
        self.port.endpoints.has_any && have_weight
    }

    /// What happens to traffic of a policy.
    fn service(&self, policy: TrafficPolicy) -> Service {
        if !self.has_any() {
            return Service::Rejected;
        }
        match policy {
            TrafficPolicy::Cluster => Service::Forwarded(self.names.of(ChainKind::Cluster)),
            TrafficPolicy::Local if self.local.is_empty() => Service::Dropped,
            TrafficPolicy::Local => Service::Forwarded(self.names.of(ChainKind::Local)),
        }
    }

    /// The node port, unless another Service owns it at all addresses of this node.
    fn node_port(&self, owned: &[&Frontend]) -> Option<NodePort> {
        let number = self.port.node_port?.get();
        let is_node_port = |frontend: &&Frontend| frontend.kind == FrontendKind::NodePort;
        let defined = self.port.frontends.iter().filter(is_node_port).count();
        let owned = owned.iter().copied().filter(is_node_port);
        let owned: Vec<Network> = owned.map(|frontend| Network::host(frontend.address)).collect();
        if owned.len() == defined {
            let destinations = vec![None];
            return Some(NodePort { number, destinations });
        }
        let has_loopback = self.family == Family::Ipv4 && self.inputs.config.serves_loopback_node_ports();
        let loopback = has_loopback.then(|| LOOPBACK_IPV4.into());
        (!owned.is_empty()).then(|| NodePort {
            number,
            destinations: loopback.into_iter().chain(owned).map(Some).collect(),
        })
    }

    fn push(&mut self, chain: FixedChain, rule: Rule) {
        self.compiled.rules.push((chain, rule));
    }

    /// A rule for new connections to an address and port.
    fn capture(&self, comment: Match, address: IpAddr, port: u16) -> Rule {
        let mut rule = Rule::new().with(comment);
        rule.matches
            .extend(self.label.destination(Some(Network::host(address)), port));
        rule
    }

    /// The comment and the target of a rule for traffic that is not forwarded.
    fn refusal(&self, service: &Service) -> Option<(Match, Target)> {
        match service {
            Service::Forwarded(_) => None,
            Service::Rejected => {
                let comment = self.label.comment(|label| format!("{label} has no endpoints"));
                let target = if self.inputs.missing.contains(&REJECT) {
                    Target::Drop
                } else {
                    Target::Reject(None)
                };
                Some((comment, target))
            }
            Service::Dropped => {
                let comment = self
                    .label
                    .comment(|label| format!("{label} has no local endpoints"));
                Some((comment, Target::Drop))
            }
        }
    }

    fn capture_cluster_ip(&mut self, frontend: &Frontend, service: &Service) {
        let rule = match (service, self.refusal(service)) {
            (Service::Forwarded(chain), _) => {
                let comment = self.label.comment(|label| format!("{label} cluster IP"));
                let rule = self.capture(comment, frontend.address, frontend.port);
                (FixedChain::NatServices, rule.jump(*chain))
            }
            (_, Some((comment, target))) => {
                let rule = self.capture(comment, frontend.address, frontend.port);
                (FixedChain::FilterServices, rule.with_target(target))
            }
            (_, None) => return,
        };
        self.push(rule.0, rule.1);
    }

    fn capture_external(
        &mut self,
        frontends: &[&Frontend],
        policy: TrafficPolicy,
        node_port: Option<NodePort>,
    ) {
        let has_any = self.has_any();
        let refusal = self.refusal(&self.service(policy));
        let external = self.names.of(ChainKind::External);
        let of_kind = |kind: FrontendKind| frontends.iter().filter(move |frontend| frontend.kind == kind);
        for frontend in of_kind(FrontendKind::ExternalIp) {
            if has_any {
                let comment = self.label.comment(|label| format!("{label} external IP"));
                let rule = self.capture(comment, frontend.address, frontend.port);
                self.push(FixedChain::NatServices, rule.jump(external));
            }
            if let Some((comment, target)) = &refusal {
                let rule = self.capture(comment.clone(), frontend.address, frontend.port);
                self.push(
                    FixedChain::FilterExternalServices,
                    rule.with_target(target.clone()),
                );
            }
        }
        for frontend in of_kind(FrontendKind::LoadBalancer).filter(|_| has_any) {
            let is_restricted = !frontend.source_ranges.is_empty();
            let firewall = self.names.of(ChainKind::Firewall);
            let comment = self.label.comment(|label| format!("{label} loadbalancer IP"));
            let rule = self.capture(comment, frontend.address, frontend.port);
            let target = if is_restricted { firewall } else { external };
            self.push(FixedChain::NatServices, rule.jump(target));
            if is_restricted {
                let comment = self
                    .label
                    .comment(|label| format!("{label} traffic not accepted by {firewall}"));
                let rule = self.capture(comment, frontend.address, frontend.port);
                self.push(FixedChain::FilterProxyFirewall, rule.with_target(Target::Drop));
            }
        }
        if let Some((comment, target)) = &refusal {
            for frontend in of_kind(FrontendKind::LoadBalancer) {
                let rule = self.capture(comment.clone(), frontend.address, frontend.port);
                self.push(
                    FixedChain::FilterExternalServices,
                    rule.with_target(target.clone()),
                );
            }
        }
        if let Some(node_port) = node_port {
            self.capture_node_port(&node_port, external, refusal);
        }
    }

    fn capture_node_port(
        &mut self,
        node_port: &NodePort,
        external: ChainName,
        refusal: Option<(Match, Target)>,
    ) {
        let NodePort { number, destinations } = node_port;
        let number = *number;
        if self.has_any() {
            let counts_loopback = self.family == Family::Ipv4
                && self.inputs.config.serves_loopback_node_ports()
                && self.inputs.counters.loopback_accepted;
            let comment = self.label.comment(str::to_owned);
            if counts_loopback {
                let mut rule = Rule::new().with(comment.clone());
                rule.matches
                    .extend(self.label.destination(Some(LOOPBACK_IPV4.into()), number));
                let rule = rule.with(nfacct(LOOPBACK_ACCEPTED)).jump(external);
                self.push(FixedChain::NatNodePorts, rule);
            }
            for destination in destinations {
                let mut rule = Rule::new().with(comment.clone());
                rule.matches.extend(self.label.destination(*destination, number));
                self.push(FixedChain::NatNodePorts, rule.jump(external));
            }
        }
        if let Some((comment, target)) = refusal {
            for destination in destinations {
                let mut rule = Rule::new()
                    .with(comment.clone())
                    .with(Match::destination_type(AddressType::Local));
                rule.matches.extend(self.label.destination(*destination, number));
                self.push(
                    FixedChain::FilterExternalServices,
                    rule.with_target(target.clone()),
                );
            }
        }
    }

    fn external_chain(&mut self, policy: TrafficPolicy) {
        let endpoints = match self.service(policy) {
            Service::Forwarded(chain) => Some(chain),
            Service::Rejected | Service::Dropped => None,
        };
        let chain = ExternalChain {
            label: Arc::clone(&self.label),
            short_circuit: match policy {
                TrafficPolicy::Cluster => None,
                TrafficPolicy::Local => Some(self.names.of(ChainKind::Cluster)),
            },
            local: match policy {
                TrafficPolicy::Cluster => None,
                TrafficPolicy::Local => self.inputs.local(self.family, true),
            },
            endpoints,
        };
        let name = self.names.of(ChainKind::External);
        self.compiled
            .chains
            .push((name, PortChain::External(Arc::new(chain))));
    }

    fn firewall_chain(&mut self, frontends: &[&Frontend]) {
        let restricted: Vec<&&Frontend> = frontends
            .iter()
            .filter(|frontend| {
                frontend.kind == FrontendKind::LoadBalancer && !frontend.source_ranges.is_empty()
            })
            .collect();
        let Some(first) = restricted.first() else {
            return;
        };
        let admitted = restricted.iter().filter(|frontend| frontend.admits_node);
        let chain = FirewallChain {
            label: Arc::clone(&self.label),
            ranges: Arc::clone(&first.source_ranges),
            node_sources: admitted.map(|frontend| frontend.address).collect(),
            external: self.names.of(ChainKind::External),
        };
        let name = self.names.of(ChainKind::Firewall);
        self.compiled
            .chains
            .push((name, PortChain::Firewall(Arc::new(chain))));
    }

    /// The chains that select an endpoint, and those of the endpoints.
    fn endpoint_chains(&mut self, frontends: &[&Frontend], internal: Option<(ChainName, &Frontend)>) {
        let affinity = frontends
            .iter()
            .find_map(|frontend| frontend.affinity)
            .map(|timeout| u32::try_from(timeout.as_secs()).unwrap_or(u32::MAX));
        let has_comments = self.inputs.has_comments;
        let mut seen: BTreeSet<SocketAddr> = BTreeSet::new();
        let mut order: Vec<(SocketAddr, ChainName)> = Vec::new();
        for (kind, endpoints) in [
            (ChainKind::Cluster, self.cluster.clone()),
            (ChainKind::Local, self.local.clone()),
        ] {
            if endpoints.is_empty() {
                continue;
            }
            let name = self.names.of(kind);
            let masquerade = internal
                .filter(|(chain, _)| *chain == name)
                .and_then(|(_, frontend)| self.masquerade_cluster_ip(frontend));
            let selected: Vec<Selected> = endpoints
                .into_iter()
                .map(|(endpoint, weight)| Selected {
                    chain: self.names.endpoint(endpoint),
                    endpoint,
                    weight,
                })
                .collect();
            for Selected { endpoint, chain, .. } in &selected {
                if seen.insert(*endpoint) {
                    order.push((*endpoint, *chain));
                }
            }
            let chain = SelectChain {
                label: Arc::clone(&self.label),
                masquerade,
                endpoints: selected,
                affinity,
                has_comments,
            };
            self.compiled
                .chains
                .push((name, PortChain::Select(Arc::new(chain))));
        }
        for (endpoint, name) in order {
            let chain = EndpointChain {
                label: Arc::clone(&self.label),
                endpoint,
                recent: affinity.map(|_| name),
                has_comments,
            };
            self.compiled
                .chains
                .push((name, PortChain::Endpoint(Arc::new(chain))));
        }
    }

    /// The rule that masquerades traffic to the cluster IP that does not come from pods. The chain has other traffic too, so it matches
    /// the address.
    fn masquerade_cluster_ip(&self, frontend: &Frontend) -> Option<Rule> {
        let condition = if self.inputs.config.masquerade_all {
            None
        } else {
            Some(self.inputs.local(self.family, false)?)
        };
        let comment = self.label.comment(|label| format!("{label} cluster IP"));
        let mut rule = self.capture(comment, frontend.address, frontend.port);
        rule.matches.extend(condition);
        Some(rule.jump(FixedChain::NatMarkMasq.name()))
    }
}
