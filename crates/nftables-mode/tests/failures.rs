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

use kernlink_conntrack::{Flow, Tuple};
use kernlink_engine::contract::{Calls, Client, Request};
use kernlink_engine::report::Outcome;
use kernlink_host::watch::{Changed, Watchable};
use kernlink_nftables::{
    Chain, Element, ElementIter, Elements, Error, Flowtable, Item, ItemKey, Nftables, Object, Operation,
    Rule, Set, SetKey, Table, TableFamily, TableKey,
};
use kernlink_nftables_mode::layout::{KUBE_PROXY_TABLE, SECOND_TABLE, TABLE};
use kernlink_nftables_mode::{Kernel, Operation as Step, Proxier, Synced};
use kernlink_services::{
    Change, Family, FrontendKey, Kind, ObjectChange, ObjectName, Port, Protocol, Service, SourceId,
};

use crate::node::{Node, SharedTables, config};
use crate::services::{Process, service, with_affinity};

/// Tables in a network namespace with other programs.
struct Tables {
    tables: SharedTables,
    /// Transactions are not executed that have elements whose comment begins with this text, or make a table whose name does.
    failing: Arc<Mutex<Option<&'static str>>>,
    /// A table that another program deletes just before the transaction that deletes it.
    gone: Arc<Mutex<Option<TableKey>>>,
    /// Whether tables cannot be listed.
    unreadable: Arc<Mutex<bool>>,
    /// Whether single elements cannot be read.
    unfindable: Arc<Mutex<bool>>,
    /// Whether the replies of transactions are lost, which are executed.
    lost: Arc<Mutex<bool>>,
    /// Whether those of transactions are lost that delete a table.
    lost_switch: Arc<Mutex<bool>>,
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
            gone: Arc::default(),
            unreadable: Arc::default(),
            unfindable: Arc::default(),
            lost: Arc::default(),
            lost_switch: Arc::default(),
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
            Operation::Add(Item::Table(table)) => table.key.name.starts_with(name),
            _ => false,
        };
        if fails.is_some_and(|name| transaction.iter().any(|operation| is_of(operation, name))) {
            let source = kernlink_netlink::Error::TimedOut;
            return vec![Err(Error::Failed { source }); transaction.len()];
        }
        let is_deleted = |table: &mut TableKey| transaction.contains(&Operation::delete(table.clone()));
        if let Some(table) = self.gone.lock().unwrap().take_if(is_deleted) {
            let deletion = Operation::delete(table);
            self.tables.0.lock().apply(&[deletion]).unwrap();
        }
        let outcomes = self.tables.execute_at(generation, transaction);
        let deletes = |operation: &Operation| matches!(operation, Operation::Delete(ItemKey::Table(_)));
        let is_switch = transaction.iter().any(deletes);
        if *self.lost.lock().unwrap() || is_switch && *self.lost_switch.lock().unwrap() {
            let source = kernlink_netlink::Error::TimedOut;
            return vec![Err(Error::Failed { source }); transaction.len()];
        }
        outcomes
    }

    fn generation(&mut self) -> Result<u32, Error> {
        self.busy.map_or_else(|| self.tables.generation(), Ok)
    }

    fn tables(&mut self, family: Option<TableFamily>) -> Result<Vec<Table>, Error> {
        if *self.unreadable.lock().unwrap() {
            return Err(Error::custom("list tables", "not now"));
        }
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
        if &*set.name == "affinity-clients" && *self.unfindable.lock().unwrap() {
            return Err(Error::custom("list elements", "not now"));
        }
        if *self.interrupted.lock().unwrap() {
            return Err(Error::Interrupted {
                attempt: "list elements".into(),
                attempts: 1,
            });
        }
        self.tables.elements(set)
    }

    fn find_elements(&mut self, elements: &Elements) -> Result<Vec<Option<Element>>, Error> {
        if *self.unfindable.lock().unwrap() {
            return Err(Error::custom("find elements", "not now"));
        }
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
fn a_table_that_an_earlier_process_did_not_complete_is_replaced_although_no_other_one_serves() {
    for name in [TABLE, SECOND_TABLE] {
        let node = Node::new(&Calls::default());
        let table = TableKey::new(Family::Ipv4, name);
        let left = [
            Operation::add(Table::new(table.clone())),
            Operation::add(Chain::new(table.chain("services"))),
        ];
        node.tables.0.lock().apply(&left).unwrap();
        let tables = Tables::of(&node);
        let mut process = process(node, tables);
        let synced = process.sync();
        assert_eq!(served(&process), [true, true], "{}", synced.plan);
        let tables = process.node.tables.tables(Some(TableFamily::Ip)).unwrap();
        assert_eq!(tables.len(), 1, "{tables:?}");
        assert!(process.sync().plan.is_empty());
    }
}

#[test]
fn a_table_that_another_program_deletes_at_the_same_time_stops_nothing() {
    let kube_proxy = TableKey::new(Family::Ipv4, KUBE_PROXY_TABLE);
    let [first, second] = [TABLE, SECOND_TABLE].map(|name| TableKey::new(Family::Ipv4, name));
    // Those that exist, without base chains, and the one that another program deletes.
    let cases = [
        (vec![&kube_proxy], &kube_proxy),
        (vec![&first], &first),
        (vec![&first, &kube_proxy], &first),
        (vec![&second], &second),
    ];
    for (existing, gone) in cases {
        let node = Node::new(&Calls::default());
        let tables = existing
            .iter()
            .map(|&table| Operation::add(Table::new(table.clone())));
        let tables: Vec<Operation> = tables.collect();
        node.tables.0.lock().apply(&tables).unwrap();
        let tables = Tables::of(&node);
        *tables.gone.lock().unwrap() = Some(gone.clone());
        let gone = Arc::clone(&tables.gone);
        let mut process = process(node, tables);
        let synced = process.sync();
        assert_eq!(*gone.lock().unwrap(), None, "{}", synced.plan);
        assert_eq!(served(&process), [true, true]);
        let tables = process.node.tables.tables(Some(TableFamily::Ip)).unwrap();
        assert_eq!(tables.len(), 1, "{tables:?}");
    }
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

#[test]
fn a_common_element_that_the_retry_of_one_service_finds_missing_is_added_for_the_others() {
    let (mut process, _) = serving();
    let of_hairpin = |process: &Process| process.node.elements(Family::Ipv4, "hairpin-endpoints");
    process.endpoints("a", &[(9, true)]);
    process.sync();
    let written = of_hairpin(&process);
    assert_eq!(written.len(), 1);
    let set = table(&process).set("hairpin-endpoints");
    let elements = Elements::new(set, written.iter().map(Element::key_only));
    let deletion = Operation::delete(ItemKey::Elements(elements));
    process.node.tables.0.lock().apply(&[deletion]).unwrap();
    // Its removal is refused: the element is missing.
    let deleted = ObjectChange::Delete(ObjectName::new("ns", "a"));
    process.change(Change::Services(deleted));
    process.now += Duration::from_secs(1);
    let synced = process.proxier.sync(process.now).unwrap();
    assert_eq!(synced.counts().failed, 1, "{synced}");
    // Before the removal is tried again, another Service gets the endpoint.
    process.endpoints("b", &[(9, true)]);
    process.proxier.sync(process.now).unwrap();
    sync_for(&mut process, 30);
    assert_eq!(of_hairpin(&process), written);
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

/// A client sends to Service `dns`. A flow begins, unless it has one: the source of replies to it.
fn send_to_dns(node: &Node, reply_source: &str) {
    let [client, frontend, reply_source] =
        ["10.244.0.77:40000", "10.96.0.9:53", reply_source].map(|address| address.parse().unwrap());
    let flow = Flow::new(Tuple::udp(client, frontend), Tuple::udp(reply_source, client));
    _ = node.conntrack.lock().insert(flow);
}

fn flows(node: &Node) -> usize {
    node.conntrack.lock().all().count()
}

#[test]
fn udp_flows_are_deleted_after_the_tables_could_be_read_and_not_before() {
    let mut first = Process::new();
    add_dns(&mut first);
    first.sync();
    send_to_dns(&first.node, "10.244.0.3:8080");
    let tables = Tables::of(&first.node);
    let unreadable = Arc::clone(&tables.unreadable);
    *unreadable.lock().unwrap() = true;
    let mut second = process(first.node.clone(), tables);
    add_dns(&mut second);
    second.endpoints("dns", &[(4, false)]);
    sync_for(&mut second, 1);
    // The table still leads to the removed endpoint.
    assert_eq!(flows(&second.node), 1);
    *unreadable.lock().unwrap() = false;
    sync_for(&mut second, 60);
    assert_eq!(flows(&second.node), 0);
}

#[test]
fn udp_flows_that_begin_while_no_table_can_be_made_are_deleted_when_it_is() {
    let node = Node::new(&Calls::default());
    let tables = Tables::of(&node);
    let failing = Arc::clone(&tables.failing);
    *failing.lock().unwrap() = Some(TABLE);
    let untranslated = "10.96.0.9:53";
    send_to_dns(&node, untranslated);
    let mut process = process(node, tables);
    add_dns(&mut process);
    sync_for(&mut process, 1);
    send_to_dns(&process.node, untranslated);
    assert_eq!(flows(&process.node), 1);
    *failing.lock().unwrap() = None;
    sync_for(&mut process, 600);
    assert_eq!(served(&process), [true, true]);
    assert_eq!(flows(&process.node), 0);
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

/// The lines of this mode in the page of metrics.
#[cfg(feature = "metrics")]
fn of_this_mode(
    recorder: &kernlink_engine::status::Recorder<kernlink_nftables_mode::Totals>,
    metrics: &kernlink_engine::metrics::Metrics,
) -> Vec<String> {
    let page = metrics.encode(recorder.status()).unwrap();
    let names = [
        "kernlink_nftables_",
        "kubeproxy_sync_proxy_rules_nftables_",
        "kubeproxy_sync_proxy_rules_no_local_endpoints_total",
    ];
    let is_of_mode = |line: &&str| names.iter().any(|name| line.starts_with(name));
    page.lines().filter(is_of_mode).map(str::to_owned).collect()
}

#[cfg(feature = "metrics")]
#[test]
fn the_page_of_metrics_has_what_is_served_and_counts_failures() {
    use std::time::SystemTime;

    let (mut process, failing) = serving();
    process.service(services::with_local_policy(services::balanced("local", 2)));
    process.endpoints("local", &[(3, false)]);
    let mut recorder = kernlink_engine::status::Recorder::new(Family::ALL, SystemTime::now());
    let metrics = kernlink_engine::metrics::Metrics::new().unwrap();
    recorder.on_started();
    let synced = process.sync();
    recorder.on_synced(&process.proxier, &synced, SystemTime::now());
    let count = |lines: &[String], sample: &str| -> f64 {
        let found = lines.iter().find_map(|line| line.strip_prefix(sample));
        let value = found.unwrap_or_else(|| panic!("{sample}: {lines:#?}"));
        value.trim().parse().unwrap()
    };
    let lines = of_this_mode(&recorder, &metrics);
    let elements = process.node.elements(Family::Ipv4, "frontends").len();
    for (sample, value) in [
        ("kernlink_nftables_frontends{ip_family=\"IPv4\"}", elements as f64),
        ("kernlink_nftables_frontends{ip_family=\"IPv6\"}", 0.0),
        (
            "kubeproxy_sync_proxy_rules_no_local_endpoints_total{ip_family=\"IPv4\",traffic_policy=\"external\"}",
            1.0,
        ),
        (
            "kubeproxy_sync_proxy_rules_no_local_endpoints_total{ip_family=\"IPv4\",traffic_policy=\"internal\"}",
            0.0,
        ),
        (
            "kubeproxy_sync_proxy_rules_nftables_sync_failures_total{ip_family=\"IPv4\"}",
            0.0,
        ),
        (
            "kubeproxy_sync_proxy_rules_nftables_cleanup_failures_total{ip_family=\"IPv4\"}",
            0.0,
        ),
    ] {
        assert_eq!(count(&lines, sample), value, "{sample}");
    }
    *failing.lock().unwrap() = Some("ns/local");
    process.endpoints("local", &[(4, true)]);
    process.now += Duration::from_secs(1);
    let synced = process.proxier.sync(process.now).unwrap();
    assert!(!synced.is_success(), "{synced}");
    recorder.on_synced(&process.proxier, &synced, SystemTime::now());
    let lines = of_this_mode(&recorder, &metrics);
    let failures = "kubeproxy_sync_proxy_rules_nftables_sync_failures_total";
    assert_eq!(count(&lines, &format!("{failures}{{ip_family=\"IPv4\"}}")), 1.0);
    assert_eq!(count(&lines, &format!("{failures}{{ip_family=\"IPv6\"}}")), 0.0);
}

/// A process that is the owner of its tables, of which listings read no elements, and whether replies to it are lost.
fn owner() -> (Process, Arc<Mutex<bool>>, Arc<Mutex<usize>>) {
    let node = Node::new(&Calls::default());
    let tables = Tables::of(&node);
    owner_with(node, tables)
}

fn owner_with(node: Node, tables: Tables) -> (Process, Arc<Mutex<bool>>, Arc<Mutex<usize>>) {
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

#[test]
fn udp_flows_are_deleted_after_a_write_whose_reply_was_lost() {
    for has_listing in [true, false] {
        let (mut process, lost, _) = owner();
        add_dns(&mut process);
        process.sync();
        *lost.lock().unwrap() = true;
        process.endpoints("dns", &[(4, false)]);
        process.now += Duration::from_secs(1);
        let synced = process.proxier.sync(process.now).unwrap();
        assert!(!has_deleted_flows(&synced), "{synced}");
        *lost.lock().unwrap() = false;
        process.now += Duration::from_secs(600);
        if has_listing {
            process.proxier.resync();
        }
        let synced = process.proxier.sync(process.now).unwrap();
        assert!(has_deleted_flows(&synced), "{synced}");
    }
}

#[test]
fn elements_that_cannot_be_read_do_not_prevent_the_writes_of_other_services() {
    let node = Node::new(&Calls::default());
    let tables = Tables::of(&node);
    let unfindable = Arc::clone(&tables.unfindable);
    let (mut process, lost, _) = owner_with(node, tables);
    *lost.lock().unwrap() = true;
    process.endpoints("a", &[(1, false), (2, false)]);
    process.now += Duration::from_secs(1);
    let synced = process.proxier.sync(process.now).unwrap();
    assert_eq!(synced.counts().failed, 1, "{synced}");
    *lost.lock().unwrap() = false;
    *unfindable.lock().unwrap() = true;
    process.service(service("c", 3));
    process.endpoints("c", &[(7, false)]);
    // The retry is due.
    process.now += Duration::from_secs(600);
    let mut syncs = 0;
    while let Some(at) = {
        let synced = process.proxier.sync(process.now).unwrap();
        assert!(synced.is_success(), "{synced}");
        synced.next
    } {
        syncs += 1;
        assert!(syncs < 10, "syncs do not end");
        process.now = at.max(process.now);
    }
    let frontend = |last| Request {
        frontend: FrontendKey {
            address: [10, 96, 0, last].into(),
            protocol: Protocol::Tcp,
            port: 80,
        },
        client: Client::Host([10, 244, 0, 77].into()),
    };
    let served = process.node.served(&[frontend(1), frontend(2), frontend(3)]);
    let numbers: Vec<usize> = served.iter().map(|endpoints| endpoints.len()).collect();
    assert_eq!(numbers, [2, 1, 1]);
}

#[test]
fn udp_flows_are_deleted_after_a_switch_whose_reply_was_lost() {
    let node = Node::new(&Calls::default());
    let tables = Tables::of(&node);
    let lost = Arc::clone(&tables.lost_switch);
    let mut process = process(node, tables);
    add_dns(&mut process);
    process.sync();
    change_rules(&mut process);
    process.endpoints("dns", &[(4, false)]);
    *lost.lock().unwrap() = true;
    process.now += Duration::from_secs(1);
    let synced = process.proxier.sync(process.now).unwrap();
    assert!(!has_deleted_flows(&synced), "{synced}");
    assert_eq!(&*table(&process).name, SECOND_TABLE);
    *lost.lock().unwrap() = false;
    process.now += Duration::from_secs(600);
    let synced = process.proxier.sync(process.now).unwrap();
    assert!(has_deleted_flows(&synced), "{synced}");
}
