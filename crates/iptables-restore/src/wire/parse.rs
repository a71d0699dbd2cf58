//! Reading what `iptables-save` prints.

use std::str::FromStr;

use crate::chain::ChainName;
use crate::error::Error;
use crate::rule::Rule;
use crate::ruleset::{Chain, CountedRule, Ruleset, TableRules};
use crate::table::{Counters, Policy, Table};
use crate::unreadable::UnreadableLine;
use crate::wire::token::{RawWord, split};

impl FromStr for Ruleset {
    type Err = Error;

    /// Reads the output of `iptables-save`, nft or legacy, with counters (`-c`) or without.
    ///
    /// Lines that begin with `#` are passed over, but for the one by which `iptables-nft-save` says that it does not
    /// print a table, which is then [unreadable](Ruleset::is_unreadable). Matches and targets without a type are kept
    /// verbatim.
    ///
    /// # Errors
    ///
    /// [`Error::Parse`] with the line. [`Ruleset::read_tolerant`] skips such lines.
    fn from_str(text: &str) -> Result<Self, Error> {
        let mut reader = Reader::new();
        for (number, line) in text.split('\n').enumerate() {
            reader.line(line, number + 1).map_err(|reason| Error::Parse {
                line: number + 1,
                text: line.into(),
                reason,
            })?;
        }
        match reader.table {
            Some((table, _)) => Err(Error::Parse {
                line: text.lines().count(),
                text: text.lines().last().unwrap_or_default().into(),
                reason: no_commit(table),
            }),
            None => Ok(reader.ruleset),
        }
    }
}

pub(crate) fn no_commit(table: Table) -> String {
    format!("is the last, but table {table} has no COMMIT")
}

/// The table that a comment of `iptables-nft-save` says it does not print. Source: `do_output` in
/// `iptables/xtables-save.c`, iptables 1.8.9.
fn incompatible_table(comment: &str) -> Option<Table> {
    let name = comment.strip_prefix("# Table `")?;
    name.split_once("' is incompatible")?.0.parse().ok()
}

/// What has been read so far.
pub(crate) struct Reader<'t> {
    pub(crate) ruleset: Ruleset,
    /// The table whose COMMIT has not come yet.
    pub(crate) table: Option<(Table, TableRules)>,
    words: Vec<RawWord<'t>>,
    /// Where the chain of the last rule stands: saves list the rules chain by chain.
    chain: usize,
}

impl<'t> Reader<'t> {
    pub(crate) fn new() -> Self {
        Reader {
            ruleset: Ruleset::new(),
            table: None,
            words: Vec::new(),
            chain: 0,
        }
    }

    /// Reads one line; the error is what is wrong with it.
    pub(crate) fn line(&mut self, line: &'t str, number: usize) -> Result<(), String> {
        let start = line.as_bytes().first();
        match (start, &mut self.table) {
            (None, _) => Ok(()),
            (Some(b'#'), _) => {
                if let Some(table) = incompatible_table(line) {
                    let line = UnreadableLine {
                        line: number,
                        text: line.into(),
                        reason: "says that the tool does not print this table".into(),
                    };
                    self.ruleset.remove(table);
                    self.ruleset.unreadable_tables.insert(table, line);
                }
                Ok(())
            }
            (Some(b'*'), None) => {
                let table = line
                    .get(1..)
                    .unwrap_or_default()
                    .parse()
                    .map_err(|error: Error| error.to_string())?;
                if self.ruleset.table(table).is_some() {
                    return Err("names a table for the second time".into());
                }
                self.table = Some((table, TableRules::new()));
                Ok(())
            }
            (Some(b'*'), Some(_)) => Err("begins a table before the COMMIT of the one before".into()),
            (Some(_), None) => Err("stands outside a table".into()),
            (Some(b':'), Some((_, rules))) => {
                let (name, chain) = declaration(line.get(1..).unwrap_or_default())?;
                if rules.chain(&name).is_some() {
                    return Err("declares a chain for the second time".into());
                }
                rules.insert(name, chain);
                Ok(())
            }
            (Some(_), Some(_)) if line == "COMMIT" => {
                if let Some((table, rules)) = self.table.take()
                    && !self.ruleset.is_unreadable(table)
                {
                    *self.ruleset.table_mut(table) = rules;
                }
                Ok(())
            }
            (Some(_), Some(_)) => self.rule(line),
        }
    }

    fn rule(&mut self, line: &'t str) -> Result<(), String> {
        let (counters, rest) = match line.strip_prefix('[').and_then(|_| line.split_once(' ')) {
            Some((counters, rest)) => (
                Some(counters.parse::<Counters>().map_err(|error| error.to_string())?),
                rest,
            ),
            None => (None, line),
        };
        let rest = rest
            .strip_prefix("-A ")
            .ok_or("is neither a table, a chain, a rule nor COMMIT")?;
        self.words.clear();
        split(rest, &mut self.words)?;
        let (name, words) = self.words.split_first().ok_or("names no chain")?;
        let name = ChainName::found(&name.text).map_err(|error| error.to_string())?;
        let rule = Rule::read(words);
        let rules = self.table.as_mut().map(|(_, rules)| rules);
        let chain = rules
            .and_then(|rules| rules.near_mut(&name, &mut self.chain))
            .ok_or("is a rule of a chain not declared")?;
        chain.rules.push(CountedRule { rule, counters });
        Ok(())
    }
}

/// Reads `NAME POLICY [packets:bytes]`.
fn declaration(text: &str) -> Result<(ChainName, Chain), String> {
    let mut words = text.split_ascii_whitespace();
    let name = ChainName::found(words.next().unwrap_or_default()).map_err(|error| error.to_string())?;
    let policy = match words.next() {
        Some("-") => None,
        Some(policy) => Some(policy.parse::<Policy>().map_err(|error| error.to_string())?),
        None => return Err("declares a chain without a policy or '-'".into()),
    };
    let counters = match words.next() {
        Some(counters) => counters.parse().map_err(|error: Error| error.to_string())?,
        None => Counters::default(),
    };
    if words.next().is_some() {
        return Err("has more than a chain, a policy and counters".into());
    }
    Ok((
        name,
        Chain {
            policy,
            counters,
            ..Chain::default()
        },
    ))
}
