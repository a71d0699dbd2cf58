//! The part of a filter that the kernel can compare, and its messages.
//!
//! By [`ctnetlink_filter_match`](https://github.com/torvalds/linux/blob/v6.18/net/netfilter/nf_conntrack_netlink.c#L1126) the
//! kernel compares: whole addresses, if a family is given; the protocol; ports of TCP and UDP (it accepts and ignores those of
//! other protocols); ICMP type, code and identifier; mark and status with their masks; the zone. It inverts the comparison of
//! IPv6 addresses: flows with *another* address match.

use std::net::IpAddr;

use ipnet::IpNet;
use kernlink_base::{Family, Protocol};
use kernlink_netlink::AttributeWriter;

use crate::filter::{Filter, MarkFilter, StatusFilter};
use crate::tuple::{ProtocolPart, Tuple, inverse_icmp_type};
use crate::tuple_filter::TupleFilter;
use crate::uapi::*;
use crate::wire;

/// Where IPv6 addresses are compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ipv6Addresses {
    InKernel,
    InProcess,
}

/// The part of a filter that is sent to the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KernelFilter {
    family: u8,
    original: KernelTuple,
    reply: KernelTuple,
    mark: Option<MarkFilter>,
    zone: Option<u16>,
    status: Option<StatusFilter>,
    /// Whether this is the whole filter, as deleting in the kernel requires.
    pub(crate) is_exact: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct KernelTuple {
    flags: u32,
    source: Option<IpAddr>,
    destination: Option<IpAddr>,
    protocol: Option<Protocol>,
    ports: [Option<u16>; 2],
    icmp_type: Option<u8>,
    icmp_code: Option<u8>,
    icmp_identifier: Option<u16>,
}

impl KernelFilter {
    /// The largest part of `filter` that the kernel can compare, for flows of `family`. With `None`, of any family: conditions on
    /// tuples are then left out, because the kernel requires a family with them.
    pub(crate) fn of(filter: &Filter, family: Option<Family>, ipv6: Ipv6Addresses) -> Self {
        let mut exact = true;
        let (original, reply) = match family {
            Some(family) => {
                let mut original =
                    KernelTuple::of(&filter.original, family, filter.protocol, ipv6, &mut exact);
                let reply = KernelTuple::of(&filter.reply, family, filter.protocol, ipv6, &mut exact);
                if let Some(protocol) = filter.protocol {
                    original.set_protocol(protocol);
                }
                (original, reply)
            }
            None => {
                exact = filter.protocol.is_none()
                    && filter.original == TupleFilter::default()
                    && filter.reply == TupleFilter::default();
                (KernelTuple::default(), KernelTuple::default())
            }
        };
        // The kernel supports neither `either` nor labels.
        exact &= filter.either == TupleFilter::default()
            && filter
                .labels
                .is_none_or(|labels| labels.mask.0 == 0 && labels.set.0 == 0);
        // The kernel refuses an empty mask.
        let status = filter.status.filter(|status| !status.mask.is_empty());
        exact &= filter
            .status
            .is_none_or(|all| status == Some(all) || all.set.is_empty());
        KernelFilter {
            family: family.map_or(AF_UNSPEC, wire::family_number),
            original,
            reply,
            mark: filter.mark,
            zone: filter.zone,
            status,
            is_exact: exact,
        }
    }

    /// A filter by family only, which every kernel supports.
    pub(crate) fn family_only(family: Option<Family>) -> Self {
        Self::of(&Filter::new(), family, Ipv6Addresses::InProcess)
    }

    /// Whether it has conditions that kernels from 5.8 to 5.15 compare incorrectly; see [`write_reply_probe`].
    pub(crate) fn has_incorrect_conditions(&self) -> bool {
        self.reply.flags != 0 || self.mark.is_some_and(|mark| mark.mask != u32::MAX)
    }

    /// The same filter without these conditions.
    pub(crate) fn without_incorrect_conditions(mut self) -> Self {
        self.is_exact &= !self.has_incorrect_conditions();
        self.reply = KernelTuple::default();
        self.mark = self.mark.filter(|mark| mark.mask == u32::MAX);
        self
    }

    /// Writes a request to list.
    pub(crate) fn write_listing(&self, w: &mut AttributeWriter<'_>) {
        wire::header(w, self.family);
        self.write_conditions(w);
        if self.original.flags != 0 {
            self.original.write(w, CTA_TUPLE_ORIG);
        }
        if self.original.flags | self.reply.flags != 0 {
            self.write_flags(w);
        }
    }

    /// Writes a request to delete.
    pub(crate) fn write_deletion(&self, w: &mut AttributeWriter<'_>) {
        wire::flush_header(w, self.family);
        self.write_conditions(w);
        // A kernel that does not support filters in deletions deletes the flow with this original tuple. It refuses an empty
        // tuple; without a tuple it would delete everything.
        self.original.write(w, CTA_TUPLE_ORIG);
        self.write_flags(w);
    }

    fn write_conditions(&self, w: &mut AttributeWriter<'_>) {
        if let Some(zone) = self.zone {
            w.be_u16(CTA_ZONE, zone);
        }
        if let Some(MarkFilter { value, mask }) = self.mark {
            w.be_u32(CTA_MARK, value).be_u32(CTA_MARK_MASK, mask);
        }
        if let Some(StatusFilter { set, mask }) = self.status {
            w.be_u32(CTA_STATUS, set.bits())
                .be_u32(CTA_STATUS_MASK, mask.bits());
        }
        if self.reply.flags != 0 {
            self.reply.write(w, CTA_TUPLE_REPLY);
        }
    }

    /// In host byte order, unlike the other numbers.
    fn write_flags(&self, w: &mut AttributeWriter<'_>) {
        w.nested(CTA_FILTER, |w| {
            w.ne_u32(CTA_FILTER_ORIG_FLAGS, self.original.flags)
                .ne_u32(CTA_FILTER_REPLY_FLAGS, self.reply.flags);
        });
    }
}

impl KernelTuple {
    fn of(
        filter: &TupleFilter,
        family: Family,
        protocol: Option<Protocol>,
        ipv6: Ipv6Addresses,
        exact: &mut bool,
    ) -> Self {
        let mut tuple = KernelTuple::default();
        let mut address = |network: Option<IpNet>, flag: u32| -> Option<IpAddr> {
            let network = network?;
            let in_kernel = Family::of(network.addr()) == family
                && network.prefix_len() == network.max_prefix_len()
                && (family == Family::Ipv4 || ipv6 == Ipv6Addresses::InKernel);
            // A prefix of length 0 is no condition in addition to the family.
            *exact &= in_kernel || (network.prefix_len() == 0 && Family::of(network.addr()) == family);
            tuple.flags |= if in_kernel { flag } else { 0 };
            in_kernel.then(|| network.addr())
        };
        tuple.source = address(filter.source, CTA_FILTER_F_CTA_IP_SRC);
        tuple.destination = address(filter.destination, CTA_FILTER_F_CTA_IP_DST);

        let ports = [
            (filter.source_port, CTA_FILTER_F_CTA_PROTO_SRC_PORT),
            (filter.destination_port, CTA_FILTER_F_CTA_PROTO_DST_PORT),
        ];
        for (index, (port, flag)) in ports.into_iter().enumerate() {
            let Some(range) = port else { continue };
            match (protocol, range.single()) {
                (Some(protocol @ (Protocol::TCP | Protocol::UDP)), Some(port)) => {
                    tuple.set_protocol(protocol);
                    tuple.flags |= flag;
                    tuple.ports[index] = Some(port);
                }
                _ => *exact = false,
            }
        }

        let [type_flag, code_flag, identifier_flag] = match (family, protocol) {
            (Family::Ipv4, Some(Protocol::ICMP)) => [
                CTA_FILTER_F_CTA_PROTO_ICMP_TYPE,
                CTA_FILTER_F_CTA_PROTO_ICMP_CODE,
                CTA_FILTER_F_CTA_PROTO_ICMP_ID,
            ],
            (Family::Ipv6, Some(Protocol::ICMPV6)) => [
                CTA_FILTER_F_CTA_PROTO_ICMPV6_TYPE,
                CTA_FILTER_F_CTA_PROTO_ICMPV6_CODE,
                CTA_FILTER_F_CTA_PROTO_ICMPV6_ID,
            ],
            _ => {
                *exact &= filter.icmp_type.is_none()
                    && filter.icmp_code.is_none()
                    && filter.icmp_identifier.is_none();
                return tuple;
            }
        };
        let protocol = protocol.unwrap_or(Protocol::ICMP);
        // The kernel refuses types that it does not track.
        tuple.icmp_type = filter
            .icmp_type
            .filter(|kind| inverse_icmp_type(protocol, *kind).is_some());
        *exact &= tuple.icmp_type == filter.icmp_type;
        tuple.icmp_code = filter.icmp_code;
        tuple.icmp_identifier = filter.icmp_identifier;
        for (is_set, flag) in [
            (tuple.icmp_type.is_some(), type_flag),
            (tuple.icmp_code.is_some(), code_flag),
            (tuple.icmp_identifier.is_some(), identifier_flag),
        ] {
            if is_set {
                tuple.set_protocol(protocol);
                tuple.flags |= flag;
            }
        }
        tuple
    }

    fn set_protocol(&mut self, protocol: Protocol) {
        self.protocol = Some(protocol);
        self.flags |= CTA_FILTER_F_CTA_PROTO_NUM;
    }

    /// Writes the fields that are set; the flags declare them to the kernel.
    fn write(&self, w: &mut AttributeWriter<'_>, kind: u16) {
        w.nested(kind, |w| {
            if self.source.is_some() || self.destination.is_some() {
                w.nested(CTA_TUPLE_IP, |w| {
                    for (address, v4, v6) in [
                        (self.source, CTA_IP_V4_SRC, CTA_IP_V6_SRC),
                        (self.destination, CTA_IP_V4_DST, CTA_IP_V6_DST),
                    ] {
                        if let Some(address) = address {
                            w.address(if address.is_ipv4() { v4 } else { v6 }, address);
                        }
                    }
                });
            }
            let Some(protocol) = self.protocol else { return };
            let [type_kind, code_kind, identifier_kind] = if protocol == Protocol::ICMPV6 {
                [CTA_PROTO_ICMPV6_TYPE, CTA_PROTO_ICMPV6_CODE, CTA_PROTO_ICMPV6_ID]
            } else {
                [CTA_PROTO_ICMP_TYPE, CTA_PROTO_ICMP_CODE, CTA_PROTO_ICMP_ID]
            };
            w.nested(CTA_TUPLE_PROTO, |w| {
                w.u8(CTA_PROTO_NUM, protocol.0);
                for (port, kind) in self
                    .ports
                    .into_iter()
                    .zip([CTA_PROTO_SRC_PORT, CTA_PROTO_DST_PORT])
                {
                    if let Some(port) = port {
                        w.be_u16(kind, port);
                    }
                }
                if let Some(value) = self.icmp_type {
                    w.u8(type_kind, value);
                }
                if let Some(value) = self.icmp_code {
                    w.u8(code_kind, value);
                }
                if let Some(value) = self.icmp_identifier {
                    w.be_u16(identifier_kind, value);
                }
            });
        });
    }
}

/// Writes a request to list with a filter that no flow matches. A kernel without support for filters lists flows.
pub(crate) fn write_listing_probe(w: &mut AttributeWriter<'_>) {
    wire::header(w, AF_INET);
    // A value with bits outside the mask never matches.
    w.be_u16(CTA_ZONE, 0)
        .be_u32(CTA_MARK, 1)
        .be_u32(CTA_MARK_MASK, 0)
        .be_u32(CTA_STATUS, 1)
        .be_u32(CTA_STATUS_MASK, 2);
    let tuple = KernelTuple {
        flags: CTA_FILTER_F_CTA_PROTO_NUM,
        protocol: Some(RESERVED),
        ..KernelTuple::default()
    };
    tuple.write(w, CTA_TUPLE_ORIG);
    w.nested(CTA_FILTER, |w| {
        w.ne_u32(CTA_FILTER_ORIG_FLAGS, tuple.flags);
    });
}

/// Writes a request to list that a kernel with correct comparison of reply tuples refuses (`EINVAL`): its flags declare the source
/// of the reply tuple, and the reply tuple has none.
///
/// Kernels from 5.8 on parse the reply tuple by the flags of the original tuple, so they accept the request, and miss flows in
/// listings, until [ad81d4daf6a3](https://github.com/torvalds/linux/commit/ad81d4daf6a3f4769a346e635d5e1e967ca455d9) in 5.16, which
/// 5.15.6 and 5.10.83 have too. These include all 5.8 kernels, which also miss flows when a mark is compared with a mask
/// ([`ctnetlink_filter_match`](https://github.com/torvalds/linux/blob/v5.8/net/netfilter/nf_conntrack_netlink.c), correct
/// [from 5.9 on](https://github.com/torvalds/linux/blob/v5.9/net/netfilter/nf_conntrack_netlink.c)).
pub(crate) fn write_reply_probe(w: &mut AttributeWriter<'_>) {
    wire::header(w, AF_INET);
    KernelTuple::default().write(w, CTA_TUPLE_REPLY);
    w.nested(CTA_FILTER, |w| {
        w.ne_u32(CTA_FILTER_ORIG_FLAGS, 0)
            .ne_u32(CTA_FILTER_REPLY_FLAGS, CTA_FILTER_F_CTA_IP_SRC);
    });
}

/// Writes a request to delete that deletes nothing. A kernel without support for filters in deletions looks up the flow with this
/// tuple and id and does not find it (`ENOENT`); a kernel with support refuses the flags.
pub(crate) fn write_deletion_probe(w: &mut AttributeWriter<'_>) {
    let unspecified = IpAddr::from([0; 4]);
    let tuple = Tuple {
        source: unspecified,
        destination: unspecified,
        protocol: RESERVED,
        part: ProtocolPart::None,
    };
    wire::flush_header(w, AF_INET);
    wire::write_tuple(w, CTA_TUPLE_ORIG, &tuple, None);
    w.be_u32(CTA_ID, 1);
    w.nested(CTA_FILTER, |w| {
        w.ne_u32(CTA_FILTER_ORIG_FLAGS, 1 << 31);
    });
}

/// A protocol number that no packet has.
const RESERVED: Protocol = Protocol(255);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::Status;

    fn exact(filter: &Filter, family: Option<Family>, ipv6: Ipv6Addresses) -> bool {
        KernelFilter::of(filter, family, ipv6).is_exact
    }

    #[test]
    fn a_filter_is_exact_if_the_kernel_compares_every_condition() {
        let in_kernel = Ipv6Addresses::InKernel;
        let v4 = Some(Family::Ipv4);
        let host: IpNet = "10.0.0.1/32".parse().unwrap();
        let network: IpNet = "10.0.0.0/8".parse().unwrap();
        let all: IpNet = "0.0.0.0/0".parse().unwrap();
        let udp = Filter::new().with_protocol(Protocol::UDP);
        assert!(exact(
            &udp.clone().with_source(host).with_source_port(53),
            v4,
            in_kernel
        ));
        assert!(exact(&udp.clone().with_source(all), v4, in_kernel));
        assert!(!exact(&udp.clone().with_source(network), v4, in_kernel));
        assert!(!exact(&udp, None, in_kernel));
        let sctp = Filter::new().with_protocol(Protocol::SCTP);
        assert!(exact(&sctp, v4, in_kernel));
        assert!(!exact(&sctp.with_source_port(53), v4, in_kernel));
        assert!(!exact(&Filter::new().with_source_port(53), v4, in_kernel));
        assert!(exact(&Filter::new().with_zone(3).with_mark(7), None, in_kernel));
        assert!(!exact(
            &Filter::new().with_masked_status(Status::ASSURED, Status::empty()),
            None,
            in_kernel
        ));
    }

    #[test]
    fn ipv6_addresses_are_sent_only_if_the_kernel_compares_them_correctly() {
        let filter = Filter::new().with_source("fd00::1/128".parse::<IpNet>().unwrap());
        let v6 = Some(Family::Ipv6);
        assert!(exact(&filter, v6, Ipv6Addresses::InKernel));
        let in_process = KernelFilter::of(&filter, v6, Ipv6Addresses::InProcess);
        assert!(!in_process.is_exact);
        assert_eq!(in_process.original, KernelTuple::default());
    }

    #[test]
    fn a_deletion_has_a_tuple_that_kernels_without_filters_refuse() {
        let mut bytes = Vec::new();
        let filter = Filter::new().with_zone(3);
        KernelFilter::of(&filter, None, Ipv6Addresses::InKernel)
            .write_deletion(&mut AttributeWriter::new(&mut bytes));
        // Family 0 in version 1, zone 3, an empty CTA_TUPLE_ORIG, CTA_FILTER with two words of zero.
        assert_eq!(&bytes[..12], &[0, 1, 0, 0, 6, 0, 18, 0, 0, 3, 0, 0]);
        assert_eq!(&bytes[12..16], &[4, 0, 1, 0x80]);
        assert_eq!(&bytes[16..20], &[20, 0, 25, 0x80]);
    }
}
