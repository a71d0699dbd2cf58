//! The contract of `DummyLinks` on the kernel.

use kernlink_dummylink::{Client, contract};
use kernlink_kernel_tests::{kernel::Feature, netns::NetNs, requires};

#[test]
fn the_kernel_client_passes_the_contract() {
    requires!(Feature::DummyLink);
    contract::run(|check| {
        println!("{}", check.name);
        NetNs::new().run(|| (check.run)(&mut Client::open().unwrap()));
    })
    .unwrap();
}
