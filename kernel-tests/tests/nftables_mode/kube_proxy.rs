//! A node that kube-proxy served in nftables mode. `nft` loads what kube-proxy wrote for the same objects, see `kube_proxy/README.md`.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use kernlink_kernel_tests::expectations::{assert_refused, assert_silent, node_ips};
use kernlink_kernel_tests::kernel::Feature;
use kernlink_kernel_tests::load::Load;
use kernlink_kernel_tests::traffic::{Connection, Network, Protocol, ask_many};
use kernlink_kernel_tests::udp_clients::keep_flows;
use kernlink_kernel_tests::{requires, tools};
use kernlink_kubernetes::manifest;
use kernlink_nftables::{Client, Event, Item, Monitor, MonitorScope, TableFamily, TableKey};
use kernlink_proxier::nftables_mode::Proxier;
use kernlink_proxier::nftables_mode::retire::Retiring;
use kernlink_proxier::retire::{Retire, Retired, RetiredOutcome, Round, Unserved, remove_all};
use kernlink_services::{FrontendKey, ObjectName, SourceId};

use crate::support::{config, empty_proxier, foreign_ruleset, on_network, sync_once};

const RECORDED: &str = include_str!("kube_proxy/nftables.txt");
const OBJECTS: &str = include_str!("kube_proxy/objects.yaml");

/// Requests to a frontend: each of three endpoints is chosen with a probability above 1 - 1e-10.
const REQUESTS: usize = 60;

/// Tables of other programs.
const FOREIGN: &str = "table ip foreign {
	set hosts {
		type ipv4_addr
		elements = { 192.0.2.77 }
	}

	chain input {
		type filter hook input priority filter; policy accept;
		ip saddr @hosts tcp dport 9 drop
	}
}
table ip6 kube-proxy-other {
	chain forward {
		type filter hook forward priority filter; policy accept;
		tcp dport 9 drop
	}
}
";

fn load(tables: &str) {
    tools::run_with_input("nft", &["-f", "-"], tables).unwrap_or_else(|error| panic!("{error}"));
}

fn at(address: &str, port: u16) -> SocketAddr {
    SocketAddr::new(address.parse().unwrap(), port)
}

/// The frontends that the client reaches, with the pods that serve them.
fn served() -> Vec<(Protocol, SocketAddr, &'static [&'static str])> {
    let all = &["pod0", "pod1", "pod2"][..];
    let dns = &["pod0", "pod2"][..];
    let mut served = vec![(Protocol::Tcp, at("10.96.0.1", 443), &["pod0"][..])];
    for address in ["10.96.0.10", "fd00:10:96::a"] {
        served.push((Protocol::Udp, at(address, 53), dns));
        served.push((Protocol::Tcp, at(address, 53), dns));
    }
    let web = ["10.96.0.20", "203.0.113.10", "203.0.113.20"];
    let web = web
        .into_iter()
        .chain(["fd00:10:96::20", "2001:db8:ff::10", "2001:db8:ff::20"]);
    served.extend(web.map(|address| (Protocol::Tcp, at(address, 80), all)));
    for address in ["10.96.0.22", "fd00:10:96::22", "203.0.113.11", "2001:db8:ff::11"] {
        served.push((Protocol::Tcp, at(address, 80), &["pod1"]));
    }
    for address in ["203.0.113.13", "2001:db8:ff::13"] {
        served.push((Protocol::Tcp, at(address, 80), &["pod0"]));
    }
    for address in node_ips() {
        served.push((Protocol::Tcp, SocketAddr::new(address, 30_080), all));
        served.push((Protocol::Tcp, SocketAddr::new(address, 30_082), &["pod0"]));
    }
    served
}

fn assert_reached(network: &Network, protocol: Protocol, target: SocketAddr, servers: &[&str]) {
    ask_many(&network.client, protocol, target, REQUESTS).assert_balanced(servers, REQUESTS);
}

/// Asserts that the client reaches exactly what it should.
fn assert_state(network: &Network) {
    for (protocol, target, servers) in served() {
        assert_reached(network, protocol, target, servers);
    }
    for address in ["10.96.0.21", "fd00:10:96::21"] {
        let tally = ask_many(&network.client, Protocol::Tcp, at(address, 80), REQUESTS);
        let reached = ["pod0", "pod1"].map(|pod| tally.of(pod));
        assert!(reached == [REQUESTS, 0] || reached == [0, REQUESTS], "{tally:?}");
    }
    for address in ["203.0.113.12", "2001:db8:ff::12"] {
        assert_silent(&network.client, Protocol::Tcp, at(address, 80));
    }
    for address in ["10.96.0.24", "fd00:10:96::24"] {
        assert_refused(&network.client, Protocol::Tcp, at(address, 80));
    }
    for address in node_ips() {
        assert_refused(&network.client, Protocol::Tcp, SocketAddr::new(address, 30_081));
    }
}

/// A new process with the objects for which kube-proxy wrote its tables.
fn new_proxier() -> Proxier {
    let objects = manifest::read("objects.yaml", OBJECTS);
    assert_eq!(objects.errors, []);
    let mut proxier = empty_proxier(&config());
    for change in objects.into_changes().unwrap() {
        proxier.change(SourceId(0), change);
    }
    proxier
}

/// The changes until now, by transaction.
fn transactions(monitor: &mut Monitor) -> Vec<Vec<Event>> {
    let mut transactions = vec![Vec::new()];
    for event in monitor {
        match event.unwrap() {
            Event::Generation(_) => transactions.push(Vec::new()),
            Event::Overrun => panic!("events were lost"),
            event => transactions.last_mut().unwrap().push(event),
        }
    }
    transactions
}

#[test]
fn its_tables_are_replaced_in_one_transaction_of_each_family_while_every_connection_is_served() {
    requires!(Feature::Conntrack);
    on_network(3, |network| {
        load(FOREIGN);
        let foreign = foreign_ruleset();
        load(RECORDED);
        keep_flows();
        assert_state(network);
        let mut clients = Vec::new();
        let mut open = Vec::new();
        for (protocol, target, _) in served() {
            let mut connection = Connection::open(&network.client, protocol, target).unwrap();
            let answer = connection.ask().unwrap();
            open.push((connection, (answer.server, answer.source)));
            clients.push((&network.client, protocol, target));
        }
        for address in ["10.96.0.20", "fd00:10:96::20"] {
            clients.push((&network.pods[1], Protocol::Tcp, at(address, 80)));
            clients.push((&network.node, Protocol::Tcp, at(address, 80)));
        }
        let load = Load::start(&clients);
        let mut monitor = Monitor::open(MonitorScope::Changes, Some(Duration::from_millis(100))).unwrap();
        let mut proxier = new_proxier();
        let synced = sync_once(&mut proxier);
        assert!(!synced.is_partial, "{synced}");
        load.wait_for(20);
        load.assert_all_served();
        for (connection, before) in &mut open {
            let answer = connection.ask().unwrap();
            assert_eq!((answer.server, answer.source), *before);
        }
        assert_state(network);
        assert_eq!(foreign_ruleset(), foreign);

        let transactions = transactions(&mut monitor);
        for family in [TableFamily::Ip, TableFamily::Ip6] {
            let is_of = |table: &TableKey, name: &str| *table == TableKey::new(family, name);
            let is_deletion = |event: &Event| matches!(event, Event::Deleted(Item::Table(table)) if is_of(&table.key, "kube-proxy"));
            let mut with_deletion = transactions
                .iter()
                .filter(|events| events.iter().any(is_deletion));
            let switch = with_deletion.next().unwrap();
            assert_eq!(with_deletion.next(), None);
            let hooks = switch.iter().filter(|event| {
                matches!(event, Event::Added(Item::Chain(chain))
                    if chain.base.is_some() && is_of(&chain.key.table, "kernlink"))
            });
            assert!(hooks.count() > 0, "{family:?}: {switch:?}");
        }

        proxier.resync();
        let plan = proxier.plan(Instant::now()).unwrap();
        assert!(plan.is_empty(), "{plan}");
    });
}

fn retire(retiring: &mut Retiring, unserved: &BTreeMap<FrontendKey, Unserved>) -> Retired {
    let retired = retiring.retire(&Round {
        now: Instant::now(),
        has_serving_mode: true,
        unserved,
        has_served: true,
        kept: &|_| false,
        executes: true,
    });
    let mut outcomes = retired.steps.iter().map(|step| &step.outcome);
    assert!(
        outcomes.all(|outcome| *outcome == RetiredOutcome::Done),
        "{retired:?}"
    );
    assert_eq!(retired.problems, [""; 0]);
    retired
}

#[test]
fn what_another_mode_does_not_serve_yet_stays_in_its_tables_and_the_rest_is_removed() {
    requires!(Feature::Conntrack);
    on_network(3, |network| {
        load(FOREIGN);
        let foreign = foreign_ruleset();
        load(RECORDED);
        let mut retiring = Retiring::new(Box::new(Client::open().unwrap()));
        assert_eq!(retiring.read(Instant::now(), &|_| false), Ok(true));
        assert_eq!(retiring.is_serving(), Ok(true));

        let [node, _] = node_ips();
        let frontends: [(_, _, &[&str], &[&str]); 5] = [
            (Protocol::Tcp, at("10.96.0.1", 443), &["pod0"], &[]),
            (Protocol::Udp, at("fd00:10:96::a", 53), &["pod0", "pod2"], &[]),
            (
                Protocol::Tcp,
                SocketAddr::new(node, 30_080),
                &["pod0", "pod1", "pod2"],
                &[],
            ),
            (Protocol::Tcp, at("203.0.113.13", 80), &["pod0"], &[]),
            // Which clients its rules admit is not known: it does not stay.
            (Protocol::Tcp, at("203.0.113.11", 80), &[], &["192.0.2.0/24"]),
        ];
        let key = |protocol: Protocol, target: SocketAddr| FrontendKey {
            address: target.ip(),
            protocol: match protocol {
                Protocol::Tcp => kernlink_services::Protocol::Tcp,
                _ => kernlink_services::Protocol::Udp,
            },
            port: target.port(),
        };
        let unserved = frontends.iter().map(|(protocol, target, _, ranges)| {
            let ranges: Vec<_> = ranges.iter().map(|range| range.parse().unwrap()).collect();
            let unserved = Unserved {
                service: ObjectName::new("shop", "any"),
                source_ranges: ranges.into(),
            };
            (key(*protocol, *target), unserved)
        });
        let unserved: BTreeMap<FrontendKey, Unserved> = unserved.collect();
        let held = frontends.iter().filter(|(_, _, servers, _)| !servers.is_empty());
        let expected: BTreeSet<FrontendKey> = held
            .clone()
            .map(|(protocol, target, ..)| key(*protocol, *target))
            .collect();
        // The second round finds nothing more to remove.
        for _ in 0..2 {
            let retired = retire(&mut retiring, &unserved);
            assert_eq!(retired.held, expected);
            for (protocol, target, servers, _) in held.clone() {
                assert_reached(network, *protocol, *target, servers);
            }
            for (address, port) in [
                ("10.96.0.20", 80),
                ("10.96.0.10", 53),
                ("203.0.113.11", 80),
                ("fd00:10:96::20", 80),
            ] {
                assert_silent(&network.client, Protocol::Tcp, at(address, port));
            }
        }
        let retired = retire(&mut retiring, &BTreeMap::new());
        assert_eq!((retired.steps.len(), retired.held.len()), (2, 0));
        assert!(retire(&mut retiring, &BTreeMap::new()).is_gone);
        assert_eq!(foreign_ruleset(), foreign);
        assert_eq!(retiring.read(Instant::now(), &|_| false), Ok(false));

        // Without another mode everything is removed at once.
        load(RECORDED);
        let removed = remove_all(&mut [Box::new(retiring)], Instant::now());
        assert_eq!((removed.failures, removed.kept), (Vec::new(), Vec::new()));
        assert_eq!(foreign_ruleset(), foreign);
    });
}
