//! A node changes its mode from IPVS to iptables and back, each with a new process, while clients connect all the time.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use kernlink_agent::modes::{self, Config, Mode};
use kernlink_kernel_tests::tools;
use kernlink_kernel_tests::traffic::{Connection, Network, Protocol, wait_for_neighbour};
use kernlink_proxier::host::LocalDetection;
use kernlink_proxier::iptables_mode::{self, IptablesMode};
use kernlink_proxier::ipvs_mode::{self, IpvsMode};
use kernlink_services::Family;

use crate::any_proxier::{self, AnyProxier};
use crate::clusters::WEB_PORTS;
use crate::support::{cluster_ips, draining_config, load_balancer, service, slices};

/// The longest time that connections of IPVS mode keep what they need. The test ends it by the times that it passes to the proxier.
const LIMIT: Duration = Duration::from_secs(600);

/// The time between two requests of a client, so that most of the processor's time is left for the changes.
const PAUSE: Duration = Duration::from_millis(20);

/// The configuration of a mode. Pods are not detected: connections of the node to a cluster IP are masqueraded only because of their
/// source.
fn config(mode: Mode) -> Config {
    let mut ipvs = draining_config();
    ipvs.services.defaults.drain_timeout = Some(LIMIT);
    ipvs.local_detection = LocalDetection::ClusterCidr(Vec::new());
    match mode {
        Mode::Ipvs => ipvs.into(),
        Mode::Iptables => {
            let mut config = iptables_mode::Config::new("node-a");
            config.services = ipvs.services;
            config.conntrack = ipvs.conntrack;
            config.local_detection = ipvs.local_detection;
            config.into()
        }
        Mode::Nftables | Mode::Userspace => unreachable!("the tests of this file are about the other modes"),
    }
}

fn manifests() -> String {
    let node_port = "type: NodePort, ports: [{name: web, port: 80, nodePort: 30080, protocol: TCP}]";
    let balanced = "type: LoadBalancer, loadBalancerSourceRanges: ['192.0.2.0/24', '198.51.100.0/24', '10.244.0.0/16', '2001:db8::/32', 'fd00::/8'], \
                    ports: [{name: web, port: 80, nodePort: 30443, protocol: TCP}]";
    // Source ranges that contain the node admit its connections, whose source is the address that they lead to.
    let node = format!(
        "---\napiVersion: v1\nkind: Node\nmetadata: {{name: node-a}}\nstatus: {{addresses: [\
         {{type: InternalIP, address: '{}'}}, {{type: InternalIP, address: '{}'}}]}}\n",
        Network::node_ipv4(),
        Network::node_ipv6()
    );
    [
        node,
        service("shop", 1, node_port, ""),
        slices("shop", WEB_PORTS, &[(0, "node-a"), (1, "node-b")]),
        load_balancer("outer", 2, balanced, ["203.0.113.10", "2001:db8:ff::10"]),
        slices("outer", WEB_PORTS, &[(0, "node-a"), (1, "node-b")]),
    ]
    .concat()
}

/// A frontend of each kind and family, which clients outside, pods and the node itself reach.
fn targets() -> Vec<SocketAddr> {
    let mut targets = Vec::new();
    for family in Family::ALL {
        let index = family.index();
        let balanced = ["203.0.113.10", "2001:db8:ff::10"][index].parse().unwrap();
        let node = [Network::node_ipv4().into(), Network::node_ipv6().into()][index];
        targets.push(SocketAddr::new(cluster_ips(1)[index], 80));
        targets.push(SocketAddr::new(balanced, 80));
        targets.push(SocketAddr::new(node, 30080));
    }
    targets
}

fn open_all(network: &Network) -> Vec<Connection> {
    let mut open = Vec::new();
    for target in targets() {
        let clients = [&network.client, &network.pods[0], &network.node];
        for (client, from) in ["client", "pod0", "node"].iter().zip(clients) {
            let connection = Connection::open(from, Protocol::Tcp, target);
            open.push(
                connection.unwrap_or_else(|error| panic!("{client} to {target}: {error}\n{}", listing())),
            );
        }
    }
    open
}

/// The names of the servers that answer.
fn ask_all(open: &mut [Connection]) -> Vec<String> {
    open.iter_mut()
        .map(|connection| connection.ask().unwrap().server)
        .collect()
}

/// Syncs until no time for the next sync is left, as if the time passed at once. Returns the last time.
fn run(proxier: &mut dyn AnyProxier, mut now: Instant) -> Instant {
    for _ in 0..40 {
        let synced = proxier.sync(now);
        assert!(synced.is_success(), "{synced}");
        match synced.next {
            Some(next) => now = next.max(now),
            None => return now,
        }
    }
    panic!("there is always another sync")
}

/// Starts a process in another mode in place of this one, and syncs a few times.
fn change(process: &mut Box<dyn AnyProxier>, config: &Config, mut now: Instant) -> Instant {
    *process = proxier(config);
    for _ in 0..4 {
        let synced = process.sync(now);
        assert!(synced.is_success(), "{synced}");
        now += Duration::from_secs(2);
    }
    now
}

/// Everything that the kernel has, in one text.
fn listing() -> String {
    let mut text = tools::ipvsadm_save() + &tools::ipset_save();
    for program in ["iptables-save", "ip6tables-save"] {
        text += &tools::must(program, &[]);
    }
    text
}

/// Asserts that iptables mode dropped no packet for its source: all clients are admitted.
fn assert_none_dropped() {
    for program in ["iptables-save", "ip6tables-save"] {
        let saved = tools::must(program, &["-c", "-t", "filter"]);
        let rules = saved.lines().filter(|line| {
            line.contains("-A KUBE-PROXY-FIREWALL") && line.contains("not accepted by KUBE-FW-")
        });
        let rules: Vec<&str> = rules.collect();
        assert!(!rules.is_empty(), "{saved}");
        for rule in rules {
            assert!(rule.starts_with("[0:0] "), "{rule}");
        }
    }
}

fn assert_settled(mode: Mode, words: &[&str]) {
    let listing = listing();
    for word in words {
        assert!(!listing.contains(word), "{word}\n{listing}");
    }
    let mut other = proxier(&config(mode));
    let plan = other.plan(Instant::now());
    assert!(plan.is_empty(), "{plan}");
}

fn proxier(config: &Config) -> Box<dyn AnyProxier> {
    let retiring = modes::retiring(config).unwrap();
    let mut proxier = match config {
        Config::Ipvs(config) => {
            any_proxier::proxier::<IpvsMode>(config, ipvs_mode::Kernel::open().unwrap(), retiring)
        }
        Config::Iptables(iptables) => {
            let kernel = iptables_mode::Kernel::open().unwrap();
            any_proxier::proxier::<IptablesMode>(&iptables.config, kernel, retiring)
        }
        Config::Nftables(_) | Config::Userspace(_) => {
            unreachable!("the tests of this file are about the other modes")
        }
    };
    let objects = kernlink_kubernetes::manifest::read("test", &manifests());
    for change in objects.into_changes().unwrap() {
        proxier.change(change);
    }
    proxier
}

/// Ends the requests of other threads, also if this one panics.
struct Stop<'a>(&'a AtomicBool);

impl Drop for Stop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// What only one of the modes writes.
const OF_IPVS: &[&str] = &[
    "KUBE-IPVS",
    "KUBE-NODE-PORT",
    "KUBE-LOAD-BALANCER",
    "KUBE-CLUSTER-IP",
    "KERNLINK",
];
const OF_IPTABLES: &[&str] = &[
    "KUBE-SVC-",
    "KUBE-SEP-",
    "KUBE-EXT-",
    "KUBE-FW-",
    "KUBE-NODEPORTS",
    "KUBE-EXTERNAL-SERVICES",
];

#[test]
fn connections_continue_from_ipvs_to_iptables_and_back_and_nothing_of_the_other_mode_is_left() {
    kernlink_kernel_tests::requires_ipvs_mode!();
    let network = Network::new(2);
    let _servers = network.serve(Protocol::Tcp, 8080);
    let _on_node = network.node.enter();
    wait_for_neighbour(&network.client, Network::node_ipv4().into());
    // As on any node. In iptables mode the node has no addresses of Services, so its connections need a route.
    let gateways = [
        Network::client_ipv4().to_string(),
        Network::client_ipv6().to_string(),
    ];
    for (family, gateway) in ["-4", "-6"].iter().zip(&gateways) {
        tools::must("ip", &[family, "route", "add", "default", "via", gateway]);
    }
    let (ipvs, iptables) = (config(Mode::Ipvs), config(Mode::Iptables));
    let mut proxier = proxier(&ipvs);
    let mut now = Instant::now();
    assert!(proxier.sync(now).is_success());
    kernlink_kernel_tests::wait::for_ipv6_addresses();

    let mut of_ipvs = open_all(&network);
    let before = ask_all(&mut of_ipvs);
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let stop = Stop(&is_done);
        // The other pod is on another node, whose rules masquerade its connections to itself.
        let clients = [
            ("client", &network.client),
            ("pod0", &network.pods[0]),
            ("node", &network.node),
        ];
        let requests = clients.map(|(name, client)| {
            let is_done = &is_done;
            scope.spawn(move || {
                let mut requests = 0;
                while !is_done.load(Ordering::Relaxed) {
                    for target in targets() {
                        let answer =
                            Connection::open(client, Protocol::Tcp, target).and_then(|mut open| open.ask());
                        answer.unwrap_or_else(|error| panic!("{name} to {target}: {error}"));
                        requests += 1;
                        std::thread::sleep(PAUSE);
                    }
                }
                requests
            })
        });
        now = change(&mut proxier, &iptables, now);
        assert!(tools::ipvsadm_save().contains(" -w 0"));
        let mut of_iptables = open_all(&network);
        let between = ask_all(&mut of_iptables);
        assert_eq!(ask_all(&mut of_ipvs), before, "the same servers answer");
        assert_none_dropped();

        now = change(&mut proxier, &ipvs, now);
        assert_eq!(ask_all(&mut of_ipvs), before, "the same servers answer");
        assert_eq!(ask_all(&mut of_iptables), between, "the same servers answer");
        assert_settled(Mode::Ipvs, OF_IPTABLES);
        drop(stop);
        for requests in requests {
            assert!(requests.join().unwrap() > 0);
        }
    });
    drop(of_ipvs);

    now = change(&mut proxier, &iptables, now);
    run(&mut *proxier, now + LIMIT);
    assert!(tools::run("ip", &["link", "show", "kube-ipvs0"]).is_err());
    assert_settled(Mode::Iptables, OF_IPVS);
    let mut open = open_all(&network);
    ask_all(&mut open);
    assert_none_dropped();
}
