//! What of a filter the kernel can do.
//!
//! From [`ctnetlink_filter_match`](https://github.com/torvalds/linux/blob/v6.18/net/netfilter/nf_conntrack_netlink.c#L1126):
//! whole addresses, with a family only; the protocol; ports of TCP and UDP only (those of other
//! protocols are taken and then not compared); ICMP identities; mark, status and zone with their
//! masks. IPv6 addresses are compared the wrong way round: flows with *another* address pass.

use std::net::IpAddr;

use ipnet::IpNet;
use kernlink_base::{Family, Protocol};
use kernlink_netlink::AttributeWriter;

use crate::filter::{Filter, MarkFilter, StatusFilter};
use crate::tuple::{ProtocolPart, Tuple, inverse_icmp_type};
use crate::tuple_filter::TupleFilter;
use crate::uapi::*;
use crate::wire;

/// Whether addresses of IPv6 may be given to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ipv6Addresses {
    Pushed,
    HeldBack,
}

/// The part of a filter that the kernel is given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KernelFilter {
    family: u8,
    original: KernelTuple,
    reply: KernelTuple,
    mark: Option<MarkFilter>,
    zone: Option<u16>,
    status: Option<StatusFilter>,
    /// Whether this is all of the filter: then the kernel may also delete by it.
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
    /// The largest part of `filter` that the kernel can do, for flows of `family` or, with `None`,
    /// of any: tuples are then left out, since the kernel wants a family with them.
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
        // The kernel compares neither.
        exact &= filter.either == TupleFilter::default()
            && filter
                .labels
                .is_none_or(|labels| labels.mask.0 == 0 && labels.set.0 == 0);
        // An empty mask is refused.
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

    /// Nothing but the family, which every kernel can.
    pub(crate) fn family_only(family: Option<Family>) -> Self {
        Self::of(&Filter::new(), family, Ipv6Addresses::HeldBack)
    }

    /// Whether it has conditions that kernels from 5.8 to 5.15 get wrong; see [`write_reply_probe`].
    pub(crate) fn may_be_misread(&self) -> bool {
        self.reply.flags != 0 || self.mark.is_some_and(|mark| mark.mask != u32::MAX)
    }

    /// The same without these conditions.
    pub(crate) fn without_misread(mut self) -> Self {
        self.is_exact &= !self.may_be_misread();
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
        // A kernel that does not know filters on deletion takes an original tuple for the flow to
        // delete. One without content makes it refuse; with nothing here it would delete everything.
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

    /// Unlike everything else here, in the host's byte order.
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
            let pushed = Family::of(network.addr()) == family
                && network.prefix_len() == network.max_prefix_len()
                && (family == Family::Ipv4 || ipv6 == Ipv6Addresses::Pushed);
            // The whole address space is no condition beyond the family.
            *exact &= pushed || (network.prefix_len() == 0 && Family::of(network.addr()) == family);
            tuple.flags |= if pushed { flag } else { 0 };
            pushed.then(|| network.addr())
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
        // The kernel refuses types that make no flows.
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

    /// Writes what is set and nothing else; the flags tell the kernel what that is.
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

/// Writes a request to list that no flow can match, to see whether the kernel takes filters.
pub(crate) fn write_listing_probe(w: &mut AttributeWriter<'_>) {
    wire::header(w, AF_INET);
    // Bits that are not looked at and yet set: never.
    w.be_u16(CTA_ZONE, 0)
        .be_u32(CTA_MARK, 1)
        .be_u32(CTA_MARK_MASK, 0)
        .be_u32(CTA_STATUS, 1)
        .be_u32(CTA_STATUS_MASK, 2);
    let tuple = KernelTuple {
        flags: CTA_FILTER_F_CTA_PROTO_NUM,
        protocol: Some(IMPOSSIBLE),
        ..KernelTuple::default()
    };
    tuple.write(w, CTA_TUPLE_ORIG);
    w.nested(CTA_FILTER, |w| {
        w.ne_u32(CTA_FILTER_ORIG_FLAGS, tuple.flags);
    });
}

/// Writes a request to list that a kernel refuses (`EINVAL`) if it reads conditions on the reply tuple as such: it asks for
/// the source of a reply tuple that has none.
///
/// Kernels from 5.8 on read them by the conditions on the original tuple and so find nothing wrong, and then miss flows,
/// until [ad81d4daf6a3](https://github.com/torvalds/linux/commit/ad81d4daf6a3f4769a346e635d5e1e967ca455d9) in 5.16, which
/// 5.15.6 and 5.10.83 have too. All 5.8 kernels are among them, which also miss flows when a mark is compared with a mask
/// ([`ctnetlink_filter_match`](https://github.com/torvalds/linux/blob/v5.8/net/netfilter/nf_conntrack_netlink.c), right
/// [from 5.9 on](https://github.com/torvalds/linux/blob/v5.9/net/netfilter/nf_conntrack_netlink.c)).
pub(crate) fn write_reply_probe(w: &mut AttributeWriter<'_>) {
    wire::header(w, AF_INET);
    KernelTuple::default().write(w, CTA_TUPLE_REPLY);
    w.nested(CTA_FILTER, |w| {
        w.ne_u32(CTA_FILTER_ORIG_FLAGS, 0)
            .ne_u32(CTA_FILTER_REPLY_FLAGS, CTA_FILTER_F_CTA_IP_SRC);
    });
}

/// Writes a request to delete that no kernel fulfils: one that does not know filters on deletion
/// looks for the flow with this tuple and number and does not find it (`ENOENT`), one that does
/// refuses the flags.
pub(crate) fn write_deletion_probe(w: &mut AttributeWriter<'_>) {
    let nowhere = IpAddr::from([0; 4]);
    let tuple = Tuple {
        source: nowhere,
        destination: nowhere,
        protocol: IMPOSSIBLE,
        part: ProtocolPart::None,
    };
    wire::flush_header(w, AF_INET);
    wire::write_tuple(w, CTA_TUPLE_ORIG, &tuple, None);
    w.be_u32(CTA_ID, 1);
    w.nested(CTA_FILTER, |w| {
        w.ne_u32(CTA_FILTER_ORIG_FLAGS, 1 << 31);
    });
}

/// A protocol number that is reserved for ever.
const IMPOSSIBLE: Protocol = Protocol(255);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::status::Status;

    fn exact(filter: &Filter, family: Option<Family>, ipv6: Ipv6Addresses) -> bool {
        KernelFilter::of(filter, family, ipv6).is_exact
    }

    #[test]
    fn only_what_the_kernel_really_compares_is_exact() {
        let pushed = Ipv6Addresses::Pushed;
        let v4 = Some(Family::Ipv4);
        let host: IpNet = "10.0.0.1/32".parse().unwrap();
        let network: IpNet = "10.0.0.0/8".parse().unwrap();
        let all: IpNet = "0.0.0.0/0".parse().unwrap();
        let udp = Filter::new().with_protocol(Protocol::UDP);
        assert!(exact(
            &udp.clone().with_source(host).with_source_port(53),
            v4,
            pushed
        ));
        assert!(exact(&udp.clone().with_source(all), v4, pushed));
        assert!(!exact(&udp.clone().with_source(network), v4, pushed));
        assert!(!exact(&udp, None, pushed));
        let sctp = Filter::new().with_protocol(Protocol::SCTP);
        assert!(exact(&sctp, v4, pushed));
        assert!(!exact(&sctp.with_source_port(53), v4, pushed));
        assert!(!exact(&Filter::new().with_source_port(53), v4, pushed));
        assert!(exact(&Filter::new().with_zone(3).with_mark(7), None, pushed));
        assert!(!exact(
            &Filter::new().with_masked_status(Status::ASSURED, Status::empty()),
            None,
            pushed
        ));
    }

    #[test]
    fn ipv6_addresses_are_held_back_unless_they_are_known_to_work() {
        let filter = Filter::new().with_source("fd00::1/128".parse::<IpNet>().unwrap());
        let v6 = Some(Family::Ipv6);
        assert!(exact(&filter, v6, Ipv6Addresses::Pushed));
        let held_back = KernelFilter::of(&filter, v6, Ipv6Addresses::HeldBack);
        assert!(!held_back.is_exact);
        assert_eq!(held_back.original, KernelTuple::default());
    }

    #[test]
    fn a_deletion_always_carries_a_tuple_that_old_kernels_refuse() {
        let mut bytes = Vec::new();
        let filter = Filter::new().with_zone(3);
        KernelFilter::of(&filter, None, Ipv6Addresses::Pushed)
            .write_deletion(&mut AttributeWriter::new(&mut bytes));
        // Family 0 in version 1, zone 3, an empty CTA_TUPLE_ORIG, CTA_FILTER with two words of zero.
        assert_eq!(&bytes[..12], &[0, 1, 0, 0, 6, 0, 18, 0, 0, 3, 0, 0]);
        assert_eq!(&bytes[12..16], &[4, 0, 1, 0x80]);
        assert_eq!(&bytes[16..20], &[20, 0, 25, 0x80]);
    }
}
