//! Temporary network namespaces.
//!
//! The network namespace is a property of a thread. libtest runs every test on a separate thread, so a test may enter a namespace
//! and stay there; helper functions use temporary threads. Programs inherit the namespace of the thread that starts them.

use std::{fs::File, marker::PhantomData, os::fd::AsRawFd, sync::Arc, thread};

use nix::sched::{CloneFlags, setns, unshare};

use crate::tools;

/// A network namespace. The kernel deletes it with everything in it after the last clone is dropped.
#[derive(Clone, Debug)]
pub struct NetNs {
    file: Arc<File>,
}

impl NetNs {
    /// Creates a namespace whose loopback device is up. The calling thread does not enter it. Panics without root privileges.
    #[expect(
        clippy::new_without_default,
        reason = "a default value should not require root"
    )]
    #[must_use]
    pub fn new() -> Self {
        on_a_thread(|| {
            let namespace = Self::unshared();
            // IPVS refuses real servers if the local routing table is empty.
            tools::ip(&["link", "set", "lo", "up"]);
            namespace
        })
    }

    /// Creates a namespace whose loopback device is down. Starts no program, which is slow in an emulated machine.
    pub fn bare() -> Self {
        on_a_thread(Self::unshared)
    }

    /// Moves the calling thread to a new namespace.
    fn unshared() -> Self {
        unshare(CloneFlags::CLONE_NEWNET).unwrap_or_else(|error| {
            panic!("cannot create a network namespace (kernel tests require root): {error}")
        });
        Self::current()
    }

    /// The calling thread's namespace.
    #[must_use]
    pub fn current() -> Self {
        let path = "/proc/thread-self/ns/net";
        let file = File::open(path).unwrap_or_else(|error| panic!("cannot open {path}: {error}"));
        Self { file: Arc::new(file) }
    }

    /// Moves the calling thread to this namespace until the guard is dropped.
    #[must_use = "dropping the guard leaves the namespace"]
    pub fn enter(&self) -> Entered {
        let before = Self::current();
        self.enter_permanently();
        Entered {
            before,
            thread: PhantomData,
        }
    }

    /// Runs `work` in this namespace on a temporary thread and returns its result. Propagates a panic.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        on_a_thread(|| {
            self.enter_permanently();
            work()
        })
    }

    /// A path of the namespace for other programs. Valid while this value exists.
    #[must_use]
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd())
    }

    /// The open file of the namespace.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Connects this namespace and another by a pair of veth devices. Sets both up, without addresses.
    pub fn connect(&self, name: &str, other: &Self, other_name: &str) {
        self.run(|| {
            let path = other.path();
            tools::ip_batch(&format!(
                "link add {name} type veth peer name {other_name} netns {path}\nlink set {name} up\n"
            ));
        });
        other.run(|| tools::ip(&["link", "set", other_name, "up"]));
    }

    fn enter_permanently(&self) {
        setns(&*self.file, CloneFlags::CLONE_NEWNET).unwrap_or_else(|error| {
            panic!("cannot enter a network namespace (kernel tests require root): {error}")
        });
    }
}

/// Guard of [`NetNs::enter`]. Dropping it moves the thread back to its previous namespace.
#[derive(Debug)]
pub struct Entered {
    before: NetNs,
    // Not `Send`: it must be dropped by the thread that entered.
    thread: PhantomData<*const ()>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        // Panic if the thread cannot return, because it must not continue in the wrong namespace. During a panic the thread
        // ends anyway.
        if !thread::panicking() {
            self.before.enter_permanently();
        } else {
            let _ = setns(&*self.before.file, CloneFlags::CLONE_NEWNET);
        }
    }
}

fn on_a_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    // With the name of the calling thread, so that a test that is skipped in `work` is recorded with its name.
    let name = thread::current().name().unwrap_or("unnamed").to_owned();
    thread::scope(|scope| {
        let thread = thread::Builder::new().name(name).spawn_scoped(scope, work);
        let thread = thread.unwrap_or_else(|error| panic!("cannot start a thread: {error}"));
        thread
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
