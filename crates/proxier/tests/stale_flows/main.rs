//! Stale UDP flows: exactly those are deleted, in one pass, after the changes that make them stale.
#![cfg(feature = "fake")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test reports errors by panicking"
)]

#[path = "support/faulty.rs"]
mod faulty;
#[path = "support/node.rs"]
mod node;
#[path = "support/udp.rs"]
mod udp;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kernlink_conntrack::{Conntrack, Error, Filter, Flows, Operation as FlowOperation};
use kernlink_netlink::{Errno, Refusal};
use kernlink_proxier::ipvs_mode::{IpvsOptions, Kernel, Key, Operation, Phase, Proxier, Synced};
use kernlink_services::{Family, Service, SessionAffinity};
use proptest::collection::vec;
use proptest::prelude::*;

use crate::faulty::Faults;
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
fn a_first_pass_that_fails_is_retried_and_withholds_no_real_server() {
    // Alone, and next to a pass that succeeds.
    for has_other in [false, true] {
        let (kernel, faults) = Faults::of_kernel(kernel());
        let mut proxier = unsynced(kernel, &[1, 2]);
        upsert(&mut proxier, udp_service("new", "10.96.0.11"));
        sync(&mut proxier);
        let stale = [
            udp(1, "10.96.0.11:53", "10.96.0.11:53"),
            udp(2, "10.96.0.10:53", "10.244.0.1:5353"),
        ];
        add(proxier.kernel_mut(), &stale);
        udp_endpoints(&mut proxier, "new", &[1]);
        if has_other {
            udp_endpoints(&mut proxier, "dns", &[2]);
        }
        faults.refuse("conntrack -L");
        let start = Instant::now();
        let synced = proxier.sync(start).unwrap();
        assert_eq!(synced.counts().failed, 1 + usize::from(has_other), "{synced}");
        assert_eq!(synced.counts().skipped, 0, "{synced}");
        faults.end();
        node::sync_until_nothing_waits(&mut proxier, synced.next.unwrap());
        let left: &[u16] = if has_other { &[] } else { &[2] };
        assert_eq!(clients(proxier.kernel_mut()), left);
    }
}

#[test]
fn the_first_pass_does_not_wait_for_a_change_of_a_virtual_server_that_exists() {
    let (kernel, faults) = Faults::of_kernel(kernel());
    let mut proxier = unsynced(kernel, &[1]);
    upsert(&mut proxier, udp_service("new", "10.96.0.11"));
    sync(&mut proxier);
    add(proxier.kernel_mut(), &[udp(1, "10.96.0.11:53", "10.96.0.11:53")]);
    let mut changed = udp_service("new", "10.96.0.11");
    changed.session_affinity = SessionAffinity::ClientIp(Duration::from_secs(60));
    upsert(&mut proxier, changed);
    udp_endpoints(&mut proxier, "new", &[1]);
    faults.refuse("-E -u 10.96.0.11");
    let synced = proxier.sync(Instant::now()).unwrap();
    assert_eq!(
        (synced.counts().failed, synced.counts().skipped),
        (1, 0),
        "{synced}"
    );
    assert_eq!(clients(proxier.kernel_mut()), [0_u16; 0]);
}

#[test]
fn a_pass_that_fails_is_retried_with_the_endpoints_of_that_time() {
    let (kernel, faults) = Faults::of_kernel(kernel());
    let mut proxier = unsynced(kernel, &[1, 2]);
    sync(&mut proxier);
    let flows = [
        udp(1, "10.96.0.10:53", "10.244.0.1:5353"),
        udp(2, "10.96.0.10:53", "10.244.0.2:5353"),
        udp(3, "10.96.0.10:53", "10.244.0.3:5353"),
    ];
    faults.refuse("conntrack -L");
    udp_endpoints(&mut proxier, "dns", &[2]);
    let start = Instant::now();
    let synced = proxier.sync(start).unwrap();
    assert_eq!((synced.counts().failed, synced.waiting), (1, 1), "{synced}");
    assert!(synced.to_string().contains("cannot list flows"), "{synced}");
    let due = synced.next.unwrap();
    assert!(due > start);
    // Nothing is tried before it is due; a change of TCP endpoints does not change that.
    upsert(&mut proxier, service("web", "10.96.0.1"));
    endpoints(&mut proxier, "web", &[1]);
    let synced = proxier.sync(start).unwrap();
    assert_eq!((synced.counts().failed, synced.waiting), (0, 1), "{synced}");
    // An endpoint that is added without a pass of its own is valid in the retry.
    udp_endpoints(&mut proxier, "dns", &[2, 3]);
    let synced = proxier.sync(start).unwrap();
    assert_eq!((synced.counts().failed, synced.waiting), (0, 1), "{synced}");
    faults.end();
    add(proxier.kernel_mut(), &flows);
    let synced = proxier.sync(due).unwrap();
    assert!(synced.is_success() && passes(&synced) == 1, "{synced}");
    assert_eq!(clients(proxier.kernel_mut()), [2, 3]);
    assert_eq!(
        proxier.sync(due + Duration::from_secs(400)).unwrap().plan.len(),
        0
    );
}

#[test]
fn a_flow_that_cannot_be_deleted_is_retried() {
    let (kernel, faults) = Faults::of_kernel(kernel());
    let mut proxier = unsynced(kernel, &[1, 2]);
    sync(&mut proxier);
    let of_first = |client| udp(client, "10.96.0.10:53", "10.244.0.1:5353");
    add(proxier.kernel_mut(), &[of_first(1), of_first(2)]);
    faults.refuse("dport=1");
    udp_endpoints(&mut proxier, "dns", &[2]);
    let synced = proxier.sync(Instant::now()).unwrap();
    assert_eq!(synced.counts().failed, 1, "{synced}");
    assert!(
        synced.to_string().contains("cannot delete 1 flows; 1 deleted"),
        "{synced}"
    );
    assert_eq!(clients(proxier.kernel_mut()), [1]);
    faults.end();
    assert!(proxier.sync(synced.next.unwrap()).unwrap().is_success());
    assert_eq!(clients(proxier.kernel_mut()), [0; 0]);
}

#[test]
fn no_flow_is_deleted_while_the_removal_of_its_endpoint_is_refused() {
    let (kernel, faults) = Faults::of_kernel(kernel());
    let mut proxier = unsynced(kernel, &[1, 2]);
    sync(&mut proxier);
    add(
        proxier.kernel_mut(),
        &[udp(1, "10.96.0.10:53", "10.244.0.1:5353")],
    );
    faults.refuse("-d -u");
    udp_endpoints(&mut proxier, "dns", &[2]);
    let synced = proxier.sync(Instant::now()).unwrap();
    assert_eq!(
        (synced.counts().failed, synced.counts().skipped),
        (2, 1),
        "{synced}"
    );
    assert_eq!(clients(proxier.kernel_mut()), [1]);
    faults.end();
    node::sync_until_nothing_waits(&mut proxier, synced.next.unwrap());
    assert_eq!(clients(proxier.kernel_mut()), [0; 0]);
}

#[test]
fn flows_to_an_endpoint_are_deleted_although_the_reply_to_its_removal_was_lost() {
    let (kernel, faults) = Faults::of_kernel(kernel());
    let mut proxier = unsynced(kernel, &[1, 2]);
    sync(&mut proxier);
    let first = "10.244.0.1:5353";
    add(
        proxier.kernel_mut(),
        &[udp(1, "10.96.0.10:53", first), udp(2, "192.0.2.1:30053", first)],
    );
    faults.lose_reply("-d -u 10.96.0.10:53");
    faults.lose_reply("-D -u 192.0.2.1:30053");
    udp_endpoints(&mut proxier, "dns", &[2]);
    upsert(&mut proxier, udp_service("dns", "10.96.0.10"));
    let synced = proxier.sync(Instant::now()).unwrap();
    assert_eq!(synced.counts().failed, 2, "{synced}");
    assert_eq!(clients(proxier.kernel_mut()), [1, 2], "{synced}\n{}", synced.plan);
    // The objects are read again before the retries, by themselves or with all others.
    faults.end();
    let mut listed = unknown_until_listed();
    for proxier in [&mut proxier, &mut listed] {
        node::sync_until_nothing_waits(proxier, Instant::now());
        assert_eq!(clients(proxier.kernel_mut()), [0; 0]);
    }
}

/// A proxier that lists the kernel after the reply to the removal of an endpoint with a flow was lost.
fn unknown_until_listed() -> Proxier {
    let (kernel, faults) = Faults::of_kernel(kernel());
    let mut proxier = unsynced(kernel, &[1, 2]);
    sync(&mut proxier);
    add(
        proxier.kernel_mut(),
        &[udp(1, "10.96.0.10:53", "10.244.0.1:5353")],
    );
    faults.lose_reply("-d -u 10.96.0.10:53");
    udp_endpoints(&mut proxier, "dns", &[2]);
    assert_eq!(proxier.sync(Instant::now()).unwrap().counts().failed, 1);
    faults.end();
    proxier.resync();
    proxier
}

/// A kernel without the module of connection tracking over netlink, until it is loaded.
struct WithoutModule {
    inner: kernlink_conntrack::Fake,
    is_loaded: Arc<Mutex<bool>>,
}

impl WithoutModule {
    fn check(&self) -> Result<(), Error> {
        if *self.is_loaded.lock().unwrap() {
            return Ok(());
        }
        Err(Error::ModuleMissing {
            source: kernlink_netlink::Error::Refused(Refusal::new(Errno::EINVAL)),
        })
    }
}

impl Conntrack for WithoutModule {
    fn execute(&mut self, operations: &[FlowOperation]) -> Vec<Result<(), Error>> {
        match self.check() {
            Ok(()) => self.inner.execute(operations),
            Err(error) => vec![Err(error); operations.len()],
        }
    }

    fn flows<'a>(&'a mut self, filter: &Filter) -> Result<Flows<'a>, Error> {
        self.check()?;
        self.inner.flows(filter)
    }
}

#[test]
fn a_missing_module_is_reported_once_and_everything_else_works() {
    let is_loaded = Arc::new(Mutex::new(false));
    let mut kernel = kernel();
    let stale = udp(1, "10.96.0.10:53", "10.244.0.1:5353");
    let mut inner = kernlink_conntrack::Fake::new();
    let mut with_flow = Kernel::fake();
    stale.add(&mut with_flow);
    for flow in with_flow.conntrack.list(&Filter::new()).unwrap() {
        let new =
            kernlink_conntrack::NewFlow::new(flow.original, Duration::from_secs(120)).with_reply(flow.reply);
        inner.add(&new).unwrap();
    }
    kernel.conntrack = Box::new(WithoutModule {
        inner,
        is_loaded: is_loaded.clone(),
    });
    let mut proxier = unsynced(kernel, &[1, 2]);
    let synced = sync(&mut proxier);
    let texts: Vec<String> = synced.events.iter().map(ToString::to_string).collect();
    let reported = texts.iter().filter(|text| text.contains("nf_conntrack_netlink"));
    assert_eq!(reported.count(), 1, "{texts:?}");
    assert!(!synced.plan.is_empty());
    udp_endpoints(&mut proxier, "dns", &[2]);
    let synced = sync(&mut proxier);
    assert_eq!((passes(&synced), synced.events.len(), synced.waiting), (0, 0, 0));
    proxier.resync();
    assert_eq!(sync(&mut proxier).events, []);
    *is_loaded.lock().unwrap() = true;
    proxier.resync();
    let synced = sync(&mut proxier);
    assert_eq!(passes(&synced), 1, "{}", synced.plan);
    assert_eq!(clients(proxier.kernel_mut()), [0; 0]);
}

#[test]
fn a_table_that_cannot_be_read_at_the_start_deletes_nothing_and_is_read_by_the_next_listing() {
    let (kernel, faults) = Faults::of_kernel(synced(&[1, 2]).into_kernel());
    let mut proxier = unsynced(kernel, &[1, 2]);
    let stale = udp(1, "10.96.0.10:53", "10.244.0.3:5353");
    add(proxier.kernel_mut(), &[stale]);
    faults.refuse("conntrack -L");
    let synced = sync(&mut proxier);
    assert!(synced.plan.is_empty(), "{}", synced.plan);
    assert_eq!(synced.events.len(), 1, "{:?}", synced.events);
    faults.end();
    assert_eq!(clients(proxier.kernel_mut()), [1]);
    proxier.resync();
    sync(&mut proxier);
    assert_eq!(clients(proxier.kernel_mut()), [0; 0]);
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
