//! A control group (cgroup) of its own for the memory of processes: what a container is charged.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use crate::Result;

/// Where version 2 is mounted, or the hierarchies of version 1 are.
const ROOT: &str = "/sys/fs/cgroup";
/// The kernel notices after some time that the last process ended.
const ATTEMPTS: u32 = 50;

/// A control group with the controller `memory`, of version 1 or 2. At the end its processes are killed, and it is removed.
#[derive(Debug)]
pub struct ControlGroup {
    folder: PathBuf,
    files: &'static Files,
}

/// The names of files, `Documentation/admin-guide/cgroup-v2.rst` and `cgroup-v1/memory.rst` of the kernel.
#[derive(Debug)]
struct Files {
    usage: &'static str,
    peak: &'static str,
    limit: &'static str,
    /// How often the limit was reached.
    reached: Reached,
}

#[derive(Debug)]
enum Reached {
    /// The file has the number alone.
    Number(&'static str),
    /// The number follows this word in a file.
    Word(&'static str, &'static str),
}

const VERSION_1: Files = Files {
    usage: "memory.usage_in_bytes",
    peak: "memory.max_usage_in_bytes",
    limit: "memory.limit_in_bytes",
    reached: Reached::Number("memory.failcnt"),
};
const VERSION_2: Files = Files {
    usage: "memory.current",
    peak: "memory.peak",
    limit: "memory.max",
    reached: Reached::Word("memory.events", "max"),
};

impl ControlGroup {
    /// Makes a group below the root. `name` must be free.
    ///
    /// # Errors
    /// If there is no controller for memory, or this process may not make groups.
    pub fn new(name: &str, limit: u64) -> Result<Self> {
        let root = Path::new(ROOT);
        let (parent, files) = if root.join("memory").join(VERSION_1.usage).exists() {
            (root.join("memory"), &VERSION_1)
        } else if fs::read_to_string(root.join("cgroup.controllers"))?.contains("memory") {
            write(&root.join("cgroup.subtree_control"), "+memory")?;
            (root.to_owned(), &VERSION_2)
        } else {
            return Err(format!("{ROOT} has no controller for memory").into());
        };
        let folder = parent.join(name);
        fs::create_dir(&folder).map_err(|error| format!("{}: {error}", folder.display()))?;
        let group = Self { folder, files };
        write(&group.folder.join(files.limit), &limit.to_string())?;
        Ok(group)
    }

    /// Ends the processes that are left, such as a tool whose agent was killed.
    fn kill(&self) {
        let processes = self.read("cgroup.procs").unwrap_or_default();
        let processes = processes.lines().filter_map(|line| line.parse().ok());
        // 0: one of another namespace of processes, and for `kill` the group of this process.
        for process in processes.filter(|process| *process > 0) {
            let _ = kill(Pid::from_raw(process), Signal::SIGKILL);
        }
    }

    /// The file to which a process writes `0` to join the group.
    #[must_use]
    pub fn processes(&self) -> PathBuf {
        self.folder.join("cgroup.procs")
    }

    /// What is charged now, in bytes: memory of processes and of the kernel, and files that its processes read first.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn usage(&self) -> Result<u64> {
        self.number(self.files.usage)
    }

    /// The most that was charged, in bytes. The kernel has it since 5.19 in version 2.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn peak(&self) -> Result<u64> {
        self.number(self.files.peak)
    }

    /// How often the limit was reached, so that the kernel had to free memory of the group or to kill a process.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn limit_reached(&self) -> Result<u64> {
        match self.files.reached {
            Reached::Number(file) => self.number(file),
            Reached::Word(file, word) => {
                let text = self.read(file)?;
                let mut lines = text.lines().filter_map(|line| line.strip_prefix(word));
                let value = lines.next().ok_or_else(|| format!("{file}: no {word}"))?;
                Ok(value.trim().parse()?)
            }
        }
    }

    fn number(&self, file: &str) -> Result<u64> {
        Ok(self.read(file)?.trim().parse()?)
    }

    fn read(&self, file: &str) -> Result<String> {
        let file = self.folder.join(file);
        fs::read_to_string(&file).map_err(|error| format!("{}: {error}", file.display()).into())
    }
}

impl Drop for ControlGroup {
    fn drop(&mut self) {
        for _ in 0..ATTEMPTS {
            self.kill();
            if fs::remove_dir(&self.folder).is_ok() {
                return;
            }
            thread::sleep(Duration::from_millis(100));
        }
        eprintln!("{}: not removed", self.folder.display());
    }
}

fn write(file: &Path, text: &str) -> Result<()> {
    fs::write(file, text).map_err(|error| format!("{}: {error}", file.display()).into())
}
