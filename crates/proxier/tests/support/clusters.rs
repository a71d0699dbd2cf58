//! Random clusters: Services, slices and nodes that share names, addresses and ports.

use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use kernlink_proxier::{DataPath, Proxier};
use kernlink_services::{
    Change, Conditions, Endpoint, EndpointPort, EndpointSlice, Family, Hints, Ingress, Kind, Node,
    ObjectChange, ObjectName, Port, Protocol, Service, ServiceType, SessionAffinity, SourceId, TrafficPolicy,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};

/// Few names, addresses and ports, so that Services conflict.
pub(crate) fn service() -> impl Strategy<Value = Service> {
    let identity = (
        0..5u8,
        0..3u64,
        select(&["10.96.0.1", "10.96.0.2", "10.96.0.3", "None", "203.0.113.1"][..]),
        0..3u8,
    );
    let addresses = subsequence(
        vec![
            "203.0.113.1",
            "203.0.113.2",
            "192.0.2.1",
            "10.96.0.1",
            "192.0.2.66",
            "127.0.0.1",
            "2001:db8::1",
            "203.0.113.001",
            "2001:DB8:0::2",
            "bad",
        ],
        0..3,
    );
    let balanced = subsequence(
        vec!["203.0.113.1", "203.0.113.3", "198.51.100.7", "2001:db8::3"],
        0..2,
    );
    let ranges = subsequence(
        vec![
            "192.0.2.0/24",
            " 10.1.2.3/8",
            "198.18.0.7/32",
            "2001:DB8:5::9/48",
            "2001:db8:6::7/128",
            "0.0.0.0/0",
        ],
        0..2,
    );
    let port = (
        select(&["a", "b", ""][..]),
        select(&[80u16, 443, 30_001][..]),
        select(&[0u16, 30_001, 30_002][..]),
        0..4u8,
    );
    let policies = (
        any::<bool>(),
        any::<bool>(),
        any::<bool>(),
        select(&[0u16, 32_000, 32_001][..]),
        select(&["", "", "direct", "tunnel"][..]),
        subsequence(
            vec![
                ("scheduler", "wrr"),
                ("scheduler", "mh"),
                ("scheduler-flags", "sh-port"),
                ("weights", "zone=z1:3,node=node-b:0"),
                ("one-packet", "true"),
                ("affinity-mask", "24,64"),
            ],
            0..3,
        ),
    );
    (identity, addresses, balanced, ranges, vec(port, 1..3), policies).prop_map(
        |(
            (name, created, cluster_ip, kind),
            external,
            balanced,
            ranges,
            ports,
            (internal, local, sticky, health, forwarding, annotations),
        )| {
            let mut service =
                Service::new(ObjectName::new("ns", format!("s{name}"))).with_cluster_ip(cluster_ip);
            service.created = created
                .checked_sub(1)
                .map(|c| SystemTime::UNIX_EPOCH + Duration::from_secs(c));
            service.service_type = [
                ServiceType::ClusterIp,
                ServiceType::NodePort,
                ServiceType::LoadBalancer,
            ][usize::from(kind)];
            if name % 2 == 0 && cluster_ip != "None" {
                service.cluster_ips = vec![cluster_ip.to_owned(), format!("fd00::{name}")];
                service.ip_families = vec![Family::Ipv4, Family::Ipv6];
            }
            for (name, number, node_port, protocol) in ports {
                let protocol =
                    [Protocol::Tcp, Protocol::Tcp, Protocol::Udp, Protocol::Sctp][usize::from(protocol)];
                let mut port = Port::new(name, number).with_protocol(protocol);
                if service.service_type != ServiceType::ClusterIp {
                    port = port.with_node_port(node_port);
                }
                service = service.with_port(port);
            }
            service.external_ips = external.into_iter().map(str::to_owned).collect();
            service.ingress = balanced
                .into_iter()
                .map(|ip| Ingress {
                    ip: ip.to_owned(),
                    ..Ingress::default()
                })
                .collect();
            service.load_balancer_source_ranges = ranges.into_iter().map(str::to_owned).collect();
            let policy = |local| {
                if local {
                    TrafficPolicy::Local
                } else {
                    TrafficPolicy::Cluster
                }
            };
            service.internal_traffic_policy = policy(internal);
            service.external_traffic_policy = policy(local);
            service.health_check_node_port = health;
            if !forwarding.is_empty() {
                let annotation = "kernlink.io/forwarding-method".to_owned();
                service.annotations.insert(annotation, forwarding.to_owned());
            }
            for (name, value) in annotations {
                let name = format!("kernlink.io/{name}");
                service.annotations.insert(name, value.to_owned());
            }
            if sticky {
                service.session_affinity = SessionAffinity::ClientIp(Duration::from_secs(60));
            }
            service
        },
    )
}

pub(crate) fn slice() -> impl Strategy<Value = EndpointSlice> {
    let endpoint = (
        1..5u8,
        any::<(bool, bool, bool)>(),
        select(&["node-a", "node-b", ""][..]),
        0..4u8,
    );
    (
        0..4u8,
        0..5u8,
        any::<bool>(),
        vec(
            (
                select(&["a", "b", ""][..]),
                select(&[0u16, 80, 80, 443, 8_080][..]),
            ),
            1..3,
        ),
        vec(endpoint, 0..5),
    )
        .prop_map(|(name, service, six, ports, endpoints)| {
            let family = if six { Family::Ipv6 } else { Family::Ipv4 };
            let mut slice = EndpointSlice::new(
                ObjectName::new("ns", format!("e{name}")),
                format!("s{service}"),
                family,
            );
            for (name, number) in ports {
                slice = slice.with_port(EndpointPort::new(name, number));
            }
            for (number, (ready, serving, terminating), node, hint) in endpoints {
                let address: IpAddr = if six {
                    format!("fd01::{number}").parse().unwrap()
                } else {
                    [10, 244, 1, number].into()
                };
                let mut endpoint = Endpoint::new(address).with_conditions(Conditions {
                    ready,
                    serving,
                    terminating,
                });
                if !node.is_empty() {
                    endpoint = endpoint.with_node(node);
                }
                if hint > 0 {
                    let zones = if hint == 1 {
                        vec!["z1".into()]
                    } else {
                        vec!["z2".into()]
                    };
                    let nodes = if hint == 3 {
                        vec!["node-a".into()]
                    } else {
                        Vec::new()
                    };
                    endpoint = endpoint.with_hints(Hints { zones, nodes });
                }
                slice = slice.with_endpoint(endpoint);
            }
            slice
        })
}

pub(crate) fn node() -> impl Strategy<Value = Node> {
    (
        select(&["node-a", "node-b", "node-c"][..]),
        subsequence(vec!["192.0.2.1", "192.0.2.66", "203.0.113.2"], 0..2),
        any::<bool>(),
    )
        .prop_map(|(name, addresses, zone)| {
            let node = addresses.iter().fold(Node::new(name), |node, a| {
                node.with_internal_address(a.parse().unwrap())
            });
            if zone { node.with_zone("z1") } else { node }
        })
}

/// One step of a test.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant, reason = "a test has at most forty")]
pub(crate) enum Step {
    Change(u16, Change),
    Addresses(&'static str),
    Update,
}

/// Passes the steps that are changes to a proxier; its two sources have then delivered their first full lists.
pub(crate) fn apply<M: DataPath>(proxier: &mut Proxier<M>, steps: &[Step]) {
    for step in steps {
        if let Step::Change(source, change) = step {
            proxier.change(SourceId(*source), change.clone());
        }
    }
    for source in [0, 1] {
        for kind in [Kind::Service, Kind::EndpointSlice, Kind::Node] {
            proxier.change(SourceId(source), Change::synced(kind));
        }
    }
}

pub(crate) fn step() -> impl Strategy<Value = Step> {
    let source = 0..2u16;
    prop_oneof![
        6 => (source.clone(), service()).prop_map(|(s, o)| Step::Change(s, Change::Services(ObjectChange::Upsert(o)))),
        6 => (source.clone(), slice()).prop_map(|(s, o)| Step::Change(s, Change::EndpointSlices(ObjectChange::Upsert(o)))),
        2 => (source.clone(), node()).prop_map(|(s, o)| Step::Change(s, Change::Nodes(ObjectChange::Upsert(o)))),
        3 => (source.clone(), 0..5u8).prop_map(|(s, n)| {
            Step::Change(s, Change::Services(ObjectChange::Delete(ObjectName::new("ns", format!("s{n}")))))
        }),
        2 => (source.clone(), 0..4u8).prop_map(|(s, n)| {
            Step::Change(s, Change::EndpointSlices(ObjectChange::Delete(ObjectName::new("ns", format!("e{n}")))))
        }),
        1 => (source.clone(), select(&["node-a", "node-b"][..])).prop_map(|(s, n)| {
            Step::Change(s, Change::Nodes(ObjectChange::Delete(ObjectName::new("", n))))
        }),
        1 => (source.clone(), vec(service(), 0..3)).prop_map(|(s, o)| Step::Change(s, Change::Services(ObjectChange::ReplaceAll(o)))),
        1 => (source, vec(slice(), 0..3)).prop_map(|(s, o)| Step::Change(s, Change::EndpointSlices(ObjectChange::ReplaceAll(o)))),
        2 => select(&["", "eth0=192.0.2.1", "eth0=192.0.2.1,eth1=203.0.113.2,eth0=2001:db8::9", "eth0=203.0.113.1,kube-ipvs0=203.0.113.2"][..])
            .prop_map(Step::Addresses),
        3 => Just(Step::Update),
    ]
}
