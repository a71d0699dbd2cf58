//! The data path of `docs/new-data-path.md`: it passes the contract, and leaves a node that another mode serves.
#![cfg(feature = "fake")]
#![allow(clippy::unwrap_used, reason = "a test reports errors by panicking")]

#[path = "new_data_path/balancer.rs"]
mod balancer;
#[allow(dead_code, reason = "the defects of the example are for another test")]
mod example;
#[path = "new_data_path/retiring.rs"]
mod retiring;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::ops::Range;
use std::time::Instant;

use kernlink_engine::contract::{self, Calls, Fixture, Host, Random, Request, RetireFixture};
use kernlink_engine::retire::{Retire, remove_all};
use kernlink_engine::services::{Change, Config, Kind, ObjectChange, ObjectName, Port, Service, SourceId};
use kernlink_engine::{DataPath, Proxier};

use crate::balancer::Balancer;
use crate::example::host::{ExampleFixture, ExampleHost, Kernel};
use crate::retiring::Retiring;

kernlink_engine::contract_tests!(BalancerFixture::default());
kernlink_engine::retire_tests!(BalancerFixture::default());

/// The host of the example, on which the balancer runs.
#[derive(Clone, Debug)]
struct BalancerHost(ExampleHost);

impl Host for BalancerHost {
    type DataPath = Balancer;

    fn kernel(&self) -> Kernel {
        self.0.kernel()
    }

    fn owned(&self) -> String {
        self.0.owned()
    }

    fn foreign(&self) -> String {
        self.0.foreign()
    }

    fn served(&self, requests: &[Request]) -> Vec<BTreeSet<SocketAddr>> {
        self.0.served(requests)
    }

    fn damage(&self, random: &mut Random) -> String {
        self.0.damage(random)
    }

    fn problems(&self) -> Vec<String> {
        self.0.problems()
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct BalancerFixture(ExampleFixture);

impl Fixture for BalancerFixture {
    type DataPath = Balancer;
    type Host = BalancerHost;

    fn seeds(&self) -> Range<u64> {
        contract::seeds(16)
    }

    fn config(&self) -> Config {
        self.0.config().services
    }

    fn host(&self, calls: &Calls) -> BalancerHost {
        BalancerHost(self.0.host(calls))
    }
}

impl RetireFixture for BalancerFixture {
    fn retiring(&self, host: &BalancerHost) -> Box<dyn Retire> {
        let kernel = host.kernel();
        Box::new(Retiring { kernel })
    }
}

/// Adds two Services.
fn add_services<M: DataPath>(proxier: &mut Proxier<M>) {
    let service = |name: &str, address: &str| {
        Service::new(ObjectName::new("default", name))
            .with_cluster_ip(address)
            .with_port(Port::new("http", 80))
    };
    let services = vec![service("a", "10.96.0.1"), service("b", "10.96.0.2")];
    proxier.change(SourceId(0), Change::Services(ObjectChange::ReplaceAll(services)));
    for kind in [Kind::Service, Kind::EndpointSlice] {
        proxier.change(SourceId(0), Change::synced(kind));
    }
}

/// A host on which the balancer served two Services until its process ended.
fn served_before() -> BalancerHost {
    let fixture = BalancerFixture::default();
    let host = fixture.host(&Calls::default());
    let mut before = Proxier::<Balancer>::new(&fixture.config(), host.kernel()).unwrap();
    add_services(&mut before);
    assert!(before.sync(Instant::now()).unwrap().is_success());
    assert_eq!(host.owned().lines().count(), 4);
    host
}

#[test]
fn without_a_serving_mode_everything_is_removed() {
    let host = served_before();
    let foreign = host.foreign();
    let kernel = host.kernel();
    let removed = remove_all(&mut [Box::new(Retiring { kernel })], Instant::now());
    assert_eq!(removed.done, BTreeMap::from([("the example", 4)]));
    assert_eq!((removed.failures, removed.kept), (vec![], vec![]));
    assert_eq!((host.owned(), host.foreign()), (String::new(), foreign));
}

#[test]
fn what_it_left_is_removed_when_another_mode_serves() {
    let left = served_before();
    // The other mode programs another kernel API: here the same objects in another memory.
    let fixture = BalancerFixture::default();
    let serving = fixture.host(&Calls::default());
    let mut proxier = Proxier::<Balancer>::new(&fixture.config(), serving.kernel()).unwrap();
    let kernel = left.kernel();
    proxier.set_retiring(vec![Box::new(Retiring { kernel })]);
    add_services(&mut proxier);
    let mut now = Instant::now();
    for _ in 0..10 {
        now = proxier.sync(now).unwrap().next.unwrap_or(now);
    }
    assert_eq!(
        (left.owned(), serving.owned().lines().count()),
        (String::new(), 4)
    );
}
