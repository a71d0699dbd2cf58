//! The proxier on a kernel without modules: each is reported with its remedy, what does not need it works, and the rest follows when it is
//! loaded.
//!
//! The file has only one test, because the test unloads modules of the whole machine.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test reports errors by panicking"
)]

#[path = "../../crates/proxier/tests/support/mod.rs"]
mod desired;
#[allow(dead_code, unused_imports, reason = "this test uses a part of it")]
#[path = "proxier/support.rs"]
mod support;

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::thread;
use std::time::{Duration, Instant};

use kernlink_ipvs::{Client, Ipvs, Scheduler};
use kernlink_kernel_tests::kernel;
use kernlink_kernel_tests::traffic::{Connection, Network, Protocol, ask_many};
use kernlink_kernel_tests::{requires_ipvs_mode, tools, wait};
use kernlink_proxier::ipvs_mode::{Kernel, Proxier};

use crate::support::{cluster_ips, load_balancer, proxier_on, service, slices};

/// Unloads the modules whose names begin so. Namespaces of earlier tests, which the kernel deletes in the background, may use them for some
/// time.
fn unload(prefixes: &[&str]) {
    wait::until(|| {
        let text = std::fs::read_to_string("/proc/modules").unwrap();
        let names = text.lines().filter_map(|line| line.split(' ').next());
        let loaded: Vec<&str> = names
            .filter(|name| prefixes.iter().any(|prefix| name.starts_with(prefix)))
            .collect();
        for module in &loaded {
            // One that another module uses is unloaded in a later round.
            let _is_in_use = tools::run("rmmod", &[module]);
        }
        if loaded.is_empty() {
            Ok(())
        } else {
            Err(format!("loaded: {loaded:?}"))
        }
    });
}

const PORTS: &str = "[{name: web, port: 8080, protocol: TCP}]";

fn web(name: &str, number: u8, annotations: &str) -> String {
    let spec = format!(
        "type: NodePort, ports: [{{name: web, port: 80, nodePort: {}, protocol: TCP}}]",
        30_000 + u16::from(number)
    );
    service(name, number, &spec, annotations) + &slices(name, PORTS, &[(0, "node-a")])
}

fn assert_served(network: &Network, number: u8) {
    for address in cluster_ips(number) {
        ask_many(&network.client, Protocol::Tcp, (address, 80).into(), 2).assert_balanced(&["pod0"], 0);
    }
}

/// The schedulers of the virtual servers in the calling thread's namespace.
fn schedulers() -> BTreeSet<Scheduler> {
    let servers = Client::open().unwrap().list_virtual_servers().unwrap();
    servers.iter().map(|status| status.server.scheduler).collect()
}

/// Syncs when retries are due until nothing waits.
fn settle(proxier: &mut Proxier, mut at: Instant) {
    for _ in 0..200 {
        let synced = proxier.sync(at).unwrap();
        match synced.next {
            Some(next) => at = next,
            None => {
                assert!(synced.is_success(), "{synced}");
                wait::for_ipv6_addresses();
                return;
            }
        }
    }
    panic!("something still waits");
}

fn rules_in_kernel() -> Kernel {
    Kernel::open().unwrap()
}

/// For modules that no rule needs: programs start slowly on an emulated machine.
fn rules_in_memory() -> Kernel {
    let mut kernel = rules_in_kernel();
    kernel.rules = Box::new(kernlink_iptables_restore::Fake::new());
    kernel
}

/// Runs a proxier with these objects in a new network while autoload is disabled. `check` runs after everything was done that can be done;
/// `load` makes the modules available again. Then everything is served.
fn without(
    modules: &[&str],
    open: impl Fn() -> Kernel,
    objects: &str,
    reported: &str,
    check: impl Fn(&Network),
    load: impl Fn(),
) {
    let network = Network::new(1);
    let _servers = network.serve(Protocol::Tcp, 8080);
    let _on_node = network.node.enter();
    let autoload = (!modules.is_empty()).then(kernel::Autoload::disabled);
    unload(modules);
    let mut proxier = proxier_on(open(), objects);
    let now = Instant::now();
    let mut events: Vec<String> = Vec::new();
    let retry = loop {
        let synced = proxier.sync(now).unwrap();
        events.extend(synced.events.iter().map(ToString::to_string));
        // A sync that found something to be missing is followed by one that does without it.
        if synced.next != Some(now) {
            break synced.next;
        }
    };
    wait::for_ipv6_addresses();
    let is_reported = events.iter().any(|event| event.contains(reported));
    assert!(is_reported || modules.is_empty(), "{events:#?}");
    check(&network);
    if modules.is_empty() {
        return;
    }
    if let Some(next) = retry {
        let again = proxier.sync(next).unwrap();
        assert_eq!(again.events, [], "reported once");
    }
    drop(autoload);
    load();
    proxier.resync();
    settle(&mut proxier, Instant::now());
    assert_served(&network, 1);
}

/// Processes of the node get no answer at a load balancer that does not admit the node; the client gets one.
fn assert_not_served_to_the_node(network: &Network) {
    thread::scope(|scope| {
        for address in INGRESS {
            let target: SocketAddr = (address.parse::<IpAddr>().unwrap(), 80).into();
            scope.spawn(move || {
                ask_many(&network.client, Protocol::Tcp, target, 2).assert_balanced(&["pod0"], 0);
                let refused = Connection::open_within(SILENCE, &network.node, Protocol::Tcp, target);
                assert_eq!(refused.err().map(|error| error.kind()), Some(ErrorKind::TimedOut));
            });
        }
    });
}

const INGRESS: [&str; 2] = ["203.0.113.10", "2001:db8:ff::10"];

/// How long a connection waits for an answer that does not come.
const SILENCE: Duration = Duration::from_secs(2);

#[test]
fn each_missing_module_is_reported_and_affects_only_what_needs_it() {
    if !kernel::may_change_the_machine() {
        return;
    }
    requires_ipvs_mode!();
    let first_is_served = |network: &Network| assert_served(network, 1);
    let not_served = |_: &Network| ();
    let autoload = || ();
    // The kernel loads all modules that are needed; later only those that are unloaded are missing.
    let one = web("web", 1, "");
    without(&[], rules_in_kernel, &one, "", first_is_served, autoload);
    let mh = ", annotations: {kernlink.io/scheduler: mh}";
    let two = web("web", 1, "") + &web("hashed", 2, mh);
    without(
        &["ip_vs_mh"],
        rules_in_memory,
        &two,
        "modprobe ip_vs_mh",
        first_is_served,
        autoload,
    );
    // The kernel must not load this one for a Service, which has the default scheduler until it is loaded.
    let lblc = ", annotations: {kernlink.io/scheduler: lblc}";
    let two = web("web", 1, "") + &web("local", 2, lblc);
    without(
        &["ip_vs_lblc"],
        rules_in_memory,
        &two,
        "load it at the start of the node",
        |network| {
            assert_served(network, 1);
            assert_served(network, 2);
            assert_eq!(schedulers(), BTreeSet::from([Scheduler::RR]));
        },
        || {
            tools::must("modprobe", &["ip_vs_lblc"]);
        },
    );
    let conntrack = ["nf_conntrack_netlink"];
    without(
        &conntrack,
        rules_in_memory,
        &one,
        "module nf_conntrack_netlink",
        first_is_served,
        autoload,
    );
    without(
        &["dummy"],
        rules_in_memory,
        &one,
        "load it with `modprobe dummy`",
        not_served,
        || {
            tools::must("modprobe", &["dummy"]);
        },
    );
    without(
        &["xt_set", "ip_set"],
        rules_in_kernel,
        &one,
        "modprobe ip_set",
        not_served,
        autoload,
    );
    let ipportip = ["ip_set_hash_ipportip"];
    without(
        &ipportip,
        rules_in_kernel,
        &one,
        "create KUBE-LOOP-BACK",
        first_is_served,
        autoload,
    );
    // Matches of iptables that some rules use.
    let slices = slices("web", PORTS, &[(0, "node-a")]);
    let ports = "ports: [{name: web, port: 80, protocol: TCP}]";
    let external = format!("type: ClusterIP, externalIPs: ['203.0.113.9', '2001:db8:ff::9'], {ports}");
    let external = service("web", 1, &external, "") + &slices;
    without(
        &["xt_physdev"],
        rules_in_kernel,
        &external,
        "extension physdev",
        first_is_served,
        autoload,
    );
    let ranges = format!(
        "type: LoadBalancer, loadBalancerSourceRanges: ['{}/32', '{}/128'], {ports}",
        Network::client_ipv4(),
        Network::client_ipv6()
    );
    let balanced = load_balancer("web", 1, &ranges, INGRESS) + &slices;
    without(
        &["xt_ipvs"],
        rules_in_kernel,
        &balanced,
        "extension ipvs",
        assert_not_served_to_the_node,
        autoload,
    );
}
