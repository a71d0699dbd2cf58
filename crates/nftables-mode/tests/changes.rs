//! What changes of Services write.
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

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use kernlink_engine::contract::{Calls, Client, Request};
use kernlink_host::watch::{Changed, ChangedElement, Watchable};
use kernlink_nftables::{
    Data, Element, Elements, Hook, ItemKey, Nftables, Operation as TableOperation, Packet, PacketFate, Value,
};
use kernlink_nftables_mode::layout::{SECOND_TABLE, TABLE};
use kernlink_nftables_mode::{Key, Operation, Phase, Synced};
use kernlink_services::{Change, Endpoint, Family, FrontendKey, ObjectChange, ObjectName, Protocol};

use crate::node::{Node, config, connect};
use crate::services::{Process, balanced, service, slice, with_affinity, with_local_policy};

/// The changes of the tables that the last sync made, as commands.
fn commands(synced: &Synced) -> Vec<String> {
    let steps = synced.plan.steps().map(|(_, step)| step.operation.to_string());
    let lines = steps.flat_map(|text| text.lines().map(str::to_owned).collect::<Vec<_>>());
    lines
        .filter(|line| line.starts_with("add ") || line.starts_with("delete "))
        .collect()
}

/// The number of elements that the commands of elements name.
fn elements(commands: &[String]) -> usize {
    let of = |command: &String| {
        assert!(
            command.starts_with("add element") || command.starts_with("delete element"),
            "{command}"
        );
        command
            .split_once('{')
            .map_or(0, |(_, list)| list.split(", ").count())
    };
    commands.iter().map(of).sum()
}

fn request(address: [u8; 4], port: u16, client: Client) -> Request {
    let frontend = FrontendKey {
        address: address.into(),
        protocol: Protocol::Tcp,
        port,
    };
    Request { frontend, client }
}

const OUTSIDE: Client = Client::Host(std::net::IpAddr::V4(std::net::Ipv4Addr::new(198, 19, 0, 7)));

#[test]
fn a_change_of_services_writes_elements_only_and_one_operation_for_each_service() {
    let mut process = Process::new();
    process.service(service("first", 9));
    process.endpoints("first", &[(1, false)]);
    process.sync();
    let all: Vec<(u8, bool)> = (1..=9).map(|last| (last, last == 1)).collect();
    let delete = |name: &str| Change::Services(ObjectChange::Delete(ObjectName::new("ns", name)));
    type Step<'a> = (&'static str, Box<dyn Fn(&mut Process) + 'a>);
    let steps: Vec<Step<'_>> = vec![
        (
            "a Service without endpoints",
            Box::new(|p| p.service(service("a", 1))),
        ),
        ("its first endpoint", Box::new(|p| p.endpoints("a", &all[..1]))),
        (
            "one that crosses a power of two",
            Box::new(|p| p.endpoints("a", &all[..2])),
        ),
        ("many", Box::new(|p| p.endpoints("a", &all))),
        ("one less", Box::new(|p| p.endpoints("a", &all[1..]))),
        (
            "others",
            Box::new(|p| p.endpoints("a", &[(20, false), (21, true)])),
        ),
        (
            "a node port and a load-balancer IP",
            Box::new(|p| p.service(balanced("a", 1))),
        ),
        (
            "source ranges",
            Box::new(|p| {
                let mut service = balanced("a", 1);
                service.load_balancer_source_ranges =
                    vec!["198.19.0.0/16".into(), "192.0.2.1/32".into(), "10.0.0.0/9".into()];
                p.service(service);
            }),
        ),
        (
            "policy Local",
            Box::new(|p| p.service(with_local_policy(balanced("a", 1)))),
        ),
        (
            "no local endpoint",
            Box::new(|p| p.endpoints("a", &[(20, false)])),
        ),
        (
            "session affinity",
            Box::new(|p| p.service(with_affinity(with_local_policy(balanced("a", 1)), 10_800))),
        ),
        (
            "an endpoint with session affinity",
            Box::new(|p| p.endpoints("a", &all[..3])),
        ),
        (
            "another timeout",
            Box::new(|p| p.service(with_affinity(with_local_policy(balanced("a", 1)), 61))),
        ),
        (
            "the longest timeout",
            Box::new(|p| p.service(with_affinity(with_local_policy(balanced("a", 1)), 86_400))),
        ),
        (
            "another Service with another timeout",
            Box::new(|p| p.service(with_affinity(service("first", 9), 1))),
        ),
        ("another port", Box::new(|p| p.service(balanced("a", 2)))),
        (
            "another Service with the same address",
            Box::new(|p| p.service(service("b", 2))),
        ),
        (
            "a frontend that passes to another Service",
            Box::new(|p| p.change(delete("a"))),
        ),
        ("its endpoints", Box::new(|p| p.endpoints("b", &all[..4]))),
        ("no endpoint", Box::new(|p| p.endpoints("b", &[]))),
        ("no Service", Box::new(|p| p.change(delete("b")))),
        ("not even the first one", Box::new(|p| p.change(delete("first")))),
    ];
    for (what, step) in steps {
        step(&mut process);
        let mut names = BTreeSet::new();
        let synced = process.sync();
        for (_, step) in synced.plan.steps() {
            match &step.operation {
                Operation::Write(_) => {
                    let Key::Service(family, name) = &step.key else {
                        panic!("{what}: {}", step.key)
                    };
                    assert!(
                        names.insert((*family, name.clone())),
                        "{what}: two operations on {name}"
                    );
                }
                Operation::Flows(_) => {}
                other => panic!("{what}: {other}"),
            }
        }
        assert!(
            !names.is_empty() || what == "another Service with the same address",
            "{what}"
        );
        elements(&commands(&synced));
    }
}

#[test]
fn the_number_of_elements_of_a_change_does_not_depend_on_the_number_of_endpoints() {
    let mut process = Process::new();
    let endpoints = |numbers: std::ops::RangeInclusive<u8>| -> Vec<(u8, bool)> {
        numbers.map(|last| (last, false)).collect()
    };
    process.service(service("a", 1));
    process.endpoints("a", &endpoints(1..=100));
    process.sync();
    let mut count = |endpoints: Vec<(u8, bool)>| {
        process.endpoints("a", &endpoints);
        elements(&commands(&process.sync()))
    };
    // One more: the element.
    assert_eq!(count(endpoints(1..=101)), 1);
    // The last index: the element.
    assert_eq!(count(endpoints(1..=100)), 1);
    // The first one: that, and the last one takes its index.
    assert_eq!(count(endpoints(2..=100)), 3);
    // Replaced: delete and add.
    let mut replaced = endpoints(2..=100);
    replaced[40] = (200, false);
    assert_eq!(count(replaced), 2);
    // 129 endpoints need another class: 30 elements, and that of the frontend twice.
    let mut more = endpoints(2..=130);
    more[40] = (200, false);
    assert_eq!(count(more), 32);
    // None: 129 elements, the frontend, and that without endpoints.
    assert_eq!(count(Vec::new()), 131);
    // The first one.
    assert_eq!(count(endpoints(1..=1)), 3);
}

#[test]
fn clients_keep_their_endpoint_through_every_frontend_until_it_is_removed_or_time_passes() {
    let mut process = Process::new();
    process.service(with_affinity(balanced("a", 1), 90));
    let all: Vec<(u8, bool)> = (1..=5).map(|last| (last, false)).collect();
    process.endpoints("a", &all);
    process.sync();
    let frontends = [
        ([10, 96, 0, 1], 80),
        ([192, 0, 2, 1], 30_001),
        ([203, 0, 113, 1], 80),
    ];
    let clients = |last: u8| Client::Host([198, 19, 0, last].into());
    let ask = |process: &Process, frontend: ([u8; 4], u16), client: Client| -> SocketAddr {
        let mut fake = process.node.tables.0.lock();
        connect(&mut fake, &request(frontend.0, frontend.1, client)).unwrap()
    };
    let mut chosen = Vec::new();
    for last in 1..=20 {
        let first = ask(&process, frontends[usize::from(last) % 3], clients(last));
        for frontend in frontends {
            assert_eq!(ask(&process, frontend, clients(last)), first);
        }
        chosen.push(first);
    }
    assert!(chosen.iter().collect::<BTreeSet<_>>().len() > 1);
    // Each connection renews the time.
    for _ in 0..3 {
        process.node.tables.0.lock().advance(Duration::from_secs(80));
        for (last, first) in (1..).zip(&chosen) {
            assert_eq!(ask(&process, frontends[0], clients(last)), *first);
        }
    }
    // Clients of a removed endpoint get another one, all others keep theirs.
    let removed = chosen[0];
    let left: Vec<(u8, bool)> = all
        .iter()
        .copied()
        .filter(|(last, _)| SocketAddr::from(([10, 244, 0, *last], 8_080)) != removed)
        .collect();
    process.endpoints("a", &left);
    process.sync();
    for (last, first) in (1..).zip(&chosen) {
        let now = ask(&process, frontends[1], clients(last));
        assert_ne!(now, removed);
        assert!(*first == removed || now == *first);
    }
    assert_eq!(process.node.elements(Family::Ipv4, "affinity-clients").len(), 20);
    process.node.tables.0.lock().advance(Duration::from_secs(91));
    assert_eq!(process.node.elements(Family::Ipv4, "affinity-clients").len(), 0);
}

/// A frontend with policy `Local` shows the indices for both policies, another one those for `Cluster` only.
#[test]
fn a_new_process_keeps_the_indices_of_endpoints_for_both_policies() {
    let mut process = Process::new();
    process.service(with_local_policy(balanced("web", 1)));
    process.endpoints("web", &[(3, true), (4, true), (5, false)]);
    process.sync();
    // The new one is the first in order, and gets the last index.
    let all = [(1, true), (3, true), (4, true), (5, false)];
    process.endpoints("web", &all);
    process.sync();
    // The frontends are compared in a random order.
    for _ in 0..16 {
        process = Process::on(process.node, &config());
        process.service(with_local_policy(balanced("web", 1)));
        process.endpoints("web", &all);
        let synced = process.sync();
        assert!(synced.plan.is_empty(), "{}", synced.plan);
    }
}

#[test]
fn another_configuration_fills_a_second_table_and_clients_keep_their_endpoint() {
    let mut process = Process::new();
    process.service(with_affinity(balanced("a", 1), 90));
    process.endpoints("a", &[(1, false), (2, false), (3, false)]);
    process.sync();
    let before = process.node.owned();
    let asked = request([203, 0, 113, 1], 80, OUTSIDE);
    let chosen = connect(&mut process.node.tables.0.lock(), &asked).unwrap();
    process.node.tables.0.lock().advance(Duration::from_secs(10));
    assert_eq!(&*process.node.table(Family::Ipv4).unwrap().name, TABLE);
    let mut changed = config();
    changed.masquerade_all = true;
    process.proxier.set_config(&changed).unwrap();
    let synced = process.sync();
    let phases: Vec<Phase> = synced.plan.phases().iter().map(|phase| phase.kind).collect();
    assert_eq!(phases, [Phase::Tables, Phase::Services, Phase::Switch]);
    assert_eq!(&*process.node.table(Family::Ipv4).unwrap().name, SECOND_TABLE);
    assert_eq!(connect(&mut process.node.tables.0.lock(), &asked), Some(chosen));
    // A new process with the first configuration: the same again.
    let mut process = Process::on(process.node.clone(), &config());
    process.service(with_affinity(balanced("a", 1), 90));
    process.endpoints("a", &[(1, false), (2, false), (3, false)]);
    process.sync();
    assert_eq!(process.node.owned(), before);
    let clients = process.node.elements(Family::Ipv4, "affinity-clients");
    assert_eq!(clients.len(), 1);
    assert!(clients[0].expiration.unwrap() <= Duration::from_secs(90));
    assert_eq!(connect(&mut process.node.tables.0.lock(), &asked), Some(chosen));
    let Some(Data::Value(value)) = &clients[0].data else {
        panic!("a map")
    };
    assert_eq!(
        value.as_bytes()[4..8],
        [
            10,
            244,
            0,
            [1, 2, 3]
                .into_iter()
                .find(|last| chosen.ip() == std::net::IpAddr::from([10, 244, 0, *last]))
                .unwrap()
        ]
    );
}

#[test]
fn checks_are_made_for_packets_that_were_not_translated() {
    let mut process = Process::new();
    process.service(balanced("a", 1));
    process.sync();
    let mut config = config();
    config.service_cidrs = Some(vec!["10.96.0.0/16".parse().unwrap()]);
    process.proxier.set_config(&config).unwrap();
    process.sync();
    let fate = |hook: Hook, address: [u8; 4], port: u16, status: u32| {
        let mut packet = Packet::new([198, 19, 0, 7].into(), address.into(), 6, port);
        packet.status = status;
        process.node.tables.0.lock().evaluate(hook, packet).fate
    };
    let (cluster_ip, unused) = ([10, 96, 0, 1], [10, 96, 7, 7]);
    for (hooks, address, port) in [
        (&[Hook::Input, Hook::Forward, Hook::Output][..], cluster_ip, 80),
        (&[Hook::Forward, Hook::Output], cluster_ip, 81),
        (&[Hook::Forward, Hook::Output], unused, 80),
    ] {
        for hook in hooks {
            assert_ne!(
                fate(*hook, address, port, 0),
                PacketFate::Accepted,
                "{hook:?} {address:?}:{port}"
            );
            let destination_nat = 0x20;
            assert_eq!(
                fate(*hook, address, port, destination_nat),
                PacketFate::Accepted,
                "{hook:?} {address:?}:{port}"
            );
        }
    }
}

#[test]
fn other_networks_of_cluster_ips_change_elements_only_and_an_address_in_them_is_dropped() {
    let mut process = Process::new();
    process.service(balanced("a", 1));
    process.endpoints("a", &[(1, false)]);
    process.sync();
    let outcome = |process: &Process, address: [u8; 4]| {
        let client = [198, 19, 0, 7].into();
        let packet = Packet::new(client, address.into(), 6, 80);
        let mut tables = process.node.tables.0.lock();
        tables.evaluate(Hook::Forward, packet).fate
    };
    assert_eq!(outcome(&process, [10, 96, 7, 7]), PacketFate::Accepted);
    let set = |process: &mut Process, networks: &[&str]| {
        let mut config = config();
        config.service_cidrs = Some(networks.iter().map(|net| net.parse().unwrap()).collect());
        process.proxier.set_config(&config).unwrap();
        commands(&process.sync())
    };
    let added = set(&mut process, &["10.96.0.0/16", "fd00:10:96::/112"]);
    assert_eq!(
        added,
        [
            "add element ip kernlink service-cidrs { 10.96.0.0/16 }",
            "add element ip6 kernlink service-cidrs { fd00:10:96::/112 }"
        ]
    );
    assert_eq!(outcome(&process, [10, 96, 7, 7]), PacketFate::Dropped);
    assert_eq!(outcome(&process, [10, 97, 0, 0]), PacketFate::Accepted);
    // A cluster IP is refused, as before.
    assert_eq!(outcome(&process, [10, 96, 0, 1]), PacketFate::Rejected);
    // A greater one with the same first address, and one next to it.
    set(&mut process, &["10.96.0.0/12", "10.112.0.0/16"]);
    for address in [[10, 96, 7, 7], [10, 111, 255, 255], [10, 112, 255, 255]] {
        assert_eq!(outcome(&process, address), PacketFate::Dropped, "{address:?}");
    }
    assert_eq!(outcome(&process, [10, 113, 0, 0]), PacketFate::Accepted);
    assert_eq!(set(&mut process, &["10.96.0.0/12", "10.112.0.0/16"]), [""; 0]);
    // A new process finds them.
    let mut process = Process::on(process.node.clone(), process.proxier.state().config());
    process.service(balanced("a", 1));
    process.endpoints("a", &[(1, false)]);
    assert_eq!(commands(&process.sync()), [""; 0]);
    assert_eq!(set(&mut process, &[]).len(), 1);
    assert_eq!(process.node.elements(Family::Ipv4, "service-cidrs"), []);
    assert_eq!(outcome(&process, [10, 96, 7, 7]), PacketFate::Accepted);
}

#[test]
fn networks_of_cluster_ips_that_another_program_changed_are_repaired_without_a_listing() {
    let mut config = config();
    config.service_cidrs = Some(vec!["10.96.0.0/16".parse().unwrap()]);
    let mut process = Process::on(Node::new(&Calls::default()), &config);
    process.sync();
    let before = process.node.owned();
    let listings = process.proxier.cost().listings;
    let table = process.node.table(Family::Ipv4).unwrap();
    let set = process
        .node
        .tables
        .0
        .lock()
        .set(&table.set("service-cidrs"))
        .unwrap()
        .unwrap();
    let start = Value::from(std::net::IpAddr::from([10, 96, 0, 0]));
    let other = set.interval(Value::from([192, 0, 2, 0]), Value::from([192, 0, 2, 255]));
    let written = process.node.elements(Family::Ipv4, "service-cidrs");
    for operation in [
        TableOperation::delete(ItemKey::Elements(Elements::new(set.key.clone(), written))),
        TableOperation::add(Elements::new(set.key.clone(), other)),
    ] {
        process.node.tables.0.lock().apply(&[operation]).unwrap();
        assert_ne!(process.node.owned(), before);
        process
            .proxier
            .recheck([changed("service-cidrs", start.as_bytes())]);
        process.sync();
        assert_eq!(process.node.owned(), before);
    }
    assert_eq!(process.proxier.cost().listings, listings);
}

#[test]
fn a_process_that_does_not_know_the_networks_of_cluster_ips_yet_keeps_those_of_an_earlier_one() {
    let mut config = config();
    config.service_cidrs = Some(vec![
        "10.96.0.0/16".parse().unwrap(),
        "255.255.255.0/24".parse().unwrap(),
    ]);
    let mut process = Process::on(Node::new(&Calls::default()), &config);
    process.service(balanced("a", 1));
    process.endpoints("a", &[(1, false)]);
    process.sync();
    let written = process.node.elements(Family::Ipv4, "service-cidrs");

    config.service_cidrs = None;
    let mut process = Process::on(process.node.clone(), &config);
    process.service(balanced("a", 1));
    process.endpoints("a", &[(1, false)]);
    assert_eq!(commands(&process.sync()), [""; 0]);
    // With other rules all of it is written to the other table.
    config.masquerade_all = true;
    process.proxier.set_config(&config).unwrap();
    process.sync();
    assert_eq!(&*process.node.table(Family::Ipv4).unwrap().name, SECOND_TABLE);
    assert_eq!(process.node.elements(Family::Ipv4, "service-cidrs"), written);
    // Then it learns them.
    config.service_cidrs = Some(Vec::new());
    process.proxier.set_config(&config).unwrap();
    assert_eq!(commands(&process.sync()).len(), 1);
    assert_eq!(process.node.elements(Family::Ipv4, "service-cidrs"), []);
}

#[test]
fn the_tables_of_kube_proxy_are_deleted_in_the_transaction_that_adds_the_base_chains() {
    let mut process = Process::new();
    let table = kernlink_nftables::TableKey::new(Family::Ipv4, "kube-proxy");
    let chain = kernlink_nftables::Chain::new(table.chain("nat-prerouting"));
    let chain = chain.with_base(kernlink_nftables::BaseChain::new(
        kernlink_nftables::ChainType::Nat,
        kernlink_nftables::Hook::Prerouting,
        -100,
    ));
    let operations = [
        TableOperation::add(kernlink_nftables::Table::new(table.clone())),
        TableOperation::add(chain),
    ];
    process.node.tables.0.lock().apply(&operations).unwrap();
    process.service(service("a", 1));
    process.endpoints("a", &[(1, false)]);
    let synced = process.sync();
    let switch = synced
        .plan
        .steps()
        .find(|(_, step)| matches!(step.operation, Operation::Switch(_)));
    let text = switch.unwrap().1.operation.to_string();
    assert!(
        text.contains("delete table ip kube-proxy\nadd chain ip kernlink filter-prerouting-pre-dnat"),
        "{text}"
    );
    assert_eq!(process.node.tables.0.lock().table(&table).unwrap(), None);
    assert!(process.node.table(Family::Ipv4).is_some());
}

#[test]
fn a_service_that_the_kernel_refuses_costs_the_others_nothing_and_is_named() {
    let mut process = Process::new();
    for last in 1..=3 {
        process.service(service(&format!("s{last}"), last));
        process.endpoints(&format!("s{last}"), &[(last, false)]);
    }
    process.sync();
    // Another program has an element with this key.
    let table = process.node.table(Family::Ipv4).unwrap();
    let index = |index: u32| {
        kernlink_nftables::Value::concat([
            std::net::Ipv4Addr::new(10, 96, 0, 2).into(),
            kernlink_nftables::Value::protocol(6),
            kernlink_nftables::Value::port(80),
            kernlink_nftables::Value::host_u32(index),
        ])
    };
    let other = kernlink_nftables::Value::concat([
        std::net::Ipv4Addr::new(10, 244, 0, 99).into(),
        kernlink_nftables::Value::port(1),
    ]);
    let element = kernlink_nftables::Element::new(index(1)).with_value(other);
    let elements = kernlink_nftables::Elements::new(table.set("endpoints"), [element]);
    process
        .node
        .tables
        .0
        .lock()
        .apply(&[TableOperation::add(elements)])
        .unwrap();
    for last in 1..=3 {
        process.endpoints(&format!("s{last}"), &[(last, false), (10 + last, false)]);
    }
    process.now += Duration::from_secs(1);
    let synced = process.proxier.sync(process.now).unwrap();
    assert_eq!((synced.counts().done, synced.counts().failed), (2, 1), "{synced}");
    let text = synced.to_string();
    assert!(
        text.contains("Service ns/s2") && text.contains("add element ip kernlink endpoints"),
        "{text}"
    );
    // The retry reads the elements of this Service, and repairs them.
    process.now = synced.next.unwrap();
    process.sync();
    assert_eq!(process.node.elements(Family::Ipv4, "endpoints").len(), 6);
}

#[test]
fn what_another_program_changes_is_found_by_a_recheck_without_a_listing() {
    let mut process = Process::new();
    for last in 1..=3 {
        process.service(balanced(&format!("s{last}"), last));
        process.endpoints(&format!("s{last}"), &[(last, true), (10 + last, false)]);
    }
    process.sync();
    let before = process.node.owned();
    for set in ["frontends", "endpoints", "external-frontends"] {
        let element = process.node.elements(Family::Ipv4, set).swap_remove(1);
        let table = process.node.table(Family::Ipv4).unwrap();
        let elements = kernlink_nftables::Elements::new(table.set(set), [element.key_only()]);
        process
            .node
            .tables
            .0
            .lock()
            .apply(&[TableOperation::delete(ItemKey::Elements(elements))])
            .unwrap();
        assert_ne!(process.node.owned(), before);
        let names = ["s1", "s2", "s3"].map(|name| Key::Service(Family::Ipv4, ObjectName::new("ns", name)));
        assert!(process.proxier.recheck(names));
        let listings = process.proxier.cost().listings;
        let synced = process.sync();
        assert_eq!(synced.plan.len(), 1, "{}", synced.plan);
        assert_eq!(process.proxier.cost().listings, listings);
        assert_eq!(process.node.owned(), before);
    }
}

#[test]
fn a_service_that_another_program_changes_again_and_again_is_reported_and_repaired_later() {
    let mut process = Process::new();
    process.service(service("a", 1));
    process.endpoints("a", &[(1, true)]);
    process.sync();
    let table = process.node.table(Family::Ipv4).unwrap();
    let key = || Key::Service(Family::Ipv4, ObjectName::new("ns", "a"));
    let fight = |process: &mut Process| {
        let elements = process.node.elements(Family::Ipv4, "frontends");
        let elements = elements.iter().map(kernlink_nftables::Element::key_only);
        let elements = kernlink_nftables::Elements::new(table.set("frontends"), elements);
        let deletion = TableOperation::delete(ItemKey::Elements(elements));
        process.node.tables.0.lock().apply(&[deletion]).unwrap();
        assert!(process.proxier.recheck([key()]));
        process.sync()
    };
    for _ in 0..2 {
        assert_eq!(fight(&mut process).events, []);
        assert_eq!(process.node.elements(Family::Ipv4, "frontends").len(), 1);
    }
    let third = fight(&mut process);
    let events: Vec<String> = third.events.iter().map(ToString::to_string).collect();
    let expected = "changed or removed IPv4 elements of Service ns/a 3 times in a row";
    assert!(events.iter().any(|event| event.contains(expected)), "{events:?}");
    assert_eq!(process.node.elements(Family::Ipv4, "frontends").len(), 1);
    // A sync is a second later than the one before: as long as the first delay.
    fight(&mut process);
    assert_eq!(process.node.elements(Family::Ipv4, "frontends").len(), 1);
    // The other program wins until the second delay has passed.
    let later = fight(&mut process);
    assert_eq!(process.node.elements(Family::Ipv4, "frontends").len(), 0);
    process.now = later.next.unwrap();
    process.sync();
    assert_eq!(process.node.elements(Family::Ipv4, "frontends").len(), 1);
}

#[test]
fn an_element_that_another_program_changes_again_and_again_is_repaired_later() {
    let mut process = Process::new();
    process.service(service("a", 1));
    process.endpoints("a", &[(1, true)]);
    process.sync();
    let table = process.node.table(Family::Ipv4).unwrap();
    let written = process.node.elements(Family::Ipv4, "frontends").swap_remove(0);
    let key = || changed("frontends", written.key.as_bytes());
    let fight = |process: &mut Process| {
        let elements = Elements::new(table.set("frontends"), [written.key_only()]);
        let deletion = TableOperation::delete(ItemKey::Elements(elements));
        process.node.tables.0.lock().apply(&[deletion]).unwrap();
        assert!(process.proxier.recheck([key()]));
        process.sync()
    };
    let count = |process: &Process| process.node.elements(Family::Ipv4, "frontends").len();
    // A sync is a second later than the one before: as long as the first delay.
    for _ in 0..4 {
        fight(&mut process);
        assert_eq!(count(&process), 1);
    }
    // The other program wins until the second delay has passed.
    let later = fight(&mut process);
    assert_eq!(count(&process), 0);
    process.now = later.next.unwrap();
    process.sync();
    assert_eq!(count(&process), 1);
}

#[test]
fn a_change_of_an_element_of_the_table_that_was_replaced_reads_nothing() {
    let mut process = Process::new();
    process.service(service("a", 1));
    process.endpoints("a", &[(1, true)]);
    process.sync();
    let mut other = config();
    other.masquerade_all = true;
    process.proxier.set_config(&other).unwrap();
    process.sync();
    assert_eq!(&*process.node.table(Family::Ipv4).unwrap().name, SECOND_TABLE);
    // An element of the serving table that is missing shows whether it is read.
    let written = process.node.elements(Family::Ipv4, "frontends").swap_remove(0);
    let table = process.node.table(Family::Ipv4).unwrap();
    let elements = Elements::new(table.set("frontends"), [written.key_only()]);
    let deletion = TableOperation::delete(ItemKey::Elements(elements));
    process.node.tables.0.lock().apply(&[deletion]).unwrap();
    let key = written.key.as_bytes();
    for of_first in [
        changed("frontends", key),
        watched(Changed::Elements(Family::Ipv4, TABLE.into())),
    ] {
        process.proxier.recheck([of_first]);
        assert!(process.sync().plan.is_empty());
        assert_eq!(process.node.elements(Family::Ipv4, "frontends").len(), 0);
    }
    let of_second = ChangedElement::new(Family::Ipv4, SECOND_TABLE, "frontends", key);
    process.proxier.recheck([watched(Changed::Element(of_second))]);
    process.sync();
    assert_eq!(process.node.elements(Family::Ipv4, "frontends").len(), 1);
}

#[test]
fn more_endpoints_than_the_largest_class_are_reported_once_and_a_part_is_served() {
    let mut process = Process::new();
    process.service(service("a", 1));
    let mut many = slice("a", &[]);
    for number in 0..17_000_u32 {
        let address = std::net::Ipv4Addr::from(0x0a80_0000 + number);
        many = many.with_endpoint(kernlink_services::Endpoint::new(address.into()).with_node("node-b"));
    }
    process.change(Change::EndpointSlices(ObjectChange::Upsert(many.clone())));
    let synced = process.sync();
    let texts: Vec<String> = synced.events.iter().map(ToString::to_string).collect();
    let expected =
        "port ns/a:http has more than 16384 endpoints; new connections are balanced over 16384 of them";
    assert!(texts.iter().any(|text| text.contains(expected)), "{texts:?}");
    assert_eq!(process.node.elements(Family::Ipv4, "endpoints").len(), 16_384);
    process.change(Change::EndpointSlices(ObjectChange::Upsert(many.with_endpoint(
        kernlink_services::Endpoint::new([10, 250, 0, 1].into()).with_node("node-b"),
    ))));
    assert_eq!(process.sync().events, []);
    // Another port of the Service has few endpoints: both are compiled again.
    for port in [90, 91] {
        process.service(service("a", 1).with_port(kernlink_services::Port::new("metrics", port)));
        process.change(Change::EndpointSlices(ObjectChange::Upsert({
            let mut few = slice("a", &[])
                .with_endpoint(kernlink_services::Endpoint::new([10, 251, 0, 1].into()).with_node("node-b"));
            few.name = kernlink_services::ObjectName::new("ns", "a-few");
            few.ports[0].name = Some("metrics".into());
            few
        })));
        let texts: Vec<String> = process.sync().events.iter().map(ToString::to_string).collect();
        assert!(texts.iter().all(|text| !text.contains(expected)), "{texts:?}");
    }
}

#[test]
fn an_affinity_mask_is_reported_once() {
    let mut process = Process::new();
    let mut masked = with_affinity(service("a", 1), 90);
    masked
        .annotations
        .insert("kernlink.io/affinity-mask".into(), "24".into());
    process.service(masked.clone());
    let events: Vec<String> = process.sync().events.iter().map(ToString::to_string).collect();
    let of_mask = |events: &[String]| {
        events
            .iter()
            .filter(|text| text.contains("affinity-mask"))
            .count()
    };
    assert_eq!(of_mask(&events), 1, "{events:?}");
    process.endpoints("a", &[(1, false)]);
    let events: Vec<String> = process.sync().events.iter().map(ToString::to_string).collect();
    assert_eq!(of_mask(&events), 0, "{events:?}");
}

#[test]
fn udp_flows_are_deleted_when_a_frontend_passes_to_a_service_without_endpoints() {
    let udp = |name: &str| {
        kernlink_services::Service::new(kernlink_services::ObjectName::new("ns", name))
            .with_cluster_ip("10.96.0.1")
            .with_port(kernlink_services::Port::new("http", 53).with_protocol(Protocol::Udp))
    };
    let mut process = Process::new();
    process.service(udp("a"));
    process.endpoints("a", &[(1, false)]);
    process.service(udp("b"));
    process.sync();
    let deleted = ObjectChange::Delete(kernlink_services::ObjectName::new("ns", "a"));
    process.change(Change::Services(deleted));
    let synced = process.sync();
    let has_flows = |(_, step): (_, &kernlink_engine::plan::Step<Key, Operation>)| {
        matches!(step.operation, Operation::Flows(_))
    };
    assert!(synced.plan.steps().any(has_flows), "{}", synced.plan);
}

/// The key that a watcher passes on for an element of the first table that another program changed.
fn changed(set: &str, key: &[u8]) -> Key {
    watched(Changed::Element(ChangedElement::new(
        Family::Ipv4,
        TABLE,
        set,
        key,
    )))
}

/// The key that a watcher passes on.
fn watched(changed: Changed) -> Key {
    let key_of = config().watched().unwrap().key;
    key_of(changed).unwrap()
}

#[test]
fn an_element_that_another_program_changed_is_repaired_without_a_listing() {
    let mut process = Process::new();
    process.service(balanced("a", 1));
    process.service(with_affinity(service("b", 2), 90));
    for name in ["a", "b"] {
        process.endpoints(name, &[(1, true), (2, false), (3, false)]);
    }
    process.sync();
    let before = process.node.owned();
    let listings = process.proxier.cost().listings;
    let table = process.node.table(Family::Ipv4).unwrap();
    let sets = process.node.tables.0.lock().sets(&table).unwrap();
    for set in sets.iter().filter(|set| &*set.key.name != "affinity-clients") {
        let elements = process.node.elements(Family::Ipv4, &set.key.name);
        let Some(element) = elements.first() else { continue };
        let of = |element: Element| Elements::new(set.key.clone(), [element]);
        let bytes = element.key.as_bytes();
        // The index of an endpoint that does not exist, or another port of a frontend.
        let mut stray = bytes.to_vec();
        let last = stray.len() - 1;
        stray[last - 3] ^= 0x40;
        let stray = {
            let mut element = element.clone();
            element.key = Value::new(&stray);
            element
        };
        let deletion = TableOperation::delete(ItemKey::Elements(of(element.key_only())));
        for (operation, key) in [
            (deletion, bytes),
            (TableOperation::add(of(stray.clone())), stray.key.as_bytes()),
        ] {
            process.node.tables.0.lock().apply(&[operation]).unwrap();
            assert_ne!(process.node.owned(), before, "{}", set.key);
            let name = &set.key.name;
            process.proxier.recheck([changed(name, key)]);
            // Repairs of the same Service again and again would be delayed.
            process.now += Duration::from_secs(3_600);
            process.sync();
            assert_eq!(process.node.owned(), before, "{name}");
        }
    }
    assert_eq!(process.proxier.cost().listings, listings);
}

#[test]
fn an_element_that_another_program_changed_is_repaired_if_a_listing_of_too_many_elements_is_due_too() {
    let mut process = with_too_many_elements();
    let request = || [request([10, 96, 0, 20], 80, OUTSIDE)];
    let served = process.node.served(&request());
    let frontends = process.node.elements(Family::Ipv4, "frontends");
    let of_service = |element: &&Element| element.key.as_bytes().starts_with(&[10, 96, 0, 20]);
    let element = frontends.iter().find(of_service).unwrap();
    let delete = |process: &Process| {
        let table = process.node.table(Family::Ipv4).unwrap();
        let elements = Elements::new(table.set("frontends"), [element.key_only()]);
        let deletion = TableOperation::delete(ItemKey::Elements(elements));
        process.node.tables.0.lock().apply(&[deletion]).unwrap();
        assert_ne!(process.node.served(&request()), served);
    };
    delete(&process);
    process
        .proxier
        .recheck([changed("frontends", element.key.as_bytes())]);
    process.proxier.resync();
    process.sync();
    assert_eq!(process.node.served(&request()), served);
    // It is one of many: the table is not read, but made again.
    assert_eq!(&*process.node.table(Family::Ipv4).unwrap().name, TABLE);
    delete(&process);
    let many = watched(Changed::Elements(Family::Ipv4, TABLE.into()));
    process.proxier.recheck([many]);
    let synced = process.sync();
    let phases: Vec<Phase> = synced.plan.phases().iter().map(|phase| phase.kind).collect();
    assert_eq!(phases, [Phase::Tables, Phase::Services, Phase::Switch]);
    assert_eq!(&*process.node.table(Family::Ipv4).unwrap().name, SECOND_TABLE);
    assert_eq!(process.node.served(&request()), served);
    assert!(process.sync().plan.is_empty());
}

/// A node with more elements than are read, 10 times the most endpoints of a service port, and Service `a`.
#[test]
fn networks_of_cluster_ips_that_are_not_known_yet_stay_if_there_are_too_many_elements_to_read() {
    let mut process = with_too_many_elements();
    let mut config = config();
    config.service_cidrs = Some(vec!["10.96.0.0/16".parse().unwrap()]);
    process.proxier.set_config(&config).unwrap();
    process.sync();
    let written = process.node.elements(Family::Ipv4, "service-cidrs");
    assert_eq!(written.len(), 2);

    config.service_cidrs = None;
    let mut process = Process::on(process.node.clone(), &config);
    process.service(service("a", 20));
    process.endpoints("a", &[(1, false)]);
    process.sync();
    assert_eq!(&*process.node.table(Family::Ipv4).unwrap().name, SECOND_TABLE);
    assert_eq!(process.node.elements(Family::Ipv4, "service-cidrs"), written);
}

fn with_too_many_elements() -> Process {
    let mut process = Process::new();
    for number in 0..10 {
        let name = format!("s{number}");
        process.service(service(&name, number));
        process.change(endpoints_of(&name, MOST_ENDPOINTS));
    }
    process.service(service("a", 20));
    process.endpoints("a", &[(1, false)]);
    process.sync();
    process
}

/// The largest number of endpoints of a service port that are balanced.
const MOST_ENDPOINTS: u32 = 1 << 14;

/// The endpoints 10.128.0.0 + 0 to `number`.
fn many_endpoints(number: u32) -> Change {
    endpoints_of("a", number)
}

fn endpoints_of(name: &str, number: u32) -> Change {
    let mut slice = slice(name, &[]);
    for index in 0..number {
        slice = slice.with_endpoint(Endpoint::new(Ipv4Addr::from_bits(0x0a80_0000 + index).into()));
    }
    Change::EndpointSlices(ObjectChange::Upsert(slice))
}

#[test]
fn the_most_endpoints_are_balanced_and_one_more_is_reported_and_left_out() {
    let mut process = Process::new();
    process.service(service("a", 1));
    let mut listings = None;
    for (number, begins) in [
        (MOST_ENDPOINTS, false),
        (MOST_ENDPOINTS + 1, true),
        (MOST_ENDPOINTS + 2, false),
        (MOST_ENDPOINTS - 1, false),
        // It begins again.
        (MOST_ENDPOINTS + 1, true),
    ] {
        process.change(many_endpoints(number));
        let synced = process.sync();
        let mut events = synced.events.iter().map(ToString::to_string);
        let is_reported = events.any(|event| event.contains("more than 16384 endpoints"));
        assert_eq!(is_reported, begins, "{number}");
        let elements = process.node.elements(Family::Ipv4, "endpoints");
        // No listing is between them.
        let known = *listings.get_or_insert(process.proxier.cost().listings);
        assert_eq!(process.proxier.cost().listings, known);
        let balanced = usize::try_from(number.min(MOST_ENDPOINTS)).unwrap();
        assert_eq!(elements.len(), balanced, "{number}");
        let served = process.node.served(&[request([10, 96, 0, 1], 80, OUTSIDE)]);
        assert!(!served[0].is_empty(), "{number}");
    }
}
