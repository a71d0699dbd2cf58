//! Repairs of what other programs remove: at once where the kernel sends events, otherwise at the next full listing. Traffic passes again.

use std::io::Write;
use std::net::SocketAddr;
use std::sync::mpsc::{self, Receiver};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use kernlink_kernel_tests::traffic::{Network, Protocol, ask_many};
use kernlink_kernel_tests::{tools, wait};
use kernlink_proxier::Runner;
use kernlink_proxier::ipvs_mode::watch::{RulesSource, Watcher};
use kernlink_proxier::ipvs_mode::{IpvsMode, Proxier, Synced};
use kernlink_proxier::netfilter::detect_watch_options;
use kernlink_proxier::runner::Notice;
use kernlink_proxier::schedule::{Intervals, Schedule};
use kernlink_services::{Change, Family, ObjectChange, ObjectName, Port, Service, SourceId};

use crate::clusters::{WEB_PORTS, web};
use crate::support::{State, assert_same, cluster_ips, proxier, service, slices, state};

/// The time between two full listings of a test in which events are to be the cause of repairs: longer than the test waits for one.
const TEN_MINUTES: Duration = Duration::from_secs(600);
const _: () = assert!(wait::LIMIT.as_secs() < TEN_MINUTES.as_secs());

const PODS: [(u8, &str); 2] = [(0, "node-a"), (1, "node-b")];

/// A runner in the calling thread's namespace.
struct Running {
    watcher: Option<Watcher>,
    runner: Arc<Runner<IpvsMode>>,
    synced: Receiver<Box<Synced>>,
    /// While a test has it, notices of the watcher wait.
    gate: Arc<Mutex<()>>,
}

impl Running {
    /// Starts a runner with full listings at this interval. Returns after its first sync with steps.
    fn start(proxier: Proxier, listings: Duration) -> Self {
        let intervals = Intervals {
            min: Duration::ZERO,
            max: listings,
        };
        let (sender, synced) = mpsc::channel();
        let notify = move |notice: Notice<IpvsMode>| match notice {
            Notice::Synced(synced) => _ = sender.send(synced),
            Notice::Failed(error) => eprintln!("sync failed: {error}"),
            _ => {}
        };
        let runner = Arc::new(Runner::start(proxier, Schedule::new(intervals), notify).unwrap());
        let running = Self {
            watcher: None,
            runner,
            synced,
            gate: Arc::default(),
        };
        // Without steps if the kernel is in the desired state already.
        let first = running.synced.recv_timeout(wait::LIMIT).unwrap();
        assert!(first.is_success(), "{first}");
        wait::for_ipv6_addresses();
        running
    }

    /// The same with full listings every ten minutes and a watcher, which is started before the first sync. It reads nothing at intervals, so
    /// only an event can be the cause of a repair.
    fn watched(proxier: Proxier) -> Self {
        let (sender, events) = mpsc::channel();
        let options = detect_watch_options(Family::ALL).with_check_interval(Duration::ZERO);
        let are_events = options
            .rules
            .values()
            .all(|source| *source == RulesSource::Events);
        assert!(options.rules.len() == 2 && are_events, "{options:?}");
        let config = proxier.state().config().clone();
        let watcher = Watcher::start(&config, &options, move |event| _ = sender.send(event)).unwrap();
        let mut running = Self::start(proxier, TEN_MINUTES);
        running.watcher = Some(watcher);
        let (runner, gate) = (Arc::clone(&running.runner), Arc::clone(&running.gate));
        std::thread::spawn(move || {
            // Ends with the watcher.
            for event in events {
                let _gate = gate.lock();
                event.pass_to(&runner);
            }
        });
        running
    }

    /// Waits for a sync with steps.
    fn repaired(&self) -> Box<Synced> {
        loop {
            let synced = self.synced.recv_timeout(wait::LIMIT).unwrap();
            if !synced.plan.is_empty() {
                return synced;
            }
        }
    }

    /// Waits until the kernel is in this state again. Prints the time until the last sync that changed something.
    fn expect(&self, what: &str, before: &State, since: Instant) {
        self.repaired();
        let mut time = since.elapsed();
        // A repair may take several syncs, of which the last one ended before the state is read.
        let mut differs = false;
        loop {
            while let Ok(synced) = self.synced.try_recv() {
                if !synced.plan.is_empty() {
                    time = since.elapsed();
                }
            }
            let now = state();
            if now == *before {
                break;
            }
            if differs && since.elapsed() > wait::LIMIT {
                assert_same(&now, before, what);
            }
            differs = true;
        }
        wait::for_ipv6_addresses();
        report(what, time);
    }

    /// Stops the watcher and the runner.
    fn stop(mut self) -> Proxier {
        self.watcher = None;
        let mut runner = self.runner;
        loop {
            match Arc::try_unwrap(runner) {
                Ok(runner) => return runner.stop().unwrap(),
                // The thread of the watcher has ended; that of its receiver ends.
                Err(shared) => runner = shared,
            }
            std::thread::yield_now();
        }
    }
}

/// Prints a measured time, also if the test passes: libtest captures the output of macros only.
fn report(what: &str, time: Duration) {
    let _ = writeln!(
        std::io::stderr(),
        "{what}: repaired after {} ms",
        time.as_millis()
    );
}

/// Runs the lines of a script, each a command of one of the standard tools.
fn run(script: &str) {
    for line in script.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        if let [program, arguments @ ..] = &words[..] {
            // The kernel removes rules, which refer to sets, after the program that deletes them has ended.
            wait::until(|| tools::run(program, arguments));
        }
    }
}

/// Panics unless the Service answers at its cluster IPs.
fn assert_served(network: &Network, what: &str) {
    for address in cluster_ips(1) {
        for (protocol, port) in [(Protocol::Tcp, 80), (Protocol::Udp, 53)] {
            let tally = ask_many(&network.client, protocol, SocketAddr::new(address, port), 4);
            assert_eq!(
                tally.answers.values().sum::<usize>(),
                4,
                "{what}: {address} {protocol}"
            );
        }
    }
}

#[test]
fn what_another_program_removes_is_repaired_by_events() {
    kernlink_kernel_tests::requires_ipvs_mode!();
    let network = Network::new(2);
    let _tcp = network.serve(Protocol::Tcp, 8080);
    let _udp = network.serve(Protocol::Udp, 5353);
    let _on_node = network.node.enter();
    // Each with a proxier of its own: an object that is changed back several times is repaired with a delay.
    let mut running = Running::watched(proxier(&web(&PODS)));
    let before = state();
    assert_served(&network, "at first");
    let sets = before["ipset"].iter().filter_map(|line| {
        let name = line.strip_prefix("create ")?.split(' ').next()?;
        Some(format!("ipset destroy {name}\n"))
    });
    let destroy: String = sets.collect();
    let flush = "nft flush ruleset\n".to_owned();
    for (what, script) in [
        (
            "jumps",
            "iptables -w -t nat -F PREROUTING\nip6tables -w -t filter -F INPUT\n".to_owned(),
        ),
        ("chains", "iptables -w -t nat -F\niptables -w -F\n".to_owned()),
        ("all rules", flush.clone()),
        (
            "an address",
            "ip address delete 10.96.0.1/32 dev kube-ipvs0\n".to_owned(),
        ),
        ("all addresses", "ip address flush dev kube-ipvs0\n".to_owned()),
        // The kernel deletes the IPv6 addresses of a link that is set down.
        (
            "link down",
            "ip link set kube-ipvs0 up\nip link set kube-ipvs0 down\n".to_owned(),
        ),
        ("link", "ip link delete kube-ipvs0\n".to_owned()),
        // The sets have no events; the rules that refer to them have.
        ("rules and sets", format!("{flush}{destroy}")),
        (
            "everything",
            format!("{flush}{destroy}ipvsadm -C\nip link delete kube-ipvs0\n"),
        ),
    ] {
        let since = if script.contains("destroy") {
            // Otherwise the rules are repaired before the sets are destroyed, which is refused then.
            let _gate = running.gate.lock();
            run(&script);
            Instant::now()
        } else {
            let since = Instant::now();
            run(&script);
            since
        };
        running.expect(what, &before, since);
        assert_served(&network, what);
        // Not only dropped: its thread could repair what the next script removes.
        drop(running.stop());
        running = Running::watched(proxier(&web(&PODS)));
    }
    // A renamed link is another link: it is replaced, and not touched.
    let since = Instant::now();
    run("ip link set kube-ipvs0 name other\n");
    running.repaired();
    report("renamed link", since.elapsed());
    assert_served(&network, "renamed link");
    run("ip link delete other\n");
    assert_same(&state(), &before, "renamed link");
}

#[test]
fn what_has_no_events_is_repaired_by_the_next_full_listing() {
    kernlink_kernel_tests::requires_ipvs_mode!();
    let network = Network::new(2);
    let _tcp = network.serve(Protocol::Tcp, 8080);
    let _udp = network.serve(Protocol::Udp, 5353);
    let _on_node = network.node.enter();
    let running = Running::start(proxier(&web(&PODS)), Duration::from_secs(2));
    let before = state();
    for (what, script) in [
        ("virtual servers", "ipvsadm -C\n"),
        ("entries of all sets", "ipset flush\n"),
        ("a real server", "ipvsadm -d -t 10.96.0.1:80 -r 10.244.0.2:8080\n"),
        ("all rules", "nft flush ruleset\n"),
    ] {
        let since = Instant::now();
        run(script);
        running.expect(what, &before, since);
        assert_served(&network, what);
    }
}

#[test]
fn own_changes_cause_no_full_listing() {
    kernlink_kernel_tests::requires_ipvs_mode!();
    let network = Network::new(1);
    let _on_node = network.node.enter();
    let running = Running::watched(proxier(&web(&PODS)));
    let extra = |number| {
        let name = ObjectName::new("default", format!("extra{number}"));
        let service = Service::new(name).with_cluster_ip(format!("10.96.1.{number}"));
        service.with_port(Port::new("http", 80))
    };
    let change = |change| running.runner.change(SourceId(0), Change::Services(change));
    for number in 1..=5 {
        change(ObjectChange::Upsert(extra(number)));
        running.repaired();
    }
    for number in 1..=5 {
        change(ObjectChange::Delete(ObjectName::new(
            "default",
            format!("extra{number}"),
        )));
        running.repaired();
    }
    // The notices of own changes precede this one, which leads to the second listing.
    run("ip address delete 10.96.0.1/32 dev kube-ipvs0\n");
    let repaired = running.repaired();
    assert_eq!(repaired.plan.len(), 1, "{}", repaired.plan);
    let after = running.synced.recv_timeout(wait::LIMIT).unwrap();
    assert!(after.plan.is_empty(), "{}", after.plan);
    let proxier = running.stop();
    assert_eq!(proxier.cost().listings, 2);
}

#[test]
fn node_ports_are_served_at_a_new_address_of_the_node() {
    kernlink_kernel_tests::requires_ipvs_mode!();
    let network = Network::new(2);
    let _tcp = network.serve(Protocol::Tcp, 8080);
    let _on_node = network.node.enter();
    let ports = "type: NodePort, ports: [{name: web, port: 80, nodePort: 30080, protocol: TCP}]";
    let manifests = service("web", 1, ports, "") + &slices("web", WEB_PORTS, &PODS);
    let running = Running::watched(proxier(&manifests));
    let since = Instant::now();
    run("ip address add 192.0.2.77/24 dev client\n");
    let synced = running.repaired();
    assert!(synced.is_success(), "{synced}");
    report("new address of the node", since.elapsed());
    let target = SocketAddr::new([192, 0, 2, 77].into(), 30080);
    let tally = ask_many(&network.client, Protocol::Tcp, target, 4);
    assert_eq!(tally.answers.values().sum::<usize>(), 4);
    run("ip address delete 192.0.2.77/24 dev client\n");
    running.repaired();
    assert!(!tools::ipvsadm_save().contains("192.0.2.77"));
    assert_eq!(running.stop().cost().listings, 1);
}
