//! What an update changes: the numbers of its report, the changes that a data path receives, and the ids of service ports.
#![allow(clippy::unwrap_used, reason = "a failed test reports the reason by panicking")]

use std::time::{Duration, SystemTime};

use kernlink_services::{
    Change, Changes, Config, Endpoint, EndpointPort, EndpointSlice, Family, FrontendKey, Ingress,
    InterfaceAddress, ObjectChange, ObjectName, Port, Protocol, Service, ServicePortKey, ServiceType,
    Services, SessionAffinity, SourceId, TrafficPolicy,
};

const SHARED: &str = "203.0.113.9";

/// A Service with a cluster IP of its own; a higher number is younger.
fn service(name: &str, number: u8) -> Service {
    let mut service = Service::new(ObjectName::new("ns", name))
        .with_cluster_ip(format!("10.96.0.{number}"))
        .with_port(Port::new("http", 80));
    service.created = Some(SystemTime::UNIX_EPOCH + Duration::from_secs(number.into()));
    service
}

/// The same with an external IP that several have.
fn sharing(name: &str, number: u8) -> Service {
    let mut service = service(name, number);
    service.external_ips = vec![SHARED.to_owned()];
    service
}

/// A load balancer with this health-check node port, and one endpoint on this node.
fn checked(name: &str, number: u8, port: u16) -> Service {
    let mut service = service(name, number);
    service.service_type = ServiceType::LoadBalancer;
    service.external_traffic_policy = TrafficPolicy::Local;
    service.health_check_node_port = port;
    service
}

fn slice(service: &str, endpoints: &[u8]) -> Change {
    let slice = EndpointSlice::new(ObjectName::new("ns", service), service, Family::Ipv4)
        .with_port(EndpointPort::new("http", 8080));
    let slice = endpoints.iter().fold(slice, |slice, last| {
        slice.with_endpoint(Endpoint::new([10, 244, 0, *last].into()).with_node("node-a"))
    });
    Change::EndpointSlices(ObjectChange::Upsert(slice))
}

fn upsert(service: Service) -> Change {
    Change::Services(ObjectChange::Upsert(service))
}

/// The same with a label, which changes nothing of its service ports.
fn labelled(mut service: Service) -> Change {
    service.labels.insert("a".into(), "b".into());
    upsert(service)
}

fn delete(name: &str) -> Change {
    Change::Services(ObjectChange::Delete(ObjectName::new("ns", name)))
}

fn key(address: &str) -> FrontendKey {
    FrontendKey {
        address: address.parse().unwrap(),
        protocol: Protocol::Tcp,
        port: 80,
    }
}

struct Cluster(Services);

impl Cluster {
    fn new() -> Self {
        let mut services = Services::new(Config::new("node-a"));
        services.update();
        services.take_changes();
        Self(services)
    }

    /// Applies changes in one update. Returns how many service ports were resolved, how many entries changed, and the changes.
    fn change(&mut self, changes: impl IntoIterator<Item = Change>) -> (usize, usize, Changes) {
        for change in changes {
            self.0.change(SourceId(0), change);
        }
        let report = self.0.update();
        (report.resolved, report.map_entries, self.0.take_changes())
    }

    /// The ids of the ports of a Service, as numbers.
    fn ids(&self, name: &str) -> Vec<usize> {
        let name = ObjectName::new("ns", name);
        self.0.ports_of(&name).map(|(id, _)| id.index()).collect()
    }
}

/// The addresses of the frontends that changed, sorted.
fn frontends(changes: &Changes) -> Vec<String> {
    let mut addresses: Vec<String> = changes
        .frontends
        .iter()
        .map(|key| key.address.to_string())
        .collect();
    addresses.sort();
    addresses
}

#[test]
fn an_update_changes_the_entries_of_what_changed_only() {
    let mut cluster = Cluster::new();
    let two = service("a", 1).with_port(Port::new("more", 81));
    let (resolved, entries, changes) = cluster.change([upsert(two.clone()), upsert(sharing("b", 2))]);
    assert_eq!((resolved, entries), (3, 4));
    assert_eq!(
        frontends(&changes),
        ["10.96.0.1", "10.96.0.1", "10.96.0.2", SHARED]
    );
    assert_eq!((changes.ports.len(), changes.services.len()), (3, 2));
    let ids = cluster.ids("a");

    // Nothing of its ports changed.
    let (resolved, entries, changes) = cluster.change([labelled(two.clone())]);
    assert_eq!((resolved, entries, changes.ports.len()), (2, 0, 0));
    assert_eq!(cluster.ids("a"), ids);

    // Its age is that of an order in which it is alone.
    let mut older = two;
    older.created = Some(SystemTime::UNIX_EPOCH);
    let (_, entries, changes) = cluster.change([upsert(older.clone())]);
    assert_eq!((entries, frontends(&changes)), (2, Vec::new()));
    assert_eq!(cluster.ids("a"), ids);

    // A port and a frontend are removed, and a Service is added.
    older.ports.truncate(1);
    let (resolved, entries, changes) =
        cluster.change([upsert(older), upsert(service("b", 2)), upsert(service("c", 3))]);
    assert_eq!((resolved, entries), (3, 3));
    assert_eq!(frontends(&changes), ["10.96.0.1", "10.96.0.3", SHARED]);
    assert_eq!(cluster.ids("a"), [ids[0]]);

    let (resolved, entries, changes) = cluster.change([delete("a"), delete("c")]);
    assert_eq!((resolved, entries), (0, 2));
    assert_eq!(frontends(&changes), ["10.96.0.1", "10.96.0.3"]);
}

#[test]
fn a_frontend_changes_with_its_endpoints_or_its_options() {
    let mut cluster = Cluster::new();
    cluster.change([upsert(service("a", 1)), slice("a", &[1])]);
    let (_, entries, changes) = cluster.change([slice("a", &[1, 2])]);
    assert_eq!((entries, frontends(&changes)), (1, vec!["10.96.0.1".to_owned()]));
    let mut with_affinity = service("a", 1);
    with_affinity.session_affinity = SessionAffinity::ClientIp(Duration::from_secs(60));
    let (_, entries, changes) = cluster.change([upsert(with_affinity.clone())]);
    assert_eq!((entries, frontends(&changes)), (1, vec!["10.96.0.1".to_owned()]));
    let scheduler = ("kernlink.io/scheduler".to_owned(), "wrr".to_owned());
    with_affinity.annotations.extend([scheduler]);
    let (_, entries, changes) = cluster.change([upsert(with_affinity)]);
    assert_eq!((entries, frontends(&changes)), (1, vec!["10.96.0.1".to_owned()]));
}

#[test]
fn a_frontend_of_another_owner_does_not_change_with_the_endpoints_of_a_service_that_lost_it() {
    let mut cluster = Cluster::new();
    cluster.change([upsert(sharing("a", 1)), upsert(sharing("b", 2))]);
    let (_, entries, changes) = cluster.change([slice("b", &[1])]);
    assert_eq!((entries, frontends(&changes)), (1, vec!["10.96.0.2".to_owned()]));
    assert_eq!(cluster.0.number_of_conflicts(), 1);
    cluster.change([delete("a")]);
    assert_eq!(cluster.0.number_of_conflicts(), 0);
    let (_, _, changes) = cluster.change([slice("b", &[2])]);
    assert_eq!(frontends(&changes), ["10.96.0.2", SHARED]);
    // Of two conflicts.
    let mut more = sharing("c", 3);
    more.external_ips.push("203.0.113.10".to_owned());
    let mut same = more.clone();
    same.name = ObjectName::new("ns", "d");
    same.cluster_ip = "10.96.0.4".to_owned();
    cluster.change([upsert(more), upsert(same)]);
    assert_eq!(cluster.0.number_of_conflicts(), 2);
}

#[test]
fn a_service_that_gets_another_kind_of_frontend_changes_one_entry() {
    let mut cluster = Cluster::new();
    cluster.change([upsert(sharing("a", 1))]);
    let mut balanced = service("a", 1);
    balanced.service_type = ServiceType::LoadBalancer;
    balanced.ingress = vec![Ingress {
        ip: SHARED.to_owned(),
        ..Ingress::default()
    }];
    let (_, entries, changes) = cluster.change([upsert(balanced)]);
    // One place in the order, and one changed frontend.
    assert_eq!((entries, frontends(&changes)), (2, vec![SHARED.to_owned()]));
}

#[test]
fn a_health_check_node_port_changes_with_its_service_and_its_endpoints() {
    let mut cluster = Cluster::new();
    let checks =
        |changes: &Changes| -> Vec<u16> { changes.health_checks.iter().map(|(_, port)| *port).collect() };
    let (_, entries, changes) = cluster.change([upsert(checked("a", 2, 32_002)), slice("a", &[1])]);
    assert_eq!((entries, checks(&changes)), (2, vec![32_002]));
    let (_, entries, changes) = cluster.change([upsert(checked("b", 3, 32_001))]);
    assert_eq!((entries, checks(&changes)), (2, vec![32_001]));
    let (resolved, entries, changes) = cluster.change([labelled(checked("a", 2, 32_002))]);
    assert_eq!((resolved, entries, checks(&changes)), (1, 0, Vec::new()));
    let listed = |cluster: &Cluster| -> Vec<(u16, String, usize)> {
        let checks = cluster.0.health_checks(Family::Ipv4).into_iter();
        let checks = checks.map(|check| (check.port.get(), check.service.to_string(), check.local_endpoints));
        checks.collect()
    };
    let (a, b) = ("ns/a".to_owned(), "ns/b".to_owned());
    assert_eq!(listed(&cluster), [(32_001, b.clone(), 0), (32_002, a.clone(), 1)]);
    assert!(cluster.0.health_checks(Family::Ipv6).is_empty());

    // Its port, and the number of endpoints.
    let (_, entries, changes) = cluster.change([upsert(checked("b", 3, 32_003))]);
    assert_eq!((entries, checks(&changes)), (2, vec![32_001, 32_003]));
    let (_, entries, changes) = cluster.change([slice("a", &[1, 2])]);
    assert_eq!((entries, checks(&changes)), (3, vec![32_002]));

    // The younger of two Services with one port becomes the older one.
    cluster.change([upsert(checked("b", 3, 32_002))]);
    assert_eq!(listed(&cluster), [(32_002, a, 2)]);
    let mut older = checked("b", 3, 32_002);
    older.created = Some(SystemTime::UNIX_EPOCH);
    let (_, _, changes) = cluster.change([upsert(older)]);
    assert_eq!(checks(&changes), [32_002]);
    assert_eq!(listed(&cluster), [(32_002, b, 0)]);

    let (_, entries, changes) = cluster.change([delete("b")]);
    assert_eq!((entries, checks(&changes)), (2, vec![32_002]));
}

#[test]
fn a_service_port_is_found_by_its_id_and_by_its_name() {
    let mut cluster = Cluster::new();
    let two = service("a", 1).with_port(Port::new("more", 81));
    cluster.change([upsert(two), upsert(service("b", 2))]);
    for (id, port) in cluster.0.ports() {
        assert_eq!(cluster.0.port(id), Some(port));
        assert_eq!(cluster.0.port_by_key(&port.key), Some(port));
    }
    let name = ObjectName::new("ns", "b");
    let (id, port) = cluster.0.ports_of(&name).next().unwrap();
    let mut missing: ServicePortKey = port.key.clone();
    missing.family = Family::Ipv6;
    assert_eq!(cluster.0.port_by_key(&missing), None);
    cluster.change([delete("b")]);
    assert_eq!(cluster.0.port(id), None);
}

/// Data paths index by them.
#[test]
fn the_ids_of_removed_service_ports_are_assigned_again() {
    let mut cluster = Cluster::new();
    cluster.change([upsert(service("a", 1)), upsert(service("b", 2))]);
    for number in 3..20 {
        let name = format!("c{number}");
        cluster.change([upsert(service(&name, number))]);
        assert_eq!(cluster.ids(&name), [2]);
        cluster.change([delete(&name)]);
    }
}

#[test]
fn a_change_of_the_node_stays_a_change_until_it_is_taken() {
    let mut cluster = Cluster::new();
    let address = InterfaceAddress::new("eth0", "192.0.2.1".parse().unwrap());
    cluster.0.set_interface_addresses(vec![address]);
    cluster.0.update();
    cluster.0.change(SourceId(0), upsert(service("a", 1)));
    cluster.0.update();
    assert!(cluster.0.take_changes().node);
    let (_, _, changes) = cluster.change([upsert(service("b", 2))]);
    assert!(!changes.node);
}

#[test]
fn changes_are_empty_only_if_all_of_them_are() {
    assert!(Changes::default().is_empty());
    let mut cluster = Cluster::new();
    let (_, _, changes) = cluster.change([upsert(checked("a", 1, 32_001))]);
    let only = |set: fn(&mut Changes, &Changes)| {
        let mut one = Changes::default();
        set(&mut one, &changes);
        one
    };
    for one in [
        only(|one, all| one.ports.clone_from(&all.ports)),
        only(|one, all| one.services.clone_from(&all.services)),
        only(|one, all| one.frontends.clone_from(&all.frontends)),
        only(|one, all| one.health_checks.clone_from(&all.health_checks)),
        only(|one, _| one.node = true),
    ] {
        assert_ne!(one, Changes::default());
        assert!(!one.is_empty(), "{one:?}");
    }
}

/// With two frontends, and with more.
#[test]
fn an_address_that_a_service_has_with_two_traffic_policies_keeps_the_first_one() {
    for others in [&[][..], &["203.0.113.10", "203.0.113.11"]] {
        let mut cluster = Cluster::new();
        let mut twice = service("a", 1);
        twice.external_ips = ["10.96.0.1"]
            .iter()
            .chain(others)
            .map(|ip| (*ip).to_owned())
            .collect();
        twice.external_traffic_policy = TrafficPolicy::Local;
        cluster.change([upsert(twice)]);
        let texts: Vec<String> = cluster.0.events().iter().map(ToString::to_string).collect();
        assert!(
            texts
                .iter()
                .any(|text| text.contains("external IP 10.96.0.1:80/TCP")),
            "{texts:?}"
        );
        let frontend = cluster.0.frontend(&key("10.96.0.1")).unwrap();
        let policies: Vec<TrafficPolicy> = frontend.frontends().map(|frontend| frontend.policy).collect();
        assert_eq!(policies, [TrafficPolicy::Cluster]);
        assert_eq!(cluster.0.frontends().count(), 1 + others.len());
    }
}
