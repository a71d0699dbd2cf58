//! `/v1/log-level`: the level of the log, and its changes.

use std::time::Duration;

use super::documents::{LogLevel, VERSION};
use super::parameters::parameters;
use crate::log::{self, Filter};

/// The longest time of a change.
pub(crate) const MAX_TIME: Duration = Duration::from_secs(24 * 3600);

/// A change of the level that is requested.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Question {
    filter: Filter,
    /// `None`: until the next change.
    time: Option<Duration>,
}

impl Question {
    /// Parses a query, such as `filter=debug&seconds=60`.
    ///
    /// # Errors
    /// What is not valid.
    pub(super) fn parse(query: &str) -> Result<Self, String> {
        let (mut filter, mut time) = (None, None);
        for (name, value) in parameters(query, &["filter", "seconds"])? {
            if name == "filter" {
                filter = Some(Filter::parse(value).map_err(|problem| format!("filter: {problem}"))?);
            } else {
                let seconds = value.parse().ok().map(Duration::from_secs);
                let valid = seconds.filter(|time| !time.is_zero() && *time <= MAX_TIME);
                let valid = valid.ok_or_else(|| {
                    format!(
                        "seconds: {value:?} is not valid; valid: 1 to {}",
                        MAX_TIME.as_secs()
                    )
                })?;
                time = Some(valid);
            }
        }
        let filter = filter.ok_or("filter: is missing; valid: such as filter=debug")?;
        Ok(Self { filter, time })
    }

    /// Changes the level. Must be called in a runtime.
    ///
    /// # Errors
    /// The log is not that of the agent.
    pub(super) fn change(&self) -> Result<LogLevel, String> {
        let change = log::change(&self.filter, self.time).ok_or(OTHER_LOG)?;
        match self.time {
            None => tracing::info!("the log has the level {} from now on", self.filter),
            Some(time) => {
                tracing::info!(
                    "the log has the level {} for {} seconds",
                    self.filter,
                    time.as_secs()
                );
                tokio::spawn(async move {
                    tokio::time::sleep(time).await;
                    log::end_change(change);
                });
            }
        }
        answer()
    }
}

const OTHER_LOG: &str = "the log is that of the program that embeds the agent";

/// The level of the log.
///
/// # Errors
/// The log is not that of the agent.
pub(super) fn answer() -> Result<LogLevel, String> {
    let current = log::current().ok_or(OTHER_LOG)?;
    Ok(LogLevel {
        version: VERSION,
        filter: current.filter,
        configured: current.configured,
        seconds_left: current.left.map(|left| left.as_secs()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_has_a_filter_and_perhaps_a_time() {
        let of = |query: &str| Question::parse(query).unwrap();
        assert_eq!(of("filter=debug").time, None);
        let question = of("filter=info,kernlink_agent::cluster=trace&seconds=60");
        assert_eq!(question.time, Some(Duration::from_secs(60)));
        assert_eq!(question.filter.to_string(), "info,kernlink_agent::cluster=trace");
        for (query, expected) in [
            ("", "filter: is missing"),
            ("seconds=1", "filter: is missing"),
            (
                "filter=loud",
                "filter: the level \"loud\" is not valid; valid: off, ",
            ),
            (
                "filter=debug&seconds=0",
                "seconds: \"0\" is not valid; valid: 1 to 86400",
            ),
            ("filter=debug&seconds=86401", "seconds: \"86401\" is not valid"),
            ("filter=debug&seconds=1m", "seconds: \"1m\" is not valid"),
            (
                "level=debug",
                "the parameter \"level\" is not valid; valid: filter, seconds",
            ),
        ] {
            let error = Question::parse(query).unwrap_err();
            assert!(error.starts_with(expected), "{query}: {error}");
        }
    }
}
