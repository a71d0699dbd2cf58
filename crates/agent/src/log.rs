//! The log: one line for each event, on standard error.

use std::io;
use std::sync::OnceLock;

use clap::ValueEnum;
use tracing::Level;
use tracing_subscriber::filter::LevelFilter;
use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::reload::{self, Handle};
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{Registry, fmt as lines};

/// The format of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// A line of text
    #[default]
    Text,
    /// A JSON object on one line
    Json,
}

/// The level of kube-proxy's `--v`: 4 and more is debug output, 6 and more traces.
#[must_use]
pub fn level(verbosity: u32) -> Level {
    match verbosity {
        0..=3 => Level::INFO,
        4 | 5 => Level::DEBUG,
        _ => Level::TRACE,
    }
}

/// Whether each sync that changed something has a line at level `info`: with `--v` 2 and more, as in kube-proxy.
#[must_use]
pub fn has_syncs(verbosity: u32) -> bool {
    verbosity >= 2
}

/// The level of the log of this process, after [`start`].
static CURRENT: OnceLock<Handle<LevelFilter, Registry>> = OnceLock::new();

/// The levels of the log, from the least to the most output.
const LEVELS: [LevelFilter; 3] = [LevelFilter::INFO, LevelFilter::DEBUG, LevelFilter::TRACE];

/// Sends the log of this process to standard error. Has no effect if the process has a log already.
pub fn start(format: Format, level: Level) {
    let (filter, handle) = reload::Layer::new(LevelFilter::from_level(level));
    let layer = lines::layer()
        .with_target(false)
        .with_ansi(false)
        // They are printed on standard error, which is what failed: the program would panic if the reader of its log has ended.
        .log_internal_errors(false)
        .with_writer(io::stderr);
    // It fails if the embedding program has set another log, which then receives the events.
    let started = match format {
        Format::Text => tracing_subscriber::registry().with(filter).with(layer).try_init(),
        Format::Json => tracing_subscriber::registry()
            .with(filter)
            .with(layer.json().flatten_event(true))
            .try_init(),
    };
    if started.is_ok() {
        // It is empty: there is one log.
        let _ = CURRENT.set(handle);
    }
}

/// Sets the level of the log, after the configuration file was read. Has no effect if the embedding program has the log.
pub fn set_level(level: Level) {
    if let Some(handle) = CURRENT.get() {
        // It fails only if the process has no log.
        let _ = handle.reload(LevelFilter::from_level(level));
    }
}

/// Logs more, or less, by one level: information, debug output, traces. Returns the level; `None` if the embedding program has the log.
pub fn change_level(is_more: bool) -> Option<LevelFilter> {
    let handle = CURRENT.get()?;
    let now = handle.clone_current()?;
    let position = LEVELS.iter().position(|level| *level >= now).unwrap_or_default();
    let next = if is_more {
        position + 1
    } else {
        position.saturating_sub(1)
    };
    let level = LEVELS[next.min(LEVELS.len() - 1)];
    handle.reload(level).ok()?;
    Some(level)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_sorted() {
        assert!(LEVELS.is_sorted());
    }
}
