//! What the tools of iptables commit by itself.

use kernlink_iptables_restore::{Operation, Restore};

/// The parts of an operation: each table of an input is committed by itself.
pub(crate) fn by_table(operation: &Operation) -> Vec<Operation> {
    let Operation::Restore(restore) = operation else {
        return vec![operation.clone()];
    };
    let tables = restore.tables().map(|(table, edits)| {
        let mut part = Restore::new(restore.family);
        part.table_mut(table).extend_from_slice(edits);
        Operation::from(part)
    });
    tables.collect()
}
