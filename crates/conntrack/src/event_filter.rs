//! Event filters as programs of the kernel's socket filter.
//!
//! A program is classic BPF. It sees the datagram from the netlink header on, and finds attributes by two extensions
//! ([`filter.h`](https://github.com/torvalds/linux/blob/v6.18/include/uapi/linux/filter.h),
//! [`bpf_skb_get_nlattr`](https://github.com/torvalds/linux/blob/v6.18/net/core/filter.c)): `SKF_AD_NLATTR` searches from offset A
//! for an attribute of type X, `SKF_AD_NLATTR_NEST` searches inside the attribute at offset A; both put the offset of the
//! attribute's header into A, and 0 if there is none. The kernel sends one event in each datagram
//! ([`ctnetlink_conntrack_event`](https://github.com/torvalds/linux/blob/v6.18/net/netfilter/nf_conntrack_netlink.c)).
//!
//! A program accepts what it cannot read: every event that arrives is compared once more by [`Filter::matches`].

mod program;
#[cfg(test)]
mod tests;

use kernlink_netlink::{FilterInstruction, MAX_FILTER_INSTRUCTIONS, netfilter};

use self::program::{DROP, LD_B_ABS, Program, RET_K, SUBSYSTEM};
use crate::error::InvalidOperation;
use crate::filter::{Filter, LabelFilter, MarkFilter, StatusFilter};
use crate::tuple_filter::TupleFilter;

/// The program that accepts events of flows which one of `filters` accepts, and all events of expectations. Of each filter it
/// compares the conditions that [`check`] lets pass.
///
/// # Errors
/// More filters than fit into a program.
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
        return Err(InvalidOperation::KernelFilterLength {
            filters: filters.len(),
            instructions,
        });
    }
    Ok(program.instructions)
}

fn has_addresses(filter: &Filter) -> bool {
    filter.original.source.is_some() || filter.original.destination.is_some()
}

/// Refuses conditions that a program does not compare.
pub(crate) fn check(filter: &Filter) -> Result<(), InvalidOperation> {
    filter.check()?;
    // Without a rest pattern: a new condition has to be sorted in here.
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
        Some((field, _)) => Err(InvalidOperation::NotInKernelFilter { field }),
        None => Ok(()),
    }
}
