//! Status bits of a flow.

use std::fmt;

bitflags::bitflags! {
    /// Status bits of a flow
    /// ([`ip_conntrack_status`](https://github.com/torvalds/linux/blob/v6.18/include/uapi/linux/netfilter/nf_conntrack_common.h#L42)).
    /// Bits without a name are kept.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
    #[doc(alias = "IPS_CONFIRMED")]
    pub struct Status: u32 {
        /// The flow was expected by another one.
        const EXPECTED = 1 << 0;
        /// Packets were seen in both directions. `conntrack` prints `[UNREPLIED]` if it is not set.
        const SEEN_REPLY = 1 << 1;
        /// Not dropped early when the table is full.
        const ASSURED = 1 << 2;
        /// The first packet left this host. Set for every flow in the table.
        const CONFIRMED = 1 << 3;
        /// The source is translated.
        const SRC_NAT = 1 << 4;
        /// The destination is translated.
        const DST_NAT = 1 << 5;
        /// TCP sequence numbers are adjusted.
        const SEQ_ADJUST = 1 << 6;
        /// Source translation is decided.
        const SRC_NAT_DONE = 1 << 7;
        /// Destination translation is decided.
        const DST_NAT_DONE = 1 << 8;
        /// Removed from the table.
        const DYING = 1 << 9;
        /// The timeout cannot be changed.
        const FIXED_TIMEOUT = 1 << 10;
        /// A template of a rule, not a connection.
        const TEMPLATE = 1 << 11;
        /// Obsolete.
        const UNTRACKED = 1 << 12;
        /// A helper was attached by a rule or through netlink.
        const HELPER = 1 << 13;
        /// Forwarded by a flow table.
        const OFFLOAD = 1 << 14;
        /// Forwarded by hardware.
        const HW_OFFLOAD = 1 << 15;
        /// Bits without a name are kept.
        const _ = !0;
    }
}

impl fmt::Display for Status {
    /// Names of the bits, separated by commas, unknown bits as a number: `SEEN_REPLY,ASSURED,CONFIRMED`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (name, _) in self.iter_names() {
            write!(f, "{separator}{name}")?;
            separator = ",";
        }
        match self.bits() & !Status::known() {
            0 => Ok(()),
            unknown => write!(f, "{separator}{unknown:#x}"),
        }
    }
}

impl Status {
    fn known() -> u32 {
        Status::all()
            .iter_names()
            .fold(0, |bits, (_, flag)| bits | flag.bits())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_prints_names_and_unknown_bits() {
        let status = Status::from_bits_retain(1 << 1 | 1 << 3 | 1 << 30);
        assert_eq!(status.to_string(), "SEEN_REPLY,CONFIRMED,0x40000000");
        assert_eq!(Status::default().to_string(), "");
    }
}
