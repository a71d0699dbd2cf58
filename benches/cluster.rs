//! The cluster of benchmarks of whole syncs: Services with ten endpoints each, `default/kubernetes`, and `kube-system/kube-dns`.

use std::fmt::Write;
use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kernlink_kubernetes::manifest;
use kernlink_proxier::host::{Conntrack, LocalDetection};
use kernlink_proxier::services::{
    Change, Endpoint, EndpointPort, EndpointSlice, Family, ObjectChange, ObjectName, Port, Protocol, Service,
    SourceId,
};
use kernlink_proxier::{DataPath, Proxier, iptables_mode, ipvs_mode, nftables_mode};

use crate::Result;

/// The number of endpoints of a Service.
pub const ENDPOINTS: u32 = 10;
/// The source that delivers the objects.
pub const SOURCE: SourceId = SourceId(0);
/// The number of nodes that run endpoints. One in a hundred endpoints is on this node.
const NODES: u32 = 100;

/// The address of this node.
pub const NODE: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 1);
/// The address of the API server.
pub const API_SERVER: Ipv4Addr = Ipv4Addr::new(192, 0, 2, 2);
/// The port of the API server.
pub const API_SERVER_PORT: u16 = 6_443;
/// The cluster IP and port of `default/kubernetes`.
pub const KUBERNETES: (Ipv4Addr, u16) = (Ipv4Addr::new(10, 96, 0, 1), 443);

/// A cluster with a number of Services in addition to the two of the system.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// The number of Services.
    pub size: u32,
    services: Vec<Service>,
    slices: Vec<EndpointSlice>,
}

impl Cluster {
    /// The objects of the cluster.
    #[must_use]
    pub fn new(size: u32) -> Self {
        let mut cluster = Self {
            size,
            services: Vec::new(),
            slices: Vec::new(),
        };
        let dns = ObjectName::new("kube-system", "kube-dns");
        let ports = |service: Service, port: u16| {
            let port = Port::new("dns", port).with_protocol(Protocol::Udp);
            let tcp = Port::new("dns-tcp", port.port);
            service.with_port(port).with_port(tcp)
        };
        let endpoints = [pod(size * ENDPOINTS), pod(size * ENDPOINTS + 1)];
        cluster.add(
            ports(Service::new(dns.clone()).with_cluster_ip("10.96.0.10"), 53),
            vec![
                EndpointPort::new("dns", 53).with_protocol(Protocol::Udp),
                EndpointPort::new("dns-tcp", 53),
            ],
            endpoints.into(),
        );
        for number in 0..size {
            let name = ObjectName::new(NAMESPACE, format!("service-{number}"));
            let address = Ipv4Addr::from_bits(0x0a61_0000 + number);
            // The endpoints of a slice are not sorted.
            let pods = (0..ENDPOINTS).map(|endpoint| pod(number * ENDPOINTS + endpoint * 7 % ENDPOINTS));
            cluster.add(
                Service::new(name)
                    .with_cluster_ip(address.to_string())
                    .with_port(Port::new("http", 80)),
                vec![EndpointPort::new("http", 8_080)],
                pods.collect(),
            );
        }
        let (address, port) = KUBERNETES;
        cluster.add(
            Service::new(ObjectName::new("default", "kubernetes"))
                .with_cluster_ip(address.to_string())
                .with_port(Port::new("https", port)),
            vec![EndpointPort::new("https", API_SERVER_PORT)],
            vec![Endpoint::new(API_SERVER.into())],
        );
        cluster
    }

    /// Adds a Service and its slice.
    fn add(&mut self, service: Service, ports: Vec<EndpointPort>, endpoints: Vec<Endpoint>) {
        let name = ObjectName::new(
            Arc::clone(&service.name.namespace),
            format!("{}-abcde", service.name.name),
        );
        let mut slice = EndpointSlice::new(name, Arc::clone(&service.name.name), Family::Ipv4);
        (slice.ports, slice.endpoints) = (ports, endpoints);
        self.services.push(service);
        self.slices.push(slice);
    }

    /// The time to parse manifests of the same objects.
    pub fn parse_manifests(&self) -> Result<Duration> {
        let text = self.manifests()?;
        let start = Instant::now();
        let objects = manifest::read("cluster", &text);
        let time = start.elapsed();
        if objects.services == self.services && objects.endpoint_slices == self.slices {
            Ok(time)
        } else {
            Err("the parsed objects are not those of the cluster".into())
        }
    }

    /// Writes the manifests to a new folder, in files with the objects of a hundred Services.
    ///
    /// # Errors
    ///
    /// If a file cannot be written.
    pub fn write_manifests(&self, folder: &Path) -> Result<()> {
        const SERVICES: usize = 100;
        fs::create_dir(folder)?;
        let files = self.services.chunks(SERVICES).zip(self.slices.chunks(SERVICES));
        for (number, (services, slices)) in files.enumerate() {
            fs::write(
                folder.join(format!("{number:04}.yaml")),
                manifests(services, slices)?,
            )?;
        }
        Ok(())
    }

    /// The objects as `kubectl` prints them, without the fields that the proxier does not use.
    fn manifests(&self) -> Result<String> {
        manifests(&self.services, &self.slices)
    }

    /// The items of the lists of Services and EndpointSlices that an API server returns, in JSON, joined by commas.
    #[must_use]
    pub fn json_lists(&self) -> [String; 2] {
        self.json_items().map(|items| items.join(","))
    }

    /// The Services and EndpointSlices that an API server returns, each in JSON.
    #[must_use]
    pub fn json_items(&self) -> [Vec<String>; 2] {
        let services = self.services.iter().map(service_json).collect();
        let slices = self.slices.iter().map(|slice| slice_json(slice, 1)).collect();
        [services, slices]
    }

    /// The number of virtual servers: one for each Service, one for `default/kubernetes`, and two for `kube-system/kube-dns`.
    #[must_use]
    pub fn virtual_servers(&self) -> usize {
        self.size as usize + 3
    }

    /// The number of virtual IPs.
    #[must_use]
    pub fn virtual_ips(&self) -> usize {
        self.size as usize + 2
    }

    /// A proxier with the complete model, before its first sync.
    pub fn proxier<M: DataPath>(&self, config: &M::Config, kernel: M::Kernel) -> Result<Proxier<M>> {
        let mut proxier = Proxier::new(config, kernel)?;
        for change in [
            Change::Services(ObjectChange::ReplaceAll(self.services.clone())),
            Change::Services(ObjectChange::Synced),
            Change::EndpointSlices(ObjectChange::ReplaceAll(self.slices.clone())),
            Change::EndpointSlices(ObjectChange::Synced),
        ] {
            proxier.change(SOURCE, change);
        }
        Ok(proxier)
    }

    /// For many Services with one cluster IP and one port: its endpoints with another address instead of one of them, and the previous ones.
    #[must_use]
    pub fn replacements(&self) -> Vec<[EndpointSlice; 2]> {
        let changes = self.changes(Place::OtherNode).into_iter();
        let changes = changes.enumerate().map(|(number, [mut without, slice])| {
            // Beyond the addresses of all pods.
            without.endpoints.push(pod(0x0080_0000 + number as u32));
            [without, slice]
        });
        changes.collect()
    }

    /// For many Services with one cluster IP and one port: its endpoints without one, which is on this node or on another one, and all of
    /// them.
    #[must_use]
    pub fn changes(&self, place: Place) -> Vec<[EndpointSlice; 2]> {
        let node: Arc<str> = NODE_NAME.into();
        let mut changes = Vec::new();
        for slice in &self.slices {
            let is_here = |position: &usize| {
                slice
                    .endpoints
                    .get(*position)
                    .is_some_and(|endpoint| endpoint.node.as_ref() == Some(&node))
            };
            let position = match place {
                Place::ThisNode => (0..slice.endpoints.len()).find(is_here),
                Place::OtherNode => (0..slice.endpoints.len()).rfind(|position| !is_here(position)),
            };
            let is_of_system = *slice.name.namespace != *NAMESPACE;
            if let Some(position) = position.filter(|_| !is_of_system) {
                let mut without = slice.clone();
                without.endpoints.remove(position);
                changes.push([without, slice.clone()]);
            }
        }
        changes
    }
}

/// Where an endpoint is.
#[derive(Clone, Copy, Debug)]
pub enum Place {
    /// On this node.
    ThisNode,
    /// On any other node.
    OtherNode,
}

/// The Service of a slice.
#[must_use]
pub fn service_of(slice: &EndpointSlice) -> ObjectName {
    let name = slice.service.as_deref().unwrap_or_default();
    ObjectName::new(Arc::clone(&slice.name.namespace), name)
}

/// The change that replaces a slice.
#[must_use]
pub fn endpoint_slice(slice: EndpointSlice) -> Change {
    Change::EndpointSlices(ObjectChange::Upsert(slice))
}

/// Replaces a slice of a proxier.
pub fn change<M: DataPath>(proxier: &mut Proxier<M>, slice: EndpointSlice) {
    proxier.change(SOURCE, endpoint_slice(slice));
}

/// A first sync, with that of the first Services before it.
///
/// # Errors
/// If a step failed.
pub fn sync<M: DataPath>(proxier: &mut Proxier<M>) -> Result<()> {
    let mut synced = proxier.sync(Instant::now())?;
    if synced.is_partial {
        synced = proxier.sync(Instant::now())?;
    }
    if synced.is_success() {
        return Ok(());
    }
    let text = synced.to_string();
    let lines: Vec<&str> = text.lines().take(5).collect();
    Err(lines.join("\n").into())
}

/// The name of this node.
pub const NODE_NAME: &str = "node-0";
/// The namespace of all Services but the two of the system.
const NAMESPACE: &str = "shop";

/// The network of the pods.
pub const PODS: &str = "11.0.0.0/8";

/// Without the limits of connection tracking: all namespaces share their sysctls.
#[must_use]
pub fn conntrack() -> Conntrack {
    Conntrack {
        max_per_core: 0,
        tcp_established: Duration::ZERO,
        tcp_close_wait: Duration::ZERO,
        ..Conntrack::default()
    }
}

fn local_detection() -> Result<LocalDetection> {
    Ok(LocalDetection::ClusterCidr(vec![PODS.parse()?]))
}

/// The configuration of the node in IPVS mode.
pub fn ipvs_config() -> Result<ipvs_mode::Config> {
    let mut config = ipvs_mode::Config::new(NODE_NAME);
    config.conntrack = conntrack();
    config.local_detection = local_detection()?;
    Ok(config)
}

/// The configuration of the node in iptables mode.
pub fn iptables_config() -> Result<iptables_mode::Config> {
    let mut config = iptables_mode::Config::new(NODE_NAME);
    config.conntrack = conntrack();
    config.local_detection = local_detection()?;
    Ok(config)
}

/// The configuration of the node in nftables mode.
pub fn nftables_config() -> Result<nftables_mode::Config> {
    let mut config = nftables_mode::Config::new(NODE_NAME);
    config.conntrack = conntrack();
    config.local_detection = local_detection()?;
    Ok(config)
}

/// A Service as an API server returns it.
fn service_json(service: &Service) -> String {
    let ObjectName { namespace, name } = &service.name;
    let address = &service.cluster_ip;
    let port = |port: &Port| {
        let Port {
            name, port, protocol, ..
        } = port;
        format!(r#"{{"name":"{name}","port":{port},"protocol":"{protocol}"}}"#)
    };
    let ports: Vec<String> = service.ports.iter().map(port).collect();
    format!(
        r#"{{"metadata":{{"name":"{name}","namespace":"{namespace}","uid":"{name}","resourceVersion":"1"}},"spec":{{"type":"ClusterIP","clusterIP":"{address}","clusterIPs":["{address}"],"ipFamilies":["IPv4"],"ipFamilyPolicy":"SingleStack","internalTrafficPolicy":"Cluster","sessionAffinity":"None","ports":[{}]}}}}"#,
        ports.join(",")
    )
}

/// An EndpointSlice as an API server returns it, in this version.
#[must_use]
pub fn slice_json(slice: &EndpointSlice, version: u32) -> String {
    let ObjectName { namespace, name } = &slice.name;
    let service = slice.service.as_deref().unwrap_or_default();
    let port = |port: &EndpointPort| {
        let name = port.name.as_deref().unwrap_or_default();
        format!(
            r#"{{"name":"{name}","port":{},"protocol":"{}"}}"#,
            port.port, port.protocol
        )
    };
    let ports: Vec<String> = slice.ports.iter().map(port).collect();
    let endpoint = |endpoint: &Endpoint| {
        let node = endpoint.node.as_deref();
        let node = node
            .map(|node| format!(r#","nodeName":"{node}""#))
            .unwrap_or_default();
        format!(
            r#"{{"addresses":["{}"],"conditions":{{"ready":true,"serving":true,"terminating":false}}{node}}}"#,
            endpoint.address
        )
    };
    let endpoints: Vec<String> = slice.endpoints.iter().map(endpoint).collect();
    format!(
        r#"{{"apiVersion":"discovery.k8s.io/v1","kind":"EndpointSlice","metadata":{{"name":"{name}","namespace":"{namespace}","uid":"{name}","resourceVersion":"{version}","labels":{{"kubernetes.io/service-name":"{service}"}}}},"addressType":"IPv4","ports":[{}],"endpoints":[{}]}}"#,
        ports.join(","),
        endpoints.join(",")
    )
}

/// An endpoint on one of the nodes; those of a Service are on different nodes.
fn pod(number: u32) -> Endpoint {
    let node = (number / ENDPOINTS + number) % NODES;
    Endpoint::new(Ipv4Addr::from_bits(0x0b00_0000 + number).into())
        .with_node(format!("node-{node}"))
        .with_zone(format!("zone-{}", node % 3))
}

/// Services and their slices as `kubectl` prints them.
fn manifests(services: &[Service], slices: &[EndpointSlice]) -> Result<String> {
    let mut text = String::new();
    for (service, slice) in services.iter().zip(slices) {
        let ObjectName { namespace, name } = &service.name;
        let address = &service.cluster_ip;
        write!(
            text,
            "---
apiVersion: v1
kind: Service
metadata:
  name: {name}
  namespace: {namespace}
spec:
  type: ClusterIP
  clusterIP: {address}
  ports:
"
        )?;
        for port in &service.ports {
            let (name, protocol) = (&port.name, port.protocol);
            writeln!(
                text,
                "  - name: {name}\n    port: {}\n    protocol: {protocol}",
                port.port
            )?;
        }
        write!(
            text,
            "---
addressType: IPv4
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  labels:
    kubernetes.io/service-name: {name}
  name: {}
  namespace: {namespace}
ports:
",
            slice.name.name
        )?;
        for port in &slice.ports {
            let name = port.name.as_deref().unwrap_or_default();
            writeln!(
                text,
                "- name: {name}\n  port: {}\n  protocol: {}",
                port.port, port.protocol
            )?;
        }
        text.push_str("endpoints:\n");
        for endpoint in &slice.endpoints {
            write!(
                text,
                "- addresses:\n  - {}\n  conditions:\n    ready: true\n    serving: true\n    terminating: false\n",
                endpoint.address
            )?;
            for (field, value) in [("nodeName", &endpoint.node), ("zone", &endpoint.zone)] {
                if let Some(value) = value {
                    writeln!(text, "  {field}: {value}")?;
                }
            }
        }
    }
    Ok(text)
}
