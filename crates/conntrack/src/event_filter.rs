//! Kernel filters of events, as programs of a socket filter.
//!
//! A program is classic BPF. It reads the datagram, netlink header included, and finds attributes by two extensions
//! ([`filter.h`](https://github.com/torvalds/linux/blob/v6.18/include/uapi/linux/filter.h),
//! [`bpf_skb_get_nlattr`](https://github.com/torvalds/linux/blob/v6.18/net/core/filter.c)): `SKF_AD_NLATTR` searches from offset A
//! for an attribute of type X, `SKF_AD_NLATTR_NEST` searches inside the attribute at offset A; both put the offset of the
//! attribute's header into A, and 0 if there is none. The kernel sends one event in each datagram
//! ([`ctnetlink_conntrack_event`](https://github.com/torvalds/linux/blob/v6.18/net/netfilter/nf_conntrack_netlink.c)).
//!
//! A program accepts a message that it cannot parse. Every received event is compared again by [`Filter::matches`].

mod program;
#[cfg(test)]
mod tests;

use kernlink_netlink::{FilterInstruction, MAX_FILTER_INSTRUCTIONS, netfilter};

use self::program::{DROP, LD_B_ABS, Program, RET_K, SUBSYSTEM};
use crate::error::InvalidOperation;
use crate::filter::{Filter, LabelFilter, MarkFilter, StatusFilter};
use crate::tuple_filter::TupleFilter;

/// A program that accepts events of flows that match one of `filters`, and all events of expectations. It compares the conditions
/// that [`check`] accepts.
///
/// # Errors
/// [`InvalidOperation::KernelFilterTooLong`].
pub(crate) fn compile(filters: &[Filter]) -> Result<Vec<FilterInstruction>, InvalidOperation> {
    let any = |condition: fn(&Filter) -> bool| filters.iter().any(condition);
    let mut program = Program::default();
    program.load(LD_B_ABS, SUBSYSTEM);
    program.accept_unless_equal(u32::from(netfilter::NFNL_SUBSYS_CTNETLINK));
    if any(|filter| filter.protocol.is_some() || has_addresses(filter)) {
        program.find_tuple();
    }
    if any(has_addresses) {
        program.find_addresses();
    }
    if any(|filter| filter.protocol.is_some()) {
        program.find_protocol();
    }
    for filter in filters {
        program.block(filter)?;
    }
    program.load(RET_K, DROP);
    let instructions = program.instructions.len();
    if instructions > MAX_FILTER_INSTRUCTIONS {
        return Err(InvalidOperation::KernelFilterTooLong {
            filters: filters.len(),
            instructions,
        });
    }
    Ok(program.instructions)
}

fn has_addresses(filter: &Filter) -> bool {
    filter.original.source.is_some() || filter.original.destination.is_some()
}

/// Returns an error for a condition that a program does not compare.
pub(crate) fn check(filter: &Filter) -> Result<(), InvalidOperation> {
    filter.check()?;
    // Without `..`, so that a new condition must be added here.
    let Filter {
        family: _,
        protocol: _,
        original,
        reply,
        either,
        mark,
        zone,
        status,
        labels,
    } = filter;
    let TupleFilter {
        source: _,
        destination: _,
        source_port,
        destination_port,
        icmp_type,
        icmp_code,
        icmp_identifier,
    } = original;
    let none = TupleFilter::default();
    let refused = [
        ("original source port", source_port.is_some()),
        ("original destination port", destination_port.is_some()),
        ("ICMP type", icmp_type.is_some()),
        ("ICMP code", icmp_code.is_some()),
        ("ICMP identifier", icmp_identifier.is_some()),
        ("reply tuple", *reply != none),
        ("either tuple", *either != none),
        (
            "mark",
            mark.is_some_and(|MarkFilter { value, mask }| value | mask != 0),
        ),
        ("zone", zone.is_some()),
        (
            "status",
            status.is_some_and(|StatusFilter { set, mask }| !(set | mask).is_empty()),
        ),
        (
            "labels",
            labels.is_some_and(|LabelFilter { set, mask }| set.0 | mask.0 != 0),
        ),
    ];
    match refused.into_iter().find(|(_, is_set)| *is_set) {
        Some((field, _)) => Err(InvalidOperation::UnsupportedInKernelFilter { field }),
        None => Ok(()),
    }
}
