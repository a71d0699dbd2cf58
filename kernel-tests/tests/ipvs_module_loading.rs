//! Which process loads the module of a scheduler.
//!
//! The file has only one test, because the test unloads modules of the whole machine.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::fs;
use std::os::unix::fs::PermissionsExt;

use kernlink_ipvs::{Client, Family, Ipvs, Operation, Scheduler, VirtualServer, VirtualServerKey};
use kernlink_kernel_tests::{
    kernel::{self, Feature},
    netns::NetNs,
    requires, tools, wait,
};

/// Unloads the module of a scheduler. The kernel deletes the namespaces of earlier tests in the background, so it may be in use.
fn unload(scheduler: Scheduler) {
    let module = scheduler.module().unwrap();
    wait::until(|| {
        let loaded = fs::read_to_string("/proc/modules").unwrap();
        if loaded.lines().any(|line| line.starts_with(&format!("{module} "))) {
            tools::run("rmmod", &[&module]).map(drop)
        } else {
            Ok(())
        }
    });
}

fn add(scheduler: Scheduler, mark: u32) -> Operation {
    let key = VirtualServerKey::mark(Family::Ipv4, mark.try_into().unwrap());
    Operation::AddVirtualServer(VirtualServer::new(key, scheduler))
}

/// The kernel would load them while it holds the mutex of IPVS, which can block it for ever.
#[test]
fn the_kernel_is_not_asked_to_load_a_module_that_waits_for_the_deletion_of_namespaces() {
    if !kernel::may_change_the_machine() {
        return;
    }
    requires!(Feature::Ipvs);
    let folder = std::env::temp_dir().join(format!("ipvs-module-loading-{}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    let (log, program) = (folder.join("log"), folder.join("modprobe"));
    let script = format!(
        "#!/bin/sh\necho \"$PPID $*\" >> {}\nexec modprobe \"$@\"\n",
        log.display()
    );
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let schedulers = [Scheduler::LBLC, Scheduler::LBLCR, Scheduler::FO];
    let _inside = NetNs::new().enter();
    let mut client = Client::open().unwrap();
    schedulers.into_iter().for_each(unload);
    let loading = kernel::Autoload::with(program.to_str().unwrap());

    // Two batches, so that a module is loaded once only.
    for first in [1, 4] {
        let operations: Vec<_> = schedulers
            .into_iter()
            .zip(first..)
            .map(|(scheduler, mark)| add(scheduler, mark))
            .collect();
        for (operation, outcome) in operations.iter().zip(client.execute(&operations)) {
            outcome.unwrap_or_else(|error| panic!("{operation}: {error:?}"));
        }
    }
    let own = std::process::id().to_string();
    let loaded: Vec<_> = fs::read_to_string(&log)
        .unwrap()
        .lines()
        .map(|line| {
            let (parent, arguments) = line.split_once(' ').unwrap();
            let by = if parent == own { "client" } else { "kernel" };
            (by, arguments.to_owned())
        })
        .collect();
    assert_eq!(
        loaded,
        [
            ("client", "-q -- ip_vs_lblc".to_owned()),
            ("client", "-q -- ip_vs_lblcr".to_owned()),
            // Of the others the kernel can load each at any time.
            ("kernel", "-q -- ip_vs_fo".to_owned()),
        ]
    );

    // With a program that fails, the kernel refuses the operation.
    client.flush().unwrap();
    schedulers.into_iter().for_each(unload);
    drop(loading);
    let no_autoload = kernel::Autoload::disabled();
    let outcome = client.execute_one(add(Scheduler::LBLC, 1));
    assert!(outcome.is_err_and(|error| error.is_scheduler_unavailable()));
    drop(no_autoload);
    fs::remove_dir_all(folder).unwrap();
}
