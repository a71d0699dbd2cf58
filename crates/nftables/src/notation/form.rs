//! How a field's value is written: its type, byte order and length.

use std::net::{Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use kernlink_base::Protocol;

use super::value::{Quoted, duration};
use crate::data_type::{DataType, DataTypes};
use crate::names::Names;
use crate::value::Value;

/// How a field's value is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Form {
    pub(super) data_type: DataType,
    /// In the byte order of the host.
    pub(super) is_host: bool,
    /// A number without a name is written in hexadecimal digits.
    pub(super) is_hexadecimal: bool,
    /// Values are shifted to the right by this number of bits.
    pub(super) shift: u32,
    /// The length in bytes in a key; 0 if the type says it.
    pub(super) length: u32,
    /// Names that only this field has.
    pub(super) names: &'static [(u64, &'static str)],
}

impl Form {
    /// Values of a type.
    pub(super) fn of(data_type: DataType) -> Self {
        Form {
            data_type,
            is_host: data_type.is_host_byte_order(),
            is_hexadecimal: false,
            shift: 0,
            length: 0,
            names: &[],
        }
    }

    /// A number in the byte order of the host.
    pub(super) fn host_number() -> Self {
        Form {
            is_host: true,
            ..Form::of(DataType::Integer)
        }
    }

    /// Bits of the packet without a name.
    pub(super) fn raw() -> Self {
        Form {
            is_hexadecimal: true,
            ..Form::of(DataType::Integer)
        }
    }

    /// A number after a computation.
    pub(super) fn without_names(self) -> Self {
        Form {
            data_type: DataType::Integer,
            is_hexadecimal: true,
            ..self
        }
    }

    /// The length in a key, in bytes.
    pub(super) fn bytes(&self) -> u32 {
        match self.length {
            0 => self.data_type.length().unwrap_or(4),
            length => length,
        }
    }

    /// The bytes as a number; `None` if there are more than 16.
    pub(super) fn number(&self, bytes: &[u8]) -> Option<u128> {
        if bytes.len() > 16 {
            return None;
        }
        let add = |number: u128, byte: &u8| number << 8 | u128::from(*byte);
        let is_little_endian = self.is_host && cfg!(target_endian = "little");
        Some(if is_little_endian {
            bytes.iter().rev().fold(0, add)
        } else {
            bytes.iter().fold(0, add)
        })
    }

    /// Whether values are a set of flags.
    pub(super) fn is_flags(&self) -> bool {
        matches!(
            self.data_type,
            DataType::ConnectionState
                | DataType::ConnectionStatus
                | DataType::ConnectionEvent
                | DataType::ConnectionLabel
                | DataType::TcpFlags
        )
    }

    /// Whether a mask of leading bits is written as the length of a prefix.
    pub(super) fn has_prefixes(&self) -> bool {
        matches!(self.data_type, DataType::Ipv4Address | DataType::Ipv6Address)
    }

    /// Whether `nft` looks up the name of a number also where it prints others without their names: in ranges and comparisons of order.
    fn is_always_named(&self) -> bool {
        matches!(self.data_type, DataType::InterfaceIndex | DataType::ControlGroup)
    }

    /// An end of a range: most numbers have no name there.
    pub(super) fn end_text(&self, bytes: &[u8], names: &Names) -> String {
        if self.is_always_named() {
            return self.named_text(bytes, names);
        }
        let is_named = symbol(self.data_type, 0).is_some()
            || symbol(self.data_type, 1).is_some()
            || self.data_type == DataType::IgmpType;
        match (self.number(bytes), self.data_type) {
            (Some(number), DataType::Time) => format!("{}s", number / 1000),
            (Some(number), DataType::DayOfWeek | DataType::HourOfDay | DataType::TimeOfYear) => {
                self.number_text(number >> self.shift.min(127), bytes.len())
            }
            (Some(number), DataType::EtherType | DataType::Dscp | DataType::Ecn) => {
                self.unnamed(number >> self.shift.min(127), bytes.len())
            }
            (Some(number), _) if is_named => (number >> self.shift.min(127)).to_string(),
            _ => self.text(bytes),
        }
    }

    /// A value as `nft` writes it.
    pub(super) fn text(&self, bytes: &[u8]) -> String {
        if matches!(self.data_type, DataType::InterfaceName | DataType::String) {
            return name(bytes);
        }
        if matches!(self.data_type, DataType::LinkAddress) {
            let bytes: Vec<String> = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            return bytes.join(":");
        }
        match self.number(bytes) {
            Some(number) => self.number_text(number >> self.shift.min(127), bytes.len()),
            None => Value::new(bytes).to_string(),
        }
    }

    /// A value as `nft` writes it, by its name if it has one here.
    pub(super) fn named_text(&self, bytes: &[u8], names: &Names) -> String {
        let number = self.number(bytes);
        let name = number.and_then(|number| names.name(self.data_type, number >> self.shift.min(127)));
        name.map_or_else(|| self.text(bytes), quoted)
    }

    /// A value in a comparison of order, which has the name that it has as an end of a range.
    pub(super) fn ordered_text(&self, bytes: &[u8], names: &Names) -> String {
        if self.is_always_named() {
            self.named_text(bytes, names)
        } else {
            self.text(bytes)
        }
    }

    /// A value that is this number, and is shifted already.
    pub(super) fn number_text(&self, number: u128, length: usize) -> String {
        let small = u64::try_from(number).unwrap_or(u64::MAX);
        let own = self.names.iter().find(|(named, _)| *named == small);
        if let Some(name) = own
            .map(|(_, name)| *name)
            .or_else(|| symbol(self.data_type, small))
        {
            return name.into();
        }
        self.unnamed(number, length)
    }

    fn unnamed(&self, number: u128, length: usize) -> String {
        let small = u64::try_from(number).unwrap_or(u64::MAX);
        match self.data_type {
            DataType::Ipv4Address if length <= 4 => Ipv4Addr::from(small as u32).to_string(),
            DataType::Ipv6Address => ipv6(Ipv6Addr::from(number)),
            DataType::EtherAddress if length <= 6 => {
                let bytes = small.to_be_bytes();
                let bytes: Vec<String> = bytes[2..].iter().map(|byte| format!("{byte:02x}")).collect();
                bytes.join(":")
            }
            DataType::Mark => format!("0x{number:08x}"),
            DataType::EtherType => format!("0x{number:04x}"),
            DataType::Dscp => format!("0x{number:02x}"),
            DataType::InterfaceType => format!("{number}"),
            DataType::Ecn | DataType::Bitmask => format!("0x{number:x}"),
            DataType::ConnectionState
            | DataType::ConnectionStatus
            | DataType::ConnectionEvent
            | DataType::TcpFlags => flags(self.data_type, small),
            DataType::ConnectionLabel => labels(number),
            DataType::Time => duration(Duration::from_millis(small)),
            DataType::ClassId => class(small as u32),
            DataType::HourOfDay => hour(small),
            DataType::TimeOfYear => date(small),
            _ if self.is_hexadecimal => format!("0x{number:x}"),
            _ => number.to_string(),
        }
    }
}

/// Text with the bytes after it, in quotation marks; with an asterisk if any bytes can follow.
fn name(bytes: &[u8]) -> String {
    let end = bytes.iter().position(|byte| *byte == 0);
    let name = bytes.get(..end.unwrap_or(bytes.len())).unwrap_or(bytes);
    let wildcard = if end.is_none() && bytes.len() < 16 {
        "*"
    } else {
        ""
    };
    let name = String::from_utf8_lossy(name);
    match name.strip_suffix('*') {
        Some(name) if wildcard.is_empty() => format!("\"{name}\\*\""),
        _ => format!("\"{name}{wildcard}\""),
    }
}

/// As the C library: an address whose first 96 bits are zero ends with an address of IPv4.
fn ipv6(address: Ipv6Addr) -> String {
    match address.segments() {
        [0, 0, 0, 0, 0, 0, high, low] if high != 0 => {
            let bits = u32::from(high) << 16 | u32::from(low);
            format!("::{}", Ipv4Addr::from(bits))
        }
        _ => address.to_string(),
    }
}

/// A handle of traffic control: two numbers.
fn class(number: u32) -> String {
    let (major, minor) = (number >> 16, number & 0xffff);
    match number {
        0xffff_ffff => "root".into(),
        0 => "none".into(),
        _ if major == 0 => format!(":{minor:x}"),
        _ => format!("{major:x}:{minor:x}"),
    }
}

/// Numbers of the labels that are set.
fn labels(bits: u128) -> String {
    let set: Vec<String> = (0..128)
        .filter(|bit| bits >> bit & 1 == 1)
        .map(|bit| bit.to_string())
        .collect();
    if set.is_empty() {
        "0x0".into()
    } else {
        set.join(",")
    }
}

fn hour(seconds: u64) -> String {
    let (hours, minutes, seconds) = (seconds / 3600 % 24, seconds / 60 % 60, seconds % 60);
    if seconds == 0 {
        format!("\"{hours:02}:{minutes:02}\"")
    } else {
        format!("\"{hours:02}:{minutes:02}:{seconds:02}\"")
    }
}

/// A time in nanoseconds since 1970, in UTC.
fn date(nanoseconds: u64) -> String {
    let seconds = nanoseconds / 1_000_000_000;
    let (days, time) = (seconds / 86_400, seconds % 86_400);
    // Days are counted from March 1 of year 0, so that a leap day is the last one of a year.
    let shifted = days + 719_468;
    let (era, of_era) = (shifted / 146_097, shifted % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted_month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted_month + 2) / 5 + 1;
    let month = if shifted_month < 10 {
        shifted_month + 3
    } else {
        shifted_month - 9
    };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!(
        "\"{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02}\"",
        time / 3600,
        time / 60 % 60,
        time % 60
    )
}

/// The names of the flags that are set, with commas between them.
fn flags(data_type: DataType, bits: u64) -> String {
    let names = flag_names(data_type);
    let named = names.iter().fold(0, |all, (bit, _)| all | bit);
    if bits == 0 || bits & !named != 0 || bits == 0xff {
        return format!("0x{bits:x}");
    }
    let set = names.iter().filter(|(bit, _)| bits & bit != 0);
    set.map(|(_, name)| *name).collect::<Vec<_>>().join(",")
}

fn flag_names(data_type: DataType) -> &'static [(u64, &'static str)] {
    match data_type {
        DataType::ConnectionState => &[
            (1, "invalid"),
            (2, "established"),
            (4, "related"),
            (8, "new"),
            (64, "untracked"),
        ],
        DataType::ConnectionStatus => &[
            (1, "expected"),
            (2, "seen-reply"),
            (4, "assured"),
            (8, "confirmed"),
            (16, "snat"),
            (32, "dnat"),
            (512, "dying"),
        ],
        DataType::ConnectionEvent => &[
            (1, "new"),
            (2, "related"),
            (4, "destroy"),
            (8, "reply"),
            (16, "assured"),
            (32, "protoinfo"),
            (64, "helper"),
            (128, "mark"),
            (256, "seqadj"),
            (512, "secmark"),
            (1024, "label"),
        ],
        DataType::TcpFlags => &[
            (1, "fin"),
            (2, "syn"),
            (4, "rst"),
            (8, "psh"),
            (16, "ack"),
            (32, "urg"),
            (64, "ecn"),
            (128, "cwr"),
        ],
        _ => &[],
    }
}

/// The name of a number.
fn symbol(data_type: DataType, number: u64) -> Option<&'static str> {
    let names: &[(u64, &str)] = match data_type {
        DataType::NetworkProtocol => &[(2, "ipv4"), (10, "ipv6")],
        DataType::Boolean => &[(0, "missing"), (1, "exists")],
        DataType::ConnectionDirection => &[(0, "original"), (1, "reply")],
        // The pseudo protocol of `/etc/protocols`.
        DataType::Protocol if number == 0 => return Some("ip"),
        DataType::Protocol => return Protocol(u8::try_from(number).ok()?).name(),
        DataType::EtherType => &[
            (0x0800, "ip"),
            (0x0806, "arp"),
            (0x86dd, "ip6"),
            (0x8100, "8021q"),
            (0x88a8, "8021ad"),
        ],
        DataType::ArpOperation => &[
            (1, "request"),
            (2, "reply"),
            (3, "rrequest"),
            (4, "rreply"),
            (8, "inrequest"),
            (9, "inreply"),
            (10, "nak"),
        ],
        DataType::InterfaceIndex => &[(1, "\"lo\"")],
        DataType::InterfaceType => &[
            (1, "ether"),
            (512, "ppp"),
            (768, "ipip"),
            (769, "ipip6"),
            (772, "loopback"),
            (776, "sit"),
            (778, "ipgre"),
        ],
        DataType::PacketType => &[(0, "host"), (1, "broadcast"), (2, "multicast"), (3, "other")],
        DataType::DeviceGroup => &[(0, "\"default\"")],
        DataType::Realm => &[(0, "\"cosmos\"")],
        DataType::AddressType => &[
            (0, "unspec"),
            (1, "unicast"),
            (2, "local"),
            (3, "broadcast"),
            (4, "anycast"),
            (5, "multicast"),
            (6, "blackhole"),
            (7, "unreachable"),
            (8, "prohibit"),
        ],
        DataType::DayOfWeek => &[
            (0, "\"Sunday\""),
            (1, "\"Monday\""),
            (2, "\"Tuesday\""),
            (3, "\"Wednesday\""),
            (4, "\"Thursday\""),
            (5, "\"Friday\""),
            (6, "\"Saturday\""),
        ],
        DataType::Dscp => DSCP,
        DataType::Ecn => &[(0, "not-ect"), (1, "ect1"), (2, "ect0"), (3, "ce")],
        DataType::DccpPacketType => &[
            (0, "request"),
            (1, "response"),
            (2, "data"),
            (3, "ack"),
            (4, "dataack"),
            (5, "closereq"),
            (6, "close"),
            (7, "reset"),
            (8, "sync"),
            (9, "syncack"),
        ],
        DataType::IgmpType => &[
            (0x11, "membership-query"),
            (0x12, "membership-report-v1"),
            (0x16, "membership-report-v2"),
            (0x17, "leave-group"),
            (0x22, "membership-report-v3"),
        ],
        DataType::IcmpType => &[
            (0, "echo-reply"),
            (3, "destination-unreachable"),
            (4, "source-quench"),
            (5, "redirect"),
            (8, "echo-request"),
            (9, "router-advertisement"),
            (10, "router-solicitation"),
            (11, "time-exceeded"),
            (12, "parameter-problem"),
            (13, "timestamp-request"),
            (14, "timestamp-reply"),
            (15, "info-request"),
            (16, "info-reply"),
            (17, "address-mask-request"),
            (18, "address-mask-reply"),
        ],
        DataType::IcmpCode => &[
            (0, "net-unreachable"),
            (1, "host-unreachable"),
            (2, "prot-unreachable"),
            (3, "port-unreachable"),
            (4, "frag-needed"),
            (9, "net-prohibited"),
            (10, "host-prohibited"),
            (13, "admin-prohibited"),
        ],
        DataType::Icmpv6Code => &[
            (0, "no-route"),
            (1, "admin-prohibited"),
            (3, "addr-unreachable"),
            (4, "port-unreachable"),
            (5, "policy-fail"),
            (6, "reject-route"),
        ],
        DataType::IcmpxCode => &[
            (0, "no-route"),
            (1, "port-unreachable"),
            (2, "host-unreachable"),
            (3, "admin-prohibited"),
        ],
        DataType::Icmpv6Type => &[
            (1, "destination-unreachable"),
            (2, "packet-too-big"),
            (3, "time-exceeded"),
            (4, "parameter-problem"),
            (128, "echo-request"),
            (129, "echo-reply"),
            (130, "mld-listener-query"),
            (131, "mld-listener-report"),
            (132, "mld-listener-done"),
            (133, "nd-router-solicit"),
            (134, "nd-router-advert"),
            (135, "nd-neighbor-solicit"),
            (136, "nd-neighbor-advert"),
            (137, "nd-redirect"),
            (138, "router-renumbering"),
            (141, "ind-neighbor-solicit"),
            (142, "ind-neighbor-advert"),
            (143, "mld2-listener-report"),
        ],
        DataType::MobilityType => &[
            (0, "binding-refresh-request"),
            (1, "home-test-init"),
            (2, "careof-test-init"),
            (3, "home-test"),
            (4, "careof-test"),
            (5, "binding-update"),
            (6, "binding-acknowledgement"),
            (7, "binding-error"),
            (8, "fast-binding-update"),
            (9, "fast-binding-acknowledgement"),
            (10, "fast-binding-advertisement"),
            (11, "experimental-mobility-header"),
            (12, "home-agent-switch-message"),
        ],
        _ => return None,
    };
    names
        .iter()
        .find(|(named, _)| *named == number)
        .map(|(_, name)| *name)
}

const DSCP: &[(u64, &str)] = &[
    (0x00, "cs0"),
    (0x01, "lephb"),
    (0x08, "cs1"),
    (0x0a, "af11"),
    (0x0c, "af12"),
    (0x0e, "af13"),
    (0x10, "cs2"),
    (0x12, "af21"),
    (0x14, "af22"),
    (0x16, "af23"),
    (0x18, "cs3"),
    (0x1a, "af31"),
    (0x1c, "af32"),
    (0x1e, "af33"),
    (0x20, "cs4"),
    (0x22, "af41"),
    (0x24, "af42"),
    (0x26, "af43"),
    (0x28, "cs5"),
    (0x2c, "va"),
    (0x2e, "ef"),
    (0x30, "cs6"),
    (0x38, "cs7"),
];

/// A value of one field.
pub(super) fn field(data_type: DataType, bytes: &[u8]) -> String {
    Form::of(data_type).text(bytes)
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

/// Text that must be in quotation marks.
pub(super) fn quoted(text: &str) -> String {
    Quoted(text).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_written_with_their_names() {
        let text = |data_type, bytes: &[u8]| Form::of(data_type).text(bytes);
        assert_eq!(text(DataType::Protocol, &[6]), "tcp");
        assert_eq!(text(DataType::Protocol, &[0]), "ip");
        assert_eq!(text(DataType::Protocol, &[255]), "255");
        assert_eq!(text(DataType::EtherType, &[0x88, 0xa8]), "8021ad");
        assert_eq!(text(DataType::EtherType, &[0x12, 0x34]), "0x1234");
        assert_eq!(text(DataType::Mark, &16_u32.to_ne_bytes()), "0x00000010");
        assert_eq!(text(DataType::ClassId, &0x0001_000a_u32.to_ne_bytes()), "1:a");
        assert_eq!(text(DataType::TcpFlags, &[0x12]), "syn,ack");
        assert_eq!(text(DataType::InterfaceName, b"eth"), "\"eth*\"");
        assert_eq!(text(DataType::InterfaceName, b"eth*\0\0"), "\"eth\\*\"");
        assert_eq!(
            text(DataType::Integer, &[9; 17]),
            format!("0x{}", "09".repeat(17))
        );
        assert_eq!(Form::of(DataType::Protocol).end_text(&[6], &Names::new()), "6");
    }

    #[test]
    fn times_are_those_of_the_calendar() {
        assert_eq!(date(1_561_136_400_000_000_000), "\"2019-06-21 17:00:00\"");
        assert_eq!(date(951_782_400_000_000_000), "\"2000-02-29 00:00:00\"");
        assert_eq!(date(u64::MAX), "\"2554-07-21 23:34:33\"");
        assert_eq!(hour(61_200), "\"17:00\"");
        assert_eq!(hour(3661), "\"01:01:01\"");
    }

    #[test]
    fn an_address_of_96_zero_bits_ends_as_one_of_ipv4() {
        assert_eq!(ipv6(Ipv6Addr::LOCALHOST), "::1");
        assert_eq!(ipv6("::a:b".parse().unwrap()), "::0.10.0.11");
        assert_eq!(ipv6("fd00::1".parse().unwrap()), "fd00::1");
    }
}
