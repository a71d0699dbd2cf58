//! Notices changes that other programs make to kernel objects, for every data path: links and addresses by events of route netlink, rules by
//! notifications of nf_tables, or by checks at intervals.

mod changes;
mod error;
mod failures;
mod notification;
mod pace;
mod runner;
mod watcher;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::time::Duration;

use kernlink_dummylink::{AddressKey, LinkName};
use kernlink_services::Family;

pub use self::error::WatchError;
pub use self::runner::{WATCH_FAILED, WatchedRunner};
pub use self::watcher::Watcher;

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
    /// A source of events works again. There is one for each error that [`Failed`](Self::Failed) reported, unless the watcher ended or was replaced
    /// meanwhile.
    Recovered(WatchError),
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
            WatchEvent::Recovered(error) => WatchEvent::Recovered(error),
        }
    }
}

/// What a [`Watcher`] watches: the configuration of a data path.
pub trait Watchable {
    /// The key of the data path.
    type Key: 'static;
    /// The kernel APIs of the data path.
    type Kernel;

    /// What is to be watched.
    ///
    /// # Errors
    /// If the configuration is invalid.
    fn watched(&self) -> Result<Watched<Self::Key>, WatchError>;

    /// How changes are noticed, on this host. The [own ports](WatchOptions::own_ports) are those of [`own_ports`](Self::own_ports).
    fn watch_options(&self) -> WatchOptions;

    /// The port IDs of the netlink sockets by which the data path changes nf_tables, if changes by them are not to be noticed. Default: none.
    fn own_ports(_kernel: &Self::Kernel) -> BTreeSet<u32> {
        BTreeSet::new()
    }
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
/// Changes of sets and maps are not noticed, those of their elements by [`with_elements`](Self::with_elements).
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WatchedTable {
    /// Its name.
    pub name: Box<str>,
    /// The chains whose changes are noticed; `None`: all of them. A chain that the data path changes often should not be in the list: its own
    /// changes are noticed too.
    pub chains: Option<Vec<Box<str>>>,
    /// Whether changes of elements by other programs are noticed.
    pub has_elements: bool,
}

impl WatchedTable {
    /// A table with all of its chains.
    #[must_use]
    pub fn new(name: &str) -> Self {
        Self {
            name: name.into(),
            chains: None,
            has_elements: false,
        }
    }

    /// The same table with the elements of its sets and maps. Their changes are noticed only if the [own ports](WatchOptions::own_ports) are
    /// known: each sync of the data path changes elements.
    #[must_use]
    pub fn with_elements(mut self) -> Self {
        self.has_elements = true;
        self
    }

    /// The same table with these chains only.
    #[must_use]
    pub fn with_chains<C: Into<Box<str>>>(mut self, chains: impl IntoIterator<Item = C>) -> Self {
        self.chains = Some(chains.into_iter().map(Into::into).collect());
        self
    }
}

/// What may have changed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Changed {
    /// An address was removed from the [link](Watched::link).
    Address(AddressKey),
    /// A watched table of a family, or a chain in one, was changed.
    Rules(Family),
    /// An element of a watched table was added, changed or deleted.
    Element(ChangedElement),
    /// Many elements of a watched table were: the family and the name of the table.
    Elements(Family, Box<str>),
}

/// An element of a set or map that another program added, changed or deleted.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct ChangedElement {
    /// The family of the table.
    pub family: Family,
    /// The name of the table.
    pub table: Box<str>,
    /// The set or map.
    pub set: Box<str>,
    /// The bytes of its key.
    pub key: Box<[u8]>,
}

impl ChangedElement {
    /// The element of a set or map of a table with this key.
    #[must_use]
    pub fn new(family: Family, table: &str, set: &str, key: &[u8]) -> Self {
        Self {
            family,
            table: table.into(),
            set: set.into(),
            key: key.into(),
        }
    }
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
    /// The port IDs of the netlink sockets by which this process changes nf_tables. Changes by them are not noticed. Default: none.
    pub own_ports: BTreeSet<u32>,
}

impl WatchOptions {
    /// The options for rules of these families, whose changes are noticed in these ways. Those of `nft`'s tables by
    /// [`Events`](RulesSource::Events).
    #[must_use]
    pub fn new(sources: impl IntoIterator<Item = (Family, RulesSource)>) -> Self {
        Self {
            rules: sources.into_iter().collect(),
            check_interval: Duration::from_secs(5),
            own_ports: BTreeSet::new(),
        }
    }

    /// Adds the port IDs of own sockets.
    #[must_use]
    pub fn with_own_ports(mut self, ports: impl IntoIterator<Item = u32>) -> Self {
        self.own_ports.extend(ports);
        self
    }

    /// Sets how often tables without events are read; 0 is never.
    #[must_use]
    pub fn with_check_interval(mut self, interval: Duration) -> Self {
        self.check_interval = interval;
        self
    }
}
