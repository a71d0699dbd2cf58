//! `cargo xtask verify neighbours`: programs that write netfilter rules of their own on a node, such as firewalls, with traffic to Services.
//!
//! They are installed with apt into overlays of the system's folders, in a process with namespaces of its own for mounts, processes and the
//! network: the machine keeps its files, its rules and its services, and when that process ends, the kernel ends everything in them.

mod node;
mod programs;

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    thread,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use kernlink_kernel_tests::programs::PROGRAMS;
use serde::{Deserialize, Serialize};

pub(crate) use self::node::run as init;
use crate::{
    e2e::{self, Mode},
    provision,
    step::{self, Group},
    workspace::Workspace,
};

/// The internal verb with which this program is started in the namespaces.
pub(crate) const NODE: &str = "neighbours-node";

/// The control group of Docker's containers, in each hierarchy. [`programs`] has it too.
const CONTROL_GROUP: &str = "kernlink-neighbours";
const CONTROL_GROUPS: &str = "/sys/fs/cgroup";

/// What the process in the namespaces does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Job {
    /// Where packages, overlays and logs are.
    folder: PathBuf,
    agent: PathBuf,
    modes: Vec<String>,
}

/// Runs all of them in nftables and iptables mode, or in the given one. False if a connection failed that should not, or the other way round.
pub(crate) fn run(workspace: &Workspace, mode: Option<Mode>) -> Result<bool> {
    ensure!(
        provision::is_root(),
        "neighbours needs root, because it creates and configures namespaces"
    );
    let modes = match mode {
        Some(Mode::Ipvs) => Vec::new(),
        Some(mode) => vec![mode],
        None => vec![Mode::Nftables, Mode::Iptables],
    };
    ensure!(
        !modes.is_empty(),
        "--mode: neighbours knows nftables and iptables, because IPVS is not in the kernel of every host"
    );
    provision::install(&[PROGRAMS])?;
    let build = ["build", "--package", "kernlink-agent", "--bins"];
    let agent = e2e::built(workspace, &build, "kernlink-agent")?.path;
    let folder = workspace.target().join("xtask/neighbours");
    let archives = folder.join("archives");
    remove_state(&folder)?;
    fs::create_dir_all(archives.join("partial"))
        .with_context(|| format!("creating {}", archives.display()))?;
    provision::download_missing(programs::PACKAGES, &archives)?;
    let job = Job {
        folder: folder.clone(),
        agent,
        modes: modes.iter().map(|mode| mode.name().to_owned()).collect(),
    };
    let file = folder.join("job.json");
    fs::write(&file, serde_json::to_string(&job)?).with_context(|| format!("writing {}", file.display()))?;
    step::on_interrupt(|| {
        let _the_next_run_removes_them = remove_control_groups();
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
        .arg(&workspace.xtask)
        .arg(NODE)
        .arg(&file)
        .env("PATH", provision::search_path());
    let status = Group::spawn(&mut command)?.wait_while(|_| true)?;
    let good = status.is_some_and(|status| status.success());
    remove_state(&folder)?;
    remove_control_groups()?;
    if !good {
        eprintln!("xtask: the logs are in {}", folder.join("logs").display());
    }
    Ok(good)
}

/// Removes the files of the installed programs. Packages and logs stay.
fn remove_state(folder: &Path) -> Result<()> {
    let state = folder.join("overlays");
    match fs::remove_dir_all(&state) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("removing {}", state.display()))
        }
        _ => Ok(()),
    }
}

/// Removes what Docker leaves when it is killed. Processes that were killed leave their groups after a moment.
fn remove_control_groups() -> Result<()> {
    let root = Path::new(CONTROL_GROUPS);
    let mut hierarchies = vec![root.to_owned()];
    if let Ok(entries) = fs::read_dir(root) {
        hierarchies.extend(entries.flatten().map(|entry| entry.path()));
    }
    for group in hierarchies.iter().map(|hierarchy| hierarchy.join(CONTROL_GROUP)) {
        let mut attempts = 0;
        while let Err(error) = remove_group(&group) {
            attempts += 1;
            ensure!(attempts < 100, "removing {}: {error}", group.display());
            thread::sleep(Duration::from_millis(100));
        }
    }
    Ok(())
}

/// Removes a control group with those below it. Its files cannot be removed, and are not in the way.
fn remove_group(group: &Path) -> std::io::Result<()> {
    if !group.is_dir() {
        return Ok(());
    }
    for entry in fs::read_dir(group)? {
        let path = entry?.path();
        if path.is_dir() {
            remove_group(&path)?;
        }
    }
    fs::remove_dir(group)
}
