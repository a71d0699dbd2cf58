//! What can go wrong before anything is done.

use std::fmt;

use kernlink_services::NotSynced;

/// A sync did nothing.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SyncError<E: std::error::Error + 'static> {
    /// A source has not delivered its first full list, or no source delivers Services or EndpointSlices. A partial model would
    /// delete working Services.
    #[error("not all sources have synced: {0}")]
    NotSynced(NotSynced),
    /// The kernel could not be read.
    #[error("cannot read the state of the kernel")]
    Observe(#[source] E),
    /// What has to be done is not what the reviewed plan says. Nothing was done.
    #[error("the plan is out of date: the kernel or the Services changed since it was made")]
    PlanOutdated,
}

/// Fields of a configuration that are invalid; at least one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidConfig {
    /// The field, and what is invalid about it.
    pub problems: Vec<(&'static str, String)>,
}

impl fmt::Display for InvalidConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("invalid configuration")?;
        for (index, (field, problem)) in self.problems.iter().enumerate() {
            let separator = if index == 0 { ": " } else { "; " };
            write!(f, "{separator}{field}: {problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for InvalidConfig {}

/// An error with its sources, on one line.
pub(crate) fn with_sources(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text.push_str(": ");
        text.push_str(&error.to_string());
        source = error.source();
    }
    text
}
