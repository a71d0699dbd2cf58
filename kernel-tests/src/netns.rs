//! Network namespaces that last as long as a test.
//!
//! A namespace belongs to a thread. libtest gives every test a thread of its own, so a test may enter a namespace for
//! good; helpers run their part on a thread of their own. Programs started from a thread inherit its namespace.

use std::{fs::File, marker::PhantomData, os::fd::AsRawFd, sync::Arc, thread};

use nix::sched::{CloneFlags, setns, unshare};

use crate::tools;

/// A network namespace with its loopback device up. It ends with the last clone, and all that is in it.
#[derive(Clone, Debug)]
pub struct NetNs {
    file: Arc<File>,
}

impl NetNs {
    /// Makes a namespace; the calling thread stays where it is. Panics without the privilege.
    #[expect(
        clippy::new_without_default,
        reason = "a default value that needs root would surprise"
    )]
    pub fn new() -> Self {
        on_a_thread(|| {
            let namespace = Self::unshared();
            // IPVS refuses real servers where the local routing table is empty.
            tools::ip(&["link", "set", "lo", "up"]);
            namespace
        })
    }

    /// The same with the loopback device down, which takes no program: these start slowly in an emulated machine.
    pub fn bare() -> Self {
        on_a_thread(Self::unshared)
    }

    /// Moves the calling thread to a namespace of its own.
    fn unshared() -> Self {
        unshare(CloneFlags::CLONE_NEWNET)
            .unwrap_or_else(|error| panic!("making a network namespace (kernel tests need root): {error}"));
        Self::current()
    }

    /// The calling thread's namespace.
    pub fn current() -> Self {
        let path = "/proc/thread-self/ns/net";
        let file = File::open(path).unwrap_or_else(|error| panic!("{path}: {error}"));
        Self { file: Arc::new(file) }
    }

    /// Moves the calling thread here until the guard is dropped.
    #[must_use = "dropping the guard leaves the namespace again"]
    pub fn enter(&self) -> Entered {
        let before = Self::current();
        self.enter_for_good();
        Entered {
            before,
            thread: PhantomData,
        }
    }

    /// Does something here, on a thread of its own, and returns its result. A panic comes through.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        on_a_thread(|| {
            self.enter_for_good();
            work()
        })
    }

    /// A path by which other programs can open the namespace while this value lives.
    pub fn path(&self) -> String {
        format!("/proc/{}/fd/{}", std::process::id(), self.file.as_raw_fd())
    }

    /// The opened namespace, for libraries that take one.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Joins this namespace and another by a pair of veth devices, both up. Addresses are the caller's.
    pub fn connect(&self, name: &str, other: &Self, other_name: &str) {
        self.run(|| {
            let path = other.path();
            tools::ip_batch(&format!(
                "link add {name} type veth peer name {other_name} netns {path}\nlink set {name} up\n"
            ));
        });
        other.run(|| tools::ip(&["link", "set", other_name, "up"]));
    }

    fn enter_for_good(&self) {
        setns(&*self.file, CloneFlags::CLONE_NEWNET)
            .unwrap_or_else(|error| panic!("entering a network namespace (kernel tests need root): {error}"));
    }
}

/// The calling thread is in a namespace; dropping this takes it back.
#[derive(Debug)]
pub struct Entered {
    before: NetNs,
    // Not `Send`: it must be dropped by the thread that entered.
    thread: PhantomData<*const ()>,
}

impl Drop for Entered {
    fn drop(&mut self) {
        // A thread that cannot go back must not go on elsewhere. While it panics, it ends soon anyway.
        if !thread::panicking() {
            self.before.enter_for_good();
        } else {
            let _ = setns(&*self.before.file, CloneFlags::CLONE_NEWNET);
        }
    }
}

fn on_a_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
    // The name goes along, so that a test skipped in there is known by its name.
    let name = thread::current().name().unwrap_or("unnamed").to_owned();
    thread::scope(|scope| {
        let thread = thread::Builder::new().name(name).spawn_scoped(scope, work);
        let thread = thread.unwrap_or_else(|error| panic!("starting a thread: {error}"));
        thread
            .join()
            .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}
