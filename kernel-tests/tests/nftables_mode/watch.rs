//! Repairs of what other programs remove, by events of the kernel, while full listings are ten minutes apart. The tables have no owner here, as
//! before Linux 6.9: otherwise no other program can change them.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver};
use std::thread::JoinHandle;
use std::time::Duration;

use kernlink_kernel_tests::expectations::targets;
use kernlink_kernel_tests::kernel::Feature;
use kernlink_kernel_tests::manifests::{cluster_ips, service, slices};
use kernlink_kernel_tests::traffic::{Network, Protocol, ask_many};
use kernlink_kernel_tests::{requires, tools, wait};
use kernlink_nftables::{Client, Nftables, TableKey};
use kernlink_proxier::nftables_mode::watch::{WatchEvent, Watcher};
use kernlink_proxier::nftables_mode::{Config, Kernel, NftablesMode, Proxier};
use kernlink_proxier::runner::Notice;
use kernlink_proxier::schedule::{Intervals, Schedule};
use kernlink_proxier::watch::Watchable;
use kernlink_proxier::{Found, KernelObject, Runner};
use kernlink_services::{Family, FrontendKey, NodePortAddresses, SourceId};

use crate::support::{changes, config, on_network, replace_objects, sync_once};

const TEN_MINUTES: Duration = Duration::from_secs(600);

/// A runner with a watcher, in the calling thread's namespace.
struct Running {
    runner: Arc<Runner<NftablesMode>>,
    /// Whether each successful sync had steps.
    synced: Receiver<bool>,
    watcher: Watcher,
    forwarding: JoinHandle<()>,
    /// How many objects the watcher named.
    rechecked: Arc<AtomicUsize>,
}

impl Running {
    /// Returns after the first sync.
    fn start(config: &Config, manifests: &str) -> Self {
        let mut kernel = Kernel::open().unwrap();
        kernel.owns_tables = false;
        let options = config.watch_options().with_own_ports(Config::own_ports(&kernel));
        assert_eq!(options.own_ports.len(), 1);
        let mut proxier = Proxier::new(config, kernel).unwrap();
        replace_objects(&mut proxier, manifests);
        let (sender, events) = mpsc::channel();
        let watcher = Watcher::start(config, &options, move |event| _ = sender.send(event)).unwrap();
        let intervals = Intervals {
            min: Duration::ZERO,
            max: TEN_MINUTES,
        };
        let (sender, synced) = mpsc::channel();
        let notify = move |notice: Notice<NftablesMode>| match notice {
            // One that read while the other program was deleting may fail. It is repeated.
            Notice::Synced(synced) if synced.is_success() => {
                _ = sender.send(!synced.plan.is_empty());
            }
            Notice::Failed(error) => eprintln!("sync failed: {error}"),
            _ => {}
        };
        let runner = Arc::new(Runner::start(proxier, Schedule::new(intervals), notify).unwrap());
        assert!(synced.recv_timeout(wait::LIMIT).unwrap());
        let receiver = Arc::clone(&runner);
        let rechecked = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&rechecked);
        let forwarding = std::thread::spawn(move || {
            // Ends with the watcher.
            for event in events {
                if let WatchEvent::Recheck(keys) = &event {
                    counter.fetch_add(keys.len(), Ordering::Relaxed);
                }
                event.pass_to(&receiver);
            }
        });
        Self {
            runner,
            synced,
            watcher,
            forwarding,
            rechecked,
        }
    }

    /// Stops all threads.
    fn stop(self) {
        drop(self.watcher);
        self.forwarding.join().unwrap();
        drop(self.runner);
    }

    /// Waits for a sync with steps.
    fn changed(&self) {
        while !self.synced.recv_timeout(wait::LIMIT).unwrap() {}
    }

    fn listings(&self) -> usize {
        self.runner.read(|proxier| proxier.cost().listings).unwrap()
    }
}

fn web(pods: &[(u8, &str)]) -> String {
    let ports = [", nodePort: 30080", ", nodePort: 30053"];
    service("web", 1, "type: NodePort", ports, &[]) + &slices("web", pods)
}

fn assert_served(network: &Network, what: &str) {
    for (_, protocol, target) in targets(cluster_ips(1)) {
        let tally = ask_many(&network.client, protocol, target, 2);
        assert_eq!(tally.of("pod0"), 2, "{what}: {target} {protocol}");
    }
}

#[test]
fn what_another_program_deletes_is_noticed_and_written_again() {
    requires!(Feature::Conntrack);
    on_network(1, |network| {
        for deleted in [
            &["flush", "ruleset"][..],
            &["delete", "table", "ip", "kernlink"],
            &["delete", "table", "ip6", "kernlink"],
            &["flush", "chain", "ip", "kernlink", "nat-prerouting"],
            &["flush", "table", "ip6", "kernlink"],
        ] {
            // Each with a runner of its own: what is changed back several times is repaired with a delay.
            let running = Running::start(&config(), &web(&[(0, "node-a")]));
            assert_served(network, "before");
            tools::must("nft", deleted);
            running.changed();
            // One sync for each family, in any order.
            wait::until(|| {
                let rules = tools::must("nft", &["-t", "list", "ruleset"]);
                // Twice in each of two chains.
                let is_complete = rules.matches("jump services").count() == 2 * 2 * Family::ALL.len();
                is_complete.then_some(()).ok_or(rules)
            });
            assert_served(network, &deleted.join(" "));
            running.stop();
            tools::must("nft", &["flush", "ruleset"]);
        }
    });
}

#[test]
fn own_changes_cause_no_full_listing() {
    requires!(Feature::Conntrack);
    on_network(2, |_| {
        let running = Running::start(&config(), &web(&[(0, "node-a")]));
        for pods in [
            &[(1, "node-a")][..],
            &[(0, "node-a"), (1, "node-a")],
            &[(0, "node-a")],
            &[],
            &[(1, "node-a")],
        ] {
            running.runner.change_all(SourceId(0), changes(&web(pods)));
            running.changed();
        }
        assert_eq!(running.listings(), 1);
        // After the time in which events become one.
        tools::must(
            "nft",
            &["add", "element", "ip", "kernlink", "cluster-ips", "{ 10.96.7.7 }"],
        );
        running.changed();
        assert_eq!(running.rechecked.load(Ordering::Relaxed), 1);
        assert_eq!(running.listings(), 1);
        running.stop();
    });
}

/// The elements of a family by set.
fn elements(family: Family) -> BTreeSet<(String, String)> {
    let mut client = Client::open().unwrap();
    let table = TableKey::new(family, "kernlink");
    let mut all = BTreeSet::new();
    for set in client.sets(&table).unwrap() {
        for element in client.list_elements(&set.key).unwrap() {
            all.insert((
                set.key.name.to_string(),
                format!("{:?} {:?}", element.key, element.data),
            ));
        }
    }
    all
}

/// Commands of `nft` that depend on what is there.
type Commands<'a> = Box<dyn Fn() -> String + 'a>;

#[test]
fn elements_that_another_program_changes_are_written_again_at_once() {
    requires!(Feature::Conntrack);
    on_network(2, |network| {
        let pods = web(&[(0, "node-a"), (1, "node-b")]);
        let address = cluster_ips(1)[0];
        let first = |set: &str| {
            let text = tools::must("nft", &["list", "map", "ip", "kernlink", set]);
            let (_, elements) = text.split_once("elements = {").unwrap();
            let end = elements.find([',', '}']).unwrap();
            elements[..end].trim().to_owned()
        };
        let key = |element: &str| {
            element
                .split(" comment ")
                .next()
                .unwrap()
                .split(" : ")
                .next()
                .unwrap()
                .to_owned()
        };
        let changes: Vec<(&str, Commands<'_>)> = vec![
            (
                "a map without elements",
                Box::new(|| "flush map ip kernlink endpoints".to_owned()),
            ),
            (
                "without a frontend",
                Box::new(|| {
                    format!(
                        "delete element ip kernlink frontends {{ {} }}",
                        key(&first("frontends"))
                    )
                }),
            ),
            (
                "without a cluster IP",
                Box::new(|| format!("delete element ip kernlink cluster-ips {{ {address} }}")),
            ),
            (
                "with another endpoint",
                Box::new(|| {
                    let element = key(&first("endpoints"));
                    format!(
                        "delete element ip kernlink endpoints {{ {element} }}; \
                     add element ip kernlink endpoints {{ {element} : 192.0.2.250 . 9 }}"
                    )
                }),
            ),
            (
                "with a frontend that no Service has",
                Box::new(|| format!("add element ip kernlink no-endpoints {{ {address} . tcp . 7777 }}")),
            ),
            (
                "with a frontend without endpoints",
                Box::new(|| format!("add element ip kernlink no-endpoints {{ {address} . tcp . 80 }}")),
            ),
        ];
        for (what, change) in changes {
            let running = Running::start(&config(), &pods);
            let before = elements(Family::Ipv4);
            tools::must("nft", &[&change()]);
            wait::until(|| {
                let now = elements(Family::Ipv4);
                (now == before)
                    .then_some(())
                    .ok_or_else(|| format!("{what}: {now:?}"))
            });
            assert_eq!(running.listings(), 1, "{what}");
            for (_, protocol, target) in targets(cluster_ips(1)) {
                let tally = ask_many(&network.client, protocol, target, 4);
                assert_eq!(tally.failures, [""; 0], "{what}: {target} {protocol}");
            }
            running.stop();
            tools::must("nft", &["flush", "ruleset"]);
        }
    });
}

#[test]
fn what_another_program_flushed_is_named_for_a_frontend() {
    requires!(Feature::Conntrack);
    on_network(1, |_| {
        let mut kernel = Kernel::open().unwrap();
        kernel.owns_tables = false;
        let mut proxier = Proxier::new(&config(), kernel).unwrap();
        replace_objects(&mut proxier, &web(&[(0, "node-a")]));
        sync_once(&mut proxier);
        let key = FrontendKey {
            address: cluster_ips(1)[0],
            protocol: kernlink_services::Protocol::Tcp,
            port: 80,
        };
        let find = |proxier: &Proxier| -> Vec<KernelObject> {
            let objects = proxier
                .state()
                .frontend_elements(&key)
                .find(&mut Client::open().unwrap());
            let is_wrong = |object: &KernelObject| !matches!(object.found, Found::Same(_));
            objects.into_iter().filter(is_wrong).collect()
        };
        assert_eq!(find(&proxier), []);
        tools::must("nft", &["flush", "map", "ip", "kernlink", "endpoints"]);
        let missing = find(&proxier);
        assert_eq!(missing.len(), 1, "{missing:?}");
        assert_eq!(missing[0].found, Found::Missing);
        assert!(
            missing[0]
                .desired
                .starts_with("add element ip kernlink endpoints {"),
            "{missing:?}"
        );
        tools::must("nft", &["flush", "table", "ip", "kernlink"]);
        let rules = find(&proxier);
        let chain = "chain ip kernlink nat-prerouting with ";
        let of_chain = rules.iter().find(|object| object.desired.starts_with(chain));
        assert_eq!(
            of_chain.unwrap().found,
            Found::Different("0 rules".into()),
            "{rules:?}"
        );
        tools::must("nft", &["delete", "table", "ip", "kernlink"]);
        let gone = find(&proxier);
        assert_eq!(gone, [KernelObject::missing("table ip kernlink")]);
    });
}

#[test]
fn node_ports_are_served_at_a_new_address_of_the_node() {
    requires!(Feature::Conntrack);
    on_network(1, |network| {
        let mut narrow = config();
        let networks = ["192.0.2.0/24", "2001:db8:1::/64"];
        narrow.services.node_port_addresses =
            NodePortAddresses::Networks(networks.map(|net| net.parse().unwrap()).into());
        let running = Running::start(&narrow, &web(&[(0, "node-a")]));
        for (address, net) in [
            ("192.0.2.77", "192.0.2.77/24"),
            ("2001:db8:1::77", "2001:db8:1::77/64"),
        ] {
            let target = SocketAddr::new(address.parse().unwrap(), 30080);
            tools::ip(&["address", "add", net, "dev", "client"]);
            running.changed();
            wait::until(|| {
                let tally = ask_many(&network.client, Protocol::Tcp, target, 2);
                (tally.of("pod0") == 2)
                    .then_some(())
                    .ok_or_else(|| format!("{tally:?}"))
            });
            tools::ip(&["address", "delete", net, "dev", "client"]);
            running.changed();
        }
        running.stop();
    });
}
