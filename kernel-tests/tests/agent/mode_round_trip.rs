//! From iptables mode to userspace mode and back, with traffic.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use kernlink_kernel_tests::kernel::Feature;
use kernlink_kernel_tests::traffic::{Connection, Network, Protocol};
use kernlink_kernel_tests::{requires, wait};

use crate::iptables_mode::{MULTI, choose, rules};
use crate::support::{Agent, Manifests, ask, wait_for_answer};
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
