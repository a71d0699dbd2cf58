//! The answer to `/v1/explain`: why a frontend is served, or is not.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use kernlink_proxier::{Found, KernelObject};
use kernlink_services::address::parse_address;
use kernlink_services::{
    ExplainedEndpoint, ExplainedEndpoints, Family, Frontend, FrontendKey, FrontendKind, Kind, NotChosen,
    ObjectName, Protocol, ServicePort, ServicePortName, Services, Subject, TrafficPolicy,
};

use super::documents::{
    Contender, Endpoint, Explanation, Failing, Object, Owner, RecentEvent, UnusedSlice, VERSION,
};
use super::parameters::parameters;
use super::services::{policy, why_not_served};
use super::status::FAILING;
use super::worker::Reader;
use crate::modes::{AnyProxier, Find};
use crate::state;

/// The frontend is served.
pub(crate) const SERVED: &str = "served";
/// It is not.
pub(crate) const NOT_SERVED: &str = "not served";
/// It is not known whether it is.
pub(crate) const UNKNOWN: &str = "unknown";

/// The number of service ports in a list of those that lost a conflict, or that have something in common with an unknown address.
const OTHERS: usize = 20;

/// What is to be explained.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Question {
    address: IpAddr,
    port: u16,
    /// `None`: the first one that a Service has.
    protocol: Option<Protocol>,
    from: Option<IpAddr>,
}

impl Question {
    /// # Errors
    /// What is invalid or missing.
    pub(crate) fn parse(query: &str) -> Result<Self, String> {
        let (mut address, mut port, mut protocol, mut from) = (None, None, None, None);
        for (name, value) in parameters(query, &["address", "port", "protocol", "from"])? {
            let parsed = || {
                let parsed = parse_address(value);
                parsed.ok_or_else(|| format!("{name}: {value:?} is not valid; valid: an IP address"))
            };
            match name {
                "address" => address = Some(parsed()?),
                "from" => from = Some(parsed()?),
                "port" => {
                    let number = value.parse().ok().filter(|number| *number != 0);
                    port = Some(
                        number.ok_or_else(|| format!("port: {value:?} is not valid; valid: 1 to 65535"))?,
                    );
                }
                _ => {
                    let parsed = value.to_ascii_uppercase().parse::<Protocol>();
                    protocol =
                        Some(parsed.map_err(|_| {
                            format!("protocol: {value:?} is not valid; valid: TCP, UDP, SCTP")
                        })?);
                }
            }
        }
        let address = address.ok_or("address: is missing; expected an IP address")?;
        if let Some(from) = from
            && Family::of(from) != Family::of(address)
        {
            return Err(format!("from: {from} is not of the family of {address}"));
        }
        Ok(Self {
            address,
            port: port.ok_or("port: is missing; expected 1 to 65535")?,
            protocol,
            from,
        })
    }

    fn keys(&self) -> Vec<FrontendKey> {
        let all = [Protocol::Tcp, Protocol::Udp, Protocol::Sctp];
        let protocols = self.protocol.map_or(all.to_vec(), |protocol| vec![protocol]);
        let keys = protocols.into_iter().map(|protocol| FrontendKey {
            address: self.address,
            protocol,
            port: self.port,
        });
        keys.collect()
    }
}

/// What the proxier knows of a frontend.
struct Facts {
    key: FrontendKey,
    owner: Option<OwnerFacts>,
    conflicts: Vec<Contender>,
    /// Without an owner: what is known of the address and port.
    unowned: Vec<String>,
    /// Whether the source is a pod of this node or the node itself.
    is_source_internal: bool,
}

/// The service port that owns the frontend.
struct OwnerFacts {
    name: ServicePortName,
    frontends: Vec<Frontend>,
    endpoints: ExplainedEndpoints,
    /// Whether any endpoint, on any node, accepts traffic.
    has_any: bool,
    /// Whether the kernel has it as last read or written.
    is_in_kernel: bool,
    failing: Vec<Failing>,
    events: Vec<RecentEvent>,
    find: Option<Find>,
}

/// Explains a frontend. Reads the proxier, then single objects of the kernel.
pub(super) fn answer(reader: &mut Reader, question: Question) -> Explanation {
    let mut explanation = Explanation {
        version: VERSION,
        mode: state::lock(reader.state()).config().mode().to_string(),
        frontend: question
            .keys()
            .first()
            .map(ToString::to_string)
            .unwrap_or_default(),
        from: question.from.map(|from| from.to_string()),
        verdict: UNKNOWN.to_owned(),
        ..Explanation::default()
    };
    let asked = question.clone();
    let mut facts = match reader.read(move |proxier| facts(proxier, &asked)) {
        Ok(facts) => facts,
        Err(why) => {
            explanation.causes.push(why.text().to_owned());
            return explanation;
        }
    };
    let objects = facts.owner.as_mut().and_then(|owner| owner.find.take());
    let objects = objects.map(|find| find()).unwrap_or_default();
    if let Some(owner) = &facts.owner {
        let service = Subject::Object(Kind::Service, owner.name.service.clone());
        let recent = state::lock(reader.state()).with_status(|status| status.recent());
        let of_service = recent.into_iter().filter(|(subject, _)| *subject == service);
        explanation.events.extend(of_service.map(|(_, event)| event));
    }
    explain(&mut explanation, &question, facts, objects);
    explanation
}

fn facts(proxier: &dyn AnyProxier, question: &Question) -> Facts {
    let services = proxier.services();
    let keys = question.keys();
    let owned = keys.iter().find(|key| services.frontend(key).is_some());
    let key = owned.or(keys.first()).copied().unwrap_or(FrontendKey {
        address: question.address,
        protocol: Protocol::Tcp,
        port: question.port,
    });
    let conflicts = services
        .contenders(&key)
        .take(OTHERS)
        .map(|(port, kind, why)| Contender {
            service: port.key.name.to_string(),
            kind: kind.to_string(),
            reason: format!(
                "{kind} of {}: the owner has it{}",
                port.key.name,
                reason_text(&why)
            ),
        });
    let node = services.node_facts();
    let is_source_internal = question.from.is_some_and(|from| {
        let of_pods = node.pod_cidr(Family::of(from));
        node.has_address(from) || of_pods.is_some_and(|net| net.contains(&from))
    });
    Facts {
        key,
        owner: owner(proxier, &key),
        conflicts: conflicts.collect(),
        unowned: if owned.is_some() {
            Vec::new()
        } else {
            unowned(services, proxier, &key, question.protocol.is_some())
        },
        is_source_internal,
    }
}

fn reason_text(precedence: &kernlink_services::Precedence) -> String {
    precedence.to_string()
}

fn owner(proxier: &dyn AnyProxier, key: &FrontendKey) -> Option<OwnerFacts> {
    let services = proxier.services();
    let frontend = services.frontend(key)?;
    let port: &ServicePort = frontend.owner;
    let name = port.key.name.clone();
    let events = services.events_of(&name.service).into_iter();
    Some(OwnerFacts {
        frontends: frontend.frontends().cloned().collect(),
        endpoints: services.explain_endpoints(&port.key)?,
        has_any: port.endpoints.has_any,
        is_in_kernel: proxier.serves(key, &name.service),
        failing: proxier.failing(&name.service, FAILING),
        events: events
            .map(|event| RecentEvent {
                time: String::new(),
                subject: event.subject.to_string(),
                text: event.reason.to_string(),
            })
            .collect(),
        find: Some(proxier.find_objects(key, frontend.id)),
        name,
    })
}

/// What is known of a frontend that no Service owns. Visits all Services.
fn unowned(
    services: &Services,
    proxier: &dyn AnyProxier,
    key: &FrontendKey,
    has_protocol: bool,
) -> Vec<String> {
    let family = key.family();
    if !services.config().families.contains(&family) {
        return vec![format!(
            "{family} is not served: the agent has --ip-families, or the node has one family"
        )];
    }
    let mut known = Vec::new();
    let mut same_address: Vec<(FrontendKey, String)> = services
        .frontends()
        .filter(|frontend| frontend.key.address == key.address)
        .map(|frontend| (frontend.key, frontend.owner.key.name.to_string()))
        .collect();
    same_address.sort();
    same_address.truncate(OTHERS);
    for (other, name) in &same_address {
        known.push(format!(
            "no Service has port {}{} of {}, which is an address of {name} with {}/{}",
            key.port,
            if has_protocol {
                format!("/{}", key.protocol)
            } else {
                String::new()
            },
            key.address,
            other.port,
            other.protocol
        ));
    }
    let node_ports = services.node_facts().node_port_addresses(family);
    let mut of_node_port: Vec<&ServicePort> = services
        .ports()
        .map(|(_, port)| port)
        .filter(|port| port.node_port.is_some_and(|port| port.get() == key.port))
        .collect();
    of_node_port.sort_by(|a, b| a.key.cmp(&b.key));
    of_node_port.truncate(OTHERS);
    for port in of_node_port {
        let (name, protocol) = (&port.key.name, port.key.name.protocol);
        if node_ports.contains(&key.address) {
            // Another protocol or family.
            known.push(format!(
                "{}/{protocol} is the node port of {name} ({})",
                key.port, port.key.family
            ));
        } else {
            let addresses: Vec<String> = node_ports.iter().take(OTHERS).map(ToString::to_string).collect();
            known.push(format!(
                "{}/{protocol} is the node port of {name}, but {} is not an address of this node that accepts node ports ({})",
                key.port,
                key.address,
                if addresses.is_empty() { "none does".to_owned() } else { addresses.join(", ") }
            ));
        }
    }
    if known.is_empty() {
        for name in with_address(services, key.address).into_iter().take(OTHERS) {
            let events = services.events_of(&name);
            let has_ports = services.ports_of(&name).next().is_some();
            if has_ports {
                known.push(format!(
                    "the Service {name} names {}, but it is not served",
                    key.address
                ));
                known.extend(
                    events
                        .iter()
                        .map(|event| format!("{}: {}", event.subject, event.reason)),
                );
            } else {
                known.push(why_not_served(proxier, &name));
            }
        }
    }
    if known.is_empty() {
        known.push(format!("no Service has the address {}", key.address));
    }
    known
}

/// The Services that name an address in one of their fields, in the order of names.
fn with_address(services: &Services, address: IpAddr) -> Vec<ObjectName> {
    let is_same = |text: &String| parse_address(text) == Some(address);
    let mut names: Vec<ObjectName> = services
        .services()
        .filter(|service| {
            is_same(&service.cluster_ip)
                || service.cluster_ips.iter().any(is_same)
                || service.external_ips.iter().any(is_same)
                || service.ingress.iter().any(|ingress| is_same(&ingress.ip))
        })
        .map(|service| service.name.clone())
        .collect();
    names.sort_unstable();
    names
}

/// Decides, from what the proxier knows and what the kernel has.
fn explain(explanation: &mut Explanation, question: &Question, facts: Facts, objects: Vec<KernelObject>) {
    explanation.frontend = facts.key.to_string();
    explanation.conflicts = facts.conflicts;
    for contender in explanation.conflicts.iter() {
        explanation
            .notes
            .push(format!("lost the conflict: {}", contender.reason));
    }
    let Some(owner) = facts.owner else {
        explanation.verdict = NOT_SERVED.to_owned();
        explanation.causes = facts.unowned;
        return;
    };
    let Some(first) = owner.frontends.first() else {
        return;
    };
    let mut causes = Vec::new();
    let is_internal_frontend = owner.frontends.iter().any(|f| f.kind == FrontendKind::ClusterIp);
    let ranges: Vec<_> = owner
        .frontends
        .iter()
        .flat_map(|f| f.source_ranges.iter())
        .collect();
    explanation.owner = Some(Owner {
        service: owner.name.to_string(),
        kinds: owner.frontends.iter().map(|f| f.kind.to_string()).collect(),
        policy: policy(first.policy).to_owned(),
        affinity_seconds: first.affinity.map(|affinity| affinity.as_secs()),
        source_ranges: ranges.iter().map(ToString::to_string).collect(),
    });
    // 1. The restriction.
    if !ranges.is_empty() {
        let admits_node = owner
            .frontends
            .iter()
            .any(|f| !f.source_ranges.is_empty() && f.admits_node);
        let shown = ranges
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
            .join(", ");
        match question.from {
            None => explanation.notes.push(format!(
                "only sources in {shown} are admitted; --from ADDRESS checks one"
            )),
            Some(from) => {
                // A packet of the node may have the frontend as its source.
                let is_admitted = ranges.iter().any(|net| net.contains(&from))
                    || (admits_node && from == facts.key.address);
                if is_admitted {
                    explanation.steps.push(format!(
                        "{from} is admitted by loadBalancerSourceRanges ({shown})"
                    ));
                } else {
                    causes.push(format!(
                        "{from} is not in loadBalancerSourceRanges ({shown}): the packet is dropped"
                    ));
                }
            }
        }
    }
    // 2. The policy.
    let is_short_circuit = !is_internal_frontend && facts.is_source_internal;
    let uses_local = first.policy == TrafficPolicy::Local && !is_short_circuit;
    let field = if is_internal_frontend {
        "internalTrafficPolicy"
    } else {
        "externalTrafficPolicy"
    };
    explanation.steps.push(match (first.policy, is_short_circuit) {
        (TrafficPolicy::Local, true) => {
            format!("{field} is Local, but the source is on this node: endpoints of all nodes are used")
        }
        (TrafficPolicy::Local, false) => format!("{field} is Local: endpoints of this node are used"),
        (TrafficPolicy::Cluster, _) => format!("{field} is Cluster: endpoints of all nodes are used"),
    });
    // 3. The endpoints.
    let refusal = |e: &ExplainedEndpoint| if uses_local { e.local } else { e.cluster };
    let endpoints = &owner.endpoints.endpoints;
    let chosen: Vec<&ExplainedEndpoint> = endpoints.iter().filter(|e| refusal(e).is_none()).collect();
    let used: Vec<&&ExplainedEndpoint> = chosen.iter().filter(|e| e.weight > 0).collect();
    explanation.endpoints = endpoints.iter().map(|e| endpoint(e, refusal(e))).collect();
    explanation.unused_slices = owner
        .endpoints
        .unused_slices
        .iter()
        .map(|slice| UnusedSlice {
            slice: slice.name.to_string(),
            endpoints: slice.endpoints,
            text: slice.reason.to_string(),
        })
        .collect();
    if used.is_empty() {
        causes.push(without_endpoints(&owner, uses_local, field, !chosen.is_empty()));
        causes.extend(explanation.unused_slices.iter().map(|slice| {
            format!(
                "{} endpoints of EndpointSlice {} are not used: {}",
                slice.endpoints, slice.slice, slice.text
            )
        }));
    } else {
        explanation.steps.push(match used.as_slice() {
            [one] => format!("the connection goes to {}", socket(one)),
            _ => format!("the connection goes to one of {} endpoints", used.len()),
        });
        if used.iter().all(|e| !e.conditions.ready) {
            explanation
                .notes
                .push("no endpoint is ready: those that terminate and still serve are used".to_owned());
        }
    }
    // 4. The kernel.
    let mut unknown = Vec::new();
    for object in &objects {
        match &object.found {
            Found::Missing => causes.push(format!("missing in the kernel: {}", object.desired)),
            Found::Different(found) => causes.push(format!(
                "different in the kernel: {}: {}",
                object.desired.lines().next().unwrap_or_default(),
                found.lines().next().unwrap_or_default()
            )),
            Found::Unknown(why) => unknown.push(format!("{} cannot be read: {why}", object.desired)),
            _ => {}
        }
    }
    explanation.kernel_objects = objects.into_iter().map(object).collect();
    if !owner.is_in_kernel && (!used.is_empty() || !owner.failing.is_empty()) {
        let first = owner.failing.iter().find_map(|failing| failing.reason.as_deref());
        causes.push(match first {
            Some(reason) => {
                format!("the kernel does not have it as it should be: an operation failed: {reason}")
            }
            None => "the kernel does not have it as it should be; the next sync writes it".to_owned(),
        });
    }
    // What is in the kernel and cannot be reached because of a Service is its first cause.
    explanation.verdict = match (causes.is_empty(), unknown.is_empty()) {
        (false, _) => NOT_SERVED,
        (true, false) => UNKNOWN,
        (true, true) => SERVED,
    }
    .to_owned();
    causes.extend(unknown);
    explanation.causes = causes;
    explanation.failing = owner.failing;
    explanation.events.splice(0..0, owner.events);
}

fn socket(endpoint: &ExplainedEndpoint) -> SocketAddr {
    SocketAddr::new(endpoint.address, endpoint.port)
}

fn endpoint(endpoint: &ExplainedEndpoint, refusal: Option<NotChosen>) -> Endpoint {
    let has_weight = endpoint.weight > 0;
    let (reason, text) = match refusal {
        Some(reason) => (Some(reason.code().to_owned()), Some(reason.to_string())),
        None if !has_weight => {
            let text = "its weight is 0: it receives no new connections".to_owned();
            (Some("WeightZero".to_owned()), Some(text))
        }
        None => (None, None),
    };
    Endpoint {
        endpoint: socket(endpoint).to_string(),
        node: endpoint.node.as_deref().map(str::to_owned),
        zone: endpoint.zone.as_deref().map(str::to_owned),
        used: refusal.is_none() && has_weight,
        reason,
        text,
        weight: endpoint.weight,
    }
}

/// Why no endpoint is used.
fn without_endpoints(owner: &OwnerFacts, uses_local: bool, field: &str, has_chosen: bool) -> String {
    let endpoints = &owner.endpoints.endpoints;
    if has_chosen {
        return "all endpoints that are chosen have the weight 0".to_owned();
    }
    if endpoints.is_empty() {
        return format!("the Service has no endpoints for the port {}", owner.name);
    }
    if uses_local && owner.has_any {
        return format!(
            "{field} is Local, and no endpoint on this node accepts traffic: the packet is dropped"
        );
    }
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for endpoint in endpoints {
        let reason = match (endpoint.conditions.terminating, endpoint.conditions.ready) {
            (true, _) => "terminating, not serving",
            (false, _) => "not ready",
        };
        *counts.entry(reason.to_owned()).or_default() += 1;
    }
    let counts: Vec<String> = counts
        .iter()
        .map(|(reason, count)| format!("{count} {reason}"))
        .collect();
    format!(
        "none of {} endpoints accepts traffic: {}",
        endpoints.len(),
        counts.join(", ")
    )
}

fn object(object: KernelObject) -> Object {
    let (state, found) = match object.found {
        Found::Same(text) => ("same", text),
        Found::Different(text) => ("different", text),
        Found::Missing => ("missing", String::new()),
        Found::Unknown(why) => ("unknown", why),
        _ => ("not read", String::new()),
    };
    Object {
        desired: object.desired,
        state: state.to_owned(),
        found: Some(found).filter(|found| !found.is_empty()),
    }
}
