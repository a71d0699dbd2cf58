//! Flows.

use std::net::IpAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use kernlink_netlink::{Attribute, AttributeReader, AttributeWriter, Error, netfilter};

use super::protocol_state::{read_protocol_state, write_protocol_state, write_tcp_state};
use super::tuple::{read_tuple, write_tuple};
use super::{family_number, header, read_name};
use crate::flow::{Counters, Flow, FlowKey, Labels, SequenceAdjustment, Synproxy};
use crate::flow_update::FlowUpdate;
use crate::new_flow::{NatTarget, NewFlow};
use crate::status::Status;
use crate::tuple::Tuple;
use crate::uapi::*;
use crate::zone::{Zone, ZoneDirection};

pub(crate) fn write_key(w: &mut AttributeWriter<'_>, key: &FlowKey) {
    header(w, family_number(key.tuple.family()));
    match key.zone {
        Zone { id: 0, .. } => write_tuple(w, CTA_TUPLE_ORIG, &key.tuple, None),
        Zone {
            id,
            direction: ZoneDirection::Both,
        } => {
            w.be_u16(CTA_ZONE, id);
            write_tuple(w, CTA_TUPLE_ORIG, &key.tuple, None);
        }
        // A zone of one direction is an attribute inside the tuple of that direction. The kernel finds flows by either tuple, in
        // CTA_TUPLE_ORIG as in CTA_TUPLE_REPLY.
        Zone {
            id,
            direction: ZoneDirection::Original,
        } => write_tuple(w, CTA_TUPLE_ORIG, &key.tuple, Some(id)),
        Zone {
            id,
            direction: ZoneDirection::Reply,
        } => write_tuple(w, CTA_TUPLE_REPLY, &key.tuple, Some(id)),
    }
    if let Some(id) = key.id {
        w.be_u32(CTA_ID, id);
    }
}

pub(crate) fn write_new_flow(w: &mut AttributeWriter<'_>, flow: &NewFlow) {
    let zone_in = |direction| (flow.zone.direction == direction && flow.zone.id != 0).then_some(flow.zone.id);
    header(w, family_number(flow.original.family()));
    write_tuple(
        w,
        CTA_TUPLE_ORIG,
        &flow.original,
        zone_in(ZoneDirection::Original),
    );
    if let Some(reply) = flow.reply.or_else(|| flow.original.inverted()) {
        write_tuple(w, CTA_TUPLE_REPLY, &reply, zone_in(ZoneDirection::Reply));
    }
    if let Some(id) = zone_in(ZoneDirection::Both) {
        w.be_u16(CTA_ZONE, id);
    }
    write_timeout(w, flow.timeout);
    // Without the attribute, a new flow is confirmed too, and an existing flow keeps its bits.
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

pub(crate) fn write_update(w: &mut AttributeWriter<'_>, key: &FlowKey, update: &FlowUpdate) {
    write_key(w, key);
    if let Some(timeout) = update.timeout {
        write_timeout(w, timeout);
    }
    if let Some((mark, mask)) = update.mark {
        // The kernel clears the bits of the mask and flips those of the value.
        w.be_u32(CTA_MARK, mark & mask).be_u32(CTA_MARK_MASK, mask);
    }
    if let Some(status) = update.status {
        w.be_u32(CTA_STATUS, (status | Status::CONFIRMED).bits());
    }
    if let Some((labels, mask)) = update.labels {
        // As for marks.
        w.bytes(CTA_LABELS, &labels_to_bytes(Labels(labels.0 & mask.0)));
        w.bytes(CTA_LABELS_MASK, &labels_to_bytes(mask));
    }
    if let Some(state) = update.tcp_state {
        write_tcp_state(w, state);
    }
    if let Some(state) = update.protocol_state {
        write_protocol_state(w, state);
    }
}

/// `NewFlow::check` and `Operation::check` have refused fractions of a second and larger values.
fn write_timeout(w: &mut AttributeWriter<'_>, timeout: Duration) {
    w.be_u32(CTA_TIMEOUT, u32::try_from(timeout.as_secs()).unwrap_or(u32::MAX));
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

/// Reads a flow from the payload of a message.
pub(crate) fn read_flow(payload: &[u8]) -> Result<Flow, Error> {
    let mut original = None;
    let mut reply = None;
    let mut flow: Option<Flow> = None;
    // The kernel sends both tuples first.
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
                            what: "flow: missing original or reply tuple",
                        });
                    }
                }
            }
        }
    }
    flow.or_else(|| assemble(original, reply))
        .ok_or(Error::Malformed {
            what: "flow: missing original or reply tuple",
        })
}

fn assemble(original: Option<(Tuple, Option<u16>)>, reply: Option<(Tuple, Option<u16>)>) -> Option<Flow> {
    let ((original, original_zone), (reply, reply_zone)) = original.zip(reply)?;
    let mut flow = Flow::new(original, reply);
    flow.status = Status::empty();
    flow.zone = match (original_zone, reply_zone) {
        (Some(id), _) => Zone {
            id,
            direction: ZoneDirection::Original,
        },
        (None, Some(id)) => Zone {
            id,
            direction: ZoneDirection::Reply,
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

/// A time in nanoseconds since 1970; 0 is no time.
fn read_time(attribute: &Attribute<'_>) -> Result<Option<SystemTime>, Error> {
    let nanoseconds = attribute.be_u64()?;
    Ok((nanoseconds != 0)
        .then(|| UNIX_EPOCH.checked_add(Duration::from_nanos(nanoseconds)))
        .flatten())
}

/// Two words of 64 bits in host byte order, the first with labels 0 to 63. Missing bytes are zero, further bytes are ignored.
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
