//! Foreign rules that cannot be parsed, and rules that cannot be written: a frontend with restricted sources never accepts other sources.

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use kernlink_iptables_restore::{Client, Error, Iptables, Operation, Restore, Ruleset, Save, Variant};
use kernlink_kernel_tests::traffic::{Connection, Network, Protocol, ask_many};
use kernlink_kernel_tests::{tools, wait};
use kernlink_proxier::ipvs_mode::{Kernel, Proxier};
use kernlink_proxier::plan::Subject;
use kernlink_proxier::report::Outcome;
use kernlink_services::ObjectName;

use crate::clusters::WEB_PORTS;
use crate::support::{
    cluster_ips, feed, load_balancer, proxier_on, replace_objects, service, slices, state_without_rules, sync,
};

/// The addresses of the load balancer that allows the client.
const ADMITTING: [&str; 2] = ["203.0.113.10", "2001:db8:ff::10"];
/// The addresses of the load balancer that does not allow the client.
const EXCLUDING: [&str; 2] = ["203.0.113.11", "2001:db8:ff::11"];

/// How long to wait for a reply that must not arrive.
const SILENCE: Duration = Duration::from_secs(5);

/// A load balancer with restricted sources and a remote endpoint.
fn balancer(name: &str, number: u8, ingress: [&str; 2], ranges: &str) -> String {
    let spec = format!(
        "type: LoadBalancer, allocateLoadBalancerNodePorts: false, loadBalancerSourceRanges: [{ranges}], \
         ports: [{{name: web, port: 80, protocol: TCP}}]"
    );
    load_balancer(name, number, &spec, ingress) + &slices(name, WEB_PORTS, &[(0, "node-b")])
}

/// One load balancer that allows the client and one that allows other sources.
fn load_balancers() -> String {
    balancer("admitting", 1, ADMITTING, "'192.0.2.0/24', '2001:db8:1::/64'")
        + &balancer("excluding", 2, EXCLUDING, "'198.51.100.0/24', '2001:db8:5::/48'")
}

fn at(address: &str, port: u16) -> SocketAddr {
    SocketAddr::new(address.parse().unwrap(), port)
}

/// Where the client is allowed, it is served with the address of the node as its source; where it is not, its packets are dropped.
fn assert_restricted(network: &Network) {
    let gateways: [IpAddr; 2] = ["10.244.0.1", "fd00:10:244::1"].map(|address| address.parse().unwrap());
    thread::scope(|scope| {
        let excluded = EXCLUDING.map(|address| scope.spawn(move || refusal(network, at(address, 80))));
        for (address, gateway) in ADMITTING.into_iter().zip(gateways) {
            let tally = ask_many(&network.client, Protocol::Tcp, at(address, 80), 2);
            tally.assert_balanced(&["pod0"], 0);
            assert_eq!(tally.sources, [gateway].into(), "masqueraded");
        }
        for (address, refusal) in EXCLUDING.into_iter().zip(excluded) {
            assert_eq!(refusal.join().unwrap(), ErrorKind::TimedOut, "{address}");
        }
    });
}

/// The error when the client connects.
fn refusal(network: &Network, target: SocketAddr) -> ErrorKind {
    match Connection::open_within(SILENCE, &network.client, Protocol::Tcp, target) {
        Ok(_) => panic!("{target} is open"),
        Err(error) => error.kind(),
    }
}

/// Foreign content of the IPv4 tables that cannot be parsed.
#[derive(Clone, Copy, Debug)]
enum Foreign {
    /// Rules with a line feed in a comment.
    LineFeed,
    /// A chain that `nft` made, with a name of more than 28 characters, and a jump to it.
    LongName,
    /// A rule for which `iptables-nft-save` fails.
    Unprintable,
}

const TABLES: [&str; 2] = ["nat", "filter"];

impl Foreign {
    /// Adds it to both tables.
    fn add(self, backend: Variant) {
        let program = match backend {
            Variant::Legacy => "iptables-legacy",
            _ => "iptables-nft",
        };
        let chains = "*nat\n:THEIRS - [0:0]\n-A OUTPUT -s 198.51.100.9/32 -j THEIRS\nCOMMIT\n\
                      *filter\n:THEIRS - [0:0]\n-A OUTPUT -s 198.51.100.9/32 -j THEIRS\nCOMMIT\n";
        feed(&format!("{program}-restore"), &["--noflush"], chains);
        for table in TABLES {
            match self {
                Foreign::LineFeed => {
                    for (chain, comment) in [
                        ("OUTPUT", "one\ntwo"),
                        ("THEIRS", "x\n-A OUTPUT -j KUBE-SERVICES\nCOMMIT"),
                    ] {
                        let rule = [
                            "-w",
                            "-t",
                            table,
                            "-I",
                            chain,
                            "-s",
                            "198.51.100.9",
                            "-m",
                            "comment",
                            "--comment",
                        ];
                        tools::must(program, &[&rule[..], &[comment, "-j", "ACCEPT"]].concat());
                    }
                }
                Foreign::LongName => {
                    let name = "a-chain-with-a-name-of-more-than-28-characters";
                    let commands = format!(
                        "add chain ip {table} {name}\nadd rule ip {table} {name} ip saddr 198.51.100.9 accept\n\
                         add rule ip {table} THEIRS jump {name}\n"
                    );
                    feed("nft", &["-f", "-"], &commands);
                }
                Foreign::Unprintable => {
                    let command = format!("add rule ip {table} THEIRS meta skuid 0 accept\n");
                    feed("nft", &["-f", "-"], &command);
                }
            }
            let read = tools::run(&format!("{program}-save"), &["-t", table]);
            let is_read = read.is_ok_and(|text| text.parse::<Ruleset>().is_ok());
            assert!(!is_read, "{self:?}: the {table} table can be read");
        }
    }

    /// The foreign rules, as printed by the tool that can print both tables.
    fn rules(backend: Variant) -> Vec<String> {
        let mut rules = Vec::new();
        for table in TABLES {
            let text = match backend {
                Variant::Legacy => tools::must("iptables-legacy-save", &["-t", table]),
                _ => tools::must("nft", &["--stateless", "list", "table", "ip", table]),
            };
            // The chain of a line of nft.
            let mut chain = "";
            for line in text.lines() {
                if let Some(name) = line.strip_prefix("\tchain ") {
                    chain = name;
                }
                let is_foreign = match backend {
                    Variant::Legacy => {
                        let is_heading = line.starts_with([':', '#', '*']);
                        let is_jump =
                            line.contains(" -m comment --comment \"kube") && line.contains(" -j KUBE-");
                        !is_heading && !is_jump && !line.starts_with("-A KUBE-")
                    }
                    _ => {
                        let is_rule = line.starts_with("\t\t") && !line.starts_with("\t\ttype ");
                        is_rule && !chain.starts_with("KUBE-") && !line.contains("jump KUBE-")
                    }
                };
                if is_foreign {
                    rules.push(format!("{table} {chain}{line}"));
                }
            }
        }
        rules
    }
}

fn on_foreign_rules(foreign: Foreign, backend: Variant) {
    kernlink_kernel_tests::requires_ipvs_mode!();
    let network = Network::new(1);
    let _servers = network.serve(Protocol::Tcp, 8080);
    let _on_node = network.node.enter();
    foreign.add(backend);
    let before = Foreign::rules(backend);
    assert!(before.len() >= 4, "{before:#?}");
    let mut kernel = Kernel::open().unwrap();
    let lock = std::env::temp_dir().join(format!("kernlink-foreign-{}", std::process::id()));
    let command = Client::new().with_variant(backend);
    kernel.rules = Box::new(command.with_wait(Duration::from_secs(30)).with_lock_file(lock));
    let mut proxier = proxier_on(kernel, &load_balancers());
    let synced = sync(&mut proxier);
    let events: Vec<String> = synced.events.iter().map(ToString::to_string).collect();
    assert!(
        events.iter().any(|event| event.contains("IPv4 table")),
        "{events:#?}"
    );
    assert_restricted(&network);
    // A second write neither changes the foreign rules nor removes owned ones.
    proxier.resync();
    sync(&mut proxier);
    assert_restricted(&network);
    assert_eq!(Foreign::rules(backend), before);
    assert!(sync(&mut proxier).plan.is_empty());
}

#[test]
fn sources_are_restricted_with_a_line_feed_in_a_comment_of_legacy_tables() {
    on_foreign_rules(Foreign::LineFeed, Variant::Legacy);
}

#[test]
fn sources_are_restricted_with_a_line_feed_in_a_comment_of_nft_tables() {
    on_foreign_rules(Foreign::LineFeed, Variant::Nft);
}

#[test]
fn sources_are_restricted_with_a_foreign_chain_with_a_long_name() {
    on_foreign_rules(Foreign::LongName, Variant::Nft);
}

#[test]
fn sources_are_restricted_with_a_foreign_rule_that_cannot_be_printed() {
    on_foreign_rules(Foreign::Unprintable, Variant::Nft);
}

/// The kernel's rules, which can be made to refuse every write.
struct Refusing {
    kernel: Client,
    is_refusing: Arc<AtomicBool>,
}

impl Refusing {
    fn check(&self) -> Result<(), Error> {
        if self.is_refusing.load(Ordering::Relaxed) {
            let (tool, text) = ("iptables-restore".to_owned(), "refused by the test".to_owned());
            return Err(Error::Unexpected { tool, text });
        }
        Ok(())
    }
}

impl Iptables for Refusing {
    fn execute(&mut self, operations: &[Operation]) -> Vec<Result<(), Error>> {
        match self.check() {
            Ok(()) => self.kernel.execute(operations),
            Err(error) => vec![Err(error); operations.len()],
        }
    }

    fn save(&mut self, request: &Save) -> Result<Ruleset, Error> {
        self.kernel.save(request)
    }

    fn test(&mut self, restore: &Restore) -> Result<(), Error> {
        self.check()?;
        self.kernel.test(restore)
    }
}

/// A Service with a node port, without restricted sources.
fn open() -> String {
    let spec = "type: NodePort, ports: [{name: web, port: 80, nodePort: 30080, protocol: TCP}]";
    service("open", 3, spec, "") + &slices("open", WEB_PORTS, &[(0, "node-a")])
}

/// The outcomes of all steps for a Service in the namespace `default`.
fn outcomes(synced: &kernlink_proxier::ipvs_mode::Synced, name: &str) -> Vec<(String, bool)> {
    let subject = Subject::Service(ObjectName::new("default", name));
    let steps = synced.plan.steps().zip(synced.report.outcomes());
    steps
        .filter(|((_, step), _)| step.subject == subject)
        .map(|((_, step), outcome)| {
            let is_skipped = matches!(outcome, Outcome::Skipped { .. });
            assert!(
                is_skipped || *outcome == Outcome::Done,
                "{}: {outcome:?}",
                step.operation
            );
            (step.operation.to_string(), is_skipped)
        })
        .collect()
}

#[test]
fn without_rules_no_restricted_frontend_is_served_and_others_are() {
    kernlink_kernel_tests::requires_ipvs_mode!();
    let network = Network::new(1);
    let _servers = network.serve(Protocol::Tcp, 8080);
    let _on_node = network.node.enter();
    let is_refusing = Arc::new(AtomicBool::new(true));
    let mut kernel = Kernel::open().unwrap();
    kernel.rules = Box::new(Refusing {
        kernel: Client::new(),
        is_refusing: is_refusing.clone(),
    });
    let mut proxier: Proxier = proxier_on(kernel, &(load_balancers() + &open()));
    let synced = proxier.sync(Instant::now()).unwrap();
    assert!(!synced.is_success() && synced.counts().skipped > 0, "{synced}");

    let state = state_without_rules();
    for frontend in ADMITTING.into_iter().chain(EXCLUDING) {
        let is_served = state["ipvs"].iter().any(|line| line.contains(frontend));
        assert!(!is_served, "{frontend}: {:#?}", state["ipvs"]);
    }
    // Without rules, processes of the node would accept connections to these addresses.
    assert_eq!(state.get("addresses of kube-ipvs0"), None);
    for name in ["admitting", "excluding"] {
        for (operation, is_skipped) in outcomes(&synced, name) {
            let of_frontend = operation.starts_with("ipvsadm") && operation.contains("203.0.113.1");
            let needs_rules = of_frontend || operation.starts_with("ip address");
            assert!(is_skipped || !needs_rules, "{operation} was done\n{synced}");
        }
        assert!(
            outcomes(&synced, name).iter().any(|(_, is_skipped)| *is_skipped),
            "{synced}"
        );
    }
    // All steps that do not need rules are done: the node port is served.
    for (operation, is_skipped) in outcomes(&synced, "open") {
        assert!(
            !is_skipped || operation.starts_with("ip address"),
            "{operation} was skipped\n{synced}"
        );
    }
    for node in [IpAddr::from(Network::node_ipv4()), Network::node_ipv6().into()] {
        ask_many(&network.client, Protocol::Tcp, (node, 30080).into(), 2).assert_balanced(&["pod0"], 0);
    }

    // While rules are refused, retries change nothing. Afterwards they do the remaining steps.
    let mut due = synced.next.unwrap();
    let again = proxier.sync(due).unwrap();
    assert!(!again.is_success() && again.counts().done == 0, "{again}");
    is_refusing.store(false, Ordering::Relaxed);
    due = again.next.unwrap().max(due);
    let mut last = proxier.sync(due).unwrap();
    while let Some(next) = last.next {
        last = proxier.sync(next).unwrap();
    }
    assert!(last.is_success(), "{last}");
    wait::for_ipv6_addresses();
    assert_restricted(&network);
    for address in cluster_ips(3) {
        ask_many(&network.client, Protocol::Tcp, (address, 80).into(), 2).assert_balanced(&["pod0"], 0);
    }
    proxier.resync();
    assert!(sync(&mut proxier).plan.is_empty());

    // After the rules were written, a refusal neither removes them nor prevents changes of sets and virtual servers.
    is_refusing.store(true, Ordering::Relaxed);
    let spec = "type: ClusterIP, ports: [{name: web, port: 80, protocol: TCP}]";
    let more = service("more", 4, spec, "") + &slices("more", WEB_PORTS, &[(0, "node-a")]);
    replace_objects(&mut proxier, &(load_balancers() + &open() + &more));
    sync(&mut proxier);
    assert_restricted(&network);
    for address in cluster_ips(4) {
        ask_many(&network.client, Protocol::Tcp, (address, 80).into(), 2).assert_balanced(&["pod0"], 0);
    }
}
