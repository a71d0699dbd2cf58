//! The error of a refused restore: the edit, the reason, and the tables that were changed before it.

use super::refusal_search::{self, RefusalSearch};
use super::restore::Mode;
use super::tool_message::{self, Location, ToolMessage};
use super::{Client, Iptables};
use crate::apply::apply;
use crate::error::{Error, Refused, RefusedKind};
use crate::restore::{Edit, Restore};
use crate::runner::Completion;
use crate::save::Save;
use crate::table::Table;

impl Client {
    pub(super) fn refusal(&mut self, restore: &Restore, completion: &Completion, mode: Mode) -> Error {
        let mut message = tool_message::read(completion);
        let mut location = tool_message::locate(restore, &message);
        if let Location::Edit(table, at) = location {
            self.explain(restore, table, at, &mut message);
        }
        if let (Location::Table(table), Mode::Commit) = (&location, mode)
            && let Some(at) = self.search_refused_edit(restore, *table)
        {
            location = Location::Edit(*table, at);
        }
        let edits = |table: Table| {
            restore
                .tables()
                .find(|(other, _)| *other == table)
                .map_or(&[][..], |(_, edits): (_, &[Edit])| edits)
        };
        let text = match location {
            Location::Edit(..) | Location::Table(_) => message.reason(),
            Location::Unknown => message.text,
        };
        let (refused, applied) = match location {
            Location::Edit(table, at) => {
                let refused = edits(table)
                    .get(at)
                    .map_or(Refused::Table(table), |edit| Refused::Edit {
                        table,
                        edit: edit.clone(),
                    });
                (refused, restore.tables_before(table))
            }
            Location::Table(table) => (Refused::Table(table), restore.tables_before(table)),
            Location::Unknown => (Refused::Whole(restore.family), Vec::new()),
        };
        Error::Refused {
            tool: self.program(restore.family, "restore"),
            refused: Box::new(refused),
            kind: message.kind,
            text,
            status: completion.status,
            applied: match mode {
                Mode::Commit => applied,
                Mode::Test => Vec::new(),
            },
        }
    }

    /// Legacy reports a line without a reason. Applying the table's edits to the current table in memory gives one.
    fn explain(&mut self, restore: &Restore, table: Table, at: usize, message: &mut ToolMessage) {
        if message.kind != RefusedKind::Other {
            return;
        }
        let Ok(mut saved) = self.save(&Save::table(restore.family, table).lenient()) else {
            return;
        };
        let mut only = Restore::new(restore.family);
        only.mode = restore.mode;
        for (_, edits) in restore.tables().filter(|(other, _)| *other == table) {
            *only.table_mut(table) = edits.to_vec();
        }
        if let Err(refusal) = apply(&mut saved, &only, None)
            && refusal.edit == Some(at)
        {
            message.kind = refusal.kind;
            message.text = format!("{} ({})", message.text, refusal.reason.trim_end_matches('.'));
        }
    }

    /// Searches for the edit that the kernel refuses if the tool names only the table.
    fn search_refused_edit(&mut self, restore: &Restore, table: Table) -> Option<usize> {
        if self.refusal_search == RefusalSearch::Disabled {
            return None;
        }
        let saved = self.save(&Save::table(restore.family, table).lenient()).ok()?;
        refusal_search::search(
            restore,
            table,
            &saved,
            self.timeout,
            &mut |candidate: &Restore| {
                let text = candidate.render_checked(self.style).ok()?;
                let completion = refusal_search::in_private_namespace(|| {
                    self.start_restore(candidate, text, Mode::Commit)
                })?
                .ok()?;
                if completion.status == Some(0) {
                    return Some(refusal_search::Outcome::Accepted);
                }
                let message = tool_message::read(&completion);
                match tool_message::locate(candidate, &message) {
                    Location::Edit(_, at) => Some(refusal_search::Outcome::RefusedAt(at)),
                    _ => Some(refusal_search::Outcome::Refused),
                }
            },
        )
    }
}
