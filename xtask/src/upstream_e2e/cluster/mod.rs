//! A cluster on this machine. It is a process in namespaces of its own, for processes, mounts and the network: when that process ends, for any
//! reason, the kernel ends everything in them.

mod addresses;
mod api;
mod balancer;
mod control_plane;
mod daemon;
mod network;
mod node;
mod runner;
mod wait;

use std::{
    fs,
    num::NonZeroUsize,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use self::{addresses::Node, control_plane::ControlPlane, daemon::Daemon, wait::until};
use super::{cgroups, images, layout::Layout};
use crate::{
    provision,
    step::{self, Group},
};

/// The internal verbs with which this program is started in the namespaces.
pub(crate) const CLUSTER: &str = "upstream-e2e-cluster";
pub(crate) const NODE: &str = "upstream-e2e-node";

/// The DNS server, and what proxies may read.
const OBJECTS: &str = include_str!("objects.yaml");
/// What the agent may read.
const RBAC: &str = include_str!("../../../../dist/kubernetes/rbac.yaml");

/// What a cluster is for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Job {
    /// The folder of the command, an absolute path.
    pub(super) folder: PathBuf,
    /// This program.
    pub(super) xtask: PathBuf,
    pub(super) proxy: PathBuf,
    pub(super) proxy_name: String,
    pub(super) mode: String,
    pub(super) nodes: usize,
    pub(super) processes: NonZeroUsize,
    /// Where results are written.
    pub(super) results: PathBuf,
    pub(super) tests: Vec<Test>,
}

/// A test to run once.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Test {
    pub(super) name: String,
    /// About how many seconds it takes.
    pub(super) seconds: u64,
}

impl Job {
    fn layout(&self) -> Layout {
        Layout::new(&self.folder)
    }

    fn logs(&self) -> PathBuf {
        self.layout().cluster().join("logs")
    }
}

/// Runs the tests of a job on a new cluster, and ends the cluster.
///
/// # Errors
///
/// If the cluster did not start, or a part of it ended.
pub(super) fn run(job: &Job) -> Result<()> {
    let folder = job.layout().cluster();
    remove(&folder)?;
    fs::create_dir_all(job.logs()).with_context(|| format!("creating {}", job.logs().display()))?;
    let file = folder.join("job.json");
    fs::write(&file, serde_json::to_string(job)?).with_context(|| format!("writing {}", file.display()))?;
    // What a cluster left that was killed together with its parent.
    cgroups::remove()?;
    step::on_interrupt(|| {
        let _the_next_run_removes_them = cgroups::remove();
    });
    let mut command = Command::new("setpriv");
    command
        // It ends if this process is killed.
        .args(["--pdeathsig", "KILL", "unshare"])
        .args([
            "--mount",
            "--net",
            "--pid",
            "--mount-proc",
            "--fork",
            "--kill-child",
        ])
        .arg(&job.xtask)
        .arg(CLUSTER)
        .arg(&file)
        .env("PATH", provision::search_path());
    let status = Group::spawn(&mut command)?.wait_while(|_| true)?;
    cgroups::remove()?;
    remove_state(&folder, job.nodes)?;
    match status {
        Some(status) if status.success() => Ok(()),
        _ => bail!("the cluster failed; its logs are in {}", folder.display()),
    }
}

fn remove(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("removing {}", folder.display()))
        }
        _ => Ok(()),
    }
}

/// Removes what takes much space. Logs stay.
fn remove_state(folder: &Path, nodes: usize) -> Result<()> {
    remove(&folder.join("etcd"))?;
    Node::all(nodes).try_for_each(|node| remove(&folder.join(node.name()).join("lib")))
}

/// The first process in the namespaces of the cluster.
pub(crate) fn init(job: &Path) -> Result<()> {
    let text = fs::read_to_string(job).with_context(|| format!("reading {}", job.display()))?;
    let job: Job = serde_json::from_str(&text).with_context(|| format!("reading {}", job.display()))?;
    network::create(job.nodes).context("creating the networks")?;
    let mut cluster = Cluster::start(&job)?;
    runner::run(&job, &mut || cluster.check(&job))
}

/// The first process in the namespaces of a node.
pub(crate) fn init_node(job: &Path) -> Result<()> {
    node::init(job)
}

#[derive(Debug)]
struct Cluster {
    control_plane: ControlPlane,
    nodes: Vec<Daemon>,
}

impl Cluster {
    fn start(job: &Job) -> Result<Self> {
        let control_plane = ControlPlane::start(job).context("starting the control plane")?;
        eprintln!("xtask: the API server is ready");
        control_plane.add_nodes(job.nodes)?;
        control_plane.api.apply(RBAC).context("the role of the agent")?;
        let nodes = Node::all(job.nodes).map(|node| node::start(job, node));
        let mut cluster = Self {
            nodes: nodes.collect::<Result<_>>()?,
            control_plane,
        };
        until("all nodes are ready", || {
            cluster.check(job)?;
            Ok(ready_nodes(&api::get("/api/v1/nodes")?) == job.nodes)
        })?;
        eprintln!("xtask: {} nodes are ready", job.nodes);
        let objects = OBJECTS
            .replace("IMAGE", images::COREDNS)
            .replace("CLUSTER_IP", addresses::DNS)
            .replace("DOMAIN", addresses::DOMAIN);
        cluster
            .control_plane
            .api
            .apply(&objects)
            .context("the DNS server")?;
        balancer::start();
        until("the DNS server is ready", || {
            cluster.check(job)?;
            let deployment = api::get("/apis/apps/v1/namespaces/kube-system/deployments/coredns")?;
            let wanted = &deployment["spec"]["replicas"];
            Ok(deployment["status"]["readyReplicas"] == *wanted)
        })?;
        eprintln!("xtask: the DNS server is ready");
        Ok(cluster)
    }

    /// Fails if a part of the cluster, or a proxy, has ended.
    fn check(&mut self, job: &Job) -> Result<()> {
        self.control_plane.check()?;
        self.nodes.iter_mut().try_for_each(Daemon::check)?;
        for node in Node::all(job.nodes) {
            if let Some(how) = node::proxy_end(job, node) {
                bail!("{} on {} ended: {how}", job.proxy_name, node.name());
            }
        }
        Ok(())
    }
}

fn ready_nodes(nodes: &Value) -> usize {
    let items = nodes["items"].as_array().into_iter().flatten();
    items
        .filter(|node| {
            let conditions = node["status"]["conditions"].as_array().into_iter().flatten();
            conditions
                .into_iter()
                .any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
        })
        .count()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn nodes_without_a_condition_are_not_ready() {
        let ready = json!({"status": {"conditions": [{"type": "Ready", "status": "True"}]}});
        let other = json!({"status": {"conditions": [{"type": "DiskPressure", "status": "True"}]}});
        assert_eq!(ready_nodes(&json!({"items": [ready, other, {}]})), 1);
    }
}
