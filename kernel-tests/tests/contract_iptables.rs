//! The contract of kernlink-iptables-restore on the kernel, for both variants.

use std::time::Duration;

use kernlink_iptables_restore::{Client, Variant, contract};
use kernlink_kernel_tests::kernel::Feature;
use kernlink_kernel_tests::netns::NetNs;
use kernlink_kernel_tests::requires;

fn check(variant: Variant) -> Result<(), impl std::fmt::Debug> {
    contract::run(|check| {
        eprintln!("{variant}: {}", check.name);
        NetNs::new().run(|| {
            // The namespaces are private, so no lock with other processes is needed.
            let lock = std::env::temp_dir().join(format!("kernlink-contract-{}", std::process::id()));
            let mut client = Client::new()
                .with_variant(variant)
                .with_wait(Duration::from_secs(30))
                .with_timeout(Duration::from_secs(600))
                .with_lock_file(lock);
            (check.run)(&mut client);
        });
    })
}

#[test]
fn legacy_tables_satisfy_the_contract() {
    requires!(Feature::Iptables);
    check(Variant::Legacy).unwrap();
}

#[test]
fn nft_tables_satisfy_the_contract() {
    requires!(Feature::Iptables);
    check(Variant::Nft).unwrap();
}
