//! Notices changes that other programs make to the kernel objects of the configured mode.

use super::config::Config;
use super::key::Key;
use crate::watch::{WatchError, Watchable, Watched};

impl Watchable for Config {
    type Key = Key;

    /// What the configured mode watches.
    ///
    /// # Errors
    /// If the configuration is invalid.
    fn watched(&self) -> Result<Watched<Key>, WatchError> {
        Ok(match self {
            Config::Ipvs(config) => config.watched()?.map(Key::Ipvs),
            Config::Iptables(config) => config.watched()?.map(Key::Iptables),
        })
    }
}
