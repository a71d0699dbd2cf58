//! Parsing the output of `iptables-save`.

use std::str::FromStr;

use crate::chain::ChainName;
use crate::error::Error;
use crate::rule::Rule;
use crate::ruleset::{Chain, CountedRule, Ruleset, TableRules};
use crate::table::{Counters, Policy, Table};
use crate::unreadable::UnreadableLine;
use crate::wire::token::{Token, split};

impl FromStr for Ruleset {
    type Err = Error;

    /// Parses the output of `iptables-save`, nft or legacy, with or without counters (`-c`).
    ///
    /// Lines that start with `#` are ignored, except the one by which `iptables-nft-save` reports a table that it does not print;
    /// the table is then [unreadable](Ruleset::is_unreadable). Matches and targets without a type are kept verbatim.
    ///
    /// # Errors
    ///
    /// [`Error::Parse`] with the line. [`Ruleset::parse_lenient`] skips it.
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
    format!("table {table} has no COMMIT")
}

/// The table that `iptables-nft-save` reports as not printed. Source: `do_output` in `iptables/xtables-save.c`, iptables 1.8.9.
fn incompatible_table(comment: &str) -> Option<Table> {
    let name = comment.strip_prefix("# Table `")?;
    name.split_once("' is incompatible")?.0.parse().ok()
}

/// More tokens than most rules have.
const USUAL_TOKENS: usize = 24;

/// The lines parsed so far.
pub(crate) struct Reader {
    pub(crate) ruleset: Ruleset,
    /// The table whose COMMIT is still missing.
    pub(crate) table: Option<(Table, TableRules)>,
    /// Index of the chain of the previous rule: rules are listed chain by chain.
    pub(crate) chain: usize,
}

impl Reader {
    pub(crate) fn new() -> Self {
        Reader {
            ruleset: Ruleset::new(),
            table: None,
            chain: 0,
        }
    }

    /// Parses one line. The error is the reason.
    pub(crate) fn line(&mut self, line: &str, number: usize) -> Result<(), String> {
        let start = line.as_bytes().first();
        match (start, &mut self.table) {
            (None, _) => Ok(()),
            (Some(b'#'), _) => {
                if let Some(table) = incompatible_table(line) {
                    let line = UnreadableLine {
                        line: number,
                        text: line.into(),
                        reason: "the tool does not print this table".into(),
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
                    return Err("duplicate table".into());
                }
                self.table = Some((table, TableRules::new()));
                Ok(())
            }
            (Some(b'*'), Some(_)) => Err("table starts before the COMMIT of the previous one".into()),
            (Some(_), None) => Err("line is outside a table".into()),
            (Some(b':'), Some((_, rules))) => {
                let (name, chain) = declaration(line.get(1..).unwrap_or_default())?;
                if rules.chain(&name).is_some() {
                    return Err("duplicate chain".into());
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

    fn rule(&mut self, line: &str) -> Result<(), String> {
        let (counters, rest) = match line.strip_prefix('[').and_then(|_| line.split_once(' ')) {
            Some((counters, rest)) => (
                Some(counters.parse::<Counters>().map_err(|error| error.to_string())?),
                rest,
            ),
            None => (None, line),
        };
        let rest = rest
            .strip_prefix("-A ")
            .ok_or("expected a table, a chain, a rule or COMMIT")?;
        let mut tokens: Vec<Token<'_>> = Vec::with_capacity(USUAL_TOKENS);
        split(rest, &mut tokens)?;
        let (name, tokens) = tokens.split_first().ok_or("rule without a chain")?;
        let name = ChainName::from_saved(&name.text).map_err(|error| error.to_string())?;
        let rule = Rule::from_tokens(tokens);
        let rules = self.table.as_mut().map(|(_, rules)| rules);
        let chain = rules
            .and_then(|rules| rules.chain_mut_with_hint(&name, &mut self.chain))
            .ok_or("rule of an undeclared chain")?;
        chain.rules.push(CountedRule { rule, counters });
        Ok(())
    }
}

/// Parses `NAME POLICY [packets:bytes]`.
fn declaration(text: &str) -> Result<(ChainName, Chain), String> {
    let mut fields = text.split_ascii_whitespace();
    let name = ChainName::from_saved(fields.next().unwrap_or_default()).map_err(|error| error.to_string())?;
    let policy = match fields.next() {
        Some("-") => None,
        Some(policy) => Some(policy.parse::<Policy>().map_err(|error| error.to_string())?),
        None => return Err("chain without a policy or '-'".into()),
    };
    let counters = match fields.next() {
        Some(counters) => counters.parse().map_err(|error: Error| error.to_string())?,
        None => Counters::default(),
    };
    if fields.next().is_some() {
        return Err("expected a chain, a policy and counters only".into());
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
