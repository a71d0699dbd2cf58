//! Where packets end: from every kind of sender, to every kind of frontend, with every policy.
#![cfg(feature = "kubernetes")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::expect_used,
    reason = "a test reports errors by panicking"
)]

mod support;
#[path = "support/tracer.rs"]
mod tracer;

use std::fmt::Write;
use std::net::{IpAddr, SocketAddr};

use kernlink_kubernetes::manifest;
use kernlink_proxier::ipvs_mode::config::LocalDetection;
use kernlink_proxier::ipvs_mode::{Config, State};
use kernlink_services::Protocol;

use crate::support::build;
use crate::tracer::{Packet, Tracer};

const NODE: &str = "eth0=192.0.2.1,eth0=2001:db8::1";

/// A cluster with Services of every kind. Each has the endpoints .21 on this node and .22 on another node; if its name ends with
/// `-remote`, only .22; if it ends with `-empty`, none.
fn cluster(config: Config) -> State {
    let mut text = String::new();
    let mut service = |name: &str, last: u8, kind: &str, ports: &str, spec: &str, status: &str| {
        let _ = writeln!(
            text,
            "apiVersion: v1
kind: Service
metadata: {{name: {name}, namespace: default}}
spec: {{type: {kind}, clusterIP: 10.96.0.{last}, clusterIPs: [10.96.0.{last}, 'fd00:96::{last}'], \
ipFamilies: [IPv4, IPv6], ports: [{ports}]{spec}}}
status: {{{status}}}
---"
        );
        for (family, local, remote) in [
            ("IPv4", "10.244.1.21", "10.244.2.22"),
            ("IPv6", "fd01:1::21", "fd01:2::22"),
        ] {
            let on_this = format!("{{addresses: ['{local}'], nodeName: node-a}}");
            let elsewhere = format!("{{addresses: ['{remote}'], nodeName: node-b}}");
            let endpoints = match name {
                _ if name.ends_with("-remote") => elsewhere,
                _ if name.ends_with("-empty") => String::new(),
                _ => format!("{on_this}, {elsewhere}"),
            };
            let _ = writeln!(
                text,
                "apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
addressType: {family}
metadata: {{name: {name}-{family}, namespace: default, labels: {{kubernetes.io/service-name: {name}}}}}
ports: [{{name: p, port: 8080}}, {{name: u, port: 5353, protocol: UDP}}, {{name: s, port: 9900, protocol: SCTP}}]
endpoints: [{endpoints}]
---"
            );
        }
    };
    let all = "{name: p, port: 80}, {name: u, port: 53, protocol: UDP}, {name: s, port: 99, protocol: SCTP}";
    let node_ports = "{name: p, port: 80, nodePort: 30080}, {name: u, port: 53, protocol: UDP, nodePort: 30053}, \
                      {name: s, port: 99, protocol: SCTP, nodePort: 30099}";
    let local_ports = "{name: p, port: 80, nodePort: 31080}, {name: u, port: 53, protocol: UDP, nodePort: 31053}, \
                       {name: s, port: 99, protocol: SCTP, nodePort: 31099}";
    let local = ", externalTrafficPolicy: Local";
    service("cluster", 1, "ClusterIP", all, "", "");
    service(
        "internal",
        2,
        "ClusterIP",
        all,
        ", internalTrafficPolicy: Local",
        "",
    );
    service(
        "internal-remote",
        3,
        "ClusterIP",
        all,
        ", internalTrafficPolicy: Local",
        "",
    );
    service("cluster-empty", 4, "ClusterIP", all, "", "");
    service("ports", 5, "NodePort", node_ports, "", "");
    service("ports-local", 6, "NodePort", local_ports, local, "");
    service(
        "ports-local-remote",
        7,
        "NodePort",
        "{name: p, port: 80, nodePort: 32080}",
        local,
        "",
    );
    let external = ", externalIPs: [203.0.113.8, '2001:db8:ff::8']";
    service("external", 8, "ClusterIP", all, external, "");
    let external = format!(", externalIPs: [203.0.113.9, '2001:db8:ff::9']{local}");
    service("external-local", 9, "ClusterIP", all, &external, "");
    let balancer = |last: u8| {
        format!("loadBalancer: {{ingress: [{{ip: 203.0.113.{last}}}, {{ip: '2001:db8:ff::{last}'}}]}}")
    };
    service("balanced", 10, "LoadBalancer", all, "", &balancer(10));
    service("balanced-local", 11, "LoadBalancer", all, local, &balancer(11));
    let ranges = ", loadBalancerSourceRanges: [198.18.0.0/15, '2001:db8:5::/48']";
    service("ranges", 12, "LoadBalancer", all, ranges, &balancer(12));
    let ranges = ", loadBalancerSourceRanges: [192.0.2.0/24, '2001:db8::/64']";
    service("ranges-node", 13, "LoadBalancer", all, ranges, &balancer(13));
    let ranges = format!(", loadBalancerSourceRanges: [198.18.0.0/15, '2001:db8:5::/48']{local}");
    service("ranges-local", 14, "LoadBalancer", all, &ranges, &balancer(14));
    let spec = ", externalIPs: [203.0.113.30, '2001:db8:ff::30'], internalTrafficPolicy: Local";
    service("internal-external", 30, "ClusterIP", all, spec, "");
    // The port of a virtual IP that is the number of a node port.
    service(
        "number",
        15,
        "LoadBalancer",
        "{name: p, port: 31080}",
        "",
        &balancer(15),
    );
    service("number-other", 16, "ClusterIP", "{name: p, port: 30080}", "", "");
    for (last, method) in [(17, "direct"), (18, "tunnel")] {
        text += &forwarded(last, method);
    }
    let objects = manifest::read("cluster", &text);
    assert_eq!(objects.errors, []);
    build(&config, NODE, objects.into_changes().unwrap()).state
}

/// A Service with a forwarding method and frontends of every kind, with an endpoint on another host. Its ports are those
/// of [`protocols`].
fn forwarded(last: u8, method: &str) -> String {
    let ports = |node_port: &str| {
        format!(
            "{{name: p, port: 80{node_port}}}, {{name: u, port: 53, protocol: UDP}}, {{name: s, port: 99, protocol: SCTP}}"
        )
    };
    let mut text = format!(
        "apiVersion: v1
kind: Service
metadata: {{name: {method}, namespace: default, annotations: {{kernlink.io/forwarding-method: {method}}}}}
spec: {{type: LoadBalancer, clusterIP: 10.96.0.{last}, clusterIPs: [10.96.0.{last}, 'fd00:96::{last}'], \
ipFamilies: [IPv4, IPv6], ports: [{}], externalIPs: [203.0.113.{last}, '2001:db8:ff::{last}'], \
loadBalancerSourceRanges: [198.18.0.0/15, '2001:db8:5::/48']}}
status: {{loadBalancer: {{ingress: [{{ip: 203.0.113.1{last}}}, {{ip: '2001:db8:ff::1{last}'}}]}}}}
---
",
        ports(&format!(", nodePort: 330{last}"))
    );
    for (family, remote) in [("IPv4", "10.244.2.22"), ("IPv6", "fd01:2::22")] {
        text += &format!(
            "apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
addressType: {family}
metadata: {{name: {method}-{family}, namespace: default, labels: {{kubernetes.io/service-name: {method}}}}}
ports: [{}]
endpoints: [{{addresses: ['{remote}'], nodeName: node-b}}]
---
",
            ports("")
        );
    }
    text
}

fn config() -> Config {
    let mut config = Config::new("node-a");
    config.services.node_ips = vec!["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()];
    config.local_detection = LocalDetection::ClusterCidr(vec![
        "10.244.0.0/16".parse().unwrap(),
        "fd01::/16".parse().unwrap(),
    ]);
    config
}

/// All senders.
const SENDERS: [&str; 9] = [
    "pod",
    "endpoint",
    "other-pod",
    "other-node",
    "outside",
    "allowed",
    "loopback",
    "node",
    "node-by-vip",
];

/// The input interface and the source address of a sender.
fn sender(name: &str, destination: SocketAddr) -> (Option<&'static str>, IpAddr) {
    let (input, v4, v6) = match name {
        "pod" => (Some("veth1"), "10.244.1.50", "fd01:1::50"),
        // The endpoint on this node, to itself through the Service.
        "endpoint" => (Some("veth0"), "10.244.1.21", "fd01:1::21"),
        "other-pod" => (Some("eth0"), "10.244.2.50", "fd01:2::50"),
        "other-node" => (Some("eth0"), "192.0.2.2", "2001:db8::2"),
        "outside" => (Some("eth0"), "198.51.100.9", "2001:db8:9::9"),
        "allowed" => (Some("eth0"), "198.18.3.4", "2001:db8:5::4"),
        "loopback" => (None, "127.0.0.1", "::1"),
        "node" => (None, "192.0.2.1", "2001:db8::1"),
        // The kernel selects the virtual IP as the source address of packets to it.
        "node-by-vip" => return (None, destination.ip()),
        other => panic!("unknown sender {other}"),
    };
    (
        input,
        if destination.is_ipv4() { v4 } else { v6 }.parse().unwrap(),
    )
}

/// Checks lines of `sender,sender destination = end`. The destination is in IPv4 form and is checked in both families; `all` is all
/// senders; `kept` and the like mean both endpoints.
fn check(desired: &State, table: &str) {
    let node: Vec<IpAddr> = vec!["192.0.2.1".parse().unwrap(), "2001:db8::1".parse().unwrap()];
    let tracer = Tracer::new(desired, node);
    let mut wrong = String::new();
    let mut rows = 0;
    for line in table
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
    {
        let (input, expected) = line.split_once(" = ").expect(line);
        let mut words = input.split_whitespace();
        let (names, to) = (words.next().expect(line), words.next().expect(line));
        let names: Vec<&str> = match names {
            "all" => SENDERS.to_vec(),
            names => names.split(',').collect(),
        };
        for (name, six) in names.iter().flat_map(|name| [(*name, false), (*name, true)]) {
            let (to, number) = to.rsplit_once(':').expect(line);
            let to = if six { to_six(to) } else { to.to_owned() };
            for (protocol, number) in protocols(number) {
                let destination = SocketAddr::new(to.parse().expect(&to), number);
                let (interface, source) = sender(name, destination);
                let end = tracer
                    .trace(Packet::new(interface, source, destination, protocol))
                    .to_string();
                let expected = expand(expected.trim(), protocol, six);
                rows += 1;
                if end != expected {
                    let _ = writeln!(
                        wrong,
                        "{name} ({source}) to {destination}/{protocol}: {end}\n    expected {expected}"
                    );
                }
            }
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
    assert!(rows > 0);
}

fn to_six(v4: &str) -> String {
    let (net, host) = v4.rsplit_once('.').unwrap();
    match net {
        "10.96.0" => format!("fd00:96::{host}"),
        "203.0.113" => format!("2001:db8:ff::{host}"),
        "192.0.2" => format!("2001:db8::{host}"),
        "127.0.0" => "::1".to_owned(),
        other => panic!("{other} has no IPv6 network"),
    }
}

/// A number is a TCP port; `*` is the port of each protocol, `30*` and `31*` are their node ports.
fn protocols(number: &str) -> Vec<(Protocol, u16)> {
    let of = |base: u16| {
        vec![
            (Protocol::Tcp, base + 80),
            (Protocol::Udp, base + 53),
            (Protocol::Sctp, base + 99),
        ]
    };
    match number {
        "*" => of(0),
        "30*" => of(30_000),
        "31*" => of(31_000),
        number => vec![(Protocol::Tcp, number.parse().expect(number))],
    }
}

fn expand(expected: &str, protocol: Protocol, six: bool) -> String {
    let port = match protocol {
        Protocol::Tcp => 8_080,
        Protocol::Udp => 5_353,
        Protocol::Sctp => 9_900,
    };
    let (local, remote) = if six {
        (format!("[fd01:1::21]:{port}"), format!("[fd01:2::22]:{port}"))
    } else {
        (format!("10.244.1.21:{port}"), format!("10.244.2.22:{port}"))
    };
    match expected {
        "kept" | "masqueraded" => format!("{local} {expected}, {remote} {expected}"),
        "hairpin" => format!("{local} masqueraded, {remote} kept"),
        "local kept" => format!("{local} kept"),
        "local masqueraded" => format!("{local} masqueraded"),
        "remote kept" => format!("{remote} kept"),
        "remote masqueraded" => format!("{remote} masqueraded"),
        // A Service whose endpoints have the same ports as its frontends.
        other => match other.strip_prefix("same port ") {
            Some(how) => {
                let own = protocols("*")
                    .into_iter()
                    .find(|(of, _)| *of == protocol)
                    .unwrap()
                    .1;
                format!(
                    "{} {how}",
                    remote.replace(&format!(":{port}"), &format!(":{own}"))
                )
            }
            None => other.to_owned(),
        },
    }
}

#[test]
fn cluster_ips() {
    check(
        &cluster(config()),
        "
        pod,other-pod                        10.96.0.1:*  = kept
        # A pod does not accept a reply from its own address.
        endpoint                             10.96.0.1:*  = hairpin
        node,node-by-vip                     10.96.0.1:*  = masqueraded
        other-node,outside,allowed           10.96.0.1:*  = masqueraded
        # Loopback sources return first, as in kube-proxy.
        loopback                             10.96.0.1:*  = kept
        # Only endpoints here.
        pod,other-pod,loopback               10.96.0.2:*  = local kept
        endpoint,node,node-by-vip            10.96.0.2:*  = local masqueraded
        other-node,outside,allowed           10.96.0.2:*  = local masqueraded
        # No local endpoint, and no external frontend.
        all                                  10.96.0.3:*  = unreachable
        all                                  10.96.0.4:*  = unreachable
        # A port that no Service has.
        all                                  10.96.0.1:81 = rejected
        ",
    );
}

#[test]
fn node_ports() {
    check(
        &cluster(config()),
        "
        pod,other-pod,endpoint               192.0.2.1:30*   = masqueraded
        node,node-by-vip                     192.0.2.1:30*   = masqueraded
        other-node,outside,allowed           192.0.2.1:30*   = masqueraded
        loopback                             192.0.2.1:30*   = kept
        # The source address is kept, so only local endpoints can reply.
        pod,other-pod,node,node-by-vip       192.0.2.1:31*   = local kept
        endpoint                             192.0.2.1:31*   = local masqueraded
        other-node,outside,allowed,loopback  192.0.2.1:31*   = local kept
        # As in kube-proxy's IPVS mode: without a local endpoint, all are used.
        all                                  192.0.2.1:32080 = remote kept
        # Loopback has no node ports; a port without a node port belongs to the node.
        loopback                             127.0.0.1:30*   = node
        all                                  192.0.2.1:30081 = node
        ",
    );
}

#[test]
fn external_ips() {
    check(
        &cluster(config()),
        "
        pod,other-pod,endpoint               203.0.113.8:*  = masqueraded
        node,node-by-vip                     203.0.113.8:*  = masqueraded
        other-node,outside,allowed           203.0.113.8:*  = masqueraded
        loopback                             203.0.113.8:*  = kept
        pod,other-pod,node,node-by-vip       203.0.113.9:*  = local kept
        endpoint                             203.0.113.9:*  = local masqueraded
        other-node,outside,allowed,loopback  203.0.113.9:*  = local kept
        all                                  203.0.113.8:81 = rejected
        all                                  203.0.113.9:81 = rejected
        # The policy for external traffic does not apply to the cluster IP, and vice versa.
        pod,other-pod                        10.96.0.9:*    = kept
        outside                              10.96.0.9:*    = masqueraded
        pod,other-pod                        10.96.0.30:*   = local kept
        outside                              10.96.0.30:*   = local masqueraded
        pod,other-pod,endpoint               203.0.113.30:* = masqueraded
        outside                              203.0.113.30:* = masqueraded
        ",
    );
}

#[test]
fn load_balancers() {
    check(
        &cluster(config()),
        "
        pod,other-pod,endpoint               203.0.113.10:* = masqueraded
        node,node-by-vip                     203.0.113.10:* = masqueraded
        other-node,outside,allowed           203.0.113.10:* = masqueraded
        loopback                             203.0.113.10:* = kept
        pod,other-pod,node,node-by-vip       203.0.113.11:* = local kept
        endpoint                             203.0.113.11:* = local masqueraded
        other-node,outside,allowed,loopback  203.0.113.11:* = local kept
        all                                  203.0.113.10:81 = rejected
        all                                  203.0.113.11:81 = rejected
        ",
    );
}

#[test]
fn source_ranges() {
    check(
        &cluster(config()),
        "
        # Restricted sources, without pods, this node and other hosts.
        allowed                              203.0.113.12:* = masqueraded
        outside,other-node                   203.0.113.12:* = dropped
        pod,other-pod,endpoint               203.0.113.12:* = dropped
        node-by-vip                          203.0.113.12:* = dropped
        # A process that binds another source address than the kernel selects is accepted, as in kube-proxy.
        node                                 203.0.113.12:* = masqueraded
        loopback                             203.0.113.12:* = kept
        # The same with policy Local.
        allowed                              203.0.113.14:* = local kept
        outside,other-node                   203.0.113.14:* = dropped
        pod,other-pod,endpoint               203.0.113.14:* = dropped
        node-by-vip                          203.0.113.14:* = dropped
        node,loopback                        203.0.113.14:* = local kept
        # The node and other nodes are in a range.
        node,node-by-vip,other-node          203.0.113.13:* = masqueraded
        loopback                             203.0.113.13:* = kept
        outside,allowed                      203.0.113.13:* = dropped
        pod,other-pod,endpoint               203.0.113.13:* = dropped
        # Ports without a virtual server.
        all                                  203.0.113.12:81 = rejected
        # The cluster IP of such a Service is open to all.
        pod,other-pod                        10.96.0.12:*   = kept
        node,other-node,outside              10.96.0.12:*   = masqueraded
        ",
    );
}

#[test]
fn the_number_of_a_node_port_changes_nothing_for_other_traffic() {
    // kube-proxy masquerades the first and does not masquerade the second.
    check(
        &cluster(config()),
        "
        pod         10.96.0.16:30080   = kept
        outside     203.0.113.15:31080 = masqueraded
        pod         10.96.0.15:31080   = kept
        outside     10.96.0.16:30080   = masqueraded
        ",
    );
}

#[test]
fn every_mode_of_local_detection() {
    let with = |detection: LocalDetection| {
        let mut config = config();
        config.local_detection = detection;
        cluster(config)
    };
    let by_interface = "
        pod         10.96.0.1:* = kept
        endpoint    10.96.0.1:* = hairpin
        other-pod   10.96.0.1:* = masqueraded
        node        10.96.0.1:* = masqueraded
        node-by-vip 10.96.0.1:* = masqueraded
        outside     10.96.0.1:* = masqueraded
    ";
    check(
        &with(LocalDetection::interface_prefix("veth").unwrap()),
        by_interface,
    );
    check(
        &with(LocalDetection::bridge_interface("veth1").unwrap()),
        &by_interface.replace("= hairpin", "= masqueraded"),
    );
    let mut node_cidr = config();
    node_cidr.local_detection = LocalDetection::NodeCidr;
    node_cidr.services.pod_cidrs = vec!["10.244.1.0/24".parse().unwrap(), "fd01:1::/48".parse().unwrap()];
    check(&cluster(node_cidr), by_interface);
    // Pods are not recognised: only traffic from the virtual IP itself is masqueraded.
    check(
        &with(LocalDetection::ClusterCidr(Vec::new())),
        "
        pod         10.96.0.1:* = kept
        outside     10.96.0.1:* = kept
        node        10.96.0.1:* = kept
        node-by-vip 10.96.0.1:* = masqueraded
        outside     203.0.113.8:* = masqueraded
        outside     203.0.113.10:* = masqueraded
        ",
    );
    let mut all = config();
    all.masquerade_all = true;
    check(
        &cluster(all),
        "pod 10.96.0.1:* = masqueraded\nendpoint 10.96.0.1:* = masqueraded\noutside 10.96.0.1:* = masqueraded",
    );
}

#[test]
fn packets_that_are_not_masqueraded_keep_both_addresses_from_every_sender() {
    let mut all = config();
    all.masquerade_all = true;
    for config in [config(), all] {
        check(
            &cluster(config),
            "
            outside     203.0.113.17:*    = same port kept direct
            pod         203.0.113.17:*    = same port kept direct
            node        203.0.113.17:*    = same port kept direct
            node-by-vip 203.0.113.17:*    = same port kept direct
            outside     203.0.113.18:*    = same port kept tunnel
            node-by-vip 203.0.113.18:*    = same port kept tunnel
            outside     203.0.113.17:81   = rejected
            # Source ranges of load balancers apply.
            allowed     203.0.113.117:*   = same port kept direct
            outside     203.0.113.117:*   = dropped
            pod         203.0.113.117:*   = dropped
            node-by-vip 203.0.113.117:80  = dropped
            allowed     203.0.113.118:*   = same port kept tunnel
            outside     203.0.113.118:*   = dropped
            # The other frontends of the same Service.
            outside     10.96.0.17:*      = same port masqueraded
            outside     10.96.0.18:*      = same port masqueraded
            outside     192.0.2.1:33017   = same port masqueraded
            outside     192.0.2.1:33018   = same port masqueraded
            ",
        );
    }
}

/// The paths of packets in kube-proxy's IPVS mode.
#[test]
fn packet_paths_of_kube_proxy() {
    check(
        &cluster(config()),
        "
        # From a pod to a cluster IP: not masqueraded, unless the endpoint is the same pod.
        pod         10.96.0.1:*    = kept
        endpoint    10.96.0.1:*    = hairpin
        # From the node to a cluster IP: masqueraded.
        node        10.96.0.1:*    = masqueraded
        # From outside to a node port: by policy.
        outside     192.0.2.1:30*  = masqueraded
        outside     192.0.2.1:31*  = local kept
        # From outside to a load balancer with source ranges: accepted by policy, or dropped.
        allowed     203.0.113.12:* = masqueraded
        allowed     203.0.113.14:* = local kept
        outside     203.0.113.12:* = dropped
        outside     203.0.113.14:* = dropped
        # From the node, which is in no range: dropped after a real server is selected.
        node-by-vip 203.0.113.12:* = dropped
        # From outside to a port of a virtual IP without a virtual server.
        outside     203.0.113.10:81 = rejected
        outside     203.0.113.8:81  = rejected
        outside     10.96.0.1:81    = rejected
        ",
    );
}

#[test]
fn packets_to_other_hosts_are_forwarded() {
    check(
        &cluster(config()),
        "pod 203.0.113.200:80 = forwarded\npod 192.0.2.77:80 = forwarded\noutside 192.0.2.1:22 = node",
    );
}
