//! What can go wrong, by stage.

use kernlink_netlink::Errno;

/// A part of the kernel could not be reached or read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BackendError {
    /// Virtual servers.
    #[error("cannot use IPVS")]
    Ipvs(#[from] kernlink_ipvs::Error),
    /// Sets.
    #[error("cannot use ipset")]
    Set(#[from] kernlink_ipset::Error),
    /// Chains and rules.
    #[error("cannot use iptables")]
    Rules(#[from] kernlink_iptables_restore::Error),
    /// The dummy link or addresses.
    #[error("cannot use links")]
    Link(#[from] kernlink_dummylink::Error),
    /// The configured name of the dummy link is none that a link can have.
    #[error("the configured dummy link cannot be")]
    LinkName(#[from] kernlink_dummylink::InvalidLinkName),
    /// A kernel setting.
    #[error(transparent)]
    Setting(#[from] SettingError),
}

/// A sync could not begin.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SyncError {
    /// Not every source has delivered its first full list of every kind it has, or there is none of Services or of
    /// EndpointSlices: half a model would delete working Services.
    #[error("the sources have not delivered their first full lists")]
    NotReady,
    /// The kernel could not be read.
    #[error("cannot read the kernel's state")]
    Observe(#[from] BackendError),
}

/// A step failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OperationError {
    /// Of a virtual server or real server.
    #[error(transparent)]
    Ipvs(#[from] kernlink_ipvs::Error),
    /// Of a set or an entry.
    #[error(transparent)]
    Set(#[from] kernlink_ipset::Error),
    /// Of a family's rules.
    #[error(transparent)]
    Rules(#[from] kernlink_iptables_restore::Error),
    /// Of the dummy link or an address.
    #[error(transparent)]
    Link(#[from] kernlink_dummylink::Error),
    /// Of a kernel setting.
    #[error(transparent)]
    Setting(#[from] SettingError),
    /// The backend broke its promise of one outcome for each operation.
    #[error("the backend returned no outcome")]
    NoOutcome,
}

/// A kernel setting could not be read or written.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cannot {verb} the kernel setting {name}")]
pub struct SettingError {
    /// `read` or `write`.
    pub verb: &'static str,
    /// The setting.
    pub name: Box<str>,
    /// Why.
    #[source]
    pub errno: Errno,
}

impl SettingError {
    pub(crate) fn new(verb: &'static str, name: &str, error: &std::io::Error) -> Self {
        Self {
            verb,
            name: name.into(),
            errno: Errno::of(error),
        }
    }
}

/// An error with the errors behind it, in one line.
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
