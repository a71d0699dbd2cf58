//! Temporary mount namespaces.
//!
//! As the network namespace, the mount namespace is a property of a thread: a test that runs on its own thread may change its mounts, and
//! programs inherit them.

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};

/// Makes `/proc/sys` read-only for the calling thread and the programs that it starts, as in a container.
pub fn make_sysctls_read_only() {
    unshare(CloneFlags::CLONE_NEWNS | CloneFlags::CLONE_FS)
        .unwrap_or_else(|error| panic!("cannot create a mount namespace: {error}"));
    let none = None::<&str>;
    let remount = MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY;
    let steps = [
        (none, "/", MsFlags::MS_REC | MsFlags::MS_PRIVATE),
        (Some("/proc/sys"), "/proc/sys", MsFlags::MS_BIND | MsFlags::MS_REC),
        (none, "/proc/sys", remount),
    ];
    for (source, target, flags) in steps {
        mount(source, target, none, flags, none)
            .unwrap_or_else(|error| panic!("cannot mount {target} with {flags:?}: {error}"));
    }
}
