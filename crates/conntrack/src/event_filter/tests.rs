use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use kernlink_base::{Family, Protocol};
use kernlink_netlink::AttributeWriter;
use proptest::prelude::*;

use super::program::ACCEPT;
use super::*;
use crate::filter::Filter;
use crate::flow::Flow;
use crate::tuple::ProtocolPart;
use crate::tuple::Tuple;
use crate::uapi::*;
use crate::wire;

fn word(packet: &[u8], offset: usize) -> Option<u32> {
    let bytes = packet.get(offset..offset.checked_add(4)?)?;
    Some(u32::from_be_bytes(bytes.try_into().unwrap()))
}

/// The offset of the first attribute of a type in `packet[start..end]`, 0 if there is none.
fn attribute(packet: &[u8], mut start: usize, end: usize, kind: u32) -> usize {
    while start + 4 <= end {
        let field = |at: usize| u16::from_ne_bytes([packet[at], packet[at + 1]]);
        let length = usize::from(field(start));
        if length < 4 || start + length > end {
            return 0;
        }
        if u32::from(field(start + 2) & 0x3fff) == kind {
            return start;
        }
        start += length.next_multiple_of(4);
    }
    0
}

/// Runs a program as the kernel does. It supports the instructions that `compile` uses.
fn run(program: &[FilterInstruction], packet: &[u8]) -> u32 {
    let (mut a, mut x, mut memory) = (0_u32, 0_u32, [None; 16]);
    let mut next = 0;
    loop {
        let FilterInstruction {
            code,
            jump_true,
            jump_false,
            operand: k,
        } = program[next];
        next += 1;
        let loaded = match code {
            0x20 if k == 0xffff_f00c => Some(attribute(packet, a as usize, packet.len(), x) as u32),
            0x20 if k == 0xffff_f010 => {
                let start = a as usize;
                let length = usize::from(u16::from_ne_bytes([packet[start], packet[start + 1]]));
                assert!(start + length <= packet.len());
                Some(attribute(packet, start + 4, start + length, x) as u32)
            }
            0x20 => word(packet, k as usize),
            0x30 => packet.get(k as usize).copied().map(u32::from),
            0x40 => word(packet, (x + k) as usize),
            0x50 => packet.get((x + k) as usize).copied().map(u32::from),
            0x00 => Some(k),
            0x60 => Some(memory[k as usize].expect("load of memory that was not stored")),
            0x54 => Some(a & k),
            0x01 => {
                x = k;
                continue;
            }
            0x61 => {
                x = memory[k as usize].expect("load of memory that was not stored");
                continue;
            }
            0x02 => {
                memory[k as usize] = Some(a);
                continue;
            }
            0x07 => {
                x = a;
                continue;
            }
            0x15 => {
                next += usize::from(if a == k { jump_true } else { jump_false });
                continue;
            }
            0x06 => return k,
            other => panic!("instruction {other:#x}"),
        };
        match loaded {
            Some(value) => a = value,
            // A load outside the packet ends the program, and the packet is dropped.
            None => return 0,
        }
    }
}

fn datagram(kind: u16, write: impl FnOnce(&mut AttributeWriter<'_>)) -> Vec<u8> {
    let mut payload = Vec::new();
    write(&mut AttributeWriter::new(&mut payload));
    let mut packet = (16 + payload.len() as u32).to_ne_bytes().to_vec();
    packet.extend(kind.to_ne_bytes());
    packet.extend([0; 10]);
    packet.append(&mut payload);
    packet
}

fn event(tuple: &Tuple) -> Vec<u8> {
    datagram(wire::flow_message(IPCTNL_MSG_CT_DELETE), |w| {
        wire::header(w, wire::family_number(tuple.family()));
        wire::write_tuple(w, CTA_TUPLE_ORIG, tuple, None);
        wire::write_tuple(w, CTA_TUPLE_REPLY, &tuple.inverted().unwrap(), None);
        w.be_u32(CTA_ID, 7);
    })
}

fn flow(packet: &[u8]) -> Flow {
    wire::read_flow(&packet[16..]).unwrap()
}

fn network(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn udp(source: &str, destination: &str) -> Tuple {
    let end = |text: &str, port| SocketAddr::new(text.parse().unwrap(), port);
    Tuple::udp(end(source, 4660), end(destination, 53))
}

#[test]
fn a_flow_must_fulfil_every_condition() {
    let filter = Filter::new()
        .with_protocol(Protocol::UDP)
        .with_source(network("10.1.2.0/23"))
        .with_destination(network("10.96.0.10/32"));
    let program = compile(&[filter]).unwrap();
    let accepts = |tuple: &Tuple| run(&program, &event(tuple)) == ACCEPT;
    let matching = udp("10.1.3.255", "10.96.0.10");
    assert!(accepts(&matching));
    assert!(!accepts(&udp("10.1.4.0", "10.96.0.10")));
    assert!(!accepts(&udp("10.1.3.255", "10.96.0.11")));
    assert!(!accepts(&udp("fd00::1", "fd96::10")));
    assert!(!accepts(&Tuple {
        protocol: Protocol::TCP,
        ..matching
    }));
    // The reply tuple has source and destination swapped.
    assert!(!accepts(&matching.inverted().unwrap()));
}

#[test]
fn messages_that_the_program_cannot_parse_are_accepted() {
    let filter = Filter::new()
        .with_protocol(Protocol::TCP)
        .with_destination(network("fd96::/16"));
    let program = compile(&[filter]).unwrap();
    let flow_event = wire::flow_message(IPCTNL_MSG_CT_NEW);
    let without_tuple = datagram(flow_event, |w| {
        wire::header(w, AF_INET6);
        w.be_u32(CTA_ID, 7);
    });
    let without_addresses = datagram(flow_event, |w| {
        wire::header(w, AF_INET6);
        w.nested(CTA_TUPLE_ORIG, |w| {
            w.nested(CTA_TUPLE_PROTO, |w| {
                w.u8(CTA_PROTO_NUM, 17);
            });
        });
    });
    let expectation = datagram(wire::expectation_message(IPCTNL_MSG_EXP_NEW), |w| {
        wire::header(w, AF_INET)
    });
    for packet in [without_tuple, without_addresses, expectation] {
        assert_eq!(run(&program, &packet), ACCEPT, "{packet:02x?}");
    }
}

#[test]
fn an_empty_list_of_filters_accepts_no_flow() {
    let program = compile(&[]).unwrap();
    assert_eq!(run(&program, &event(&udp("10.0.0.1", "10.0.0.2"))), DROP);
    let program = compile(&[Filter::new()]).unwrap();
    assert_eq!(run(&program, &event(&udp("10.0.0.1", "10.0.0.2"))), ACCEPT);
}

#[test]
fn unsupported_conditions_are_refused_by_name() {
    let refused = |filter: Filter| check(&filter).unwrap_err().to_string();
    assert_eq!(
        refused(Filter::new().with_destination_port(53)),
        "kernel filter of events: original destination port is set; valid: family, protocol, original source, \
         original destination"
    );
    assert!(refused(Filter::new().with_mark(1)).contains("mark is set"));
    assert!(refused(Filter::new().with_zone(0)).contains("zone is set"));
    assert!(refused(Filter::new().with_reply_source(network("10.0.0.0/8"))).contains("reply tuple is set"));
    // A condition that every flow fulfils is accepted.
    assert_eq!(check(&Filter::new().with_masked_mark(0, 0)), Ok(()));
}

#[test]
fn the_last_of_many_filters_is_compared_and_too_many_are_refused() {
    let filter = |number: u32| {
        Filter::new()
            .with_protocol(Protocol::UDP)
            .with_destination(IpNet::from(IpAddr::from((0x0a00_0000 + number).to_be_bytes())))
    };
    let filters: Vec<Filter> = (0..500).map(filter).collect();
    let program = compile(&filters).unwrap();
    assert_eq!(run(&program, &event(&udp("192.0.2.1", "10.0.1.243"))), ACCEPT);
    assert_eq!(run(&program, &event(&udp("192.0.2.1", "10.0.1.244"))), DROP);
    let filters: Vec<Filter> = (0..520).map(filter).collect();
    let problem = compile(&filters).unwrap_err();
    assert_eq!(
        problem.to_string(),
        "kernel filter of events: 520 filters need 4208 instructions; valid: at most 4096 (BPF_MAXINSNS)"
    );
    let filter = |_| {
        Filter::new()
            .with_protocol(Protocol::UDP)
            .with_source(network("fd00::1/127"))
            .with_destination(network("fd00::1/127"))
    };
    assert!(compile(&(0..160).map(filter).collect::<Vec<_>>()).is_ok());
}

fn tuples() -> impl Strategy<Value = Tuple> {
    let end = 0..4_u8;
    (any::<bool>(), end.clone(), end, 0..3_u8).prop_map(|(is_ipv6, source, destination, kind)| {
        // Addresses that differ in the first, the middle and the last bits.
        let address = |number: u8| -> IpAddr {
            let high = u16::from(number >> 1) << 15;
            let low = u16::from(number & 1);
            if is_ipv6 {
                [0x2000 | high, 0, low, 0x1234, 0, high, 0, low].into()
            } else {
                [10 | (number >> 1) << 7, 0, 7, number & 1].into()
            }
        };
        let [source, destination] = [source, destination].map(address);
        let ends = [SocketAddr::new(source, 4660), SocketAddr::new(destination, 53)];
        match kind {
            0 => Tuple::udp(ends[0], ends[1]),
            1 => Tuple::echo_request(source, destination, 7),
            _ => Tuple {
                protocol: Protocol(50),
                part: ProtocolPart::None,
                ..Tuple::udp(ends[0], ends[1])
            },
        }
    })
}

fn filters() -> impl Strategy<Value = Filter> {
    (
        tuples(),
        proptest::collection::vec(any::<bool>(), 4),
        0..=128_u8,
        0..=128_u8,
    )
        .prop_map(|(tuple, chosen, first, second)| {
            let network = |address: IpAddr, length: u8| {
                let length = if address.is_ipv4() { length / 4 } else { length };
                IpNet::new(address, length).unwrap()
            };
            let mut filter = Filter::new();
            filter.family = chosen[0].then_some(tuple.family());
            filter.protocol = chosen[1].then_some(tuple.protocol);
            filter.original.source = chosen[2].then(|| network(tuple.source, first));
            filter.original.destination = chosen[3].then(|| network(tuple.destination, second));
            filter
        })
}

proptest! {
    #[test]
    fn a_program_accepts_the_flows_that_match_one_of_its_filters(
        filters in proptest::collection::vec(filters(), 0..5),
        tuples in proptest::collection::vec(tuples(), 1..20),
    ) {
        let program = compile(&filters).unwrap();
        for tuple in tuples {
            let packet = event(&tuple);
            let flow = flow(&packet);
            let expected = filters.iter().any(|filter| filter.matches(&flow));
            prop_assert_eq!(run(&program, &packet) == ACCEPT, expected, "{:?} {}", &filters, tuple);
        }
    }
}

/// The first message of a file captured from the kernel. Messages of a listing have the format of events.
fn captured(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .take_while(|line| !line.is_empty())
        .flat_map(str::bytes)
        .filter(u8::is_ascii_hexdigit)
        .collect();
    let digit = |digit: u8| char::from(digit).to_digit(16).unwrap() as u8;
    digits
        .chunks(2)
        .map(|pair| digit(pair[0]) << 4 | digit(pair[1]))
        .collect()
}

#[test]
#[cfg(target_endian = "little")]
fn captured_messages_are_parsed() {
    for (text, family, protocol) in [
        (
            include_str!("../../tests/golden/tcp6_established.hex"),
            Family::Ipv6,
            Protocol::TCP,
        ),
        (
            include_str!("../../tests/golden/udp4_zone.hex"),
            Family::Ipv4,
            Protocol::UDP,
        ),
        (
            include_str!("../../tests/golden/sctp4.hex"),
            Family::Ipv4,
            Protocol::SCTP,
        ),
    ] {
        let packet = captured(text);
        let Flow { original, .. } = flow(&packet);
        assert_eq!((original.family(), original.protocol), (family, protocol));
        let filter = Filter::new()
            .with_protocol(protocol)
            .with_source(IpNet::from(original.source))
            .with_destination(IpNet::from(original.destination));
        assert_eq!(
            run(&compile(std::slice::from_ref(&filter)).unwrap(), &packet),
            ACCEPT
        );
        let other = filter.with_source(IpNet::from(original.destination));
        assert_eq!(run(&compile(&[other]).unwrap(), &packet), DROP);
    }
}
