//! On whatever kernel this runs: IPVS is there, or the error says why not and what to do.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use kernlink_ipvs::{Client, Error, Unavailable};

#[test]
fn a_kernel_without_ipvs_is_named_with_what_to_do() {
    match Client::open() {
        // The kernel answers for it.
        Ok(_) => assert!(std::fs::exists("/proc/thread-self/net/ip_vs").unwrap()),
        Err(error) => {
            assert!(error.is_unavailable() && error.is_unsupported(), "{error:?}");
            assert!(!error.is_permission_denied() && !error.is_not_found() && !error.is_kernel_too_old());
            let text = error.to_string();
            match error {
                Error::Unavailable(Unavailable::NotLoaded) => {
                    assert!(text.contains("module ip_vs is not loaded") && text.contains("modprobe ip_vs"));
                }
                Error::Unavailable(Unavailable::NotInstalled { release, directory }) => {
                    assert!(
                        text.contains("has no IPVS") && text.contains("CONFIG_IP_VS"),
                        "{text}"
                    );
                    assert!(directory.ends_with(&release), "{directory}");
                }
                Error::Unavailable(Unavailable::Unknown { release, directory }) => {
                    assert!(
                        text.contains("is not here to tell") && text.contains("modprobe ip_vs"),
                        "{text}"
                    );
                    assert!(directory.ends_with(&release), "{directory}");
                }
                other => panic!("{other:?}"),
            }
        }
    }
}
