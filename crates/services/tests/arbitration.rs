//! Which Service owns an address, port and protocol that several define.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a failed test reports the reason by panicking"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use kernlink_services::{
    Change, Config, Event, Family, FrontendKey, FrontendKind, HealthCheck, Ingress, InterfaceAddress,
    ObjectChange, ObjectName, Port, Protocol, Reason, Service, ServicePort, ServicePortId, ServicePortKey,
    ServiceType, Services, SourceId, TrafficPolicy,
};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{select, subsequence};

fn at(second: u64) -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(second)
}

/// A Service that was created at this second, with one port.
fn service(name: &str, created: u64, cluster_ip: &str, port: Port) -> Service {
    let mut service = Service::new(ObjectName::new("ns", name))
        .with_cluster_ip(cluster_ip)
        .with_port(port);
    service.created = Some(at(created));
    service
}

fn with_external_ip(mut service: Service, address: &str) -> Service {
    service.external_ips.push(address.to_owned());
    service
}

fn with_load_balancer_ip(mut service: Service, address: &str) -> Service {
    service.service_type = ServiceType::LoadBalancer;
    service.ingress.push(Ingress {
        ip: address.to_owned(),
        ..Ingress::default()
    });
    service
}

/// A node with the address 192.0.2.1.
fn node() -> Services {
    let mut services = Services::new(Config::new("node-a"));
    let address = InterfaceAddress::new("eth0", "192.0.2.1".parse().unwrap());
    services.set_interface_addresses(vec![address]);
    services
}

fn upsert(services: &mut Services, service: Service) -> Vec<Event> {
    services.change(SourceId(0), Change::Services(ObjectChange::Upsert(service)));
    services.update().events
}

fn delete(services: &mut Services, name: &str) -> Vec<Event> {
    let name = ObjectName::new("ns", name);
    services.change(SourceId(0), Change::Services(ObjectChange::Delete(name)));
    services.update().events
}

fn key(address: &str, port: u16) -> FrontendKey {
    FrontendKey {
        address: address.parse().unwrap(),
        protocol: Protocol::Tcp,
        port,
    }
}

fn owner(services: &Services, key: FrontendKey) -> String {
    let owner = services
        .frontend(&key)
        .map(|frontend| frontend.owner.key.name.to_string());
    owner.unwrap_or_default()
}

fn texts(events: &[Event]) -> Vec<String> {
    events.iter().map(ToString::to_string).collect()
}

/// Of two Services with one frontend, the one of the kind that takes precedence has it, though it is newer: regardless of which is added first,
/// and after the other one was deleted and came back.
#[track_caller]
fn assert_precedence(old: &Service, new: &Service, key: FrontendKey, text: &str) {
    for is_old_first in [true, false] {
        let mut services = node();
        let (first, second) = if is_old_first { (old, new) } else { (new, old) };
        upsert(&mut services, first.clone());
        assert_eq!(owner(&services, key), first.name.to_string());
        assert_eq!(texts(&upsert(&mut services, second.clone())), [text]);
        assert_eq!(owner(&services, key), new.name.to_string());
        assert_eq!(texts(&services.events()), [text]);
        assert_eq!(texts(&delete(&mut services, &new.name.name)), [""; 0]);
        assert_eq!(owner(&services, key), old.name.to_string());
        assert_eq!(texts(&upsert(&mut services, new.clone())), [text]);
        assert_eq!(owner(&services, key), new.name.to_string());
        let id = services.ports_of(&old.name).next().unwrap().0;
        assert!(
            services
                .owned_frontends(id)
                .all(|frontend| FrontendKey::of(frontend) != key)
        );
    }
}

#[test]
fn an_external_ip_of_an_old_service_does_not_take_the_cluster_ip_of_a_newer_one() {
    let old = with_external_ip(service("old", 1, "10.96.0.1", Port::new("", 80)), "10.96.0.2");
    let new = service("new", 2, "10.96.0.2", Port::new("", 80));
    let text = "Service ns/old: external IP 10.96.0.2:80/TCP is already used by ns/new as cluster IP, which takes precedence; \
                not programmed";
    assert_precedence(&old, &new, key("10.96.0.2", 80), text);
}

#[test]
fn a_load_balancer_ip_of_an_old_service_does_not_take_the_cluster_ip_of_a_newer_one() {
    let old = with_load_balancer_ip(service("old", 1, "10.96.0.1", Port::new("", 80)), "10.96.0.2");
    let new = service("new", 2, "10.96.0.2", Port::new("", 80));
    let text = "Service ns/old: load-balancer IP 10.96.0.2:80/TCP is already used by ns/new as cluster IP, which takes precedence; \
                not programmed";
    assert_precedence(&old, &new, key("10.96.0.2", 80), text);
}

#[test]
fn an_external_ip_of_an_old_service_does_not_take_the_node_port_of_a_newer_one() {
    let old = with_external_ip(service("old", 1, "10.96.0.1", Port::new("", 30_080)), "192.0.2.1");
    let mut new = service("new", 2, "10.96.0.2", Port::new("", 80).with_node_port(30_080));
    new.service_type = ServiceType::NodePort;
    let text = "Service ns/old: external IP 192.0.2.1:30080/TCP is already used by ns/new as node port, which takes precedence; \
                not programmed";
    assert_precedence(&old, &new, key("192.0.2.1", 30_080), text);
}

#[test]
fn a_load_balancer_ip_of_an_old_service_does_not_take_the_node_port_of_a_newer_one() {
    let old = with_load_balancer_ip(service("old", 1, "10.96.0.1", Port::new("", 30_080)), "192.0.2.1");
    let mut new = service("new", 2, "10.96.0.2", Port::new("", 80).with_node_port(30_080));
    new.service_type = ServiceType::NodePort;
    let text = "Service ns/old: load-balancer IP 192.0.2.1:30080/TCP is already used by ns/new as node port, which takes precedence; \
                not programmed";
    assert_precedence(&old, &new, key("192.0.2.1", 30_080), text);
}

#[test]
fn an_external_ip_of_an_old_service_does_not_take_the_load_balancer_ip_of_a_newer_one() {
    let old = with_external_ip(service("old", 1, "10.96.0.1", Port::new("", 80)), "203.0.113.9");
    let new = with_load_balancer_ip(service("new", 2, "10.96.0.2", Port::new("", 80)), "203.0.113.9");
    let text = "Service ns/old: external IP 203.0.113.9:80/TCP is already used by ns/new as load-balancer IP, which takes precedence; \
                not programmed";
    assert_precedence(&old, &new, key("203.0.113.9", 80), text);
}

#[test]
fn a_node_port_at_an_address_that_is_a_cluster_ip_is_served_at_the_other_addresses() {
    let mut services = Services::new(Config::new("node-a"));
    let address = |link, address: &str| InterfaceAddress::new(link, address.parse().unwrap());
    services.set_interface_addresses(vec![
        address("eth0", "192.0.2.1"),
        address("eth1", "198.51.100.7"),
    ]);
    let mut old = service("old", 1, "10.96.0.1", Port::new("", 80).with_node_port(30_080));
    old.service_type = ServiceType::NodePort;
    upsert(&mut services, old);
    upsert(
        &mut services,
        service("new", 2, "192.0.2.1", Port::new("", 30_080)),
    );
    assert_eq!(owner(&services, key("192.0.2.1", 30_080)), "ns/new");
    assert_eq!(owner(&services, key("198.51.100.7", 30_080)), "ns/old");
}

#[test]
fn a_service_whose_frontend_changes_its_kind_takes_another_place_in_the_order() {
    let mut services = node();
    let frontend = key("203.0.113.9", 80);
    let external = |name, created| {
        let ip = if name == "a" { "10.96.0.1" } else { "10.96.0.2" };
        with_external_ip(service(name, created, ip, Port::new("", 80)), "203.0.113.9")
    };
    let young = external("b", 2);
    upsert(&mut services, external("a", 1));
    upsert(&mut services, young.clone());
    assert_eq!(owner(&services, frontend), "ns/a");
    services.take_changes();

    let mut balanced = young.clone();
    balanced.external_ips.clear();
    let text = "Service ns/a: external IP 203.0.113.9:80/TCP is already used by ns/b as load-balancer IP, which takes precedence; \
                not programmed";
    let events = upsert(&mut services, with_load_balancer_ip(balanced, "203.0.113.9"));
    assert_eq!(texts(&events), [text]);
    assert_eq!(owner(&services, frontend), "ns/b");
    let changes = services.take_changes();
    assert!(changes.frontends.contains(&frontend));
    assert_eq!(changes.ports.len(), 2, "the earlier and the new owner");

    let text = "Service ns/b: external IP 203.0.113.9:80/TCP is already used by ns/a, which is older; not programmed";
    assert_eq!(texts(&upsert(&mut services, young)), [text]);
    assert_eq!(owner(&services, frontend), "ns/a");
    let changes = services.take_changes();
    assert!(changes.frontends.contains(&frontend));
    assert_eq!(changes.ports.len(), 2, "the earlier and the new owner");
}

#[test]
fn a_service_that_has_an_address_as_two_kinds_has_the_precedence_of_the_first_of_them() {
    let old = with_load_balancer_ip(service("old", 1, "10.96.0.1", Port::new("", 80)), "203.0.113.9");
    let new = with_external_ip(service("new", 2, "10.96.0.2", Port::new("", 80)), "203.0.113.9");
    let mut services = node();
    upsert(&mut services, old.clone());
    upsert(&mut services, new.clone());
    assert_eq!(owner(&services, key("203.0.113.9", 80)), "ns/old");
    // Of the older Service the address is an external IP too; that takes nothing from it.
    upsert(&mut services, with_external_ip(old, "203.0.113.9"));
    assert_eq!(owner(&services, key("203.0.113.9", 80)), "ns/old");
    // The newer Service has it as a load-balancer IP too: both have the same kind, so age decides.
    let text = "Service ns/new: load-balancer IP 203.0.113.9:80/TCP is already used by ns/old, which is older; not programmed";
    let events = upsert(&mut services, with_load_balancer_ip(new, "203.0.113.9"));
    assert_eq!(texts(&events), [text]);
}

#[test]
fn the_third_service_with_an_external_ip_is_reported_as_the_second_one_was() {
    let mut services = node();
    let mut events = Vec::new();
    for (number, name) in ["a", "b", "c"].into_iter().enumerate() {
        let service = service(name, 1, &format!("10.96.0.{number}"), Port::new("", 80));
        events.extend(upsert(&mut services, with_external_ip(service, "203.0.113.9")));
    }
    let text = |name| {
        format!(
            "Service ns/{name}: external IP 203.0.113.9:80/TCP is already used by ns/a, which is as old and has the lower name; \
             not programmed"
        )
    };
    assert_eq!(texts(&events), [text("b"), text("c")]);
}

#[test]
fn services_with_one_health_check_node_port_are_reported_with_its_present_owner() {
    let checked = |name, created, ip| {
        let mut service = service(name, created, ip, Port::new("a", 80)).with_port(Port::new("b", 81));
        service.service_type = ServiceType::LoadBalancer;
        service.external_traffic_policy = TrafficPolicy::Local;
        service.health_check_node_port = 32_001;
        service
    };
    let mut services = node();
    let text = |name, owner| {
        format!(
            "Service ns/{name}: health-check node port 32001 is already used by ns/{owner}, which is older; \
             not served for this Service"
        )
    };
    assert_eq!(upsert(&mut services, checked("b", 2, "10.96.0.2")), []);
    let events = upsert(&mut services, checked("c", 3, "10.96.0.3"));
    assert_eq!(texts(&events), [text("c", "b")]);
    let events = upsert(&mut services, checked("a", 1, "10.96.0.1"));
    assert_eq!(texts(&events), [text("b", "a"), text("c", "a")]);
    let events = delete(&mut services, "a");
    assert_eq!(texts(&events), [text("c", "b")]);
    let check = services.health_check(Family::Ipv4, 32_001).unwrap();
    assert_eq!(check.service, ObjectName::new("ns", "b"));
}

/// Few names, addresses and ports, so that Services conflict.
fn random_service() -> impl Strategy<Value = Service> {
    let identity = (
        0..5u8,
        0..3u64,
        select(&["10.96.0.1", "10.96.0.2", "192.0.2.1"][..]),
    );
    let addresses = vec!["203.0.113.1", "192.0.2.1", "10.96.0.1", "10.96.0.2"];
    let port = (
        select(&["a", "b"][..]),
        select(&[80u16, 30_001][..]),
        select(&[0u16, 30_001][..]),
    );
    (
        identity,
        0..3u8,
        subsequence(addresses.clone(), 0..3),
        subsequence(addresses, 0..2),
        vec(port, 1..3),
        (any::<bool>(), select(&[0u16, 32_000, 32_001][..])),
    )
        .prop_map(
            |((name, created, cluster_ip), kind, external, balanced, ports, (is_local, check))| {
                let name = ObjectName::new("ns", format!("s{name}"));
                let mut service = Service::new(name).with_cluster_ip(cluster_ip);
                service.created = created.checked_sub(1).map(at);
                service.service_type = [
                    ServiceType::ClusterIp,
                    ServiceType::NodePort,
                    ServiceType::LoadBalancer,
                ][usize::from(kind)];
                for (name, number, node_port) in ports {
                    let port = Port::new(name, number);
                    let has_node_port = service.service_type != ServiceType::ClusterIp;
                    service = service.with_port(if has_node_port {
                        port.with_node_port(node_port)
                    } else {
                        port
                    });
                }
                service.external_ips = external.into_iter().map(str::to_owned).collect();
                for address in balanced {
                    service.ingress.push(Ingress {
                        ip: address.to_owned(),
                        ..Ingress::default()
                    });
                }
                if is_local {
                    service.external_traffic_policy = TrafficPolicy::Local;
                }
                service.health_check_node_port = check;
                service
            },
        )
}

/// One change.
#[derive(Clone, Debug)]
#[allow(clippy::large_enum_variant, reason = "a test has few")]
enum Step {
    Upsert(Service),
    Delete(u8),
    Addresses(&'static str),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => random_service().prop_map(Step::Upsert),
        2 => (0..5u8).prop_map(Step::Delete),
        1 => select(&["192.0.2.1", "", "192.0.2.1 203.0.113.1"][..]).prop_map(Step::Addresses),
    ]
}

fn apply(services: &mut Services, step: &Step) {
    let change = match step {
        Step::Upsert(service) => ObjectChange::Upsert(service.clone()),
        Step::Delete(number) => ObjectChange::Delete(ObjectName::new("ns", format!("s{number}"))),
        Step::Addresses(addresses) => {
            let address = |text: &str| InterfaceAddress::new("eth0", text.parse().unwrap());
            services.set_interface_addresses(addresses.split_whitespace().map(address).collect());
            return;
        }
    };
    services.change(SourceId(0), Change::Services(change));
}

/// Everything that arbitration decides.
#[derive(Debug, PartialEq)]
struct Decided {
    owners: BTreeMap<FrontendKey, (ServicePortKey, Vec<String>)>,
    owned: BTreeMap<ServicePortKey, Vec<String>>,
    health_checks: Vec<(Family, HealthCheck)>,
    events: BTreeSet<Event>,
}

fn decided(services: &Services) -> Decided {
    let text = |frontend| format!("{frontend:?}");
    let owners = services.frontends().map(|frontend| {
        let frontends = frontend.frontends().map(text).collect();
        (frontend.key, (frontend.owner.key.clone(), frontends))
    });
    let owned = services.ports().map(|(id, port)| {
        let owned = services.owned_frontends(id).map(text).collect();
        (port.key.clone(), owned)
    });
    let checks = Family::ALL.into_iter().flat_map(|family| {
        let checks = services.health_checks(family).into_iter().cloned();
        checks.map(move |check| (family, check)).collect::<Vec<_>>()
    });
    Decided {
        owners: owners.collect(),
        owned: owned.collect(),
        health_checks: checks.collect(),
        events: services.events().into_iter().collect(),
    }
}

/// The owner of each key by the documented order, from all service ports.
fn owners_by_definition(services: &Services) -> BTreeMap<FrontendKey, ServicePortKey> {
    let place = |kind: FrontendKind| match kind {
        FrontendKind::ClusterIp => 0,
        FrontendKind::NodePort => 1,
        FrontendKind::LoadBalancer => 2,
        FrontendKind::ExternalIp => 3,
    };
    let age = |port: &ServicePort| port.created.unwrap_or(at(u64::from(u32::MAX)));
    let mut best = BTreeMap::new();
    for (_, port) in services.ports() {
        for frontend in &port.frontends {
            let rank = (place(frontend.kind), age(port), port.key.clone());
            let best = best
                .entry(FrontendKey::of(frontend))
                .or_insert_with(|| rank.clone());
            if rank < *best {
                *best = rank;
            }
        }
    }
    best.into_iter()
        .map(|(key, (_, _, owner))| (key, owner))
        .collect()
}

fn conflicts(events: &BTreeSet<Event>) -> BTreeSet<Event> {
    let is_conflict = |event: &&Event| {
        matches!(
            event.reason,
            Reason::Conflict { .. } | Reason::HealthCheckConflict { .. }
        )
    };
    events.iter().filter(is_conflict).cloned().collect()
}

/// The owner of a key, and what it is.
type Owned = Option<(ServicePortId, ServicePortKey, Vec<String>)>;

fn owned(services: &Services, key: &FrontendKey) -> Owned {
    let frontend = services.frontend(key)?;
    let frontends = frontend.frontends().map(|frontend| format!("{frontend:?}"));
    Some((frontend.id, frontend.owner.key.clone(), frontends.collect()))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn owners_after_any_changes_are_those_of_services_that_are_added_at_once(
        updates in vec(vec(step(), 1..4), 1..12),
    ) {
        let mut services = node();
        let mut all = Vec::new();
        for steps in updates {
            let before = decided(&services);
            let owners: BTreeMap<FrontendKey, Owned> =
                before.owners.keys().map(|key| (*key, owned(&services, key))).collect();
            for step in &steps {
                apply(&mut services, step);
            }
            all.extend(steps);
            let reported: BTreeSet<Event> = services.update().events.into_iter().collect();
            let changes = services.take_changes();
            let now = decided(&services);

            let mut rebuilt = node();
            for step in &all {
                apply(&mut rebuilt, step);
            }
            rebuilt.update();
            prop_assert_eq!(&now, &decided(&rebuilt));

            let by_definition = owners_by_definition(&services);
            let owner = |(key, (owner, _)): (&FrontendKey, &(ServicePortKey, Vec<String>))| (*key, owner.clone());
            prop_assert_eq!(now.owners.iter().map(owner).collect::<BTreeMap<_, _>>(), by_definition);

            // What changed is named, and so is who lost it and who has it now.
            for key in before.owners.keys().chain(now.owners.keys()) {
                let was = owners.get(key).cloned().flatten();
                let is = owned(&services, key);
                if was == is {
                    continue;
                }
                prop_assert!(changes.frontends.contains(key), "{} changed", key);
                for (id, ..) in [&was, &is].into_iter().flatten() {
                    prop_assert!(changes.ports.contains(id), "{:?} of {}", id, key);
                }
            }
            for check in before.health_checks.iter().chain(&now.health_checks) {
                if before.health_checks.contains(check) != now.health_checks.contains(check) {
                    prop_assert!(changes.health_checks.contains(&(check.0, check.1.port.get())));
                }
            }

            // Every new conflict is reported, and nothing that is none.
            let (old, new) = (conflicts(&before.events), conflicts(&now.events));
            let reported = conflicts(&reported);
            prop_assert!(new.difference(&old).all(|event| reported.contains(event)), "{:?}", reported);
            prop_assert!(reported.is_subset(&new), "{:?}", reported);
        }
    }
}

#[test]
fn the_order_of_kinds_is_cluster_ip_node_port_load_balancer_ip_external_ip() {
    let mut kinds = [
        FrontendKind::ExternalIp,
        FrontendKind::LoadBalancer,
        FrontendKind::NodePort,
        FrontendKind::ClusterIp,
    ];
    kinds.sort_by_key(|kind| kind.precedence());
    let names: Vec<String> = kinds.iter().map(ToString::to_string).collect();
    assert_eq!(
        names,
        ["cluster IP", "node port", "load-balancer IP", "external IP"]
    );
}
