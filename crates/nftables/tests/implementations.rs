//! The contract on the fake.

#![cfg(feature = "fake")]

use kernlink_nftables::{Fake, Nftables, contract};

#[test]
fn the_fake_passes_the_contract() {
    contract::run(|check| (check.run)(&mut Fake::new())).unwrap();
}

#[test]
fn pointers_to_implementations_pass_the_contract() {
    contract::run(|check| {
        let mut boxed: Box<dyn Nftables> = Box::new(Fake::new());
        (check.run)(&mut boxed);
    })
    .unwrap();
}
