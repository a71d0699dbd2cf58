//! What holds for every world: random Services, slices, nodes and addresses, in any order.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test says what is wrong by panicking"
)]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::time::{Duration, SystemTime};

use kernlink_ipset::Entry;
use kernlink_ipvs::VirtualServerKey;
use kernlink_proxier::config::Config;
use kernlink_proxier::desired::{Changes, DesiredState, SetId};
use kernlink_proxier::family::Family;
use kernlink_proxier::model::Model;
use kernlink_proxier::source::{
    Change, Conditions, Endpoint, EndpointPort, EndpointSlice, Hints, Ingress, Kind, Node, ObjectChange,
    ObjectName, Policy, Port, Protocol, Service, ServiceType, SessionAffinity, SourceId,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};
use support::{events, interface_addresses, listings};

/// Few names, addresses and ports, so that Services meet each other.
fn service() -> impl Strategy<Value = Service> {
    let who = (
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
            "10.0.0.0/8",
            "198.18.0.7/32",
            "2001:db8:5::/48",
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
    );
    (who, addresses, balanced, ranges, vec(port, 1..3), policies).prop_map(
        |(
            (name, created, cluster_ip, kind),
            external,
            balanced,
            ranges,
            ports,
            (internal, local, sticky, health),
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
                service.ip_families = vec![Family::V4, Family::V6];
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
            let policy = |local| if local { Policy::Local } else { Policy::Cluster };
            service.internal_traffic_policy = policy(internal);
            service.external_traffic_policy = policy(local);
            service.health_check_node_port = health;
            if sticky {
                service.session_affinity = SessionAffinity::ClientIp(Duration::from_secs(60));
            }
            service
        },
    )
}

fn slice() -> impl Strategy<Value = EndpointSlice> {
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
            (select(&["a", "b", ""][..]), select(&[0u16, 8_080, 8_443][..])),
            1..3,
        ),
        vec(endpoint, 0..5),
    )
        .prop_map(|(name, service, six, ports, endpoints)| {
            let family = if six { Family::V6 } else { Family::V4 };
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

fn node() -> impl Strategy<Value = Node> {
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

/// Something that happens.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant, reason = "there are forty of them")]
enum Step {
    Change(u16, Change),
    Addresses(&'static str),
    Fold,
}

fn step() -> impl Strategy<Value = Step> {
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
        3 => Just(Step::Fold),
    ]
}

/// Everything that a desired state says.
fn everything(model: &Model, desired: &DesiredState) -> String {
    let mut text = String::new();
    for (name, listing) in listings(desired).files() {
        text += &format!("# {name}\n{listing}");
    }
    for event in events(model, desired) {
        text += &format!("{event}\n");
    }
    for family in Family::ALL {
        for server in desired.virtual_servers(family) {
            text += &format!("{} {}\n", server.virtual_server.key, server.owner);
        }
        for check in desired.health_checks(family) {
            text += &format!("{family} {check:?}\n");
        }
    }
    text
}

fn config() -> Config {
    let mut config = Config::new("node-a");
    config.conntrack.max_per_core = 0;
    config
}

/// What a planner would know that looks only at the keys it is told of.
#[derive(Debug, Default, PartialEq)]
struct Shadow {
    servers: BTreeMap<VirtualServerKey, String>,
    addresses: BTreeSet<IpAddr>,
    entries: BTreeSet<(Family, SetId, Entry)>,
    rules: BTreeMap<Family, String>,
    health_checks: BTreeMap<(Family, u16), String>,
}

impl Shadow {
    fn of(desired: &DesiredState) -> Self {
        let mut shadow = Shadow::default();
        for family in Family::ALL {
            let servers = desired.virtual_servers(family);
            shadow.servers.extend(servers.map(|s| {
                (
                    s.virtual_server.key,
                    format!("{:?}{:?}", s.virtual_server, s.real_servers),
                )
            }));
            shadow.addresses.extend(desired.addresses(family));
            for set in desired.sets(family) {
                shadow
                    .entries
                    .extend(set.entries().map(|entry| (family, set.id, entry.clone())));
            }
            shadow.rules.insert(family, desired.rules(family).to_string());
            let checks = desired.health_checks(family);
            shadow
                .health_checks
                .extend(checks.map(|check| ((family, check.port.get()), format!("{check:?}"))));
        }
        shadow
    }

    fn catch_up(&mut self, desired: &DesiredState, changes: Changes) {
        let now = Shadow::of(desired);
        let keys = match changes {
            Changes::Keys(keys) => keys,
            _ => {
                *self = now;
                return;
            }
        };
        for key in keys.virtual_servers {
            let wanted = desired.virtual_server(&key);
            match wanted.map(|s| format!("{:?}{:?}", s.virtual_server, s.real_servers)) {
                Some(server) => self.servers.insert(key, server),
                None => self.servers.remove(&key),
            };
        }
        for address in keys.addresses {
            if desired.has_address(address) {
                self.addresses.insert(address)
            } else {
                self.addresses.remove(&address)
            };
        }
        for (family, set, entry) in keys.entries {
            let wanted = desired.set(set, family).contains(&entry);
            let key = (family, set, entry);
            if wanted {
                self.entries.insert(key)
            } else {
                self.entries.remove(&key)
            };
        }
        for family in keys.rules {
            self.rules.insert(family, desired.rules(family).to_string());
        }
        for key in keys.health_checks {
            match now.health_checks.get(&key) {
                Some(check) => self.health_checks.insert(key, check.clone()),
                None => self.health_checks.remove(&key),
            };
        }
    }
}

/// Runs steps on a model and a desired state that is folded as it goes.
fn run(steps: &[Step], mut after_fold: impl FnMut(&mut DesiredState)) -> (Model, DesiredState) {
    let mut model = Model::new(config());
    let mut desired = DesiredState::new(&model);
    for step in steps {
        match step {
            Step::Change(source, change) => {
                model.change(SourceId(*source), change.clone());
            }
            Step::Addresses(addresses) => model.set_interface_addresses(interface_addresses(addresses)),
            Step::Fold => {
                let touched = model.take_touched();
                desired.fold(&model, &touched);
                after_fold(&mut desired);
            }
        }
    }
    let touched = model.take_touched();
    desired.fold(&model, &touched);
    after_fold(&mut desired);
    (model, desired)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn the_fold_equals_a_rebuild(steps in vec(step(), 1..40)) {
        let (model, folded) = run(&steps, |_| ());
        let mut whole = model.clone();
        // Everything is touched when the configuration changes, and changes back.
        let mut other = config();
        other.masquerade_all = true;
        whole.set_config(other);
        whole.set_config(config());
        let mut rebuilt = DesiredState::new(&whole);
        let touched = whole.take_touched();
        rebuilt.fold(&whole, &touched);
        prop_assert_eq!(everything(&model, &folded), everything(&whole, &rebuilt));
    }

    #[test]
    fn a_model_filled_at_once_is_the_same(steps in vec(step(), 1..40)) {
        let (model, folded) = run(&steps, |_| ());
        let all: Vec<Step> = steps.into_iter().filter(|step| !matches!(step, Step::Fold)).collect();
        let (other, at_once) = run(&all, |_| ());
        prop_assert_eq!(everything(&model, &folded), everything(&other, &at_once));
    }

    #[test]
    fn the_order_of_arrival_never_matters(
        services in vec(service(), 1..5),
        slices in vec(slice(), 0..4),
        nodes in vec(node(), 0..3),
        order in any::<prop::sample::Index>(),
        folds in any::<u64>(),
    ) {
        let upserts = |services: &[Service], slices: &[EndpointSlice], nodes: &[Node]| -> Vec<Step> {
            let unique = |names: Vec<ObjectName>| names.into_iter().collect::<BTreeSet<_>>();
            let mut left = unique(services.iter().map(|s| s.name.clone()).collect());
            let mut steps: Vec<Step> = Vec::new();
            steps.extend(services.iter().filter(|s| left.remove(&s.name)).map(|s| Step::Change(0, Change::Services(ObjectChange::Upsert(s.clone())))));
            let mut left = unique(slices.iter().map(|s| s.name.clone()).collect());
            steps.extend(slices.iter().filter(|s| left.remove(&s.name)).map(|s| Step::Change(0, Change::EndpointSlices(ObjectChange::Upsert(s.clone())))));
            let mut left = unique(nodes.iter().map(|s| s.name.clone()).collect());
            steps.extend(nodes.iter().filter(|s| left.remove(&s.name)).map(|s| Step::Change(0, Change::Nodes(ObjectChange::Upsert(s.clone())))));
            steps.push(Step::Addresses("eth0=192.0.2.1,eth1=203.0.113.2"));
            steps
        };
        let steps = upserts(&services, &slices, &nodes);
        let mut rotated = steps.clone();
        rotated.rotate_left(order.index(steps.len()));
        rotated.reverse();
        let rotated: Vec<Step> = rotated
            .into_iter()
            .enumerate()
            .flat_map(|(n, step)| if folds >> (n % 64) & 1 == 1 { vec![step, Step::Fold] } else { vec![step] })
            .collect();
        let (model, one) = run(&steps, |_| ());
        let (other, two) = run(&rotated, |_| ());
        prop_assert_eq!(everything(&model, &one), everything(&other, &two));
    }

    #[test]
    fn the_changed_keys_are_all_that_changed(steps in vec(step(), 1..40)) {
        let mut shadow = Shadow::default();
        let mut failed = Ok(());
        run(&steps, |desired| {
            let changes = desired.take_changes();
            shadow.catch_up(desired, changes);
            if shadow != Shadow::of(desired) && failed.is_ok() {
                failed = Err(format!("{shadow:#?}\nis not\n{:#?}", Shadow::of(desired)));
            }
        });
        prop_assert!(failed.is_ok(), "{}", failed.unwrap_err());
    }

    #[test]
    fn deleting_everything_leaves_nothing(steps in vec(step(), 1..30)) {
        let mut steps = steps;
        for source in 0..2 {
            steps.push(Step::Change(source, Change::Services(ObjectChange::ReplaceAll(Vec::new()))));
        }
        let (_, desired) = run(&steps, |_| ());
        for family in Family::ALL {
            prop_assert_eq!(desired.virtual_servers(family).count(), 0);
            prop_assert_eq!(desired.addresses(family).len(), 0);
            prop_assert_eq!(desired.health_checks(family).count(), 0);
            prop_assert_eq!(desired.blocked(family).count(), 0);
            for set in desired.sets(family) {
                prop_assert!(set.is_empty(), "{}", set.definition);
            }
        }
    }

    #[test]
    fn entries_are_as_the_kernel_lists_them(steps in vec(step(), 1..40)) {
        let (_, desired) = run(&steps, |_| ());
        for family in Family::ALL {
            for set in desired.sets(family) {
                for entry in set.entries() {
                    let again = Entry::parse(&entry.to_string(), set.definition.set_type, set.definition.family);
                    prop_assert_eq!(again.as_ref(), Ok(entry));
                }
            }
        }
    }

    #[test]
    fn frontends_have_a_virtual_server_and_entries_or_neither(steps in vec(step(), 1..40)) {
        let (_, desired) = run(&steps, |_| ());
        for family in Family::ALL {
            let servers: BTreeSet<String> = desired
                .virtual_servers(family)
                .map(|server| {
                    let key = server.virtual_server.key;
                    let protocol = key.protocol().unwrap().to_string().to_lowercase();
                    format!("{},{protocol}:{}", key.address().unwrap(), key.port().unwrap())
                })
                .collect();
            let entries = |ids: &[SetId]| -> BTreeSet<String> {
                ids.iter().flat_map(|id| desired.set(*id, family).entries().map(ToString::to_string).collect::<Vec<_>>()).collect()
            };
            // With an address in the entry.
            let exact = entries(&[
                SetId::ClusterIp, SetId::ExternalIp, SetId::ExternalIpLocal, SetId::LoadBalancer,
                SetId::LoadBalancerLocal, SetId::LoadBalancerFirewall, SetId::NodePortSctp, SetId::NodePortLocalSctp,
            ]);
            for entry in &exact {
                prop_assert!(servers.contains(entry), "{entry} has no virtual server");
            }
            // With a port alone.
            let tcp = entries(&[SetId::NodePortTcp, SetId::NodePortLocalTcp]);
            let udp = entries(&[SetId::NodePortUdp, SetId::NodePortLocalUdp]);
            for (ports, protocol) in [(&tcp, "tcp"), (&udp, "udp")] {
                for port in ports {
                    let ending = format!(",{protocol}:{port}");
                    prop_assert!(servers.iter().any(|server| server.ends_with(&ending)), "{port} has no virtual server");
                }
            }
            for server in &servers {
                let (_, rest) = server.split_once(',').unwrap();
                let (protocol, port) = rest.split_once(':').unwrap();
                let by_port = match protocol { "tcp" => &tcp, "udp" => &udp, _ => &exact };
                prop_assert!(exact.contains(server) || by_port.contains(port), "{server} has no entry");
            }
            let bound: BTreeSet<String> = desired.addresses(family).map(|a| a.to_string()).collect();
            prop_assert_eq!(&bound, &entries(&[SetId::IpvsIps]));
            for address in &bound {
                let beginning = format!("{address},");
                prop_assert!(servers.iter().any(|server| server.starts_with(&beginning)));
            }
        }
    }
}

#[test]
fn nothing_is_ready_before_every_source_has_said_all() {
    let mut model = Model::new(config());
    assert!(!model.is_ready());
    model.change(SourceId(0), Change::complete(Kind::Service));
    assert!(!model.is_ready());
    model.change(SourceId(0), Change::complete(Kind::EndpointSlice));
    assert!(model.is_ready());
    model.expect(SourceId(7), Kind::EndpointSlice);
    assert!(!model.is_ready());
    model.change(SourceId(7), Change::complete(Kind::EndpointSlice));
    assert!(model.is_ready());
    model.change(SourceId(8), Change::Nodes(ObjectChange::Upsert(Node::new("n"))));
    assert!(!model.is_ready());
}

#[test]
fn a_lower_source_wins_and_both_are_named() {
    let mut model = Model::new(config());
    let service = |address: &str| {
        let service = Service::new(ObjectName::new("ns", "s"))
            .with_cluster_ip(address)
            .with_port(Port::new("", 80));
        Change::Services(ObjectChange::Upsert(service))
    };
    assert_eq!(model.change(SourceId(2), service("10.96.0.2")), []);
    let said = model.change(SourceId(1), service("10.96.0.1"));
    assert_eq!(
        said[0].to_string(),
        "Service ns/s: source 2 has it as well as source 1, whose object counts"
    );
    let address = |model: &Model| {
        let exposures: Vec<_> = model.exposures(&ObjectName::new("ns", "s")).collect();
        exposures[0].frontends[0].address.to_string()
    };
    assert_eq!(address(&model), "10.96.0.1");
    model.change(
        SourceId(1),
        Change::Services(ObjectChange::Delete(ObjectName::new("ns", "s"))),
    );
    assert_eq!(address(&model), "10.96.0.2");
}
