//! Notices changes that other programs make to kernel objects, for every data path: links and addresses by events of route netlink, rules by
//! notifications of nf_tables, or by checks at intervals.

mod changes;
mod pace;
mod watcher;

use std::collections::BTreeMap;
use std::fmt;
use std::time::Duration;

use kernlink_dummylink::{AddressKey, LinkName};
use kernlink_services::Family;

pub use self::watcher::{WatchError, Watcher};

/// What a [`Watcher`] noticed. `K` is the key of a data path.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum WatchEvent<K> {
    /// These objects may have been removed or changed: call [`Runner::recheck`](kernlink_engine::Runner::recheck). Own changes are noticed too;
    /// the objects are then found as recorded.
    Recheck(Vec<K>),
    /// Addresses of the node were added or removed: call [`Runner::recheck_addresses`](kernlink_engine::Runner::recheck_addresses).
    Addresses,
    /// Any object may have been removed or changed: call [`Runner::resync`](kernlink_engine::Runner::resync). A watched link was removed or renamed,
    /// or events were lost.
    Resync,
    /// A source of events failed. It is opened again every 5 seconds. Each error is reported once until the source works again.
    Failed(WatchError),
}

impl<K> WatchEvent<K> {
    /// The same event with other keys, without those that have none.
    #[must_use]
    pub fn map<L>(self, key: impl Fn(K) -> Option<L>) -> WatchEvent<L> {
        match self {
            WatchEvent::Recheck(keys) => WatchEvent::Recheck(keys.into_iter().filter_map(key).collect()),
            WatchEvent::Addresses => WatchEvent::Addresses,
            WatchEvent::Resync => WatchEvent::Resync,
            WatchEvent::Failed(error) => WatchEvent::Failed(error),
        }
    }
}

/// What a [`Watcher`] watches: the configuration of a data path.
pub trait Watchable {
    /// The key of the data path.
    type Key: 'static;

    /// What is to be watched.
    ///
    /// # Errors
    /// If the configuration is invalid.
    fn watched(&self) -> Result<Watched<Self::Key>, WatchError>;
}

/// The objects of a data path that are watched.
#[non_exhaustive]
pub struct Watched<K> {
    /// The link to which the data path binds addresses: its removal, and that of its addresses. `None`: it binds none.
    pub link: Option<LinkName>,
    /// The tables whose changes are noticed, those of iptables too: each of them exists once in each family.
    pub tables: Vec<WatchedTable>,
    /// The object to read again after a change. `None`: there is none.
    pub key: Box<dyn Fn(Changed) -> Option<K> + Send>,
}

/// A table of nf_tables or of iptables of which changes are noticed: that it was added or deleted, and changes of its chains and their rules.
/// Changes of sets, maps and their elements are not noticed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WatchedTable {
    /// Its name.
    pub name: Box<str>,
    /// The chains whose changes are noticed; `None`: all of them. A chain that the data path changes often should not be in the list: its own
    /// changes are noticed too.
    pub chains: Option<Vec<Box<str>>>,
}

impl WatchedTable {
    /// A table with all of its chains.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            chains: None,
        }
    }

    /// The same table with these chains only.
    #[must_use]
    pub fn with_chains<C: Into<Box<str>>>(mut self, chains: impl IntoIterator<Item = C>) -> Self {
        self.chains = Some(chains.into_iter().map(Into::into).collect());
        self
    }
}

/// What may have changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Changed {
    /// An address was removed from the [link](Watched::link).
    Address(AddressKey),
    /// A watched table of a family, or a chain in one, was changed.
    Rules(Family),
}

impl<K: 'static> Watched<K> {
    /// The objects of a data path.
    pub fn new(
        link: Option<LinkName>,
        tables: Vec<WatchedTable>,
        key: impl Fn(Changed) -> Option<K> + Send + 'static,
    ) -> Self {
        Self {
            link,
            tables,
            key: Box::new(key),
        }
    }
}

impl<K> fmt::Debug for Watched<K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watched")
            .field("link", &self.link)
            .field("tables", &self.tables)
            .finish_non_exhaustive()
    }
}

/// How changes of the rules of a family are noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RulesSource {
    /// By notifications of nf_tables: for its tables, and for those of iptables in the variant nft.
    Events,
    /// By reading the tables at intervals: for iptables in the legacy variant.
    Checks,
}

/// How a [`Watcher`] works.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WatchOptions {
    /// How changes of rules are noticed. The rules of a family that is not in the map are not watched.
    pub rules: BTreeMap<Family, RulesSource>,
    /// How often rules with [`RulesSource::Checks`] are read, and all watched rules while nf_tables sends no notifications. Each reading
    /// starts processes for each family: two in IPVS mode, one for each of ten chains in iptables mode, or of six if the legacy table `nat` is
    /// large. 0: never. Default: 5 seconds.
    pub check_interval: Duration,
}

impl WatchOptions {
    /// The options for rules of these families, whose changes are noticed in these ways. Those of `nft`'s tables by
    /// [`Events`](RulesSource::Events).
    #[must_use]
    pub fn new(sources: impl IntoIterator<Item = (Family, RulesSource)>) -> Self {
        Self {
            rules: sources.into_iter().collect(),
            check_interval: Duration::from_secs(5),
        }
    }

    /// Sets how often tables without events are read; 0 is never.
    #[must_use]
    pub fn with_check_interval(mut self, interval: Duration) -> Self {
        self.check_interval = interval;
        self
    }
}
