//! Tables that are read chain by chain.

use crate::chain::ChainName;
use crate::error::Error;
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

/// Passes the chains of whole rule sets, the results of these requests.
pub(crate) fn pass_chains(
    saved: Vec<Result<Ruleset, Error>>,
    requests: &[Save],
    reader: &mut dyn ChainReader,
) -> Vec<Result<Ruleset, Error>> {
    let saved = saved.into_iter().zip(requests);
    saved
        .map(|(saved, request)| saved.map(|saved| saved.pass(request, reader)))
        .collect()
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
