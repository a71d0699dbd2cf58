//! Stale UDP flows in iptables mode: exactly those are deleted, in one pass, after the writes that make them stale.
#![cfg(feature = "fake")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test reports errors by panicking"
)]

#[path = "support/iptables_node.rs"]
mod iptables_node;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use kernlink_conntrack::{Conntrack, Error, Filter, Flows, NewFlow, Operation as FlowOperation, Tuple, Zone};
use kernlink_proxier::iptables_mode::{IptablesMode, Kernel, Key, Operation, Phase, Proxier, Synced};
use kernlink_proxier::{DataPath, Outcome};
use kernlink_services::{
    Change, Endpoint, EndpointPort, EndpointSlice, Family, Kind, ObjectChange, ObjectName, Port, Protocol,
    Service, ServiceType,
};

use crate::iptables_node::{SOURCE, filled, kernel, proxier_on, sync};

fn dns() -> Service {
    let mut service = Service::new(ObjectName::new("ns", "dns"))
        .with_cluster_ip("10.96.1.10")
        .with_port(Port::new("dns", 53).with_protocol(Protocol::Udp));
    service.service_type = ServiceType::NodePort;
    service.ports[0].node_port = 30053;
    service
}

/// Sets the endpoints of the UDP Service, by last octet.
fn endpoints(proxier: &mut Proxier, endpoints: &[u8]) {
    let name = ObjectName::new("ns", "dns-1");
    let slice = EndpointSlice::new(name, "dns", Family::Ipv4)
        .with_port(EndpointPort::new("dns", 5353).with_protocol(Protocol::Udp));
    let slice = endpoints.iter().fold(slice, |slice, &last| {
        slice.with_endpoint(Endpoint::new([10, 244, 9, last].into()).with_node("node-b"))
    });
    proxier.change(SOURCE, Change::EndpointSlices(ObjectChange::Upsert(slice)));
}

/// A proxier of a UDP Service with these endpoints, and other Services.
fn proxier(kernel: Kernel, initial: &[u8]) -> Proxier {
    let mut proxier = proxier_on(kernel);
    proxier.change(SOURCE, Change::Services(ObjectChange::Upsert(dns())));
    endpoints(&mut proxier, initial);
    for kind in [Kind::Service, Kind::EndpointSlice, Kind::Node] {
        proxier.change(SOURCE, Change::synced(kind));
    }
    proxier
}

fn synced(initial: &[u8]) -> Proxier {
    let mut proxier = proxier(kernel(), initial);
    sync(&mut proxier);
    proxier
}

/// Adds a UDP flow of a client, by its port, from a destination translated to a reply source.
fn add(kernel: &mut Kernel, client: u16, destination: &str, reply_source: &str) {
    add_in_zone(kernel, client, destination, reply_source, 0);
}

fn add_in_zone(kernel: &mut Kernel, client: u16, destination: &str, reply_source: &str, zone: u16) {
    let (destination, reply_source): (SocketAddr, SocketAddr) =
        (destination.parse().unwrap(), reply_source.parse().unwrap());
    let client = SocketAddr::new([198, 51, 100, 7].into(), client);
    let flow = NewFlow::new(Tuple::udp(client, destination), Duration::from_secs(120))
        .with_reply(Tuple::udp(reply_source, client))
        .with_zone(Zone::new(zone));
    kernel.conntrack.add(&flow).unwrap();
}

/// The clients of the flows in the table.
fn clients(proxier: &mut Proxier) -> Vec<u16> {
    let listed = proxier.kernel_mut().conntrack.list(&Filter::new()).unwrap();
    let mut clients: Vec<u16> = listed
        .iter()
        .map(|flow| flow.original.source_socket().port())
        .collect();
    clients.sort_unstable();
    clients
}

/// The number of passes.
fn passes(synced: &Synced) -> usize {
    let mut phases = synced.plan.phases().iter();
    phases
        .find(|phase| phase.kind == Phase::DeleteFlows)
        .map_or(0, |phase| phase.steps.len())
}

#[test]
fn exactly_the_flows_to_a_removed_endpoint_are_deleted() {
    let mut proxier = synced(&[1, 2]);
    let kernel = proxier.kernel_mut();
    let (first, second) = ("10.244.9.1:5353", "10.244.9.2:5353");
    add(kernel, 1, "10.96.1.10:53", first);
    add(kernel, 2, "10.96.1.10:53", second);
    add(kernel, 3, "192.0.2.1:30053", first);
    add(kernel, 4, "192.0.2.1:30053", second);
    // Other addresses, other ports, another zone, and directly to the endpoint.
    add(kernel, 5, "203.0.113.9:53", "203.0.113.9:53");
    add(kernel, 6, "203.0.113.9:30053", first);
    add(kernel, 7, "10.96.1.10:54", first);
    add(kernel, 8, "192.0.2.1:30054", first);
    add_in_zone(kernel, 9, "10.96.1.10:53", first, 7);
    add(kernel, 10, first, first);
    endpoints(&mut proxier, &[2]);
    let synced = sync(&mut proxier);
    assert_eq!(passes(&synced), 1, "{}", synced.plan);
    assert_eq!(clients(&mut proxier), [2, 4, 5, 6, 7, 8, 9, 10]);
    // One more endpoint makes no flow stale.
    endpoints(&mut proxier, &[2, 3]);
    assert_eq!(passes(&sync(&mut proxier)), 0);
}

#[test]
fn flows_of_a_service_without_endpoints_and_of_a_deleted_one_are_deleted() {
    for is_deleted in [false, true] {
        let mut proxier = synced(&[1]);
        add(proxier.kernel_mut(), 1, "10.96.1.10:53", "10.244.9.1:5353");
        add(proxier.kernel_mut(), 2, "192.0.2.1:30053", "10.244.9.1:5353");
        if is_deleted {
            let name = ObjectName::new("ns", "dns");
            proxier.change(SOURCE, Change::Services(ObjectChange::Delete(name)));
        } else {
            endpoints(&mut proxier, &[]);
        }
        let synced = sync(&mut proxier);
        assert_eq!(passes(&synced), 1, "{}", synced.plan);
        assert_eq!(clients(&mut proxier), [0_u16; 0]);
    }
}

#[test]
fn a_service_that_never_had_endpoints_is_deleted_without_a_pass() {
    let mut proxier = synced(&[]);
    let name = ObjectName::new("ns", "dns");
    proxier.change(SOURCE, Change::Services(ObjectChange::Delete(name)));
    assert_eq!(passes(&sync(&mut proxier)), 0);
}

#[test]
fn flows_that_began_before_the_first_endpoint_are_deleted() {
    let mut proxier = synced(&[]);
    add(proxier.kernel_mut(), 1, "10.96.1.10:53", "10.96.1.10:53");
    add(proxier.kernel_mut(), 2, "192.0.2.1:30053", "192.0.2.1:30053");
    endpoints(&mut proxier, &[1]);
    let synced = sync(&mut proxier);
    assert_eq!(passes(&synced), 1, "{}", synced.plan);
    assert_eq!(clients(&mut proxier), [0_u16; 0]);
}

#[test]
fn a_new_process_deletes_what_became_stale_before_it_and_plans_nothing_otherwise() {
    let mut before = synced(&[1, 2]);
    add(before.kernel_mut(), 1, "10.96.1.10:53", "10.244.9.1:5353");
    // Intact.
    let mut next = proxier(before.into_kernel(), &[1, 2]);
    assert!(next.plan(Instant::now()).unwrap().is_empty());
    // Stale although the rules are as desired: the process before ended between the write and the pass.
    add(next.kernel_mut(), 2, "10.96.1.10:53", "10.244.9.7:5353");
    let mut next = proxier(next.into_kernel(), &[1, 2]);
    let synced = sync(&mut next);
    assert_eq!((synced.plan.len(), passes(&synced)), (1, 1), "{}", synced.plan);
    assert_eq!(clients(&mut next), [1]);
    // The Service was deleted while no process ran.
    add(next.kernel_mut(), 3, "192.0.2.1:30053", "10.244.9.1:5353");
    let mut last = proxier_on(next.into_kernel());
    for kind in [Kind::Service, Kind::EndpointSlice, Kind::Node] {
        last.change(SOURCE, Change::synced(kind));
    }
    let synced = sync(&mut last);
    assert_eq!(passes(&synced), 1, "{}", synced.plan);
    assert_eq!(clients(&mut last), [0_u16; 0]);
}

/// Fails to delete flows, or to list them.
struct Failing {
    inner: kernlink_conntrack::Fake,
    left: usize,
}

impl Conntrack for Failing {
    fn execute(&mut self, operations: &[FlowOperation]) -> Vec<Result<(), Error>> {
        self.inner.execute(operations)
    }

    fn flows<'a>(&'a mut self, filter: &Filter) -> Result<Flows<'a>, Error> {
        if self.left > 0 {
            self.left -= 1;
            return Err(Error::custom("list the flows", "refused by the test"));
        }
        self.inner.flows(filter)
    }
}

#[test]
fn a_pass_that_failed_is_repeated_with_the_same_destinations() {
    let mut proxier = synced(&[1]);
    proxier.kernel_mut().conntrack = Box::new(Failing {
        inner: kernlink_conntrack::Fake::new(),
        left: 1,
    });
    endpoints(&mut proxier, &[2]);
    let synced = proxier.sync(Instant::now()).unwrap();
    let outcomes = synced.plan.steps().zip(synced.report.outcomes());
    let failed: Vec<&Key> = outcomes
        .filter(|(_, outcome)| matches!(outcome, Outcome::Failed(_)))
        .map(|((_, step), _)| &step.key)
        .collect();
    assert_eq!(failed, [&Key::Flows(Family::Ipv4)]);
    add_stale(&mut proxier);
    let synced = proxier.sync(synced.next.unwrap()).unwrap();
    assert!(synced.is_success(), "{synced}");
    let operations: Vec<&Operation> = synced.plan.steps().map(|(_, step)| &step.operation).collect();
    assert!(matches!(operations[..], [Operation::Flows(_)]), "{}", synced.plan);
    assert_eq!(clients(&mut proxier), [0_u16; 0]);
}

fn add_stale(proxier: &mut Proxier) {
    add(proxier.kernel_mut(), 1, "10.96.1.10:53", "10.244.9.1:5353");
    add(proxier.kernel_mut(), 2, "192.0.2.1:30053", "10.244.9.1:5353");
}

#[test]
fn changes_of_tcp_services_read_no_flows() {
    let mut proxier = filled(3);
    proxier.kernel_mut().conntrack = Box::new(Failing {
        inner: kernlink_conntrack::Fake::new(),
        left: usize::MAX,
    });
    iptables_node::change_endpoints(&mut proxier, 1, &[5]);
    assert_eq!(passes(&sync(&mut proxier)), 0);
}

/// A UDP Service with one endpoint, in one family.
fn other(name: &str, family: Family) -> Vec<Change> {
    let (cluster_ip, endpoint) = match family {
        Family::Ipv4 => ("10.96.1.20", "10.244.9.9"),
        Family::Ipv6 => ("fd00:96::20", "fd01::9"),
    };
    let service = Service::new(ObjectName::new("ns", name))
        .with_cluster_ip(cluster_ip)
        .with_port(Port::new("dns", 53).with_protocol(Protocol::Udp));
    let slice = EndpointSlice::new(ObjectName::new("ns", name), name, family)
        .with_port(EndpointPort::new("dns", 5353).with_protocol(Protocol::Udp))
        .with_endpoint(Endpoint::new(endpoint.parse().unwrap()));
    vec![
        Change::Services(ObjectChange::Upsert(service)),
        Change::EndpointSlices(ObjectChange::Upsert(slice)),
    ]
}

#[test]
fn flows_of_a_deleted_service_are_deleted_although_another_one_is_added_in_the_same_sync() {
    for family in Family::ALL {
        let mut proxier = synced(&[1]);
        add(proxier.kernel_mut(), 1, "10.96.1.10:53", "10.244.9.1:5353");
        let name = ObjectName::new("ns", "dns");
        proxier.change(SOURCE, Change::Services(ObjectChange::Delete(name)));
        for change in other("other", family) {
            proxier.change(SOURCE, change);
        }
        let synced = sync(&mut proxier);
        assert_eq!(clients(&mut proxier), [0; 0], "{family}\n{}", synced.plan);
        // The numbers are those of a process that never knew the deleted Service.
        let mut fresh = proxier_on(kernel());
        for change in other("other", family) {
            fresh.change(SOURCE, change);
        }
        for kind in [Kind::Service, Kind::EndpointSlice, Kind::Node] {
            fresh.change(SOURCE, Change::synced(kind));
        }
        sync(&mut fresh);
        for of_family in Family::ALL {
            let numbers = |proxier: &Proxier| {
                let totals = IptablesMode::totals(proxier.state());
                let totals = totals.family(of_family);
                (
                    totals.chains,
                    totals.shared_rules,
                    totals.filter_rules,
                    totals.nat_rules,
                )
            };
            assert_eq!(numbers(&proxier), numbers(&fresh), "{family}: {of_family}");
        }
    }
}
