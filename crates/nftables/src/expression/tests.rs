use std::time::Duration;

use kernlink_netlink::{AttributeReader, AttributeWriter};
use proptest::prelude::*;

use super::*;
use crate::{InvertFlags, Register, Value, Verdict};

fn encoded(expression: &Expression) -> Vec<u8> {
    let mut bytes = Vec::new();
    expression.encode(&mut AttributeWriter::new(&mut bytes));
    bytes
}

fn decoded(bytes: &[u8]) -> Result<Expression, Error> {
    Expression::decode(AttributeReader::new(bytes))
}

const R: Register = Register::data(0);
const S: Register = Register::data(5);

/// One of each kind, with values that differ from the defaults.
fn samples() -> Vec<Expression> {
    vec![
        Immediate::new(R, Value::new(&[1, 2, 3])).into(),
        Immediate::verdict(Verdict::jump("a")).into(),
        Immediate::verdict(Verdict::Drop).into(),
        Payload::new(R, PayloadBase::Transport, 2_u32, 4_u32).into(),
        PayloadSet::new(S, PayloadBase::Network, 2_u32, 4_u32)
            .with_checksum(PayloadChecksum::Inet)
            .with_checksum_offset(10_u32)
            .with_checksum_flags(1_u32)
            .into(),
        Meta::new(MetaKey::Mark, R).into(),
        MetaSet::new(MetaKey::Priority, S).into(),
        ConnectionTracking::new(ConnectionTrackingKey::Source, R)
            .with_direction(Some(1))
            .into(),
        ConnectionTrackingSet::new(ConnectionTrackingKey::Zone, S).into(),
        ExtensionHeader::new(R, 44_u8)
            .with_offset(2_u32)
            .with_length(1_u32)
            .with_flags(1_u32)
            .with_kind(ExtensionHeaderKind::SctpChunk)
            .into(),
        ExtensionHeaderSet::new(S, 2, 2, 2).into(),
        ExtensionHeaderRemoval::new(30).into(),
        Fib::new(R, FibResult::AddressType, FibFlags::SOURCE | FibFlags::MARK).into(),
        Route::new(RouteKey::NextHop6, R).into(),
        Socket::new(SocketKey::ControlGroup, R).with_level(Some(2)).into(),
        OsFingerprint::new(R)
            .with_ttl(1_u8)
            .with_flags(OsFingerprintFlags::VERSION)
            .into(),
        Tunnel::new(TunnelKey::Id, R).with_mode(TunnelMode::Sent).into(),
        Xfrm::new(XfrmKey::Spi, R, 1_u8).with_number(3_u32).into(),
        NumberGenerator::new(R, 7_u32, NumberGeneratorKind::Random)
            .with_offset(3_u32)
            .into(),
        Hash::new(R, 7_u32)
            .with_source(Some(S))
            .with_length(Some(8))
            .with_seed(Some(9))
            .into(),
        Hash::new(R, 7_u32)
            .with_kind(HashKind::Symmetric)
            .with_offset(1_u32)
            .into(),
        Inner::new(
            0_u32,
            1_u32,
            15_u32,
            8_u32,
            Box::new(Meta::new(MetaKey::Protocol, R).into()),
        )
        .into(),
        Compare::new(R, CompareOperator::Less, Value::port(80)).into(),
        Range::new(R, CompareOperator::NotEqual, Value::port(80), Value::port(90)).into(),
        Bitwise::mask_xor(R, Value::host_u32(1), Value::host_u32(2)).into(),
        Bitwise::new(R, S, 4_u32)
            .with_operation(BitwiseOperation::ShiftLeft)
            .with_data(Some(Value::host_u32(3)))
            .into(),
        Bitwise::new(R, S, 4_u32)
            .with_operation(BitwiseOperation::Or)
            .with_second_source(Some(R))
            .into(),
        ByteOrder::new(R, S, ByteOrderOperation::ToNetwork, 4_u32, 2_u32).into(),
        Lookup::new("s", R).with_destination(Some(S)).into(),
        Lookup::new("s", R).with_flags(LookupFlags::INVERT).into(),
        Dynset::new("s", DynsetOperation::Update, R)
            .with_data(S)
            .with_timeout(Duration::from_millis(1500))
            .with_expressions(vec![Counter::new().into()])
            .into(),
        Dynset::new("s", DynsetOperation::Add, R)
            .with_expressions(vec![Counter::new().into(), Limit::new(3_u64, 60_u64).into()])
            .into(),
        ObjectReference::new(crate::ObjectKind::Quota, "q").into(),
        ObjectMap::new(R, "m").into(),
        Counter::new().with_bytes(u64::MAX).with_packets(3_u64).into(),
        Limit::new(5_u64, 3600_u64)
            .with_burst(7_u32)
            .with_kind(LimitKind::Bytes)
            .with_flags(InvertFlags::INVERT)
            .into(),
        Quota::new(9_u64)
            .with_flags(QuotaFlags::INVERT)
            .with_consumed(4_u64)
            .into(),
        ConnectionLimit::new(9_u32).with_flags(InvertFlags::INVERT).into(),
        Last::new().with_set(1_u32).with_milliseconds(5_u64).into(),
        Nat::new(NatKind::Destination, 10_u32)
            .with_address(R)
            .with_last_address(R)
            .with_port(S)
            .with_last_port(S)
            .with_flags(NatFlags::PERSISTENT)
            .into(),
        Masquerade::new()
            .with_flags(NatFlags::FULLY_RANDOM)
            .with_port(R)
            .into(),
        Redirect::new()
            .with_port(R)
            .with_last_port(S)
            .with_flags(NatFlags::RANDOM)
            .into(),
        Tproxy::new(2_u32).with_address(R).with_port(S).into(),
        Duplicate::new().with_address(R).with_device(S).into(),
        Forward::new(R).with_address(S).with_family(Some(2)).into(),
        Reject::new(RejectKind::Icmpx).with_code(Some(1)).into(),
        Log::new()
            .with_group(Some(2))
            .with_prefix(Some("x".into()))
            .with_snap_length(Some(64))
            .with_queue_threshold(Some(3))
            .into(),
        Log::new()
            .with_level(Some(LogLevel::Debug))
            .with_flags(LogFlags::USER)
            .into(),
        Queue::new()
            .with_number(Some(3))
            .with_total(Some(4))
            .with_flags(QueueFlags::BYPASS)
            .into(),
        Queue::new().with_source(Some(R)).into(),
        Notrack::new().into(),
        FlowOffload::new("f").into(),
        Synproxy::new()
            .with_maximum_segment(Some(1460))
            .with_window_scale(Some(7))
            .with_flags(SynproxyFlags::TIMESTAMP)
            .into(),
    ]
}

#[test]
fn every_expression_is_decoded_as_it_was_encoded() {
    for expression in samples() {
        let bytes = encoded(&expression);
        let read = decoded(&bytes).unwrap();
        assert_eq!(read, expression);
        assert_eq!(encoded(&read), bytes);
    }
}

#[test]
fn the_samples_have_every_expression() {
    // The names in the kernel, in the order of the first sample with each.
    let mut names: Vec<String> = samples().iter().map(|sample| sample.name().to_owned()).collect();
    names.dedup();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), 38, "{names:?}");
}

#[test]
fn an_expression_with_an_unknown_attribute_is_opaque_and_is_written_as_it_was_read() {
    let mut bytes = Vec::new();
    let mut writer = AttributeWriter::new(&mut bytes);
    writer.string(NFTA_EXPR_NAME, "meta");
    writer.nested(NFTA_EXPR_DATA, |writer| {
        writer
            .be_u32(crate::uapi::NFTA_META_KEY, 3)
            .be_u32(crate::uapi::NFTA_META_DREG, 8)
            .be_u32(77, 1);
    });
    let read = decoded(&bytes).unwrap();
    assert!(
        matches!(&read, Expression::Opaque(opaque) if &*opaque.name == "meta"),
        "{read:?}"
    );
    assert_eq!(encoded(&read), bytes);
    for (name, data) in [("match", Some(&[8, 0, 1, 0, 1, 2, 3, 4][..])), ("future", None)] {
        let opaque: Expression = Opaque::new(name, data).into();
        assert_eq!(decoded(&encoded(&opaque)).unwrap(), opaque);
    }
}

#[test]
fn the_bytes_of_an_expression_are_those_of_the_kernel() {
    // `ip daddr`, as `nft` sends it and the kernel returns it.
    let expected = "0c0001007061796c6f616400 24000280 0800010000000008 0800020000000001 0800030000000010 0800040000000004";
    let digits: String = expected.split(' ').collect();
    let bytes: Vec<u8> = (0..digits.len())
        .step_by(2)
        .map(|index| u8::from_str_radix(&digits[index..index + 2], 16).unwrap())
        .collect();
    let payload: Expression = Payload::new(R, PayloadBase::Network, 16_u32, 4_u32).into();
    if cfg!(target_endian = "little") {
        assert_eq!(encoded(&payload), bytes);
        assert_eq!(decoded(&bytes), Ok(payload));
    }
}

proptest! {
    #[test]
    fn any_bytes_are_decoded_without_a_panic_and_written_again(
        name in prop::sample::select(samples().iter().map(|sample| sample.name().to_owned()).collect::<Vec<_>>()),
        attributes in prop::collection::vec((0_u16..14, prop::collection::vec(any::<u8>(), 0..12)), 0..8),
    ) {
        let mut bytes = Vec::new();
        let mut writer = AttributeWriter::new(&mut bytes);
        writer.string(NFTA_EXPR_NAME, &name);
        writer.nested(NFTA_EXPR_DATA, |writer| {
            for (kind, payload) in &attributes {
                writer.bytes(*kind, payload);
            }
        });
        let read = decoded(&bytes).unwrap();
        let again = decoded(&encoded(&read)).unwrap();
        prop_assert_eq!(&again, &read);
        // An expression that lost something would be another one.
        if let Expression::Opaque(_) = &read {
            prop_assert_eq!(encoded(&read), bytes);
        }
    }
}

proptest! {
    #[test]
    fn any_rule_is_printed_without_a_panic(
        indices in prop::collection::vec(0..samples().len(), 0..8),
        numbers in prop::collection::vec(any::<(u8, u8, u32, u32)>(), 0..8),
        family in prop::sample::select(vec![
            crate::TableFamily::Ip,
            crate::TableFamily::Inet,
            crate::TableFamily::Bridge,
            crate::TableFamily::Unknown(9),
        ]),
        bytes in prop::collection::vec(any::<u8>(), 0..70),
    ) {
        let mut expressions: Vec<Expression> = Vec::new();
        for (base, register, offset, length) in numbers {
            let register = Register::data(u32::from(register % 18));
            let base = match base % 6 {
                0 => PayloadBase::Link,
                1 => PayloadBase::Network,
                2 => PayloadBase::Transport,
                3 => PayloadBase::Inner,
                4 => PayloadBase::Tunnel,
                _ => PayloadBase::Unknown(9),
            };
            // Often a length that a packet has.
            let length = if length % 3 == 0 { length } else { length % 20 };
            let offset = if offset % 3 == 0 { offset } else { offset % 48 };
            let value = Value::new(&bytes);
            expressions.push(Payload::new(register, base, offset, length).into());
            expressions.push(Bitwise::mask_xor(register, value.clone(), Value::new(&[0; 4])).into());
            expressions.push(Compare::new(register, CompareOperator::Equal, value.clone()).into());
            expressions.push(Payload::new(register, base, offset, length).into());
            expressions.push(Compare::new(register, CompareOperator::NotEqual, value).into());
        }
        for index in indices {
            expressions.extend(samples().get(index).cloned());
        }
        let chain = crate::TableKey::new(family, "t").chain("c");
        let rule = crate::Rule::new(chain, expressions);
        prop_assert_eq!(rule.to_string(), rule.to_string());
    }
}
