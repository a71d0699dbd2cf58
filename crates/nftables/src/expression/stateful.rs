//! Expressions with a state. They can also be in elements, and most of them can be objects.

use kernlink_netlink::{Attribute, AttributeWriter, Error};

use crate::wire::{Field, attributes, flags_field, open_enum};

attributes! {
    /// `counter`.
    Counter {
        ;
        /// Bytes.
        with_bytes bytes: u64 = NFTA_COUNTER_BYTES,
        /// Packets.
        with_packets packets: u64 = NFTA_COUNTER_PACKETS,
    }
}

bitflags::bitflags! {
    /// Whether a condition is inverted.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct InvertFlags: u32 {
        /// It is (`over`).
        const INVERT = crate::uapi::NFT_LIMIT_F_INV;
        const _ = !0;
    }
}

bitflags::bitflags! {
    /// Flags of a quota.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct QuotaFlags: u32 {
        /// The rule ends until the bytes are used up (`over`).
        const INVERT = crate::uapi::NFT_QUOTA_F_INV;
        /// The bytes are used up; only read.
        const DEPLETED = crate::uapi::NFT_QUOTA_F_DEPLETED;
        const _ = !0;
    }
}

flags_field!(InvertFlags);

impl Field for QuotaFlags {
    /// Without `DEPLETED`, which the kernel refuses with `EINVAL` although it lists it.
    fn write(&self, writer: &mut AttributeWriter<'_>, kind: u16) {
        let flags = self.difference(QuotaFlags::DEPLETED);
        if !flags.is_empty() {
            flags.bits().write(writer, kind);
        }
    }

    fn read(attribute: &Attribute<'_>) -> Result<Self, Error> {
        u32::read(attribute).map(QuotaFlags::from_bits_retain)
    }
}

open_enum! {
    /// What a rate counts.
    LimitKind: u32 {
        /// Packets.
        Packets = NFT_LIMIT_PKTS "packets",
        /// Bytes.
        Bytes = NFT_LIMIT_PKT_BYTES "bytes",
    }
}

attributes! {
    /// `limit`: the rule ends if the rate is exceeded.
    Limit {
        /// Packets or bytes in a unit of time.
        rate: u64 = NFTA_LIMIT_RATE,
        /// The unit of time in seconds: 1, 60, 3 600, 86 400, 604 800.
        unit: u64 = NFTA_LIMIT_UNIT,
        ;
        /// Packets or bytes above the rate that are possible at once.
        with_burst burst: u32 = NFTA_LIMIT_BURST,
        /// What the rate counts.
        with_kind kind: LimitKind = NFTA_LIMIT_TYPE,
        /// Whether the rule ends as long as the rate is not exceeded.
        with_flags flags: InvertFlags = NFTA_LIMIT_FLAGS,
    }
}

attributes! {
    /// `quota`: the rule ends after a number of bytes.
    Quota {
        /// The number of bytes.
        bytes: u64 = NFTA_QUOTA_BYTES,
        ;
        /// Flags.
        with_flags flags: QuotaFlags = NFTA_QUOTA_FLAGS,
        /// The bytes that were used.
        with_consumed consumed: u64 = NFTA_QUOTA_CONSUMED,
    }
}

attributes! {
    /// `connlimit`: the rule ends if there are more connections.
    ConnectionLimit {
        /// The number of connections.
        count: u32 = NFTA_CONNLIMIT_COUNT,
        ;
        /// Whether the rule ends as long as there are not more.
        with_flags flags: InvertFlags = NFTA_CONNLIMIT_FLAGS,
    }
}

attributes! {
    /// `last`: the time of the last packet.
    Last {
        ;
        /// 1 if there was a packet.
        with_set set: u32 = NFTA_LAST_SET,
        /// Milliseconds since then.
        with_milliseconds milliseconds: u64 = NFTA_LAST_MSECS,
    }
}
