//! A proxier of userspace mode on the fakes, and Services.

use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kernlink_conntrack::{Conntrack, Filter, Flow, Flows};
use kernlink_dummylink::{LinkAddress, LinkName};
use kernlink_iptables_restore::{
    Edit, Error, Fake, Iptables, Operation, Refused, RefusedKind, Ruleset, Save, Table,
};
use kernlink_services::{
    Change, Endpoint, EndpointPort, EndpointSlice, Family, Kind, ObjectChange, ObjectName, Port, Protocol,
    Service, ServiceType, SourceId,
};
use kernlink_userspace::data_path::sockets::FakeSockets;
use kernlink_userspace::data_path::{Config, Kernel, Proxier, Synced};

pub(crate) const NODE: [u8; 4] = [192, 0, 2, 10];
/// An address of `kube-ipvs0`.
pub(crate) const LEFT: [u8; 4] = [203, 0, 113, 99];

/// The fake tables, which the test looks at and changes.
#[derive(Clone, Default)]
pub(crate) struct Tables(
    pub(crate) Arc<Mutex<Fake>>,
    Arc<Mutex<(u32, u32)>>,
    Arc<Mutex<Option<String>>>,
    Arc<Mutex<usize>>,
);

impl Iptables for Tables {
    fn execute(&mut self, operations: &[Operation]) -> Vec<Result<(), Error>> {
        let refused = self.2.lock().unwrap().clone();
        let mut fake = self.0.lock().unwrap();
        *self.3.lock().unwrap() += operations.len();
        let execute = |operation: &Operation| {
            let refused = refused.as_deref();
            match refused.and_then(|text| refused_edit(operation, text)) {
                Some(error) => Err(error),
                None => fake.execute(std::slice::from_ref(operation)).remove(0),
            }
        };
        operations.iter().map(execute).collect()
    }

    fn save(&mut self, request: &Save) -> Result<Ruleset, Error> {
        let mut readings = self.1.lock().unwrap();
        let (before, failing) = &mut *readings;
        if *before > 0 {
            *before -= 1;
        } else if *failing > 0 {
            *failing -= 1;
            return Err(Error::custom("read tables", "the program did not end in time"));
        }
        self.0.lock().unwrap().save(request)
    }
}

/// The refusal of an input of which a line that adds a rule contains the text.
fn refused_edit(operation: &Operation, text: &str) -> Option<Error> {
    let Operation::Restore(restore) = operation else {
        return None;
    };
    let is_refused = |edit: &&Edit| edit.to_string().starts_with("-A") && edit.to_string().contains(text);
    let (table, edit) = restore
        .tables()
        .find_map(|(table, edits)| Some((table, edits.iter().find(is_refused)?.clone())))?;
    Some(Error::Refused {
        tool: "iptables-restore".into(),
        refused: Box::new(Refused::Edit { table, edit }),
        kind: RefusedKind::Other,
        text: "refused by the test".into(),
        status: Some(1),
        applied: Vec::new(),
    })
}

/// The fake connection tracking, which the test looks at and changes.
#[derive(Clone, Default)]
pub(crate) struct Tracking {
    pub(crate) fake: Arc<Mutex<kernlink_conntrack::Fake>>,
    /// So many passes fail.
    pub(crate) failing: Arc<Mutex<u32>>,
    /// How often the table was listed.
    pub(crate) listings: Arc<Mutex<u32>>,
}

impl Conntrack for Tracking {
    fn execute(
        &mut self,
        operations: &[kernlink_conntrack::Operation],
    ) -> Vec<Result<(), kernlink_conntrack::Error>> {
        self.fake.lock().unwrap().execute(operations)
    }

    fn flows<'a>(&'a mut self, filter: &Filter) -> Result<Flows<'a>, kernlink_conntrack::Error> {
        *self.listings.lock().unwrap() += 1;
        let mut failing = self.failing.lock().unwrap();
        if *failing > 0 {
            *failing -= 1;
            return Err(kernlink_conntrack::Error::custom(
                "list flows",
                "failed by the test",
            ));
        }
        let flows = self.fake.lock().unwrap().list(filter)?;
        Ok(Flows::new(flows.into_iter().map(Ok)))
    }
}

impl Tracking {
    /// Adds a UDP flow from a client: where it sends to, and where the replies come from.
    pub(crate) fn add(&self, client: &str, destination: &str, reply_source: &str) {
        let [client, destination, reply_source] =
            [client, destination, reply_source].map(|address| address.parse().unwrap());
        let flow = Flow::new(
            kernlink_conntrack::Tuple::udp(client, destination),
            kernlink_conntrack::Tuple::udp(reply_source, client),
        );
        self.fake.lock().unwrap().insert(flow).unwrap();
    }

    /// The flows: client port, destination, reply source. Sorted.
    pub(crate) fn all(&self) -> Vec<String> {
        let fake = self.fake.lock().unwrap();
        let text = |flow: &Flow| {
            let client = flow.original.source_socket().port();
            let to = flow.original.destination_socket();
            format!("{client} {to} {}", flow.reply.source_socket())
        };
        let mut all: Vec<String> = fake.all().map(text).collect();
        all.sort();
        all
    }
}

impl Tables {
    /// Inputs with a line that adds a rule with this text are refused. `None`: all are accepted.
    pub(crate) fn refuse(&self, text: Option<&str>) {
        *self.2.lock().unwrap() = text.map(str::to_owned);
    }

    /// The number of inputs since the last call, also of those that were refused.
    pub(crate) fn take_inputs(&self) -> usize {
        std::mem::take(&mut *self.3.lock().unwrap())
    }

    /// So many readings fail from now on.
    pub(crate) fn fail_readings(&self, count: u32) {
        self.fail_readings_after(0, count);
    }

    /// So many readings fail after others that do not.
    pub(crate) fn fail_readings_after(&self, others: u32, count: u32) {
        *self.1.lock().unwrap() = (others, count);
    }

    /// The tool cannot print table `nat` of these families from now on, but all others.
    pub(crate) fn set_unreadable(&self, families: &[Family]) {
        let mut fake = self.0.lock().unwrap();
        let mut tables = Fake::new();
        for family in Family::ALL {
            tables.set_ruleset(family, fake.ruleset(family));
        }
        for family in families {
            tables.set_unreadable(*family, Table::Nat);
        }
        *fake = tables;
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
    pub(crate) tracking: Tracking,
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
        Self::tracking(config, tables, sockets, Tracking::default())
    }

    /// The same with these flows.
    pub(crate) fn tracking(
        config: &Config,
        tables: Tables,
        sockets: FakeSockets,
        tracking: Tracking,
    ) -> Self {
        let node =
            [NODE.into(), "2001:db8::10".parse().unwrap()].map(|address| LinkAddress::host(address).unwrap());
        // IPVS mode left a virtual IP.
        let left = LinkAddress::host(LEFT.into()).unwrap();
        let links = kernlink_dummylink::Fake::new()
            .with_link(LinkName::new("eth0").unwrap(), None, &node)
            .with_link(LinkName::new("kube-ipvs0").unwrap(), Some("dummy"), &[left]);
        let mut kernel = Kernel::fake();
        kernel.rules = Box::new(tables.clone());
        kernel.sockets = Box::new(sockets.clone());
        kernel.links = Box::new(links);
        kernel.conntrack = Box::new(tracking.clone());
        Self {
            proxier: Proxier::new(config, kernel).unwrap(),
            tables,
            sockets,
            tracking,
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
        self.endpoints_on("node-b", service, pods)
    }

    /// Sets the endpoints of a Service: the numbers of pods of a node.
    pub(crate) fn endpoints_on(&mut self, node: &str, service: &str, pods: &[u8]) -> &mut Self {
        for slice in slices_on(node, &ObjectName::new("default", service), pods) {
            self.proxier
                .change(SourceId(0), Change::EndpointSlices(ObjectChange::Upsert(slice)));
        }
        self
    }

    pub(crate) fn set_config(&mut self, config: &Config) -> &mut Self {
        self.proxier.set_config(config).unwrap();
        self
    }

    /// The rules of a chain in which a text occurs.
    pub(crate) fn rules_with(&self, family: Family, chain: &str, text: &str) -> Vec<String> {
        let rules = self.tables.portal_rules(family).into_iter();
        let is_found = |rule: &String| rule.starts_with(&format!("{chain} ")) && rule.contains(text);
        rules.filter(is_found).collect()
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

fn slices(service: &ObjectName, pods: &[u8]) -> Vec<EndpointSlice> {
    slices_on("node-b", service, pods)
}

/// The slices of a Service, one of each family, with the ports 8080/TCP and 5353/UDP of the pods with these numbers.
fn slices_on(node: &str, service: &ObjectName, pods: &[u8]) -> Vec<EndpointSlice> {
    let slice = |family: Family| {
        let name = format!("{}-{family}", service.name);
        let name = ObjectName::new(service.namespace.clone(), name);
        let dns = EndpointPort::new("dns", 5353).with_protocol(Protocol::Udp);
        let mut slice = EndpointSlice::new(name, service.name.clone(), family)
            .with_port(EndpointPort::new("http", 8080))
            .with_port(dns);
        for pod in pods {
            let address: IpAddr = match family {
                Family::Ipv4 => [10, 244, 0, *pod].into(),
                Family::Ipv6 => [0xfd00, 0x244, 0, 0, 0, 0, 0, u16::from(*pod)].into(),
            };
            slice = slice.with_endpoint(Endpoint::new(address).with_node(node));
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

/// The same with node port 31080.
pub(crate) fn with_node_port(name: &str, number: u8) -> Service {
    let mut service = web(name, number);
    service.service_type = ServiceType::NodePort;
    service.ports = vec![Port::new("http", 80).with_node_port(31_080)];
    service
}

/// Service `dns`: port `dns` 53/UDP at 10.96.0.10.
pub(crate) fn dns() -> Service {
    Service::new(ObjectName::new("default", "dns"))
        .with_cluster_ip("10.96.0.10")
        .with_port(Port::new("dns", 53).with_protocol(Protocol::Udp))
}
