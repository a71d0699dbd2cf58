//! What one `iptables-restore` is given.

use std::fmt;
use std::num::NonZeroU32;

use indexmap::IndexMap;

use crate::chain::ChainName;
use crate::error::Error;
use crate::family::Family;
use crate::matches::Match;
use crate::rule::Rule;
use crate::ruleset::{Chain, CountedRule, Ruleset, TableRules};
use crate::table::{Counters, Policy, Table};
use crate::targets::Target;
use crate::wire::render::Style;

/// The input of one `iptables-restore` of one family: edits of one or more tables.
///
/// Each table is changed at once or not at all; several tables are changed one after the other, in the
/// order in which they are named here. So put first what is harmless without the rest: the targets of a
/// service before the rules that lead to them.
#[derive(Clone, Debug)]
pub struct Restore {
    /// Which tool.
    pub family: Family,
    /// Whether what the tables hold beside the edits stays.
    pub mode: RestoreMode,
    tables: IndexMap<Table, Vec<Edit>>,
}

impl PartialEq for Restore {
    /// The order of the tables counts.
    fn eq(&self, other: &Self) -> bool {
        let parts = |restore: &Restore| (restore.family, restore.mode);
        parts(self) == parts(other) && self.tables.as_slice() == other.tables.as_slice()
    }
}

impl Eq for Restore {}

/// What happens to chains and rules that an input does not name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RestoreMode {
    /// They stay (`--noflush`). A chain that is declared is emptied, a built-in one is not.
    Keep,
    /// They go: each table named becomes exactly what its edits make.
    Replace,
}

/// One line of restore input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Edit {
    /// `:CHAIN POLICY [packets:bytes]`: make the chain if it is not there, empty it if it is not a
    /// built-in one, set policy and counters of a built-in one.
    Declare {
        /// The chain.
        chain: ChainName,
        /// Its policy; none (`-`) for chains other than the built-in ones.
        policy: Option<Policy>,
        /// Counters of the policy.
        counters: Counters,
    },
    /// `-N CHAIN`: make the chain, which must not be there.
    NewChain {
        /// The chain.
        chain: ChainName,
    },
    /// `-A CHAIN RULE`: put at the end.
    Append {
        /// The chain.
        chain: ChainName,
        /// The rule.
        rule: Rule,
        /// Counters it starts with; none for zero.
        counters: Option<Counters>,
    },
    /// `-I CHAIN [POSITION] RULE`: put before the rule at `position`.
    Insert {
        /// The chain.
        chain: ChainName,
        /// Counted from 1; none (1) for the first place.
        position: Option<NonZeroU32>,
        /// The rule.
        rule: Rule,
    },
    /// `-D CHAIN RULE`: take out the first rule that is the same.
    Delete {
        /// The chain.
        chain: ChainName,
        /// The rule.
        rule: Rule,
    },
    /// `-D CHAIN POSITION`: take out the rule at `position`.
    DeleteAt {
        /// The chain.
        chain: ChainName,
        /// Counted from 1.
        position: NonZeroU32,
    },
    /// `-F CHAIN`: take out all rules.
    Flush {
        /// The chain.
        chain: ChainName,
    },
    /// `-X CHAIN`: delete the chain, which must be empty and not referred to.
    DeleteChain {
        /// The chain.
        chain: ChainName,
    },
}

impl Edit {
    /// `:CHAIN - [0:0]`.
    pub fn declare(chain: ChainName) -> Self {
        Edit::Declare {
            chain,
            policy: None,
            counters: Counters::default(),
        }
    }

    /// `-A CHAIN RULE`.
    pub fn append(chain: ChainName, rule: Rule) -> Self {
        Edit::Append {
            chain,
            rule,
            counters: None,
        }
    }

    /// `-I CHAIN RULE`: in the first place.
    pub fn insert(chain: ChainName, rule: Rule) -> Self {
        Edit::Insert {
            chain,
            position: None,
            rule,
        }
    }

    /// `-D CHAIN RULE`.
    pub fn delete(chain: ChainName, rule: Rule) -> Self {
        Edit::Delete { chain, rule }
    }

    /// `-X CHAIN`.
    pub fn delete_chain(chain: ChainName) -> Self {
        Edit::DeleteChain { chain }
    }

    /// The chain it changes.
    pub fn chain(&self) -> &ChainName {
        match self {
            Edit::Declare { chain, .. }
            | Edit::NewChain { chain }
            | Edit::Append { chain, .. }
            | Edit::Insert { chain, .. }
            | Edit::Delete { chain, .. }
            | Edit::DeleteAt { chain, .. }
            | Edit::Flush { chain }
            | Edit::DeleteChain { chain } => chain,
        }
    }

    /// The option that begins it: `-A` of an append; `:` of a declaration.
    pub(crate) fn option(&self) -> &'static str {
        match self {
            Edit::Declare { .. } => ":",
            Edit::NewChain { .. } => "-N",
            Edit::Append { .. } => "-A",
            Edit::Insert { .. } => "-I",
            Edit::Delete { .. } | Edit::DeleteAt { .. } => "-D",
            Edit::Flush { .. } => "-F",
            Edit::DeleteChain { .. } => "-X",
        }
    }

    /// The rule it writes or takes out, if it names one.
    pub fn rule(&self) -> Option<&Rule> {
        match self {
            Edit::Append { rule, .. } | Edit::Insert { rule, .. } | Edit::Delete { rule, .. } => Some(rule),
            _ => None,
        }
    }

    /// Appends the line, with its line feed.
    pub(crate) fn render_into(&self, out: &mut String, style: Style) {
        let mut command = |option: &str, chain: &ChainName| {
            out.push_str(option);
            out.push_str(chain.as_str());
        };
        match self {
            Edit::Declare {
                chain,
                policy,
                counters,
            } => {
                command(":", chain);
                out.push_str(match policy {
                    Some(Policy::Accept) => " ACCEPT ",
                    Some(Policy::Drop) => " DROP ",
                    None => " - ",
                });
                out.push_str(&counters.to_string());
            }
            Edit::Append {
                chain,
                rule,
                counters,
            } => return append(out, chain, rule, *counters, style),
            Edit::Insert {
                chain,
                position,
                rule,
            } => {
                command("-I ", chain);
                if let Some(position) = position {
                    out.push(' ');
                    out.push_str(&position.to_string());
                }
                rule.render_into(out, style);
            }
            Edit::NewChain { chain } => command("-N ", chain),
            Edit::Delete { chain, rule } => {
                command("-D ", chain);
                rule.render_into(out, style);
            }
            Edit::DeleteAt { chain, position } => {
                command("-D ", chain);
                out.push(' ');
                out.push_str(&position.to_string());
            }
            Edit::Flush { chain } => command("-F ", chain),
            Edit::DeleteChain { chain } => command("-X ", chain),
        }
        out.push('\n');
    }
}

fn append(out: &mut String, chain: &ChainName, rule: &Rule, counters: Option<Counters>, style: Style) {
    if let Some(counters) = counters {
        out.push_str(&counters.to_string());
        out.push(' ');
    }
    out.push_str("-A ");
    out.push_str(chain.as_str());
    rule.render_into(out, style);
    out.push('\n');
}

pub(crate) fn render_table(out: &mut String, table: Table, rules: &TableRules, style: Style) {
    out.push('*');
    out.push_str(table.as_str());
    out.push('\n');
    for (name, chain) in rules.chains() {
        let Chain { policy, counters, .. } = chain;
        Edit::Declare {
            chain: *name,
            policy: *policy,
            counters: *counters,
        }
        .render_into(out, style);
    }
    for (name, chain) in rules.chains() {
        for CountedRule { rule, counters } in &chain.rules {
            append(out, name, rule, *counters, style);
        }
    }
    out.push_str("COMMIT\n");
}

impl Restore {
    /// An input without tables that keeps what is there.
    pub fn new(family: Family) -> Self {
        Restore {
            family,
            mode: RestoreMode::Keep,
            tables: IndexMap::new(),
        }
    }

    /// The input that makes each table of `ruleset` exactly what it is there.
    pub fn replace(family: Family, ruleset: &Ruleset) -> Self {
        let mut restore = Restore {
            mode: RestoreMode::Replace,
            ..Restore::new(family)
        };
        for (table, rules) in ruleset.tables() {
            let edits = restore.table_mut(table);
            for (name, Chain { policy, counters, .. }) in rules.chains() {
                edits.push(Edit::Declare {
                    chain: *name,
                    policy: *policy,
                    counters: *counters,
                });
            }
            for (name, chain) in rules.chains() {
                edits.extend(
                    chain
                        .rules
                        .iter()
                        .map(|CountedRule { rule, counters }| Edit::Append {
                            chain: *name,
                            rule: rule.clone(),
                            counters: *counters,
                        }),
                );
            }
        }
        restore
    }

    /// The input with one more edit of `table`, after those it has.
    pub fn with(mut self, table: Table, edit: Edit) -> Self {
        self.push(table, edit);
        self
    }

    /// Adds an edit of `table` after those it has; a table not named yet goes to the end.
    pub fn push(&mut self, table: Table, edit: Edit) {
        self.table_mut(table).push(edit);
    }

    /// The edits of `table`, which goes to the end if it is not named yet.
    pub fn table_mut(&mut self, table: Table) -> &mut Vec<Edit> {
        self.tables.entry(table).or_default()
    }

    /// The tables in order, each with its edits in order.
    pub fn tables(&self) -> impl ExactSizeIterator<Item = (Table, &[Edit])> {
        self.tables
            .iter()
            .map(|(table, edits)| (*table, edits.as_slice()))
    }

    /// Whether it changes nothing: no table has an edit, and none is emptied.
    pub fn is_empty(&self) -> bool {
        match self.mode {
            RestoreMode::Keep => self.tables.values().all(Vec::is_empty),
            RestoreMode::Replace => self.tables.is_empty(),
        }
    }

    /// Tables of the input that are written before `table`.
    pub(crate) fn tables_before(&self, table: Table) -> Vec<Table> {
        self.sections()
            .map(|(before, _)| *before)
            .take_while(|before| *before != table)
            .collect()
    }

    /// The tables that are written: all that are emptied or have edits.
    fn sections(&self) -> impl Iterator<Item = (&Table, &Vec<Edit>)> {
        self.tables
            .iter()
            .filter(|(_, edits)| self.mode == RestoreMode::Replace || !edits.is_empty())
    }

    /// The text the tool is given, in `style`.
    ///
    /// One line for each edit; the line numbers that the tools report count `*table` and `COMMIT` too. A
    /// table without edits is not named where what is there stays.
    pub fn render(&self, style: Style) -> String {
        let mut out = String::new();
        for (table, edits) in self.sections() {
            out.push('*');
            out.push_str(table.as_str());
            out.push('\n');
            for edit in edits {
                edit.render_into(&mut out, style);
            }
            out.push_str("COMMIT\n");
        }
        out
    }

    /// The text, checked against what the tools can read at all.
    ///
    /// # Errors
    ///
    /// [`Error::TooLong`] if a line is longer than [`Restore::LINE_LIMIT`], which the tools would read as two
    /// lines, or has more words than they take; [`Error::Invalid`] if a set reference has no or too many
    /// directions, or a declared chain has a policy that it cannot have.
    pub fn render_checked(&self, style: Style) -> Result<String, Error> {
        for (table, edits) in &self.tables {
            for edit in edits {
                check(*table, edit)?;
            }
        }
        let text = self.render(style);
        for line in text.lines() {
            let too_long = |length, limit, constant| {
                Err(Error::TooLong {
                    field: "line",
                    value: line.into(),
                    length,
                    limit,
                    constant,
                })
            };
            if line.len() > Self::LINE_LIMIT {
                return too_long(line.len(), Self::LINE_LIMIT, "buffer of xtables_restore_main - 2");
            }
            // Only a long line can hold many words.
            if line.len() > 2 * Self::WORD_LIMIT {
                let words = line.split([' ', '\t']).count();
                if words > Self::WORD_LIMIT {
                    return too_long(words, Self::WORD_LIMIT, "MAX_ARGC less the words the tool adds");
                }
            }
        }
        Ok(text)
    }

    /// Longest line in bytes, its line feed not counted. Source: `iptables/iptables-restore.c`, 1.8.9.
    pub const LINE_LIMIT: usize = 10_238;
    /// Most words in a line, those between quotes counted one by one. Source: `iptables/xshared.h`, 1.8.9.
    pub const WORD_LIMIT: usize = 245;

    /// What line `line` of the rendered text holds, counted from 1; none past its end.
    pub fn line(&self, line: usize) -> Option<Line<'_>> {
        let mut before = 0;
        for (table, edits) in self.sections() {
            let within = line.checked_sub(before + 1)?;
            if within <= edits.len() + 1 {
                let edit = within
                    .checked_sub(1)
                    .and_then(|place| Some((place, edits.get(place)?)));
                return Some(match edit {
                    Some((place, edit)) => Line::Edit {
                        table: *table,
                        place,
                        edit,
                    },
                    None if within == 0 => Line::Table(*table),
                    None => Line::Commit(*table),
                });
            }
            before += edits.len() + 2;
        }
        None
    }
}

/// A line of a rendered [`Restore`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line<'r> {
    /// `*TABLE`
    Table(Table),
    /// An edit.
    Edit {
        /// The table it belongs to.
        table: Table,
        /// Its place among the edits of the table, counted from 0.
        place: usize,
        /// The edit.
        edit: &'r Edit,
    },
    /// `COMMIT` of this table.
    Commit(Table),
}

/// Refuses what a value may hold and the tools would not take, or not as it is meant.
pub(crate) fn check(table: Table, edit: &Edit) -> Result<(), Error> {
    if let Edit::Declare {
        chain,
        policy: Some(_),
        ..
    } = edit
        && !table.is_builtin(chain)
    {
        return Err(Error::invalid(
            "policy",
            chain.as_str(),
            "is given for a chain that is not built in",
        ));
    }
    let Some(rule) = edit.rule() else { return Ok(()) };
    for test in &rule.matches {
        if let Match::Set(set) = test {
            set.set.value().check()?;
        }
    }
    match &rule.target {
        Some(Target::Set(set)) => set.set.check(),
        _ => Ok(()),
    }
}

impl fmt::Display for Edit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        self.render_into(&mut text, Style::SAVE);
        f.write_str(text.trim_end())
    }
}

impl fmt::Display for Restore {
    /// As a shell would run it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mode = match self.mode {
            RestoreMode::Keep => " --noflush",
            RestoreMode::Replace => "",
        };
        let tool = self.family.tool();
        write!(
            f,
            "{tool}-restore{mode} --counters <<'EOF'\n{}EOF",
            self.render(Style::RESTORE)
        )
    }
}
