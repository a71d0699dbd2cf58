//! Round trips of messages, and malformed messages.

#![expect(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use std::net::IpAddr;
use std::time::{Duration, UNIX_EPOCH};

use ipnet::IpNet;
use kernlink_conntrack::{
    Client, Conntrack, Counters, DccpState, Error, Filter, Flow, FlowKey, Labels, Protocol, ProtocolPart,
    ProtocolState, SctpState, SequenceAdjustment, Status, Synproxy, TcpState, Tuple, TupleFilter, Zone,
    ZoneDirection,
};
use kernlink_netlink::Script;
use proptest::option;
use proptest::prelude::*;

/// Protocols whose tuples have ports or keys.
const WITH_PORTS: [Protocol; 6] = [
    Protocol::TCP,
    Protocol::UDP,
    Protocol::DCCP,
    Protocol::GRE,
    Protocol::SCTP,
    Protocol::UDPLITE,
];

fn tuple() -> impl Strategy<Value = Tuple> {
    let parts = prop_oneof![
        (
            prop_oneof![
                Just(Protocol::TCP),
                Just(Protocol::UDP),
                Just(Protocol::SCTP),
                Just(Protocol::GRE)
            ],
            any::<(u16, u16)>()
        )
            .prop_map(|(protocol, (source, destination))| (
                protocol,
                ProtocolPart::Ports { source, destination }
            )),
        any::<(u8, u8, u16)>().prop_map(|(kind, code, identifier)| (
            Protocol::ICMP,
            ProtocolPart::Icmp {
                kind,
                code,
                identifier
            }
        )),
        any::<u8>()
            .prop_map(Protocol)
            .prop_filter("has ports or ICMP fields", |protocol| !WITH_PORTS
                .contains(protocol)
                && !protocol.is_icmp())
            .prop_map(|protocol| (protocol, ProtocolPart::None)),
    ];
    let addresses = prop_oneof![
        any::<([u8; 4], [u8; 4])>()
            .prop_map(|(source, destination)| (IpAddr::from(source), IpAddr::from(destination))),
        any::<([u8; 16], [u8; 16])>()
            .prop_map(|(source, destination)| (IpAddr::from(source), IpAddr::from(destination))),
    ];
    (addresses, parts).prop_map(|((source, destination), (protocol, part))| Tuple {
        source,
        destination,
        // Each family has its own ICMP.
        protocol: match (protocol, source) {
            (Protocol::ICMP, IpAddr::V6(_)) => Protocol::ICMPV6,
            _ => protocol,
        },
        part,
    })
}

fn protocol_state() -> impl Strategy<Value = ProtocolState> {
    prop_oneof![
        any::<(u8, [u8; 2], [u8; 2])>().prop_map(|(state, window_scale, flags)| ProtocolState::Tcp {
            state: TcpState(state),
            window_scale,
            flags
        }),
        any::<(u8, [u32; 2])>().prop_map(|(state, verification_tags)| ProtocolState::Sctp {
            state: SctpState(state),
            verification_tags
        }),
        any::<(u8, u8, u64)>().prop_map(|(state, role, handshake_sequence)| ProtocolState::Dccp {
            state: DccpState(state),
            role,
            handshake_sequence
        }),
    ]
}

prop_compose! {
    fn flow()(
        original in tuple(),
        reply in tuple(),
        (id, mark, use_count, status) in any::<(u32, u32, u32, u32)>(),
        zone in option::of((1..=u16::MAX, 0..3_u8)),
        timeout in option::of(any::<u32>()),
        protocol_state in option::of(protocol_state()),
        counters in option::of(any::<[(u64, u64); 2]>()),
        times in any::<[Option<u32>; 3]>(),
        labels in option::of(any::<u128>()),
        (helper, security_context) in (option::of("[a-z:0-9]{1,15}"), option::of("[a-z:_]{1,40}")),
        master in option::of(tuple()),
        adjustment in option::of(any::<[(u32, u32, u32); 2]>()),
        synproxy in option::of(any::<(u32, u32, u32)>()),
    ) -> Flow {
        let mut flow = Flow::new(original, reply);
        flow.id = id;
        flow.mark = mark;
        flow.use_count = use_count;
        flow.status = Status::from_bits_retain(status);
        flow.zone = zone.map_or(Zone::DEFAULT, |(id, direction)| Zone {
            id,
            direction: [ZoneDirection::Both, ZoneDirection::Original, ZoneDirection::Reply][usize::from(direction)],
        });
        flow.timeout = timeout.map(|seconds| Duration::from_secs(seconds.into()));
        flow.protocol_state = protocol_state;
        flow.counters = counters.map(|both| both.map(|(packets, bytes)| Counters { packets, bytes }));
        // 0 is no time.
        let [started, stopped, event_time] = times.map(|time| time.map(|time| UNIX_EPOCH + Duration::from_nanos(u64::from(time) + 1)));
        flow.started = started;
        flow.stopped = stopped;
        flow.event_time = event_time;
        flow.labels = labels.map(Labels);
        flow.helper = helper.map(Into::into);
        flow.security_context = security_context.map(Into::into);
        flow.master = master.map(Box::new);
        flow.sequence_adjustment = adjustment.map(|both| Box::new(both.map(|(correction_position, offset_before, offset_after)| {
            SequenceAdjustment { correction_position, offset_before, offset_after }
        })));
        flow.synproxy = synproxy.map(|(initial_sequence, initial_timestamp, timestamp_offset)| Synproxy {
            initial_sequence,
            initial_timestamp,
            timestamp_offset,
        });
        flow
    }
}

fn list(datagram: &[u8]) -> Vec<Result<Flow, Error>> {
    let script = Script::new().expect_anything().answer(datagram).done();
    let mut client = Client::from_connection(script.connect().unwrap());
    client.flows(&Filter::new()).unwrap().collect()
}

proptest! {
    #[test]
    fn keys_read_back_as_they_print(tuple in tuple(), zone in any::<u16>(), direction in 0..3, id in option::of(any::<u32>())) {
        let direction = [ZoneDirection::Both, ZoneDirection::Original, ZoneDirection::Reply][direction as usize];
        // The direction of zone 0 does not print.
        let direction = if zone == 0 { ZoneDirection::Both } else { direction };
        let key = FlowKey { tuple, zone: Zone { id: zone, direction }, id };
        prop_assert_eq!(key.to_string().parse::<FlowKey>(), Ok(key));
    }

    #[test]
    fn any_text_is_a_key_or_an_error(text in "(tcp|udp|gre|icmp|[0-9]{1,4})( (src|dst|sport|dport|srckey|type|code|id|zone)=[0-9a-fx.:+]{0,9}){0,8}") {
        if let Ok(key) = text.parse::<FlowKey>() {
            prop_assert_eq!(key.to_string().parse::<FlowKey>(), Ok(key));
        }
    }

    #[test]
    fn an_encoded_flow_is_decoded(flow in flow()) {
        let listed = list(&support::flow_message(&flow));
        prop_assert_eq!(listed, [Ok(flow)]);
    }

    #[test]
    fn a_truncated_flow_is_an_error_or_has_both_tuples(flow in flow(), cut in any::<prop::sample::Index>()) {
        let payload = support::flow_payload(&flow);
        let cut = cut.index(payload.len());
        let message = Script::message(support::NEW, support::MULTI, &payload[..cut]);
        for read in list(&message).into_iter().flatten() {
            prop_assert_eq!((read.original, read.reply), (flow.original, flow.reply));
        }
    }

    #[test]
    fn random_bytes_do_not_panic(payload in prop::collection::vec(any::<u8>(), 0..600)) {
        let message = Script::message(support::NEW, support::MULTI, &payload);
        prop_assert!(list(&message).len() <= 1);
    }

    #[test]
    fn a_flow_with_a_changed_byte_does_not_panic(flow in flow(), at in any::<prop::sample::Index>(), byte in any::<u8>()) {
        let mut payload = support::flow_payload(&flow);
        let at = at.index(payload.len());
        payload[at] = byte;
        let message = Script::message(support::NEW, support::MULTI, &payload);
        prop_assert_eq!(list(&message).len(), 1);
    }

    #[test]
    fn the_inverse_of_the_inverse_is_the_tuple(tuple in tuple()) {
        if let Some(inverse) = tuple.inverted() {
            prop_assert_eq!(inverse.inverted(), Some(tuple));
            prop_assert_eq!((inverse.source_socket(), inverse.destination_socket()), (tuple.destination_socket(), tuple.source_socket()));
        } else {
            prop_assert!(tuple.protocol.is_icmp());
        }
    }

    #[test]
    fn a_filter_with_the_values_of_a_flow_matches_it(flow in flow(), mask in any::<u32>(), chosen in any::<u16>()) {
        let is_chosen = |bit: u16| chosen & 1 << bit != 0;
        let mut filter = Filter::new();
        filter.family = is_chosen(0).then_some(flow.family());
        filter.protocol = is_chosen(1).then_some(flow.protocol());
        filter.original.source = is_chosen(2).then(|| flow.original.source.into());
        filter.original.destination = is_chosen(3).then(|| flow.original.destination.into());
        if let ProtocolPart::Ports { source, destination } = flow.original.part {
            filter.original.source_port = is_chosen(4).then_some(source.into());
            filter.original.destination_port = is_chosen(5).then_some(destination.into());
        }
        filter.zone = is_chosen(6).then_some(flow.zone.id);
        if is_chosen(7) {
            filter = filter.with_masked_mark(flow.mark & mask, mask);
        }
        if is_chosen(8) {
            let mask = Status::from_bits_retain(mask);
            filter = filter.with_masked_status(flow.status & mask, mask);
        }
        // Conditions on either direction, port ranges and labels.
        if is_chosen(9) {
            filter.either = if is_chosen(10) {
                filter.original.clone()
            } else {
                TupleFilter::new().with_source(IpNet::from(flow.reply.source))
            };
        }
        if is_chosen(11) && let Some(port) = filter.original.source_port.as_mut() {
            *port = (port.first.saturating_sub(3)..=port.last.saturating_add(3)).into();
        }
        if is_chosen(12) {
            let mask = Labels(u128::from(mask) << 40);
            filter = filter.with_masked_labels(Labels(flow.labels.unwrap_or_default().0 & mask.0), mask);
        }
        prop_assert!(filter.matches(&flow), "{} {}", filter, flow);
        // A flow with another mark does not match.
        let mut other = flow.clone();
        other.mark ^= mask;
        prop_assert_eq!(filter.matches(&other), !is_chosen(7) || mask == 0);
    }
}
