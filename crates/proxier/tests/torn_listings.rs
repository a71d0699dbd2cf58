//! Listings of IPVS that stay torn, because other programs change IPVS all the time: every Service is served, now and after a restart.
#![cfg(feature = "fake")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test reports errors by panicking"
)]

#[path = "support/node.rs"]
mod node;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Instant;

use kernlink_ipvs::{
    Consistency, Error, Fake, Ipvs, Operation, RealServerStatus, Snapshot, Timeouts, VirtualServerKey,
    VirtualServerStatus,
};
use kernlink_proxier::ipvs_mode::{Kernel, Proxier, SetId};
use kernlink_services::{Family, ServiceType};

use crate::node::{
    endpoints, ipv4_config, kernel, key, proxier, real_servers, service, upsert, virtual_servers,
};

/// IPVS whose listings lack all virtual servers while they are torn.
#[derive(Clone, Default)]
struct Torn {
    ipvs: Arc<Mutex<Fake>>,
    is_torn: Arc<AtomicBool>,
}

impl Ipvs for Torn {
    fn execute(&mut self, operations: &[Operation]) -> Vec<Result<(), Error>> {
        self.ipvs.lock().unwrap().execute(operations)
    }

    fn list_virtual_servers(&mut self) -> Result<Vec<VirtualServerStatus>, Error> {
        self.ipvs.lock().unwrap().list_virtual_servers()
    }

    fn find_virtual_server(&mut self, key: &VirtualServerKey) -> Result<Option<VirtualServerStatus>, Error> {
        self.ipvs.lock().unwrap().find_virtual_server(key)
    }

    fn list_real_servers(&mut self, key: &VirtualServerKey) -> Result<Vec<RealServerStatus>, Error> {
        self.ipvs.lock().unwrap().list_real_servers(key)
    }

    fn snapshot(&mut self) -> Result<Snapshot, Error> {
        let mut snapshot = self.ipvs.lock().unwrap().snapshot()?;
        if self.is_torn.load(Ordering::Relaxed) {
            snapshot.virtual_servers.clear();
            snapshot.consistency = Consistency::Unverified { attempts: 5 };
        }
        Ok(snapshot)
    }

    fn timeouts(&mut self) -> Result<Timeouts, Error> {
        self.ipvs.lock().unwrap().timeouts()
    }
}

/// Two Services, one of them with a node port.
fn deliver(proxier: &mut Proxier, pods: &[u8]) {
    upsert(proxier, service("web", "10.96.0.1"));
    endpoints(proxier, "web", pods);
    let mut open = service("open", "10.96.0.2");
    open.service_type = ServiceType::NodePort;
    open.ports[0].node_port = 30_080;
    upsert(proxier, open);
    endpoints(proxier, "open", pods);
}

const SERVERS: [&str; 3] = ["-t 10.96.0.1:80", "-t 10.96.0.2:80", "-t 192.0.2.1:30080"];

/// All Services are served by this pod, and later syncs find nothing to do.
fn assert_served(proxier: &mut Proxier, pod: u8) {
    let synced = proxier.sync(Instant::now()).unwrap();
    assert!(synced.is_success(), "{}{synced}", synced.plan);
    let kernel = proxier.kernel_mut();
    let mut servers = virtual_servers(kernel);
    servers.sort();
    assert_eq!(servers, SERVERS);
    for key in [
        key("10.96.0.1", 80),
        key("10.96.0.2", 80),
        key("192.0.2.1", 30_080),
    ] {
        let serving = real_servers(kernel, &key);
        assert!(
            serving.contains(&format!("10.244.0.{pod}:8080")),
            "{key}: {serving:?}"
        );
    }
    // The first one may delete real servers that have no connection any more.
    proxier.resync();
    assert!(proxier.sync(Instant::now()).unwrap().is_success());
    proxier.resync();
    let synced = proxier.sync(Instant::now()).unwrap();
    assert!(
        synced.is_success() && synced.plan.is_empty(),
        "{}{synced}",
        synced.plan
    );
}

/// A kernel with the Services, whose listings can be torn.
fn served() -> (Proxier, Torn) {
    let torn = Torn::default();
    let mut kernel = kernel();
    kernel.ipvs = Box::new(torn.clone());
    let mut proxier = proxier(ipv4_config(), kernel);
    deliver(&mut proxier, &[1]);
    assert_served(&mut proxier, 1);
    (proxier, torn)
}

#[test]
fn a_service_whose_endpoints_change_while_every_listing_is_torn_is_served_by_the_new_ones() {
    let (mut proxier, torn) = served();
    torn.is_torn.store(true, Ordering::Relaxed);
    proxier.resync();
    deliver(&mut proxier, &[2]);
    let synced = proxier.sync(Instant::now()).unwrap();
    let events: Vec<String> = synced.events.iter().map(ToString::to_string).collect();
    assert!(
        events
            .iter()
            .any(|event| event.contains("IPVS changed during 5 listings")),
        "{events:?}"
    );
    assert!(synced.is_success(), "{}{synced}", synced.plan);
    assert_served(&mut proxier, 2);
    // A new process, and a listing that is not torn.
    let mut next = self::proxier(ipv4_config(), proxier.into_kernel());
    deliver(&mut next, &[3]);
    assert_served(&mut next, 3);
    torn.is_torn.store(false, Ordering::Relaxed);
    next.resync();
    assert_served(&mut next, 3);
}

#[test]
fn what_kube_proxy_left_is_taken_over_although_every_listing_is_torn() {
    let (before, torn) = served();
    let mut kernel: Kernel = before.into_kernel();
    kernel.sets.destroy(&SetId::Ledger.name(Family::Ipv4)).unwrap();
    torn.is_torn.store(true, Ordering::Relaxed);
    let mut proxier = proxier(ipv4_config(), kernel);
    deliver(&mut proxier, &[2]);
    assert_served(&mut proxier, 2);
    torn.is_torn.store(false, Ordering::Relaxed);
    proxier.resync();
    assert_served(&mut proxier, 2);
}
