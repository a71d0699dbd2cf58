//! Notices changes that other programs make to the kernel objects of IPVS mode.
//!
//! | object | how a change is noticed |
//! |---|---|
//! | the dummy link, its addresses, the addresses of the node | events of route netlink |
//! | chains and jumps in nftables | notifications of nf_tables |
//! | chains and jumps in legacy tables | they are read every 5 seconds, see [`WatchOptions::check_interval`] |
//! | virtual servers, real servers, sets, entries, sysctls | the kernel sends no events: only a full listing finds a change |

mod changes;
mod pace;
mod watcher;

use std::collections::BTreeMap;
use std::time::Duration;

use kernlink_iptables_restore::{Client, Variant};
use kernlink_services::Family;

pub use self::watcher::{WatchError, Watcher};
use super::key::Key;

/// What a [`Watcher`] noticed.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum WatchEvent {
    /// These objects may have been removed or changed: call [`Runner::recheck`](crate::Runner::recheck). Own changes are noticed too;
    /// the objects are then found as recorded.
    Recheck(Vec<Key>),
    /// Any object may have been removed or changed: call [`Runner::resync`](crate::Runner::resync). The dummy link was removed or renamed,
    /// or events were lost.
    Resync,
    /// A source of events failed. It is opened again every 5 seconds. Each error is reported once until the source works again.
    Failed(WatchError),
}

/// How changes of the rules of a family are noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RulesSource {
    /// By notifications of nf_tables, for the variant nft.
    Events,
    /// By reading the tables at intervals, for the legacy variant.
    Checks,
}

/// How a [`Watcher`] works.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct WatchOptions {
    /// How changes of rules are noticed. The rules of a family that is not in the map are not watched.
    pub rules: BTreeMap<Family, RulesSource>,
    /// How often the tables with [`RulesSource::Checks`] are read, and all watched tables while nf_tables sends no notifications. Each
    /// reading starts two processes for each family. 0: never. Default: 5 seconds.
    pub check_interval: Duration,
}

impl WatchOptions {
    /// The options for rules of these variants.
    #[must_use]
    pub fn new(variants: impl IntoIterator<Item = (Family, Variant)>) -> Self {
        let source = |variant| match variant {
            Variant::Nft => RulesSource::Events,
            Variant::Legacy => RulesSource::Checks,
        };
        let variants = variants.into_iter();
        Self {
            rules: variants
                .map(|(family, variant)| (family, source(variant)))
                .collect(),
            check_interval: Duration::from_secs(5),
        }
    }

    /// The options for the variant that the iptables tools of this host have, for these families. A family without tools is not watched.
    #[must_use]
    pub fn detect(families: impl IntoIterator<Item = Family>) -> Self {
        let mut client = Client::new();
        let variants = families.into_iter().filter_map(|family| {
            let version = client.version(family).ok()?;
            Some((family, version.variant))
        });
        Self::new(variants)
    }

    /// Sets how often tables without events are read; 0 is never.
    #[must_use]
    pub fn with_check_interval(mut self, interval: Duration) -> Self {
        self.check_interval = interval;
        self
    }
}
