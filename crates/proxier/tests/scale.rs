//! The cost of a change depends on the objects that it concerns, not on the size of the cluster: counted for whole syncs on the fake kernel.
#![cfg(feature = "fake")]
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test reports errors by panicking"
)]

#[path = "support/counted.rs"]
mod counted;

use std::net::IpAddr;
use std::time::{Duration, Instant};

use kernlink_dummylink::{LinkAddress, LinkName};
use kernlink_ipvs::{Operation as IpvsOperation, RealServer};
use kernlink_proxier::ipvs_mode::{Config, Kernel, Proxier, Synced};
use kernlink_proxier::{Outcome, Subject};
use kernlink_services::{
    Change, Endpoint, EndpointPort, EndpointSlice, Family, Ingress, Kind, Node, ObjectChange, ObjectName,
    Port, Service, ServiceType, SourceId, TrafficPolicy,
};

use crate::counted::Counter;

const SOURCE: SourceId = SourceId(0);

fn kernel(addresses: &[&str]) -> Kernel {
    let mut kernel = Kernel::fake();
    let eth0 = LinkName::new("eth0").unwrap();
    let addresses: Vec<LinkAddress> = addresses
        .iter()
        .map(|address| LinkAddress::host(address.parse().unwrap()).unwrap())
        .collect();
    kernel.links = Box::new(kernlink_dummylink::Fake::new().with_link(eth0, None, &addresses));
    kernel
}

fn config() -> Config {
    let mut config = Config::new("node-a");
    config.conntrack.max_per_core = 0;
    config
}

/// A proxier with Services of every type; those with numbers below 4 are changed.
fn filled(kernel: Kernel, size: u32) -> Proxier {
    let mut proxier = Proxier::new(&config(), kernel).unwrap();
    let services = (0..size).map(service).collect();
    let slices = (0..size).map(|number| slice(number, 10)).collect();
    for change in [
        Change::Services(ObjectChange::ReplaceAll(services)),
        Change::Services(ObjectChange::Synced),
        Change::EndpointSlices(ObjectChange::ReplaceAll(slices)),
        Change::EndpointSlices(ObjectChange::Synced),
        Change::Nodes(ObjectChange::Synced),
    ] {
        proxier.change(SOURCE, change);
    }
    proxier
}

fn service(number: u32) -> Service {
    let [_, _, high, low] = number.to_be_bytes();
    let mut service = Service::new(ObjectName::new("ns", format!("s{number}")))
        .with_cluster_ip(format!("10.96.{high}.{low}"))
        .with_port(Port::new("http", 80));
    match number % 4 {
        1 => service.external_ips = vec![format!("203.0.{high}.{low}")],
        2 if number < 400 => {
            service.service_type = ServiceType::NodePort;
            service.ports[0].node_port = 30_000 + number as u16;
        }
        3 => {
            service.service_type = ServiceType::LoadBalancer;
            service.external_traffic_policy = TrafficPolicy::Local;
            service.load_balancer_source_ranges = vec!["198.18.0.0/15".to_owned()];
            service.ingress = vec![Ingress {
                ip: format!("198.51.{high}.{low}"),
                ..Ingress::default()
            }];
        }
        _ => {}
    }
    service
}

fn slice(number: u32, endpoints: u8) -> EndpointSlice {
    let [_, _, high, low] = number.to_be_bytes();
    let slice = EndpointSlice::new(
        ObjectName::new("ns", format!("s{number}-x")),
        format!("s{number}"),
        Family::Ipv4,
    )
    .with_port(EndpointPort::new("http", 8_080));
    (0..endpoints).fold(slice, |slice, endpoint| {
        let node = if endpoint == 9 { "node-a" } else { "node-b" };
        slice.with_endpoint(Endpoint::new([11, high, low, endpoint].into()).with_node(node))
    })
}

fn upsert(service: Service) -> Change {
    Change::Services(ObjectChange::Upsert(service))
}

/// The work of one sync.
#[derive(Clone, Copy, Debug, PartialEq)]
struct SyncCost {
    listings: usize,
    rereads: usize,
    resolved: usize,
    map_entries: usize,
    table_entries: usize,
    steps: usize,
}

/// The work of a sync after a change. Those of one test are at one time: later, removed endpoints would be read again.
fn sync_cost(proxier: &mut Proxier, now: Instant, change: impl FnOnce(&mut Proxier)) -> SyncCost {
    let (before, work) = (proxier.cost(), proxier.state().work());
    change(proxier);
    let synced = proxier.sync(now).unwrap();
    assert!(synced.is_success(), "{synced}");
    let after = proxier.cost();
    SyncCost {
        listings: after.listings - before.listings,
        rereads: after.rereads - before.rereads,
        resolved: after.resolved - before.resolved,
        map_entries: after.map_entries - before.map_entries,
        table_entries: proxier.state().work() - work,
        steps: synced.plan.len(),
    }
}

#[test]
fn the_cost_of_a_change_is_the_same_at_every_size() {
    let of_size = |size: u32| -> Vec<(&'static str, SyncCost)> {
        let mut proxier = filled(kernel(&["192.0.2.1", "192.0.2.2"]), size);
        let now = Instant::now();
        proxier.sync(now).unwrap();
        let mut costs = Vec::new();
        let mut cost = |what, change: Change| {
            let cost = sync_cost(&mut proxier, now, |proxier| {
                proxier.change(SOURCE, change);
            });
            costs.push((what, cost));
        };
        let slices = |slice| Change::EndpointSlices(ObjectChange::Upsert(slice));
        cost("a local endpoint removed", slices(slice(0, 9)));
        cost("a remote endpoint removed", slices(slice(0, 8)));
        cost("both added again", slices(slice(0, 10)));
        cost("no change", slices(slice(0, 10)));
        for number in 0..4 {
            let name = ObjectName::new("ns", format!("s{number}"));
            cost("a Service removed", Change::Services(ObjectChange::Delete(name)));
            cost("a Service added", upsert(service(number)));
        }
        let mut other = service(0);
        other.service_type = ServiceType::NodePort;
        other.ports[0].node_port = 31_999;
        cost("another type", upsert(other));
        cost("the earlier type", upsert(service(0)));
        let mut other = service(3);
        other.load_balancer_source_ranges = vec!["198.18.0.0/15".to_owned(), "192.0.2.0/24".to_owned()];
        cost("another source range", upsert(other));
        let mut other = service(1);
        let annotation = "kernlink.io/scheduler".to_owned();
        other.annotations.insert(annotation, "wrr".to_owned());
        cost("another annotation", upsert(other));
        let node = Node::new("node-c").with_internal_address([192, 0, 2, 77].into());
        cost("another node", Change::Nodes(ObjectChange::Upsert(node)));
        let node = Node::new("node-d").with_internal_address([203, 0, 0, 1].into());
        cost(
            "a node with a virtual IP",
            Change::Nodes(ObjectChange::Upsert(node)),
        );
        costs
    };
    // The number of node ports is the same at every size, and no set becomes empty.
    let small = of_size(400);
    for (what, cost) in &small {
        assert_eq!((cost.listings, cost.rereads), (0, 0), "{what}");
        assert!(
            cost.map_entries <= 8 && cost.table_entries <= 60,
            "{what}: {cost:?}"
        );
    }
    let steps: Vec<usize> = small.iter().map(|(_, cost)| cost.steps).collect();
    // The real server and its hairpin entry; the remote real server; all three; nothing.
    assert_eq!(&steps[..4], [2, 1, 3, 0]);
    for size in [1_000, 5_000] {
        for (first, other) in small.iter().zip(of_size(size)) {
            assert_eq!(*first, other, "at {size} Services");
        }
    }
}

#[test]
fn the_change_of_an_endpoint_is_at_most_two_messages_and_starts_no_process() {
    let counter = Counter::default();
    let mut proxier = filled(counter.count(kernel(&["192.0.2.1"])), 1_000);
    // Later, removed endpoints would be read again.
    let now = Instant::now();
    proxier.sync(now).unwrap();
    assert!(counter.take().processes > 0);
    // The Services 0 and 4 have only a cluster IP, and an endpoint on this node, the last one.
    for (number, endpoints) in [(0, 9), (4, 9), (4, 8), (4, 9), (0, 10), (4, 10)] {
        let change = ObjectChange::Upsert(slice(number, endpoints));
        proxier.change(SOURCE, Change::EndpointSlices(change));
        let synced = proxier.sync(now).unwrap();
        assert!(synced.is_success() && !synced.plan.is_empty(), "{synced}");
        let calls = counter.take();
        assert!(calls.operations <= 2, "{calls:?}\n{}", synced.plan);
        assert_eq!((calls.processes, calls.readings), (0, 0), "{}", synced.plan);
    }
}

#[test]
fn a_new_node_address_affects_only_node_ports_and_its_external_ip() {
    let mut costs = Vec::new();
    for size in [400, 4_000] {
        let mut proxier = filled(kernel(&["192.0.2.1"]), size);
        let now = Instant::now();
        proxier.sync(now).unwrap();
        let add = |address: &'static str| {
            move |proxier: &mut Proxier| {
                let eth0 = LinkName::new("other").unwrap();
                let links = &mut proxier.kernel_mut().links;
                links
                    .ensure_link(&kernlink_dummylink::DummyLink::new(eth0))
                    .unwrap();
                let address: IpAddr = address.parse().unwrap();
                links.add(&eth0, &LinkAddress::host(address).unwrap()).unwrap();
                proxier.resync();
            }
        };
        // 100 node ports are served at it, each by a virtual server with ten real servers and an entry in the ledger.
        let node_ports = sync_cost(&mut proxier, now, add("192.0.2.3"));
        assert_eq!((node_ports.resolved, node_ports.steps), (100, 1_200));
        // An external IP that another link has is no longer bound, and node ports are served at it.
        let external = sync_cost(&mut proxier, now, add("203.0.0.1"));
        assert_eq!((external.resolved, external.steps), (101, 1_202));
        costs.push((node_ports.map_entries, external.map_entries));
    }
    assert_eq!(costs[0], costs[1]);
}

#[test]
fn an_idle_sync_costs_nothing() {
    let mut proxier = filled(kernel(&["192.0.2.1"]), 1_000);
    let now = Instant::now();
    proxier.sync(now).unwrap();
    let idle = sync_cost(&mut proxier, now, |_| ());
    assert_eq!(
        idle,
        SyncCost {
            listings: 0,
            rereads: 0,
            resolved: 0,
            map_entries: 0,
            table_entries: 0,
            steps: 0
        }
    );
}

/// A kernel that refuses these real servers.
fn refusing(real_servers: &[[u8; 4]]) -> Kernel {
    let mut kernel = kernel(&["192.0.2.1"]);
    let mut ipvs = kernlink_ipvs::Fake::new();
    for address in real_servers {
        let [_, high, low, _] = *address;
        let real_server = RealServer::new(std::net::SocketAddr::new((*address).into(), 8_080));
        let virtual_server = kernlink_ipvs::VirtualServerKey::tcp(IpAddr::from([10, 96, high, low]), 80);
        let operation = IpvsOperation::AddRealServer {
            virtual_server,
            real_server,
        };
        ipvs.refuse(operation, kernlink_netlink::Errno::ENOMEM);
    }
    kernel.ipvs = Box::new(ipvs);
    kernel
}

fn failed_services(synced: &Synced) -> Vec<String> {
    let subjects = synced.report.by_subject(&synced.plan);
    let failed = subjects.into_iter().filter(|(_, counts)| counts.failed > 0);
    failed.map(|(subject, _)| subject.to_string()).collect()
}

#[test]
fn a_refused_real_server_among_ten_thousand_services_affects_no_other_object() {
    let mut proxier = filled(refusing(&[[11, 0, 0, 4]]), 10_000);
    let start = Instant::now();
    let synced = proxier.sync(start).unwrap();
    assert_eq!(synced.counts().failed, 1, "{synced}");
    assert_eq!(failed_services(&synced), ["Service ns/s0"]);
    assert!(
        synced
            .to_string()
            .contains("-a -t 10.96.0.0:80 -r 11.0.0.4:8080 -m -w 1 (Service ns/s0)"),
        "{synced}"
    );
    let due = synced.next.unwrap();
    let cost = proxier.cost();
    // Nothing is read or tried before the retry is due, also if another endpoint of the Service changes.
    for at in [start, due - Duration::from_millis(1)] {
        let idle = proxier.sync(at).unwrap();
        assert!(idle.plan.is_empty() && !idle.is_success(), "{idle}");
        assert_eq!((idle.next, idle.waiting), (Some(due), 1));
        assert_eq!(proxier.cost(), cost);
    }
    let change = Change::EndpointSlices(ObjectChange::Upsert(slice(0, 9)));
    proxier.change(SOURCE, change);
    let synced = proxier.sync(start).unwrap();
    assert_eq!((synced.counts().done, synced.counts().failed), (2, 0), "{synced}");
    assert_eq!(synced.next, Some(due), "the removed endpoint is read later");
    // When the retry is due, only its virtual server is read, and only the real server is tried. The removed endpoint has no connections
    // then and is deleted.
    let synced = proxier.sync(due).unwrap();
    assert_eq!((synced.counts().done, synced.counts().failed), (1, 1), "{synced}");
    assert!(
        synced
            .plan
            .to_string()
            .contains("-d -t 10.96.0.0:80 -r 11.0.0.9:8080")
    );
    assert_eq!(proxier.cost().rereads, 1);
    assert_eq!(proxier.cost().listings, 1);
    assert!(synced.next.unwrap() > due);
    // It is not retried after its endpoint was removed.
    let change = Change::EndpointSlices(ObjectChange::Upsert(slice(0, 4)));
    proxier.change(SOURCE, change);
    let synced = proxier.sync(due).unwrap();
    assert!(synced.report.is_success(), "{synced}");
    let synced = proxier.sync(due + Duration::from_secs(600)).unwrap();
    assert!(synced.is_success() && synced.next.is_none(), "{synced}");
    assert!(!synced.plan.to_string().contains("ipvsadm -a"), "{}", synced.plan);
}

#[test]
fn steps_for_objects_that_another_service_took_over_name_that_service() {
    let mut proxier = filled(kernel(&["192.0.2.1"]), 1);
    proxier.sync(Instant::now()).unwrap();
    let mut other = service(0);
    other.name = ObjectName::new("ns", "other");
    let name = ObjectName::new("ns", "s0");
    proxier.change(SOURCE, Change::Services(ObjectChange::Delete(name)));
    proxier.change(SOURCE, upsert(other.clone()));
    proxier.sync(Instant::now()).unwrap();
    proxier.change(SOURCE, Change::Services(ObjectChange::Delete(other.name)));
    let plan = proxier.plan(Instant::now()).unwrap();
    let subjects: Vec<String> = plan.steps().map(|(_, step)| step.subject.to_string()).collect();
    // The address, the virtual server, its entry in the ledger, and the entries of both in other sets.
    assert_eq!(
        subjects
            .iter()
            .filter(|subject| *subject == "Service ns/other")
            .count(),
        5,
        "{plan}{subjects:?}"
    );
    assert!(!subjects.contains(&"Service ns/s0".to_owned()), "{plan}");
}

#[test]
fn ten_refused_real_servers_are_retried_at_ten_different_times() {
    let addresses: Vec<[u8; 4]> = (0..10).map(|number| [11, 0, number, 4]).collect();
    let mut proxier = filled(refusing(&addresses), 40);
    let mut at = Instant::now();
    let synced = proxier.sync(at).unwrap();
    assert_eq!(synced.counts().failed, 10, "{synced}");
    let mut together = 0;
    for _ in 0..30 {
        at = proxier.sync(at).unwrap().next.unwrap();
        let synced = proxier.sync(at).unwrap();
        let mut outcomes = synced.report.outcomes();
        assert!(
            outcomes.all(|outcome| matches!(outcome, Outcome::Failed(_))),
            "{synced}"
        );
        let mut steps = synced.plan.steps();
        assert!(steps.all(|(_, step)| matches!(step.subject, Subject::Service(_))));
        together += synced.plan.len() - 1;
    }
    // Two may have the same nanosecond.
    assert!(together <= 1, "{together}");
}

#[test]
fn the_kernel_is_not_read_before_every_source_has_synced() {
    let mut proxier = Proxier::new(&config(), kernel(&["192.0.2.1"])).unwrap();
    proxier.register_source(SOURCE, Kind::Service);
    let error = proxier.sync(Instant::now()).unwrap_err();
    assert_eq!(
        error.to_string(),
        "not all sources have synced: waiting for the first full list of Service from source 0; no source delivers EndpointSlice"
    );
    assert_eq!(proxier.cost().listings, 0);
}
