//! The log: one line for each event, on standard error.

use std::io;

use tracing::Level;

/// The format of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Format {
    /// A line of text.
    #[default]
    Text,
    /// A JSON object on one line.
    Json,
}

impl Format {
    /// The format with this name, as kube-proxy's `--logging-format`. `None` for another name.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        match name {
            "text" => Some(Format::Text),
            "json" => Some(Format::Json),
            _ => None,
        }
    }
}

/// The level of kube-proxy's `--v`: 4 and more is debug output, 6 and more traces.
#[must_use]
pub fn level(verbosity: u8) -> Level {
    match verbosity {
        0..=3 => Level::INFO,
        4 | 5 => Level::DEBUG,
        _ => Level::TRACE,
    }
}

/// Sends the log of this process to standard error. Has no effect if the process has a log already.
pub fn start(format: Format, level: Level) {
    let log = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_target(false)
        .with_ansi(false)
        // They are printed on standard error, which is what failed: the program would panic if the reader of its log has ended.
        .log_internal_errors(false)
        .with_writer(io::stderr);
    // It fails if the embedding program has set another log, which then receives the events.
    let _ = match format {
        Format::Text => log.try_init(),
        Format::Json => log.json().flatten_event(true).try_init(),
    };
}
