//! The contract of `IpSets` on the kernel, each check in a namespace of its own.

use kernlink_ipset::{Client, contract};
use kernlink_kernel_tests::{kernel::Feature, netns::NetNs, requires};

#[test]
fn the_kernel_keeps_the_contract() {
    requires!(Feature::IpSet);
    let mut failed = Vec::new();
    for (name, check) in contract::CHECKS {
        let namespace = NetNs::new();
        let outcome = std::panic::catch_unwind(|| {
            namespace.run(|| {
                let mut client = Client::open().unwrap();
                check(&mut client);
            });
        });
        println!("{name}: {}", if outcome.is_ok() { "ok" } else { "FAILED" });
        if outcome.is_err() {
            failed.push(name);
        }
    }
    assert!(failed.is_empty(), "failed: {failed:?}");
}
