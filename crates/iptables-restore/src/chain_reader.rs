//! Tables that are read chain by chain.

use crate::chain::ChainName;
use crate::ruleset::{Chain, Ruleset};
use crate::save::Save;
use crate::table::Table;

/// Receives the chains of tables while these are read, so that a rule set need not be in memory as a whole.
pub trait ChainReader {
    /// The chains of a table follow. What was received of this table for this request before is not valid: the tool failed, and runs again.
    fn begin(&mut self, request: &Save, table: Table);

    /// A chain with all of its rules. What is returned is the chain in the result; with `None` the result is without it.
    ///
    /// A table may turn out to be [unreadable](Ruleset::is_unreadable) after its chains were received, and the request may fail: the result of
    /// the request decides.
    fn chain(&mut self, request: &Save, table: Table, name: &ChainName, chain: Chain) -> Option<Chain>;
}

/// Keeps all chains.
pub(crate) struct KeepAll;

impl ChainReader for KeepAll {
    fn begin(&mut self, _request: &Save, _table: Table) {}

    fn chain(&mut self, _request: &Save, _table: Table, _name: &ChainName, chain: Chain) -> Option<Chain> {
        Some(chain)
    }
}

impl Ruleset {
    /// Passes all chains to a reader, and keeps what it returns.
    pub(crate) fn pass(mut self, request: &Save, reader: &mut dyn ChainReader) -> Self {
        let tables: Vec<Table> = self.tables().map(|(table, _)| table).collect();
        for table in tables {
            reader.begin(request, table);
            self.table_mut(table)
                .pass(|name, chain| reader.chain(request, table, name, chain));
        }
        self
    }
}
