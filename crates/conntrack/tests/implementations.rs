//! Implementations of `Conntrack` other than the client and the fake.
#![cfg(feature = "fake")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use kernlink_conntrack::{
    Conntrack, Error, Fake, Filter, FlowKey, Flows, FlushScope, NewFlow, Operation, Tuple, Zone,
    ZoneDirection, contract,
};

/// Implements only the required methods, and refuses one operation.
struct Wrapper<C> {
    table: C,
    refused: Option<Operation>,
}

impl<C: Conntrack> Wrapper<C> {
    fn new(table: C) -> Self {
        Self { table, refused: None }
    }
}

impl<C: Conntrack> Conntrack for Wrapper<C> {
    fn execute(&mut self, operations: &[Operation]) -> Vec<Result<(), Error>> {
        let execute = |operation: &Operation| {
            if self.refused.as_ref() == Some(operation) {
                return Err(Error::custom(
                    format!("execute conntrack {operation}"),
                    "the zone is reserved",
                ));
            }
            self.table.execute_one(operation.clone())
        };
        operations.iter().map(execute).collect()
    }

    fn flows<'a>(&'a mut self, filter: &Filter) -> Result<Flows<'a>, Error> {
        self.table.flows(filter)
    }
}

/// Returns no outcomes.
struct NoOutcomes;

impl Conntrack for NoOutcomes {
    fn execute(&mut self, _: &[Operation]) -> Vec<Result<(), Error>> {
        Vec::new()
    }

    fn flows<'a>(&'a mut self, _: &Filter) -> Result<Flows<'a>, Error> {
        Ok(Flows::new(std::iter::empty()))
    }
}

fn udp(source: u16, destination: u16) -> Tuple {
    Tuple::udp(
        ([10, 0, 0, 1], source).into(),
        ([10, 0, 0, 2], destination).into(),
    )
}

fn new(tuple: Tuple) -> NewFlow {
    NewFlow::new(tuple, Duration::from_secs(60))
}

#[test]
fn an_implementation_of_the_required_methods_passes_the_contract() {
    contract::run(|check| {
        (check.run)(&mut Wrapper::new(Fake::new()));
        (check.run)(&mut Wrapper::new(Fake::new().with_labels()));
    })
    .unwrap();
}

#[test]
fn boxes_and_mutable_references_pass_the_contract() {
    contract::run(|check| {
        // The checks need an implementation without borrowed data.
        let boxed: Box<dyn Conntrack> = Box::new(Fake::new());
        let mut reference = Box::leak(Box::new(boxed));
        (check.run)(&mut reference);
    })
    .unwrap();
}

#[test]
fn the_provided_methods_return_what_the_fake_returns() {
    let mut fake = Fake::new().with_limit(10);
    let zones = [
        Zone::DEFAULT,
        Zone::new(7),
        Zone {
            id: 7,
            direction: ZoneDirection::Original,
        },
        Zone {
            id: 7,
            direction: ZoneDirection::Reply,
        },
    ];
    let (tuples, mut keys) = ([udp(1, 53), udp(2, 53), udp(3, 53), udp(4, 53)], Vec::new());
    for (tuple, zone) in tuples.into_iter().zip(zones) {
        let mut flow = new(tuple);
        flow.zone = zone;
        fake.add(&flow).unwrap();
    }
    for tuple in tuples.into_iter().chain([udp(5, 53)]) {
        for tuple in [tuple, tuple.inverted().unwrap()] {
            for zone in zones {
                let key = FlowKey::new(tuple).with_zone(zone);
                keys.extend([key, key.with_id(1), key.with_id(2)]);
            }
        }
    }
    let found = |table: &mut dyn Conntrack, key: &FlowKey| match table.flow(key) {
        Ok(flow) => Some(flow),
        Err(error) if error.is_not_found() => None,
        Err(error) => unreachable!("{error}"),
    };
    let expected: Vec<_> = keys.iter().map(|key| found(&mut fake, key)).collect();
    assert!(expected.iter().flatten().count() >= 8);
    let mut table = Wrapper::new(fake);
    let provided: Vec<_> = keys.iter().map(|key| found(&mut table, key)).collect();
    assert_eq!(provided, expected);
    let totals = table.totals().unwrap();
    assert_eq!((totals.entries, totals.limit), (4, None));
    let deletion = table.delete_many(&[FlowKey::new(udp(1, 53)), FlowKey::new(udp(9, 53))]);
    assert_eq!((deletion.deleted, deletion.not_found), (Some(1), 1));
}

#[test]
fn an_implementation_returns_its_own_errors() {
    let mut table = Wrapper {
        table: Fake::new(),
        refused: Some(Operation::Flush(FlushScope::Zone(7))),
    };
    let error = table.flush(FlushScope::Zone(7)).unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "cannot execute conntrack {}",
            Operation::Flush(FlushScope::Zone(7))
        )
    );
    assert!(!error.is_not_found() && !error.is_unsupported() && !error.is_outcome_unknown());
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert_eq!(cause, "the zone is reserved");
    table.flush(FlushScope::Zone(8)).unwrap();
}

#[test]
fn a_missing_outcome_is_an_error_of_unknown_outcome() {
    assert!(NoOutcomes.add(&new(udp(1, 53))).unwrap_err().is_outcome_unknown());
    let deletion = NoOutcomes.delete_many(&[FlowKey::new(udp(1, 53))]);
    assert!(deletion.into_result().unwrap_err().is_outcome_unknown());
}
