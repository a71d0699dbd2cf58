//! Expressions of every kind, with every key and flag, are read from the kernel as they were written.

use std::time::Duration;

use kernlink_kernel_tests::netns::NetNs;
use kernlink_nftables::{
    Bitwise, BitwiseOperation, ByteOrder, ByteOrderOperation, Client, Compare, CompareOperator,
    ConnectionLimit, ConnectionTracking, ConnectionTrackingKey, ConnectionTrackingSet, Counter, Duplicate,
    Dynset, DynsetOperation, Error, Expression, ExtensionHeader, ExtensionHeaderKind, ExtensionHeaderRemoval,
    ExtensionHeaderSet, Fib, FibFlags, FibResult, Forward, Hash, HashKind, Immediate, Inner, InvertFlags,
    Last, Limit, LimitKind, Log, LogFlags, LogLevel, Lookup, LookupFlags, Masquerade, Meta, MetaKey, MetaSet,
    Nat, NatFlags, NatKind, Nftables, Notrack, NumberGenerator, NumberGeneratorKind, ObjectKind, ObjectMap,
    ObjectReference, Operation, OsFingerprint, OsFingerprintFlags, Payload, PayloadBase, PayloadChecksum,
    PayloadSet, Queue, QueueFlags, Quota, QuotaFlags, Range, Redirect, Register, Reject, RejectKind, Route,
    RouteKey, Rule, Socket, SocketKey, Synproxy, SynproxyFlags, TableFamily, TableKey, Tproxy, Tunnel,
    TunnelKey, TunnelMode, Value, Verdict, Xfrm, XfrmKey, uapi,
};

use crate::{client, nft};

const SKELETON: &str = "table inet t {
    set dyn { type ipv4_addr; size 128; flags dynamic,timeout; timeout 5m; }
    map aff { type ipv4_addr : ipv4_addr; size 100; flags dynamic,timeout; timeout 5m; }
    set ports { type inet_service; }
    map marks { type mark : mark; }
    map dispatch { type mark : verdict; }
    map counted { type mark : counter; }
    counter c1 { }
    quota q1 { over 25 mbytes; }
    limit l1 { rate 400/minute burst 3 packets; }
    chain other { }
    chain in { type filter hook input priority 0; }
    chain pre { type filter hook prerouting priority 0; }
    chain raw { type filter hook prerouting priority raw; }
    chain out { type route hook output priority 0; }
    chain forward { type filter hook forward priority 0; }
    chain to { type nat hook prerouting priority dstnat; }
    chain from { type nat hook postrouting priority srcnat; }
}
table ip t { chain in { type filter hook input priority 0; }; }
table ip6 t { chain in { type filter hook input priority 0; }; chain to { type nat hook prerouting priority dstnat; }; }
table netdev t { chain in { type filter hook ingress device lo priority 0; }; }";

/// Family and chain.
type Place = (TableFamily, &'static str);

const INET: Place = (TableFamily::Inet, "in");
const PRE: Place = (TableFamily::Inet, "pre");
const RAW: Place = (TableFamily::Inet, "raw");
const OUT: Place = (TableFamily::Inet, "out");
const DNAT: Place = (TableFamily::Inet, "to");
const SNAT: Place = (TableFamily::Inet, "from");
const IP: Place = (TableFamily::Ip, "in");
const IP6: Place = (TableFamily::Ip6, "in");
const NETDEV: Place = (TableFamily::Netdev, "in");

const R: Register = Register::data(0);
const S: Register = Register::data(5);

/// Loads 16 bytes into both registers, and then an expression that reads them.
fn with_loaded(expression: impl Into<Expression>) -> Vec<Expression> {
    let load = |register| Immediate::new(register, Value::new(&[1; 16])).into();
    vec![load(R), load(S), expression.into()]
}

fn alone(expression: impl Into<Expression>) -> Vec<Expression> {
    vec![expression.into()]
}

fn loads() -> Vec<(Place, Vec<Expression>)> {
    let mut rules = Vec::new();
    for number in 0..64 {
        let key = MetaKey::from_number(number);
        let place = match key {
            // Unknown, written only, or of bridges.
            MetaKey::Unknown(_)
            | MetaKey::Trace
            | MetaKey::InputBridge
            | MetaKey::OutputBridge
            | MetaKey::InputBridgeVlan
            | MetaKey::InputBridgeVlanProtocol
            | MetaKey::BridgeRoute => continue,
            MetaKey::OutputIndex
            | MetaKey::OutputName
            | MetaKey::OutputType
            | MetaKey::OutputGroup
            | MetaKey::OutputKind
            | MetaKey::RouteClass => OUT,
            MetaKey::InputSlaveIndex | MetaKey::InputSlaveName => INET,
            _ => PRE,
        };
        rules.push((place, alone(Meta::new(key, R))));
    }
    for number in 0..32 {
        let key = ConnectionTrackingKey::from_number(number);
        let direction: &[Option<u8>] = match key {
            ConnectionTrackingKey::Unknown(_) => continue,
            // Written only, or of one family.
            ConnectionTrackingKey::EventMask => continue,
            ConnectionTrackingKey::Source
            | ConnectionTrackingKey::Destination
            | ConnectionTrackingKey::SourcePort
            | ConnectionTrackingKey::DestinationPort
            | ConnectionTrackingKey::SourceIp
            | ConnectionTrackingKey::DestinationIp
            | ConnectionTrackingKey::SourceIp6
            | ConnectionTrackingKey::DestinationIp6 => &[Some(0), Some(1)],
            ConnectionTrackingKey::Packets
            | ConnectionTrackingKey::Bytes
            | ConnectionTrackingKey::AveragePacket => &[None, Some(0), Some(1)],
            ConnectionTrackingKey::Zone => &[None, Some(0), Some(1)],
            _ => &[None],
        };
        for direction in direction {
            let load = ConnectionTracking::new(key, R).with_direction(*direction);
            let place = match key {
                ConnectionTrackingKey::Source | ConnectionTrackingKey::Destination => IP,
                _ => INET,
            };
            rules.push((place, alone(load)));
        }
    }
    for base in [
        PayloadBase::Link,
        PayloadBase::Network,
        PayloadBase::Transport,
        PayloadBase::Inner,
    ] {
        for length in [1_u32, 2, 3, 4, 6, 8, 16] {
            rules.push((INET, alone(Payload::new(S, base, 7_u32, length))));
        }
    }
    for (number, place) in [(0, INET), (1, IP), (2, IP6), (3, OUT), (4, OUT)] {
        rules.push((place, alone(Route::new(RouteKey::from_number(number), R))));
    }
    rules.push((OUT, alone(Route::new(RouteKey::Class, R))));
    for number in 0..4 {
        let key = SocketKey::from_number(number);
        let level = (key == SocketKey::ControlGroup).then_some(1);
        rules.push((INET, alone(Socket::new(key, R).with_level(level))));
    }
    for (key, place) in [
        (XfrmKey::Destination, IP),
        (XfrmKey::Source, IP),
        (XfrmKey::Destination6, IP6),
        (XfrmKey::Source6, IP6),
        (XfrmKey::RequestId, INET),
        (XfrmKey::Spi, INET),
    ] {
        rules.push((place, alone(Xfrm::new(key, R, 0_u8).with_number(3_u32))));
    }
    for key in [TunnelKey::Path, TunnelKey::Id] {
        for mode in [TunnelMode::Any, TunnelMode::Received, TunnelMode::Sent] {
            rules.push((NETDEV, alone(Tunnel::new(key, R).with_mode(mode))));
        }
    }
    for (result, flags, place) in [
        (FibResult::AddressType, FibFlags::DESTINATION, PRE),
        (FibResult::AddressType, FibFlags::SOURCE | FibFlags::MARK, PRE),
        (
            FibResult::AddressType,
            FibFlags::SOURCE | FibFlags::INPUT_INTERFACE,
            PRE,
        ),
        (
            FibResult::AddressType,
            FibFlags::SOURCE | FibFlags::OUTPUT_INTERFACE,
            OUT,
        ),
        (
            FibResult::OutputIndex,
            FibFlags::SOURCE | FibFlags::INPUT_INTERFACE,
            PRE,
        ),
        (FibResult::OutputIndex, FibFlags::SOURCE | FibFlags::PRESENT, PRE),
        (FibResult::OutputName, FibFlags::DESTINATION | FibFlags::MARK, PRE),
    ] {
        rules.push((place, alone(Fib::new(R, result, flags))));
    }
    for kind in [
        ExtensionHeaderKind::Ipv6,
        ExtensionHeaderKind::TcpOption,
        ExtensionHeaderKind::SctpChunk,
        ExtensionHeaderKind::DccpOption,
    ] {
        for flags in [0, uapi::NFT_EXTHDR_F_PRESENT] {
            let header = ExtensionHeader::new(R, 3_u8).with_kind(kind).with_flags(flags);
            let header = match flags {
                0 => header.with_offset(2_u32).with_length(2_u32),
                _ => header.with_length(1_u32),
            };
            rules.push((INET, alone(header)));
        }
    }
    // Record route.
    let option = ExtensionHeader::new(R, 7_u8).with_kind(ExtensionHeaderKind::Ipv4Option);
    rules.push((IP, alone(option.with_offset(1_u32).with_length(2_u32))));
    rules.push((INET, alone(OsFingerprint::new(R))));
    let fingerprint = OsFingerprint::new(R).with_ttl(2_u8);
    rules.push((INET, alone(fingerprint.with_flags(OsFingerprintFlags::VERSION))));
    for kind in [NumberGeneratorKind::Incremental, NumberGeneratorKind::Random] {
        rules.push((
            INET,
            alone(NumberGenerator::new(R, 7_u32, kind).with_offset(3_u32)),
        ));
        rules.push((INET, alone(NumberGenerator::new(R, u32::MAX, kind))));
    }
    for (kind, flags) in [(uapi::NFT_INNER_VXLAN, 0x0f_u32), (uapi::NFT_INNER_GENEVE, 0x0f)] {
        for inside in [
            Expression::from(Meta::new(MetaKey::Protocol, R)),
            Payload::new(R, PayloadBase::Network, 12_u32, 4_u32).into(),
            Payload::new(R, PayloadBase::Tunnel, 4_u32, 3_u32).into(),
        ] {
            let inner = Inner::new(0_u32, kind, flags, 8_u32, Box::new(inside));
            rules.push((INET, alone(inner)));
        }
    }
    rules
}

fn computations() -> Vec<(Place, Vec<Expression>)> {
    let mut rules = Vec::new();
    for number in 0..6 {
        let operator = CompareOperator::from_number(number);
        rules.push((
            INET,
            with_loaded(Compare::new(S, operator, Value::new(&[0, 1, 2]))),
        ));
        rules.push((INET, with_loaded(Compare::new(S, operator, Value::new(&[9; 16])))));
    }
    for operator in [CompareOperator::Equal, CompareOperator::NotEqual] {
        let (from, to) = (Value::new(&[1, 0, 7]), Value::new(&[1, 1, 0]));
        rules.push((INET, with_loaded(Range::new(S, operator, from, to))));
    }
    let mask = Bitwise::new(S, R, 4_u32)
        .with_mask(Value::be_u32(0xff00))
        .with_xor(Value::be_u32(3));
    rules.push((INET, with_loaded(mask)));
    for operation in [BitwiseOperation::ShiftLeft, BitwiseOperation::ShiftRight] {
        let shift = Bitwise::new(R, S, 8_u32).with_operation(operation);
        rules.push((INET, with_loaded(shift.with_data(Some(Value::host_u32(31))))));
    }
    for operation in [BitwiseOperation::And, BitwiseOperation::Or, BitwiseOperation::Xor] {
        let both = Bitwise::new(R, R, 16_u32).with_operation(operation);
        rules.push((INET, with_loaded(both.with_second_source(Some(S)))));
    }
    for operation in [ByteOrderOperation::ToHost, ByteOrderOperation::ToNetwork] {
        for (length, size) in [(2_u32, 2_u32), (4, 4), (8, 8), (16, 4)] {
            rules.push((INET, with_loaded(ByteOrder::new(R, S, operation, length, size))));
        }
    }
    let hash = Hash::new(R, 7_u32).with_source(Some(S)).with_length(Some(8));
    rules.push((INET, with_loaded(hash.clone().with_seed(Some(9)))));
    rules.push((INET, with_loaded(hash.with_seed(Some(0)).with_offset(3_u32))));
    let symmetric = Hash::new(R, 7_u32).with_kind(HashKind::Symmetric);
    rules.push((INET, alone(symmetric.clone())));
    rules.push((INET, alone(symmetric.with_offset(u32::MAX - 7))));
    rules.push((
        INET,
        with_loaded(Lookup::new("ports", R).with_flags(LookupFlags::INVERT)),
    ));
    rules.push((
        INET,
        with_loaded(Lookup::new("marks", R).with_destination(Some(S))),
    ));
    let verdict = Lookup::new("dispatch", R).with_destination(Some(Register::VERDICT));
    rules.push((INET, with_loaded(verdict)));
    rules.push((INET, with_loaded(ObjectMap::new(R, "counted"))));
    for operation in [
        DynsetOperation::Add,
        DynsetOperation::Update,
        DynsetOperation::Delete,
    ] {
        rules.push((INET, with_loaded(Dynset::new("dyn", operation, R))));
        let timed = Dynset::new("aff", operation, R)
            .with_data(S)
            .with_timeout(Duration::from_millis(12_340));
        rules.push((INET, with_loaded(timed)));
        let mut inverted = Dynset::new("dyn", operation, R);
        inverted.is_inverted = true;
        rules.push((INET, with_loaded(inverted)));
    }
    let limit = Limit::new(3_u64, 60_u64).with_burst(5_u32);
    let counted = Dynset::new("dyn", DynsetOperation::Update, R);
    let one = counted.clone().with_expressions(vec![limit.clone().into()]);
    rules.push((INET, with_loaded(one)));
    let two = counted.with_expressions(vec![Counter::new().into(), limit.into()]);
    rules.push((INET, with_loaded(two)));
    rules
}

fn statements() -> Vec<(Place, Vec<Expression>)> {
    let mut rules = Vec::new();
    for verdict in [
        Verdict::Accept,
        Verdict::Drop,
        Verdict::Continue,
        Verdict::Return,
        Verdict::jump("other"),
        Verdict::goto("other"),
    ] {
        rules.push((INET, alone(Immediate::verdict(verdict))));
    }
    for length in [1, 2, 3, 4, 5, 12, 16] {
        rules.push((INET, alone(Immediate::new(S, Value::new(&[7; 16][..length])))));
    }
    for key in [
        MetaKey::Mark,
        MetaKey::Priority,
        MetaKey::Trace,
        MetaKey::PacketType,
        MetaKey::SecurityMark,
    ] {
        let place = match key {
            MetaKey::PacketType => NETDEV,
            _ => PRE,
        };
        rules.push((place, with_loaded(MetaSet::new(key, S))));
    }
    for key in [
        ConnectionTrackingKey::Mark,
        ConnectionTrackingKey::Labels,
        ConnectionTrackingKey::EventMask,
        ConnectionTrackingKey::SecurityMark,
    ] {
        rules.push((PRE, with_loaded(ConnectionTrackingSet::new(key, S))));
    }
    for direction in [None, Some(0), Some(1)] {
        let zone = ConnectionTrackingSet::new(ConnectionTrackingKey::Zone, S);
        rules.push((RAW, with_loaded(zone.with_direction(direction))));
    }
    for (base, checksum) in [
        (PayloadBase::Network, PayloadChecksum::Inet),
        (PayloadBase::Transport, PayloadChecksum::Inet),
        (PayloadBase::Transport, PayloadChecksum::Sctp),
        (PayloadBase::Link, PayloadChecksum::None),
    ] {
        let set = PayloadSet::new(S, base, 2_u32, 4_u32).with_checksum(checksum);
        let set = match checksum {
            PayloadChecksum::Inet => set.with_checksum_offset(10_u32),
            PayloadChecksum::Sctp => set.with_checksum_offset(8_u32),
            _ => set,
        };
        let place = if base == PayloadBase::Link { NETDEV } else { INET };
        rules.push((place, with_loaded(set)));
    }
    let pseudo = PayloadSet::new(S, PayloadBase::Network, 16_u32, 4_u32)
        .with_checksum(PayloadChecksum::Inet)
        .with_checksum_offset(10_u32)
        .with_checksum_flags(1_u32);
    rules.push((INET, with_loaded(pseudo)));
    rules.push((INET, with_loaded(ExtensionHeaderSet::new(S, 2, 2, 2))));
    rules.push((INET, with_loaded(ExtensionHeaderSet::new(S, 8, 2, 4))));
    rules.push((INET, alone(ExtensionHeaderRemoval::new(4))));
    rules.push((INET, alone(ObjectReference::new(ObjectKind::Counter, "c1"))));
    rules.push((INET, alone(ObjectReference::new(ObjectKind::Quota, "q1"))));
    rules.push((INET, alone(ObjectReference::new(ObjectKind::Limit, "l1"))));
    rules.push((
        INET,
        alone(Counter::new().with_bytes(u64::MAX - 1).with_packets(3_u64)),
    ));
    for unit in [1_u64, 60, 3_600, 86_400, 604_800] {
        for kind in [LimitKind::Packets, LimitKind::Bytes] {
            for flags in [InvertFlags::empty(), InvertFlags::INVERT] {
                let limit = Limit::new(25_u64, unit).with_burst(9_u32);
                rules.push((INET, alone(limit.with_kind(kind).with_flags(flags))));
            }
        }
    }
    for flags in [QuotaFlags::empty(), QuotaFlags::INVERT] {
        rules.push((
            INET,
            alone(Quota::new(1_u64 << 40).with_consumed(7_u64).with_flags(flags)),
        ));
    }
    for flags in [InvertFlags::empty(), InvertFlags::INVERT] {
        rules.push((INET, alone(ConnectionLimit::new(9_u32).with_flags(flags))));
    }
    rules.push((INET, alone(Last::new())));
    rules.push((INET, alone(Last::new().with_set(1_u32))));
    rules.extend(translations());
    rules.push((INET, alone(Notrack::new())));
    rules.push((RAW, alone(Notrack::new())));
    rules.push((PRE, with_loaded(Tproxy::new(2_u32).with_address(R).with_port(S))));
    rules.push((PRE, with_loaded(Tproxy::new(10_u32).with_address(R))));
    rules.push((PRE, with_loaded(Tproxy::new(0_u32).with_port(S))));
    rules.push((IP, with_loaded(Duplicate::new().with_address(R))));
    rules.push((IP6, with_loaded(Duplicate::new().with_address(R).with_device(S))));
    rules.push((NETDEV, with_loaded(Duplicate::new().with_device(S))));
    rules.push((NETDEV, with_loaded(Forward::new(R))));
    for family in [2, 10] {
        let forward = Forward::new(R).with_address(S).with_family(Some(family));
        rules.push((NETDEV, with_loaded(forward)));
    }
    for (place, code) in [(IP, 13), (IP6, 4)] {
        rules.push((place, alone(Reject::new(RejectKind::Icmp).with_code(Some(code)))));
    }
    for code in 0..4 {
        rules.push((INET, alone(Reject::new(RejectKind::Icmpx).with_code(Some(code)))));
    }
    rules.push((INET, alone(Reject::new(RejectKind::TcpReset))));
    for level in 0..9 {
        rules.push((
            INET,
            alone(Log::new().with_level(Some(LogLevel::from_number(level)))),
        ));
    }
    let log = Log::new()
        .with_prefix(Some("x".repeat(127).into()))
        .with_level(Some(LogLevel::Info));
    let flags = LogFlags::TCP_SEQUENCE
        | LogFlags::TCP_OPTIONS
        | LogFlags::IP_OPTIONS
        | LogFlags::USER
        | LogFlags::LINK_ADDRESSES;
    rules.push((INET, alone(log.with_flags(flags))));
    let group = Log::new().with_group(Some(7)).with_snap_length(Some(96));
    rules.push((INET, alone(group.with_queue_threshold(Some(3)))));
    rules.push((INET, alone(Queue::new().with_number(Some(3)).with_total(Some(1)))));
    let queues = Queue::new().with_number(Some(3)).with_total(Some(4));
    rules.push((
        INET,
        alone(queues.with_flags(QueueFlags::BYPASS | QueueFlags::CPU_FANOUT)),
    ));
    rules.push((INET, with_loaded(Queue::new().with_source(Some(R)))));
    let proxy = Synproxy::new()
        .with_maximum_segment(Some(1460))
        .with_window_scale(Some(7));
    rules.push((
        INET,
        alone(proxy.with_flags(SynproxyFlags::TIMESTAMP | SynproxyFlags::SACK)),
    ));
    rules
}

fn translations() -> Vec<(Place, Vec<Expression>)> {
    let mut rules = Vec::new();
    let flags = NatFlags::MAP_ADDRESSES | NatFlags::PORTS_SPECIFIED;
    for (place, kind) in [(DNAT, NatKind::Destination), (SNAT, NatKind::Source)] {
        for family in [2_u32, 10] {
            for more in [
                NatFlags::empty(),
                NatFlags::RANDOM,
                NatFlags::PERSISTENT,
                NatFlags::FULLY_RANDOM,
            ] {
                let nat = Nat::new(kind, family)
                    .with_address(R)
                    .with_last_address(R)
                    .with_port(S)
                    .with_last_port(S)
                    .with_flags(flags | more);
                rules.push((place, with_loaded(nat)));
            }
            let map = Nat::new(kind, family)
                .with_address(R)
                .with_last_address(S)
                .with_flags(NatFlags::MAP_ADDRESSES | NatFlags::NETMAP);
            rules.push((place, with_loaded(map)));
        }
    }
    for flags in [
        NatFlags::empty(),
        NatFlags::RANDOM,
        NatFlags::FULLY_RANDOM | NatFlags::PERSISTENT,
    ] {
        rules.push((SNAT, alone(Masquerade::new().with_flags(flags))));
        rules.push((DNAT, alone(Redirect::new().with_flags(flags))));
        let ports = flags | NatFlags::PORTS_SPECIFIED;
        let masquerade = Masquerade::new().with_port(R).with_last_port(S).with_flags(ports);
        rules.push((SNAT, with_loaded(masquerade)));
        let redirect = Redirect::new().with_port(R).with_last_port(S).with_flags(ports);
        rules.push((DNAT, with_loaded(redirect)));
    }
    rules
}

/// What was read of a rule in an empty chain.
fn read_back(
    client: &mut Client,
    place: Place,
    expressions: &[Expression],
) -> Result<Vec<Expression>, Error> {
    let chain = TableKey::new(place.0, "t").chain(place.1);
    client.apply(&[Operation::flush_chain(chain.clone())])?;
    client.apply(&[Operation::add(Rule::new(chain.clone(), expressions.to_vec()))])?;
    let rules = client.rules(&chain.table, Some(&chain.name))?;
    assert_eq!(rules.len(), 1);
    let mut expressions: Vec<Expression> = rules.into_iter().flat_map(|rule| rule.expressions).collect();
    for expression in &mut expressions {
        // Time passes between writing and reading.
        if let Expression::Last(last) = expression {
            last.milliseconds = 0;
        }
    }
    Ok(expressions)
}

#[test]
fn every_expression_is_read_as_it_was_written() {
    NetNs::new().run(|| {
        nft(SKELETON);
        let mut client = client();
        let (mut different, mut refused, mut same) = (Vec::new(), Vec::new(), 0);
        for (place, expressions) in [loads(), computations(), statements()].concat() {
            match read_back(&mut client, place, &expressions) {
                Ok(read) if read == expressions => same += 1,
                Ok(read) => different.push(format!("{place:?}\n  {expressions:?}\n  {read:?}")),
                Err(error) if is_optional(&error, &expressions) => {}
                Err(error) => refused.push(format!("{place:?} {:?}: {error:?}", expressions.last())),
            }
        }
        assert!(different.is_empty(), "{}", different.join("\n"));
        assert!(refused.is_empty(), "{}", refused.join("\n"));
        assert!(same > 290, "{same}");
    });
}

/// Whether the kernel is too old for a rule, or often built without an expression of it.
fn is_optional(error: &Error, expressions: &[Expression]) -> bool {
    let is_optional = |expression: &Expression| match expression {
        Expression::Queue(_) => true,
        Expression::ExtensionHeader(header) => header.kind == ExtensionHeaderKind::DccpOption,
        _ => false,
    };
    error.requirement().is_some() || expressions.iter().any(is_optional)
}
