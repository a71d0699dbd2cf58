//! Kernel modules, loaded and installed.

use std::path::{Path, PathBuf};

/// The modules of the running kernel at one time. Nothing is loaded to find them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Modules {
    release: String,
    directory: PathBuf,
    /// `/proc/modules`: each line begins with the name of a module.
    loaded: String,
    /// `modules.builtin` and `modules.dep` of the module directory: paths. `None` if neither file exists.
    on_disk: Option<(String, String)>,
}

impl Modules {
    /// The modules of the running kernel.
    #[must_use]
    pub fn of_running_kernel() -> Self {
        let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
        let release = release.trim();
        let directory = Path::new("/lib/modules").join(release);
        let built_in = std::fs::read_to_string(directory.join("modules.builtin"));
        let loadable = std::fs::read_to_string(directory.join("modules.dep"));
        let on_disk = match (built_in, loadable) {
            (Err(_), Err(_)) => None,
            (built_in, loadable) => Some((built_in.unwrap_or_default(), loadable.unwrap_or_default())),
        };
        let on_disk = on_disk
            .as_ref()
            .map(|(built_in, loadable)| (built_in.as_str(), loadable.as_str()));
        let loaded = std::fs::read_to_string("/proc/modules").unwrap_or_default();
        Self::new(release, &loaded, on_disk)
    }

    /// Modules by what the files of the kernel contain: `/proc/modules`, and `modules.builtin` and `modules.dep` of the module directory. `None`:
    /// that directory is not visible.
    #[must_use]
    pub fn new(release: &str, loaded: &str, on_disk: Option<(&str, &str)>) -> Self {
        Self {
            release: release.to_owned(),
            directory: Path::new("/lib/modules").join(release),
            loaded: loaded.to_owned(),
            on_disk: on_disk.map(|(built_in, loadable)| (built_in.to_owned(), loadable.to_owned())),
        }
    }

    /// The kernel release, as `uname -r` prints it; empty if `/proc` is not readable.
    #[must_use]
    pub fn release(&self) -> &str {
        &self.release
    }

    /// The module directory, `/lib/modules/RELEASE`.
    #[must_use]
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Whether a module is loaded or built in. False for one that is built in if the module directory is not visible.
    #[must_use]
    pub fn is_loaded(&self, module: &str) -> bool {
        let is_listed = self
            .loaded
            .lines()
            .any(|line| line.split(' ').next() == Some(module));
        // Built-in modules are not in `/proc/modules`.
        is_listed || self.is_built_in(module)
    }

    /// Whether a module is part of the kernel. False if the module directory is not visible.
    #[must_use]
    pub fn is_built_in(&self, module: &str) -> bool {
        let on_disk = self.on_disk.as_ref();
        on_disk.is_some_and(|(built_in, _)| names(built_in, module))
    }

    /// Whether a module is built in or can be loaded. `None` if the module directory is not visible.
    #[must_use]
    pub fn is_on_disk(&self, module: &str) -> Option<bool> {
        self.on_disk
            .as_ref()
            .map(|(built_in, loadable)| names(built_in, module) || names(loadable, module))
    }
}

/// Whether a list of paths contains a module's file, compressed or not: `kernel/net/netfilter/ipvs/ip_vs.ko.xz: ...`.
fn names(list: &str, module: &str) -> bool {
    list.lines().any(|line| {
        let path = line.split(':').next().unwrap_or_default();
        let file = path.rsplit('/').next().unwrap_or_default();
        file.strip_prefix(module)
            .is_some_and(|rest| rest.starts_with(".ko"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modules_are_found_by_their_whole_name() {
        let on_disk = Some((
            "kernel/net/netfilter/ipvs/ip_vs_lc.ko\n",
            "kernel/net/netfilter/ipvs/ip_vs_wrr.ko.zst: kernel/x.ko\n",
        ));
        let modules = Modules::new("6.1.0-1-amd64", "ip_vs_rr 16384 2 - Live 0x0\n", on_disk);
        assert_eq!(modules.directory(), Path::new("/lib/modules/6.1.0-1-amd64"));
        for (module, is_loaded, is_on_disk) in [
            ("ip_vs_rr", true, false),
            ("ip_vs_lc", true, true),
            ("ip_vs_wrr", false, true),
            ("ip_vs_r", false, false),
            ("ip_vs_wr", false, false),
        ] {
            assert_eq!(modules.is_loaded(module), is_loaded, "{module}");
            assert_eq!(modules.is_on_disk(module), Some(is_on_disk), "{module}");
        }
        assert_eq!(Modules::new("6.1", "", None).is_on_disk("ip_vs"), None);
    }
}
