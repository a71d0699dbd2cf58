//! Encoding and decoding of messages.
//!
//! Numbers are in network byte order, except the two words of filter flags and the labels, which are in host byte order.

mod expectation;
mod flow;
mod protocol_state;
mod statistics;
mod tuple;

use kernlink_base::Family;
use kernlink_netlink::{Attribute, AttributeWriter, Error, netfilter};

pub(crate) use self::expectation::{read_expectation, write_expectation_key, write_new_expectation};
pub(crate) use self::flow::{read_flow, write_key, write_new_flow, write_update};
pub(crate) use self::statistics::{read_cpu_statistics, read_expectation_statistics, read_totals};
pub(crate) use self::tuple::write_tuple;
use crate::uapi;

/// `AF_INET` or `AF_INET6`.
pub(crate) fn family_number(family: Family) -> u8 {
    match family {
        Family::Ipv4 => uapi::AF_INET,
        Family::Ipv6 => uapi::AF_INET6,
    }
}

/// The type of a message about flows.
pub(crate) fn flow_message(command: u8) -> u16 {
    netfilter::message_type(netfilter::NFNL_SUBSYS_CTNETLINK, command)
}

/// The type of a message about expectations.
pub(crate) fn expectation_message(command: u8) -> u16 {
    netfilter::message_type(netfilter::NFNL_SUBSYS_CTNETLINK_EXP, command)
}

/// The netfilter header of a request.
pub(crate) fn header(w: &mut AttributeWriter<'_>, family: u8) {
    w.header(&netfilter::Header::new(family).to_bytes());
}

/// The netfilter header of a request to delete without a tuple, with version 1. With version 0 the kernel ignores the family and
/// deletes everything
/// ([`ctnetlink_del_conntrack`](https://github.com/torvalds/linux/blob/v6.18/net/netfilter/nf_conntrack_netlink.c#L1611)).
pub(crate) fn flush_header(w: &mut AttributeWriter<'_>, family: u8) {
    let header = netfilter::Header {
        version: 1,
        ..netfilter::Header::new(family)
    };
    w.header(&header.to_bytes());
}

/// The text of one attribute inside another. Bytes that are not UTF-8 are replaced, so that a name from a module or a policy cannot
/// make the flow unreadable.
fn read_name(attribute: &Attribute<'_>, kind: u16) -> Result<Option<Box<str>>, Error> {
    for attribute in attribute.nested() {
        let attribute = attribute?;
        if attribute.kind() == kind {
            return Ok(Some(text(&attribute)));
        }
    }
    Ok(None)
}

fn text(attribute: &Attribute<'_>) -> Box<str> {
    let text = attribute
        .bytes()
        .split(|byte| *byte == 0)
        .next()
        .unwrap_or_default();
    String::from_utf8_lossy(text).into()
}
