//! The contract on the fake.

#![cfg(feature = "fake")]

use std::time::Duration;

use kernlink_nftables::{
    DataType, Element, Elements, Fake, Nftables, Operation, Set, Table, TableFamily, TableKey, Value,
    contract,
};

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

#[test]
fn an_element_of_the_fake_with_the_timeout_zero_does_not_expire() {
    let minute = Duration::from_secs(60);
    let key = TableKey::new(TableFamily::Ip, "t").set("s");
    let set = Set::new(key, &[DataType::Service]).with_timeout(minute);
    let never = Element::new(Value::port(1)).with_timeout(Duration::ZERO);
    let elements = Elements::new(
        set.key.clone(),
        [
            never.clone(),
            Element::new(Value::port(2)),
            Element::new(Value::port(3)).with_timeout(minute),
        ],
    );
    let mut fake = Fake::new();
    fake.apply(&[
        Operation::add(Table::new(set.key.table.clone())),
        Operation::add(set.clone()),
        Operation::add(elements),
    ])
    .unwrap();
    let listed = fake.list_elements(&set.key).unwrap();
    let timeouts: Vec<_> = listed.iter().map(|element| element.timeout).collect();
    // That of the set is not returned.
    assert_eq!(timeouts, [Some(Duration::ZERO), None, None]);
    fake.advance(minute * 2);
    assert_eq!(fake.list_elements(&set.key).unwrap(), [never]);
}
