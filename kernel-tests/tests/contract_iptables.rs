//! The contract of kernlink-iptables-restore on the kernel, for both back ends and both families.

use std::time::Duration;

use kernlink_iptables_restore::contract::CHECKS;
use kernlink_iptables_restore::{Backend, Command, Family};
use kernlink_kernel_tests::{kernel::Feature, netns::NetNs, requires};

fn check_all(backend: Backend) {
    for family in Family::ALL {
        for (name, check) in CHECKS {
            eprintln!("{backend} {family}: {name}");
            NetNs::new().run(|| {
                // Namespaces are private, so nobody else's lock is in the way of the legacy tools.
                let lock = std::env::temp_dir().join(format!("kernlink-contract-{}", std::process::id()));
                let mut command = Command::new()
                    .with_backend(backend)
                    .with_wait(Duration::from_secs(30))
                    .with_time_limit(Duration::from_secs(600))
                    .with_lock_file(lock);
                check(&mut command, family);
            });
        }
    }
}

#[test]
fn legacy_tables_behave_as_the_contract_says() {
    requires!(Feature::Iptables);
    check_all(Backend::Legacy);
}

#[test]
fn nft_tables_behave_as_the_contract_says() {
    requires!(Feature::Iptables);
    check_all(Backend::Nft);
}
