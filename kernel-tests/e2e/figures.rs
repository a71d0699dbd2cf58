//! The figures of kernlink-agent and kube-proxy, one after the other on the same API server: `cargo xtask e2e --kube-proxy FILE`.
//!
//! Both are in the same mode, each in a new network namespace of a node without pods. Their connections to the API server pass a [`Link`],
//! which counts bytes. A change is in the kernel when nf_tables notifies of a rule or an element with its address, after the commit. The API server
//! has delivered it when a client that only watches has received it.

use std::collections::HashMap;
use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::{Duration, Instant};

use kernlink_kernel_tests::netns::NetNs;
use kernlink_kernel_tests::{programs, tools, wait};
use kernlink_netlink::nftables::NFNLGRP_NFTABLES;
use kernlink_netlink::{Error, Message, Protocol, Subscription};
use serde_json::{Value, json};

use crate::api_objects::api_service;
use crate::cluster::Cluster;
use crate::connection::{AdminConnection, Watch};
use crate::link::Link;
use crate::mode::{Mode, in_map};
use crate::nftables_tables::TABLES;
use crate::process::{memory, processor_time};
use crate::requests::path;
use crate::setup::api_node;

const ENDPOINTS: usize = 10;
/// The first two bytes of the addresses that changes add.
const CHANGED: [u8; 2] = [10, 200];
/// The changes in a second under load, and the time of the load.
const LOAD: u32 = 100;
const LOAD_TIME: Duration = Duration::from_secs(60);
/// How long changes are made one after the other, at most.
const CHANGES_TIME: Duration = Duration::from_secs(180);

pub(crate) fn number(variable: &str, default: usize) -> usize {
    env::var(variable).map_or(default, |number| number.parse().unwrap())
}

/// The address that the change with this number adds.
pub(crate) fn changed_address(number: usize) -> String {
    format!(
        "{}.{}.{}.{}",
        CHANGED[0],
        CHANGED[1],
        number / 250,
        1 + number % 250
    )
}

/// The milliseconds from one time to another, negative if that was before.
fn milliseconds(from: Instant, to: Instant) -> f64 {
    let after = to.saturating_duration_since(from).as_secs_f64();
    (after - from.saturating_duration_since(to).as_secs_f64()) * 1e3
}

/// The slice of a Service. `changed` is the number of the address that its first endpoint has.
pub(crate) fn slice(service: usize, changed: Option<usize>) -> Value {
    let address = |endpoint: usize| match changed {
        Some(number) if endpoint == 0 => changed_address(number),
        _ => format!("10.{}.{}.{}", 1 + endpoint, service / 250, 1 + service % 250),
    };
    let endpoints: Vec<Value> = (0..ENDPOINTS)
        .map(|endpoint| json!({"addresses": [address(endpoint)], "conditions": {"ready": true}}))
        .collect();
    json!({
        "kind": "EndpointSlice", "apiVersion": "discovery.k8s.io/v1",
        "metadata": {"name": format!("s{service}-x"), "namespace": "shop", "labels": {"kubernetes.io/service-name": format!("s{service}")}},
        "addressType": "IPv4", "ports": [{"name": "", "port": 8080, "protocol": "TCP"}], "endpoints": endpoints,
    })
}

/// When each address of [`CHANGED`] was in a notification for the first time.
#[derive(Clone, Default)]
struct Seen(Arc<Mutex<HashMap<usize, Instant>>>, Arc<AtomicBool>);

impl Seen {
    /// Receives the notifications of the namespace of the calling thread until `end`.
    fn start() -> Self {
        let seen = Self::default();
        let mut subscription = Subscription::open(Protocol::Netfilter, &[NFNLGRP_NFTABLES]).unwrap();
        subscription.set_receive_buffer(256 << 20).unwrap();
        let this = seen.clone();
        thread::spawn(move || {
            let decode = |message: Message<'_>| {
                let now = Instant::now();
                for found in message.payload.windows(4).filter(|bytes| bytes[..2] == CHANGED) {
                    if found[3] > 0 && found[3] <= 250 {
                        let number = usize::from(found[2]) * 250 + usize::from(found[3]) - 1;
                        this.0.lock().unwrap().entry(number).or_insert(now);
                    }
                }
                Ok::<_, Error>(None::<()>)
            };
            let mut events = subscription.events(Some(Duration::from_millis(100)), decode);
            while !this.1.load(Ordering::Relaxed) {
                // An overrun loses notifications, for which the test would wait without end.
                if let Some(Err(error)) = events.next() {
                    panic!("{error}");
                }
            }
        });
        seen
    }

    fn wait_for(&self, number: usize) -> Instant {
        wait::until(|| {
            self.0
                .lock()
                .unwrap()
                .get(&number)
                .copied()
                .ok_or("no notification")
        })
    }

    fn end(&self) {
        self.1.store(true, Ordering::Relaxed);
    }
}

/// The number of Services that are served in the namespace of the calling thread.
fn served(mode: Mode) -> usize {
    if mode == Mode::Nftables {
        let of_agent = TABLES.iter().map(|table| in_map(table, "frontends"));
        return of_agent.sum::<usize>().max(in_map("kube-proxy", "service-ips"));
    }
    let rules = tools::iptables_save("nat");
    rules.matches("-A KUBE-SERVICES -d 10.96.").count()
}

/// A proxy that runs. It is killed at the end.
struct Proxy {
    child: Child,
    link: Link,
}

impl Proxy {
    /// Starts a proxy in the namespace of the calling thread, and waits until it serves a number of Services.
    fn start(
        mut command: Command,
        mode: Mode,
        cluster: &NetNs,
        log: &Path,
        services: usize,
    ) -> Result<Self, String> {
        let link = Link::start("127.0.0.1:6443", cluster);
        let log = fs::File::create(log).unwrap();
        let child = command.stdout(Stdio::null()).stderr(log).spawn().unwrap();
        let proxy = Self { child, link };
        let begin = Instant::now();
        loop {
            thread::sleep(Duration::from_secs(1));
            let count = served(mode);
            if count >= services {
                return Ok(proxy);
            }
            if begin.elapsed() > wait::LIMIT {
                let seconds = begin.elapsed().as_secs();
                return Err(format!(
                    "{count} of {services} Services are served after {seconds} s"
                ));
            }
        }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The changes that a proxy has received, which continue with the next one: their addresses are different.
struct Figures {
    /// Runs in `node`.
    cluster: Cluster,
    node: NetNs,
    kubeconfig: PathBuf,
    mode: Mode,
    services: usize,
    changes: usize,
    next: usize,
}

impl Figures {
    /// A new connection: the API server closes one that has had no request for some time, the first one within 32 seconds.
    fn connect(&self) -> AdminConnection {
        self.node.run(AdminConnection::open)
    }

    /// Changes an endpoint of one of the Services. Returns the number of the address, and when the server has accepted it.
    fn change(&mut self, admin: &mut AdminConnection) -> (usize, Instant) {
        let number = self.next;
        self.next += 1;
        // Far apart, so that no two changes in a row concern neighbours.
        let service = number * 7919 % self.services;
        let object = slice(service, Some(number % 62_500));
        let patch = json!({"endpoints": object["endpoints"]}).to_string();
        admin.send("PATCH", &path(&object), "application/merge-patch+json", &patch);
        (number % 62_500, Instant::now())
    }

    /// Prints the figures of a proxy. An error if it does not serve all Services in time.
    fn measure(&mut self, name: &str, command: impl Fn() -> Command) -> Result<(), String> {
        let log = self.kubeconfig.with_file_name(format!("{name}.log"));
        let start = |this: &Self, min_sync_period: &str| {
            let mut command = command();
            command
                .args(this.mode.common_flags())
                .args(["--iptables-min-sync-period", min_sync_period]);
            command.arg("--kubeconfig").arg(&this.kubeconfig);
            Proxy::start(command, this.mode, &this.node, &log, this.services)
        };
        let node = NetNs::new();
        let _entered = node.enter();
        tools::ip_batch("addr add 192.0.2.1/32 dev lo\n");

        let begin = Instant::now();
        let proxy = start(self, "1ms")?;
        println!(
            "{name}: {} Services served after {:.1} s",
            self.services,
            begin.elapsed().as_secs_f64()
        );
        println!(
            "{name}: received for the first lists: {:.1} MiB",
            mib(proxy.link.received())
        );
        let seen = Seen::start();
        let mut admin = self.connect();
        let slices = "/apis/discovery.k8s.io/v1/namespaces/shop/endpointslices";
        let newest = self.node.run(|| self.cluster.get(&format!("{slices}?limit=1")));
        let newest: Value = serde_json::from_str(&newest).unwrap();
        let version = newest["metadata"]["resourceVersion"].as_str().unwrap();
        let watch = self.node.run(|| Watch::start(slices, version));
        let begin = Instant::now();
        let [mut written, mut delivered, mut differences] = <[Vec<f64>; 3]>::default();
        while written.len() < self.changes && begin.elapsed() < CHANGES_TIME {
            let (number, accepted) = self.change(&mut admin);
            let in_kernel = seen.wait_for(number);
            let received = watch.wait_for(&format!("\"{}\"", changed_address(number)));
            let after = |time: Instant| milliseconds(accepted, time);
            written.push(after(in_kernel).max(0.0));
            delivered.push(after(received).max(0.0));
            differences.push(milliseconds(received, in_kernel));
        }
        seen.end();
        for (what, mut times) in [
            ("accepted to kernel", written),
            ("accepted to delivered to another watcher", delivered),
            ("delivered to another watcher to kernel", differences),
        ] {
            times.sort_unstable_by(f64::total_cmp);
            let at = |part: usize| times[(times.len() * part / 100).min(times.len() - 1)];
            println!(
                "{name}: {what}: median {:.1} ms, p99 {:.1} ms of {}",
                at(50),
                at(99),
                times.len()
            );
        }
        drop(proxy);

        // With the default of kube-proxy, under load.
        let proxy = start(self, "1s")?;
        let (time, received) = (processor_time(proxy.child.id()), proxy.link.received());
        let mut admin = self.connect();
        let begin = Instant::now();
        let mut count = 0;
        while begin.elapsed() < LOAD_TIME {
            let due = begin + Duration::from_secs(1) / LOAD * count;
            thread::sleep(due.saturating_duration_since(Instant::now()));
            self.change(&mut admin);
            count += 1;
        }
        println!(
            "{name}: {:.0} changes a second for {} s: processor {:.1} s, resident {} MiB (highest {} MiB), received {:.1} MiB",
            f64::from(count) / begin.elapsed().as_secs_f64(),
            LOAD_TIME.as_secs(),
            (processor_time(proxy.child.id()) - time).as_secs_f64(),
            memory(proxy.child.id(), "VmRSS"),
            memory(proxy.child.id(), "VmHWM"),
            mib(proxy.link.received() - received),
        );
        println!("{name}: load of the machine: {}", load());
        Ok(())
    }
}

/// The averages of 1, 5 and 15 minutes of the processes that run or wait for a processor.
pub(crate) fn load() -> String {
    fs::read_to_string("/proc/loadavg")
        .unwrap()
        .split(' ')
        .take(3)
        .collect::<Vec<_>>()
        .join(" ")
}

pub(crate) fn mib(bytes: u64) -> f64 {
    bytes as f64 / f64::from(1 << 20)
}

#[test]
#[ignore = "a benchmark: cargo xtask e2e --kube-proxy FILE"]
fn figures() {
    let node = NetNs::new();
    let _entered = node.enter();
    let cluster = Cluster::start();
    let services = number("KERNLINK_E2E_SERVICES", 1_000);
    cluster.create(&json!({"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": "shop"}}));
    cluster.create(&api_node());
    cluster.set_node_address("192.0.2.1");
    let objects: Vec<Value> = (0..services)
        .flat_map(|number| {
            let address = format!("10.96.{}.{}", 16 + number / 250, 1 + number % 250);
            [api_service(&format!("s{number}"), &address), slice(number, None)]
        })
        .collect();
    cluster.requests().create_all(&objects);
    println!(
        "{services} Services with {ENDPOINTS} endpoints each, {} mode",
        Mode::requested().name()
    );
    let mut figures = Figures {
        kubeconfig: cluster.kubeconfig(),
        cluster,
        node: node.clone(),
        mode: Mode::requested(),
        services,
        changes: number("KERNLINK_E2E_CHANGES", 1_000),
        next: 0,
    };
    println!("load of the machine: {}", load());
    let agent = figures.measure("kernlink-agent", || programs::from_variable("KERNLINK_E2E_AGENT"));
    let kube_proxy = figures.measure("kube-proxy", || programs::from_variable("KERNLINK_KUBE_PROXY"));
    // That kube-proxy does not serve so many Services is a result too.
    println!(
        "kube-proxy: {}",
        kube_proxy.err().unwrap_or_else(|| "measured".to_owned())
    );
    agent.unwrap();
}
