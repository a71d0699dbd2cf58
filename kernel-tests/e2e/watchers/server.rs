//! The API server of watchers, and what it uses.

use std::fs;
use std::ops::Sub;
use std::path::PathBuf;

use kernlink_kernel_tests::netns::NetNs;
use kernlink_kernel_tests::tools;
use serde_json::{Value, json};

use super::audit::Audit;
use super::processes::{Program, Watchers, now};
use crate::api_objects::api_service;
use crate::cluster::Cluster;
use crate::connection::AdminConnection;
use crate::figures::{changed_address, slice};
use crate::process::{memory, processor_time};
use crate::requests::path;

/// The address of the API server, which its certificate has. With [`ANY_ADDRESS`] it does not have that of the loopback device.
const SERVER: &str = "https://192.0.2.1:6443";
/// The device of the API server.
const DEVICE: &str = "watchers";
/// Watchers reach the API server from another namespace.
const ANY_ADDRESS: &str = "--bind-address=0.0.0.0";

/// What the API server has used.
#[derive(Clone, Copy)]
pub(super) struct Used {
    /// In seconds.
    pub(super) processor: f64,
    /// Bytes to watchers, with the headers of all layers.
    pub(super) sent: u64,
}

impl Sub for Used {
    type Output = Self;

    fn sub(self, before: Self) -> Self {
        Self {
            processor: self.processor - before.processor,
            sent: self.sent - before.sent,
        }
    }
}

/// An API server with objects. The calling thread is in its namespace.
pub(super) struct Server {
    cluster: Cluster,
    clients: NetNs,
    kubeconfig: PathBuf,
    /// The number of the next change.
    next: usize,
}

impl Server {
    /// Enters a new namespace, for as long as the thread lasts.
    pub(super) fn start(services: usize, watchers: usize) -> Self {
        let (node, clients) = (NetNs::new(), NetNs::new());
        node.connect(DEVICE, &clients, "server");
        std::mem::forget(node.enter());
        tools::ip_batch(&format!("addr add 192.0.2.1/24 dev {DEVICE}\n"));
        clients.run(|| tools::ip_batch("addr add 192.0.2.2/24 dev server\n"));
        let cluster = Cluster::start_at(SERVER, &[ANY_ADDRESS]);
        cluster.create(&json!({"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": "shop"}}));
        let services = (0..services).flat_map(|number| {
            let address = format!("10.96.{}.{}", 16 + number / 250, 1 + number % 250);
            [api_service(&format!("s{number}"), &address), slice(number, None)]
        });
        let nodes = (0..watchers).map(|number| {
            json!({"kind": "Node", "apiVersion": "v1", "metadata": {"name": format!("node-{number}")}})
        });
        let objects: Vec<Value> = services.chain(nodes).collect();
        cluster.requests().create_all(&objects);
        Self {
            kubeconfig: cluster.kubeconfig_for(SERVER),
            cluster,
            clients,
            next: 0,
        }
    }

    pub(super) fn used(&self) -> Used {
        let devices = fs::read_to_string("/proc/thread-self/net/dev").unwrap();
        let of_device = |line: &str| {
            line.trim()
                .strip_prefix(DEVICE)?
                .strip_prefix(':')
                .map(str::to_owned)
        };
        let line = devices.lines().find_map(of_device).unwrap();
        // Eight values about what is received are before it.
        let sent = line.split_whitespace().nth(8).unwrap();
        Used {
            processor: processor_time(self.cluster.api_server_id()).as_secs_f64(),
            sent: sent.parse().unwrap(),
        }
    }

    /// The connections of the watchers.
    pub(super) fn connections(&self) -> usize {
        self.clients.run(|| {
            let sockets = fs::read_to_string("/proc/thread-self/net/tcp").unwrap();
            // Established ones with the port 6443.
            let is_one = |line: &&str| line.contains(":192B 01 ");
            sockets.lines().filter(is_one).count()
        })
    }

    /// The bytes of all values that the API server uses, and of its stacks: what it does not use is collected before.
    pub(super) fn held_memory(&self) -> u64 {
        let requests = self.cluster.requests();
        requests.read("/debug/pprof/heap?gc=1", "*/*");
        let metrics = self.cluster.get("/metrics");
        let value = |name: &str| {
            let line = metrics.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap().trim().parse::<f64>().unwrap() as u64
        };
        value("go_memstats_heap_alloc_bytes ") + value("go_memstats_stack_inuse_bytes ")
    }

    /// The most resident memory since it started, in MiB.
    pub(super) fn highest_memory(&self) -> u64 {
        memory(self.cluster.api_server_id(), "VmHWM")
    }

    /// Changes an endpoint. Returns its address, and when the API server has accepted it.
    pub(super) fn change(&mut self, admin: &mut AdminConnection) -> (String, u128) {
        let number = self.next;
        self.next += 1;
        let object = slice(0, Some(number));
        let patch = json!({"endpoints": object["endpoints"]}).to_string();
        admin.send("PATCH", &path(&object), "application/merge-patch+json", &patch);
        (changed_address(number), now())
    }

    /// Ends the API server, and starts another one, which knows none of the versions of watches. It writes an audit log with this name.
    pub(super) fn restart(&mut self, name: &str) -> Audit {
        let (audit, arguments) = Audit::new(self.cluster.folder(), name);
        self.cluster.stop_api_server();
        self.cluster.write_to_etcd();
        let [policy, log] = &arguments;
        self.cluster.start_api_server_with(&[ANY_ADDRESS, policy, log]);
        audit
    }

    /// Starts watchers. Returns the time, too.
    pub(super) fn start_watchers(&self, program: Program, number: usize) -> (Watchers, u128) {
        let begin = now();
        let watchers = Watchers::start(program, number, &self.kubeconfig, &self.clients);
        (watchers, begin)
    }
}
