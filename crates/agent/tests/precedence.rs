//! Of several Services with one address, port and protocol, the kind of the frontend decides before the age, in both modes: where packets
//! end on the fake kernel.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test reports errors by panicking"
)]

#[path = "support/any_proxier.rs"]
mod any_proxier;
#[path = "../../proxier/tests/support/senders.rs"]
mod senders;
#[path = "../../proxier/tests/support/shared_ipvs.rs"]
mod shared_ipvs;
#[path = "support/shared_kernel.rs"]
mod shared_kernel;
#[path = "../../proxier/tests/support/mod.rs"]
mod support;
#[path = "../../proxier/tests/support/tracer.rs"]
mod tracer;

use std::net::IpAddr;
use std::time::{Duration, Instant, SystemTime};

use kernlink_agent::modes::{Config, Mode};
use kernlink_ipvs::VirtualServerKey;
use kernlink_proxier::{iptables_mode, ipvs_mode};
use kernlink_services::{
    Change, Kind, ObjectChange, ObjectName, Port, Protocol, Service, ServiceType, SourceId,
};

use crate::senders::{packets, slices};
use crate::shared_kernel::{Proxier, SharedKernel};
use crate::tracer::Tracer;

/// The endpoints of the old and of the new Service.
const OLD: &str = "10.244.1.1:8080";
const NEW: &str = "10.244.1.3:8080";

fn config(mode: Mode) -> Config {
    match mode {
        Mode::Ipvs => {
            let mut config = ipvs_mode::Config::new("node-a");
            config.conntrack.max_per_core = 0;
            config.into()
        }
        Mode::Iptables => {
            let mut config = iptables_mode::Config::new("node-a");
            config.conntrack.max_per_core = 0;
            config.into()
        }
        Mode::Nftables | Mode::Userspace => unreachable!("the tests of this file are about the other modes"),
    }
}

/// A Service with the ports 80/TCP and 53/UDP, and its endpoint.
fn service(
    name: &str,
    created: u64,
    cluster_ip: &str,
    endpoint: u8,
    change: impl FnOnce(&mut Service),
) -> Vec<Change> {
    let mut service = Service::new(ObjectName::new("ns", name))
        .with_cluster_ip(cluster_ip)
        .with_port(Port::new("http", 80))
        .with_port(Port::new("dns", 53).with_protocol(Protocol::Udp));
    service.created = Some(SystemTime::UNIX_EPOCH + Duration::from_secs(created));
    change(&mut service);
    let mut changes = slices(&service, &[endpoint], true);
    changes.push(Change::Services(ObjectChange::Upsert(service)));
    changes
}

/// The old Service, whose external IPs are the cluster IP of the new one and the address of the node.
fn old() -> Vec<Change> {
    service("old", 1, "10.96.0.1", 1, |old| {
        old.external_ips = vec!["10.96.0.2".to_owned(), "192.0.2.1".to_owned()];
        old.ports.push(Port::new("high", 30_080));
    })
}

/// The new Service, with a node port.
fn new() -> Vec<Change> {
    service("new", 2, "10.96.0.2", 3, |new| {
        new.service_type = ServiceType::NodePort;
        for port in &mut new.ports {
            if port.port == 80 {
                port.node_port = 30_080;
            }
        }
    })
}

fn proxier(mode: Mode) -> Proxier {
    let mut proxier = Proxier::new(&config(mode), SharedKernel::new().apis());
    for kind in [Kind::Service, Kind::EndpointSlice, Kind::Node] {
        proxier.change(SourceId(0), Change::synced(kind));
    }
    proxier
}

fn sync(proxier: &mut Proxier, changes: Vec<Change>) {
    for change in changes {
        proxier.change(SourceId(0), change);
    }
    let synced = proxier.sync(Instant::now()).unwrap();
    assert!(synced.is_success(), "{synced}");
}

/// The frontends of the new Service that are external IPs and ports of the old one too.
fn frontends() -> [VirtualServerKey; 3] {
    let address = |text: &str| text.parse::<IpAddr>().unwrap();
    [
        VirtualServerKey::tcp(address("10.96.0.2"), 80),
        VirtualServerKey::udp(address("10.96.0.2"), 53),
        VirtualServerKey::tcp(address("192.0.2.1"), 30_080),
    ]
}

/// Packets of all senders to a frontend end at this endpoint.
#[track_caller]
fn assert_served(proxier: &mut Proxier, frontend: &VirtualServerKey, endpoint: &str) {
    let tracer = Tracer::of_kernel(&mut proxier.ipvs());
    let packets = packets(frontend);
    assert!(packets.len() > 5, "{frontend}");
    for packet in packets {
        let end = tracer.trace(packet.clone()).to_string();
        let is_to = |served: &str| served.contains(endpoint);
        assert!(
            is_to(&end),
            "{frontend} from {}: {end}; not {endpoint}",
            packet.source
        );
        let other = if endpoint == OLD { NEW } else { OLD };
        assert!(!end.contains(other), "{frontend} from {}: {end}", packet.source);
    }
}

fn an_old_service_takes_nothing(mode: Mode) {
    let both = || old().into_iter().chain(new()).collect::<Vec<_>>();
    // In advance; at once; and found by a process that starts.
    for arrivals in [vec![old(), new()], vec![new(), old()], vec![both()]] {
        let mut proxier = proxier(mode);
        for changes in arrivals {
            sync(&mut proxier, changes);
        }
        for frontend in frontends() {
            assert_served(&mut proxier, &frontend, NEW);
        }
        // What no other Service has is served.
        let external = VirtualServerKey::tcp("192.0.2.1".parse::<IpAddr>().unwrap(), 80);
        assert_served(&mut proxier, &external, OLD);

        let change = ObjectChange::Delete(ObjectName::new("ns", "new"));
        sync(&mut proxier, vec![Change::Services(change)]);
        for frontend in frontends() {
            assert_served(&mut proxier, &frontend, OLD);
        }
        sync(&mut proxier, new());
        for frontend in frontends() {
            assert_served(&mut proxier, &frontend, NEW);
        }
    }
}

#[test]
fn in_ipvs_mode_external_ips_of_an_old_service_take_no_cluster_ip_and_node_port_of_a_newer_one() {
    an_old_service_takes_nothing(Mode::Ipvs);
}

#[test]
fn in_iptables_mode_external_ips_of_an_old_service_take_no_cluster_ip_and_node_port_of_a_newer_one() {
    an_old_service_takes_nothing(Mode::Iptables);
}
