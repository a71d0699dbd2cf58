//! On any kernel: IPVS is available, or the error contains the reason and the remedy.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use kernlink_ipvs::{Client, Error, Unavailable};

/// The reason from the files of the module directory.
fn expected() -> (Unavailable, String) {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let release = release.trim().to_owned();
    let directory = format!("/lib/modules/{release}");
    let list = |name: &str| std::fs::read_to_string(format!("{directory}/{name}"));
    let lists = [list("modules.dep"), list("modules.builtin")];
    if lists.iter().flatten().any(|list| list.contains("/ip_vs.ko")) {
        let text = "the module ip_vs is installed but was not loaded automatically; run `modprobe ip_vs` as root of the host";
        return (Unavailable::NotLoaded, text.to_owned());
    }
    if lists.iter().any(Result::is_ok) {
        let text = format!(
            "kernel {release} has no IPVS: {directory} does not contain the module ip_vs; install the kernel's full module package \
             or use a kernel with CONFIG_IP_VS"
        );
        return (Unavailable::NotInstalled { release, directory }, text);
    }
    let text = format!(
        "kernel {release} has not loaded IPVS, and {directory} does not exist here, so it is unknown whether the module ip_vs is \
         installed; run `modprobe ip_vs` as root of the host"
    );
    (Unavailable::Unknown { release, directory }, text)
}

#[test]
fn the_error_of_a_kernel_without_ipvs_has_the_reason_and_the_remedy() {
    let opened = Client::open();
    // The file exists if IPVS is loaded.
    let exists = std::fs::exists("/proc/thread-self/net/ip_vs").unwrap();
    let Err(error) = opened else {
        assert!(exists);
        return;
    };
    assert!(!exists, "{error:?}");
    let (unavailable, text) = expected();
    assert_eq!(error, Error::Unavailable(unavailable));
    assert_eq!(error.to_string(), text);
    assert!(error.is_unavailable() && error.is_unsupported());
    assert!(!error.is_permission_denied() && !error.is_not_found() && !error.is_kernel_too_old());
}
