//! A proxier of userspace mode on the fakes, and Services.

use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kernlink_dummylink::{LinkAddress, LinkName};
use kernlink_iptables_restore::{Error, Fake, Iptables, Operation, Ruleset, Save, Table};
use kernlink_services::{
    Change, Endpoint, EndpointPort, EndpointSlice, Family, Kind, ObjectChange, ObjectName, Port, Service,
    SourceId,
};
use kernlink_userspace::data_path::sockets::FakeSockets;
use kernlink_userspace::data_path::{Config, Kernel, Proxier, Synced};

pub(crate) const NODE: [u8; 4] = [192, 0, 2, 10];

/// The fake tables, which the test looks at and changes.
#[derive(Clone, Default)]
pub(crate) struct Tables(pub(crate) Arc<Mutex<Fake>>, Arc<Mutex<u32>>);

impl Iptables for Tables {
    fn execute(&mut self, operations: &[Operation]) -> Vec<Result<(), Error>> {
        self.0.lock().unwrap().execute(operations)
    }

    fn save(&mut self, request: &Save) -> Result<Ruleset, Error> {
        let mut failing = self.1.lock().unwrap();
        if *failing > 0 {
            *failing -= 1;
            return Err(Error::custom("read tables", "the program did not end in time"));
        }
        self.0.lock().unwrap().save(request)
    }
}

impl Tables {
    /// So many readings fail from now on.
    pub(crate) fn fail_readings(&self, count: u32) {
        *self.1.lock().unwrap() = count;
    }

    /// A chain as `iptables-save` prints its rules.
    pub(crate) fn chain(&self, family: Family, table: Table, chain: &str) -> Vec<String> {
        let ruleset = self.0.lock().unwrap().ruleset(family);
        let found = ruleset.chain(table, &chain.parse().unwrap());
        found.map_or_else(Vec::new, |chain| {
            chain.rules().map(|rule| format!("{rule}")).collect()
        })
    }

    /// The rules of the five portal chains, each after the name of its chain.
    pub(crate) fn portal_rules(&self, family: Family) -> Vec<String> {
        let chains = [
            (Table::Nat, "KUBE-PORTALS-CONTAINER"),
            (Table::Nat, "KUBE-PORTALS-HOST"),
            (Table::Nat, "KUBE-NODEPORT-CONTAINER"),
            (Table::Nat, "KUBE-NODEPORT-HOST"),
            (Table::Filter, "KUBE-NODEPORT-NON-LOCAL"),
        ];
        let mut rules = Vec::new();
        for (table, chain) in chains {
            let found = self.chain(family, table, chain);
            rules.extend(found.into_iter().map(|rule| format!("{chain} {rule}")));
        }
        rules
    }

    pub(crate) fn edit(&self, input: &str) {
        let family = Family::Ipv4;
        let mut fake = self.0.lock().unwrap();
        let mut ruleset = fake.ruleset(family);
        ruleset.merge(input.parse().unwrap());
        fake.set_ruleset(family, ruleset);
    }
}

pub(crate) struct Fixture {
    pub(crate) proxier: Proxier,
    pub(crate) tables: Tables,
    pub(crate) sockets: FakeSockets,
    pub(crate) now: Instant,
}

pub(crate) fn config() -> Config {
    let mut config = Config::new("node-a");
    config.services.node_ips = vec![NODE.into(), "2001:db8::10".parse().unwrap()];
    config.port_range = "40001-40099".parse().unwrap();
    config
}

impl Fixture {
    pub(crate) fn new() -> Self {
        Self::with(&config(), Tables::default(), FakeSockets::default())
    }

    /// A proxier on these tables and sockets: with those of another fixture, a new process on the same node.
    pub(crate) fn with(config: &Config, tables: Tables, sockets: FakeSockets) -> Self {
        let node =
            [NODE.into(), "2001:db8::10".parse().unwrap()].map(|address| LinkAddress::host(address).unwrap());
        let links = kernlink_dummylink::Fake::new().with_link(LinkName::new("eth0").unwrap(), None, &node);
        let mut kernel = Kernel::fake();
        kernel.rules = Box::new(tables.clone());
        kernel.sockets = Box::new(sockets.clone());
        kernel.links = Box::new(links);
        Self {
            proxier: Proxier::with_data_path(config, kernel).unwrap(),
            tables,
            sockets,
            now: Instant::now(),
        }
    }

    pub(crate) fn services(&mut self, services: Vec<Service>) -> &mut Self {
        let slices = services
            .iter()
            .flat_map(|service| slices(&service.name, &[1, 2]))
            .collect();
        for change in [
            Change::Services(ObjectChange::ReplaceAll(services)),
            Change::synced(Kind::Service),
            Change::EndpointSlices(ObjectChange::ReplaceAll(slices)),
            Change::synced(Kind::EndpointSlice),
        ] {
            self.proxier.change(SourceId(0), change);
        }
        self
    }

    pub(crate) fn change(&mut self, service: Service) -> &mut Self {
        let change = Change::Services(ObjectChange::Upsert(service));
        self.proxier.change(SourceId(0), change);
        self
    }

    pub(crate) fn delete(&mut self, name: &str) -> &mut Self {
        let name = ObjectName::new("default", name);
        self.proxier
            .change(SourceId(0), Change::Services(ObjectChange::Delete(name)));
        self
    }

    /// Sets the endpoints of a Service: the numbers of pods.
    pub(crate) fn endpoints(&mut self, service: &str, pods: &[u8]) -> &mut Self {
        for slice in slices(&ObjectName::new("default", service), pods) {
            self.proxier
                .change(SourceId(0), Change::EndpointSlices(ObjectChange::Upsert(slice)));
        }
        self
    }

    pub(crate) fn try_sync(&mut self) -> Synced {
        self.now += Duration::from_secs(400);
        self.proxier.sync(self.now).unwrap()
    }

    /// Syncs; every step must succeed, and reading the kernel again must find nothing to do.
    pub(crate) fn sync(&mut self) -> Synced {
        let synced = self.try_sync();
        assert!(synced.is_success(), "{synced}");
        self.proxier.resync();
        let again = self.try_sync();
        assert!(again.plan.is_empty(), "{}", again.plan);
        synced
    }

    /// The listening ports and what they serve.
    pub(crate) fn listening(&self) -> Vec<String> {
        let state = self.sockets.lock();
        let listeners = state.listeners.iter().map(|(key, serving)| {
            let backends: Vec<String> = serving
                .backends
                .iter()
                .map(|backend| backend.address.to_string())
                .collect();
            format!("{key} -> {}", backends.join(" "))
        });
        listeners.collect()
    }

    pub(crate) fn claimed(&self) -> Vec<String> {
        self.sockets
            .lock()
            .claims
            .iter()
            .map(ToString::to_string)
            .collect()
    }
}

/// The slices of a Service, one of each family, with port 8080 of the pods with these numbers.
fn slices(service: &ObjectName, pods: &[u8]) -> Vec<EndpointSlice> {
    let slice = |family: Family| {
        let name = format!("{}-{family}", service.name);
        let name = ObjectName::new(service.namespace.clone(), name);
        let mut slice =
            EndpointSlice::new(name, service.name.clone(), family).with_port(EndpointPort::new("http", 8080));
        for pod in pods {
            let address: IpAddr = match family {
                Family::Ipv4 => [10, 244, 0, *pod].into(),
                Family::Ipv6 => [0xfd00, 0x244, 0, 0, 0, 0, 0, u16::from(*pod)].into(),
            };
            slice = slice.with_endpoint(Endpoint::new(address));
        }
        slice
    };
    Family::ALL.map(slice).into()
}

/// The Service of the worked example: port `http` 80 at 10.96.0.NUMBER.
pub(crate) fn web(name: &str, number: u8) -> Service {
    Service::new(ObjectName::new("default", name))
        .with_cluster_ip(format!("10.96.0.{number}"))
        .with_port(Port::new("http", 80))
}
