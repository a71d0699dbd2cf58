//! On whatever kernel this runs: IPVS is there, or the error says why not and what to do.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use kernlink_ipvs::{Client, Error, Unavailable};

/// Why IPVS is not there, found out from the files that an operator would look at.
fn expected() -> (Unavailable, String) {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let release = release.trim().to_owned();
    let directory = format!("/lib/modules/{release}");
    let list = |name: &str| std::fs::read_to_string(format!("{directory}/{name}"));
    let lists = [list("modules.dep"), list("modules.builtin")];
    if lists.iter().flatten().any(|list| list.contains("/ip_vs.ko")) {
        let text = "the module ip_vs is not loaded and the kernel did not load it by itself: run `modprobe ip_vs` as root of the \
                    host";
        return (Unavailable::NotLoaded, text.to_owned());
    }
    if lists.iter().any(Result::is_ok) {
        let text = format!(
            "the kernel {release} has no IPVS: there is no module ip_vs for it in {directory}; install the kernel's full module \
             package or take a kernel with CONFIG_IP_VS"
        );
        return (Unavailable::NotInstalled { release, directory }, text);
    }
    let text = format!(
        "the kernel {release} has no IPVS now, and {directory} is not here to tell whether it has the module: run `modprobe \
         ip_vs` as root of the host"
    );
    (Unavailable::Unknown { release, directory }, text)
}

#[test]
fn a_kernel_without_ipvs_is_named_with_what_to_do() {
    let opened = Client::open();
    // The file comes and goes with IPVS.
    let is_there = std::fs::exists("/proc/thread-self/net/ip_vs").unwrap();
    let Err(error) = opened else {
        assert!(is_there);
        return;
    };
    assert!(!is_there, "{error:?}");
    let (unavailable, text) = expected();
    assert_eq!(error, Error::Unavailable(unavailable));
    assert_eq!(error.to_string(), text);
    assert!(error.is_unavailable() && error.is_unsupported());
    assert!(!error.is_permission_denied() && !error.is_not_found() && !error.is_kernel_too_old());
}
