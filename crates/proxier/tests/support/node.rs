//! A node with the fake kernel, and builders of Services and endpoints.
#![allow(dead_code, reason = "each test uses a part of it")]

use std::net::IpAddr;
use std::time::Instant;

use kernlink_dummylink::{Fake, LinkAddress, LinkName, Selection};
use kernlink_ipvs::VirtualServerKey;
use kernlink_proxier::ipvs_mode::{Config, Kernel, Plan, Proxier, SetId, Synced};
use kernlink_services::{
    Change, Endpoint, EndpointPort, EndpointSlice, Family, Ingress, ObjectChange, ObjectName, Port, Protocol,
    Service, ServiceType, SourceId,
};

pub(crate) const SOURCE: SourceId = SourceId(0);

/// The configuration of `node-a` with its address, without limits of tracked connections.
pub(crate) fn config() -> Config {
    let mut config = Config::new("node-a");
    config.conntrack.max_per_core = 0;
    config.services.node_ips = vec![[192, 0, 2, 1].into()];
    config
}

/// The same for IPv4 only.
pub(crate) fn ipv4_config() -> Config {
    let mut config = config();
    config.services.families = [Family::Ipv4].into();
    config
}

/// The fake kernel with the address of the node.
pub(crate) fn kernel() -> Kernel {
    let mut kernel = Kernel::fake();
    let eth0 = LinkName::new("eth0").unwrap();
    let address = LinkAddress::host([192, 0, 2, 1].into()).unwrap();
    kernel.links = Box::new(Fake::new().with_link(eth0, None, &[address]));
    kernel
}

/// A proxier whose only source has synced.
pub(crate) fn proxier(config: Config, kernel: Kernel) -> Proxier {
    let mut proxier = Proxier::new(&config, kernel).unwrap();
    proxier.change(SOURCE, Change::Services(ObjectChange::Synced));
    proxier.change(SOURCE, Change::EndpointSlices(ObjectChange::Synced));
    proxier
}

pub(crate) fn upsert(proxier: &mut Proxier, service: Service) {
    proxier.change(SOURCE, Change::Services(ObjectChange::Upsert(service)));
}

pub(crate) fn delete(proxier: &mut Proxier, name: &str) {
    let change = ObjectChange::Delete(ObjectName::new("ns", name));
    proxier.change(SOURCE, Change::Services(change));
}

/// A Service with a cluster IP and port 80.
pub(crate) fn service(name: &str, cluster_ip: &str) -> Service {
    Service::new(ObjectName::new("ns", name))
        .with_cluster_ip(cluster_ip)
        .with_port(Port::new("http", 80))
}

/// A Service with the load-balancer IP 203.0.113.1 and source ranges.
pub(crate) fn load_balancer(ranges: &[&str]) -> Service {
    let mut service = service("balanced", "10.96.0.1");
    service.service_type = ServiceType::LoadBalancer;
    service.ingress = vec![Ingress {
        ip: "203.0.113.1".to_owned(),
        ..Ingress::default()
    }];
    service.load_balancer_source_ranges = ranges.iter().map(|&range| range.to_owned()).collect();
    service
}

/// Sets the endpoints of a Service, by last octet; those from 200 on are on this node.
pub(crate) fn endpoints(proxier: &mut Proxier, service: &str, endpoints: &[u8]) {
    deliver(proxier, slice(service, endpoints), Protocol::Tcp);
}

/// The slice of a Service with endpoints at port 8080.
pub(crate) fn slice(service: &str, endpoints: &[u8]) -> EndpointSlice {
    slice_at(&format!("{service}-1"), service, endpoints, 8080)
}

/// A slice with this name and endpoints at this port.
pub(crate) fn slice_at(name: &str, service: &str, endpoints: &[u8], port: u16) -> EndpointSlice {
    let slice = EndpointSlice::new(ObjectName::new("ns", name), service, Family::Ipv4)
        .with_port(EndpointPort::new("http", port));
    endpoints.iter().fold(slice, |slice, &last| {
        let node = if last >= 200 { "node-a" } else { "node-b" };
        slice.with_endpoint(Endpoint::new([10, 244, 0, last].into()).with_node(node))
    })
}

/// Delivers a slice whose ports have this protocol.
pub(crate) fn deliver(proxier: &mut Proxier, mut slice: EndpointSlice, protocol: Protocol) {
    for port in &mut slice.ports {
        port.protocol = protocol;
    }
    proxier.change(SOURCE, Change::EndpointSlices(ObjectChange::Upsert(slice)));
}

pub(crate) fn key(address: &str, port: u16) -> VirtualServerKey {
    VirtualServerKey::tcp(address.parse::<IpAddr>().unwrap(), port)
}

/// The keys of the virtual servers in the kernel.
pub(crate) fn virtual_servers(kernel: &mut Kernel) -> Vec<String> {
    let listed = kernel.ipvs.list_virtual_servers().unwrap();
    listed
        .iter()
        .map(|server| server.server.key.to_string())
        .collect()
}

/// The keys of the real servers of a virtual server in the kernel.
pub(crate) fn real_servers(kernel: &mut Kernel, server: &VirtualServerKey) -> Vec<String> {
    let listed = kernel.ipvs.list_real_servers(server).unwrap();
    listed
        .iter()
        .map(|server| server.server.key.to_string())
        .collect()
}

/// The addresses of the dummy link.
pub(crate) fn bound(kernel: &mut Kernel) -> Vec<String> {
    let listed = kernel.links.list(Selection::All).unwrap().into_iter();
    let owned = listed.filter(|address| address.link.to_string() == "kube-ipvs0");
    owned.map(|address| address.address.key.to_string()).collect()
}

/// The entries of an IPv4 set in the kernel.
pub(crate) fn entries(kernel: &mut Kernel, set: SetId) -> Vec<String> {
    let contents = kernel.sets.list_set(&set.name(Family::Ipv4)).unwrap();
    contents.entries.iter().map(ToString::to_string).collect()
}

/// The position of the first step whose command contains a text.
pub(crate) fn position(plan: &Plan, text: &str) -> usize {
    let mut steps = plan.steps();
    let found = steps.find(|(_, step)| step.operation.to_string().contains(text));
    found
        .unwrap_or_else(|| panic!("{text} is not in\n{plan}"))
        .0
        .index()
}

/// Syncs at the times that the syncs return, until no retry is left.
pub(crate) fn sync_until_nothing_waits(proxier: &mut Proxier, mut now: Instant) -> Synced {
    let mut last = String::new();
    // Each key has its own time.
    for _ in 0..500 {
        let synced = proxier.sync(now).unwrap();
        match synced.next {
            Some(next) => now = next,
            None => return synced,
        }
        last = synced.to_string();
    }
    panic!("operations still wait: {last}");
}

/// The names and addresses of two Services.
pub(crate) const ONE: (&str, &str) = ("one", "10.96.0.1");
pub(crate) const TWO: (&str, &str) = ("two", "10.96.0.2");

/// A proxier with these Services, each with the endpoints 1 and 2, not synced.
pub(crate) fn with_services(kernel: Kernel, services: &[(&str, &str)]) -> Proxier {
    let mut proxier = proxier(ipv4_config(), kernel);
    for (name, address) in services {
        upsert(&mut proxier, service(name, address));
        endpoints(&mut proxier, name, &[1, 2]);
    }
    proxier
}
