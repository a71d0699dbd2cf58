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

use ipnet::IpNet;
use kernlink_netlink::{FilterInstruction, MAX_FILTER_INSTRUCTIONS, netfilter};

use crate::error::InvalidOperation;
use crate::filter::{Filter, LabelFilter, MarkFilter, StatusFilter, TupleFilter};
use crate::uapi::*;

// Operation codes, of `linux/bpf_common.h` and `linux/filter.h`.
const LD_W_ABS: u16 = 0x20;
const LD_B_ABS: u16 = 0x30;
const LD_W_IND: u16 = 0x40;
const LD_B_IND: u16 = 0x50;
const LD_IMM: u16 = 0x00;
const LD_MEM: u16 = 0x60;
const LDX_IMM: u16 = 0x01;
const LDX_MEM: u16 = 0x61;
const ST: u16 = 0x02;
const AND_K: u16 = 0x54;
const JEQ_K: u16 = 0x15;
const RET_K: u16 = 0x06;
const TAX: u16 = 0x07;

/// `SKF_AD_OFF`, -0x1000, below which the offsets are extensions.
const SKF_AD_OFF: u32 = 0xffff_f000;
const SKF_AD_NLATTR: u32 = SKF_AD_OFF + 12;
const SKF_AD_NLATTR_NEST: u32 = SKF_AD_OFF + 16;

const ACCEPT: u32 = u32::MAX;
const DROP: u32 = 0;

/// Length of `struct nlmsghdr` and of `struct nlattr`, in bytes.
const NLMSG_HDRLEN: u32 = 16;
const NLA_HDRLEN: u32 = 4;

/// Where the byte of `nlmsg_type`, which is in the host's order, lies that holds the subsystem.
const SUBSYSTEM: u32 = if cfg!(target_endian = "little") { 5 } else { 4 };
/// `nfgen_family`.
const FAMILY: u32 = NLMSG_HDRLEN;
const ATTRIBUTES: u32 = NLMSG_HDRLEN + netfilter::HEADER_LENGTH as u32;

// Cells of the program's memory: offsets of attributes, and the protocol's number.
const TUPLE: u32 = 0;
const ADDRESSES: u32 = 1;
const SOURCE: u32 = 2;
const DESTINATION: u32 = 3;
const PROTOCOL: u32 = 4;

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

#[derive(Default)]
struct Program {
    instructions: Vec<FilterInstruction>,
}

impl Program {
    fn load(&mut self, code: u16, operand: u32) {
        self.instructions.push(FilterInstruction::new(code, operand));
    }

    fn jump(&mut self, value: u32, jump_true: u8, jump_false: u8) {
        self.instructions.push(FilterInstruction {
            code: JEQ_K,
            jump_true,
            jump_false,
            operand: value,
        });
    }

    fn accept_unless_equal(&mut self, value: u32) {
        self.jump(value, 1, 0);
        self.load(RET_K, ACCEPT);
    }

    /// Accepts if A is 0: the attribute is not there.
    fn accept_if_missing(&mut self) {
        self.jump(0, 0, 1);
        self.load(RET_K, ACCEPT);
    }

    fn find_tuple(&mut self) {
        self.load(LDX_IMM, u32::from(CTA_TUPLE_ORIG));
        self.load(LD_IMM, ATTRIBUTES);
        self.load(LD_W_ABS, SKF_AD_NLATTR);
        self.accept_if_missing();
        self.load(ST, TUPLE);
    }

    fn find_addresses(&mut self) {
        self.load(LDX_IMM, u32::from(CTA_TUPLE_IP));
        self.load(LD_MEM, TUPLE);
        self.load(LD_W_ABS, SKF_AD_NLATTR_NEST);
        self.accept_if_missing();
        self.load(ST, ADDRESSES);
        for (ipv4, ipv6, cell) in [
            (CTA_IP_V4_SRC, CTA_IP_V6_SRC, SOURCE),
            (CTA_IP_V4_DST, CTA_IP_V6_DST, DESTINATION),
        ] {
            self.load(LDX_IMM, u32::from(ipv4));
            self.load(LD_MEM, ADDRESSES);
            self.load(LD_W_ABS, SKF_AD_NLATTR_NEST);
            self.jump(0, 0, 5);
            self.load(LDX_IMM, u32::from(ipv6));
            self.load(LD_MEM, ADDRESSES);
            self.load(LD_W_ABS, SKF_AD_NLATTR_NEST);
            self.accept_if_missing();
            self.load(ST, cell);
        }
    }

    fn find_protocol(&mut self) {
        self.load(LDX_IMM, u32::from(CTA_TUPLE_PROTO));
        self.load(LD_MEM, TUPLE);
        self.load(LD_W_ABS, SKF_AD_NLATTR_NEST);
        self.accept_if_missing();
        self.load(LDX_IMM, u32::from(CTA_PROTO_NUM));
        self.load(LD_W_ABS, SKF_AD_NLATTR_NEST);
        self.accept_if_missing();
        self.load(TAX, 0);
        self.load(LD_B_IND, NLA_HDRLEN);
        self.load(ST, PROTOCOL);
    }

    /// Accepts if every condition of a filter is fulfilled, and otherwise continues behind the block. No jump leaves the
    /// block and a block has at most 31 instructions, so that the number of filters is not limited by the 8 bits of a jump.
    fn block(&mut self, filter: &Filter) -> Result<(), InvalidOperation> {
        let mut block = Program::default();
        if let Some(family) = filter.implied_family() {
            block.load(LD_B_ABS, FAMILY);
            block.require(u32::from(family.number()));
        }
        if let Some(protocol) = filter.protocol {
            block.load(LD_MEM, PROTOCOL);
            block.require(u32::from(protocol.0));
        }
        for (network, cell) in [
            (filter.original.source, SOURCE),
            (filter.original.destination, DESTINATION),
        ] {
            if let Some(network) = network {
                block.require_address(network, cell);
            }
        }
        block.load(RET_K, ACCEPT);
        let length = block.instructions.len();
        for (index, instruction) in block.instructions.iter_mut().enumerate() {
            if instruction.code == JEQ_K {
                // A jump is counted from the next instruction.
                instruction.jump_false =
                    u8::try_from(length - index - 1).map_err(|_| InvalidOperation::KernelFilterLength {
                        filters: 1,
                        instructions: length,
                    })?;
            }
        }
        self.instructions.append(&mut block.instructions);
        Ok(())
    }

    /// Continues if A has this value. Where to jump otherwise is filled in by [`block`](Self::block).
    fn require(&mut self, value: u32) {
        self.jump(value, 0, 0);
    }

    fn require_address(&mut self, network: IpNet, cell: u32) {
        let network = network.trunc();
        // Four bytes at a time, as the program loads them.
        let words = |address: u128| [96, 64, 32, 0].map(|shift| (address >> shift) as u32);
        let (values, masks) = match network {
            IpNet::V4(network) => {
                let word = |address: std::net::Ipv4Addr| vec![u32::from(address)];
                (word(network.addr()), word(network.netmask()))
            }
            IpNet::V6(network) => {
                let word = |address: std::net::Ipv6Addr| words(u128::from(address)).to_vec();
                (word(network.addr()), word(network.netmask()))
            }
        };
        self.load(LDX_MEM, cell);
        let mut offset = NLA_HDRLEN;
        for (value, mask) in values.into_iter().zip(masks) {
            if mask != 0 {
                self.load(LD_W_IND, offset);
                if mask != u32::MAX {
                    self.load(AND_K, mask);
                }
                self.require(value);
            }
            offset += 4;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::{IpAddr, SocketAddr};

    use kernlink_netlink::AttributeWriter;
    use proptest::prelude::*;

    use super::*;
    use crate::protocol_state::{Family, Protocol};
    use crate::tuple::{ProtocolPart, Tuple};
    use crate::{flow::Flow, wire};

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

    /// Runs a program as the kernel does. Instructions that the compiler does not use are not known here.
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
                0x60 => Some(memory[k as usize].expect("the kernel refuses to load what was not stored")),
                0x54 => Some(a & k),
                0x01 => {
                    x = k;
                    continue;
                }
                0x61 => {
                    x = memory[k as usize].expect("the kernel refuses to load what was not stored");
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
            wire::header(w, tuple.family().number());
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
    fn one_condition_decides() {
        let filter = Filter::new()
            .with_protocol(Protocol::UDP)
            .with_source(network("10.1.2.0/23"))
            .with_destination(network("10.96.0.10/32"));
        let program = compile(&[filter]).unwrap();
        let accepts = |tuple: &Tuple| run(&program, &event(tuple)) == ACCEPT;
        let fitting = udp("10.1.3.255", "10.96.0.10");
        assert!(accepts(&fitting));
        assert!(!accepts(&udp("10.1.4.0", "10.96.0.10")));
        assert!(!accepts(&udp("10.1.3.255", "10.96.0.11")));
        assert!(!accepts(&udp("fd00::1", "fd96::10")));
        assert!(!accepts(&Tuple {
            protocol: Protocol::TCP,
            ..fitting
        }));
        // The reply tuple has the addresses the other way round.
        assert!(!accepts(&fitting.inverted().unwrap()));
    }

    #[test]
    fn what_the_program_cannot_read_is_accepted() {
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
    fn of_no_filter_no_flow_is_accepted() {
        let program = compile(&[]).unwrap();
        assert_eq!(run(&program, &event(&udp("10.0.0.1", "10.0.0.2"))), DROP);
        let program = compile(&[Filter::new()]).unwrap();
        assert_eq!(run(&program, &event(&udp("10.0.0.1", "10.0.0.2"))), ACCEPT);
    }

    #[test]
    fn other_conditions_are_refused_by_name() {
        let refused = |filter: Filter| check(&filter).unwrap_err().to_string();
        assert_eq!(
            refused(Filter::new().with_destination_port(53)),
            "kernel filter of events: original destination port is set; valid: family, protocol, original source, \
             original destination"
        );
        assert!(refused(Filter::new().with_mark(1)).contains("mark is set"));
        assert!(refused(Filter::new().with_zone(0)).contains("zone is set"));
        assert!(
            refused(Filter::new().with_reply_source(network("10.0.0.0/8"))).contains("reply tuple is set")
        );
        // These exclude nothing.
        assert_eq!(check(&Filter::new().with_masked_mark(0, 0)), Ok(()));
    }

    #[test]
    fn the_last_of_many_filters_is_reached_and_more_are_refused() {
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
        fn a_program_accepts_what_one_of_its_filters_accepts(
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

    /// The messages of a file that was captured from the kernel; those of a listing have the form of events.
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
    fn messages_of_the_kernel_are_read() {
        for (text, family, protocol) in [
            (
                include_str!("../tests/golden/tcp6_established.hex"),
                Family::Ipv6,
                Protocol::TCP,
            ),
            (
                include_str!("../tests/golden/udp4_zone.hex"),
                Family::Ipv4,
                Protocol::UDP,
            ),
            (
                include_str!("../tests/golden/sctp4.hex"),
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
}
