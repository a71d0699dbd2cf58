//! Inputs of `iptables-restore`.

use std::fmt;
use std::num::NonZeroU32;

use indexmap::IndexMap;
use kernlink_base::Family;

use crate::chain::ChainName;
use crate::error::Error;
use crate::matches::Match;
use crate::rule::Rule;
use crate::ruleset::{Chain, CountedRule, Ruleset};
use crate::style::Style;
use crate::table::{Counters, Policy, Table};
use crate::targets::Target;
use crate::variant::tool;
use crate::wire::render::render_edit;

/// The input of one `iptables-restore` of one family: edits of one or more tables.
///
/// Each table is changed atomically. Several tables are changed one after the other, in the order in which they are first named, so
/// name tables first whose changes are harmless without the rest.
#[derive(Clone, Debug)]
pub struct Restore {
    /// `iptables-restore` or `ip6tables-restore`.
    pub family: Family,
    /// What happens to other chains and rules of the tables.
    pub mode: RestoreMode,
    tables: IndexMap<Table, Vec<Edit>>,
}

impl PartialEq for Restore {
    /// Includes the order of the tables.
    fn eq(&self, other: &Self) -> bool {
        let parts = |restore: &Restore| (restore.family, restore.mode);
        parts(self) == parts(other) && self.tables.as_slice() == other.tables.as_slice()
    }
}

impl Eq for Restore {}

/// What happens to chains and rules of a table that an input does not name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RestoreMode {
    /// They are kept (`--noflush`). A declaration flushes the chain unless it is built in.
    Keep,
    /// They are deleted: a table contains only what its edits create.
    Replace,
}

/// One line of restore input.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Edit {
    /// `:CHAIN POLICY [packets:bytes]`: create or flush the chain; of a built-in chain, set policy and counters.
    Declare {
        /// The chain.
        chain: ChainName,
        /// Its policy; `None` (`-`) for chains that are not built in.
        policy: Option<Policy>,
        /// Counters of the policy.
        counters: Counters,
    },
    /// `-N CHAIN`: create the chain, which must not exist.
    NewChain {
        /// The chain.
        chain: ChainName,
    },
    /// `-A CHAIN RULE`: append a rule.
    Append {
        /// The chain.
        chain: ChainName,
        /// The rule.
        rule: Rule,
        /// Its initial counters; `None` for zero.
        counters: Option<Counters>,
    },
    /// `-I CHAIN [POSITION] RULE`: insert a rule before the rule at `position`.
    Insert {
        /// The chain.
        chain: ChainName,
        /// Counted from 1; `None` means 1.
        position: Option<NonZeroU32>,
        /// The rule.
        rule: Rule,
    },
    /// `-D CHAIN RULE`: delete the first equal rule.
    Delete {
        /// The chain.
        chain: ChainName,
        /// The rule.
        rule: Rule,
    },
    /// `-D CHAIN POSITION`: delete the rule at `position`.
    DeleteAt {
        /// The chain.
        chain: ChainName,
        /// Counted from 1.
        position: NonZeroU32,
    },
    /// `-F CHAIN`: delete all rules of the chain.
    Flush {
        /// The chain.
        chain: ChainName,
    },
    /// `-X CHAIN`: delete the chain, which must be empty and not be referred to.
    DeleteChain {
        /// The chain.
        chain: ChainName,
    },
}

impl Edit {
    /// `:CHAIN - [0:0]`.
    #[must_use]
    pub fn declare(chain: ChainName) -> Self {
        Edit::Declare {
            chain,
            policy: None,
            counters: Counters::default(),
        }
    }

    /// `-A CHAIN RULE`.
    #[must_use]
    pub fn append(chain: ChainName, rule: Rule) -> Self {
        Edit::Append {
            chain,
            rule,
            counters: None,
        }
    }

    /// `-I CHAIN RULE`: at the top.
    #[must_use]
    pub fn insert(chain: ChainName, rule: Rule) -> Self {
        Edit::Insert {
            chain,
            position: None,
            rule,
        }
    }

    /// `-D CHAIN RULE`.
    #[must_use]
    pub fn delete(chain: ChainName, rule: Rule) -> Self {
        Edit::Delete { chain, rule }
    }

    /// `-X CHAIN`.
    #[must_use]
    pub fn delete_chain(chain: ChainName) -> Self {
        Edit::DeleteChain { chain }
    }

    /// The chain it changes.
    #[must_use]
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

    /// Refuses values that the tools would not accept or would parse differently.
    pub(crate) fn check(&self, table: Table) -> Result<(), Error> {
        if let Edit::Declare {
            chain,
            policy: Some(_),
            ..
        } = self
            && !table.is_builtin(chain)
        {
            return Err(Error::invalid(
                "policy",
                chain.as_str(),
                "only built-in chains have a policy",
            ));
        }
        let Some(rule) = self.rule() else { return Ok(()) };
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

    /// The option of its line: `-A` of an append; `:` of a declaration.
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

    /// The rule that it adds or deletes; `None` for other edits.
    #[must_use]
    pub fn rule(&self) -> Option<&Rule> {
        match self {
            Edit::Append { rule, .. } | Edit::Insert { rule, .. } | Edit::Delete { rule, .. } => Some(rule),
            _ => None,
        }
    }
}

impl Restore {
    /// An input without tables, in mode [`RestoreMode::Keep`].
    #[must_use]
    pub fn new(family: Family) -> Self {
        Restore {
            family,
            mode: RestoreMode::Keep,
            tables: IndexMap::new(),
        }
    }

    /// The input after which each table of `ruleset` contains exactly the chains and rules of `ruleset`.
    #[must_use]
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

    /// Appends an edit of `table`.
    #[must_use]
    pub fn with(mut self, table: Table, edit: Edit) -> Self {
        self.push(table, edit);
        self
    }

    /// Appends an edit of `table`. A new table is the last one.
    pub fn push(&mut self, table: Table, edit: Edit) {
        self.table_mut(table).push(edit);
    }

    /// The edits of `table`. A new table is the last one.
    pub fn table_mut(&mut self, table: Table) -> &mut Vec<Edit> {
        self.tables.entry(table).or_default()
    }

    /// The tables with their edits, both in order.
    #[must_use]
    pub fn tables(&self) -> impl ExactSizeIterator<Item = (Table, &[Edit])> {
        self.tables
            .iter()
            .map(|(table, edits)| (*table, edits.as_slice()))
    }

    /// Whether no table has an edit and none is flushed.
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

    /// The tables in the rendered text: those that have edits or are flushed.
    fn sections(&self) -> impl Iterator<Item = (&Table, &Vec<Edit>)> {
        self.tables
            .iter()
            .filter(|(_, edits)| self.mode == RestoreMode::Replace || !edits.is_empty())
    }

    /// The text of the input.
    ///
    /// One line for each edit. The line numbers that the tools report include `*table` and `COMMIT`. In mode [`RestoreMode::Keep`]
    /// tables without edits are left out.
    #[must_use]
    pub fn render(&self, style: Style) -> String {
        let mut out = String::new();
        for (table, edits) in self.sections() {
            begin_section(&mut out, *table);
            for edit in edits {
                render_edit(&mut out, edit, style);
            }
            out.push_str(END_OF_SECTION);
        }
        out
    }

    /// The text of the input, checked for what the tools can parse.
    ///
    /// # Errors
    ///
    /// [`Error::TooLong`] if a line is longer than [`Restore::LINE_LIMIT`], which the tools would parse as two
    /// lines, or has more arguments than [`Restore::ARGUMENT_LIMIT`]; [`Error::Invalid`] if a set reference has no or too many
    /// directions, or a chain that is not built in is declared with a policy.
    pub fn render_checked(&self, style: Style) -> Result<String, Error> {
        for (table, edits) in &self.tables {
            for edit in edits {
                edit.check(*table)?;
            }
        }
        let text = self.render(style);
        check_lines(&text)?;
        Ok(text)
    }

    /// Longest line in bytes, without its line feed. Source: `iptables/iptables-restore.c`, 1.8.9.
    pub const LINE_LIMIT: usize = 10_238;
    /// Most arguments in a line, where each word within quotes counts as one. Source: `iptables/xshared.h`, 1.8.9.
    pub const ARGUMENT_LIMIT: usize = 245;

    /// The meaning of a line of the rendered text, counted from 1; `None` after its end.
    #[must_use]
    pub fn line(&self, line: usize) -> Option<Line<'_>> {
        let mut before = 0;
        for (table, edits) in self.sections() {
            let within = line.checked_sub(before + 1)?;
            if within <= edits.len() + 1 {
                let edit = within
                    .checked_sub(1)
                    .and_then(|index| Some((index, edits.get(index)?)));
                return Some(match edit {
                    Some((index, edit)) => Line::Edit {
                        table: *table,
                        index,
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

/// The last line of the text of a table.
pub(crate) const END_OF_SECTION: &str = "COMMIT\n";

/// Appends the first line of the text of a table.
pub(crate) fn begin_section(out: &mut String, table: Table) {
    out.push('*');
    out.push_str(table.as_str());
    out.push('\n');
}

/// Refuses lines that the tools would not parse as one.
pub(crate) fn check_lines(text: &str) -> Result<(), Error> {
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
        if line.len() > Restore::LINE_LIMIT {
            let constant = "buffer of xtables_restore_main - 2";
            return too_long(line.len(), Restore::LINE_LIMIT, constant);
        }
        // Only a long line can contain many arguments.
        if line.len() > 2 * Restore::ARGUMENT_LIMIT {
            let arguments = line.split([' ', '\t']).count();
            if arguments > Restore::ARGUMENT_LIMIT {
                let constant = "MAX_ARGC less the arguments that the tool adds";
                return too_long(arguments, Restore::ARGUMENT_LIMIT, constant);
            }
        }
    }
    Ok(())
}

/// A line of a rendered [`Restore`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line<'r> {
    /// `*TABLE`
    Table(Table),
    /// An edit.
    Edit {
        /// The table.
        table: Table,
        /// Its index among the edits of the table, from 0.
        index: usize,
        /// The edit.
        edit: &'r Edit,
    },
    /// `COMMIT` of this table.
    Commit(Table),
}

impl fmt::Display for Edit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = String::new();
        render_edit(&mut text, self, Style::SAVE);
        f.write_str(text.trim_end())
    }
}

impl fmt::Display for Restore {
    /// As a shell command with a here-document.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mode = match self.mode {
            RestoreMode::Keep => " --noflush",
            RestoreMode::Replace => "",
        };
        let tool = tool(self.family);
        write!(
            f,
            "{tool}-restore{mode} --counters <<'EOF'\n{}EOF",
            self.render(Style::RESTORE)
        )
    }
}
