//! `cargo xtask verify neighbours`: programs that write netfilter rules of their own on a node, such as firewalls, with traffic to Services.
//!
//! They are installed with apt into overlays of the system's folders, in a process with namespaces of its own for mounts, processes and the
//! network: the machine keeps its files, its rules and its services, and when that process ends, the kernel ends everything in them.

mod node;
mod programs;

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::{self, Command},
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

/// The folders of the system that are replaced in the namespaces, with what is below them.
const REPLACED: &[&str] = &["boot", "etc", "opt", "run", "usr", "var"];

/// The folders that must be links into `/usr`: packages write to them too.
const MERGED: &[&str] = &["bin", "lib", "sbin"];

/// The control group of Docker's containers, in each hierarchy, is this with the ID of the process that runs [`run`].
const CONTROL_GROUP: &str = "kernlink-neighbours-";
const CONTROL_GROUPS: &str = "/sys/fs/cgroup";

/// What the process in the namespaces does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Job {
    /// Where overlays and logs are. Packages are in `archives` next to it.
    folder: PathBuf,
    agent: PathBuf,
    control_group: String,
    modes: Vec<String>,
}

/// Whether there is something to run for a mode. IPVS is not in the kernel of every host.
pub(crate) fn has_mode(mode: Mode) -> bool {
    mode != Mode::Ipvs
}

/// Runs all of them in nftables and iptables mode, or in the given one. False if a connection failed that should not, or the other way round.
pub(crate) fn run(workspace: &Workspace, mode: Option<Mode>) -> Result<bool> {
    ensure!(
        provision::is_root(),
        "neighbours needs root, because it creates and configures namespaces"
    );
    let modes = mode.map_or_else(|| vec![Mode::Nftables, Mode::Iptables], |mode| vec![mode]);
    fs::create_dir_all(workspace.target())
        .with_context(|| format!("creating {}", workspace.target().display()))?;
    check_folders(Path::new("/"), workspace.target())?;
    provision::install(&[PROGRAMS])?;
    let build = ["build", "--package", "kernlink-agent", "--bins"];
    let agent = e2e::built(workspace, &build, "kernlink-agent")?.path;
    let runs = workspace.target().join("xtask/neighbours");
    let archives = runs.join("archives");
    fs::create_dir_all(archives.join("partial"))
        .with_context(|| format!("creating {}", archives.display()))?;
    remove_ended(&runs, Path::new(CONTROL_GROUPS))?;
    provision::download_missing(programs::PACKAGES, &archives)?;
    let folder = runs.join(process::id().to_string());
    fs::create_dir_all(&folder).with_context(|| format!("creating {}", folder.display()))?;
    let job = Job {
        folder: folder.clone(),
        agent,
        control_group: format!("{CONTROL_GROUP}{}", process::id()),
        modes: modes.iter().map(|mode| mode.name().to_owned()).collect(),
    };
    let file = folder.join("job.json");
    fs::write(&file, serde_json::to_string(&job)?).with_context(|| format!("writing {}", file.display()))?;
    step::on_interrupt(|| {
        let _the_next_run_removes_them = remove_control_groups(Path::new(CONTROL_GROUPS), process::id());
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
    let status = Group::spawn(&mut command).and_then(|mut group| group.wait_while(|_| true));
    let good = matches!(status, Ok(Some(status)) if status.success());
    // Each is removed, also if another one is not.
    let files = remove_folder(&if good {
        folder.clone()
    } else {
        folder.join("overlays")
    });
    let groups = remove_control_groups(Path::new(CONTROL_GROUPS), process::id());
    if !good {
        eprintln!("xtask: the logs are in {}", folder.join("logs").display());
    }
    status?;
    files?;
    groups?;
    Ok(good)
}

/// Fails if the system has folders that are not replaced in the namespaces, or if the target folder is in one that is.
fn check_folders(root: &Path, target: &Path) -> Result<()> {
    let target = target
        .canonicalize()
        .with_context(|| format!("resolving {}", target.display()))?;
    for folder in REPLACED.iter().map(|name| root.join(name)) {
        let resolved = folder
            .canonicalize()
            .with_context(|| format!("resolving {}", folder.display()))?;
        ensure!(
            !target.starts_with(&resolved),
            "the target folder {} is below {}, which neighbours replaces; set CARGO_TARGET_DIR to a folder that is not",
            target.display(),
            folder.display()
        );
    }
    for folder in MERGED.iter().map(|name| root.join(name)) {
        ensure!(
            folder.is_symlink(),
            "{} is not a symbolic link: neighbours needs a system with merged /usr, because it would write to this folder of the machine",
            folder.display()
        );
    }
    Ok(())
}

fn remove_folder(folder: &Path) -> Result<()> {
    match fs::remove_dir_all(folder) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("removing {}", folder.display()))
        }
        _ => Ok(()),
    }
}

/// Removes files, logs and control groups of runs whose process has ended. The packages stay.
fn remove_ended(runs: &Path, control_groups: &Path) -> Result<()> {
    for run in ended(runs, "")? {
        remove_folder(&runs.join(run.to_string()))?;
    }
    let mut groups = BTreeSet::new();
    for hierarchy in hierarchies(control_groups) {
        groups.extend(ended(&hierarchy, CONTROL_GROUP)?);
    }
    for run in groups {
        remove_control_groups(control_groups, run)?;
    }
    Ok(())
}

/// The IDs of processes that do not run, or have the ID of this one by chance, of the folders whose names are a prefix and such an ID.
fn ended(folder: &Path, prefix: &str) -> Result<Vec<u32>> {
    let mut found = Vec::new();
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        // A control group of another program that ended meanwhile, or there are no control groups.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(found),
        Err(error) => return Err(error).with_context(|| format!("reading {}", folder.display())),
    };
    for entry in entries {
        let name = entry?.file_name();
        let id = name.to_str().and_then(|name| name.strip_prefix(prefix));
        if let Some(id) = id.and_then(|id| id.parse::<u32>().ok())
            && (id == process::id() || !Path::new("/proc").join(id.to_string()).exists())
        {
            found.push(id);
        }
    }
    Ok(found)
}

/// The folder of the control groups, and those in it: with version 1 each is a hierarchy.
fn hierarchies(root: &Path) -> Vec<PathBuf> {
    let mut hierarchies = vec![root.to_owned()];
    if let Ok(entries) = fs::read_dir(root) {
        let folders = entries.flatten().map(|entry| entry.path());
        hierarchies.extend(folders.filter(|path| path.is_dir()));
    }
    hierarchies
}

/// Removes what Docker leaves when it is killed. Processes that were killed leave their groups after a moment.
fn remove_control_groups(root: &Path, run: u32) -> Result<()> {
    for hierarchy in hierarchies(root) {
        let group = hierarchy.join(format!("{CONTROL_GROUP}{run}"));
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

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    fn scratch(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("xtask-neighbours-{name}-{}", process::id()));
        fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn a_target_folder_that_is_replaced_and_a_system_without_merged_usr_are_refused() {
        let root = scratch("folders");
        for name in REPLACED {
            fs::create_dir(root.join(name)).unwrap();
        }
        for name in ["sources/target", "var/target"] {
            fs::create_dir_all(root.join(name)).unwrap();
        }
        for name in MERGED {
            symlink("usr", root.join(name)).unwrap();
        }
        check_folders(&root, &root.join("sources/target")).unwrap();
        let refusal = |target: &str| check_folders(&root, &root.join(target)).unwrap_err().to_string();
        // Also with a link to it.
        symlink("var/target", root.join("link")).unwrap();
        for target in ["var/target", "link"] {
            let error = refusal(target);
            assert!(error.contains("/var, which neighbours replaces"), "{error}");
        }
        fs::remove_file(root.join("sbin")).unwrap();
        fs::create_dir(root.join("sbin")).unwrap();
        let error = refusal("sources/target");
        assert!(error.contains("/sbin is not a symbolic link"), "{error}");
        fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn what_a_run_made_is_removed_when_its_process_has_ended_and_not_before() {
        let root = scratch("ended");
        let (runs, groups) = (root.join("runs"), root.join("groups"));
        // No process has a number above 2^22, and the first one always runs.
        let made = |run: u32| {
            [
                runs.join(run.to_string()),
                groups.join(format!("{CONTROL_GROUP}{run}")),
                groups.join(format!("memory/{CONTROL_GROUP}{run}")),
            ]
        };
        let (ended, running) = (made(9_999_999), made(1));
        for folder in ended.iter().chain(&running) {
            fs::create_dir_all(folder.join("container")).unwrap();
        }
        fs::create_dir_all(runs.join("archives")).unwrap();
        remove_ended(&runs, &groups).unwrap();
        assert!(!ended.iter().any(|folder| folder.exists()));
        assert!(running.iter().all(|folder| folder.exists()));
        assert!(runs.join("archives").exists());
        fs::remove_dir_all(root).unwrap();
    }
}
