//! The contract on the fake.

#![cfg(feature = "fake")]

use std::time::Duration;

use kernlink_nftables::{
    DataType, Element, Elements, Fake, Nftables, Operation, Set, Table, TableFamily, TableFlags, TableKey,
    Value, contract,
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

#[test]
fn a_table_of_the_fake_that_another_client_owns_cannot_be_changed() {
    let key = |name: &str| TableKey::new(TableFamily::Ip, name);
    let (kept, lost, free) = (key("kept"), key("lost"), key("free"));
    let with = |key: &TableKey, flags| Operation::add(Table::new(key.clone()).with_flags(flags));
    let owner = TableFlags::OWNER;
    let persistent = TableFlags::OWNER | TableFlags::PERSIST;
    let chain = |key: &TableKey| [Operation::add(kernlink_nftables::Chain::new(key.chain("a")))];
    let mut fake = Fake::new();
    fake.apply(&[
        with(&kept, persistent),
        with(&lost, owner),
        with(&free, TableFlags::empty()),
    ])
    .unwrap();
    assert!(fake.table(&kept).unwrap().unwrap().owner.is_some());
    // The owner keeps it, and a table that never had an owner does not get one.
    fake.apply(&[with(&kept, TableFlags::PERSIST)]).unwrap_err();
    fake.apply(&[with(&free, owner)]).unwrap_err();
    fake.set_client(2);
    for key in [&kept, &lost] {
        assert!(fake.apply(&chain(key)).unwrap_err().is_permission_denied());
        let deletion = [Operation::delete(key.clone())];
        assert!(fake.apply(&deletion).unwrap_err().is_permission_denied());
    }
    fake.apply(&chain(&free)).unwrap();
    fake.apply(&[Operation::Flush(kernlink_nftables::Flush::Ruleset)])
        .unwrap();
    let tables = |fake: &mut Fake| -> Vec<TableKey> {
        fake.tables(None)
            .unwrap()
            .into_iter()
            .map(|table| table.key)
            .collect()
    };
    assert_eq!(tables(&mut fake), [kept.clone(), lost]);
    fake.close_client(1);
    assert_eq!(tables(&mut fake), std::slice::from_ref(&kept));
    // The next client takes it over.
    fake.apply(&[with(&kept, persistent)]).unwrap();
    fake.apply(&chain(&kept)).unwrap();
    fake.set_client(1);
    assert!(fake.apply(&chain(&kept)).unwrap_err().is_permission_denied());
}
