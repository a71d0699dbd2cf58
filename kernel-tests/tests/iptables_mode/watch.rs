//! Repairs of what other programs remove, by events of the kernel or cheap checks, while full listings are ten minutes apart.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver};
use std::thread::JoinHandle;
use std::time::Duration;

use kernlink_iptables_restore::Variant;
use kernlink_kernel_tests::kernel::Feature;
use kernlink_kernel_tests::manifests::{cluster_ips, service, slices};
use kernlink_kernel_tests::traffic::{Network, Protocol, ask_many};
use kernlink_kernel_tests::{requires, tools, wait};
use kernlink_proxier::Runner;
use kernlink_proxier::iptables_mode::watch::{WatchOptions, Watcher};
use kernlink_proxier::iptables_mode::{IptablesMode, Proxier, Synced};
use kernlink_proxier::netfilter::rules_source;
use kernlink_proxier::runner::Notice;
use kernlink_proxier::schedule::{Intervals, Schedule};
use kernlink_services::{Family, SourceId};

use crate::support::{changes, config, for_each_variant, proxier, saved_rules, tool};

const TEN_MINUTES: Duration = Duration::from_secs(600);

/// A runner with a watcher, in the calling thread's namespace.
struct Running {
    runner: Arc<Runner<IptablesMode>>,
    synced: Receiver<Box<Synced>>,
    watcher: Watcher,
    forwarding: JoinHandle<()>,
}

impl Running {
    /// Returns after the first sync.
    fn start(variant: Variant, proxier: Proxier) -> Self {
        let options = WatchOptions::new(Family::ALL.map(|family| (family, rules_source(variant))))
            .with_check_interval(Duration::from_millis(200));
        let (sender, events) = mpsc::channel();
        let watcher = Watcher::start(&config(), &options, move |event| _ = sender.send(event)).unwrap();
        let intervals = Intervals {
            min: Duration::ZERO,
            max: TEN_MINUTES,
        };
        let (sender, synced) = mpsc::channel();
        let notify = move |notice: Notice<IptablesMode>| match notice {
            Notice::Synced(synced) => _ = sender.send(synced),
            Notice::Failed(error) => eprintln!("sync failed: {error}"),
            _ => {}
        };
        let runner = Arc::new(Runner::start(proxier, Schedule::new(intervals), notify).unwrap());
        let first = synced.recv_timeout(wait::LIMIT).unwrap();
        assert!(first.is_success() && !first.plan.is_empty(), "{first}");
        let receiver = Arc::clone(&runner);
        let forwarding = std::thread::spawn(move || {
            // Ends with the watcher.
            for event in events {
                event.pass_to(&receiver);
            }
        });
        Self {
            runner,
            synced,
            watcher,
            forwarding,
        }
    }

    /// Stops all threads.
    fn stop(self) {
        drop(self.watcher);
        self.forwarding.join().unwrap();
        drop(self.runner);
    }

    /// Waits for a sync with steps.
    fn changed(&self) -> Box<Synced> {
        loop {
            let synced = self.synced.recv_timeout(wait::LIMIT).unwrap();
            if !synced.plan.is_empty() {
                assert!(synced.is_success(), "{synced}");
                return synced;
            }
        }
    }

    fn listings(&self) -> usize {
        self.runner.read(|proxier| proxier.cost().listings).unwrap()
    }
}

/// A Service with these endpoints.
fn web_on(pods: &[(u8, &str)]) -> String {
    let ports = [", nodePort: 30080", ", nodePort: 30053"];
    service("web", 1, "type: NodePort", ports, &[]) + &slices("web", pods)
}

fn web() -> String {
    web_on(&[(0, "node-a")])
}

fn assert_served(network: &Network, what: &str) {
    for address in cluster_ips(1) {
        for (protocol, port) in [(Protocol::Tcp, 80), (Protocol::Udp, 53)] {
            let tally = ask_many(&network.client, protocol, SocketAddr::new(address, port), 2);
            assert_eq!(
                tally.answers.values().sum::<usize>(),
                2,
                "{what}: {address} {protocol}"
            );
        }
    }
}

#[test]
fn a_flush_of_any_table_is_noticed_and_repaired() {
    requires!(Feature::Iptables);
    for_each_variant(1, |variant, network| {
        for flushed in ["nat", "filter", "jumps", "everything"] {
            // Each with a runner of its own: what is changed back several times is repaired with a delay.
            let running = Running::start(variant, proxier(variant, &web()));
            let before = saved_rules(variant);
            for name in ["iptables", "ip6tables"] {
                let run = |arguments: &[&str]| _ = tools::must(&tool(variant, name), arguments);
                match flushed {
                    "nat" => run(&["-w", "-t", "nat", "-F"]),
                    "filter" => run(&["-w", "-F"]),
                    "jumps" => run(&["-w", "-t", "nat", "-F", "PREROUTING"]),
                    _ => tools::flush_tables(&tool(variant, &format!("{name}-restore"))),
                }
            }
            running.changed();
            // One sync for each family, in any order.
            wait::until(|| {
                (saved_rules(variant) == before)
                    .then_some(())
                    .ok_or("the rules differ")
            });
            assert_served(network, flushed);
            running.stop();
            // The next runner begins with tables without its chains.
            for name in ["iptables", "ip6tables"] {
                for table in ["nat", "filter"] {
                    for option in ["-F", "-X"] {
                        tools::must(&tool(variant, name), &["-w", "-t", table, option]);
                    }
                }
            }
        }
        if variant == Variant::Nft {
            let running = Running::start(variant, proxier(variant, &web()));
            let before = saved_rules(variant);
            tools::must("nft", &["flush", "ruleset"]);
            running.changed();
            wait::until(|| {
                (saved_rules(variant) == before)
                    .then_some(())
                    .ok_or("the rules differ")
            });
            assert_served(network, "the whole rule set");
        }
    });
}

#[test]
fn own_changes_cause_no_full_listing() {
    requires!(Feature::Iptables);
    for_each_variant(2, |variant, _| {
        let running = Running::start(variant, proxier(variant, &web()));
        for pods in [
            &[(1, "node-a")][..],
            &[(0, "node-a"), (1, "node-a")],
            &[(0, "node-a")],
        ] {
            running.runner.change_all(SourceId(0), changes(&web_on(pods)));
            running.changed();
        }
        // Checks of the legacy tables ran meanwhile; notices of own changes would have been received before this change.
        running
            .runner
            .change_all(SourceId(0), changes(&web().replace("30080", "30081")));
        running.changed();
        assert_eq!(running.listings(), 1, "{variant}");
    });
}

#[test]
fn node_ports_are_served_at_a_new_address_of_the_node() {
    requires!(Feature::Iptables);
    for_each_variant(1, |variant, network| {
        let mut narrow = config();
        narrow.services.node_port_addresses =
            kernlink_services::NodePortAddresses::Networks(vec!["192.0.2.0/24".parse().unwrap()]);
        let mut proxier = proxier(variant, &web());
        proxier.set_config(&narrow).unwrap();
        let running = Running::start(variant, proxier);
        tools::ip(&["address", "add", "192.0.2.77/24", "dev", "client"]);
        running.changed();
        let target = SocketAddr::new([192, 0, 2, 77].into(), 30080);
        let tally = ask_many(&network.client, Protocol::Tcp, target, 2);
        assert_eq!(tally.answers.values().sum::<usize>(), 2);
        tools::ip(&["address", "delete", "192.0.2.77/24", "dev", "client"]);
        running.changed();
        let (nat, _) = saved_rules(variant).into_iter().next().unwrap_or_default();
        assert!(!nat.contains("192.0.2.77"), "{nat}");
    });
}
