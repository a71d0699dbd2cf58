//! Notices changes that other programs make to the kernel objects of nftables mode.
//!
//! | object | how a change is noticed |
//! |---|---|
//! | the addresses of the node | events of route netlink |
//! | tables and chains | notifications of nf_tables; where the kernel has owners of tables (Linux 6.9), no other program can change them |
//! | elements | the same notifications, if the [own ports](WatchOptions::own_ports) are known: a changed element is read with its Service; after more than 1 000 at once all are read, or the table is made again if it has more than 150 000 elements or others change it meanwhile. At most ten times in a row, then every 10 seconds |
//! | elements, if notifications are lost | a full listing, of at most 150 000 elements |

use std::collections::BTreeSet;

use kernlink_host::watch::{Changed, Watchable, Watched, WatchedTable};
pub use kernlink_host::watch::{RulesSource, WatchError, WatchOptions, Watcher};

use crate::config::Config;
use crate::item::ElementKey;
use crate::kernel::Kernel;
use crate::key::Key;
use crate::layout::{SECOND_TABLE, SetName, Slot, TABLE};

/// What a [`Watcher`] noticed in nftables mode.
pub type WatchEvent = kernlink_host::watch::WatchEvent<Key>;

impl Watchable for Config {
    type Key = Key;
    type Kernel = Kernel;

    fn watched(&self) -> Result<Watched<Key>, WatchError> {
        let key = |changed| match changed {
            Changed::Rules(family) => Some(Key::Table(family)),
            Changed::Elements(family, table) => Some(Key::Elements(family, Slot::named(&table)?)),
            Changed::Element(element) => {
                // A set that is not of this layout has no effect, and those of clients are changed by rules.
                let set = SetName::named(&element.set).filter(|set| *set != SetName::AffinityClients)?;
                let slot = Slot::named(&element.table)?;
                let key = ElementKey::new(slot, set, &element.key);
                Some(Key::Element(element.family, key))
            }
            // Without a link, no address is bound.
            _ => None,
        };
        let tables = [TABLE, SECOND_TABLE].map(|name| WatchedTable::new(name).with_elements());
        Ok(Watched::new(None, tables.into(), key))
    }

    /// The iptables tools are not needed.
    fn watch_options(&self) -> WatchOptions {
        let families = self.services.families.iter();
        WatchOptions::new(families.map(|family| (*family, RulesSource::Events)))
    }

    fn own_ports(kernel: &Kernel) -> BTreeSet<u32> {
        kernel.tables.port().into_iter().collect()
    }
}
