//! Implementations of `IpSets` other than the client: one with the three required methods, and pointers to implementations.
#![cfg(feature = "fake")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use kernlink_ipset::{
    Action, Entry, Error, Fake, IpSets, Operation, Set, SetContents, SetFamily, SetHeader, SetName, SetType,
    contract,
};

#[path = "../src/contract/examples.rs"]
mod examples;

/// Forwards the required methods and refuses one operation.
struct Wrapper<S> {
    sets: S,
    refused: Option<Operation>,
}

impl<S: IpSets> Wrapper<S> {
    fn new(sets: S) -> Self {
        Self { sets, refused: None }
    }
}

impl<S: IpSets> IpSets for Wrapper<S> {
    fn execute(&mut self, operations: &[Operation]) -> Vec<Result<(), Error>> {
        let execute = |operation: &Operation| {
            if self.refused.as_ref() == Some(operation) {
                return Err(Error::custom(operation.clone(), "the set is reserved"));
            }
            self.sets.execute_one(operation.clone())
        };
        operations.iter().map(execute).collect()
    }

    fn list_set(&mut self, name: &SetName) -> Result<SetContents, Error> {
        self.sets.list_set(name)
    }

    fn headers(&mut self) -> Result<Vec<SetHeader>, Error> {
        self.sets.headers()
    }
}

/// Returns no outcomes.
struct WithoutOutcomes;

impl IpSets for WithoutOutcomes {
    fn execute(&mut self, _: &[Operation]) -> Vec<Result<(), Error>> {
        Vec::new()
    }

    fn list_set(&mut self, name: &SetName) -> Result<SetContents, Error> {
        Ok(SetContents::new(
            Set::new(*name, SetType::HashIp),
            vec![entry("10.0.0.1")],
        ))
    }

    fn headers(&mut self) -> Result<Vec<SetHeader>, Error> {
        Ok(vec![SetHeader::new(Set::new(name("a"), SetType::HashIp))])
    }
}

fn name(text: &str) -> SetName {
    SetName::new(text).unwrap()
}

fn entry(text: &str) -> Entry {
    Entry::parse(text, SetType::HashIp, SetFamily::Inet).unwrap()
}

#[test]
fn an_implementation_with_three_methods_keeps_the_contract_except_for_indexes() {
    let result = contract::run(|check| {
        if check.name != "sets_are_found_by_name_and_index" {
            (check.run)(&mut Wrapper::new(Fake::new()));
        }
    });
    assert_eq!(result, Ok(()));
}

#[test]
fn pointers_to_an_implementation_keep_the_contract() {
    let result = contract::run(|check| {
        let boxed: Box<dyn IpSets> = Box::new(Fake::new());
        let mut pointer: &'static mut Box<dyn IpSets> = Box::leak(Box::new(boxed));
        (check.run)(&mut pointer);
    });
    assert_eq!(result, Ok(()));
}

#[test]
fn the_provided_test_method_agrees_with_the_fake() {
    let mut fake = Fake::new();
    examples::create_members(&mut fake);
    let mut all = Vec::new();
    for (set, entries) in examples::examples() {
        fake.create(&set).unwrap();
        for entry in entries.iter().step_by(2) {
            fake.add(&set.name, entry).unwrap();
        }
        all.push((set.name, entries));
    }
    for (set, _) in &all {
        // The entries of all sets, so also those that this set cannot hold.
        for (_, entries) in &all {
            let expected = fake.test_all(set, entries);
            assert_eq!(Wrapper::new(&mut fake).test_all(set, entries), expected, "{set}");
        }
    }
}

#[test]
fn an_implementation_reports_its_own_errors() {
    let set = Set::new(name("a"), SetType::HashIp);
    let mut sets = Wrapper {
        sets: Fake::new(),
        refused: Some(Operation::add(set.name, entry("10.0.0.2"))),
    };
    sets.create(&set).unwrap();
    let additions: Vec<_> = ["10.0.0.1", "10.0.0.2", "10.0.0.3"]
        .iter()
        .map(|text| Operation::add(set.name, entry(text)))
        .collect();
    let outcomes = sets.execute_until_failure(&additions);
    let [Ok(()), Err(error), Err(Error::NotAttempted)] = outcomes.as_slice() else {
        unreachable!("{outcomes:?}")
    };
    assert_eq!(error.to_string(), "cannot add a 10.0.0.2");
    assert!(!error.is_not_found() && !error.is_invalid() && !error.is_outcome_unknown());
    let cause = std::error::Error::source(error).unwrap().to_string();
    assert_eq!(cause, "the set is reserved");
    assert_eq!(sets.list_set(&set.name).unwrap().entries, [entry("10.0.0.1")]);
    for error in [
        sets.index_of(&set.name).unwrap_err(),
        sets.name_of(0).unwrap_err(),
        sets.revisions(SetType::HashIp, SetFamily::Inet).unwrap_err(),
    ] {
        assert!(error.is_unsupported(), "{error}");
    }
    assert_eq!(Action::from("read the sets").to_string(), "read the sets");
}

#[test]
fn no_set_is_destroyed_if_one_is_in_use() {
    let mut fake = Fake::new();
    for set in ["a", "b"] {
        fake.create(&Set::new(name(set), SetType::HashIp)).unwrap();
    }
    fake.set_rules(name("b"), 1);
    assert!(Wrapper::new(&mut fake).destroy_all().unwrap_err().is_busy());
    assert_eq!(fake.names().unwrap().len(), 2);
    fake.set_rules(name("b"), 0);
    Wrapper::new(&mut fake).destroy_all().unwrap();
    assert!(fake.names().unwrap().is_empty());
}

#[test]
fn a_missing_outcome_is_reported_as_an_unknown_outcome() {
    let set = name("a");
    for outcome in [
        WithoutOutcomes.add(&set, &entry("10.0.0.1")),
        WithoutOutcomes.flush_all(),
        WithoutOutcomes.destroy_all(),
        WithoutOutcomes.replace(&set, &[entry("10.0.0.1")]),
    ] {
        assert!(outcome.unwrap_err().is_outcome_unknown());
    }
    assert!(WithoutOutcomes.test(&set, &entry("10.0.0.1")).unwrap());
    assert!(!WithoutOutcomes.test(&set, &entry("10.0.0.2")).unwrap());
}
