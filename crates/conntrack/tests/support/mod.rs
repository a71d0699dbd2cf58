//! Messages as the kernel encodes them, and captured messages.

#![allow(dead_code, reason = "each test binary uses its part of this")]
#![expect(clippy::unwrap_used, clippy::panic, reason = "a test fails by panicking")]

use std::net::IpAddr;
use std::time::{SystemTime, UNIX_EPOCH};

use kernlink_conntrack::{Flow, Protocol, ProtocolPart, ProtocolState, Tuple, ZoneDirection};
use kernlink_netlink::{AttributeWriter, Script};

/// Type of the messages of a listing.
pub(crate) const NEW: u16 = 0x0100;
/// `NLM_F_MULTI`.
pub(crate) const MULTI: u16 = 2;

/// The messages in a file of `tests/golden`. Lines with `#` are comments on their source; an empty line ends a message.
pub(crate) fn golden(name: &str) -> Vec<Vec<u8>> {
    let path = format!("{}/tests/golden/{name}.hex", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let mut messages = vec![Vec::new()];
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        if line.is_empty() {
            messages.push(Vec::new());
            continue;
        }
        let bytes = (0..line.len())
            .step_by(2)
            .map(|index| u8::from_str_radix(&line[index..index + 2], 16).unwrap());
        messages.last_mut().unwrap().extend(bytes);
    }
    messages.retain(|message| !message.is_empty());
    messages
}

/// The message of a listing with a flow, with its netlink header.
pub(crate) fn flow_message(flow: &Flow) -> Vec<u8> {
    Script::message(NEW, MULTI, &flow_payload(flow))
}

/// The message of a listing with a flow, from the netfilter header on.
pub(crate) fn flow_payload(flow: &Flow) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut w = AttributeWriter::new(&mut bytes);
    let family = if flow.original.source.is_ipv4() { 2 } else { 10 };
    let zone_in = |direction| (flow.zone.id != 0 && flow.zone.direction == direction).then_some(flow.zone.id);
    w.header(&[family, 0, 0, 0]);
    tuple(&mut w, 1, &flow.original, zone_in(ZoneDirection::Original));
    tuple(&mut w, 2, &flow.reply, zone_in(ZoneDirection::Reply));
    if let Some(id) = zone_in(ZoneDirection::Both) {
        w.be_u16(18, id);
    }
    w.be_u32(3, flow.status.bits())
        .be_u32(8, flow.mark)
        .be_u32(12, flow.id)
        .be_u32(11, flow.use_count);
    if let Some(timeout) = flow.timeout {
        w.be_u32(7, timeout.as_secs() as u32);
    }
    if let Some(state) = flow.protocol_state {
        w.nested(4, |w| protocol_state(w, state));
    }
    for (kind, counters) in [9, 10].into_iter().zip(flow.counters.into_iter().flatten()) {
        w.nested(kind, |w| {
            w.be_u64(1, counters.packets).be_u64(2, counters.bytes);
        });
    }
    if flow.started.is_some() || flow.stopped.is_some() {
        w.nested(20, |w| {
            for (kind, time) in [(1, flow.started), (2, flow.stopped)] {
                if let Some(time) = time {
                    w.be_u64(kind, nanoseconds(time));
                }
            }
        });
    }
    if let Some(helper) = &flow.helper {
        w.nested(5, |w| {
            w.string(1, helper);
        });
    }
    if let Some(context) = &flow.security_context {
        w.nested(19, |w| {
            w.string(1, context);
        });
    }
    if let Some(labels) = flow.labels {
        let words = [labels.0 as u64, (labels.0 >> 64) as u64].map(u64::to_ne_bytes);
        w.bytes(22, &words.concat());
    }
    if let Some(master) = &flow.master {
        tuple(&mut w, 14, master, None);
    }
    for (kind, adjustment) in [15, 16]
        .into_iter()
        .zip(flow.sequence_adjustment.iter().flat_map(|both| both.iter()))
    {
        w.nested(kind, |w| {
            w.be_u32(1, adjustment.correction_position)
                .be_u32(2, adjustment.offset_before)
                .be_u32(3, adjustment.offset_after);
        });
    }
    if let Some(synproxy) = flow.synproxy {
        w.nested(24, |w| {
            w.be_u32(1, synproxy.initial_sequence)
                .be_u32(2, synproxy.initial_timestamp)
                .be_u32(3, synproxy.timestamp_offset);
        });
    }
    if let Some(time) = flow.event_time {
        w.be_u64(27, nanoseconds(time));
    }
    bytes
}

fn nanoseconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64
}

fn tuple(w: &mut AttributeWriter<'_>, kind: u16, tuple: &Tuple, zone: Option<u16>) {
    w.nested(kind, |w| {
        w.nested(1, |w| {
            let first = match tuple.source {
                IpAddr::V4(_) => 1,
                IpAddr::V6(_) => 3,
            };
            w.address(first, tuple.source)
                .address(first + 1, tuple.destination);
        });
        w.nested(2, |w| {
            w.u8(1, tuple.protocol.0);
            match tuple.part {
                ProtocolPart::Ports { source, destination } => {
                    w.be_u16(2, source).be_u16(3, destination);
                }
                ProtocolPart::Icmp {
                    kind,
                    code,
                    identifier,
                } => {
                    let first = if tuple.protocol == Protocol::ICMPV6 { 7 } else { 4 };
                    w.be_u16(first, identifier)
                        .u8(first + 1, kind)
                        .u8(first + 2, code);
                }
                _ => {}
            }
        });
        if let Some(zone) = zone {
            w.be_u16(3, zone);
        }
    });
}

fn protocol_state(w: &mut AttributeWriter<'_>, state: ProtocolState) {
    match state {
        ProtocolState::Tcp {
            state,
            window_scale,
            flags,
        } => {
            w.nested(1, |w| {
                w.u8(1, state.0)
                    .u8(2, window_scale[0])
                    .u8(3, window_scale[1])
                    // Flags, and a mask that the kernel always sends as 0.
                    .bytes(4, &[flags[0], 0])
                    .bytes(5, &[flags[1], 0]);
            });
        }
        ProtocolState::Sctp {
            state,
            verification_tags,
        } => {
            w.nested(3, |w| {
                w.u8(1, state.0)
                    .be_u32(2, verification_tags[0])
                    .be_u32(3, verification_tags[1]);
            });
        }
        ProtocolState::Dccp {
            state,
            role,
            handshake_sequence,
        } => {
            w.nested(2, |w| {
                w.u8(1, state.0).u8(2, role).be_u64(3, handshake_sequence);
            });
        }
        _ => {}
    }
}
