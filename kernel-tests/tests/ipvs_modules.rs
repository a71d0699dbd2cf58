//! IPVS where its modules are not loaded and cannot be: each case has its own error, which says what to do.
//!
//! One test in a file of its own: it takes the modules away from the whole machine.
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

/// The program by which the kernel loads modules, until dropped one that loads none.
struct NoAutoload {
    before: String,
}

impl NoAutoload {
    fn new() -> Self {
        let before = tools::sysctl("kernel.modprobe");
        tools::set_sysctl("kernel.modprobe", "/bin/false");
        Self { before }
    }
}

impl Drop for NoAutoload {
    fn drop(&mut self) {
        tools::set_sysctl("kernel.modprobe", &self.before);
    }
}

/// The modules of IPVS that are in the kernel, and the one of `iptables` that uses it.
fn loaded() -> Vec<String> {
    let text = std::fs::read_to_string("/proc/modules").unwrap();
    let names = text.lines().filter_map(|line| line.split(' ').next());
    names
        .filter(|name| name.starts_with("ip_vs") || *name == "xt_ipvs")
        .map(str::to_owned)
        .collect()
}

/// Takes them out. The namespaces of earlier tests, taken apart in the background, may hold them for a while.
fn unload() {
    wait::until(|| {
        // What another uses goes after that one, in a later round.
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
fn modules_that_are_not_loaded_are_named_with_what_to_do() {
    if !kernel::may_change_the_machine() {
        return;
    }
    requires!(Feature::Ipvs);
    let _inside = NetNs::new().enter();
    unload();
    let forbidden = NoAutoload::new();

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

    // The same call, once the kernel may load it.
    drop(forbidden);
    let mut client = Client::open().unwrap();
    client.add_virtual_server(&server(Scheduler::RR)).unwrap();

    // A scheduler that is installed but not loaded, and one that nobody has.
    let forbidden = NoAutoload::new();
    let installed = client.update_virtual_server(&server(Scheduler::FO)).unwrap_err();
    let unknown = client
        .update_virtual_server(&server(Scheduler::new("nosuch").unwrap()))
        .unwrap_err();
    let module = |error: &Error| match error.reason() {
        Some(Reason::SchedulerUnavailable { module, .. }) => module.clone(),
        other => panic!("{other:?}"),
    };
    assert_eq!(module(&installed), Availability::Loadable);
    assert_eq!(module(&unknown), Availability::Missing);
    for error in [&installed, &unknown] {
        assert!(error.is_scheduler_unavailable() && error.is_unsupported());
        assert!(!error.is_unavailable() && !error.is_not_found() && !error.is_kernel_too_old());
    }
    assert_eq!(
        installed.to_string(),
        "cannot update virtual server -t 10.0.0.1:80: the kernel has no scheduler fo (module ip_vs_fo), which is installed but \
         was not loaded by itself: run `modprobe ip_vs_fo` as root of the host"
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

    // The kernel does not say which of two is missing; what is loaded does.
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

    // Nothing was changed by all that, and all of it works once the kernel may load the modules.
    assert_eq!(
        client.list_virtual_servers().unwrap()[0].server,
        server(Scheduler::RR)
    );
    drop(forbidden);
    client.update_virtual_server(&server(Scheduler::FO)).unwrap();
    let support = client.support().unwrap();
    assert!(
        support
            .schedulers
            .contains(&(Scheduler::FO, Availability::Loaded))
    );
}
