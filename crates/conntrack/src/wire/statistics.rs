//! Statistics.

use kernlink_netlink::{AttributeReader, Error, netfilter};

use crate::statistics::{CpuStatistics, ExpectationStatistics, Totals};
use crate::uapi::*;

pub(crate) fn read_totals(payload: &[u8]) -> Result<Totals, Error> {
    let mut totals = Totals::default();
    for attribute in AttributeReader::after_header(payload, netfilter::HEADER_LENGTH)? {
        let attribute = attribute?;
        match attribute.kind() {
            CTA_STATS_GLOBAL_ENTRIES => totals.entries = attribute.be_u32()?,
            CTA_STATS_GLOBAL_MAX_ENTRIES => totals.limit = Some(attribute.be_u32()?),
            _ => {}
        }
    }
    Ok(totals)
}

pub(crate) fn read_cpu_statistics(payload: &[u8]) -> Result<CpuStatistics, Error> {
    let mut statistics = CpuStatistics {
        // The header has the processor number.
        cpu: netfilter::Header::from_bytes(payload)?.resource,
        ..CpuStatistics::default()
    };
    for attribute in AttributeReader::after_header(payload, netfilter::HEADER_LENGTH)? {
        let attribute = attribute?;
        let field = match attribute.kind() {
            CTA_STATS_FOUND => &mut statistics.found,
            CTA_STATS_INVALID => &mut statistics.invalid,
            CTA_STATS_INSERT => &mut statistics.insert,
            CTA_STATS_INSERT_FAILED => &mut statistics.insert_failed,
            CTA_STATS_DROP => &mut statistics.drop,
            CTA_STATS_EARLY_DROP => &mut statistics.early_drop,
            CTA_STATS_ERROR => &mut statistics.error,
            CTA_STATS_SEARCH_RESTART => &mut statistics.search_restart,
            CTA_STATS_CLASH_RESOLVE => &mut statistics.clash_resolve,
            CTA_STATS_CHAIN_TOOLONG => &mut statistics.chain_too_long,
            _ => continue,
        };
        *field = attribute.be_u32()?;
    }
    Ok(statistics)
}

pub(crate) fn read_expectation_statistics(payload: &[u8]) -> Result<ExpectationStatistics, Error> {
    let mut statistics = ExpectationStatistics {
        cpu: netfilter::Header::from_bytes(payload)?.resource,
        ..ExpectationStatistics::default()
    };
    for attribute in AttributeReader::after_header(payload, netfilter::HEADER_LENGTH)? {
        let attribute = attribute?;
        let field = match attribute.kind() {
            CTA_STATS_EXP_NEW => &mut statistics.new,
            CTA_STATS_EXP_CREATE => &mut statistics.create,
            CTA_STATS_EXP_DELETE => &mut statistics.delete,
            _ => continue,
        };
        *field = attribute.be_u32()?;
    }
    Ok(statistics)
}
