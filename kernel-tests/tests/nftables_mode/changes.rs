//! Changes while there is traffic: every new connection is served, every open one goes on, and the kernel gets elements only.
//!
//! `KERNLINK_CHANGES` is the number of changes of each test (default: 60).

use std::net::SocketAddr;
use std::time::Duration;

use kernlink_kernel_tests::expectations::{NO_PORTS, ips, node_ips};
use kernlink_kernel_tests::kernel::Feature;
use kernlink_kernel_tests::load::Load;
use kernlink_kernel_tests::manifests::{cluster_ips, service, slices};
use kernlink_kernel_tests::requires;
use kernlink_kernel_tests::traffic::{Connection, Network, Protocol};
use kernlink_nftables::{Event, EventFilter, Monitor, MonitorScope, TableFamily, TableKey};
use kernlink_proxier::host::LocalDetection;

use crate::support::{change, config, on_network, proxier, proxier_with, replace_objects, sync_once};

fn number_of_changes() -> usize {
    std::env::var("KERNLINK_CHANGES").map_or(60, |number| number.parse().unwrap())
}

const EXTERNAL: [&str; 2] = ["203.0.113.20", "2001:db8:ff::20"];
const INGRESS: [&str; 2] = ["203.0.113.10", "2001:db8:ff::10"];
const NODE_PORTS: [&str; 2] = [", nodePort: 30080", ", nodePort: 30053"];

/// The Service that clients use. `more` are further fields of its specification.
fn web(more: &str, pods: &[(u8, &str)]) -> String {
    let spec = format!(
        "type: LoadBalancer, externalIPs: ['{}', '{}']{more}",
        EXTERNAL[0], EXTERNAL[1]
    );
    service("web", 1, &spec, NODE_PORTS, &INGRESS) + &slices("web", pods)
}

/// Other Services, with endpoints or without.
fn others(numbers: std::ops::Range<u8>) -> String {
    let other = |number: u8| {
        let name = format!("other{number}");
        let affinity = if number.is_multiple_of(3) {
            ", sessionAffinity: ClientIP"
        } else {
            ""
        };
        let pods: &[(u8, &str)] = if number.is_multiple_of(2) {
            &[(2, "node-a")]
        } else {
            &[]
        };
        service(
            &name,
            number,
            &format!("type: ClusterIP{affinity}"),
            NO_PORTS,
            &[],
        ) + &slices(&name, pods)
    };
    numbers.map(other).collect()
}

const POD0: (u8, &str) = (0, "node-a");
const POD1: (u8, &str) = (1, "node-a");
const POD2: (u8, &str) = (2, "node-b");
const POD3: (u8, &str) = (3, "node-a");

/// Objects that differ from those before in one thing. Clients are served with all of them.
fn states() -> Vec<String> {
    let affinity = |seconds: u32| {
        format!(
            ", sessionAffinity: ClientIP, sessionAffinityConfig: {{clientIP: {{timeoutSeconds: {seconds}}}}}"
        )
    };
    let ranges = ", loadBalancerSourceRanges: ['192.0.2.0/24', '10.244.0.0/16', '2001:db8::/32', 'fd00::/8']";
    let local = ", externalTrafficPolicy: Local, internalTrafficPolicy: Local, healthCheckNodePort: 32000";
    vec![
        web("", &[POD0]),
        web("", &[POD0, POD1]),
        web("", &[POD0, POD1, POD2]),
        web("", &[POD0, POD1, POD2, POD3]),
        // The first one, the last one, and one in between are replaced and leave.
        web("", &[POD1, POD2, POD3]),
        web("", &[POD1, POD2]),
        web("", &[POD0, POD2]),
        web("", &[POD3]),
        web("", &[POD0]),
        web(&affinity(900), &[POD0, POD1, POD3]),
        web(&affinity(900), &[POD0, POD3]),
        web(&affinity(60), &[POD0, POD3]),
        web("", &[POD0, POD3]),
        web(ranges, &[POD0, POD3]),
        web(ranges, &[POD0, POD1]),
        web("", &[POD0, POD1]),
        web(local, &[POD0, POD1, POD2]),
        web(local, &[POD0, POD2]),
        web(&format!("{local}{}", affinity(10)), &[POD0, POD1, POD2]),
        web("", &[POD0, POD1]) + &others(10..20),
        web("", &[POD0, POD1]) + &others(14..40),
    ]
}

/// Clients of all kinds of frontends, from outside, from a pod and from the node.
fn load(network: &Network) -> Load {
    let mut clients = Vec::new();
    for family in 0..2 {
        let at = |address, port| SocketAddr::new(address, port);
        let frontends = [
            (&network.client, Protocol::Tcp, at(cluster_ips(1)[family], 80)),
            (&network.pods[4], Protocol::Tcp, at(cluster_ips(1)[family], 80)),
            (&network.node, Protocol::Tcp, at(node_ips()[family], 30080)),
            (
                &network.client,
                Protocol::Udp,
                at(ips(EXTERNAL[0], EXTERNAL[1])[family], 53),
            ),
            (
                &network.client,
                Protocol::Tcp,
                at(ips(INGRESS[0], INGRESS[1])[family], 80),
            ),
        ];
        clients.extend(frontends);
    }
    Load::start(&clients)
}

/// Open connections, each to the endpoint that serves all the time.
fn open(network: &Network) -> Vec<Connection> {
    cluster_ips(1)
        .into_iter()
        .flat_map(|address| [(&network.client, address), (&network.pods[4], address)])
        .map(|(from, address)| Connection::open(from, Protocol::Tcp, SocketAddr::new(address, 80)).unwrap())
        .collect()
}

#[test]
fn every_new_connection_is_served_during_changes_of_every_kind() {
    requires!(Feature::Conntrack);
    on_network(5, |network| {
        let states = states();
        let mut proxier = proxier(&states[0]);
        sync_once(&mut proxier);
        let mut connections = open(network);
        let load = load(network);
        for number in 0..number_of_changes() {
            // Every state follows several others.
            let state = number * (1 + number / states.len()) % states.len();
            change(&mut proxier, &states[state]);
            load.wait_for(20);
            for connection in &mut connections {
                assert_eq!(connection.ask().unwrap().server, "pod0");
            }
        }
        let served = load.assert_all_served();
        eprintln!("{served} connections");
    });
}

#[test]
fn every_new_connection_is_served_while_the_configuration_changes() {
    requires!(Feature::Conntrack);
    on_network(5, |network| {
        let state = web("", &[POD0, POD1]) + &others(10..20);
        let mut config = config();
        let mut proxier = proxier_with(&config, &state);
        sync_once(&mut proxier);
        let mut connections = open(network);
        let load = load(network);
        let by_source = config.local_detection.clone();
        for number in 0..number_of_changes() / 6 {
            config.masquerade_all = number % 2 == 0;
            config.local_detection = match number % 3 {
                0 => LocalDetection::ClusterCidr(Vec::new()),
                1 => LocalDetection::interface_prefix("pod").unwrap(),
                _ => by_source.clone(),
            };
            proxier.set_config(&config).unwrap();
            sync_once(&mut proxier);
            load.wait_for(20);
            for connection in &mut connections {
                connection.ask().unwrap();
            }
        }
        load.assert_all_served();
    });
}

#[test]
fn a_new_process_loses_no_connection_and_serves_what_changed_meanwhile() {
    requires!(Feature::Conntrack);
    on_network(5, |network| {
        let states = states();
        let mut running = proxier(&states[0]);
        sync_once(&mut running);
        let mut connections = open(network);
        let load = load(network);
        for number in 0..number_of_changes() / 2 {
            drop(running);
            // A node without a process for some time.
            load.wait_for(20);
            running = proxier(&states[number % states.len()]);
            sync_once(&mut running);
            load.wait_for(20);
            for connection in &mut connections {
                assert_eq!(connection.ask().unwrap().server, "pod0");
            }
        }
        load.assert_all_served();
    });
}

/// A witness of what the kernel does in the table of a family.
struct Witness(Monitor);

impl Witness {
    fn new(family: TableFamily) -> Self {
        let filter = EventFilter::of_table(&TableKey::new(family, "kernlink"));
        let monitor = Monitor::open(MonitorScope::Changes, Some(Duration::from_millis(100))).unwrap();
        Self(monitor.with_filter(filter))
    }

    /// The number of transactions until now, in which there may be elements only.
    fn transactions(&mut self, what: &str) -> usize {
        let mut transactions = 0;
        for event in &mut self.0 {
            match event.unwrap() {
                Event::Generation(_) => transactions += 1,
                Event::Added(item) => {
                    assert!(
                        matches!(item, kernlink_nftables::Item::Elements(_)),
                        "{what}: {item:?}"
                    );
                }
                Event::Deleted(item) => {
                    assert!(
                        matches!(item, kernlink_nftables::Item::Elements(_)),
                        "{what}: {item:?}"
                    );
                }
                event => panic!("{what}: {event:?}"),
            }
        }
        transactions
    }
}

#[test]
fn a_change_of_a_service_is_one_transaction_of_elements_in_each_family() {
    requires!(Feature::Conntrack);
    on_network(5, |_| {
        let mut states = states();
        // Without clients.
        states.extend([
            web("", &[]),
            String::new(),
            web(", externalTrafficPolicy: Local", &[POD2]),
            web(", internalTrafficPolicy: Local", &[]),
        ]);
        let mut proxier = proxier("");
        sync_once(&mut proxier);
        let mut witnesses = [TableFamily::Ip, TableFamily::Ip6].map(Witness::new);
        for number in 0..number_of_changes().max(2 * states.len()) {
            let state = number * (1 + number / states.len()) % states.len();
            let what = format!("change {number}: {}", states[state]);
            replace_objects(&mut proxier, &states[state]);
            let synced = sync_once(&mut proxier);
            for witness in &mut witnesses {
                let transactions = witness.transactions(&what);
                assert!(transactions <= 1, "{what}\n{transactions} transactions: {synced}");
            }
        }
    });
}
