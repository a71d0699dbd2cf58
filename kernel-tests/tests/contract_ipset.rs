//! The contract of `IpSets` on the kernel. Each check runs in a network namespace of its own.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use kernlink_ipset::{Client, contract};
use kernlink_kernel_tests::{kernel::Feature, netns::NetNs, requires};

#[test]
fn the_kernel_keeps_the_contract() {
    requires!(Feature::IpSet);
    let result = contract::run(|check| {
        println!("{}", check.name);
        NetNs::new().run(|| (check.run)(&mut Client::open().unwrap()));
    });
    assert_eq!(result, Ok(()));
}
