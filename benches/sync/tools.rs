//! The iptables tools on a tmpfs. A real host has them in memory; in the guest, each start reads them from the file system of the host.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use kernlink_benches::Result;
use kernlink_iptables_restore::{Client, LocalRunner, Runner};
use kernlink_kernel_tests::programs;

/// The tools that the proxier starts: names of one program or two.
const TOOLS: [&str; 6] = [
    "iptables",
    "iptables-restore",
    "iptables-save",
    "ip6tables",
    "ip6tables-restore",
    "ip6tables-save",
];

/// A folder with the tools, their libraries and their extensions.
pub(crate) struct Tools {
    folder: PathBuf,
}

impl Tools {
    /// Copies the tools, unless an earlier process did it.
    pub(crate) fn in_memory() -> Result<Self> {
        let folder = PathBuf::from("/dev/shm/kernlink-bench-tools");
        let tools = Self { folder };
        if !tools.folder.exists() {
            fs::create_dir(&tools.folder)?;
            for tool in TOOLS {
                tools.copy(tool)?;
            }
        }
        Ok(tools)
    }

    fn copy(&self, tool: &str) -> Result<()> {
        let path = ["/usr/sbin", "/sbin", "/usr/bin"]
            .into_iter()
            .map(|folder| Path::new(folder).join(tool))
            .find(|path| path.is_file());
        let path = fs::canonicalize(path.ok_or_else(|| format!("no program {tool}"))?)?;
        let program = path.file_name().ok_or("a program without a name")?;
        if !self.folder.join(program).exists() {
            fs::copy(&path, self.folder.join(program))?;
            self.copy_libraries(tool)?;
        }
        if *program != *tool {
            symlink(program, self.folder.join(tool))?;
        }
        Ok(())
    }

    /// Copies the libraries of a tool, which the dynamic loader lists as `NAME => PATH (ADDRESS)`, and the extensions next to them.
    fn copy_libraries(&self, tool: &str) -> Result<()> {
        let listed = programs::command(tool)
            .env("LD_TRACE_LOADED_OBJECTS", "1")
            .output()?;
        for line in String::from_utf8_lossy(&listed.stdout).lines() {
            let Some((name, rest)) = line.trim().split_once(" => ") else {
                continue;
            };
            let path = rest.split(" (").next().unwrap_or(rest);
            fs::copy(path, self.folder.join(name))?;
            if name.starts_with("libxtables.") {
                let extensions = fs::canonicalize(path)?.with_file_name("xtables");
                for extension in fs::read_dir(extensions)? {
                    let extension = extension?;
                    fs::copy(extension.path(), self.folder.join(extension.file_name()))?;
                }
            }
        }
        Ok(())
    }

    pub(crate) fn runner(&self) -> LocalRunner {
        LocalRunner::with_search([self.folder.clone()])
    }

    pub(crate) fn client(&self, runner: Box<dyn Runner>) -> Client {
        let folder = self.folder.to_string_lossy();
        Client::with_runner(runner)
            .with_environment("LD_LIBRARY_PATH", &folder)
            .with_environment("XTABLES_LIBDIR", &folder)
    }
}
