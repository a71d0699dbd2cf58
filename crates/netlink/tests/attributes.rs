//! Attributes: round trips, and truncation at every length.

use std::net::IpAddr;

use kernlink_netlink::{AttributeReader, AttributeWriter, Error};
use proptest::prelude::*;

fn written(write: impl FnOnce(&mut AttributeWriter<'_>)) -> Vec<u8> {
    let mut buffer = Vec::new();
    write(&mut AttributeWriter::new(&mut buffer));
    buffer
}

#[test]
fn layout_is_length_type_payload_padding() {
    let bytes = written(|w| {
        w.be_u16(3, 0x1234).net().be_u32(4, 0x0102_0304).nested(5, |w| {
            w.string(6, "lo").u8(7, 8);
        });
    });
    let length = |value: u16| value.to_ne_bytes();
    let expected = [
        &length(6)[..],
        &length(3),
        &[0x12, 0x34, 0, 0],
        &length(8),
        &length(4 | 0x4000),
        &[1, 2, 3, 4],
        &length(20),
        &length(5 | 0x8000),
        &length(7),
        &length(6),
        b"lo\0\0",
        &length(5),
        &length(7),
        &[8, 0, 0, 0],
    ]
    .concat();
    assert_eq!(bytes, expected);
}

#[test]
fn every_value_is_decoded_as_it_was_encoded() {
    let v4: IpAddr = "10.1.2.3".parse().unwrap();
    let v6: IpAddr = "fd00::1:2".parse().unwrap();
    let bytes = written(|w| {
        w.u8(1, 0xab)
            .ne_u16(2, 0x1234)
            .be_u16(3, 0x1234)
            .ne_u32(4, 0x1234_5678)
            .be_u32(5, 0x1234_5678)
            .ne_u64(6, 0x1234_5678_9abc_def0)
            .be_u64(7, 0x1234_5678_9abc_def0)
            .string(8, "wrr")
            .address(9, v4)
            .address(10, v6)
            .flag(11);
    });
    let attributes: Vec<_> = AttributeReader::new(&bytes).collect::<Result<_, _>>().unwrap();
    let mut next = attributes.iter().enumerate().map(|(index, attribute)| {
        assert_eq!(usize::from(attribute.kind()), index + 1);
        attribute
    });
    let mut next = || next.next().unwrap();
    assert_eq!(next().u8(), Ok(0xab));
    assert_eq!(next().ne_u16(), Ok(0x1234));
    assert_eq!(next().be_u16(), Ok(0x1234));
    assert_eq!(next().ne_u32(), Ok(0x1234_5678));
    assert_eq!(next().be_u32(), Ok(0x1234_5678));
    assert_eq!(next().ne_u64(), Ok(0x1234_5678_9abc_def0));
    assert_eq!(next().be_u64(), Ok(0x1234_5678_9abc_def0));
    assert_eq!(next().string(), Ok("wrr"));
    assert_eq!(next().address(), Ok(v4));
    assert_eq!(next().address(), Ok(v6));
    assert_eq!(next().bytes(), &[] as &[u8]);
}

#[test]
fn a_truncated_buffer_is_an_error_or_fewer_attributes_at_every_length() {
    let bytes = written(|w| {
        w.ne_u32(1, 7)
            .nested(2, |w| {
                w.string(3, "mh").ne_u16(4, 9);
            })
            .u8(5, 1);
    });
    let whole = AttributeReader::new(&bytes).count();
    for length in 0..bytes.len() - 3 {
        let read: Vec<_> = AttributeReader::new(&bytes[..length]).collect();
        assert!(
            read.iter().any(Result::is_err) || read.len() < whole,
            "{length} bytes read as {read:?}"
        );
    }
}

#[test]
fn an_invalid_length_is_reported_with_the_attribute() {
    let bytes = written(|w| {
        w.ne_u16(9, 1);
    });
    let attribute = AttributeReader::new(&bytes).next().unwrap().unwrap();
    assert_eq!(
        attribute.ne_u32(),
        Err(Error::AttributeLength {
            kind: 9,
            length: 2,
            expected: 4
        })
    );
    assert_eq!(
        attribute.ne_u32().unwrap_err().to_string(),
        "invalid length of attribute 9: 2 bytes; valid: 4"
    );
}

#[test]
fn an_attribute_that_is_too_long_is_detected() {
    let mut buffer = Vec::new();
    let mut writer = AttributeWriter::new(&mut buffer);
    writer.nested(1, |w| {
        w.bytes(2, &vec![0; 65_531]);
    });
    assert!(
        !AttributeWriter::new(&mut Vec::new())
            .bytes(1, &vec![0; 65_531])
            .has_overflowed()
    );
    assert!(writer.has_overflowed());
}

proptest! {
    #[test]
    fn payloads_are_decoded_as_they_were_encoded(payloads in prop::collection::vec((0u16..0x4000, prop::collection::vec(any::<u8>(), 0..70)), 0..20)) {
        let bytes = written(|w| payloads.iter().for_each(|(kind, payload)| { w.bytes(*kind, payload); }));
        let read: Vec<_> = AttributeReader::new(&bytes)
            .map(|attribute| attribute.map(|attribute| (attribute.kind(), attribute.bytes().to_vec())))
            .collect::<Result<_, _>>()
            .unwrap();
        prop_assert_eq!(read, payloads);
    }

    #[test]
    fn decoding_arbitrary_bytes_ends_within_the_buffer(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
        let mut total = 0;
        for attribute in AttributeReader::new(&bytes).flatten() {
            total += 4 + attribute.bytes().len();
            let _inner = attribute.nested().count();
            let _text = attribute.string();
        }
        prop_assert!(total <= bytes.len());
    }
}
