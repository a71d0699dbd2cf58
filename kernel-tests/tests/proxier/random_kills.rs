//! Processes that are killed at random moments while Services and endpoints change all the time. Each next one converges, and connections
//! to endpoints that stay go on.
//!
//! `KERNLINK_KILLS` is the number of kills (default: 10), `KERNLINK_KILLS_SEED` the seed of the clusters and of the moments. The moments
//! also depend on the speed of the machine.

use std::fmt::Write as _;
use std::io::{BufRead, BufReader, Write as _};
use std::net::SocketAddr;
use std::process::{Child, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::{Duration, Instant};

use kernlink_ipset::Operation as SetOperation;
use kernlink_ipvs::Operation as IpvsOperation;
use kernlink_kernel_tests::netns::NetNs;
use kernlink_kernel_tests::traffic::{Connection, Network, Protocol};
use kernlink_kernel_tests::{programs, tools, wait};
use kernlink_proxier::ipvs_mode::{Kernel, Operation, Plan, Proxier, dummylink};

use crate::clusters::WEB_PORTS;
use crate::support::{
    assert_in_desired_state, cluster_ips, desired, draining_config, load_balancer, proxier, proxier_with,
    replace_objects, service, slices, sync,
};

const TEST: &str = "random_kills::connections_to_endpoints_that_stay_survive_kills_at_random_moments";
/// Set for a process that is to be killed: a [`Life`].
const PROCESS: &str = "KERNLINK_PROCESS_TO_KILL";
const DEFAULT_KILLS: usize = 10;
const DEFAULT_SEED: u64 = 14;
/// The pods that are endpoints of the Service `web` all the time.
const STAYING: [u8; 2] = [0, 1];

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// A number less than `limit`.
    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit.max(1)
    }

    fn is_one_of(&mut self, number: u64) -> bool {
        self.below(number) == 0
    }

    /// A time up to this one.
    fn up_to(&mut self, most: Duration) -> Duration {
        Duration::from_micros(self.below(u64::try_from(most.as_micros()).unwrap()))
    }

    /// Each of these pods with a probability of one half.
    fn some_of(&mut self, pods: &[u8]) -> Vec<u8> {
        pods.iter().copied().filter(|_| self.is_one_of(2)).collect()
    }
}

/// The manifests of a generation: the Service `web`, of which two endpoints stay, and other Services that come, change and go. One in three of
/// these differs from the previous generation.
fn cluster(seed: u64, generation: u64) -> String {
    let mut random = Random(seed ^ generation << 32);
    let web = [&STAYING, &*random.some_of(&[2, 3])].concat();
    // Without affinity in the first generation, so that its connections reach several endpoints.
    let is_bound = random.is_one_of(4) && generation > 0;
    let affinity = if is_bound { "ClientIP" } else { "None" };
    let spec = format!(
        "type: ClusterIP, sessionAffinity: {affinity}, ports: [{{name: web, port: 80, protocol: TCP}}]"
    );
    let mut text = service("web", 1, &spec, "") + &endpoints("web", &web);
    for number in 11..=15_u8 {
        let changes = (generation + u64::from(number)) / 3;
        let mut random = Random(seed ^ changes << 32 ^ u64::from(number) << 8);
        if random.is_one_of(4) {
            continue;
        }
        let name = format!("other{number}");
        let port = "name: web, port: 80, protocol: TCP";
        let udp = "name: ask, port: 53, protocol: UDP";
        let limit = ", annotations: {kernlink.io/drain-timeout: 5s}";
        text += &match random.below(5) {
            0 => service(
                &name,
                number,
                &format!("type: ClusterIP, ports: [{{{port}}}, {{{udp}}}]"),
                limit,
            ),
            1 => service(
                &name,
                number,
                &format!("type: NodePort, ports: [{{{port}, nodePort: 300{number}}}]"),
                limit,
            ),
            2 => service(
                &name,
                number,
                &format!(
                    "type: NodePort, externalTrafficPolicy: Local, ports: [{{{port}, nodePort: 300{number}}}]"
                ),
                "",
            ),
            3 => load_balancer(
                &name,
                number,
                &format!(
                    "type: LoadBalancer, loadBalancerSourceRanges: ['198.51.100.0/24', '2001:db8:5::/48'], ports: [{{{port}}}]"
                ),
                [&format!("203.0.113.{number}"), &format!("2001:db8:ff::{number}")],
            ),
            _ => service(
                &name,
                number,
                &format!("type: ClusterIP, externalIPs: ['203.0.113.{number}'], ports: [{{{port}}}]"),
                "",
            ),
        };
        text += &endpoints(&name, &random.some_of(&[0, 1, 2, 3]));
    }
    text
}

fn endpoints(service: &str, pods: &[u8]) -> String {
    let pods: Vec<(u8, &str)> = pods
        .iter()
        .map(|pod| (*pod, if pod % 2 == 0 { "node-a" } else { "node-b" }))
        .collect();
    slices(service, WEB_PORTS, &pods)
}

fn draining_proxier(manifests: &str) -> Proxier {
    proxier_with(draining_config(), Kernel::open().unwrap(), manifests)
}

/// What a process does until it is killed.
#[derive(Clone, Copy, Debug)]
struct Life {
    seed: u64,
    /// The generation with which it starts: the last one of the process before.
    generation: u64,
    /// Whether the process before had reached the state of this generation.
    is_unchanged: bool,
    /// The number of generations after the first one. Then it waits.
    changes: u64,
}

impl Life {
    fn from_environment() -> Option<Self> {
        let text = std::env::var(PROCESS).ok()?;
        let numbers: Vec<u64> = text.split(' ').map(|number| number.parse().unwrap()).collect();
        let [seed, generation, is_unchanged, changes] = numbers[..] else {
            panic!("{text}")
        };
        Some(Self {
            seed,
            generation,
            is_unchanged: is_unchanged == 1,
            changes,
        })
    }

    fn start(self) -> Running {
        let Self {
            seed,
            generation,
            is_unchanged,
            changes,
        } = self;
        let mut child = programs::this_program()
            .args(["--exact", TEST, "--nocapture", "--test-threads=1"])
            .env(
                PROCESS,
                format!("{seed} {generation} {} {changes}", u8::from(is_unchanged)),
            )
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let (sender, lines) = mpsc::channel();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        thread::spawn(move || {
            stderr
                .lines()
                .map_while(Result::ok)
                .try_for_each(|line| sender.send(line))
        });
        Running {
            child,
            lines,
            seen: Vec::new(),
        }
    }

    /// In the process to be killed: syncs one generation after the other, and reports each on standard error.
    fn live(self) {
        let report = |text: &str, generation| eprintln!("{text} {generation}");
        let mut proxier = draining_proxier(&cluster(self.seed, self.generation));
        let first = proxier.sync(Instant::now()).unwrap();
        assert!(first.is_success(), "{first}");
        assert_web_stays(&first.plan);
        if self.is_unchanged {
            assert_only_drained(&first.plan, &proxier);
        }
        report(SYNCED, self.generation);
        for generation in self.generation + 1..=self.generation + self.changes {
            report(CHANGED, generation);
            replace_objects(&mut proxier, &cluster(self.seed, generation));
            let synced = proxier.sync(Instant::now()).unwrap();
            assert!(synced.is_success(), "{synced}");
            assert_web_stays(&synced.plan);
            report(SYNCED, generation);
        }
        thread::sleep(wait::LIMIT);
    }
}

/// Reported with a generation when it is the desired one, and when the kernel is in its state.
const CHANGED: &str = "changed";
const SYNCED: &str = "synced";

/// Panics if a plan changes or removes what the Service `web` has in every generation.
fn assert_web_stays(plan: &Plan) {
    let targets = targets();
    let is_web = |key: &kernlink_ipvs::VirtualServerKey| {
        let address = key.address().zip(key.port());
        address.is_some_and(|(ip, port)| targets.contains(&SocketAddr::new(ip, port)))
    };
    let stays = |key: &kernlink_ipvs::RealServerKey| {
        STAYING.iter().any(|pod| {
            let (v4, v6) = (Network::pod_ipv4(*pod), Network::pod_ipv6(*pod));
            key.address == v4 || key.address == v6
        })
    };
    for (_, step) in plan.steps() {
        let is_harmless = match &step.operation {
            Operation::Ipvs(operation) => match operation {
                IpvsOperation::AddVirtualServer(server) => !is_web(&server.key),
                IpvsOperation::DeleteVirtualServer(key) => !is_web(key),
                IpvsOperation::AddRealServer {
                    virtual_server,
                    real_server,
                }
                | IpvsOperation::UpdateRealServer {
                    virtual_server,
                    real_server,
                } => !is_web(virtual_server) || !stays(&real_server.key),
                IpvsOperation::DeleteRealServer {
                    virtual_server,
                    real_server,
                } => !is_web(virtual_server) || !stays(real_server),
                _ => true,
            },
            Operation::Link(dummylink::Operation::DeleteAddress(_, key)) => {
                !cluster_ips(1).contains(&key.address())
            }
            Operation::Set(SetOperation::Delete { entry, .. }) => !cluster_ips(1)
                .iter()
                .any(|ip| entry.to_string().starts_with(&format!("{ip},"))),
            _ => true,
        };
        assert!(is_harmless, "{}\nin the plan\n{plan}", step.operation);
    }
}

/// Panics if a plan does anything but delete real servers that are not desired, and their deadlines: those that drained.
fn assert_only_drained(plan: &Plan, proxier: &Proxier) {
    let desired = desired(proxier);
    for (_, step) in plan.steps() {
        let is_allowed = match &step.operation {
            Operation::Ipvs(IpvsOperation::DeleteRealServer { .. }) => {
                let line = step.operation.to_string();
                let (_, rest) = line.split_once("-d ").unwrap();
                !desired.ipvs.contains(&format!("-a {rest} "))
            }
            Operation::Set(operation) => operation.to_string().contains("-DRAIN "),
            _ => false,
        };
        assert!(is_allowed, "{}\nin the plan\n{plan}", step.operation);
    }
}

/// A process to be killed.
struct Running {
    child: Child,
    lines: Receiver<String>,
    seen: Vec<String>,
}

impl Running {
    /// Waits until it has synced so often.
    fn wait_for_syncs(&mut self, number: usize) {
        while self.reports().filter(|(text, _)| *text == SYNCED).count() < number {
            match self.lines.recv_timeout(wait::LIMIT) {
                Ok(line) => self.seen.push(line),
                Err(error) => panic!("{error}: the process printed\n{}", self.seen.join("\n")),
            }
        }
    }

    fn reports(&self) -> impl Iterator<Item = (&str, u64)> {
        let lines = self.seen.iter().filter_map(|line| line.split_once(' '));
        lines.filter_map(|(text, generation)| {
            let is_report = [CHANGED, SYNCED].contains(&text);
            Some((text, generation.parse().ok().filter(|_| is_report)?))
        })
    }

    /// Kills it. Returns its last report.
    fn kill(mut self) -> Option<(bool, u64)> {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
        self.seen.extend(self.lines.iter());
        let text = self.seen.join("\n");
        assert!(!text.contains("panicked"), "the process printed\n{text}");
        let last = self.reports().last();
        last.map(|(text, generation)| (text == SYNCED, generation))
    }
}

fn targets() -> [SocketAddr; 2] {
    cluster_ips(1).map(|address| SocketAddr::new(address, 80))
}

/// Long connections, each with the name of its server.
struct Connections(Vec<(Connection, String)>);

impl Connections {
    /// Several in each family to each of the pods that stay.
    fn open(client: &NetNs) -> Self {
        let mut connections = Vec::new();
        for target in targets().repeat(8) {
            let mut connection = Connection::open(client, Protocol::Tcp, target).unwrap();
            let server = connection.ask().unwrap().server;
            if STAYING.iter().any(|pod| server == format!("pod{pod}")) {
                connections.push((connection, server));
            }
        }
        for server in STAYING.map(|pod| format!("pod{pod}")) {
            let of_server = connections.iter().filter(|(_, of)| *of == server);
            assert!(of_server.count() >= 2, "connections to {server}");
        }
        Self(connections)
    }

    /// Exchanges data on each of them.
    fn ask(&mut self, when: &str) {
        for (connection, server) in &mut self.0 {
            match connection.ask() {
                Ok(answer) => assert_eq!(answer.server, *server, "{when}"),
                Err(error) => panic!("{when}: the connection to {server} is broken: {error}"),
            }
        }
    }
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable}: {text}")))
}

#[test]
fn connections_to_endpoints_that_stay_survive_kills_at_random_moments() {
    if let Some(life) = Life::from_environment() {
        return life.live();
    }
    kernlink_kernel_tests::requires_ipvs_mode!();
    let kills = number("KERNLINK_KILLS").map_or(DEFAULT_KILLS, |kills| usize::try_from(kills).unwrap());
    let seed = number("KERNLINK_KILLS_SEED").unwrap_or(DEFAULT_SEED);
    let mut log = format!("{kills} kills, KERNLINK_KILLS_SEED={seed}:");
    let mut random = Random(seed);
    let network = Network::new(4);
    let _servers = network.serve(Protocol::Tcp, 8080);
    let _on_node = network.node.enter();
    sync(&mut draining_proxier(&cluster(seed, 0)));
    let mut connections = Connections::open(&network.client);
    let mut life = Life {
        seed,
        generation: 0,
        is_unchanged: true,
        changes: 0,
    };
    let mut start_takes = Duration::from_secs(1);
    let begin = Instant::now();
    for kill in 1..=kills {
        let is_early = random.is_one_of(4);
        // One in three processes is killed while it waits: nothing has changed when the next one starts.
        let waits = !is_early && random.is_one_of(3);
        life.changes = if waits { 1 } else { 1_000_000 };
        let start = Instant::now();
        let mut running = life.start();
        if is_early {
            thread::sleep(random.up_to(start_takes * 3 / 2));
        } else {
            running.wait_for_syncs(1);
            start_takes = start.elapsed();
            connections.ask(&format!("{log} before kill {kill}"));
            if waits {
                running.wait_for_syncs(2);
            } else {
                thread::sleep(random.up_to(start_takes));
            }
        }
        let last = running.kill();
        write!(log, " {last:?}").unwrap();
        if let Some((is_synced, generation)) = last {
            (life.is_unchanged, life.generation) = (is_synced, generation);
        }
        connections.ask(&format!("{log} after kill {kill}"));
    }
    let took = begin.elapsed().as_secs();
    let generation = life.generation;
    // libtest captures the output of macros only.
    let _ = writeln!(
        std::io::stderr(),
        "{kills} kills in {took} s, {generation} generations; KERNLINK_KILLS_SEED={seed}"
    );
    // What drains is deleted at once.
    let mut last = proxier(&cluster(seed, generation));
    assert_web_stays(&sync(&mut last).plan);
    for set in ["KERNLINK-DRAIN", "KERNLINK-6-DRAIN"] {
        tools::run("ipset", &["destroy", set]).unwrap_or_default();
    }
    assert_in_desired_state(&last);
    connections.ask("at the end");
}
