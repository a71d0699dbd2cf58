//! Implementations of the trait other than the client: with the two required methods only, and for pointers.
#![cfg(feature = "fake")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::Duration;

use kernlink_iptables_restore::{
    Edit, Error, Fake, Family, Iptables, Operation, Refused, RefusedKind, Restore, Rule, Ruleset, Save,
    Table, contract,
};

/// A wrapper with the required methods only, which refuses one table.
struct Wrapper<I> {
    tables: I,
    refused: Option<Table>,
}

impl<I: Iptables> Wrapper<I> {
    fn new(tables: I) -> Self {
        Self {
            tables,
            refused: None,
        }
    }
}

impl<I: Iptables> Iptables for Wrapper<I> {
    fn execute(&mut self, operations: &[Operation]) -> Vec<Result<(), Error>> {
        let execute = |operation: &Operation| match (operation, self.refused) {
            (Operation::Restore(restore), Some(refused))
                if restore.tables().any(|(table, _)| table == refused) =>
            {
                Err(Error::custom(
                    format!("restore table {refused}"),
                    "the table is reserved",
                ))
            }
            (operation, _) => self.tables.execute_one(operation.clone()),
        };
        operations.iter().map(execute).collect()
    }

    fn save(&mut self, request: &Save) -> Result<Ruleset, Error> {
        self.tables.save(request)
    }
}

/// Returns no outcomes.
struct NoOutcomes;

impl Iptables for NoOutcomes {
    fn execute(&mut self, _: &[Operation]) -> Vec<Result<(), Error>> {
        Vec::new()
    }

    fn save(&mut self, _: &Save) -> Result<Ruleset, Error> {
        Ok(Ruleset::new())
    }
}

fn rule(text: &str) -> Rule {
    text.parse().unwrap()
}

fn append(table: Table, chain: &str, text: &str) -> Restore {
    Restore::new(Family::Ipv4).with(table, Edit::append(chain.parse().unwrap(), rule(text)))
}

#[test]
fn a_wrapper_with_two_methods_satisfies_the_contract() {
    contract::run(|check| (check.run)(&mut Wrapper::new(Fake::new()))).unwrap();
}

#[test]
fn pointers_satisfy_the_contract() {
    contract::run(|check| {
        let boxed: Box<dyn Iptables> = Box::new(Fake::new());
        // The type of a check has no lifetime parameter, so the reference is static.
        let mut reference: &'static mut Box<dyn Iptables> = Box::leak(Box::new(boxed));
        (check.run)(&mut reference);
    })
    .unwrap();
}

#[test]
fn a_wrapper_reports_its_own_errors() {
    let mut tables = Wrapper {
        tables: Fake::new(),
        refused: Some(Table::Nat),
    };
    let error = tables
        .restore(&append(Table::Nat, "OUTPUT", "-j ACCEPT"))
        .unwrap_err();
    assert_eq!(error.to_string(), "cannot restore table nat");
    assert!(!error.is_not_found() && !error.is_temporary() && !error.is_outcome_unknown());
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert_eq!(cause, "the table is reserved");
    tables
        .restore(&append(Table::Filter, "OUTPUT", "-j ACCEPT"))
        .unwrap();
}

#[test]
fn the_provided_test_refuses_what_the_fake_refuses() {
    let mut fake = Fake::new();
    let present = Restore::new(Family::Ipv4).with(Table::Filter, Edit::declare("A".parse().unwrap()));
    fake.restore(&present).unwrap();
    let before = fake.ruleset(Family::Ipv4);
    let accepted = append(Table::Filter, "A", "-j RETURN");
    assert_eq!(Wrapper::new(&mut fake).test(&accepted), Ok(()));
    let refused = [
        append(Table::Filter, "B", "-j RETURN"),
        append(Table::Filter, "INPUT", "-j REDIRECT"),
        // The table before the refused one is not changed either.
        append(Table::Nat, "OUTPUT", "-j ACCEPT")
            .with(Table::Filter, Edit::append("A".parse().unwrap(), rule("-j B"))),
    ];
    for input in refused {
        let outcome = Wrapper::new(&mut fake).test(&input);
        assert_eq!(outcome, fake.test(&input), "{input}");
        let error = outcome.unwrap_err();
        assert!(
            matches!(error, Error::Refused { .. }) && error.applied().is_empty(),
            "{error:?}"
        );
    }
    assert_eq!(fake.ruleset(Family::Ipv4), before);
    // An unreadable table cannot be checked.
    fake.set_unreadable(Family::Ipv4, Table::Filter);
    let outcome = Wrapper::new(&mut fake).test(&append(Table::Filter, "A", "-j RETURN"));
    assert!(outcome.unwrap_err().is_unreadable());
}

#[test]
fn an_outcome_is_unknown_if_the_tool_was_killed_or_named_no_line() {
    let refused = |refused: Refused, kind: RefusedKind, status: Option<i32>| Error::Refused {
        tool: "iptables-restore".into(),
        refused: Box::new(refused),
        kind,
        text: String::new(),
        status,
        applied: Vec::new(),
    };
    let whole = || Refused::Whole(Family::Ipv4);
    let killed = Error::TimedOut {
        tool: "iptables-restore".into(),
        timeout: Duration::from_secs(1),
    };
    let missing = NoOutcomes
        .restore(&append(Table::Filter, "INPUT", "-j ACCEPT"))
        .unwrap_err();
    for unknown in [
        killed,
        missing,
        refused(whole(), RefusedKind::Other, Some(1)),
        refused(Refused::Table(Table::Nat), RefusedKind::Other, None),
    ] {
        assert!(unknown.is_outcome_unknown(), "{unknown:?}");
    }
    let locked = Error::Locked {
        waited: Duration::ZERO,
        holder: None,
    };
    for known in [
        locked,
        refused(whole(), RefusedKind::PermissionDenied, Some(4)),
        refused(Refused::Table(Table::Nat), RefusedKind::Other, Some(1)),
    ] {
        assert!(!known.is_outcome_unknown(), "{known:?}");
    }
}
