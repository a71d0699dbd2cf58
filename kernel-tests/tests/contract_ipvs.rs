//! The contract of `kernlink_ipvs::Ipvs` on the kernel, each check in a namespace of its own.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::time::Duration;

use kernlink_ipvs::{Client, contract};
use kernlink_kernel_tests::{kernel::Feature, netns::NetNs, requires};

#[test]
fn kernel_keeps_the_contract() {
    requires!(Feature::Ipvs);
    let mut broken = Vec::new();
    // Kept to the end: while the kernel takes a namespace apart, a daemon that stops waits for it.
    let mut namespaces = Vec::new();
    for check in contract::CHECKS {
        let namespace = NetNs::new();
        let outcome = namespace.run(|| {
            std::panic::catch_unwind(|| {
                let mut client = Client::open().unwrap();
                // Other tests' namespaces are taken apart too, and an emulated machine may be busy.
                client.set_timeout(Some(Duration::from_secs(240))).unwrap();
                (check.run)(&mut client);
            })
        });
        namespaces.push(namespace);
        if outcome.is_err() {
            broken.push(check.name);
        }
    }
    assert!(broken.is_empty(), "{broken:?}");
}
