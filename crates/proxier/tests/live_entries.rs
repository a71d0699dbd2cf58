//! Operations on sets fail while the kind or the policy of a frontend changes: clients that are admitted before and after it reach an endpoint
//! all the time.
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
#[path = "support/tracer.rs"]
mod tracer;

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use kernlink_proxier::ipvs_mode::Proxier;
use kernlink_services::{Ingress, Port, Protocol, Service, ServiceType, TrafficPolicy};

use crate::faulty::Faults;
use crate::node::{endpoints, ipv4_config, kernel, proxier, service, upsert};
use crate::tracer::{End, Packet, Tracer};

const ADDRESS: &str = "203.0.113.1";

/// How clients outside reach a Service at [`ADDRESS`].
#[derive(Clone, Copy, Debug, PartialEq)]
enum Frontend {
    External,
    ExternalLocal,
    LoadBalancer,
    LoadBalancerLocal,
}

const ALL: [Frontend; 4] = [
    Frontend::External,
    Frontend::ExternalLocal,
    Frontend::LoadBalancer,
    Frontend::LoadBalancerLocal,
];

fn with(frontend: Frontend) -> Service {
    let mut service = service("web", "10.96.0.1");
    service.ports = vec![Port::new("http", 80)];
    match frontend {
        Frontend::External | Frontend::ExternalLocal => service.external_ips = vec![ADDRESS.to_owned()],
        Frontend::LoadBalancer | Frontend::LoadBalancerLocal => {
            service.service_type = ServiceType::LoadBalancer;
            service.ingress = vec![Ingress {
                ip: ADDRESS.into(),
                mode: Default::default(),
            }];
        }
    }
    if matches!(frontend, Frontend::ExternalLocal | Frontend::LoadBalancerLocal) {
        service.external_traffic_policy = TrafficPolicy::Local;
        service.health_check_node_port = if frontend == Frontend::LoadBalancerLocal {
            32_000
        } else {
            0
        };
    }
    service
}

fn end(proxier: &mut Proxier) -> End {
    let tracer = Tracer::of_kernel(proxier.kernel_mut());
    let to = SocketAddr::new(ADDRESS.parse().unwrap(), 80);
    tracer.trace(Packet::new(
        Some("eth0"),
        "8.8.8.8".parse().unwrap(),
        to,
        Protocol::Tcp,
    ))
}

#[test]
fn an_address_is_served_while_the_set_entry_for_its_new_kind_or_policy_is_refused() {
    for before in ALL {
        for after in ALL.into_iter().filter(|after| *after != before) {
            for refused in [
                "add KUBE-EXTERNAL-IP ",
                "add KUBE-EXTERNAL-IP-LOCAL ",
                "add KUBE-LOAD-BALANCER ",
                "add KUBE-LOAD-BALANCER-LOCAL ",
            ] {
                let when = format!("{before:?} to {after:?}, {refused}");
                let (kernel, faults) = Faults::of_kernel(kernel());
                let mut proxier = proxier(ipv4_config(), kernel);
                let mut now = Instant::now();
                upsert(&mut proxier, with(before));
                // Endpoint 1 is on this node.
                endpoints(&mut proxier, "web", &[1]);
                assert!(proxier.sync(now).unwrap().is_success());
                assert!(matches!(end(&mut proxier), End::Served(_)), "{when}");
                faults.refuse(refused);
                upsert(&mut proxier, with(after));
                for round in 0..6 {
                    let synced = proxier.sync(now).unwrap();
                    let end = end(&mut proxier);
                    assert!(
                        matches!(end, End::Served(_)),
                        "{when}, round {round}: {end}\n{}",
                        synced.plan
                    );
                    if round % 2 == 1 {
                        proxier.resync();
                    }
                    now = synced.next.map_or(now, |next| next.max(now)) + Duration::from_millis(1);
                }
                faults.end();
                now += Duration::from_secs(400);
                for _ in 0..3 {
                    proxier.sync(now).unwrap();
                }
                let last = proxier.sync(now).unwrap();
                assert!(last.is_success() && last.plan.is_empty(), "{when}: {last}");
                assert!(matches!(end(&mut proxier), End::Served(_)), "{when}");
                proxier.resync();
                let again = proxier.sync(now).unwrap();
                assert!(again.plan.is_empty(), "{when}: {}", again.plan);
            }
        }
    }
}
