//! The contract of `DummyLinks` on the kernel.

use kernlink_dummylink::{Client, contract};
use kernlink_kernel_tests::{kernel::Feature, netns::NetNs, requires};

#[test]
fn the_kernel_keeps_the_contract() {
    requires!(Feature::DummyLink);
    for (name, check) in contract::CHECKS {
        println!("{name}");
        NetNs::new().run(|| check(&mut Client::open().unwrap()));
    }
}
