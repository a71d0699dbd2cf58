//! `iptables -S`.

use std::fmt::Write;

use kernlink_base::Family;

use super::{Client, Iptables, tool_message};
use crate::chain::ChainName;
use crate::error::{Error, Refused, RefusedKind};
use crate::ruleset::{Chain, Ruleset};
use crate::save::Save;
use crate::table::Table;

impl Client {
    pub(super) fn run_list_chain(
        &mut self,
        family: Family,
        table: Table,
        chain: &ChainName,
    ) -> Result<Option<Chain>, Error> {
        let listed = self.run_iptables(family, table, "-S", chain, &[])?;
        if listed.status == Some(0) {
            let listing = String::from_utf8_lossy(&listed.stdout);
            let saved = Ruleset::parse_lenient(&as_saved(&listing, table, chain));
            return Ok(saved.chain(table, chain).cloned());
        }
        if let Some(locked) = self.locked(&listed) {
            return Err(locked);
        }
        let message = tool_message::read(&listed);
        match message.kind {
            RefusedKind::NotFound => Ok(None),
            // iptables-nft also reports a chain that does not exist as one that it does not support.
            RefusedKind::Unreadable => from_saved_table(self, family, table, chain),
            kind => Err(Error::Refused {
                tool: self.iptables_program(family),
                refused: Box::new(Refused::Whole(family)),
                kind,
                text: message.text,
                status: listed.status,
                applied: Vec::new(),
            }),
        }
    }
}

/// Reads the whole table.
pub(super) fn from_saved_table<I: Iptables + ?Sized>(
    iptables: &mut I,
    family: Family,
    table: Table,
    chain: &ChainName,
) -> Result<Option<Chain>, Error> {
    let saved = iptables.save(&Save::table(family, table).lenient())?;
    match saved.unreadable_tables.get(&table) {
        Some(line) => Err(line.to_error()),
        None => Ok(saved.chain(table, chain).cloned()),
    }
}

/// The listing of a chain in the format of `iptables-save`: the lines of rules are the same, that of the chain is not.
fn as_saved(listing: &str, table: Table, chain: &ChainName) -> String {
    let mut saved = format!("*{table}\n");
    for line in listing.lines() {
        let policy = line.strip_prefix("-P ").and_then(|line| line.split(' ').nth(1));
        // Writing to a string cannot fail.
        let _ = if let Some(policy) = policy {
            writeln!(saved, ":{chain} {policy} [0:0]")
        } else if line.starts_with("-N ") {
            writeln!(saved, ":{chain} - [0:0]")
        } else {
            writeln!(saved, "{line}")
        };
    }
    saved.push_str("COMMIT\n");
    saved
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn listings_of_built_in_and_other_chains_are_parsed() {
        let read = |listing: &str, chain: &str| {
            let chain: ChainName = chain.parse().unwrap();
            let saved = Ruleset::parse_lenient(&as_saved(listing, Table::Nat, &chain));
            saved.chain(Table::Nat, &chain).cloned()
        };
        let listing =
            "-P OUTPUT ACCEPT\n-A OUTPUT -m comment --comment \"a b\" -j MINE\n-A OUTPUT -m nosuch --x y\n";
        let chain = read(listing, "OUTPUT").unwrap();
        assert_eq!(chain.rules().len(), 2, "a rule with an unknown match is one too");
        assert_eq!(
            read("-N MINE\n", "MINE").map(|chain| chain.rules().len()),
            Some(0)
        );
        assert_eq!(read("", "MINE"), None);
    }
}
