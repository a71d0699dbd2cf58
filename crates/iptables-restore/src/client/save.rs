//! `iptables-save`.

use std::time::Duration;

use super::{Client, Iptables, tool_message};
use crate::chain_reader::ChainReader;
use crate::error::{Error, Refused};
use crate::ruleset::Ruleset;
use crate::runner::{Completion, Invocation};
use crate::save::Save;
use crate::table::Table;
use crate::unreadable::UnreadableLine;
use crate::wire::parse_lenient::LenientStream;

impl Client {
    /// Reads the output of a tool for a request.
    pub(super) fn read_save(
        &mut self,
        request: &Save,
        output: Result<Vec<u8>, Error>,
    ) -> Result<Ruleset, Error> {
        // The tools truncate a long foreign comment within a character. Foreign rules are never rendered again.
        if request.lenient {
            return match output {
                Ok(output) => Ok(Ruleset::parse_lenient(&String::from_utf8_lossy(&output))),
                Err(error) if error.is_unreadable() => self.save_table_by_table(request, error),
                Err(error) => Err(error),
            };
        }
        let saved: Ruleset = String::from_utf8_lossy(&output?).parse()?;
        match request
            .table
            .and_then(|table| saved.unreadable_tables.get(&table))
        {
            Some(line) => Err(line.to_error()),
            None => Ok(saved),
        }
    }

    /// The tables that the tool can print, of those that a lenient request is for, after it failed to print them.
    fn save_table_by_table(&mut self, request: &Save, error: Error) -> Result<Ruleset, Error> {
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
        for &table in Table::ALL {
            let request = Save {
                table: Some(table),
                ..request.clone()
            };
            match self.save(&request) {
                Ok(one) => saved.merge(one),
                // A table that this kernel does not support.
                Err(error) if error.is_unsupported() || error.is_not_found() => {}
                Err(error) => return Err(error),
            }
        }
        Ok(saved)
    }

    /// Runs `iptables-save` once and returns its output.
    pub(super) fn run_save(&mut self, request: &Save) -> Result<Vec<u8>, Error> {
        let output = self.run_saves(std::slice::from_ref(request)).pop();
        output.unwrap_or(Err(Error::OutcomeMissing))
    }

    /// Runs `iptables-save` for each request, all at the same time, and returns the outputs in order.
    pub(super) fn run_saves(&mut self, requests: &[Save]) -> Vec<Result<Vec<u8>, Error>> {
        let mut outputs = self.start_saves(requests);
        for (request, output) in requests.iter().zip(&mut outputs) {
            if let Err(error) = output
                && self.has_other_name(request.family, error)
            {
                let again = self.start_saves(std::slice::from_ref(request)).pop();
                *output = again.unwrap_or(Err(Error::OutcomeMissing));
            }
        }
        outputs
    }

    /// Runs `iptables-save` for each request, all at the same time, and passes the chains to a reader while they are printed.
    pub(super) fn run_save_chains(
        &mut self,
        requests: &[Save],
        reader: &mut dyn ChainReader,
    ) -> Vec<Result<Ruleset, Error>> {
        let mut outcomes = self.stream_saves(requests, reader);
        for (request, outcome) in requests.iter().zip(&mut outcomes) {
            if let Err(error) = outcome
                && self.has_other_name(request.family, error)
            {
                let again = self.stream_saves(std::slice::from_ref(request), reader).pop();
                *outcome = again.unwrap_or(Err(Error::OutcomeMissing));
            }
            if let Err(error) = outcome
                && error.is_unreadable()
            {
                let saved = self.save_table_by_table(request, error.clone());
                *outcome = saved.map(|saved| saved.pass(request, reader));
            }
        }
        outcomes
    }

    fn stream_saves(
        &mut self,
        requests: &[Save],
        reader: &mut dyn ChainReader,
    ) -> Vec<Result<Ruleset, Error>> {
        let invocations = requests.iter().map(|request| self.save_invocation(request));
        let invocations = invocations.collect();
        let mut streams: Vec<LenientStream> = requests.iter().map(|_| LenientStream::new()).collect();
        let mut push = |index: usize, bytes: &[u8]| {
            if let (Some(stream), Some(request)) = (streams.get_mut(index), requests.get(index)) {
                stream.push(bytes, request, reader);
            }
        };
        let mut completions = self.runner.run_all_streamed(invocations, &mut push).into_iter();
        let answers = requests.iter().zip(streams);
        let saved = answers.map(|(request, stream)| {
            let completion = completions.next().unwrap_or(Err(Error::OutcomeMissing))?;
            self.save_output(request, completion)?;
            Ok(stream.finish(request, reader))
        });
        saved.collect()
    }

    fn start_saves(&mut self, requests: &[Save]) -> Vec<Result<Vec<u8>, Error>> {
        let invocations = requests.iter().map(|request| self.save_invocation(request));
        let invocations = invocations.collect();
        let mut completions = self.runner.run_all(invocations).into_iter();
        let outputs = requests.iter().map(|request| {
            let completion = completions.next().unwrap_or(Err(Error::OutcomeMissing))?;
            self.save_output(request, completion)
        });
        outputs.collect()
    }

    fn save_invocation(&self, request: &Save) -> Invocation {
        let mut arguments = Vec::new();
        if request.counters {
            arguments.push("--counters".into());
        }
        if let Some(table) = request.table {
            arguments.extend(["--table".into(), table.as_str().into()]);
        }
        let program = self.program(request.family, "save");
        self.invocation(&program, arguments, Vec::new(), Duration::ZERO)
    }

    fn save_output(&self, request: &Save, mut completion: Completion) -> Result<Vec<u8>, Error> {
        if completion.status == Some(0) {
            return Ok(completion.stdout);
        }
        if !completion.stderr.is_empty() {
            // What was printed before the failure does not explain it.
            completion.stdout.clear();
        }
        let message = tool_message::read(&completion);
        Err(Error::Refused {
            tool: self.program(request.family, "save"),
            refused: Box::new(Refused::Whole(request.family)),
            kind: message.kind,
            text: message.text,
            status: completion.status,
            applied: Vec::new(),
        })
    }
}
