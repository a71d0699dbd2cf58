//! Passes that fail, and tables of connection tracking that cannot be read.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kernlink_conntrack::{Conntrack, Filter};
use kernlink_proxier::ipvs_mode::{Kernel, Proxier};
use kernlink_services::SessionAffinity;

use crate::faulty::Faults;
use crate::node::{self, endpoints, kernel, service, upsert};
use crate::udp::{add, clients, udp, udp_endpoints, udp_service};
use crate::without_module::WithoutModule;
use crate::{passes, sync, synced, unsynced};

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
    kernel.conntrack = Box::new(WithoutModule::new(inner, is_loaded.clone()));
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
