//! The contract of `Conntrack` on the kernel, each check in a namespace of its own, and with all degrees of
//! filtering in the kernel.

#![expect(clippy::unwrap_used, reason = "a test says what went wrong by panicking")]

use kernlink_conntrack::{Client, KernelFiltering, contract};
use kernlink_kernel_tests::{kernel::Feature, netns::NetNs, requires};

fn the_kernel_keeps_it(filtering: KernelFiltering) {
    let mut failed = Vec::new();
    for check in contract::ALL {
        let namespace = NetNs::new();
        let outcome = std::panic::catch_unwind(|| {
            namespace.run(|| {
                let mut client = Client::open().unwrap();
                client.set_kernel_filtering(filtering);
                check.run(&mut client);
            });
        });
        println!(
            "{filtering:?} {}: {}",
            check.name,
            if outcome.is_ok() { "ok" } else { "FAILED" }
        );
        if outcome.is_err() {
            failed.push(check.name);
        }
    }
    assert!(failed.is_empty(), "failed: {failed:?}");
}

#[test]
fn the_kernel_keeps_the_contract() {
    requires!(Feature::Conntrack);
    the_kernel_keeps_it(KernelFiltering::Full);
}

#[test]
fn the_kernel_keeps_the_contract_when_it_filters_listings_only() {
    requires!(Feature::Conntrack);
    the_kernel_keeps_it(KernelFiltering::Listing);
}

#[test]
fn the_kernel_keeps_the_contract_when_it_does_not_filter() {
    requires!(Feature::Conntrack);
    the_kernel_keeps_it(KernelFiltering::Off);
}
