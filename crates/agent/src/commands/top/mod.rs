//! `kernlink-agent top`: Services and endpoints by connections and bytes a second.
//!
//! | module | what it does |
//! | --- | --- |
//! | `targets` | the Services and endpoints, as the agent answers |
//! | `flows`, `virtual_servers` | count connections: flows of connection tracking, real servers of IPVS |
//! | `reading` | what one reading found |
//! | `reader` | one reading after the other |
//! | `view` | what is shown, by which keys; without a terminal |
//! | `screen`, `keyboard` | the terminal |

mod flows;
mod keyboard;
mod reader;
mod reading;
mod screen;
mod targets;
mod view;
mod virtual_servers;

use std::io::{IsTerminal, stdin, stdout};
use std::process::ExitCode;
use std::thread;
use std::time::Duration;

use clap::{Args, ValueEnum};

use self::reader::Reader;
use self::reading::Reading;
use self::view::{Sort, View};
use super::client::Failed;
use super::{Socket, table};
use crate::exit::Exit;
use crate::flags::Output;
use crate::print;

/// What is watched, and how it is shown.
#[derive(Debug, Args)]
pub(crate) struct Arguments {
    /// Print one reading, after one interval if bytes can be counted, and end
    #[arg(long)]
    once: bool,
    /// The form of what --once prints; json implies --once
    #[arg(long, short, value_name = "FORM", default_value = "table")]
    output: Output,
    /// The virtual servers of IPVS, without asking an agent
    #[arg(long, conflicts_with = "socket")]
    kernel: bool,
    /// Seconds between two readings; a reading that takes longer than a tenth of it makes it longer
    #[arg(long, value_name = "SECONDS", default_value = "2", value_parser = clap::value_parser!(u64).range(1..=3600))]
    interval: u64,
    /// By what Services are sorted at first
    #[arg(long, value_name = "COLUMN", default_value = "connections")]
    sort: SortBy,
    /// Only Services with this text in their names, frontends or endpoints
    #[arg(long, value_name = "TEXT", default_value = "")]
    filter: String,
    /// The largest connection table that is read, in flows; with more, connections are not known
    #[arg(long, value_name = "NUMBER", default_value = "200000")]
    max_flows: u32,
    #[command(flatten)]
    socket: Socket,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum SortBy {
    /// Active and inactive ones
    Connections,
    /// From clients
    BytesIn,
    /// To clients
    BytesOut,
    /// Of the Service
    Name,
}

impl From<SortBy> for Sort {
    fn from(sort: SortBy) -> Self {
        match sort {
            SortBy::Connections => Sort::Connections,
            SortBy::BytesIn => Sort::BytesIn,
            SortBy::BytesOut => Sort::BytesOut,
            SortBy::Name => Sort::Name,
        }
    }
}

impl Arguments {
    pub(super) fn run(self) -> ExitCode {
        match self.show() {
            Ok(exit) => exit.into(),
            Err(problem) => {
                print::text(&problem);
                Exit::Failure.into()
            }
        }
    }

    fn show(self) -> Result<Exit, String> {
        let client = match self.kernel {
            true => None,
            false => Some(self.socket.client().map_err(|Failed(why)| why)?),
        };
        let interval = Duration::from_secs(self.interval);
        let mut reader = Reader::open(client, self.max_flows)?;
        let view = View::new(self.sort.into(), self.filter.clone());
        if self.once || self.output == Output::Json {
            let mut reading = reader.read();
            // The difference of two readings.
            if reader.counts_bytes() {
                thread::sleep(interval);
                reading = reader.read();
            }
            return Ok(print::line(self.page(&view, &reading)?.trim_end()));
        }
        if !stdout().is_terminal() || !stdin().is_terminal() {
            return Err("standard input or output is no terminal; --once prints one reading".to_owned());
        }
        screen::run(reader, interval, view).map(|()| Exit::Success)
    }

    fn page(&self, view: &View, reading: &Reading) -> Result<String, String> {
        match self.output {
            Output::Table => {
                let mut page = table::columns(&view::HEADER, &view.lines(reading));
                for note in &reading.notes {
                    page.push_str(&format!("note: {note}\n"));
                }
                Ok(table::printable(&page))
            }
            Output::Json => serde_json::to_string_pretty(reading).map_err(|error| error.to_string()),
        }
    }
}
