//! The control groups of the nodes.

use std::{
    fs,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, ensure};

/// The hierarchies that kubelets use: version 1 of control groups.
pub(super) const CONTROLLERS: [&str; 9] = [
    "cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids", "systemd",
];
const ROOT: &str = "/sys/fs/cgroup";
/// The group of all nodes.
const NAME: &str = "kernlink-upstream-e2e";
/// Processes that were killed leave their groups after a moment.
const LIMIT: Duration = Duration::from_secs(20);

/// Fails on a machine without one of the hierarchies.
pub(super) fn check() -> Result<()> {
    for controller in CONTROLLERS {
        let folder = Path::new(ROOT).join(controller);
        ensure!(
            folder.join("cgroup.procs").is_file(),
            "{} is not a hierarchy of control groups; upstream-e2e needs version 1 of control groups, with a hierarchy \
             for each controller",
            folder.display()
        );
    }
    Ok(())
}

/// Creates the groups of a node, and returns their folders.
pub(super) fn create(node: &str) -> Result<Vec<PathBuf>> {
    let mut groups = Vec::new();
    for controller in CONTROLLERS {
        let hierarchy = Path::new(ROOT).join(controller);
        let all = hierarchy.join(NAME);
        let group = all.join(node);
        fs::create_dir_all(&group).with_context(|| format!("creating {}", group.display()))?;
        if controller == "cpuset" {
            // A new group has no processors, and no process can enter it.
            for file in ["cpuset.cpus", "cpuset.mems"] {
                let value =
                    fs::read_to_string(hierarchy.join(file)).with_context(|| format!("reading {file}"))?;
                for group in [&all, &group] {
                    fs::write(group.join(file), &value)
                        .with_context(|| format!("writing {file} of {}", group.display()))?;
                }
            }
        }
        groups.push(group);
    }
    Ok(groups)
}

/// Removes the groups of all nodes, when their processes have ended.
pub(super) fn remove() -> Result<()> {
    let start = Instant::now();
    for controller in CONTROLLERS {
        let group = Path::new(ROOT).join(controller).join(NAME);
        while let Err(error) = remove_below(&group) {
            if start.elapsed() > LIMIT {
                return Err(error).with_context(|| format!("removing {}", group.display()));
            }
            thread::sleep(Duration::from_millis(100));
        }
    }
    Ok(())
}

fn remove_below(group: &Path) -> std::io::Result<()> {
    if !group.exists() {
        return Ok(());
    }
    for entry in fs::read_dir(group)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_below(&entry.path())?;
        }
    }
    fs::remove_dir(group)
}
