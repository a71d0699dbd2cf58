//! Sets that are not the kernel's: an implementation with three methods, and implementations behind pointers.
#![cfg(feature = "fake")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use kernlink_ipset::{
    Action, Entry, Error, Fake, IpSets, Operation, Set, SetContents, SetFamily, SetHeader, SetName, SetType,
    contract,
};

/// The required methods only, and one operation refused.
struct StandIn<S> {
    sets: S,
    refused: Option<Operation>,
}

impl<S: IpSets> StandIn<S> {
    fn over(sets: S) -> Self {
        Self { sets, refused: None }
    }
}

impl<S: IpSets> IpSets for StandIn<S> {
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
struct Mute;

impl IpSets for Mute {
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
fn three_methods_keep_the_contract_but_for_numbers_of_sets() {
    for (check, run) in contract::CHECKS {
        if *check != "sets_are_found_by_name_and_index" {
            println!("{check}");
            run(&mut StandIn::over(Fake::new()));
        }
    }
}

#[test]
fn sets_behind_pointers_keep_the_contract() {
    for (check, run) in contract::CHECKS {
        println!("{check}");
        let mut boxed: Box<dyn IpSets> = Box::new(Fake::new());
        let mut pointer = &mut boxed;
        run(&mut pointer);
    }
}

#[test]
fn provided_tests_answer_as_the_fake_does() {
    let mut fake = Fake::new();
    contract::create_members(&mut fake);
    let mut all = Vec::new();
    for (set, entries) in contract::examples() {
        fake.create(&set).unwrap();
        for entry in entries.iter().step_by(2) {
            fake.add(&set.name, entry).unwrap();
        }
        all.push((set.name, entries));
    }
    for (set, _) in &all {
        // Also entries that the set cannot hold.
        for (_, entries) in &all {
            let expected = fake.test_all(set, entries);
            assert_eq!(StandIn::over(&mut fake).test_all(set, entries), expected, "{set}");
        }
    }
}

#[test]
fn a_stand_in_reports_its_own_errors() {
    let set = Set::new(name("a"), SetType::HashIp);
    let mut sets = StandIn {
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
fn all_sets_are_destroyed_only_if_none_is_in_use() {
    let mut fake = Fake::new();
    for set in ["a", "b"] {
        fake.create(&Set::new(name(set), SetType::HashIp)).unwrap();
    }
    fake.set_rules(name("b"), 1);
    assert!(StandIn::over(&mut fake).destroy_all().unwrap_err().is_busy());
    assert_eq!(fake.names().unwrap().len(), 2);
    fake.set_rules(name("b"), 0);
    StandIn::over(&mut fake).destroy_all().unwrap();
    assert!(fake.names().unwrap().is_empty());
}

#[test]
fn a_missing_outcome_is_an_error_of_unknown_outcome() {
    let set = name("a");
    for outcome in [
        Mute.add(&set, &entry("10.0.0.1")),
        Mute.flush_all(),
        Mute.destroy_all(),
        Mute.replace(&set, &[entry("10.0.0.1")]),
    ] {
        assert!(outcome.unwrap_err().is_outcome_unknown());
    }
    assert!(Mute.test(&set, &entry("10.0.0.1")).unwrap());
    assert!(!Mute.test(&set, &entry("10.0.0.2")).unwrap());
}
