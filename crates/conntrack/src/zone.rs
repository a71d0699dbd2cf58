//! Zones.

/// A zone separates flows with the same tuples, as if each zone were a table. Flows are in zone 0 unless a rule (`CT --zone`) sets
/// another one. The default is [`Zone::DEFAULT`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[doc(alias = "nf_conntrack_zone")]
pub struct Zone {
    /// Id of the zone.
    pub id: u16,
    /// The direction whose tuple is in the zone.
    pub direction: ZoneDirection,
}

/// The direction of a flow that a zone applies to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ZoneDirection {
    /// Both directions (`CT --zone`).
    #[default]
    #[doc(alias = "NF_CT_DEFAULT_ZONE_DIR")]
    Both,
    /// The original direction only (`CT --zone-orig`); replies are in zone 0.
    #[doc(alias = "NF_CT_ZONE_DIR_ORIG")]
    Original,
    /// The reply direction only (`CT --zone-reply`); the original direction is in zone 0.
    #[doc(alias = "NF_CT_ZONE_DIR_REPL")]
    Reply,
}

impl Zone {
    /// Zone 0, both directions.
    pub const DEFAULT: Zone = Zone {
        id: 0,
        direction: ZoneDirection::Both,
    };

    /// The zone with this id, both directions.
    #[must_use]
    pub fn new(id: u16) -> Self {
        Zone {
            id,
            direction: ZoneDirection::Both,
        }
    }

    /// Id of the zone of tuples of this direction.
    pub(crate) fn id_in(self, direction: ZoneDirection) -> u16 {
        if self.direction == ZoneDirection::Both || self.direction == direction {
            self.id
        } else {
            0
        }
    }
}
