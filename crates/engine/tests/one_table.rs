//! The helper for data paths with one kind of objects: the smallest data path, and the contract.
#![cfg(feature = "fake")]
#![allow(clippy::unwrap_used, reason = "a test reports errors by panicking")]

#[path = "one_table/forwards.rs"]
mod forwards;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Instant;

use kernlink_engine::contract::{Calls, Client, Fixture, Host, Random, Request};
use kernlink_engine::services::{
    ArbitratedFrontend, Change, Config, Endpoint, EndpointPort, EndpointSlice, Family, Frontend, FrontendKey,
    InterfaceAddress, ObjectChange, ObjectName, Port, Protocol, Service, SourceId, TrafficPolicy,
};
use kernlink_engine::{Intervals, Objects, OneTable, Proxier, Runner, Schedule};

use crate::forwards::Forwards;

#[test]
fn the_smallest_data_path_serves_a_service() {
    let config = Config::new("node-a");
    let mut proxier = Proxier::<OneTable<Forwards>>::new(&config, Forwards::default()).unwrap();
    let service = Service::new(ObjectName::new("default", "web"))
        .with_cluster_ip("10.96.0.1")
        .with_port(Port::new("http", 80));
    let slice = EndpointSlice::new(ObjectName::new("default", "web-1"), "web", Family::Ipv4)
        .with_port(EndpointPort::new("http", 8080))
        .with_endpoint(Endpoint::new([10, 244, 0, 2].into()));
    let source = SourceId(0);
    assert_eq!(proxier.replace_all(source, vec![service], vec![slice]), []);
    assert_eq!(
        proxier.plan(Instant::now()).unwrap().to_string(),
        "# write objects\n[1] write forward 10.96.0.1:80/TCP: [10.244.0.2:8080]\n"
    );
    assert!(proxier.sync(Instant::now()).unwrap().is_success());
    assert_eq!(proxier.state().table().len(), 1);
    let gone = ObjectChange::ReplaceAll(Vec::new());
    proxier.change(source, Change::Services(gone));
    assert_eq!(
        proxier.sync(Instant::now()).unwrap().plan.to_string(),
        "# delete objects\n[1] delete forward 10.96.0.1:80/TCP\n"
    );
    assert_eq!(proxier.into_kernel().list().unwrap(), []);
}

#[test]
fn a_runner_reports_the_events_of_sources_and_of_syncs_by_one_function() {
    let config = Config::new("node-a");
    let proxier = Proxier::<OneTable<Forwards>>::new(&config, Forwards::default()).unwrap();
    let (sender, events) = std::sync::mpsc::channel();
    let runner = Runner::start(proxier, Schedule::new(Intervals::default()), move |notice| {
        for event in notice.events() {
            let _ = sender.send(event.to_string());
        }
    })
    .unwrap();
    let service = |name, address: IpAddr| {
        let service = Service::new(ObjectName::new("default", name));
        service.with_cluster_ip(address).with_port(Port::new("http", 80))
    };
    let address: IpAddr = [10, 96, 0, 1].into();
    // A conflict is found by a sync, an invalid address when the object is delivered.
    let mut invalid = service("c", address);
    invalid.cluster_ip = "10.96.0".to_owned();
    let services = vec![service("a", address), service("b", address), invalid];
    runner.replace_all(SourceId(0), services, Vec::new());
    let mut missing = vec!["10.96.0", "default/b"];
    while !missing.is_empty() {
        let event = events.recv_timeout(std::time::Duration::from_secs(60)).unwrap();
        missing.retain(|text| !event.contains(text));
    }
    runner.stop().unwrap();
}

kernlink_engine::contract_tests!(MemoryFixture);

/// Where a forward leads, and whom it admits.
#[derive(Clone, Debug, Default, PartialEq)]
struct Forward {
    /// `None` for one of another program.
    frontend: Option<Frontend>,
    endpoints: BTreeSet<SocketAddr>,
}

/// Forwards, each with whether the data path owns it.
type Owned = BTreeMap<FrontendKey, (bool, Forward)>;

/// Clones share the memory.
#[derive(Clone, Debug)]
struct Memory {
    forwards: Arc<Mutex<Owned>>,
    calls: Calls,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum MemoryError {
    Refused,
    Unknown,
    Unreadable,
    Torn,
}

impl fmt::Display for MemoryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MemoryError::Refused => "refused",
            MemoryError::Unknown => "the outcome is unknown",
            MemoryError::Unreadable => "the forwards cannot be read",
            MemoryError::Torn => "the forwards changed while they were listed",
        })
    }
}

impl std::error::Error for MemoryError {}

const INTERFACES: [&str; 2] = ["192.0.2.1", "2001:db8::1"];

impl Memory {
    fn lock(&self) -> MutexGuard<'_, Owned> {
        self.forwards.lock().unwrap()
    }

    fn print(&self, is_owned: bool) -> String {
        let forwards = self.lock().clone().into_iter();
        let forwards = forwards.filter(|(_, (of, _))| *of == is_owned);
        let print = |(key, (_, forward)): (FrontendKey, (bool, Forward))| {
            let ranges = forward.frontend.map(|frontend| frontend.source_ranges);
            format!("{key} {:?} {ranges:?}\n", forward.endpoints)
        };
        forwards.map(print).collect()
    }
}

impl Objects for Memory {
    type Key = FrontendKey;
    type Value = Forward;
    type Error = MemoryError;

    const KIND: &'static str = "forward";

    fn desired(frontend: &ArbitratedFrontend<'_>) -> Option<(FrontendKey, Forward)> {
        // An address may be restricted and open: as load-balancer IP and as external IP.
        let of_key = frontend.frontends();
        let of_key = of_key.min_by_key(|frontend| !frontend.source_ranges.is_empty())?;
        let endpoints = match of_key.policy {
            TrafficPolicy::Cluster => &frontend.owner.endpoints.cluster,
            TrafficPolicy::Local => &frontend.owner.endpoints.local,
        };
        let endpoints = endpoints.iter().map(|to| SocketAddr::new(to.address, to.port));
        let value = Forward {
            frontend: Some(of_key.clone()),
            endpoints: endpoints.collect(),
        };
        Some((frontend.key, value))
    }

    fn interface_addresses(&mut self) -> Result<Vec<InterfaceAddress>, MemoryError> {
        let addresses = INTERFACES.map(|address| InterfaceAddress::new("eth0", address.parse().unwrap()));
        Ok(addresses.into())
    }

    fn list(&mut self) -> Result<Vec<(FrontendKey, Forward)>, MemoryError> {
        let list = || Ok((self.lock().clone(), true));
        let tear = |(mut forwards, _): (Owned, bool)| {
            forwards.pop_first();
            (forwards, false)
        };
        let unreadable = || MemoryError::Unreadable;
        let (forwards, is_complete) = self.calls.list(&"list", list, unreadable, tear)?;
        if !is_complete {
            return Err(MemoryError::Torn);
        }
        let owned = forwards.into_iter().filter(|(_, (is_owned, _))| *is_owned);
        Ok(owned.map(|(key, (_, forward))| (key, forward)).collect())
    }

    fn write(&mut self, key: &FrontendKey, value: &Forward) -> Result<(), MemoryError> {
        let write = || {
            self.lock().insert(*key, (true, value.clone()));
            Ok(())
        };
        let calls = &self.calls;
        let refused = || MemoryError::Refused;
        calls.change(&format!("write {key}"), write, refused, || MemoryError::Unknown)
    }

    fn delete(&mut self, key: &FrontendKey) -> Result<(), MemoryError> {
        let delete = || {
            self.lock().remove(key);
            Ok(())
        };
        let calls = &self.calls;
        let refused = || MemoryError::Refused;
        calls.change(&format!("delete {key}"), delete, refused, || MemoryError::Unknown)
    }

    fn is_outcome_unknown(error: &MemoryError) -> bool {
        *error == MemoryError::Unknown
    }
}

impl Host for Memory {
    type DataPath = OneTable<Memory>;

    fn kernel(&self) -> Memory {
        self.clone()
    }

    fn owned(&self) -> String {
        self.print(true)
    }

    fn foreign(&self) -> String {
        self.print(false)
    }

    fn served(&self, requests: &[Request]) -> Vec<BTreeSet<SocketAddr>> {
        let forwards = self.lock();
        let serve = |request: &Request| {
            let (_, forward) = forwards.get(&request.frontend)?;
            let frontend = forward.frontend.as_ref()?;
            let ranges = &frontend.source_ranges;
            let is_admitted = match request.client {
                _ if ranges.is_empty() => true,
                Client::Node => frontend.admits_node,
                Client::Host(address) => ranges.iter().any(|range| range.contains(&address)),
            };
            is_admitted.then(|| forward.endpoints.clone())
        };
        let served = requests.iter().map(serve);
        served.map(Option::unwrap_or_default).collect()
    }

    fn damage(&self, random: &mut Random) -> String {
        let mut forwards = self.lock();
        let owned = forwards.iter().filter(|(_, (is_owned, _))| *is_owned);
        let owned: Vec<FrontendKey> = owned.map(|(key, _)| *key).collect();
        let Some(key) = random.choose(owned) else {
            return String::new();
        };
        if random.below(2) == 0 {
            forwards.remove(&key);
            return format!("{key} is deleted");
        }
        let (_, forward) = forwards.get_mut(&key).unwrap();
        forward.endpoints.clear();
        format!("{key} has no endpoints")
    }
}

/// Forwards in memory, and one of another program.
#[derive(Clone, Copy, Debug)]
struct MemoryFixture;

impl Fixture for MemoryFixture {
    type DataPath = OneTable<Memory>;
    type Host = Memory;

    fn config(&self) -> Config {
        let mut config = Config::new("node-a");
        config.node_ips = INTERFACES.map(|address| address.parse().unwrap()).into();
        config
    }

    fn host(&self, calls: &Calls) -> Memory {
        let memory = Memory {
            forwards: Arc::default(),
            calls: calls.clone(),
        };
        let key = FrontendKey {
            address: [198, 51, 100, 200].into(),
            protocol: Protocol::Tcp,
            port: 1,
        };
        memory.lock().insert(key, (false, Forward::default()));
        memory
    }
}
