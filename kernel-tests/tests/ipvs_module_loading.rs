//! Which process loads the module of a scheduler.
//!
//! The file has only one test, because the test unloads modules of the whole machine.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

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

/// Writes a program that logs its parent and its arguments, runs `first`, and then `modprobe`.
fn write_program(path: &Path, log: &Path, first: &str) {
    let script = format!(
        "#!/bin/sh\necho \"$PPID $*\" >> {}\n{first}exec modprobe \"$@\"\n",
        log.display()
    );
    fs::write(path, script).unwrap();
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
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
    let own = std::process::id();
    // The second program fails for the client, as for a process without `CAP_SYS_MODULE`.
    let (loads, refuses) = (folder.join("modprobe"), folder.join("refuses"));
    let log = folder.join("log");
    write_program(&loads, &log, "");
    write_program(&refuses, &log, &format!("[ $PPID = {own} ] && exit 1\n"));
    let logged = || {
        let text = fs::read_to_string(&log).unwrap_or_default();
        let _may_not_exist = fs::remove_file(&log);
        let line = |line: &str| {
            let (parent, arguments) = line.split_once(' ').unwrap();
            let by = if parent == own.to_string() {
                "client"
            } else {
                "kernel"
            };
            format!("{by} {arguments}")
        };
        text.lines().map(line).collect::<Vec<_>>()
    };
    let schedulers = [Scheduler::LBLC, Scheduler::LBLCR, Scheduler::FO];
    let _inside = NetNs::new().enter();
    let mut client = Client::open().unwrap();
    schedulers.into_iter().for_each(unload);
    let loading = kernel::Autoload::with(loads.to_str().unwrap());

    // Two batches, so that a module is loaded once only.
    for first in [1, 4] {
        let operations: Vec<_> = schedulers
            .into_iter()
            .zip(first..)
            .map(|(scheduler, mark)| add(scheduler, mark))
            .collect();
        assert!(
            schedulers
                .iter()
                .all(|scheduler| !client.is_scheduler_refused(*scheduler))
        );
        for (operation, outcome) in operations.iter().zip(client.execute(&operations)) {
            outcome.unwrap_or_else(|error| panic!("{operation}: {error:?}"));
        }
    }
    assert_eq!(
        logged(),
        [
            "client -q -- ip_vs_lblc",
            "client -q -- ip_vs_lblcr",
            // Of the others the kernel can load each at any time.
            "kernel -q -- ip_vs_fo",
        ]
    );
    client.flush().unwrap();
    schedulers.into_iter().for_each(unload);
    drop(loading);

    // If the client cannot load the two, the kernel is not asked to.
    let refusing = kernel::Autoload::with(refuses.to_str().unwrap());
    let operations = [
        add(Scheduler::LBLC, 1),
        add(Scheduler::FO, 2),
        add(Scheduler::new("ftp").unwrap(), 3),
        add(Scheduler::LBLCR, 4),
    ];
    let outcomes = client.execute(&operations);
    assert_eq!(outcomes[1], Ok(()), "the others are not concerned");
    for (position, module) in [(0, "ip_vs_lblc"), (2, "ip_vs_ftp"), (3, "ip_vs_lblcr")] {
        let error = outcomes[position].clone().unwrap_err();
        assert!(
            error.is_scheduler_not_loaded() && error.is_scheduler_unavailable(),
            "{error:?}"
        );
        assert!(
            error
                .to_string()
                .ends_with(&format!("run `modprobe {module}` as root of the host")),
            "{error}"
        );
    }
    assert!(client.is_scheduler_refused(Scheduler::LBLC), "it was tried");
    assert_eq!(
        logged(),
        [
            "client -q -- ip_vs_lblc",
            "client -q -- ip_vs_ftp",
            "client -q -- ip_vs_lblcr",
            "kernel -q -- ip_vs_fo",
        ]
    );

    // Unless the caller permits it.
    client.permit_loading(&[Scheduler::LBLC]);
    assert!(!client.is_scheduler_refused(Scheduler::LBLC));
    client.execute_one(add(Scheduler::LBLC, 1)).unwrap();
    assert_eq!(logged(), ["client -q -- ip_vs_lblc", "kernel -q -- ip_vs_lblc"]);
    drop(refusing);

    // One that is loaded needs neither program nor permission, as after a restart.
    let mut next = Client::open().unwrap();
    let no_autoload = kernel::Autoload::disabled();
    assert!(!next.is_scheduler_refused(Scheduler::LBLC));
    next.execute_one(add(Scheduler::LBLC, 5)).unwrap();

    // With a program that fails, the kernel refuses the operation.
    client.flush().unwrap();
    schedulers.into_iter().for_each(unload);
    let outcome = client.execute_one(add(Scheduler::LBLC, 1));
    assert!(outcome.is_err_and(|error| error.is_scheduler_unavailable() && !error.is_scheduler_not_loaded()));
    let outcome = next.execute_one(add(Scheduler::LBLC, 1));
    assert!(outcome.is_err_and(|error| error.is_scheduler_not_loaded()));
    drop(no_autoload);
    fs::remove_dir_all(folder).unwrap();
}
