//! nftables mode on a node that another mode serves.
#![cfg(feature = "fake")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test reports errors by panicking"
)]

#[path = "support/node.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod node;
#[path = "support/services.rs"]
#[allow(dead_code, reason = "other tests use the rest")]
mod services;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use kernlink_engine::contract::{Calls, Client, Request};
use kernlink_engine::retire::{Retire, Retired, RetiredOutcome, Round, Unserved, leftovers, remove_all};
use kernlink_netlink::Errno;
use kernlink_nftables::{
    BaseChain, Chain, ChainType, Data, DataType, Element, ElementIter, Elements, Error, Fake, Flowtable,
    Hook, ItemKey, Nftables, Object, Operation, Packet, PacketFate, RejectKind, Rule, RuleBuilder, Set,
    SetKey, Table, TableFamily, TableKey, Value, Verdict,
};
use kernlink_nftables_mode::retire::Retiring;
use kernlink_services::{
    Change, Endpoint, EndpointPort, Family, FrontendKey, ObjectChange, ObjectName, Port, Protocol,
};

use crate::node::{Node, SharedTables};
use crate::services::{Process, balanced, service, slice, with_local_policy};

fn key(address: [u8; 4], port: u16) -> FrontendKey {
    FrontendKey {
        address: address.into(),
        protocol: Protocol::Tcp,
        port,
    }
}

fn unserved(service: &str, ranges: &[&str]) -> Unserved {
    let ranges: Vec<ipnet::IpNet> = ranges.iter().map(|range| range.parse().unwrap()).collect();
    Unserved {
        service: ObjectName::new("ns", service),
        source_ranges: Arc::from(ranges),
    }
}

fn retire(retiring: &mut Retiring, unserved: &BTreeMap<FrontendKey, Unserved>, executes: bool) -> Retired {
    retiring.retire(&Round {
        has_serving_mode: true,
        now: Instant::now(),
        unserved,
        has_served: true,
        kept: &|_| false,
        executes,
    })
}

fn is_served(node: &Node, frontend: FrontendKey) -> bool {
    let client = Client::Host([198, 19, 0, 7].into());
    !node.served(&[Request { frontend, client }])[0].is_empty()
}

#[test]
fn a_frontend_stays_until_the_serving_mode_serves_it_and_the_tables_are_deleted_with_the_last_one() {
    let mut process = Process::new();
    for last in 1..=3 {
        process.service(service(&format!("s{last}"), last));
        process.endpoints(&format!("s{last}"), &[(last, false)]);
    }
    process.sync();
    let node = process.node;
    let foreign = node.foreign();
    let mut retiring = Retiring::new(Box::new(node.tables.clone()));
    assert_eq!(retiring.read(Instant::now(), &|_| false), Ok(true));
    assert_eq!(retiring.is_serving(), Ok(true));
    let (first, second) = (key([10, 96, 0, 1], 80), key([10, 96, 0, 2], 80));
    // The last one is not a frontend of nftables mode.
    let waiting = BTreeMap::from([
        (first, unserved("s1", &[])),
        (key([10, 96, 0, 9], 80), unserved("s9", &[])),
    ]);
    let before = node.owned();
    let planned = retire(&mut retiring, &waiting, false);
    assert_eq!(node.owned(), before);
    let retired = retire(&mut retiring, &waiting, true);
    assert_eq!(planned.steps.len(), retired.steps.len());
    assert_eq!(retired.held, [first].into());
    assert!(!retired.is_gone);
    assert_eq!(
        [first, second].map(|frontend| is_served(&node, frontend)),
        [true, false]
    );
    let retired = retire(&mut retiring, &BTreeMap::new(), true);
    assert_eq!(retired.steps.len(), 1);
    assert_eq!(retired.steps[0].command, "nft delete table ip kernlink");
    assert!(retire(&mut retiring, &BTreeMap::new(), true).is_gone);
    assert_eq!(retiring.read(Instant::now(), &|_| false), Ok(false));
    assert_eq!(retiring.is_serving(), Ok(false));
    assert_eq!(node.foreign(), foreign);
}

/// The commands of the steps for IPv4. Of IPv6 nothing stays.
fn ipv4(retired: &Retired) -> Vec<&str> {
    let steps = retired.steps.iter();
    steps
        .filter(|step| step.class.family == Some(Family::Ipv4))
        .map(|step| step.command.as_str())
        .collect()
}

/// Whether hooks accept the first packet of a connection of the node to this frontend, without a translation of its destination.
fn passes(node: &Node, frontend: FrontendKey, hooks: &[Hook]) -> bool {
    let mut fake: Fake = node.tables.0.lock().clone();
    let protocol = kernlink_nftables::Protocol::from(frontend.protocol);
    let source = [192, 0, 2, 10].into();
    let packet = Packet::new(source, frontend.address, protocol.0, frontend.port);
    hooks
        .iter()
        .all(|hook| fake.evaluate(*hook, packet.clone()).fate == PacketFate::Accepted)
}

#[test]
fn nothing_refuses_packets_to_frontends_that_the_serving_mode_serves_while_others_stay() {
    let mut config = node::config();
    config.service_cidrs = Some(vec!["10.96.0.0/12".parse().unwrap()]);
    let mut process = Process::on(Node::new(&Calls::default()), &config);
    for last in 1..=2 {
        process.service(service(&format!("s{last}"), last));
        process.endpoints(&format!("s{last}"), &[(last, false)]);
    }
    // Without endpoints.
    process.service(service("s3", 3));
    process.service(service("s4", 4).with_port(Port::new("other", 81)));
    let ports = slice("s4", &[(4, false)]).with_port(EndpointPort::new("other", 8_081));
    process.change(Change::EndpointSlices(ObjectChange::Upsert(ports)));
    process.sync();
    let node = process.node;
    // As packets are that the serving mode accepts before these hooks.
    let hooks = [Hook::Input, Hook::Forward, Hook::Output];
    let keys = [
        ([10, 96, 0, 1], 90),
        ([10, 96, 0, 2], 90),
        ([10, 96, 0, 3], 80),
        ([10, 96, 0, 4], 90),
    ];
    let keys = keys.map(|(address, port)| key(address, port));
    let unallocated = key([10, 96, 1, 1], 80);
    assert_eq!(keys.map(|key| passes(&node, key, &hooks)), [false; 4]);
    assert!(!passes(&node, unallocated, &hooks));
    let mut retiring = Retiring::new(Box::new(node.tables.clone()));
    let waiting = BTreeMap::from([
        (key([10, 96, 0, 1], 80), unserved("s1", &[])),
        (key([10, 96, 0, 4], 81), unserved("s4", &[])),
    ]);
    let retired = retire(&mut retiring, &waiting, true);
    assert_eq!(retired.held, waiting.keys().copied().collect());
    assert_eq!(ipv4(&retired).len(), 1, "one transaction");
    // The other port of the last one is served by the serving mode.
    assert_eq!(
        keys.map(|key| passes(&node, key, &hooks)),
        [false, true, true, true]
    );
    assert!(passes(&node, unallocated, &hooks));
    assert!(waiting.keys().all(|key| is_served(&node, *key)));
    assert_eq!(retire(&mut retiring, &waiting, true).steps.len(), 0);
}

#[test]
fn what_refuses_packets_is_deleted_first_if_one_transaction_cannot_hold_all() {
    let mut process = Process::new();
    process.service(service("s1", 1));
    process.endpoints("s1", &[(1, false)]);
    process.service(service("s2", 2));
    let mut many = slice("s2", &[]);
    for number in 0..4_100_u32 {
        let address = std::net::Ipv4Addr::from(0x0a80_0000 + number);
        many = many.with_endpoint(Endpoint::new(address.into()).with_node("node-b"));
    }
    process.change(Change::EndpointSlices(ObjectChange::Upsert(many)));
    process.sync();
    let node = process.node;
    let mut retiring = Retiring::new(Box::new(node.tables.clone()));
    let waiting = BTreeMap::from([(key([10, 96, 0, 1], 80), unserved("s1", &[]))]);
    let retired = retire(&mut retiring, &waiting, true);
    let commands = ipv4(&retired);
    assert_eq!(commands.len(), 2);
    let first = commands[0].lines().nth(1).unwrap();
    assert_eq!(first, "delete element ip kernlink cluster-ips { 10.96.0.2 }");
    assert_eq!(node.elements(Family::Ipv4, "endpoints").len(), 1);
    assert!(is_served(&node, key([10, 96, 0, 1], 80)));
}

#[test]
fn a_frontend_does_not_stay_if_it_admits_a_client_that_its_ranges_do_not_admit_any_more() {
    let mut process = Process::new();
    let mut restricted = balanced("a", 1);
    restricted.load_balancer_source_ranges = vec!["198.19.0.0/16".into()];
    process.service(restricted);
    process.endpoints("a", &[(1, false)]);
    process.sync();
    let node = process.node;
    let mut retiring = Retiring::new(Box::new(node.tables.clone()));
    let frontend = key([203, 0, 113, 1], 80);
    let held = |retiring: &mut Retiring, ranges: &[&str]| {
        let waiting = BTreeMap::from([(frontend, unserved("a", ranges))]);
        !retire(retiring, &waiting, false).held.is_empty()
    };
    assert!(held(&mut retiring, &[]));
    assert!(held(&mut retiring, &["198.18.0.0/15"]));
    assert!(!held(&mut retiring, &["198.19.0.0/17"]));
    // The cluster IP is not restricted, and would admit all.
    let waiting = BTreeMap::from([(key([10, 96, 0, 1], 80), unserved("a", &["198.19.0.0/16"]))]);
    assert!(retire(&mut retiring, &waiting, false).held.is_empty());
    // Without sources no client is admitted.
    let sources = TableKey::new(Family::Ipv4, "kernlink").set("allowed-sources");
    let mut tables = node.tables.0.lock();
    let elements = tables.list_elements(&sources).unwrap();
    let elements = Elements::new(sources, elements.iter().map(Element::key_only));
    tables
        .apply(&[Operation::delete(ItemKey::Elements(elements))])
        .unwrap();
    drop(tables);
    assert!(held(&mut retiring, &["198.19.0.0/17"]));
}

#[test]
fn the_table_of_kube_proxy_keeps_the_frontends_that_are_not_served_yet() {
    let process = Process::new();
    let node = process.node;
    let table = TableKey::new(Family::Ipv4, "kube-proxy");
    let types = [DataType::Ipv4Address, DataType::Protocol, DataType::Service];
    let ips = Set::map(table.set("service-ips"), &types, &[DataType::Mark]);
    let ports = Set::map(table.set("service-nodeports"), &types[1..], &[DataType::Mark]);
    let cluster_ips = Set::new(table.set("cluster-ips"), &types[..1]);
    let check = table.chain("cluster-ips-check");
    let rules = [
        RuleBuilder::new(check.clone())
            .destination_address()
            .is_in(&cluster_ips)
            .reject(RejectKind::Icmp, Some(3)),
        RuleBuilder::new(check.clone())
            .destination_address()
            .masked(Value::new(&[255, 240, 0, 0]), Value::new(&[0; 4]))
            .equals(std::net::Ipv4Addr::new(10, 96, 0, 0))
            .verdict(Verdict::Drop),
    ];
    let hook = BaseChain::new(ChainType::Filter, Hook::Output, BaseChain::FILTER);
    let frontend = |last: u8| {
        Value::concat([
            std::net::Ipv4Addr::new(10, 96, 0, last).into(),
            Value::protocol(6),
            Value::port(80),
        ])
    };
    let node_port = |port: u16| Value::concat([Value::protocol(6), Value::port(port)]);
    let element = |key: Value| Element::new(key).with_value(Value::host_u32(1));
    let operations = [
        Operation::add(Table::new(table.clone())),
        Operation::add(ips.clone()),
        Operation::add(ports.clone()),
        Operation::add(cluster_ips.clone()),
        Operation::add(Chain::new(check.clone()).with_base(hook)),
        Operation::add(Elements::new(
            cluster_ips.key.clone(),
            [1, 2].map(|last| Element::new(std::net::Ipv4Addr::new(10, 96, 0, last))),
        )),
        Operation::add(Elements::new(
            ips.key.clone(),
            [element(frontend(1)), element(frontend(2))],
        )),
        Operation::add(Elements::new(
            ports.key.clone(),
            [element(node_port(30_001)), element(node_port(30_002))],
        )),
    ];
    node.tables.0.lock().apply(&operations).unwrap();
    let rules = rules.map(|rule| Operation::add(rule.build().unwrap()));
    node.tables.0.lock().apply(&rules).unwrap();
    let refused = |node: &Node| {
        let addresses = [[10, 96, 0, 1], [10, 96, 0, 2], [10, 96, 1, 1]];
        addresses.map(|address| !passes(node, key(address, 90), &[Hook::Output]))
    };
    assert_eq!(refused(&node), [true; 3]);
    let mut retiring = Retiring::new(Box::new(node.tables.clone()));
    let waiting = BTreeMap::from([
        (key([10, 96, 0, 1], 80), unserved("a", &[])),
        (key([192, 0, 2, 1], 30_002), unserved("b", &[])),
    ]);
    let retired = retire(&mut retiring, &waiting, true);
    assert_eq!(retired.held.len(), 2);
    assert_eq!(refused(&node), [true, false, false]);
    let left = |set: &Set| node.tables.0.lock().list_elements(&set.key).unwrap();
    assert_eq!(
        left(&ips)
            .into_iter()
            .map(|element| element.key)
            .collect::<Vec<_>>(),
        [frontend(1)]
    );
    assert_eq!(
        left(&ports)
            .into_iter()
            .map(|element| element.key)
            .collect::<Vec<_>>(),
        [node_port(30_002)]
    );
    assert!(matches!(left(&ips)[0].data, Some(Data::Value(_))));
    let mut modes: [Box<dyn Retire>; 1] = [Box::new(retiring)];
    let removed = remove_all(&mut modes, Instant::now());
    assert_eq!(removed.done, BTreeMap::from([("nftables mode", 1)]));
    assert_eq!(removed.failures, [""; 0]);
    assert_eq!(leftovers(&mut modes, Instant::now()).commands, "");
}

/// The sets from which steps delete elements, in order, each run once.
fn sets_of(commands: &[&str]) -> Vec<String> {
    let lines = commands.iter().flat_map(|command| command.lines());
    let sets = lines.filter_map(|line| {
        line.strip_prefix("delete element ip kernlink ")?
            .split(' ')
            .next()
    });
    let mut sets: Vec<String> = sets.map(str::to_owned).collect();
    sets.dedup();
    sets
}

#[test]
fn what_admits_clients_is_deleted_last_and_the_networks_of_cluster_ips_first() {
    let mut config = node::config();
    config.service_cidrs = Some(vec!["10.96.0.0/12".parse().unwrap()]);
    let mut process = Process::on(Node::new(&Calls::default()), &config);
    process.service(service("s1", 1));
    process.endpoints("s1", &[(1, false)]);
    let mut restricted = with_local_policy(balanced("a", 2));
    restricted.load_balancer_source_ranges = vec!["198.19.0.0/16".into()];
    process.service(restricted);
    process.endpoints("a", &[(2, true)]);
    // Without endpoints.
    process.service(service("s3", 3));
    process.sync();
    let mut retiring = Retiring::new(Box::new(process.node.tables.clone()));
    let waiting = BTreeMap::from([(key([10, 96, 0, 1], 80), unserved("s1", &[]))]);
    let retired = retire(&mut retiring, &waiting, true);
    let sets = sets_of(&ipv4(&retired));
    let place = |set: &str| {
        let place = sets.iter().position(|other| other == set);
        place.unwrap_or_else(|| panic!("{set}: {sets:?}"))
    };
    assert_eq!(place("service-cidrs"), 0, "{sets:?}");
    let order = [
        "cluster-ips",
        "frontends",
        "endpoints",
        // Clients of this node are served by it.
        "short-circuits",
        "restricted-frontends",
        "allowed-sources",
    ];
    assert!(order.map(place).is_sorted(), "{sets:?}");
    assert!(place("no-endpoints") < place("frontends"), "{sets:?}");
    assert_eq!(place("allowed-sources"), sets.len() - 1, "{sets:?}");
}

/// Tables of which a listing or a change has an error.
struct Failing {
    tables: SharedTables,
    listing: Option<Error>,
    rules: Option<Error>,
    change: Option<Error>,
}

impl Failing {
    fn new(tables: &SharedTables) -> Self {
        Self {
            tables: tables.clone(),
            listing: None,
            rules: None,
            change: None,
        }
    }
}

impl Nftables for Failing {
    fn execute_at(&mut self, generation: Option<u32>, transaction: &[Operation]) -> Vec<Result<(), Error>> {
        match &self.change {
            Some(error) => vec![Err(error.clone()); transaction.len()],
            None => self.tables.execute_at(generation, transaction),
        }
    }

    fn generation(&mut self) -> Result<u32, Error> {
        self.tables.generation()
    }

    fn tables(&mut self, family: Option<TableFamily>) -> Result<Vec<Table>, Error> {
        match &self.listing {
            Some(error) => Err(error.clone()),
            None => self.tables.tables(family),
        }
    }

    fn chains(&mut self, table: &TableKey) -> Result<Vec<Chain>, Error> {
        self.tables.chains(table)
    }

    fn rules(&mut self, table: &TableKey, chain: Option<&str>) -> Result<Vec<Rule>, Error> {
        match &self.rules {
            Some(error) => Err(error.clone()),
            None => self.tables.rules(table, chain),
        }
    }

    fn sets(&mut self, table: &TableKey) -> Result<Vec<Set>, Error> {
        self.tables.sets(table)
    }

    fn elements<'a>(&'a mut self, set: &SetKey) -> Result<ElementIter<'a>, Error> {
        self.tables.elements(set)
    }

    fn find_elements(&mut self, elements: &Elements) -> Result<Vec<Option<Element>>, Error> {
        self.tables.find_elements(elements)
    }

    fn objects(&mut self, table: &TableKey) -> Result<Vec<Object>, Error> {
        self.tables.objects(table)
    }

    fn flowtables(&mut self, table: &TableKey) -> Result<Vec<Flowtable>, Error> {
        self.tables.flowtables(table)
    }
}

/// The error about an object that does not exist.
fn not_found(tables: &SharedTables) -> Error {
    let missing = TableKey::new(Family::Ipv4, "missing");
    let error = tables.0.lock().apply(&[Operation::delete(missing)]).unwrap_err();
    assert!(error.is_not_found());
    error
}

#[test]
fn a_refused_removal_fails_and_one_that_another_program_was_faster_with_is_done() {
    let mut process = Process::new();
    process.service(service("s1", 1));
    process.sync();
    let tables = process.node.tables;
    let outcome = |change: Error| {
        let mut retiring = Retiring::new(Box::new(Failing {
            change: Some(change),
            ..Failing::new(&tables)
        }));
        let retired = retire(&mut retiring, &BTreeMap::new(), true);
        retired.steps[0].outcome.clone()
    };
    assert_eq!(
        outcome(Error::custom("delete it", "it is protected")),
        RetiredOutcome::Failed("cannot delete it: it is protected".to_owned())
    );
    assert_eq!(outcome(not_found(&tables)), RetiredOutcome::Done);
}

#[test]
fn a_kernel_without_tables_has_nothing_left_and_what_cannot_be_listed_may_be_left() {
    let read = |listing: Error| {
        let mut retiring = Retiring::new(Box::new(Failing {
            listing: Some(listing),
            ..Failing::new(&Process::new().node.tables)
        }));
        retiring.read(Instant::now(), &|_| false)
    };
    let refused = |errno| Error::Request {
        attempt: "list tables".into(),
        source: kernlink_netlink::Error::Socket { call: "open", errno },
    };
    assert_eq!(read(refused(Errno::EPROTONOSUPPORT)), Ok(false));
    assert!(read(refused(Errno::EPERM)).is_err());
}

/// Adds a table of kube-proxy that has only the map of its frontends, with this one. Returns the map.
fn add_kube_proxy(node: &Node, frontend: [u8; 4]) -> Set {
    let table = TableKey::new(Family::Ipv4, "kube-proxy");
    let types = [DataType::Ipv4Address, DataType::Protocol, DataType::Service];
    let ips = Set::map(table.set("service-ips"), &types, &[DataType::Mark]);
    let frontend = Value::concat([
        std::net::Ipv4Addr::from(frontend).into(),
        Value::protocol(6),
        Value::port(80),
    ]);
    let operations = [
        Operation::add(Table::new(table)),
        Operation::add(ips.clone()),
        Operation::add(Elements::new(
            ips.key.clone(),
            [Element::new(frontend).with_value(Value::host_u32(1))],
        )),
    ];
    node.tables.0.lock().apply(&operations).unwrap();
    ips
}

#[test]
fn a_table_of_kube_proxy_whose_rules_cannot_be_read_stays_as_it_is_as_long_as_a_frontend_of_it_does() {
    let node = Process::new().node;
    let served = [10, 96, 0, 1];
    let ips = add_kube_proxy(&node, served);
    let retiring = |rules: Error| {
        Retiring::new(Box::new(Failing {
            rules: Some(rules),
            ..Failing::new(&node.tables)
        }))
    };
    let waiting = BTreeMap::from([(key(served, 80), unserved("a", &[]))]);
    // Another program deleted the chain.
    let retired = retire(&mut retiring(not_found(&node.tables)), &waiting, true);
    assert_eq!((retired.held.len(), retired.problems.len()), (1, 0));
    let mut retiring = retiring(Error::custom("list rules", "not now"));
    let retired = retire(&mut retiring, &waiting, true);
    assert_eq!(retired.problems, ["cannot list rules: not now"]);
    assert_eq!((retired.steps.len(), retired.is_gone), (0, false));
    assert_eq!(node.tables.0.lock().list_elements(&ips.key).unwrap().len(), 1);
    // With the last frontend the table is deleted as a whole.
    let retired = retire(&mut retiring, &BTreeMap::new(), true);
    assert_eq!((retired.problems.len(), retired.steps.len()), (0, 1));
}

#[test]
fn foreign_tables_of_the_same_families_stay_and_kube_proxys_may_lack_a_chain() {
    let node = Process::new().node;
    let served = [10, 96, 0, 1];
    let foreign = Operation::add(Table::new(TableKey::new(Family::Ipv4, "foreign")));
    node.tables.0.lock().apply(&[foreign]).unwrap();
    add_kube_proxy(&node, served);
    let mut retiring = Retiring::new(Box::new(node.tables.clone()));
    assert!(retiring.is_read_again());
    let held = |retiring: &mut Retiring, ranges: &[&str]| {
        let waiting = BTreeMap::from([(key(served, 80), unserved("a", ranges))]);
        let retired = retire(retiring, &waiting, false);
        assert_eq!(retired.problems, [""; 0]);
        retired.held.len()
    };
    assert_eq!(held(&mut retiring, &[]), 1);
    // Whom it admits is in rules.
    assert_eq!(held(&mut retiring, &["0.0.0.0/0"]), 0);
    retire(&mut retiring, &BTreeMap::new(), true);
    assert_eq!(retiring.read(Instant::now(), &|_| false), Ok(false));
    let tables = node.tables.clone().tables(Some(Family::Ipv4.into())).unwrap();
    let names: Vec<&str> = tables.iter().map(|table| &*table.key.name).collect();
    assert_eq!(names, ["foreign"]);
}
