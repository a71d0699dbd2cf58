//! `iptables-save`.

use std::time::Duration;

use super::{Client, tool_message};
use crate::error::{Error, Refused};
use crate::ruleset::Ruleset;
use crate::save::Save;
use crate::table::Table;
use crate::unreadable::UnreadableLine;

impl Client {
    pub(super) fn save_strict(&mut self, request: &Save) -> Result<Ruleset, Error> {
        // The tools truncate a long foreign comment within a character. Foreign rules are never rendered again.
        let saved: Ruleset = String::from_utf8_lossy(&self.run_save(request)?).parse()?;
        match request
            .table
            .and_then(|table| saved.unreadable_tables.get(&table))
        {
            Some(line) => Err(line.to_error()),
            None => Ok(saved),
        }
    }

    pub(super) fn save_lenient(&mut self, request: &Save) -> Result<Ruleset, Error> {
        // As above.
        let error = match self.run_save(request) {
            Ok(output) => return Ok(Ruleset::parse_lenient(&String::from_utf8_lossy(&output))),
            Err(error) if error.is_unreadable() => error,
            Err(error) => return Err(error),
        };
        let mut saved = Ruleset::new();
        if let Some(table) = request.table {
            let line = UnreadableLine {
                line: 0,
                text: match error {
                    Error::Refused { text, .. } => text,
                    other => other.to_string(),
                },
                reason: format!(
                    "{} cannot print table {table}",
                    self.program(request.family, "save")
                ),
            };
            saved.unreadable_tables.insert(table, line);
            return Ok(saved);
        }
        for table in Table::ALL {
            let request = Save {
                table: Some(table),
                ..request.clone()
            };
            match self.save_lenient(&request) {
                Ok(one) => saved.merge(one),
                // A table that this kernel does not support.
                Err(error) if error.is_unsupported() || error.is_not_found() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(saved)
    }

    /// Runs `iptables-save` once and returns its output.
    fn run_save(&mut self, request: &Save) -> Result<Vec<u8>, Error> {
        if self.variant.is_some() {
            // Finds out under which names the tools exist.
            self.version(request.family)?;
        }
        let program = self.program(request.family, "save");
        let mut arguments = Vec::new();
        if request.counters {
            arguments.push("--counters".into());
        }
        if let Some(table) = request.table {
            arguments.extend(["--table".into(), table.as_str().into()]);
        }
        let mut completion = self.start(&program, arguments, Vec::new(), Duration::ZERO)?;
        if completion.status == Some(0) {
            return Ok(completion.stdout);
        }
        if !completion.stderr.is_empty() {
            // What was printed before the failure does not explain it.
            completion.stdout.clear();
        }
        let message = tool_message::read(&completion);
        Err(Error::Refused {
            tool: program,
            refused: Box::new(Refused::Whole(request.family)),
            kind: message.kind,
            text: message.text,
            status: completion.status,
            applied: Vec::new(),
        })
    }
}
