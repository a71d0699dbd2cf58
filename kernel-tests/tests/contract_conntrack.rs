//! The contract of `Conntrack` on the kernel, each check in a namespace of its own, and with all degrees of
//! filtering in the kernel.

#![expect(clippy::unwrap_used, reason = "a test says what went wrong by panicking")]

use kernlink_conntrack::{Client, KernelFiltering, contract};
use kernlink_kernel_tests::{kernel::Feature, netns::NetNs, requires, tools};

fn the_kernel_keeps_it(filtering: KernelFiltering, has_labels: bool) {
    let mut failed = Vec::new();
    for check in contract::ALL {
        let namespace = NetNs::new();
        let outcome = std::panic::catch_unwind(|| {
            namespace.run(|| {
                if has_labels {
                    // Flows have room for labels while some rule of the namespace uses them.
                    tools::must("nft", &["add", "table", "ip", "labels"]);
                    tools::must("nft", &["add chain ip labels unused"]);
                    tools::must("nft", &["add rule ip labels unused ct label set 71"]);
                }
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
    the_kernel_keeps_it(KernelFiltering::Full, false);
}

#[test]
fn the_kernel_keeps_the_contract_when_it_filters_listings_only() {
    requires!(Feature::Conntrack);
    the_kernel_keeps_it(KernelFiltering::Listing, false);
}

#[test]
fn the_kernel_keeps_the_contract_when_it_does_not_filter() {
    requires!(Feature::Conntrack);
    the_kernel_keeps_it(KernelFiltering::Off, false);
}

#[test]
fn the_kernel_keeps_the_contract_where_flows_have_labels() {
    requires!(Feature::Conntrack, Feature::Iptables);
    the_kernel_keeps_it(KernelFiltering::Full, true);
}
