//! Stale UDP flows: exactly those are deleted, in one pass, after the changes that make them stale.
#![cfg(feature = "fake")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test reports errors by panicking"
)]

mod failures;
#[path = "../support/faulty.rs"]
mod faulty;
#[path = "../support/node.rs"]
mod node;
#[path = "../support/udp.rs"]
mod udp;
#[path = "../support/without_module.rs"]
mod without_module;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::Instant;

use kernlink_conntrack::{Conntrack, Error, Filter, Flows, Operation as FlowOperation};
use kernlink_proxier::ipvs_mode::{IpvsOptions, Kernel, Key, Operation, Phase, Proxier, Synced};
use kernlink_services::{Family, Service};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::node::{delete, endpoints, ipv4_config, kernel, position, proxier, service, upsert};
use crate::udp::{NODE_PORT, TestFlow, add, clients, flows, udp, udp_endpoints, udp_service, with_node_port};

/// A proxier with a UDP Service that has a node port and these endpoints, synced.
fn synced(endpoints: &[u8]) -> Proxier {
    let mut proxier = unsynced(kernel(), endpoints);
    sync(&mut proxier);
    proxier
}

fn unsynced(kernel: Kernel, endpoints: &[u8]) -> Proxier {
    let mut proxier = proxier(ipv4_config(), kernel);
    upsert(&mut proxier, dns());
    udp_endpoints(&mut proxier, "dns", endpoints);
    proxier
}

fn dns() -> Service {
    with_node_port(udp_service("dns", "10.96.0.10"), NODE_PORT)
}

fn sync(proxier: &mut Proxier) -> Synced {
    let synced = proxier.sync(Instant::now()).unwrap();
    assert!(synced.is_success(), "{synced}");
    synced
}

/// The number of steps that delete flows.
fn passes(synced: &Synced) -> usize {
    let mut phases = synced.plan.phases().iter();
    let phase = phases.find(|phase| phase.kind == Phase::DeleteFlows);
    phase.map_or(0, |phase| phase.steps.len())
}

/// Counts the listings of the table.
struct Counting {
    inner: kernlink_conntrack::Fake,
    listings: Arc<Mutex<usize>>,
}

impl Conntrack for Counting {
    fn execute(&mut self, operations: &[FlowOperation]) -> Vec<Result<(), Error>> {
        self.inner.execute(operations)
    }

    fn flows<'a>(&'a mut self, filter: &Filter) -> Result<Flows<'a>, Error> {
        *self.listings.lock().unwrap() += 1;
        self.inner.flows(filter)
    }

    fn totals(&mut self) -> Result<kernlink_conntrack::Totals, Error> {
        self.inner.totals()
    }
}

#[test]
fn exactly_the_flows_to_a_removed_endpoint_are_deleted() {
    let mut proxier = synced(&[1, 2]);
    let (first, second) = ("10.244.0.1:5353", "10.244.0.2:5353");
    let to_cluster_ip = [
        udp(1, "10.96.0.10:53", first),
        udp(2, "10.96.0.10:53", second),
        udp(3, "192.0.2.1:30053", first),
        udp(4, "192.0.2.1:30053", second),
    ];
    let foreign = [
        // The same port at other addresses.
        udp(5, "203.0.113.9:53", "203.0.113.9:53"),
        udp(6, "203.0.113.9:30053", first),
        // Another port at the same addresses.
        udp(7, "10.96.0.10:54", first),
        udp(8, "192.0.2.1:30054", first),
        // Another protocol, another zone.
        udp(9, "10.96.0.10:53", first).tcp(),
        udp(10, "10.96.0.10:53", first).in_zone(7),
        // Directly to the endpoint.
        udp(11, first, first),
    ];
    add(proxier.kernel_mut(), &to_cluster_ip);
    add(proxier.kernel_mut(), &foreign);
    udp_endpoints(&mut proxier, "dns", &[2]);
    let synced = sync(&mut proxier);
    assert_eq!(passes(&synced), 1, "{}", synced.plan);
    assert_eq!(
        clients(proxier.kernel_mut()),
        [2, 4, 5, 6, 7, 8, 9, 10, 11],
        "{}",
        synced.plan
    );
    let plan = synced.plan.to_string();
    assert!(
        plan.contains(
            "# conntrack: delete the stale IPv4 UDP flows to 2 destinations\n\
             #   10.96.0.10:53, valid reply sources: 10.244.0.2:5353\n\
             #   192.0.2.1:30053, valid reply sources: 10.244.0.2:5353\n"
        ),
        "{plan}"
    );
}

#[test]
fn flows_that_began_before_the_first_endpoint_are_deleted() {
    let mut proxier = synced(&[]);
    // Without a virtual server they were routed, without translation.
    let before = [
        udp(1, "10.96.0.10:53", "10.96.0.10:53"),
        udp(2, "192.0.2.1:30053", "192.0.2.1:30053"),
        udp(3, "192.0.2.1:30054", "192.0.2.1:30054"),
    ];
    add(proxier.kernel_mut(), &before);
    udp_endpoints(&mut proxier, "dns", &[1]);
    sync(&mut proxier);
    assert_eq!(clients(proxier.kernel_mut()), [3]);
    // A second endpoint makes no flow stale.
    udp_endpoints(&mut proxier, "dns", &[1, 2]);
    assert_eq!(passes(&sync(&mut proxier)), 0);
}

#[test]
fn flows_that_began_before_the_service_existed_are_deleted() {
    let mut proxier = proxier(ipv4_config(), kernel());
    sync(&mut proxier);
    add(
        proxier.kernel_mut(),
        &[
            udp(1, "10.96.0.10:53", "10.96.0.10:53"),
            udp(2, "10.96.0.11:53", "10.96.0.11:53"),
        ],
    );
    upsert(&mut proxier, udp_service("dns", "10.96.0.10"));
    udp_endpoints(&mut proxier, "dns", &[1]);
    sync(&mut proxier);
    assert_eq!(clients(proxier.kernel_mut()), [2]);
}

#[test]
fn flows_to_a_removed_frontend_are_deleted() {
    let mut proxier = synced(&[1]);
    let endpoint = "10.244.0.1:5353";
    add(
        proxier.kernel_mut(),
        &[
            udp(1, "10.96.0.10:53", endpoint),
            udp(2, "192.0.2.1:30053", endpoint),
            udp(3, "203.0.113.9:30053", endpoint),
            // Of a process of this node that uses the port of the removed frontend.
            udp(4, "192.0.2.1:30053", "192.0.2.1:30053"),
        ],
    );
    upsert(&mut proxier, udp_service("dns", "10.96.0.10"));
    sync(&mut proxier);
    assert_eq!(clients(proxier.kernel_mut()), [1, 3, 4]);
    delete(&mut proxier, "dns");
    sync(&mut proxier);
    assert_eq!(clients(proxier.kernel_mut()), [3, 4]);
}

#[test]
fn the_table_is_not_read_if_no_udp_frontend_lost_or_first_got_endpoints() {
    let listings = Arc::new(Mutex::new(0));
    let mut kernel = kernel();
    kernel.conntrack = Box::new(Counting {
        inner: kernlink_conntrack::Fake::new(),
        listings: listings.clone(),
    });
    let count = || std::mem::take(&mut *listings.lock().unwrap());
    let mut proxier = unsynced(kernel, &[1, 2]);
    upsert(&mut proxier, service("web", "10.96.0.1"));
    endpoints(&mut proxier, "web", &[1, 2]);
    sync(&mut proxier);
    assert_eq!(count(), 1, "the pass for the new frontends");
    endpoints(&mut proxier, "web", &[2]);
    sync(&mut proxier);
    delete(&mut proxier, "web");
    sync(&mut proxier);
    udp_endpoints(&mut proxier, "dns", &[1, 2, 3]);
    sync(&mut proxier);
    proxier.resync();
    sync(&mut proxier);
    assert_eq!(count(), 0);
    // One pass for both frontends of the Service and two removed endpoints.
    udp_endpoints(&mut proxier, "dns", &[3]);
    sync(&mut proxier);
    assert_eq!(count(), 1);
    // A restart reads it once.
    let mut proxier = unsynced(proxier.into_kernel(), &[3]);
    let synced = sync(&mut proxier);
    assert!(synced.plan.is_empty(), "{}", synced.plan);
    assert_eq!(count(), 1);
}

#[test]
fn a_restart_without_change_deletes_no_flow_and_plans_nothing() {
    let mut kernel = synced(&[1, 2]).into_kernel();
    let valid = [
        udp(1, "10.96.0.10:53", "10.244.0.1:5353"),
        udp(2, "10.96.0.10:53", "10.244.0.2:5353"),
        udp(3, "192.0.2.1:30053", "10.244.0.2:5353"),
        udp(4, "203.0.113.9:30053", "10.244.0.9:5353"),
    ];
    add(&mut kernel, &valid);
    let mut proxier = unsynced(kernel, &[1, 2]);
    let synced = sync(&mut proxier);
    assert!(synced.plan.is_empty(), "{}", synced.plan);
    assert_eq!(flows(proxier.kernel_mut()), valid);
}

#[test]
fn a_restart_with_a_change_deletes_the_flows_that_it_made_stale() {
    let mut kernel = synced(&[1, 2]).into_kernel();
    add(
        &mut kernel,
        &[
            udp(1, "10.96.0.10:53", "10.244.0.1:5353"),
            udp(2, "10.96.0.10:53", "10.244.0.2:5353"),
        ],
    );
    let mut proxier = unsynced(kernel, &[2]);
    sync(&mut proxier);
    assert_eq!(clients(proxier.kernel_mut()), [2]);
}

#[test]
fn after_a_process_ended_at_any_step_the_next_one_deletes_the_stale_flows() {
    // The Service loses an endpoint, its node port, or both frontends.
    let changes: [fn(&mut Proxier); 3] = [
        |proxier| udp_endpoints(proxier, "dns", &[2]),
        |proxier| upsert(proxier, udp_service("dns", "10.96.0.10")),
        |proxier| delete(proxier, "dns"),
    ];
    for change in changes {
        for steps in 0.. {
            let mut kernel = synced(&[1, 2]).into_kernel();
            let (first, second) = ("10.244.0.1:5353", "10.244.0.2:5353");
            for (client, destination) in [(10, "10.96.0.10:53"), (20, "192.0.2.1:30053")] {
                let flows = [
                    udp(client, destination, first),
                    udp(client + 1, destination, second),
                ];
                add(&mut kernel, &flows);
            }
            let mut ended = unsynced(kernel, &[1, 2]);
            sync(&mut ended);
            change(&mut ended);
            let plan = ended.plan(Instant::now()).unwrap();
            let mut kernel = ended.into_kernel();
            for (_, step) in plan.steps().take(steps) {
                kernel.execute(&step.operation).unwrap();
            }
            let mut next = unsynced(kernel, &[1, 2]);
            change(&mut next);
            sync(&mut next);
            let expected = expected_clients(&next);
            assert_eq!(clients(next.kernel_mut()), expected, "{steps} steps of\n{plan}");
            if steps == plan.len() {
                break;
            }
        }
    }
}

/// The clients of the flows of the test above that stay valid.
fn expected_clients(proxier: &Proxier) -> Vec<u16> {
    let servers: Vec<_> = proxier.state().virtual_servers(Family::Ipv4).collect();
    let mut clients = Vec::new();
    for (client, address) in [(10, "10.96.0.10"), (20, "192.0.2.1")] {
        let server = servers
            .iter()
            .find(|server| server.virtual_server.key.address() == Some(address.parse().unwrap()));
        for real in server.iter().flat_map(|server| server.real_servers.iter()) {
            let last = if real.key.address.to_string() == "10.244.0.1" {
                0
            } else {
                1
            };
            clients.push(client + last);
        }
    }
    clients
}

#[test]
fn flows_are_deleted_after_virtual_servers_and_real_servers_and_before_entries() {
    let mut proxier = synced(&[1, 2]);
    upsert(&mut proxier, udp_service("other", "10.96.0.11"));
    udp_endpoints(&mut proxier, "other", &[1]);
    udp_endpoints(&mut proxier, "dns", &[3]);
    upsert(&mut proxier, udp_service("dns", "10.96.0.10"));
    let plan = proxier.plan(Instant::now()).unwrap();
    let pass = position(&plan, "#   10.96.0.10:53");
    for before in [
        "-a -u 10.96.0.11:53 -r 10.244.0.1:5353",
        "address replace 10.96.0.11/32",
        "-d -u 10.96.0.10:53 -r 10.244.0.1:5353",
        "-D -u 192.0.2.1:30053",
    ] {
        assert!(position(&plan, before) < pass, "{before}\n{plan}");
    }
    // The entry names the frontend, if the process ends here.
    assert!(pass < position(&plan, "del KUBE-NODE-PORT-UDP 30053"), "{plan}");
}

/// Otherwise the reply of the first real server to a packet of a stale flow begins a flow whose packets are not masqueraded.
#[test]
fn stale_flows_are_deleted_while_a_virtual_server_has_no_real_server() {
    // A new Service, one that gets its first endpoint, and a node port of one that has endpoints.
    let new: fn(&mut Proxier) = |proxier| upsert(proxier, udp_service("new", "10.96.0.11"));
    let first: fn(&mut Proxier) = |proxier| udp_endpoints(proxier, "new", &[1]);
    let node_port: fn(&mut Proxier) = |proxier| {
        upsert(
            proxier,
            with_node_port(udp_service("new", "10.96.0.11"), NODE_PORT + 1),
        )
    };
    for (before, change, address) in [
        (vec![], vec![new, first], "10.96.0.11:53"),
        (vec![new], vec![first], "10.96.0.11:53"),
        (vec![new, first], vec![node_port], "192.0.2.1:30054"),
    ] {
        let mut proxier = synced(&[1]);
        before.into_iter().for_each(|step| step(&mut proxier));
        sync(&mut proxier);
        change.into_iter().for_each(|step| step(&mut proxier));
        add(proxier.kernel_mut(), &[udp(1, address, address)]);
        let plan = proxier.plan(Instant::now()).unwrap();
        let pass = position(&plan, "# conntrack");
        assert!(pass < position(&plan, &format!("-a -u {address} -r")), "{plan}");
        for earlier in [format!("-A -u {address}"), "address replace".to_owned()] {
            if plan.to_string().contains(&earlier) {
                assert!(position(&plan, &earlier) < pass, "{earlier}\n{plan}");
            }
        }
        let synced = sync(&mut proxier);
        assert_eq!(passes(&synced), 0, "{plan}");
        assert_eq!(clients(proxier.kernel_mut()), [0; 0], "{plan}");
        // What was compared is not compared again.
        proxier.resync();
        assert!(sync(&mut proxier).plan.is_empty());
        udp_endpoints(&mut proxier, "dns", &[2]);
        let plan = proxier.plan(Instant::now()).unwrap().to_string();
        assert!(!plan.contains(&format!("#   {address}")), "{plan}");
    }
}

#[test]
fn flows_without_translation_are_kept_where_packets_are_forwarded_unchanged() {
    let mut config = ipv4_config();
    config.defaults = IpvsOptions {
        forwarding: kernlink_proxier::ipvs_mode::Forwarding::Direct,
        ..config.defaults
    };
    let mut proxier = proxier(config, kernel());
    let mut service = udp_service("dns", "10.96.0.10");
    service.external_ips = vec!["203.0.113.1".to_owned()];
    // The port of the endpoints must be that of the frontend.
    service.ports[0].port = 5353;
    upsert(&mut proxier, service);
    udp_endpoints(&mut proxier, "dns", &[1, 2]);
    sync(&mut proxier);
    add(
        proxier.kernel_mut(),
        &[
            udp(1, "203.0.113.1:5353", "203.0.113.1:5353"),
            udp(2, "10.96.0.10:5353", "10.96.0.10:5353"),
        ],
    );
    udp_endpoints(&mut proxier, "dns", &[2]);
    sync(&mut proxier);
    assert_eq!(clients(proxier.kernel_mut()), [1]);
}

#[test]
fn the_step_names_the_only_service_that_it_is_for() {
    let mut proxier = synced(&[1, 2]);
    udp_endpoints(&mut proxier, "dns", &[2]);
    let plan = proxier.plan(Instant::now()).unwrap();
    let (_, step) = plan
        .steps()
        .find(|(_, step)| matches!(step.operation, Operation::Flows(_)))
        .unwrap();
    assert_eq!(step.subject.to_string(), "Service ns/dns");
    assert_eq!(step.key, Key::Flows(Family::Ipv4));
    assert_eq!(step.key.to_string(), "IPv4 UDP flows");
}

/// A change of one of two Services.
#[derive(Clone, Debug)]
enum Change {
    /// Its endpoints, by last octet; its node port, or none; whether it exists.
    Service(usize, BTreeSet<u8>, Option<u16>, bool),
    /// A flow of a new client to one of the [`destinations`], by index. It is translated as the node would do.
    Flow(usize, u8),
    Restart,
}

fn change() -> impl Strategy<Value = Change> {
    let endpoints = proptest::collection::btree_set(1..5_u8, 0..4);
    let node_port = prop_oneof![Just(None), Just(Some(NODE_PORT)), Just(Some(NODE_PORT + 1))];
    prop_oneof![
        3 => (0..2_usize, endpoints, node_port, prop::bool::weighted(0.8))
            .prop_map(|(service, endpoints, port, exists)| Change::Service(service, endpoints, port, exists)),
        6 => (0..destinations().len(), any::<u8>()).prop_map(|(destination, random)| Change::Flow(destination, random)),
        1 => Just(Change::Restart),
    ]
}

const NAMES: [(&str, &str); 2] = [("a", "10.96.0.1"), ("b", "10.96.0.2")];

/// Addresses that are frontends at times, and foreign addresses with the same ports.
fn destinations() -> Vec<SocketAddr> {
    let addresses = [
        "10.96.0.1:53",
        "10.96.0.2:53",
        "192.0.2.1:30053",
        "192.0.2.1:30054",
        "203.0.113.9:53",
        "203.0.113.9:30053",
        "10.96.0.1:30054",
        "192.0.2.1:53",
    ];
    addresses.map(|address| address.parse().unwrap()).into()
}

/// The UDP frontends of a proxier, with the addresses of their endpoints.
fn frontends(proxier: &Proxier) -> BTreeMap<SocketAddr, Vec<SocketAddr>> {
    let servers = proxier.state().virtual_servers(Family::Ipv4);
    servers
        .map(|server| {
            let key = server.virtual_server.key;
            let address = SocketAddr::new(key.address().unwrap(), key.port().unwrap());
            let of_real = server.real_servers.iter();
            let endpoints = of_real.map(|real| SocketAddr::new(real.key.address, real.key.port));
            (address, endpoints.collect())
        })
        .collect()
}

fn set_service(proxier: &mut Proxier, state: &(usize, BTreeSet<u8>, Option<u16>, bool)) {
    let (service, endpoints, port, exists) = state;
    let (name, address) = NAMES[*service];
    let object = udp_service(name, address);
    if *exists {
        upsert(
            proxier,
            port.iter()
                .fold(object, |object, port| with_node_port(object, *port)),
        );
    } else {
        delete(proxier, name);
    }
    let endpoints: Vec<u8> = endpoints.iter().copied().collect();
    udp_endpoints(proxier, name, &endpoints);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn exactly_the_stale_flows_are_deleted_after_any_changes(changes in vec(change(), 1..40)) {
        let mut proxier = proxier(ipv4_config(), kernel());
        sync(&mut proxier);
        let mut services: BTreeMap<usize, (usize, BTreeSet<u8>, Option<u16>, bool)> = BTreeMap::new();
        let mut expected: Vec<TestFlow> = Vec::new();
        for (client, change) in (1..).zip(changes) {
            match change {
                Change::Flow(destination, random) => {
                    let destination = destinations()[destination];
                    let reply_source = match frontends(&proxier).get(&destination) {
                        // Packets are refused, and no flow begins.
                        Some(endpoints) if endpoints.is_empty() => continue,
                        Some(endpoints) => endpoints[usize::from(random) % endpoints.len()],
                        None => destination,
                    };
                    let flow = udp(client, &destination.to_string(), &reply_source.to_string());
                    flow.add(proxier.kernel_mut());
                    expected.push(flow);
                }
                Change::Service(service, endpoints, port, exists) => {
                    let state = (service, endpoints, port, exists);
                    set_service(&mut proxier, &state);
                    services.insert(service, state);
                    sync(&mut proxier);
                }
                Change::Restart => {
                    let kernel = proxier.into_kernel();
                    proxier = node::proxier(ipv4_config(), kernel);
                    for state in services.values() {
                        set_service(&mut proxier, state);
                    }
                    sync(&mut proxier);
                }
            }
            let frontends = frontends(&proxier);
            let actual = flows(proxier.kernel_mut());
            expected.retain(|flow| {
                let untranslated = flow.reply_source == flow.destination;
                match frontends.get(&flow.destination) {
                    None => untranslated,
                    // It does not matter until there are endpoints.
                    Some(endpoints) if endpoints.is_empty() && untranslated => actual.contains(flow),
                    Some(endpoints) => endpoints.contains(&flow.reply_source),
                }
            });
            prop_assert_eq!(&actual, &expected);
        }
    }
}
