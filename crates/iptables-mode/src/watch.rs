//! Notices changes that other programs make to the kernel objects of iptables mode.
//!
//! | object | how a change is noticed |
//! |---|---|
//! | the addresses of the node | events of route netlink |
//! | jumps, whole tables, and chains in nftables without rules of Services | notifications of nf_tables |
//! | the same in legacy tables | these chains are read every 5 seconds, see [`WatchOptions::check_interval`]; one of those in `nat` at a time if it has more than 1 000 chains of Services |
//! | chains of Services and rules in the chains that they share, sysctls | only a full listing finds a change |
//!
//! Chains with rules of Services change with every Service: their notifications are nearly always about own changes. A flush of a table also
//! removes the jumps, so it is noticed, and everything is then read.

use kernlink_host::watch::{Changed, Watchable, Watched};
use kernlink_netfilter::{detect_watch_options, watched_tables};

use super::chains::{FixedChain, jumps};
use super::config::Config;
use super::kernel::Kernel;
use super::key::Key;
pub use kernlink_host::watch::{RulesSource, WatchError, WatchOptions, Watcher};

/// What a [`Watcher`] noticed in iptables mode.
pub type WatchEvent = kernlink_host::watch::WatchEvent<Key>;

impl Watchable for Config {
    type Key = Key;
    type Kernel = Kernel;

    fn watched(&self) -> Result<Watched<Key>, WatchError> {
        let fixed = FixedChain::ALL.iter().copied().filter(|chain| !chain.is_shared());
        let fixed = fixed.map(|chain| (chain.table(), chain.text().into()));
        let built_in = jumps().iter();
        let built_in = built_in.map(|jump| (jump.table, jump.chain.as_str().into()));
        let key = |changed| match changed {
            Changed::Rules(family) => Some(Key::Fixed(family)),
            // Without a link, no address is bound.
            _ => None,
        };
        Ok(Watched::new(None, watched_tables(fixed.chain(built_in)), key))
    }

    /// As the iptables tools of this host write rules.
    fn watch_options(&self) -> WatchOptions {
        detect_watch_options(self.services.families.iter().copied())
    }
}
