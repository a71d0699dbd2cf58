//! Services, EndpointSlices and Nodes from Kubernetes YAML or JSON, as `kubectl get -o yaml` prints it.
//!
//! A text may be a single object, a `List` (also `ServiceList` and the like), or a stream of documents separated by `---`,
//! in any mixture; JSON values may follow each other without such a line. An object that is wrong is left out with an [`Error`]
//! naming file, document, object, field and reason; the others are read. Objects of other kinds are counted and left out.

use std::collections::BTreeMap;
use std::fmt::{self, Write};
use std::time::Duration;

use serde_json::Value;

use super::time;
use super::{
    AddressType, Change, Conditions, Endpoint, EndpointPort, EndpointSlice, Hints, Ingress, IngressMode,
    Node, NodeAddress, NodeAddressType, ObjectChange, ObjectName, Policy, Port, Protocol, Service,
    ServiceType, SessionAffinity,
};
use crate::family::{Family, parse_address, parse_net};
use crate::field::{Field, FieldError, Interner, Zero};
use crate::one_line::OneLine;
use crate::yaml;

/// What a text held.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Objects {
    /// Services, in the order of the text.
    pub services: Vec<Service>,
    /// EndpointSlices, in the order of the text.
    pub endpoint_slices: Vec<EndpointSlice>,
    /// Nodes, in the order of the text.
    pub nodes: Vec<Node>,
    /// How many objects of other kinds were left out, by kind.
    pub other: BTreeMap<String, usize>,
    /// What was wrong, in the order of the text.
    pub errors: Vec<Error>,
}

/// Why an object, or a whole document, was left out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub struct Error {
    /// The file as named by the caller.
    pub file: String,
    /// Position of the document in the file, from 1.
    pub document: usize,
    /// Line of the file: where the error is for a syntax error, where the document begins for any other. From 1.
    pub line: usize,
    /// Kind, namespace and name of the object, as far as known; empty for a syntax error.
    pub object: String,
    /// The path of the field; empty for a syntax error.
    pub field: String,
    /// What was wrong with it.
    pub reason: String,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A name may hold anything, and this is one line.
        let mut f = OneLine(f);
        write!(
            f,
            "{}: document {} (line {})",
            self.file, self.document, self.line
        )?;
        for part in [&self.object, &self.field, &self.reason] {
            if !part.is_empty() {
                write!(f, ": {part}")?;
            }
        }
        Ok(())
    }
}

/// The most bytes of one text. A list of 50 000 Services with ten endpoints each is about 150 MiB of YAML.
pub const MAX_TEXT: usize = 512 << 20;

/// Reads a text. `file` is only named in errors.
#[must_use]
pub fn read(file: &str, text: &str) -> Objects {
    let mut reader = Reader {
        file,
        document: 0,
        line: 1,
        objects: Objects::default(),
        names: Interner::default(),
    };
    if text.len() > MAX_TEXT {
        reader.document = 1;
        reader.refuse(
            "",
            FieldError {
                field: String::new(),
                reason: format!("the text has {} bytes; at most {MAX_TEXT} are read", text.len()),
            },
        );
        return reader.objects;
    }
    for (line, document) in documents(text) {
        for (offset, parsed) in yaml::parse_all(document) {
            reader.document += 1;
            reader.line = line + offset;
            match parsed {
                Ok(value) => reader.document(&value),
                Err(reason) => {
                    reader.refuse(
                        "",
                        FieldError {
                            field: String::new(),
                            reason,
                        },
                    );
                }
            }
        }
    }
    reader.objects
}

impl Objects {
    /// The objects as the full lists of a source: what to hand to the model.
    #[must_use]
    pub fn into_changes(self) -> Vec<Change> {
        vec![
            Change::Nodes(ObjectChange::ReplaceAll(self.nodes)),
            Change::Nodes(ObjectChange::Complete),
            Change::Services(ObjectChange::ReplaceAll(self.services)),
            Change::Services(ObjectChange::Complete),
            Change::EndpointSlices(ObjectChange::ReplaceAll(self.endpoint_slices)),
            Change::EndpointSlices(ObjectChange::Complete),
        ]
    }

    /// Adds what another text held.
    pub fn extend(&mut self, other: Objects) {
        self.services.extend(other.services);
        self.endpoint_slices.extend(other.endpoint_slices);
        self.nodes.extend(other.nodes);
        self.errors.extend(other.errors);
        for (kind, count) in other.other {
            *self.other.entry(kind).or_default() += count;
        }
    }
}

/// Splits a stream at its document markers. A line of three dashes or dots in the first column is one wherever it stands,
/// even in a block of text (YAML 1.2, 9.1.2). So one broken document does not take the others with it. Yields the line number
/// each document begins at.
fn documents(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut rest = Some((1, text));
    std::iter::from_fn(move || {
        let (start_line, text) = rest.take()?;
        let mut at = 0;
        for (line, piece) in (start_line..).zip(text.split_inclusive('\n')) {
            let content = piece.trim_end();
            let marker = content == "---"
                || content == "..."
                || content.starts_with("--- ")
                || content.starts_with("---\t");
            if marker {
                // What follows the dashes on their line belongs to the next document.
                let (document, next) = text.split_at(at);
                rest = Some((line, next.get(3..).unwrap_or_default()));
                return Some((start_line, document));
            }
            at += piece.len();
        }
        Some((start_line, text))
    })
}

/// Reads documents into objects.
struct Reader<'a> {
    file: &'a str,
    document: usize,
    line: usize,
    objects: Objects,
    names: Interner,
}

impl Reader<'_> {
    fn refuse(&mut self, object: &str, error: FieldError) {
        self.objects.errors.push(Error {
            file: self.file.to_owned(),
            document: self.document,
            line: self.line,
            object: object.to_owned(),
            field: error.field,
            reason: error.reason,
        });
    }

    fn document(&mut self, value: &Value) {
        self.object(value, None, 0);
    }

    /// Reads an object or a list of them. The items of a `ServiceList` need not say their kind.
    fn object(&mut self, value: &Value, list_kind: Option<(&str, &str)>, depth: usize) {
        let root = Field::root(value);
        let said = |name| root.get(name).and_then(|field| field.string());
        let (kind, version) = match (said("kind"), said("apiVersion")) {
            (Ok(kind), Ok(version)) => (
                kind.or(list_kind.map(|(kind, _)| kind)).unwrap_or_default(),
                version
                    .or(list_kind.map(|(_, version)| version))
                    .unwrap_or_default(),
            ),
            (Err(error), _) | (_, Err(error)) => return self.refuse("", error),
        };
        if kind.is_empty() {
            return self.refuse(
                "",
                FieldError {
                    field: "kind".to_owned(),
                    reason: "is missing".to_owned(),
                },
            );
        }
        if let Some(item_kind) = kind.strip_suffix("List") {
            return self.list(&root, item_kind, version, depth);
        }
        let wanted = match kind {
            "Service" | "Node" => "v1",
            "EndpointSlice" => "discovery.k8s.io/v1",
            _ => {
                *self.objects.other.entry(kind.to_owned()).or_default() += 1;
                return;
            }
        };
        let object = describe_object(kind, &root);
        if version != wanted {
            let reason = if version.is_empty() {
                "is missing".to_owned()
            } else {
                format!("{version:?} is not read, only {wanted:?}")
            };
            return self.refuse(
                &object,
                FieldError {
                    field: "apiVersion".to_owned(),
                    reason,
                },
            );
        }
        let names = &mut self.names;
        let outcome = match kind {
            "Service" => service(&root, names).map(|service| self.objects.services.push(service)),
            "Node" => node(&root, names).map(|node| self.objects.nodes.push(node)),
            _ => endpoint_slice(&root, names).map(|(slice, left_out)| {
                self.objects.endpoint_slices.push(slice);
                for error in left_out {
                    self.refuse(&object, error);
                }
            }),
        };
        if let Err(error) = outcome {
            self.refuse(&object, error);
        }
    }

    fn list(&mut self, root: &Field<'_>, item_kind: &str, version: &str, depth: usize) {
        let list_kind = (!item_kind.is_empty()).then_some((item_kind, version));
        // A list in a list is no Kubernetes object, but concatenated output sometimes has one.
        if depth > 4 {
            return self.refuse("", root.error("lists nest too deep"));
        }
        let read = root.get("items").and_then(|items| items.items());
        match read {
            Ok(values) => {
                for (item, value) in values.iter().enumerate() {
                    let known = self.objects.errors.len();
                    self.object(value, list_kind, depth + 1);
                    // An object without a name is found by its place.
                    for error in self.objects.errors.iter_mut().skip(known) {
                        if !error.object.contains(' ') {
                            error.field = in_list(item, &error.field);
                        }
                    }
                }
            }
            Err(error) => self.refuse(&format!("{item_kind}List"), error),
        }
    }
}

/// The place of a field in the list that holds its object.
fn in_list(item: usize, field: &str) -> String {
    let dot = if field.is_empty() { "" } else { "." };
    format!("items[{item}]{dot}{field}")
}

fn describe_object(kind: &str, root: &Field<'_>) -> String {
    let Ok(metadata) = root.get("metadata") else {
        return kind.to_owned();
    };
    let text = |name| {
        metadata
            .get(name)
            .ok()
            .and_then(|field| field.string().ok().flatten())
            .unwrap_or_default()
    };
    match (text("namespace"), text("name")) {
        (_, "") => kind.to_owned(),
        ("", name) => format!("{kind} {name}"),
        (namespace, name) => format!("{kind} {namespace}/{name}"),
    }
}

/// Namespace and name. A manifest without a namespace means `default`, as `kubectl apply` would take it.
fn object_name(metadata: &Field<'_>, names: &mut Interner) -> Result<ObjectName, FieldError> {
    let name = metadata.get("name")?.required_string()?;
    let namespace = metadata
        .get("namespace")?
        .string()?
        .filter(|text| !text.is_empty())
        .unwrap_or("default");
    Ok(ObjectName::new(names.intern(namespace), names.intern(name)))
}

/// Labels and annotations that can mean something to a service proxy.
fn meaningful(strings: Vec<(&str, &str)>) -> BTreeMap<String, String> {
    let ours = |name: &str| {
        name.split_once('/')
            .is_some_and(|(prefix, _)| prefix == "kernlink.io" || prefix.ends_with("kubernetes.io"))
    };
    strings
        .into_iter()
        .filter(|(name, _)| ours(name) && !name.starts_with("kubectl."))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

fn service(root: &Field<'_>, names: &mut Interner) -> Result<Service, FieldError> {
    let metadata = root.get("metadata")?;
    let spec = root.get("spec")?;
    let mut service = Service::new(object_name(&metadata, names)?);
    service.created = metadata
        .get("creationTimestamp")?
        .parse("a time such as 2026-01-01T00:00:00Z", time::parse)?;
    service.labels = meaningful(metadata.get("labels")?.strings()?);
    service.annotations = meaningful(metadata.get("annotations")?.strings()?);
    service.service_type = spec
        .get("type")?
        .parse(
            "ClusterIP, NodePort, LoadBalancer or ExternalName",
            |text| match text {
                "" | "ClusterIP" => Some(ServiceType::ClusterIp),
                "NodePort" => Some(ServiceType::NodePort),
                "LoadBalancer" => Some(ServiceType::LoadBalancer),
                "ExternalName" => Some(ServiceType::ExternalName),
                _ => None,
            },
        )?
        .unwrap_or(ServiceType::ClusterIp);
    service.cluster_ip = spec.get("clusterIP")?.string()?.unwrap_or_default().to_owned();
    service.cluster_ips = texts(&spec.get("clusterIPs")?)?;
    service.ip_families = spec.get("ipFamilies")?.list(|field| {
        let family = field.parse("IPv4 or IPv6", |text| match text {
            "IPv4" => Some(Family::V4),
            "IPv6" => Some(Family::V6),
            _ => None,
        })?;
        family.ok_or_else(|| field.error("is missing"))
    })?;
    service.ports = spec.get("ports")?.list(|field| service_port(&field, names))?;
    service.external_ips = texts(&spec.get("externalIPs")?)?;
    service.load_balancer_source_ranges = texts(&spec.get("loadBalancerSourceRanges")?)?;
    service.external_traffic_policy = policy(&spec.get("externalTrafficPolicy")?)?;
    service.internal_traffic_policy = policy(&spec.get("internalTrafficPolicy")?)?;
    service.health_check_node_port = spec.get("healthCheckNodePort")?.port(Zero::Allowed)?;
    service.session_affinity = session_affinity(&spec)?;
    let status = root.get("status")?;
    let load_balancer = status.get("loadBalancer")?;
    service.ingress = load_balancer.get("ingress")?.list(|field| {
        let ip = field.get("ip")?.string()?.unwrap_or_default().to_owned();
        let mode = field
            .get("ipMode")?
            .parse("VIP or Proxy", |text| match text {
                "" | "VIP" => Some(IngressMode::Vip),
                "Proxy" => Some(IngressMode::Proxy),
                _ => None,
            })?
            .unwrap_or_default();
        Ok(Ingress { ip, mode })
    })?;
    Ok(service)
}

fn service_port(field: &Field<'_>, names: &mut Interner) -> Result<Port, FieldError> {
    let port = field.get("port")?;
    if port.is_absent() {
        return Err(port.error("is missing"));
    }
    Ok(Port {
        name: names.intern(field.get("name")?.string()?.unwrap_or_default()),
        protocol: protocol(&field.get("protocol")?)?,
        port: port.port(Zero::Refused)?,
        node_port: field.get("nodePort")?.port(Zero::Allowed)?,
    })
}

fn session_affinity(spec: &Field<'_>) -> Result<SessionAffinity, FieldError> {
    let client_ip = spec
        .get("sessionAffinity")?
        .parse("None or ClientIP", |text| match text {
            "" | "None" => Some(false),
            "ClientIP" => Some(true),
            _ => None,
        })?
        .unwrap_or(false);
    if !client_ip {
        return Ok(SessionAffinity::None);
    }
    let config = spec.get("sessionAffinityConfig")?;
    let client = config.get("clientIP")?;
    let timeout = client.get("timeoutSeconds")?;
    match timeout.integer()? {
        None => Ok(SessionAffinity::ClientIp(DEFAULT_AFFINITY)),
        Some(seconds @ 1..=86_400) => Ok(SessionAffinity::ClientIp(Duration::from_secs(
            seconds.unsigned_abs(),
        ))),
        Some(seconds) => Err(timeout.error(format!("{seconds} is not a number of seconds from 1 to 86400"))),
    }
}

/// What the API server writes where a Service says nothing.
const DEFAULT_AFFINITY: Duration = Duration::from_secs(10_800);

fn policy(field: &Field<'_>) -> Result<Policy, FieldError> {
    let policy = field.parse("Cluster or Local", |text| match text {
        "" | "Cluster" => Some(Policy::Cluster),
        "Local" => Some(Policy::Local),
        _ => None,
    })?;
    Ok(policy.unwrap_or_default())
}

fn protocol(field: &Field<'_>) -> Result<Protocol, FieldError> {
    let protocol = field.parse("TCP, UDP or SCTP", |text| {
        if text.is_empty() {
            Some(Protocol::Tcp)
        } else {
            text.parse().ok()
        }
    })?;
    Ok(protocol.unwrap_or_default())
}

fn texts(field: &Field<'_>) -> Result<Vec<String>, FieldError> {
    field.list(|item| Ok(item.string()?.unwrap_or_default().to_owned()))
}

fn interned(field: &Field<'_>, names: &mut Interner) -> Result<Option<std::sync::Arc<str>>, FieldError> {
    Ok(field
        .string()?
        .filter(|text| !text.is_empty())
        .map(|text| names.intern(text)))
}

/// Reads a slice, and says which of its endpoints it left out.
fn endpoint_slice(
    root: &Field<'_>,
    names: &mut Interner,
) -> Result<(EndpointSlice, Vec<FieldError>), FieldError> {
    let metadata = root.get("metadata")?;
    let name = object_name(&metadata, names)?;
    let labels = metadata.get("labels")?;
    let address_type = root.get("addressType")?;
    let address_type = match address_type.string()? {
        Some("IPv4") => AddressType::Ip(Family::V4),
        Some("IPv6") => AddressType::Ip(Family::V6),
        Some("FQDN") => AddressType::Other,
        Some(other) => return Err(address_type.error(format!("{other:?} is not IPv4, IPv6 or FQDN"))),
        None => return Err(address_type.error("is missing")),
    };
    let mut slice = EndpointSlice {
        name,
        service: interned(&labels.get("kubernetes.io/service-name")?, names)?,
        headless: labels.get("service.kubernetes.io/headless")?.string()?.is_some(),
        address_type,
        ports: root.get("ports")?.list(|field| {
            Ok(EndpointPort {
                name: field.get("name")?.string()?.map(|text| names.intern(text)),
                protocol: protocol(&field.get("protocol")?)?,
                port: field.get("port")?.port(Zero::Allowed)?,
            })
        })?,
        endpoints: Vec::new(),
    };
    let mut left_out = Vec::new();
    if let AddressType::Ip(family) = address_type {
        let endpoints = root.get("endpoints")?;
        let read = endpoints.list(|field| {
            Ok(match endpoint(&field, family, names) {
                Ok(endpoint) => Some(endpoint),
                Err(error) => {
                    left_out.push(error);
                    None
                }
            })
        })?;
        slice.endpoints = read.into_iter().flatten().collect();
    }
    Ok((slice, left_out))
}

fn endpoint(field: &Field<'_>, family: Family, names: &mut Interner) -> Result<Endpoint, FieldError> {
    let addresses = field.get("addresses")?;
    let mut first = None;
    addresses.list(|address| {
        if first.is_none() {
            let parsed = address
                .parse("an IP address", parse_address)?
                .ok_or_else(|| address.error("is missing"))?;
            if Family::of(parsed) != family {
                return Err(address.error(format!("{parsed} is not an {family} address")));
            }
            first = Some(parsed);
        }
        Ok(())
    })?;
    let Some(address) = first else {
        return Err(addresses.error("holds no address"));
    };
    let conditions = field.get("conditions")?;
    let default = Conditions::default();
    let hints = field.get("hints")?;
    Ok(Endpoint {
        address,
        conditions: Conditions {
            ready: conditions.get("ready")?.boolean()?.unwrap_or(default.ready),
            serving: conditions.get("serving")?.boolean()?.unwrap_or(default.serving),
            terminating: conditions
                .get("terminating")?
                .boolean()?
                .unwrap_or(default.terminating),
        },
        node: interned(&field.get("nodeName")?, names)?,
        zone: interned(&field.get("zone")?, names)?,
        hints: if hints.is_absent() {
            None
        } else {
            let mut named = |list: &str| {
                hints
                    .get(list)?
                    .list(|field| Ok(names.intern(field.get("name")?.string()?.unwrap_or_default())))
            };
            Some(Box::new(Hints {
                zones: named("forZones")?,
                nodes: named("forNodes")?,
            }))
        },
    })
}

fn node(root: &Field<'_>, names: &mut Interner) -> Result<Node, FieldError> {
    let metadata = root.get("metadata")?;
    let mut node = Node::new(names.intern(metadata.get("name")?.required_string()?));
    node.zone = interned(
        &metadata.get("labels")?.get("topology.kubernetes.io/zone")?,
        names,
    )?;
    let status = root.get("status")?;
    let addresses = status.get("addresses")?.list(|field| {
        let address_type = match field.get("type")?.string()? {
            Some("InternalIP") => NodeAddressType::Internal,
            Some("ExternalIP") => NodeAddressType::External,
            _ => return Ok(None),
        };
        let address = field.get("address")?;
        let address = address
            .parse("an IP address", parse_address)?
            .ok_or_else(|| address.error("is missing"))?;
        Ok(Some(NodeAddress {
            address,
            address_type,
        }))
    })?;
    node.addresses = addresses.into_iter().flatten().collect();
    let spec = root.get("spec")?;
    let read_net = |field: Field<'_>| {
        field
            .parse("a network such as 10.244.1.0/24", parse_net)?
            .ok_or_else(|| field.error("is missing"))
    };
    node.pod_cidrs = spec.get("podCIDRs")?.list(read_net)?;
    let single = spec.get("podCIDR")?;
    if node.pod_cidrs.is_empty() && single.string()?.is_some_and(|text| !text.is_empty()) {
        node.pod_cidrs.push(read_net(single)?);
    }
    Ok(node)
}
