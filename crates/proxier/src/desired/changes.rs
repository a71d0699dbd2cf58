//! What changed in the desired state since a planner last asked.

use std::collections::BTreeSet;
use std::net::IpAddr;

use kernlink_ipset::Entry;
use kernlink_ipvs::VirtualServerKey;

use super::sets::SetId;
use crate::family::Family;

/// What changed in the desired state since this was asked last: keys to look up anew, whether they are there or not.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Changes {
    /// Too much to name, or never asked: compare everything.
    Everything,
    /// No more than these.
    Keys(ChangedKeys),
}

/// The keys that changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ChangedKeys {
    /// Virtual servers: their settings, their real servers, or whether they are wanted.
    pub virtual_servers: BTreeSet<VirtualServerKey>,
    /// Addresses of the dummy link.
    pub addresses: BTreeSet<IpAddr>,
    /// Set entries.
    pub entries: BTreeSet<(Family, SetId, Entry)>,
    /// Families whose rules may be others now.
    pub rules: BTreeSet<Family>,
    /// Health-check node ports, with their counts.
    pub health_checks: BTreeSet<(Family, u16)>,
    /// Whether kernel settings may be others now.
    pub settings: bool,
}

impl ChangedKeys {
    /// Whether nothing changed.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    fn len(&self) -> usize {
        self.virtual_servers.len() + self.addresses.len() + self.entries.len() + self.health_checks.len()
    }
}

impl Default for Changes {
    fn default() -> Self {
        Changes::Keys(ChangedKeys::default())
    }
}

impl Changes {
    /// Notes a changed key, unless everything counts as changed anyway.
    pub(crate) fn note(&mut self, note: impl FnOnce(&mut ChangedKeys)) {
        if let Changes::Keys(keys) = self {
            note(keys);
            if keys.len() > MOST_KEYS {
                *self = Changes::Everything;
            }
        }
    }
}

/// Beyond this many keys naming them costs more than comparing everything.
const MOST_KEYS: usize = 100_000;
