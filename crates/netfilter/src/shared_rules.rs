//! A fake of iptables that several processes share, and whose calls can have faults.

use std::sync::MutexGuard;

use kernlink_engine::contract::Calls;
use kernlink_host::Shared;
use kernlink_iptables_restore::{Error, Iptables, Operation, Refused, RefusedKind, Ruleset, Save};

/// Why a call with a fault fails.
const FAULT: &str = "a fault of the contract";

/// A fake of iptables that clones share. Each operation and each reading is a call.
#[derive(Debug, Default)]
pub struct SharedRules<T>(Shared<T>);

impl<T> Clone for SharedRules<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> SharedRules<T> {
    /// This fake, with these calls.
    #[must_use]
    pub fn new(fake: T, calls: &Calls) -> Self {
        Self(Shared::new(fake, calls))
    }

    /// The same fake, for a test: its calls are not counted and have no faults.
    #[must_use]
    pub fn without_faults(&self) -> Self {
        Self(self.0.without_faults())
    }

    /// The fake, to look at it or to change it.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock()
    }
}

impl<T: Iptables> Iptables for SharedRules<T> {
    fn execute(&mut self, operations: &[Operation]) -> Vec<Result<(), Error>> {
        let execute = |fake: &mut T, operations: &[Operation]| fake.execute(operations);
        self.0
            .execute_each(operations, execute, refused_rules, || Error::OutcomeMissing)
    }

    fn save(&mut self, request: &Save) -> Result<Ruleset, Error> {
        let failed = || Error::custom("save", FAULT);
        let save = || self.0.lock().save(request);
        self.0.calls().read(&format!("{request:?}"), save, failed)
    }
}

/// The refusal of the first edit of an input.
fn refused_rules(operation: &Operation) -> Error {
    let edit = match operation {
        Operation::Restore(restore) => restore
            .tables()
            .find_map(|(table, edits)| Some((table, edits.first()?.clone()))),
        _ => None,
    };
    match edit {
        Some((table, edit)) => Error::Refused {
            tool: "iptables-restore".into(),
            refused: Box::new(Refused::Edit { table, edit }),
            kind: RefusedKind::Other,
            text: FAULT.into(),
            status: Some(1),
            applied: Vec::new(),
        },
        None => Error::custom(operation.to_string(), FAULT),
    }
}
