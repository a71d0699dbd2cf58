//! Whose fault a refusal is: from the tool's words to the edit, the reason and the tables that stand.

use super::refusal_search::{self, Trial};
use crate::apply;
use crate::client::tool_message::{self, Place, Told};
use crate::client::{Check, Command};
use crate::error::{Error, Refused, RefusedKind};
use crate::operation::{Iptables, Save};
use crate::restore::{Edit, Restore};
use crate::runner::Completion;
use crate::table::Table;

impl Command {
    /// Says what was refused, why, and what stands.
    pub(crate) fn refusal(&mut self, restore: &Restore, completion: &Completion, check: Check) -> Error {
        let mut told = tool_message::read(completion);
        let mut place = tool_message::place(restore, &told);
        if let Place::Edit(table, at) = place {
            self.explain(restore, table, at, &mut told);
        }
        if let (Place::Table(table), Check::No) = (&place, check)
            && let Some(at) = self.find_culprit(restore, *table)
        {
            place = Place::Edit(*table, at);
        }
        let edits = |wanted: Table| {
            restore
                .tables()
                .find(|(table, _)| *table == wanted)
                .map_or(&[][..], |(_, edits): (_, &[Edit])| edits)
        };
        let (refused, applied) = match place {
            Place::Edit(table, at) => {
                let refused = edits(table)
                    .get(at)
                    .map_or(Refused::Table(table), |edit| Refused::Edit {
                        table,
                        edit: edit.clone(),
                    });
                (refused, restore.tables_before(table))
            }
            Place::Table(table) => (Refused::Table(table), restore.tables_before(table)),
            Place::Unknown => (Refused::Whole(restore.family), Vec::new()),
        };
        Error::Refused {
            tool: self.program(restore.family, "restore"),
            refused: Box::new(refused),
            kind: told.kind,
            text: told.text,
            status: completion.status,
            applied: if check == Check::Only { Vec::new() } else { applied },
        }
    }

    /// Legacy gives no reason with a line; what the line would do to the tables as they are tells it.
    fn explain(&mut self, restore: &Restore, table: Table, at: usize, told: &mut Told) {
        if told.kind != RefusedKind::Other {
            return;
        }
        let Ok(mut saved) = self.save(&Save::table(restore.family, table).tolerant()) else {
            return;
        };
        let mut only = Restore::new(restore.family);
        only.mode = restore.mode;
        for (_, edits) in restore.tables().filter(|(known, _)| *known == table) {
            *only.table_mut(table) = edits.to_vec();
        }
        if let Err(refusal) = apply::apply(&mut saved, &only, None)
            && refusal.place == Some(at)
        {
            told.kind = refusal.kind;
            told.text = format!("{} ({})", told.text, refusal.reason.trim_end_matches('.'));
        }
    }

    /// Looks for the edit that the kernel refuses where the tool names only the table.
    fn find_culprit(&mut self, restore: &Restore, table: Table) -> Option<usize> {
        if self.trials == Trial::None {
            return None;
        }
        let saved = self.save(&Save::table(restore.family, table).tolerant()).ok()?;
        refusal_search::find(
            restore,
            table,
            &saved,
            self.time_limit,
            &mut |attempt: &Restore| {
                let text = attempt.render_checked(self.style).ok()?;
                let completion = refusal_search::aside(|| self.give(attempt, &text, Check::No))?.ok()?;
                if completion.status == Some(0) {
                    return Some(refusal_search::Attempt::Taken);
                }
                let told = tool_message::read(&completion);
                match tool_message::place(attempt, &told) {
                    Place::Edit(_, at) => Some(refusal_search::Attempt::RefusedAt(at)),
                    _ => Some(refusal_search::Attempt::Refused),
                }
            },
        )
    }
}
