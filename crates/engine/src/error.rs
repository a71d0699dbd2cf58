//! Errors of a sync as a whole, and of a configuration.

use std::fmt;

use kernlink_services::NotSynced;

/// Why a sync did nothing.
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
    /// A new plan differs from the reviewed one. Nothing was done.
    #[error("the plan is out of date: the kernel or the Services changed since it was made")]
    PlanOutdated,
}

/// The invalid fields of a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InvalidConfig {
    /// Each invalid field with the reason; at least one.
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
