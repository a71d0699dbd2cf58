//! The contract of `Nftables` on the kernel, each check in a network namespace of its own.

use kernlink_kernel_tests::netns::NetNs;
use kernlink_nftables::{Client, contract};

#[test]
fn the_kernel_passes_the_contract() {
    contract::run(|check| NetNs::bare().run(|| (check.run)(&mut Client::open().unwrap()))).unwrap();
}
