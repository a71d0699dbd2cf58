//! From one mode to another one and back, with traffic.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use kernlink_kernel_tests::expectations::NO_PORTS;
use kernlink_kernel_tests::kernel::Feature;
use kernlink_kernel_tests::manifests::{cluster_ips, service, slices};
use kernlink_kernel_tests::traffic::{Connection, Network, Protocol};
use kernlink_kernel_tests::{requires, tools, wait};

use crate::iptables_mode::{MULTI, choose, rules};
use crate::support::{Agent, Manifests, ask, wait_for_answer};
use crate::traffic::Traffic;
use crate::userspace_mode::{IPTABLES_MODE, MODE, with_node_port};

const ADDRESS: &str = "10.96.0.1";

/// Set when it is dropped, so that a failed test ends too.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Does `work` while a client uses an open connection and opens new ones. All must be answered; before the first new one that is answered, new
/// ones may fail if the Service is not served at the beginning.
fn while_used<T>(network: &Network, kept: &mut Connection, is_served: bool, work: impl FnOnce() -> T) -> T {
    let is_over = AtomicBool::new(false);
    thread::scope(|scope| {
        let client = scope.spawn(|| {
            let mut answered = 0;
            loop {
                let was_over = is_over.load(Ordering::Relaxed);
                kept.ask().unwrap();
                match ask(&network.client, ADDRESS) {
                    Ok(_) => answered += 1,
                    Err(error) if is_served || answered > 0 => panic!("{error} after {answered} answers"),
                    Err(_) => {}
                }
                if was_over {
                    return answered;
                }
            }
        });
        let over = Over(&is_over);
        let done = work();
        drop(over);
        assert!(client.join().unwrap() > 0);
        done
    })
}

#[test]
fn from_iptables_to_userspace_mode_and_back_no_connection_ends_and_each_mode_removes_the_other() {
    requires!(Feature::Iptables);
    for variant in MULTI {
        let network = Network::new(2);
        let mut servers = network.serve(Protocol::Tcp, 8080);
        servers.extend(network.serve(Protocol::Udp, 5353));
        let manifests = Manifests::new();
        manifests.replace("a.yaml", &with_node_port("a", ADDRESS));
        let open = |protocol: Protocol, port: u16| {
            let target = SocketAddr::new(ADDRESS.parse().unwrap(), port);
            // A datagram may be lost; the test sends others.
            let timeout = match protocol {
                Protocol::Tcp => Duration::from_secs(30),
                Protocol::Udp => Duration::from_secs(1),
            };
            Connection::open_within(timeout, &network.client, protocol, target).unwrap()
        };
        network.node.run(|| {
            choose(variant);
            let agent = Agent::start(&manifests.0, IPTABLES_MODE);
            agent.wait_for(" synced done=", 1);
            let target = SocketAddr::new(ADDRESS.parse().unwrap(), 80);
            let mut kept = Connection::open(&network.client, Protocol::Tcp, target).unwrap();
            let mut flow = open(Protocol::Udp, 53);
            assert_eq!(kept.ask().unwrap().server, "pod0");
            wait::until(|| flow.ask());

            let agent = while_used(&network, &mut kept, true, || {
                agent.stop();
                let agent = Agent::start(&manifests.0, MODE);
                wait::until(|| match rules() {
                    rules if rules.contains("KUBE-SVC-") || !rules.contains("KUBE-PORTALS-HOST") => {
                        Err(rules)
                    }
                    _ => Ok(()),
                });
                agent
            });
            assert!(!rules().contains("KUBE-SERVICES"), "{}", rules());
            wait::until(|| flow.ask());
            // The process copies these.
            let mut copied = open(Protocol::Tcp, 80);
            assert_eq!(copied.ask().unwrap().server, "pod0");
            let mut copied_flow = open(Protocol::Udp, 53);
            wait::until(|| copied_flow.ask());

            // They end with it. The rules that are left lead to closed ports until those of the next mode are written.
            agent.stop();
            assert!(copied.ask().is_err());
            let agent = while_used(&network, &mut kept, false, || {
                assert!(ask(&network.client, ADDRESS).is_err());
                let agent = Agent::start(&manifests.0, IPTABLES_MODE);
                wait::until(|| match rules() {
                    rules if rules.contains("KUBE-PORTALS") || rules.contains("KUBE-NODEPORT-") => Err(rules),
                    _ => Ok(()),
                });
                wait_for_answer(&network, ADDRESS, "pod0");
                agent
            });
            // Datagrams of flows that led to the process reach the endpoint.
            for flow in [&mut flow, &mut copied_flow] {
                assert_eq!(wait::until(|| flow.ask()).server, "pod0");
            }
            agent.stop();
        });
    }
}

/// The tables of nftables mode, and the chains of iptables mode.
fn left() -> [Vec<String>; 2] {
    let select = |listed: &str, parts: &[&str]| -> Vec<String> {
        let is_one = |line: &&str| parts.iter().any(|part| line.contains(part));
        listed.lines().filter(is_one).map(str::to_owned).collect()
    };
    let tables = tools::must("nft", &["list", "tables"]);
    let chains = ["iptables-save", "ip6tables-save"].map(|tool| tools::must(tool, &[]));
    [
        select(&tables, &[" ip kernlink", " ip6 kernlink"]),
        select(&chains.concat(), &[":KUBE-S"]),
    ]
}

#[test]
fn between_nftables_and_iptables_mode_no_connection_of_either_family_ends_and_each_removes_the_other() {
    requires!(Feature::Iptables);
    for variant in MULTI {
        let network = Network::new(1);
        let _servers = network.serve(Protocol::Tcp, 8080);
        let manifests = Manifests::new();
        let web = service("web", 1, "type: ClusterIP", NO_PORTS, &[]) + &slices("web", &[(0, "node-a")]);
        manifests.replace("a.yaml", &web);
        network.node.run(|| {
            choose(variant);
            let start = |mode: &str| Agent::start(&manifests.0, &["--proxy-mode", mode]);
            let mut agent = start("nftables");
            agent.wait_for(" synced done=", 1);
            let targets = cluster_ips(1).map(|address| SocketAddr::new(address, 80));
            let traffic = targets.map(|target| Traffic::start(&network, target, "pod0"));
            for (mode, serving, removed) in [("iptables", 1, 0), ("nftables", 0, 1), ("iptables", 1, 0)] {
                let (status, log) = agent.stop();
                assert!(status.success(), "{log}");
                agent = start(mode);
                wait::until(|| match left() {
                    left if left[removed].is_empty() && !left[serving].is_empty() => Ok(()),
                    left => Err(format!("{left:?}")),
                });
                traffic.iter().for_each(Traffic::assert_goes_on);
            }
            agent.stop();
            for traffic in &traffic {
                let (held, new) = traffic.answers();
                println!("{variant}: {held} answers on one connection, {new} on new ones");
            }
        });
    }
}
