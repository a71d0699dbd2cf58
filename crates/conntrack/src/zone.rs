//! Zones of the table.

/// A zone: a table of its own inside the table, so that the same addresses may stand for different
/// connections. Zone 0 is where flows are unless a rule says otherwise.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[doc(alias = "nf_conntrack_zone")]
pub struct Zone {
    /// Number of the zone.
    pub id: u16,
    /// Which direction's tuple the zone belongs to.
    pub scope: ZoneScope,
}

/// Which tuples of a flow a zone applies to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ZoneScope {
    /// Both directions (`CT --zone`).
    #[default]
    #[doc(alias = "NF_CT_DEFAULT_ZONE_DIR")]
    Both,
    /// The original direction only (`CT --zone-orig`); replies are in zone 0.
    #[doc(alias = "NF_CT_ZONE_DIR_ORIG")]
    Original,
    /// The reply direction only (`CT --zone-reply`).
    #[doc(alias = "NF_CT_ZONE_DIR_REPL")]
    Reply,
}

impl Zone {
    /// Zone 0.
    pub const DEFAULT: Zone = Zone {
        id: 0,
        scope: ZoneScope::Both,
    };

    /// A zone of both directions.
    pub fn new(id: u16) -> Self {
        Zone {
            id,
            scope: ZoneScope::Both,
        }
    }

    /// Number of the zone that tuples of this direction are in.
    pub(crate) fn number_in(self, direction: ZoneScope) -> u16 {
        if self.scope == ZoneScope::Both || self.scope == direction {
            self.id
        } else {
            0
        }
    }
}
