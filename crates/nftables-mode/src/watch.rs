//! Notices changes that other programs make to the kernel objects of nftables mode.
//!
//! | object | how a change is noticed |
//! |---|---|
//! | the addresses of the node | events of route netlink |
//! | tables and chains | notifications of nf_tables; where the kernel has owners of tables (Linux 6.9), no other program can change them |
//! | elements | a full listing, of at most 150 000 elements; where the kernel has owners, no other program can change them |

use kernlink_host::watch::{Changed, Watchable, Watched, WatchedTable};
pub use kernlink_host::watch::{RulesSource, WatchError, WatchOptions, Watcher};

use crate::config::Config;
use crate::key::Key;
use crate::layout::{SECOND_TABLE, TABLE};

/// What a [`Watcher`] noticed in nftables mode.
pub type WatchEvent = kernlink_host::watch::WatchEvent<Key>;

impl Watchable for Config {
    type Key = Key;

    fn watched(&self) -> Result<Watched<Key>, WatchError> {
        let key = |changed| match changed {
            Changed::Rules(family) => Some(Key::Table(family)),
            // Without a link, no address is bound.
            Changed::Address(_) => None,
        };
        Ok(Watched::new(
            None,
            vec![WatchedTable::new(TABLE), WatchedTable::new(SECOND_TABLE)],
            key,
        ))
    }
}
