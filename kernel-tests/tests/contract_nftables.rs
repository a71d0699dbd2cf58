//! The contract of `Nftables` on the kernel, each check in a network namespace of its own.
#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use kernlink_kernel_tests::kernel::Feature;
use kernlink_kernel_tests::netns::NetNs;
use kernlink_kernel_tests::requires;
use kernlink_nftables::{Client, contract};

/// The check that a kernel without flowtables does not pass.
const OF_FLOWTABLES: &str = "a_flowtable_in_use_is_busy";

/// Runs the checks whose names are chosen, and returns how many there are.
fn run(is_chosen: fn(&str) -> bool) -> usize {
    let mut count = 0;
    contract::run(|check| {
        if is_chosen(check.name) {
            count += 1;
            NetNs::bare().run(|| (check.run)(&mut Client::open().unwrap()));
        }
    })
    .unwrap();
    count
}

#[test]
fn the_kernel_passes_the_contract() {
    assert!(run(|name| name != OF_FLOWTABLES) > 30);
}

#[test]
fn the_kernel_passes_the_contract_of_flowtables() {
    requires!(Feature::Flowtable);
    assert_eq!(run(|name| name == OF_FLOWTABLES), 1);
}
