//! The contract of `Conntrack` on the kernel, each check in a network namespace of its own, with every `KernelFiltering`.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

use kernlink_conntrack::{Client, KernelFiltering, contract};
use kernlink_kernel_tests::{kernel::Feature, netns::NetNs, requires, tools};

fn run_contract(filtering: KernelFiltering, has_labels: bool) {
    contract::run(|check| {
        NetNs::new().run(|| {
            if has_labels {
                // Flows have room for labels while a rule of the namespace uses them.
                tools::must("nft", &["add", "table", "ip", "labels"]);
                tools::must("nft", &["add chain ip labels unused"]);
                tools::must("nft", &["add rule ip labels unused ct label set 71"]);
            }
            let mut client = Client::open().unwrap();
            client.set_kernel_filtering(filtering);
            (check.run)(&mut client);
        });
    })
    .unwrap();
}

#[test]
fn the_kernel_passes_the_contract() {
    requires!(Feature::Conntrack);
    run_contract(KernelFiltering::Full, false);
}

#[test]
fn the_kernel_passes_the_contract_when_it_filters_listings_only() {
    requires!(Feature::Conntrack);
    run_contract(KernelFiltering::Listing, false);
}

#[test]
fn the_kernel_passes_the_contract_when_it_does_not_filter() {
    requires!(Feature::Conntrack);
    run_contract(KernelFiltering::Off, false);
}

#[test]
fn the_kernel_passes_the_contract_where_flows_have_labels() {
    requires!(Feature::Conntrack, Feature::Iptables);
    run_contract(KernelFiltering::Full, true);
}
