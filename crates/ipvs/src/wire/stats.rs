//! Counters, in the same format for virtual servers and real servers.

#[cfg(feature = "netlink-packet")]
use kernlink_netlink::AttributeWriter;
use kernlink_netlink::{Attribute, Error};

use crate::stats::{Rates, Stats};
use crate::uapi::*;

/// The counters of a message. 64-bit counters have precedence over 32-bit counters, regardless of their order.
#[derive(Default)]
pub(super) struct Counters {
    narrow: Stats,
    wide: Option<Stats>,
}

impl Counters {
    pub(super) fn read_32(&mut self, attribute: &Attribute<'_>) -> Result<(), Error> {
        self.narrow = read_stats(attribute, |counter| match counter.kind() {
            IPVS_STATS_ATTR_INBYTES | IPVS_STATS_ATTR_OUTBYTES => counter.ne_u64(),
            _ => counter.ne_u32().map(u64::from),
        })?;
        Ok(())
    }

    pub(super) fn read_64(&mut self, attribute: &Attribute<'_>) -> Result<(), Error> {
        self.wide = Some(read_stats(attribute, |counter| counter.ne_u64())?);
        Ok(())
    }

    pub(super) fn finish(self) -> Stats {
        self.wide.unwrap_or(self.narrow)
    }
}

#[cfg(feature = "netlink-packet")]
pub(super) fn write_stats_64(writer: &mut AttributeWriter<'_>, kind: u16, stats: &Stats) {
    writer.nested(kind, |writer| {
        writer
            .ne_u64(IPVS_STATS_ATTR_CONNS, stats.connections)
            .ne_u64(IPVS_STATS_ATTR_INPKTS, stats.incoming_packets)
            .ne_u64(IPVS_STATS_ATTR_OUTPKTS, stats.outgoing_packets)
            .ne_u64(IPVS_STATS_ATTR_INBYTES, stats.incoming_bytes)
            .ne_u64(IPVS_STATS_ATTR_OUTBYTES, stats.outgoing_bytes)
            .ne_u64(IPVS_STATS_ATTR_CPS, stats.rates.connections)
            .ne_u64(IPVS_STATS_ATTR_INPPS, stats.rates.incoming_packets)
            .ne_u64(IPVS_STATS_ATTR_OUTPPS, stats.rates.outgoing_packets)
            .ne_u64(IPVS_STATS_ATTR_INBPS, stats.rates.incoming_bytes)
            .ne_u64(IPVS_STATS_ATTR_OUTBPS, stats.rates.outgoing_bytes);
    });
}

fn read_stats(
    attribute: &Attribute<'_>,
    counter: impl Fn(&Attribute<'_>) -> Result<u64, Error>,
) -> Result<Stats, Error> {
    let mut stats = Stats::default();
    let mut rates = Rates::default();
    for attribute in attribute.nested() {
        let attribute = attribute?;
        let place = match attribute.kind() {
            IPVS_STATS_ATTR_CONNS => &mut stats.connections,
            IPVS_STATS_ATTR_INPKTS => &mut stats.incoming_packets,
            IPVS_STATS_ATTR_OUTPKTS => &mut stats.outgoing_packets,
            IPVS_STATS_ATTR_INBYTES => &mut stats.incoming_bytes,
            IPVS_STATS_ATTR_OUTBYTES => &mut stats.outgoing_bytes,
            IPVS_STATS_ATTR_CPS => &mut rates.connections,
            IPVS_STATS_ATTR_INPPS => &mut rates.incoming_packets,
            IPVS_STATS_ATTR_OUTPPS => &mut rates.outgoing_packets,
            IPVS_STATS_ATTR_INBPS => &mut rates.incoming_bytes,
            IPVS_STATS_ATTR_OUTBPS => &mut rates.outgoing_bytes,
            // Unknown attributes, and the padding IPVS_STATS_ATTR_PAD.
            _ => continue,
        };
        *place = counter(&attribute)?;
    }
    stats.rates = rates;
    Ok(stats)
}
