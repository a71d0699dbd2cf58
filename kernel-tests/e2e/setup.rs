//! A cluster with an agent, in the namespace of the calling thread.

use std::env;
use std::path::PathBuf;

use kernlink_kernel_tests::netns::NetNs;
use kernlink_kernel_tests::{tools, wait};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::{Value, json};

use crate::api_objects::{api_service, api_slice};
use crate::cluster::Cluster;
use crate::link::Link;
use crate::support::{Agent, api_command, get, text};

/// A cluster, the way to its API server, and what the agent is started with.
pub(crate) struct Setup {
    pub(crate) cluster: Cluster,
    pub(crate) link: Link,
    kubeconfig: PathBuf,
    is_ipvs: bool,
}

impl Setup {
    /// The mode is that of the variable `KERNLINK_E2E_MODE`, iptables by default.
    pub(crate) fn start() -> Self {
        let cluster = Cluster::start();
        cluster.create(&json!({"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": "shop"}}));
        Self {
            kubeconfig: cluster.kubeconfig(),
            cluster,
            link: Link::start("127.0.0.1:6443", &NetNs::current()),
            is_ipvs: env::var("KERNLINK_E2E_MODE").is_ok_and(|mode| mode == "ipvs"),
        }
    }

    fn mode(&self) -> &[&str] {
        if self.is_ipvs {
            &["--proxy-mode", "ipvs", "--ipvs-sync-period", "10m"]
        } else {
            &[]
        }
    }

    pub(crate) fn agent(&self) -> Agent {
        Agent::spawn(api_command(&self.kubeconfig, self.mode()))
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

    /// The number of Services with this prefix that the kernel serves.
    pub(crate) fn count(&self, prefix: &str) -> usize {
        if self.is_ipvs {
            let servers = tools::ipvsadm_save();
            let is_one = |line: &&str| line.starts_with("-A -t 10.96.") && !line.contains(" 10.96.0.");
            return servers.lines().filter(is_one).count();
        }
        let rules = tools::iptables_save("nat");
        let start = "-A KUBE-SERVICES -d 10.96.";
        let comment = format!("\"shop/{prefix}");
        rules
            .lines()
            .filter(|line| line.starts_with(start) && line.contains(&comment))
            .count()
    }

    /// Waits until the kernel has nothing of this Service.
    pub(crate) fn wait_until_gone(&self, name: &str, address: &str) {
        wait::until(|| {
            let (listing, gone) = if self.is_ipvs {
                (tools::ipvsadm_save(), format!("-t {address}:"))
            } else {
                (tools::iptables_save("nat"), format!("shop/{name} "))
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

    /// Waits until another process has nothing to do: the kernel has exactly what the objects require.
    pub(crate) fn assert_in_step(&self) {
        let arguments = [self.mode(), &["--dry-run"]].concat();
        wait::until(|| {
            let plan = api_command(&self.kubeconfig, &arguments).output().unwrap();
            match text(&plan) {
                plan if plan == "# nothing to do\n" => Ok(()),
                plan => Err(plan),
            }
        });
    }
}

pub(crate) fn signal(agent: &Agent, signal: Signal) {
    kill(Pid::from_raw(agent.child.id().try_into().unwrap()), signal).unwrap();
}
