//! Transactions that fail.
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

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kernlink_engine::contract::{Calls, Client, Request};
use kernlink_engine::report::Outcome;
use kernlink_host::watch::{Changed, Watchable};
use kernlink_nftables::{
    Chain, Element, ElementIter, Elements, Error, Flowtable, Item, ItemKey, Nftables, Object, Operation,
    Rule, Set, SetKey, Table, TableFamily, TableKey,
};
use kernlink_nftables_mode::layout::{SECOND_TABLE, TABLE};
use kernlink_nftables_mode::{Kernel, Operation as Step, Proxier, Synced};
use kernlink_services::{
    Change, Family, FrontendKey, Kind, ObjectChange, ObjectName, Port, Protocol, Service, SourceId,
};

use crate::node::{Node, SharedTables, config};
use crate::services::{Process, service, with_affinity};

/// Tables in a network namespace with other programs.
struct Tables {
    tables: SharedTables,
    /// Transactions with elements whose comment begins with this text are not executed.
    failing: Arc<Mutex<Option<&'static str>>>,
    /// Whether the replies of transactions are lost, which are executed.
    lost: Arc<Mutex<bool>>,
    /// The generation of the ruleset, if another program changes something at each listing of chains.
    busy: Option<u32>,
    /// The listings of elements.
    listed: Arc<Mutex<usize>>,
    /// Whether others interrupt them.
    interrupted: Arc<Mutex<bool>>,
}

impl Tables {
    fn of(node: &Node) -> Self {
        Self {
            tables: node.tables.clone(),
            failing: Arc::default(),
            lost: Arc::default(),
            busy: None,
            listed: Arc::default(),
            interrupted: Arc::default(),
        }
    }
}

impl Nftables for Tables {
    fn execute_at(&mut self, generation: Option<u32>, transaction: &[Operation]) -> Vec<Result<(), Error>> {
        let fails = *self.failing.lock().unwrap();
        let is_of = |operation: &Operation, name: &str| match operation {
            Operation::Add(Item::Elements(elements)) | Operation::Delete(ItemKey::Elements(elements)) => {
                elements
                    .elements
                    .iter()
                    .any(|element| element.comment().is_some_and(|comment| comment.starts_with(name)))
            }
            _ => false,
        };
        if fails.is_some_and(|name| transaction.iter().any(|operation| is_of(operation, name))) {
            let source = kernlink_netlink::Error::TimedOut;
            return vec![Err(Error::Failed { source }); transaction.len()];
        }
        let outcomes = self.tables.execute_at(generation, transaction);
        if *self.lost.lock().unwrap() {
            let source = kernlink_netlink::Error::TimedOut;
            return vec![Err(Error::Failed { source }); transaction.len()];
        }
        outcomes
    }

    fn generation(&mut self) -> Result<u32, Error> {
        self.busy.map_or_else(|| self.tables.generation(), Ok)
    }

    fn tables(&mut self, family: Option<TableFamily>) -> Result<Vec<Table>, Error> {
        self.tables.tables(family)
    }

    fn chains(&mut self, table: &TableKey) -> Result<Vec<Chain>, Error> {
        self.busy = self.busy.map(|generation| generation + 1);
        self.tables.chains(table)
    }

    fn rules(&mut self, table: &TableKey, chain: Option<&str>) -> Result<Vec<Rule>, Error> {
        self.tables.rules(table, chain)
    }

    fn sets(&mut self, table: &TableKey) -> Result<Vec<Set>, Error> {
        self.tables.sets(table)
    }

    fn elements<'a>(&'a mut self, set: &SetKey) -> Result<ElementIter<'a>, Error> {
        *self.listed.lock().unwrap() += 1;
        if *self.interrupted.lock().unwrap() {
            return Err(Error::Interrupted {
                attempt: "list elements".into(),
                attempts: 1,
            });
        }
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

/// A process with two Services, before its first sync.
fn process(node: Node, tables: Tables) -> Process {
    let kernel = node.kernel();
    process_on(node, tables, kernel)
}

fn process_on(node: Node, tables: Tables, mut kernel: Kernel) -> Process {
    kernel.tables = Box::new(tables);
    let mut proxier = Proxier::new(&config(), kernel).unwrap();
    for kind in [Kind::Service, Kind::EndpointSlice] {
        proxier.change(SourceId(0), Change::synced(kind));
    }
    let now = Instant::now();
    let mut process = Process { proxier, node, now };
    for (name, last) in [("a", 1), ("b", 2)] {
        process.service(service(name, last));
        process.endpoints(name, &[(last, false)]);
    }
    process
}

/// Adds a UDP Service.
fn add_dns(process: &mut Process) {
    let port = Port::new("http", 53).with_protocol(Protocol::Udp);
    let dns = Service::new(ObjectName::new("ns", "dns"));
    process.service(dns.with_cluster_ip("10.96.0.9").with_port(port));
    process.endpoints("dns", &[(3, false)]);
}

fn serving() -> (Process, Arc<Mutex<Option<&'static str>>>) {
    let node = Node::new(&Calls::default());
    let tables = Tables::of(&node);
    let failing = Arc::clone(&tables.failing);
    let mut process = process(node, tables);
    process.sync();
    assert_eq!(served(&process), [true, true]);
    (process, failing)
}

fn served(process: &Process) -> Vec<bool> {
    let request = |last| Request {
        frontend: FrontendKey {
            address: [10, 96, 0, last].into(),
            protocol: Protocol::Tcp,
            port: 80,
        },
        client: Client::Host([10, 244, 0, 77].into()),
    };
    let endpoints = process.node.served(&[request(1), request(2)]);
    endpoints.iter().map(|of| !of.is_empty()).collect()
}

fn change_rules(process: &mut Process) {
    let mut config = config();
    config.masquerade_all = true;
    process.proxier.set_config(&config).unwrap();
}

fn sync_for(process: &mut Process, seconds: u32) {
    for _ in 0..seconds {
        process.now += Duration::from_secs(1);
        process.proxier.sync(process.now).unwrap();
    }
}

fn table(process: &Process) -> TableKey {
    process.node.table(Family::Ipv4).unwrap()
}

#[test]
fn a_table_serves_as_long_as_nothing_can_be_written_to_the_one_that_replaces_it() {
    let (mut process, failing) = serving();
    change_rules(&mut process);
    *failing.lock().unwrap() = Some("ns/");
    for second in 1..=90 {
        // A listing finds the other table, and fills another one.
        if second % 20 == 0 {
            process.proxier.resync();
        }
        sync_for(&mut process, 1);
        assert_eq!(served(&process), [true, true], "after {second} s");
    }
    assert_eq!(&*table(&process).name, TABLE);
    *failing.lock().unwrap() = None;
    sync_for(&mut process, 600);
    assert_eq!(&*table(&process).name, SECOND_TABLE);
    assert_eq!(served(&process), [true, true]);
}

#[test]
fn a_table_is_replaced_after_a_while_although_one_service_cannot_be_written() {
    let (mut process, failing) = serving();
    change_rules(&mut process);
    *failing.lock().unwrap() = Some("ns/a");
    sync_for(&mut process, 1);
    assert_eq!(
        (&*table(&process).name, served(&process)),
        (TABLE, vec![true, true])
    );
    // Changes of others are served then.
    process.endpoints("b", &[(5, false)]);
    sync_for(&mut process, 60);
    assert_eq!(
        (&*table(&process).name, served(&process)),
        (SECOND_TABLE, vec![false, true])
    );
    *failing.lock().unwrap() = None;
    sync_for(&mut process, 600);
    assert_eq!(served(&process), [true, true]);
}

#[test]
fn a_frontend_is_read_completely_after_it_passed_from_a_service_whose_removal_failed() {
    let (mut process, failing) = serving();
    let delete = |process: &mut Process, name: &str| {
        let deleted = ObjectChange::Delete(ObjectName::new("ns", name));
        process.change(Change::Services(deleted));
    };
    process.service(service("first", 9));
    process.endpoints("first", &[(3, false)]);
    process.sync();
    *failing.lock().unwrap() = Some("ns/first");
    delete(&mut process, "first");
    sync_for(&mut process, 1);
    *failing.lock().unwrap() = None;
    // Before the removal is tried again.
    process.service(with_affinity(service("second", 9), 100));
    process.endpoints("second", &[(4, false)]);
    process.proxier.sync(process.now).unwrap();
    assert_eq!(process.node.elements(Family::Ipv4, "affinity-pools").len(), 1);
    delete(&mut process, "second");
    sync_for(&mut process, 30);
    assert_eq!(process.node.elements(Family::Ipv4, "affinity-pools"), []);
    assert_eq!(process.node.elements(Family::Ipv4, "affinity-members"), []);
    assert_eq!(process.node.elements(Family::Ipv4, "frontends").len(), 2);
}

/// Whether stale UDP flows were deleted.
fn has_deleted_flows(synced: &Synced) -> bool {
    let mut steps = synced.plan.steps().zip(synced.report.outcomes());
    steps.any(|((_, step), outcome)| matches!((&step.operation, outcome), (Step::Flows(_), Outcome::Done)))
}

/// Syncs until the table is replaced. Returns whether stale UDP flows were deleted before that, and with it.
fn deletions_until_the_switch(process: &mut Process) -> (bool, bool) {
    let mut before = false;
    for _ in 0..600 {
        process.now += Duration::from_secs(1);
        let synced = process.proxier.sync(process.now).unwrap();
        if &*table(process).name == SECOND_TABLE {
            return (before, has_deleted_flows(&synced));
        }
        before |= has_deleted_flows(&synced);
    }
    panic!("the table was not replaced");
}

#[test]
fn udp_flows_are_deleted_after_the_table_that_leads_elsewhere_is_replaced_and_not_before() {
    let (mut process, failing) = serving();
    add_dns(&mut process);
    process.sync();
    change_rules(&mut process);
    *failing.lock().unwrap() = Some("ns/a");
    // The old table leads to the removed endpoint as long as it serves.
    process.endpoints("dns", &[(4, false)]);
    assert_eq!(deletions_until_the_switch(&mut process), (false, true));
}

#[test]
fn udp_flows_of_a_frontend_that_goes_with_a_table_are_deleted() {
    let mut first = Process::new();
    add_dns(&mut first);
    first.sync();
    // Another process with other rules, after the Service was deleted.
    let mut config = config();
    config.masquerade_all = true;
    let mut second = Process::on(first.node.clone(), &config);
    second.service(service("a", 1));
    second.endpoints("a", &[(1, false)]);
    assert_eq!(deletions_until_the_switch(&mut second), (false, true));
}

#[test]
fn many_changes_by_another_program_are_repaired_although_listings_are_interrupted() {
    let node = Node::new(&Calls::default());
    let tables = Tables::of(&node);
    let interrupted = Arc::clone(&tables.interrupted);
    let mut process = process(node, tables);
    process.sync();
    assert_eq!(served(&process), [true, true]);
    let table = table(&process);
    let elements = process.node.elements(Family::Ipv4, "frontends");
    let elements = elements.iter().map(Element::key_only);
    let deletion = ItemKey::Elements(Elements::new(table.set("frontends"), elements));
    process
        .node
        .tables
        .0
        .lock()
        .apply(&[Operation::delete(deletion)])
        .unwrap();
    assert_eq!(served(&process), [false, false]);
    *interrupted.lock().unwrap() = true;
    let key = config().watched().unwrap().key;
    let many = Changed::Elements(Family::Ipv4, table.name.clone());
    process.proxier.recheck([key(many).unwrap()]);
    process.sync();
    assert_eq!(served(&process), [true, true]);
}

#[test]
fn the_elements_of_a_table_are_read_once_although_others_change_the_ruleset_all_the_time() {
    let (first, _) = serving();
    let mut tables = Tables::of(&first.node);
    tables.busy = Some(0);
    let listed = Arc::clone(&tables.listed);
    let mut second = process(first.node.clone(), tables);
    let synced = second.sync();
    assert!(synced.plan.is_empty(), "{}", synced.plan);
    // 18 sets in each family, without that of clients; that of the numbers of service ports is read before all others too.
    assert_eq!(*listed.lock().unwrap(), 2 * (18 + 1));
    assert_eq!(served(&second), [true, true]);
}

/// A process that is the owner of its tables, of which listings read no elements, and whether replies to it are lost.
fn owner() -> (Process, Arc<Mutex<bool>>, Arc<Mutex<usize>>) {
    let node = Node::new(&Calls::default());
    let tables = Tables::of(&node);
    let (lost, listed) = (Arc::clone(&tables.lost), Arc::clone(&tables.listed));
    let mut kernel = node.kernel();
    kernel.owns_tables = true;
    let mut process = process_on(node, tables, kernel);
    process.sync();
    process.proxier.resync();
    process.sync();
    *listed.lock().unwrap() = 0;
    (process, lost, listed)
}

/// The endpoints of Service `a`.
fn endpoints_of_a(process: &Process) -> Vec<String> {
    let request = Request {
        frontend: FrontendKey {
            address: [10, 96, 0, 1].into(),
            protocol: Protocol::Tcp,
            port: 80,
        },
        client: Client::Host([10, 244, 0, 77].into()),
    };
    let served = process.node.served(&[request]);
    served[0].iter().map(ToString::to_string).collect()
}

#[test]
fn a_write_whose_reply_was_lost_is_read_again_although_a_listing_reads_no_elements() {
    // The retry is due, or not.
    for seconds in [600, 0] {
        // The endpoints are those before the write again, or others.
        for last in [1, 3] {
            let (mut process, lost, listed) = owner();
            *lost.lock().unwrap() = true;
            process.endpoints("a", &[(1, false), (2, false)]);
            process.now += Duration::from_secs(1);
            let synced = process.proxier.sync(process.now).unwrap();
            assert_eq!(synced.counts().failed, 1, "{synced}");
            assert_eq!(endpoints_of_a(&process), ["10.244.0.1:8080", "10.244.0.2:8080"]);
            *lost.lock().unwrap() = false;
            process.endpoints("a", &[(last, false)]);
            process.now += Duration::from_secs(seconds);
            process.proxier.resync();
            let synced = process.proxier.sync(process.now).unwrap();
            assert!(synced.is_success(), "{synced}");
            assert_eq!(endpoints_of_a(&process), [format!("10.244.0.{last}:8080")]);
            assert_eq!(*listed.lock().unwrap(), 0);
        }
    }
}
