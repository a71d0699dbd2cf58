//! The log: one line for each event, on standard error.

use std::fmt;
use std::io;
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use clap::ValueEnum;
use tracing::Level;
use tracing_subscriber::filter::{LevelFilter, Targets};
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

/// The log of this process, after [`start`].
static CURRENT: OnceLock<Log> = OnceLock::new();

/// The levels that signals choose from, from the least to the most output.
const LEVELS: [LevelFilter; 3] = [LevelFilter::INFO, LevelFilter::DEBUG, LevelFilter::TRACE];

/// The names of levels.
const NAMES: [(&str, LevelFilter); 6] = [
    ("off", LevelFilter::OFF),
    ("error", LevelFilter::ERROR),
    ("warn", LevelFilter::WARN),
    ("info", LevelFilter::INFO),
    ("debug", LevelFilter::DEBUG),
    ("trace", LevelFilter::TRACE),
];

/// The name of the configured level, where a filter is expected.
pub(crate) const CONFIGURED: &str = "configured";

/// Which lines a log has.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Filter {
    /// `None`: the configured one.
    level: Option<LevelFilter>,
    /// The levels of modules, such as `kernlink_agent::cluster`, and those below them.
    modules: Vec<(String, LevelFilter)>,
}

/// A log whose level can be changed.
struct Log {
    handle: Handle<Targets, Registry>,
    levels: Mutex<Levels>,
}

struct Levels {
    configured: LevelFilter,
    /// When the log returns to the configured level. `None`: not before the next change.
    end: Option<Instant>,
    changes: u64,
}

/// The level of the log now.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Current {
    /// As [`Filter::parse`] reads it.
    pub(crate) filter: String,
    pub(crate) configured: String,
    /// The time until the log returns to the configured level. `None`: it does not.
    pub(crate) left: Option<Duration>,
}

/// A change of the level, see [`end_change`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Change(u64);

/// Sends the log of this process to standard error. Has no effect if the process has a log already.
pub fn start(format: Format, level: Level) {
    let configured = LevelFilter::from_level(level);
    let (filter, handle) = reload::Layer::new(Targets::new().with_default(configured));
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
        let _ = CURRENT.set(Log::new(handle, configured));
    }
}

/// Sets the configured level of the log, after the configuration file was read. Has no effect if the embedding program has the log.
pub fn set_level(level: Level) {
    if let Some(log) = CURRENT.get() {
        log.configure(LevelFilter::from_level(level));
    }
}

/// Logs more, or less, by one level: information, debug output, traces. Returns the level; `None` if the embedding program has the log.
pub fn change_level(is_more: bool) -> Option<LevelFilter> {
    CURRENT.get()?.step(is_more)
}

/// The level of the log. `None` if the embedding program has the log.
pub(crate) fn current() -> Option<Current> {
    CURRENT.get()?.current(Instant::now())
}

/// Changes the level of the log, until the next change or [`end_change`], which the caller calls after the time. `None` if the embedding program has
/// the log.
pub(crate) fn change(filter: &Filter, time: Option<Duration>) -> Option<Change> {
    let end = time.and_then(|time| Instant::now().checked_add(time));
    CURRENT.get()?.change(filter, end)
}

/// Returns to the configured level, unless the level was changed again.
pub(crate) fn end_change(change: Change) {
    if CURRENT.get().is_some_and(|log| log.end(change)) {
        tracing::info!("the log has the configured level again");
    }
}

impl Filter {
    /// Parses a level, levels of modules (`MODULE=LEVEL`), or several of them, separated by commas; or [`CONFIGURED`].
    ///
    /// # Errors
    /// What is not valid.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut filter = Self {
            level: None,
            modules: Vec::new(),
        };
        if text == CONFIGURED {
            return Ok(filter);
        }
        for item in text.split(',') {
            match item.split_once('=') {
                None => {
                    if filter.level.replace(level_named(item)?).is_some() {
                        return Err(format!("{text:?} has two levels without a module; valid: one"));
                    }
                }
                Some((module, level)) => {
                    let is_valid = |byte: u8| byte.is_ascii_alphanumeric() || b"_:".contains(&byte);
                    if module.is_empty() || !module.bytes().all(is_valid) {
                        return Err(format!(
                            "the module {module:?} is not valid; valid: a path such as kernlink_agent::cluster"
                        ));
                    }
                    filter.modules.push((module.to_owned(), level_named(level)?));
                }
            }
        }
        Ok(filter)
    }

    fn targets(&self, configured: LevelFilter) -> Targets {
        Targets::new()
            .with_targets(self.modules.iter().cloned())
            .with_default(self.level.unwrap_or(configured))
    }
}

impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let modules = self
            .modules
            .iter()
            .map(|(module, level)| format!("{module}={level}"));
        let items: Vec<String> = self
            .level
            .iter()
            .map(ToString::to_string)
            .chain(modules)
            .collect();
        match items.is_empty() {
            true => f.write_str(CONFIGURED),
            false => f.write_str(&items.join(",")),
        }
    }
}

fn level_named(name: &str) -> Result<LevelFilter, String> {
    let found = NAMES.iter().find(|(known, _)| *known == name);
    found.map(|(_, level)| *level).ok_or_else(|| {
        let valid: Vec<&str> = NAMES.iter().map(|(name, _)| *name).collect();
        format!(
            "the level {name:?} is not valid; valid: {}, MODULE=LEVEL, or {CONFIGURED}",
            valid.join(", ")
        )
    })
}

impl Log {
    fn new(handle: Handle<Targets, Registry>, configured: LevelFilter) -> Self {
        Self {
            handle,
            levels: Mutex::new(Levels {
                configured,
                end: None,
                changes: 0,
            }),
        }
    }

    fn levels(&self) -> MutexGuard<'_, Levels> {
        // No code panics while it holds the lock.
        self.levels.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn configure(&self, level: LevelFilter) {
        let mut levels = self.levels();
        levels.configured = level;
        self.replace(&mut levels, Targets::new().with_default(level), None);
    }

    fn step(&self, is_more: bool) -> Option<LevelFilter> {
        let mut levels = self.levels();
        let targets = self.handle.clone_current()?;
        let now = targets.default_level().unwrap_or(LevelFilter::OFF);
        let next = if is_more {
            LEVELS.iter().find(|level| **level > now)
        } else {
            LEVELS.iter().rev().find(|level| **level < now)
        };
        let level = next.copied().unwrap_or(now);
        self.replace(&mut levels, targets.with_default(level), None)?;
        Some(level)
    }

    fn change(&self, filter: &Filter, end: Option<Instant>) -> Option<Change> {
        let mut levels = self.levels();
        let targets = filter.targets(levels.configured);
        self.replace(&mut levels, targets, end)
    }

    /// Returns whether the change was still in effect.
    fn end(&self, change: Change) -> bool {
        let mut levels = self.levels();
        if change != Change(levels.changes) {
            return false;
        }
        let targets = Targets::new().with_default(levels.configured);
        self.replace(&mut levels, targets, None).is_some()
    }

    fn replace(&self, levels: &mut Levels, targets: Targets, end: Option<Instant>) -> Option<Change> {
        // It fails only if the process has no log.
        self.handle.reload(targets).ok()?;
        levels.end = end;
        levels.changes += 1;
        Some(Change(levels.changes))
    }

    fn current(&self, now: Instant) -> Option<Current> {
        let levels = self.levels();
        let targets = self.handle.clone_current()?;
        let mut modules: Vec<(String, LevelFilter)> = targets
            .iter()
            .map(|(module, level)| (module.to_owned(), level))
            .collect();
        modules.sort_by(|(one, _), (other, _)| one.cmp(other));
        let filter = Filter {
            level: targets.default_level(),
            modules,
        };
        Some(Current {
            filter: filter.to_string(),
            configured: levels.configured.to_string(),
            left: levels.end.map(|end| end.saturating_duration_since(now)),
        })
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::sync::Arc;

    use super::*;

    #[derive(Clone, Default)]
    struct Lines(Arc<Mutex<Vec<u8>>>);

    impl Lines {
        fn take(&self) -> String {
            let bytes = std::mem::take(&mut *self.0.lock().unwrap());
            String::from_utf8(bytes)
                .unwrap()
                .split_whitespace()
                .collect::<Vec<_>>()
                .join(" ")
        }
    }

    impl Write for Lines {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// What is logged in a sequence of changes: the text of each line.
    fn with_log(run: impl FnOnce(&Log, &dyn Fn() -> String)) {
        let lines = Lines::default();
        let configured = LevelFilter::INFO;
        let (filter, handle) = reload::Layer::new(Targets::new().with_default(configured));
        let writer = lines.clone();
        let layer = lines::layer()
            .without_time()
            .with_level(false)
            .with_target(false)
            .with_ansi(false)
            .with_writer(move || writer.clone());
        let log = Log::new(handle, configured);
        let subscriber = tracing_subscriber::registry().with(filter).with(layer);
        tracing::subscriber::with_default(subscriber, || {
            run(&log, &|| {
                tracing::info!("info");
                tracing::debug!("debug");
                tracing::trace!(target: "kernlink_agent::cluster::one", "trace");
                lines.take()
            });
        });
    }

    fn filter(text: &str) -> Filter {
        Filter::parse(text).unwrap()
    }

    #[test]
    fn levels_are_sorted() {
        assert!(LEVELS.is_sorted());
        assert!(NAMES.is_sorted_by_key(|(_, level)| *level));
    }

    #[test]
    fn a_change_has_an_effect_until_its_end_or_the_next_one() {
        with_log(|log, logged| {
            assert_eq!(logged(), "info");
            let now = Instant::now();
            let end = now + Duration::from_secs(60);
            let first = log.change(&filter("debug"), Some(end)).unwrap();
            assert_eq!(logged(), "info debug");
            let left = log.current(now).unwrap().left;
            assert_eq!(left, Some(Duration::from_secs(60)));
            let second = log.change(&filter("warn"), Some(end)).unwrap();
            assert_eq!(logged(), "");
            assert!(!log.end(first), "the first change was replaced");
            assert_eq!(logged(), "");
            assert!(log.end(second));
            assert_eq!(logged(), "info");
            let expected = Current {
                filter: "info".to_owned(),
                configured: "info".to_owned(),
                left: None,
            };
            assert_eq!(log.current(now), Some(expected));
            assert!(!log.end(second));
        });
    }

    #[test]
    fn modules_have_levels_of_their_own() {
        with_log(|log, logged| {
            log.change(&filter("kernlink_agent::cluster=trace"), None)
                .unwrap();
            assert_eq!(logged(), "info trace", "the rest has the configured level");
            let current = log.current(Instant::now()).unwrap();
            assert_eq!(current.filter, "info,kernlink_agent::cluster=trace");
            log.change(&filter("off,kernlink_agent::cluster=trace"), None)
                .unwrap();
            assert_eq!(logged(), "trace");
            log.change(&filter("kernlink_agent::clu=trace,warn"), None)
                .unwrap();
            assert_eq!(logged(), "trace", "as in tracing, a prefix of the name is enough");
            log.change(&filter(CONFIGURED), None).unwrap();
            assert_eq!(logged(), "info");
        });
    }

    #[test]
    fn signals_and_the_configuration_replace_a_change() {
        with_log(|log, logged| {
            let change = log.change(&filter("warn"), Some(Instant::now())).unwrap();
            assert_eq!(log.step(false), Some(LevelFilter::WARN));
            assert_eq!(log.step(true), Some(LevelFilter::INFO));
            assert_eq!(log.step(true), Some(LevelFilter::DEBUG));
            assert!(!log.end(change));
            assert_eq!(logged(), "info debug");
            assert_eq!(log.current(Instant::now()).unwrap().left, None);
            assert_eq!(log.step(true), Some(LevelFilter::TRACE));
            assert_eq!(log.step(true), Some(LevelFilter::TRACE));
            assert_eq!(log.step(false), Some(LevelFilter::DEBUG));
            log.configure(LevelFilter::TRACE);
            assert_eq!(logged(), "info debug trace");
            assert_eq!(log.current(Instant::now()).unwrap().configured, "trace");
        });
    }

    #[test]
    fn an_invalid_filter_is_an_error_that_names_what_is_valid() {
        for (text, expected) in [
            (
                "",
                "the level \"\" is not valid; valid: off, error, warn, info, debug, trace, MODULE=LEVEL, or configured",
            ),
            ("4", "the level \"4\" is not valid"),
            ("kernlink_agent", "the level \"kernlink_agent\" is not valid"),
            ("a=loud", "the level \"loud\" is not valid"),
            (
                "=debug",
                "the module \"\" is not valid; valid: a path such as kernlink_agent::cluster",
            ),
            ("a&b=debug", "the module \"a&b\" is not valid"),
            (
                "info,debug",
                "\"info,debug\" has two levels without a module; valid: one",
            ),
            ("info,", "the level \"\" is not valid"),
        ] {
            let error = Filter::parse(text).unwrap_err();
            assert!(error.starts_with(expected), "{text}: {error}");
        }
        for text in ["info", "off,a=trace", "a::b=debug,c=warn", CONFIGURED] {
            assert_eq!(filter(text).to_string(), text);
        }
    }
}
