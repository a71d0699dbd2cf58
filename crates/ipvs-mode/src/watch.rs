//! Notices changes that other programs make to the kernel objects of IPVS mode.
//!
//! | object | how a change is noticed |
//! |---|---|
//! | the dummy link, its addresses, the addresses of the node | events of route netlink |
//! | chains and jumps in nftables | notifications of nf_tables |
//! | chains and jumps in legacy tables | they are read every 5 seconds, see [`WatchOptions::check_interval`] |
//! | virtual servers, real servers, sets, entries, sysctls | the kernel sends no events: only a full listing finds a change |

use kernlink_host::watch::{Changed, Watchable, Watched};
use kernlink_netfilter::{detect_watch_options, watched_tables};

use super::config::Config;
use super::kernel::Kernel;
use super::key::Key;
use super::rules;
pub use kernlink_host::watch::{RulesSource, WatchError, WatchOptions, Watcher};

/// What a [`Watcher`] noticed in IPVS mode.
pub type WatchEvent = kernlink_host::watch::WatchEvent<Key>;

impl Watchable for Config {
    type Key = Key;
    type Kernel = Kernel;

    /// The owned chains, and the built-in ones with jumps to them.
    ///
    /// # Errors
    /// [`WatchError::InvalidLink`].
    fn watched(&self) -> Result<Watched<Key>, WatchError> {
        let link = self
            .link()
            .ok_or_else(|| WatchError::InvalidLink(self.dummy_link.as_str().into()))?;
        let owned = rules::CHAINS.iter().flat_map(|(table, chains)| {
            let chains = chains.iter();
            chains.map(|chain| (*table, (*chain).into()))
        });
        let jumps = rules::jumps().into_iter();
        let built_in = jumps.map(|jump| (jump.table, jump.chain.as_str().into()));
        let key = |changed| match changed {
            Changed::Address(address) => Some(Key::Address(address)),
            Changed::Rules(family) => Some(Key::Rules(family)),
            _ => None,
        };
        Ok(Watched::new(
            Some(link),
            watched_tables(owned.chain(built_in)),
            key,
        ))
    }

    /// As the iptables tools of this host write rules.
    fn watch_options(&self) -> WatchOptions {
        detect_watch_options(self.services.families.iter().copied())
    }
}
