//! The contract of `kernlink_ipvs::Ipvs` on the kernel, each check in its own network namespace.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use kernlink_ipvs::{Client, contract};
use kernlink_kernel_tests::{kernel::Feature, netns::NetNs, requires};

#[test]
fn the_kernel_client_passes_the_contract() {
    requires!(Feature::Ipvs);
    // Dropped at the end. The kernel deletes the virtual servers of a dropped namespace in the background, which would interrupt
    // the listings of later checks.
    let mut namespaces = Vec::new();
    contract::run(|check| {
        println!("{}", check.name);
        let namespace = NetNs::new();
        namespaces.push(namespace.clone());
        namespace.run(|| (check.run)(&mut Client::open().unwrap()));
    })
    .unwrap();
}
