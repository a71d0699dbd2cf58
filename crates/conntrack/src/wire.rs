//! Messages: nouns to bytes and back.
//!
//! All numbers are in network byte order, except the two words of filter bits and the labels, which
//! are the kernel's own memory.

use std::net::IpAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use kernlink_netlink::{Attribute, AttributeReader, AttributeWriter, Error, netfilter};

use crate::expectation::{Expectation, ExpectationFlags, NewExpectation};
use crate::flow::{Counters, Flow, FlowKey, Labels, SequenceAdjustment, Status, Synproxy};
use crate::operation::{Changes, NatTarget, NewFlow};
use crate::protocol_state::{DccpState, Protocol, ProtocolState, SctpState, TcpState};
use crate::statistics::{CpuStatistics, ExpectationStatistics, Totals};
use crate::tuple::{ProtocolPart, Tuple, Zone, ZoneScope};
use crate::uapi::*;

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

/// The header of a request to delete by anything but a tuple: version 1, without which the kernel
/// takes it for "everything, whatever the family"
/// ([`ctnetlink_del_conntrack`](https://github.com/torvalds/linux/blob/v6.18/net/netfilter/nf_conntrack_netlink.c#L1611)).
pub(crate) fn flush_header(w: &mut AttributeWriter<'_>, family: u8) {
    let header = netfilter::Header {
        version: 1,
        ..netfilter::Header::new(family)
    };
    w.header(&header.to_bytes());
}

pub(crate) fn write_key(w: &mut AttributeWriter<'_>, key: &FlowKey) {
    header(w, key.tuple.family().number());
    match key.zone {
        Zone { id: 0, .. } => write_tuple(w, CTA_TUPLE_ORIG, &key.tuple, None),
        Zone {
            id,
            scope: ZoneScope::Both,
        } => {
            w.be_u16(CTA_ZONE, id);
            write_tuple(w, CTA_TUPLE_ORIG, &key.tuple, None);
        }
        // A zone of one direction is part of that direction's tuple; the kernel takes its scope
        // from which tuple it stands in. Whatever the tuple is called, flows are found by either of theirs.
        Zone {
            id,
            scope: ZoneScope::Original,
        } => write_tuple(w, CTA_TUPLE_ORIG, &key.tuple, Some(id)),
        Zone {
            id,
            scope: ZoneScope::Reply,
        } => write_tuple(w, CTA_TUPLE_REPLY, &key.tuple, Some(id)),
    }
    if let Some(id) = key.id {
        w.be_u32(CTA_ID, id);
    }
}

pub(crate) fn write_new_flow(w: &mut AttributeWriter<'_>, flow: &NewFlow) {
    let zone_in = |scope| (flow.zone.scope == scope && flow.zone.id != 0).then_some(flow.zone.id);
    header(w, flow.original.family().number());
    write_tuple(w, CTA_TUPLE_ORIG, &flow.original, zone_in(ZoneScope::Original));
    if let Some(reply) = flow.reply.or_else(|| flow.original.inverted()) {
        write_tuple(w, CTA_TUPLE_REPLY, &reply, zone_in(ZoneScope::Reply));
    }
    if let Some(id) = zone_in(ZoneScope::Both) {
        w.be_u16(CTA_ZONE, id);
    }
    write_timeout(w, flow.timeout);
    // Without it a new flow is confirmed all the same, and one that is there keeps its bits.
    if !flow.status.is_empty() {
        w.be_u32(CTA_STATUS, (flow.status | Status::CONFIRMED).bits());
    }
    w.be_u32(CTA_MARK, flow.mark);
    if let Some(labels) = flow.labels {
        w.bytes(CTA_LABELS, &labels_to_bytes(labels));
    }
    if let Some(state) = flow.tcp_state {
        write_tcp_state(w, state);
    }
    if let Some(state) = flow.protocol_state {
        write_protocol_state(w, state);
    }
    if let Some(helper) = &flow.helper {
        w.nested(CTA_HELP, |w| {
            w.string(CTA_HELP_NAME, helper);
        });
    }
    if let Some(master) = &flow.master {
        write_tuple(w, CTA_TUPLE_MASTER, master, None);
    }
    for (kind, target) in [
        (CTA_NAT_SRC, flow.source_nat),
        (CTA_NAT_DST, flow.destination_nat),
    ] {
        if let Some(target) = target {
            write_nat(w, kind, target);
        }
    }
}

pub(crate) fn write_changes(w: &mut AttributeWriter<'_>, key: &FlowKey, changes: &Changes) {
    write_key(w, key);
    if let Some(timeout) = changes.timeout {
        write_timeout(w, timeout);
    }
    if let Some((mark, mask)) = changes.mark {
        // The kernel keeps the bits outside the mask and flips those of the value.
        w.be_u32(CTA_MARK, mark & mask).be_u32(CTA_MARK_MASK, mask);
    }
    if let Some(status) = changes.status {
        w.be_u32(CTA_STATUS, (status | Status::CONFIRMED).bits());
    }
    if let Some((labels, mask)) = changes.labels {
        // As with marks.
        w.bytes(CTA_LABELS, &labels_to_bytes(Labels(labels.0 & mask.0)));
        w.bytes(CTA_LABELS_MASK, &labels_to_bytes(mask));
    }
    if let Some(state) = changes.tcp_state {
        write_tcp_state(w, state);
    }
    if let Some(state) = changes.protocol_state {
        write_protocol_state(w, state);
    }
}

/// Fractions of a second and more seconds than the kernel can hold were refused before.
fn write_timeout(w: &mut AttributeWriter<'_>, timeout: Duration) {
    w.be_u32(CTA_TIMEOUT, u32::try_from(timeout.as_secs()).unwrap_or(u32::MAX));
}

fn write_tcp_state(w: &mut AttributeWriter<'_>, state: TcpState) {
    w.nested(CTA_PROTOINFO, |w| {
        w.nested(CTA_PROTOINFO_TCP, |w| {
            w.u8(CTA_PROTOINFO_TCP_STATE, state.0);
        });
    });
}

/// One of DCCP was refused before.
fn write_protocol_state(w: &mut AttributeWriter<'_>, state: ProtocolState) {
    w.nested(CTA_PROTOINFO, |w| match state {
        ProtocolState::Tcp {
            state,
            window_scale,
            flags,
        } => {
            w.nested(CTA_PROTOINFO_TCP, |w| {
                w.u8(CTA_PROTOINFO_TCP_STATE, state.0)
                    .u8(CTA_PROTOINFO_TCP_WSCALE_ORIGINAL, window_scale[0])
                    .u8(CTA_PROTOINFO_TCP_WSCALE_REPLY, window_scale[1])
                    // `struct nf_ct_tcp_flags`: flags and mask.
                    .bytes(CTA_PROTOINFO_TCP_FLAGS_ORIGINAL, &[flags[0], u8::MAX])
                    .bytes(CTA_PROTOINFO_TCP_FLAGS_REPLY, &[flags[1], u8::MAX]);
            });
        }
        ProtocolState::Sctp {
            state,
            verification_tags,
        } => {
            w.nested(CTA_PROTOINFO_SCTP, |w| {
                w.u8(CTA_PROTOINFO_SCTP_STATE, state.0)
                    .be_u32(CTA_PROTOINFO_SCTP_VTAG_ORIGINAL, verification_tags[0])
                    .be_u32(CTA_PROTOINFO_SCTP_VTAG_REPLY, verification_tags[1]);
            });
        }
        ProtocolState::Dccp { .. } => {}
    });
}

fn write_nat(w: &mut AttributeWriter<'_>, kind: u16, target: NatTarget) {
    let (first, last) = match target.address {
        IpAddr::V4(_) => (CTA_NAT_V4_MINIP, CTA_NAT_V4_MAXIP),
        IpAddr::V6(_) => (CTA_NAT_V6_MINIP, CTA_NAT_V6_MAXIP),
    };
    w.nested(kind, |w| {
        w.address(first, target.address).address(last, target.address);
        if let Some(port) = target.port {
            w.nested(CTA_NAT_PROTO, |w| {
                w.be_u16(CTA_PROTONAT_PORT_MIN, port)
                    .be_u16(CTA_PROTONAT_PORT_MAX, port);
            });
        }
    });
}

pub(crate) fn write_tuple(w: &mut AttributeWriter<'_>, kind: u16, tuple: &Tuple, zone: Option<u16>) {
    let (source, destination) = match tuple.source {
        IpAddr::V4(_) => (CTA_IP_V4_SRC, CTA_IP_V4_DST),
        IpAddr::V6(_) => (CTA_IP_V6_SRC, CTA_IP_V6_DST),
    };
    w.nested(kind, |w| {
        w.nested(CTA_TUPLE_IP, |w| {
            w.address(source, tuple.source)
                .address(destination, tuple.destination);
        });
        w.nested(CTA_TUPLE_PROTO, |w| {
            w.u8(CTA_PROTO_NUM, tuple.protocol.0);
            match tuple.part {
                ProtocolPart::None => {}
                ProtocolPart::Ports { source, destination } => {
                    w.be_u16(CTA_PROTO_SRC_PORT, source)
                        .be_u16(CTA_PROTO_DST_PORT, destination);
                }
                ProtocolPart::Icmp {
                    kind,
                    code,
                    identifier,
                } if tuple.protocol == Protocol::ICMPV6 => {
                    w.be_u16(CTA_PROTO_ICMPV6_ID, identifier)
                        .u8(CTA_PROTO_ICMPV6_TYPE, kind)
                        .u8(CTA_PROTO_ICMPV6_CODE, code);
                }
                ProtocolPart::Icmp {
                    kind,
                    code,
                    identifier,
                } => {
                    w.be_u16(CTA_PROTO_ICMP_ID, identifier)
                        .u8(CTA_PROTO_ICMP_TYPE, kind)
                        .u8(CTA_PROTO_ICMP_CODE, code);
                }
            }
        });
        if let Some(zone) = zone {
            w.be_u16(CTA_TUPLE_ZONE, zone);
        }
    });
}

fn read_tuple(attribute: &Attribute<'_>) -> Result<(Tuple, Option<u16>), Error> {
    let mut source = None;
    let mut destination = None;
    let mut protocol = None;
    let mut part = ProtocolPart::None;
    let mut zone = None;
    for attribute in attribute.nested() {
        let attribute = attribute?;
        match attribute.kind() {
            CTA_TUPLE_IP => {
                for address in attribute.nested() {
                    let address = address?;
                    match address.kind() {
                        CTA_IP_V4_SRC => source = Some(IpAddr::from(address.array::<4>()?)),
                        CTA_IP_V4_DST => destination = Some(IpAddr::from(address.array::<4>()?)),
                        CTA_IP_V6_SRC => source = Some(IpAddr::from(address.array::<16>()?)),
                        CTA_IP_V6_DST => destination = Some(IpAddr::from(address.array::<16>()?)),
                        _ => {}
                    }
                }
            }
            CTA_TUPLE_PROTO => (protocol, part) = read_protocol(&attribute)?,
            CTA_TUPLE_ZONE => zone = Some(attribute.be_u16()?),
            _ => {}
        }
    }
    let (Some(source), Some(destination), Some(protocol)) = (source, destination, protocol) else {
        return Err(Error::Malformed {
            what: "tuple: it has no source, destination or protocol",
        });
    };
    if source.is_ipv4() != destination.is_ipv4() {
        return Err(Error::Malformed {
            what: "tuple: addresses of different families",
        });
    }
    let tuple = Tuple {
        source,
        destination,
        protocol,
        part,
    };
    Ok((tuple, zone))
}

fn read_protocol(attribute: &Attribute<'_>) -> Result<(Option<Protocol>, ProtocolPart), Error> {
    let mut protocol = None;
    let mut ports = [None; 2];
    let mut icmp = (None, None, None);
    for attribute in attribute.nested() {
        let attribute = attribute?;
        match attribute.kind() {
            CTA_PROTO_NUM => protocol = Some(Protocol(attribute.u8()?)),
            CTA_PROTO_SRC_PORT => ports[0] = Some(attribute.be_u16()?),
            CTA_PROTO_DST_PORT => ports[1] = Some(attribute.be_u16()?),
            CTA_PROTO_ICMP_ID | CTA_PROTO_ICMPV6_ID => icmp.2 = Some(attribute.be_u16()?),
            CTA_PROTO_ICMP_TYPE | CTA_PROTO_ICMPV6_TYPE => icmp.0 = Some(attribute.u8()?),
            CTA_PROTO_ICMP_CODE | CTA_PROTO_ICMPV6_CODE => icmp.1 = Some(attribute.u8()?),
            _ => {}
        }
    }
    let part = match (ports, icmp) {
        ([Some(source), Some(destination)], _) => ProtocolPart::Ports { source, destination },
        (_, (Some(kind), Some(code), Some(identifier))) => ProtocolPart::Icmp {
            kind,
            code,
            identifier,
        },
        _ => ProtocolPart::None,
    };
    Ok((protocol, part))
}

/// Reads the flow in a message's payload.
pub(crate) fn read_flow(payload: &[u8]) -> Result<Flow, Error> {
    let mut original = None;
    let mut reply = None;
    let mut flow: Option<Flow> = None;
    // Both tuples come first; what follows is put into the flow that they make.
    for attribute in AttributeReader::after_header(payload, netfilter::HEADER_LENGTH)? {
        let attribute = attribute?;
        match attribute.kind() {
            CTA_TUPLE_ORIG => original = Some(read_tuple(&attribute)?),
            CTA_TUPLE_REPLY => reply = Some(read_tuple(&attribute)?),
            _ => {
                if flow.is_none() {
                    flow = assemble(original, reply);
                }
                match &mut flow {
                    Some(flow) => read_flow_attribute(flow, &attribute)?,
                    None => {
                        return Err(Error::Malformed {
                            what: "flow: its tuples are missing",
                        });
                    }
                }
            }
        }
    }
    flow.or_else(|| assemble(original, reply))
        .ok_or(Error::Malformed {
            what: "flow: its tuples are missing",
        })
}

fn assemble(original: Option<(Tuple, Option<u16>)>, reply: Option<(Tuple, Option<u16>)>) -> Option<Flow> {
    let ((original, original_zone), (reply, reply_zone)) = original.zip(reply)?;
    let mut flow = Flow::new(original, reply);
    flow.status = Status::empty();
    flow.zone = match (original_zone, reply_zone) {
        (Some(id), _) => Zone {
            id,
            scope: ZoneScope::Original,
        },
        (None, Some(id)) => Zone {
            id,
            scope: ZoneScope::Reply,
        },
        (None, None) => Zone::DEFAULT,
    };
    Some(flow)
}

fn read_flow_attribute(flow: &mut Flow, attribute: &Attribute<'_>) -> Result<(), Error> {
    match attribute.kind() {
        CTA_STATUS => flow.status = Status::from_bits_retain(attribute.be_u32()?),
        CTA_TIMEOUT => flow.timeout = Some(Duration::from_secs(attribute.be_u32()?.into())),
        CTA_MARK => flow.mark = attribute.be_u32()?,
        CTA_USE => flow.use_count = attribute.be_u32()?,
        CTA_ID => flow.id = attribute.be_u32()?,
        CTA_ZONE => flow.zone = Zone::new(attribute.be_u16()?),
        CTA_PROTOINFO => flow.protocol_state = read_protocol_state(attribute)?,
        CTA_COUNTERS_ORIG => flow.counters.get_or_insert_default()[0] = read_counters(attribute)?,
        CTA_COUNTERS_REPLY => flow.counters.get_or_insert_default()[1] = read_counters(attribute)?,
        CTA_TIMESTAMP => {
            for attribute in attribute.nested() {
                let attribute = attribute?;
                match attribute.kind() {
                    CTA_TIMESTAMP_START => flow.started = read_time(&attribute)?,
                    CTA_TIMESTAMP_STOP => flow.stopped = read_time(&attribute)?,
                    _ => {}
                }
            }
        }
        CTA_TIMESTAMP_EVENT => flow.event_time = read_time(attribute)?,
        CTA_LABELS => flow.labels = Some(labels_from_bytes(attribute.bytes())),
        CTA_HELP => flow.helper = read_name(attribute, CTA_HELP_NAME)?,
        CTA_SECCTX => flow.security_context = read_name(attribute, CTA_SECCTX_NAME)?,
        CTA_TUPLE_MASTER => flow.master = Some(Box::new(read_tuple(attribute)?.0)),
        CTA_SEQ_ADJ_ORIG => {
            flow.sequence_adjustment.get_or_insert_default()[0] = read_sequence_adjustment(attribute)?;
        }
        CTA_SEQ_ADJ_REPLY => {
            flow.sequence_adjustment.get_or_insert_default()[1] = read_sequence_adjustment(attribute)?;
        }
        CTA_SYNPROXY => flow.synproxy = Some(read_synproxy(attribute)?),
        _ => {}
    }
    Ok(())
}

fn read_protocol_state(attribute: &Attribute<'_>) -> Result<Option<ProtocolState>, Error> {
    let mut state = None;
    for attribute in attribute.nested() {
        let attribute = attribute?;
        state = match attribute.kind() {
            CTA_PROTOINFO_TCP => Some(read_tcp(&attribute)?),
            CTA_PROTOINFO_SCTP => Some(read_sctp(&attribute)?),
            CTA_PROTOINFO_DCCP => Some(read_dccp(&attribute)?),
            _ => state,
        };
    }
    Ok(state)
}

fn read_tcp(attribute: &Attribute<'_>) -> Result<ProtocolState, Error> {
    let mut state = TcpState::NONE;
    let mut window_scale = [0; 2];
    let mut flags = [0; 2];
    for attribute in attribute.nested() {
        let attribute = attribute?;
        match attribute.kind() {
            CTA_PROTOINFO_TCP_STATE => state = TcpState(attribute.u8()?),
            CTA_PROTOINFO_TCP_WSCALE_ORIGINAL => window_scale[0] = attribute.u8()?,
            CTA_PROTOINFO_TCP_WSCALE_REPLY => window_scale[1] = attribute.u8()?,
            // `struct nf_ct_tcp_flags`: flags and mask.
            CTA_PROTOINFO_TCP_FLAGS_ORIGINAL => flags[0] = attribute.array::<2>()?[0],
            CTA_PROTOINFO_TCP_FLAGS_REPLY => flags[1] = attribute.array::<2>()?[0],
            _ => {}
        }
    }
    Ok(ProtocolState::Tcp {
        state,
        window_scale,
        flags,
    })
}

fn read_sctp(attribute: &Attribute<'_>) -> Result<ProtocolState, Error> {
    let mut state = SctpState::NONE;
    let mut verification_tags = [0; 2];
    for attribute in attribute.nested() {
        let attribute = attribute?;
        match attribute.kind() {
            CTA_PROTOINFO_SCTP_STATE => state = SctpState(attribute.u8()?),
            CTA_PROTOINFO_SCTP_VTAG_ORIGINAL => verification_tags[0] = attribute.be_u32()?,
            CTA_PROTOINFO_SCTP_VTAG_REPLY => verification_tags[1] = attribute.be_u32()?,
            _ => {}
        }
    }
    Ok(ProtocolState::Sctp {
        state,
        verification_tags,
    })
}

fn read_dccp(attribute: &Attribute<'_>) -> Result<ProtocolState, Error> {
    let mut state = DccpState::NONE;
    let mut role = 0;
    let mut handshake_sequence = 0;
    for attribute in attribute.nested() {
        let attribute = attribute?;
        match attribute.kind() {
            CTA_PROTOINFO_DCCP_STATE => state = DccpState(attribute.u8()?),
            CTA_PROTOINFO_DCCP_ROLE => role = attribute.u8()?,
            CTA_PROTOINFO_DCCP_HANDSHAKE_SEQ => handshake_sequence = attribute.be_u64()?,
            _ => {}
        }
    }
    Ok(ProtocolState::Dccp {
        state,
        role,
        handshake_sequence,
    })
}

fn read_counters(attribute: &Attribute<'_>) -> Result<Counters, Error> {
    let mut counters = Counters::default();
    for attribute in attribute.nested() {
        let attribute = attribute?;
        match attribute.kind() {
            CTA_COUNTERS_PACKETS => counters.packets = attribute.be_u64()?,
            CTA_COUNTERS_BYTES => counters.bytes = attribute.be_u64()?,
            _ => {}
        }
    }
    Ok(counters)
}

fn read_sequence_adjustment(attribute: &Attribute<'_>) -> Result<SequenceAdjustment, Error> {
    let mut adjustment = SequenceAdjustment::default();
    for attribute in attribute.nested() {
        let attribute = attribute?;
        match attribute.kind() {
            CTA_SEQADJ_CORRECTION_POS => adjustment.correction_position = attribute.be_u32()?,
            CTA_SEQADJ_OFFSET_BEFORE => adjustment.offset_before = attribute.be_u32()?,
            CTA_SEQADJ_OFFSET_AFTER => adjustment.offset_after = attribute.be_u32()?,
            _ => {}
        }
    }
    Ok(adjustment)
}

fn read_synproxy(attribute: &Attribute<'_>) -> Result<Synproxy, Error> {
    let mut synproxy = Synproxy::default();
    for attribute in attribute.nested() {
        let attribute = attribute?;
        match attribute.kind() {
            CTA_SYNPROXY_ISN => synproxy.initial_sequence = attribute.be_u32()?,
            CTA_SYNPROXY_ITS => synproxy.initial_timestamp = attribute.be_u32()?,
            CTA_SYNPROXY_TSOFF => synproxy.timestamp_offset = attribute.be_u32()?,
            _ => {}
        }
    }
    Ok(synproxy)
}

/// Nanoseconds since 1970; 0 is "not".
fn read_time(attribute: &Attribute<'_>) -> Result<Option<SystemTime>, Error> {
    let nanoseconds = attribute.be_u64()?;
    Ok((nanoseconds != 0)
        .then(|| UNIX_EPOCH.checked_add(Duration::from_nanos(nanoseconds)))
        .flatten())
}

/// The text of one attribute inside another. Bytes that are not UTF-8 are replaced: names come
/// from modules and policies, and a strange one must not hide the flow.
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

/// The kernel's memory: two words of 64 bits, the first with labels 0 to 63. Missing bytes are
/// zero, further ones are left out.
fn labels_from_bytes(bytes: &[u8]) -> Labels {
    let mut words = [[0; 8]; 2];
    for (word, part) in words.iter_mut().zip(bytes.chunks(8)) {
        for (byte, value) in word.iter_mut().zip(part) {
            *byte = *value;
        }
    }
    let [low, high] = words.map(u64::from_ne_bytes).map(u128::from);
    Labels(high << 64 | low)
}

fn labels_to_bytes(labels: Labels) -> [u8; 16] {
    let mut bytes = [0; 16];
    let words = [labels.0 as u64, (labels.0 >> 64) as u64];
    for (part, word) in bytes.chunks_mut(8).zip(words) {
        part.copy_from_slice(&word.to_ne_bytes());
    }
    bytes
}

pub(crate) fn write_new_expectation(w: &mut AttributeWriter<'_>, new: &NewExpectation) {
    header(w, new.tuple.family().number());
    write_tuple(w, CTA_EXPECT_MASTER, &new.master, None);
    write_tuple(w, CTA_EXPECT_TUPLE, &new.tuple, None);
    write_tuple(w, CTA_EXPECT_MASK, &new.mask, None);
    if new.zone != 0 {
        w.be_u16(CTA_EXPECT_ZONE, new.zone);
    }
    // The kernel looks at it only when it changes an expectation.
    if let Some(timeout) = new.timeout {
        w.be_u32(
            CTA_EXPECT_TIMEOUT,
            u32::try_from(timeout.as_secs()).unwrap_or(u32::MAX),
        );
    }
    if let Some(helper) = &new.helper {
        w.string(CTA_EXPECT_HELP_NAME, helper);
    }
    if !new.flags.is_empty() {
        w.be_u32(CTA_EXPECT_FLAGS, new.flags.bits());
    }
    if new.class != 0 {
        w.be_u32(CTA_EXPECT_CLASS, new.class);
    }
}

/// Never without a tuple: that would delete them all.
pub(crate) fn write_expectation_key(w: &mut AttributeWriter<'_>, expectation: &Expectation) {
    header(w, expectation.tuple.family().number());
    write_tuple(w, CTA_EXPECT_TUPLE, &expectation.tuple, None);
    if expectation.zone.id != 0 {
        w.be_u16(CTA_EXPECT_ZONE, expectation.zone.id);
    }
    if expectation.id != 0 {
        w.be_u32(CTA_EXPECT_ID, expectation.id);
    }
}

/// Reads the expectation in a message's payload.
pub(crate) fn read_expectation(payload: &[u8]) -> Result<Expectation, Error> {
    let mut tuples = [None; 3];
    let mut zone = Zone::DEFAULT;
    let mut timeout = None;
    let mut id = 0;
    let mut helper = None;
    let mut flags = ExpectationFlags::empty();
    let mut class = 0;
    let mut function = None;
    for attribute in AttributeReader::after_header(payload, netfilter::HEADER_LENGTH)? {
        let attribute = attribute?;
        match attribute.kind() {
            CTA_EXPECT_MASTER => tuples[0] = Some(read_tuple(&attribute)?.0),
            CTA_EXPECT_TUPLE => tuples[1] = Some(read_tuple(&attribute)?.0),
            CTA_EXPECT_MASK => tuples[2] = Some(read_tuple(&attribute)?.0),
            CTA_EXPECT_TIMEOUT => timeout = Some(Duration::from_secs(attribute.be_u32()?.into())),
            CTA_EXPECT_ID => id = attribute.be_u32()?,
            CTA_EXPECT_HELP_NAME => helper = Some(text(&attribute)),
            CTA_EXPECT_ZONE => zone = Zone::new(attribute.be_u16()?),
            CTA_EXPECT_FLAGS => flags = ExpectationFlags::from_bits_retain(attribute.be_u32()?),
            CTA_EXPECT_CLASS => class = attribute.be_u32()?,
            CTA_EXPECT_FN => function = Some(text(&attribute)),
            _ => {}
        }
    }
    let [Some(master), Some(tuple), Some(mask)] = tuples else {
        return Err(Error::Malformed {
            what: "expectation: its tuples are missing",
        });
    };
    Ok(Expectation {
        master,
        tuple,
        mask,
        zone,
        timeout,
        id,
        helper,
        flags,
        class,
        function,
    })
}

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
        // The number of the processor is in the header.
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
