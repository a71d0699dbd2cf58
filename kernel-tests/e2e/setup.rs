//! A cluster with an agent, in the namespace of the calling thread.

use std::env;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use kernlink_kernel_tests::listings::difference;
use kernlink_kernel_tests::netns::NetNs;
use kernlink_kernel_tests::{tools, wait};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::api_objects::{api_service, api_slice};
use crate::cluster::Cluster;
use crate::desired;
use crate::link::Link;
use crate::mode::Mode;
use crate::nftables_tables;
use crate::support::{Agent, api_command, get, text};

/// The Node of the agent, without addresses.
pub(crate) fn api_node() -> Value {
    json!({"kind": "Node", "apiVersion": "v1", "metadata": {"name": "node-a"}})
}

/// A cluster, the way to its API server, and what the agent is started with.
pub(crate) struct Setup {
    pub(crate) cluster: Cluster,
    pub(crate) link: Link,
    kubeconfig: PathBuf,
    pub(crate) mode: Mode,
    start: Instant,
}

impl Setup {
    /// In the requested mode.
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    /// With further arguments of the API server, which it has until it is started again.
    pub(crate) fn start_with(arguments: &[&str]) -> Self {
        let start = Instant::now();
        let cluster = Cluster::start_with(arguments);
        cluster.create(&json!({"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": "shop"}}));
        Self {
            kubeconfig: cluster.kubeconfig(),
            cluster,
            link: Link::start("127.0.0.1:6443", &NetNs::current()),
            mode: Mode::requested(),
            start,
        }
    }

    pub(crate) fn kubeconfig(&self) -> &Path {
        &self.kubeconfig
    }

    pub(crate) fn agent(&self) -> Agent {
        // With a line for each sync.
        let arguments = [&self.mode.flags()[..], &["--v", "2"]].concat();
        Agent::spawn(api_command(&self.kubeconfig, &arguments))
    }

    /// Adds a Service with this cluster IP and a pod.
    pub(crate) fn add(&self, name: &str, address: &str, pod: u8) {
        self.cluster.create(&api_service(name, address));
        self.cluster.create(&api_slice(name, pod));
    }

    /// Creates the number of Services of the variable `KERNLINK_E2E_SERVICES`, with the prefix `many-`, and returns it.
    pub(crate) fn create_many(&self) -> usize {
        let number: u32 = env::var("KERNLINK_E2E_SERVICES").map_or(600, |number| number.parse().unwrap());
        let objects: Vec<Value> = (0..number)
            .flat_map(|number| {
                let name = format!("many-{number}");
                // Above the addresses of other Services.
                let address = format!("10.96.{}.{}", 16 + number / 250, 1 + number % 250);
                [api_service(&name, &address), api_slice(&name, 0)]
            })
            .collect();
        self.cluster.requests().create_all(&objects);
        number.try_into().unwrap()
    }

    /// Waits until the kernel serves this number of Services with this prefix.
    pub(crate) fn wait_for_count(&self, prefix: &str, services: usize) {
        wait::until(|| match self.count(prefix) {
            count if count == services => Ok(()),
            count => {
                // Listing many rules takes the time of a processor.
                thread::sleep(Duration::from_secs(1));
                Err(format!("{count} of {services} Services"))
            }
        });
    }

    fn count(&self, prefix: &str) -> usize {
        match self.mode {
            // The addresses of other Services are below.
            Mode::Nftables => {
                let tables = nftables_tables::tables();
                let frontends = tables.get("ip kernlink frontends");
                let is_one = |line: &&String| line.starts_with("10.96.") && !line.starts_with("10.96.0.");
                frontends.map_or(0, |lines| lines.iter().filter(is_one).count())
            }
            Mode::Ipvs => {
                let servers = tools::ipvsadm_save();
                let is_one = |line: &&str| line.starts_with("-A -t 10.96.") && !line.contains(" 10.96.0.");
                servers.lines().filter(is_one).count()
            }
            Mode::Iptables => {
                let rules = tools::iptables_save("nat");
                let start = "-A KUBE-SERVICES -d 10.96.";
                let comment = format!("\"shop/{prefix}");
                let is_one = |line: &&str| line.starts_with(start) && line.contains(&comment);
                rules.lines().filter(is_one).count()
            }
        }
    }

    /// Waits until the kernel has nothing of this Service.
    pub(crate) fn wait_until_gone(&self, name: &str, address: &str) {
        wait::until(|| {
            let (listing, gone) = match self.mode {
                Mode::Nftables => (
                    format!("{:#?}", nftables_tables::tables()),
                    format!("{address} ."),
                ),
                Mode::Ipvs => (tools::ipvsadm_save(), format!("-t {address}:")),
                Mode::Iptables => (tools::iptables_save("nat"), format!("shop/{name} ")),
            };
            if listing.contains(&gone) {
                Err(listing)
            } else {
                Ok(())
            }
        });
    }

    /// Waits until health shows all kinds as those that cannot be read, or none.
    pub(crate) fn wait_until_stale(&self, is_stale: bool) {
        wait::until(|| {
            let answer = get("127.0.0.1:10256", "/healthz")?;
            assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
            let (_, stale) = answer.split_once("\"staleSince\":").unwrap_or_default();
            let is_one = |kind: &&str| stale.contains(&format!("\"{kind}\""));
            let count = ["EndpointSlice", "Node", "Service"]
                .iter()
                .filter(|kind| is_one(kind))
                .count();
            if count == if is_stale { 3 } else { 0 } {
                return Ok(());
            }
            Err(answer)
        });
    }

    /// Waits until the kernel has exactly what the objects require: the listings of `desired_state`, in which another process of the agent finds
    /// nothing to do.
    pub(crate) fn assert_in_step(&self) {
        let desired = desired::desired(&self.cluster, self.mode);
        wait::until(|| match difference(&desired::actual(self.mode), &desired) {
            difference if difference.is_empty() => Ok(()),
            difference => Err(difference),
        });
        let arguments = [&self.mode.flags()[..], &["--dry-run"]].concat();
        wait::until(|| {
            let plan = api_command(&self.kubeconfig, &arguments).output().unwrap();
            if plan.stdout == b"# nothing to do\n" {
                return Ok(());
            }
            Err(text(&plan))
        });
    }

    /// Prints what is tried next.
    pub(crate) fn next(&self, what: &str) {
        println!("{:6.1} s: {what}", self.start.elapsed().as_secs_f64());
    }
}

pub(crate) fn signal(agent: &Agent, signal: Signal) {
    kill(Pid::from_raw(agent.child.id().try_into().unwrap()), signal).unwrap();
}
