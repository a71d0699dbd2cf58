//! Values as `nft` prints them.

use std::fmt::{self, Write as _};
use std::net::{Ipv4Addr, Ipv6Addr};

use crate::data_type::{DataType, DataTypes};
use crate::value::Value;

/// A value of one field.
pub(super) fn field(data_type: DataType, bytes: &[u8]) -> String {
    let host = || number(bytes, cfg!(target_endian = "little"));
    let network = || number(bytes, false);
    match (data_type, bytes.len()) {
        (DataType::Ipv4Address, 4) => <[u8; 4]>::try_from(bytes)
            .map_or_else(|_| hex(bytes), |octets| Ipv4Addr::from(octets).to_string()),
        (DataType::Ipv6Address, 16) => <[u8; 16]>::try_from(bytes)
            .map_or_else(|_| hex(bytes), |octets| Ipv6Addr::from(octets).to_string()),
        (DataType::EtherAddress, 6) => {
            let bytes: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            bytes.join(":")
        }
        (DataType::Protocol, 1) => match *bytes {
            [1] => "icmp".into(),
            [2] => "igmp".into(),
            [6] => "tcp".into(),
            [17] => "udp".into(),
            [33] => "dccp".into(),
            [47] => "gre".into(),
            [50] => "esp".into(),
            [51] => "ah".into(),
            [58] => "ipv6-icmp".into(),
            [132] => "sctp".into(),
            [136] => "udplite".into(),
            _ => network(),
        },
        (DataType::NetworkProtocol, 1) => match *bytes {
            [2] => "ipv4".into(),
            [10] => "ipv6".into(),
            _ => network(),
        },
        (DataType::Mark, 4) => match bytes.try_into() {
            Ok(bytes) => format!("0x{:08x}", u32::from_ne_bytes(bytes)),
            Err(_) => hex(bytes),
        },
        (DataType::ConnectionState, 4) => flags(
            bytes,
            &[
                (1, "invalid"),
                (8, "new"),
                (2, "established"),
                (4, "related"),
                (64, "untracked"),
            ],
        ),
        (DataType::ConnectionStatus, 4) => flags(
            bytes,
            &[
                (1, "expected"),
                (2, "seen-reply"),
                (4, "assured"),
                (8, "confirmed"),
                (16, "snat"),
                (32, "dnat"),
                (512, "dying"),
            ],
        ),
        (DataType::ConnectionDirection, 1) => match *bytes {
            [0] => "original".into(),
            [1] => "reply".into(),
            _ => network(),
        },
        (DataType::AddressType, 4) => match host().as_str() {
            "0" => "unspec".into(),
            "1" => "unicast".into(),
            "2" => "local".into(),
            "3" => "broadcast".into(),
            "4" => "anycast".into(),
            "5" => "multicast".into(),
            "6" => "blackhole".into(),
            other => other.to_owned(),
        },
        (DataType::InterfaceName, _) => {
            let end = bytes.iter().position(|byte| *byte == 0);
            let name = bytes.get(..end.unwrap_or(bytes.len())).unwrap_or(bytes);
            let wildcard = if end.is_none() && bytes.len() < 16 {
                "*"
            } else {
                ""
            };
            format!("\"{}{wildcard}\"", String::from_utf8_lossy(name))
        }
        (DataType::Service | DataType::EtherType, 2) if data_type == DataType::Service => network(),
        (data_type, 1..=8) if data_type.is_host_byte_order() => host(),
        (_, 1..=8) => network(),
        _ => hex(bytes),
    }
}

/// A decimal number of up to 8 bytes.
fn number(bytes: &[u8], is_little_endian: bool) -> String {
    let add = |number: u64, byte: &u8| number << 8 | u64::from(*byte);
    let number = if is_little_endian {
        bytes.iter().rev().fold(0, add)
    } else {
        bytes.iter().fold(0, add)
    };
    number.to_string()
}

fn hex(bytes: &[u8]) -> String {
    Value::new(bytes).to_string()
}

fn flags(bytes: &[u8], names: &[(u32, &str)]) -> String {
    let Ok(bytes) = bytes.try_into() else {
        return hex(bytes);
    };
    let bits = u32::from_ne_bytes(bytes);
    let named = names.iter().fold(0, |all, (bit, _)| all | bit);
    if bits == 0 || bits & !named != 0 {
        return format!("0x{bits:x}");
    }
    let set = names.iter().filter(|(bit, _)| bits & bit != 0);
    set.map(|(_, name)| *name).collect::<Vec<_>>().join(",")
}

/// The fields of a value and their types, with the lengths of the types. The last field has the rest.
pub(super) fn fields(types: DataTypes, value: &Value) -> Vec<(DataType, Vec<u8>)> {
    let types: Vec<DataType> = types.iter().collect();
    if let [one] = *types {
        return vec![(one, value.as_bytes().to_vec())];
    }
    let mut rest = value.as_bytes();
    let mut fields = Vec::new();
    for data_type in types {
        let length = data_type.length().unwrap_or(4) as usize;
        let Some(bytes) = rest.get(..length) else { break };
        fields.push((data_type, bytes.to_vec()));
        rest = rest.get(length.next_multiple_of(4)..).unwrap_or(&[]);
    }
    if fields.is_empty() {
        fields.push((DataType::Integer, value.as_bytes().to_vec()));
    }
    fields
}

/// A value with all its fields.
pub(super) fn value(types: DataTypes, value: &Value) -> String {
    let fields: Vec<String> = fields(types, value)
        .iter()
        .map(|(data_type, bytes)| field(*data_type, bytes))
        .collect();
    fields.join(" . ")
}

impl DataTypes {
    /// A value of these types as `nft` prints it, such as `192.0.2.1 . tcp . 80`.
    #[must_use]
    pub fn format(self, value: &Value) -> String {
        self::value(self, value)
    }
}

/// A range of one field: a prefix if it is one.
pub(super) fn range(data_type: DataType, first: &[u8], last: &[u8]) -> String {
    if first == last {
        return field(data_type, first);
    }
    if matches!(data_type, DataType::Ipv4Address | DataType::Ipv6Address)
        && let Some(length) = prefix_length(first, last)
    {
        return format!("{}/{length}", field(data_type, first));
    }
    format!("{}-{}", field(data_type, first), field(data_type, last))
}

/// The length of the prefix that all values of a range, and no others, have.
fn prefix_length(first: &[u8], last: &[u8]) -> Option<u32> {
    let mut length = 0;
    let mut is_host = false;
    for (first, last) in first.iter().zip(last) {
        let different = first ^ last;
        let common = different.leading_zeros();
        let mask = 0xff_u8.checked_shr(common).unwrap_or(0);
        if first & mask != 0 || last & mask != mask || is_host && common != 0 {
            return None;
        }
        length += common;
        is_host |= common < 8;
    }
    Some(length)
}

/// A duration as `nft` prints it: `1d2h3m4s5ms`.
pub(super) fn duration(duration: std::time::Duration) -> String {
    let mut text = String::new();
    let mut rest = duration.as_millis();
    for (unit, name) in [
        (86_400_000, "d"),
        (3_600_000, "h"),
        (60_000, "m"),
        (1000, "s"),
        (1, "ms"),
    ] {
        if rest >= unit {
            let _infallible = write!(text, "{}{name}", rest / unit);
            rest %= unit;
        }
    }
    if text.is_empty() { "0s".into() } else { text }
}

/// Text in quotation marks.
pub(super) struct Quoted<'a>(pub(super) &'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_printed_as_a_prefix_if_it_is_one() {
        let range = |first: [u8; 4], last: [u8; 4]| range(DataType::Ipv4Address, &first, &last);
        assert_eq!(range([10, 0, 0, 0], [10, 255, 255, 255]), "10.0.0.0/8");
        assert_eq!(range([10, 0, 4, 0], [10, 0, 7, 255]), "10.0.4.0/22");
        assert_eq!(range([10, 0, 4, 0], [10, 0, 9, 255]), "10.0.4.0-10.0.9.255");
        assert_eq!(range([10, 0, 4, 1], [10, 0, 4, 1]), "10.0.4.1");
        assert_eq!(range([0, 0, 0, 0], [255, 255, 255, 255]), "0.0.0.0/0");
    }

    #[test]
    fn durations_are_printed_in_units() {
        let text = |milliseconds| duration(std::time::Duration::from_millis(milliseconds));
        assert_eq!(text(93_784_005), "1d2h3m4s5ms");
        assert_eq!(text(60_000), "1m");
        assert_eq!(text(0), "0s");
    }
}
