//! IPVS without its modules: the error of each case contains the remedy.
//!
//! The file has only one test, because the test unloads the modules of the whole machine.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::net::Ipv4Addr;

use kernlink_ipvs::{
    Availability, Client, Error, Ipvs, PersistenceEngine, Reason, Scheduler, Unavailable, VirtualServer,
    VirtualServerKey,
};
use kernlink_kernel_tests::{
    kernel::{self, Feature},
    netns::NetNs,
    requires, tools, wait,
};

/// The loaded modules of IPVS, and the module of `iptables` that uses it.
fn loaded() -> Vec<String> {
    let text = std::fs::read_to_string("/proc/modules").unwrap();
    let names = text.lines().filter_map(|line| line.split(' ').next());
    names
        .filter(|name| name.starts_with("ip_vs") || *name == "xt_ipvs")
        .map(str::to_owned)
        .collect()
}

/// Unloads them. The kernel deletes the namespaces of earlier tests in the background, so the modules may be in use for some time.
fn unload() {
    wait::until(|| {
        // A module that another module uses is unloaded in a later round.
        for module in loaded() {
            let _is_in_use = tools::run("rmmod", &[&module]);
        }
        let left = loaded();
        if left.is_empty() {
            Ok(())
        } else {
            Err(format!("loaded: {left:?}"))
        }
    });
}

fn server(scheduler: Scheduler) -> VirtualServer {
    VirtualServer::new(VirtualServerKey::tcp(Ipv4Addr::new(10, 0, 0, 1), 80), scheduler)
}

#[test]
fn the_errors_of_missing_modules_contain_the_remedy() {
    if !kernel::may_change_the_machine() {
        return;
    }
    requires!(Feature::Ipvs);
    let _inside = NetNs::new().enter();
    unload();
    let no_autoload = kernel::Autoload::disabled();

    // IPVS itself.
    let error = Client::open().unwrap_err();
    assert_eq!(error, Error::Unavailable(Unavailable::NotLoaded));
    assert!(error.is_unavailable() && error.is_unsupported());
    assert!(!error.is_permission_denied() && !error.is_kernel_too_old() && !error.is_not_found());
    assert!(
        error
            .to_string()
            .ends_with("run `modprobe ip_vs` as root of the host"),
        "{error}"
    );

    // The same call with automatic loading.
    drop(no_autoload);
    let mut client = Client::open().unwrap();
    client.add_virtual_server(&server(Scheduler::RR)).unwrap();

    // A scheduler that is installed but not loaded, and one that does not exist.
    let no_autoload = kernel::Autoload::disabled();
    let installed = client.update_virtual_server(&server(Scheduler::FO)).unwrap_err();
    let unknown = client
        .update_virtual_server(&server(Scheduler::new("nosuch").unwrap()))
        .unwrap_err();
    let module = |error: &Error| match (error, error.reason()) {
        (_, Some(Reason::SchedulerUnavailable { module, .. }))
        | (Error::SchedulerNotLoaded { module, .. }, None) => module.clone(),
        (other, _) => panic!("{other:?}"),
    };
    assert_eq!(module(&installed), Availability::Loadable);
    assert_eq!(module(&unknown), Availability::Missing);
    // The kernel is not asked to load a module of any name.
    assert!(unknown.is_scheduler_not_loaded() && !installed.is_scheduler_not_loaded());
    for error in [&installed, &unknown] {
        assert!(error.is_scheduler_unavailable() && error.is_unsupported());
        assert!(!error.is_unavailable() && !error.is_not_found() && !error.is_kernel_too_old());
    }
    assert_eq!(
        installed.to_string(),
        "cannot update virtual server -t 10.0.0.1:80: scheduler fo is not available (module ip_vs_fo); the module is installed \
         but was not loaded automatically; run `modprobe ip_vs_fo` as root of the host"
    );
    let support = client.support().unwrap();
    assert!(
        support
            .schedulers
            .contains(&(Scheduler::FO, Availability::Loadable))
    );
    assert!(
        support
            .schedulers
            .contains(&(Scheduler::RR, Availability::Loaded))
    );

    // The kernel does not report which of the two is missing; the loaded modules decide.
    let sip = server(Scheduler::RR).with_persistence_engine(PersistenceEngine::SIP);
    let error = client.update_virtual_server(&sip).unwrap_err();
    assert_eq!(
        error.reason(),
        Some(&Reason::PersistenceEngineUnavailable {
            engine: PersistenceEngine::SIP,
            module: Availability::Loadable,
        })
    );
    assert!(
        !error.is_scheduler_unavailable() && error.is_unsupported(),
        "{error}"
    );

    // The failed operations changed nothing, and they succeed with automatic loading.
    assert_eq!(
        client.list_virtual_servers().unwrap()[0].server,
        server(Scheduler::RR)
    );
    drop(no_autoload);
    client.update_virtual_server(&server(Scheduler::FO)).unwrap();
    let support = client.support().unwrap();
    assert!(
        support
            .schedulers
            .contains(&(Scheduler::FO, Availability::Loaded))
    );
}
