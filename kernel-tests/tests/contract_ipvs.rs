//! The contract of `kernlink_ipvs::Ipvs` on the kernel, each check in a namespace of its own.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use kernlink_ipvs::{Client, contract};
use kernlink_kernel_tests::{kernel::Feature, netns::NetNs, requires};

#[test]
fn kernel_keeps_the_contract() {
    requires!(Feature::Ipvs);
    let mut broken = Vec::new();
    // Kept to the end: their virtual servers, taken away in the background, would tear the listings of others.
    let mut namespaces = Vec::new();
    for check in contract::CHECKS {
        let namespace = NetNs::new();
        let outcome = namespace.run(|| {
            std::panic::catch_unwind(|| {
                let mut client = Client::open().unwrap();
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
