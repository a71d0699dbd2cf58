//! Temporary mount namespaces.
//!
//! As the network namespace, the mount namespace is a property of a thread: a test that runs on its own thread may change its mounts, and
//! programs inherit them.

use std::path::Path;

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

/// Makes `/proc/sys` read-only for the calling thread and the programs that it starts, as in a container.
pub fn make_sysctls_read_only() {
    let sysctls = Path::new("/proc/sys");
    let remount = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
    unshare_mounts();
    mount_all(&[
        (Some(sysctls), sysctls, MsFlags::MS_BIND | MsFlags::MS_REC),
        (None, sysctls, remount),
    ]);
}

/// For the calling thread and the programs that it starts, the iptables tools without a variant in their names, such as `iptables-save`, write
/// tables of this one: `legacy` or `nft`. The tools of the other variant do not work.
///
/// # Panics
/// If a tool is not installed.
pub fn select_iptables_variant(variant: &str) {
    let folder = Path::new("/usr/sbin");
    let program = |name: &str| {
        let path = folder.join(name);
        path.canonicalize()
            .unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    let selected = program(&format!("iptables-{variant}-save"));
    let default = program("iptables-save");
    unshare_mounts();
    if selected != default {
        mount_all(&[(Some(&selected), &default, MsFlags::MS_BIND)]);
    }
}

/// For the calling thread and the programs that it starts, each of these folders is empty, and can be written to.
///
/// # Panics
/// If a folder does not exist.
pub fn empty_folders(folders: &[&Path]) {
    unshare_mounts();
    for folder in folders {
        let none = None::<&str>;
        mount(none, *folder, Some("tmpfs"), MsFlags::empty(), none)
            .unwrap_or_else(|error| panic!("cannot mount an empty {}: {error}", folder.display()));
    }
}

fn unshare_mounts() {
    unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_FS)
        .unwrap_or_else(|error| panic!("cannot create a mount namespace: {error}"));
    mount_all(&[(None, Path::new("/"), MsFlags::MS_REC | MsFlags::MS_PRIVATE)]);
}

/// Source, target and flags of each.
fn mount_all(mounts: &[(Option<&Path>, &Path, MsFlags)]) {
    let none = None::<&str>;
    for (source, target, flags) in mounts {
        mount(*source, *target, none, *flags, none)
            .unwrap_or_else(|error| panic!("cannot mount {} with {flags:?}: {error}", target.display()));
    }
}
