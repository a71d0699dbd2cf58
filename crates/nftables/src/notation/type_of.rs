//! What sets are declared with: `typeof ip saddr . tcp dport`.

use std::fmt;

use super::field;
use super::form::Form;
use super::header::{Header, HeaderField, extension};
use super::operand::View;
use crate::data_type::DataType;
use crate::expression::{ExtensionHeaderKind, PayloadBase};
use crate::set::{MapData, Set};
use crate::table_family::TableFamily;
use crate::type_of::TypeOf;

/// The numbers of headers for `nft`.
const HEADERS: [(u32, Header); 21] = [
    (1, Header::Ah),
    (2, Header::Esp),
    (3, Header::Comp),
    (4, Header::Icmp),
    (5, Header::Igmp),
    (6, Header::Udp),
    (7, Header::UdpLite),
    (8, Header::Tcp),
    (9, Header::Dccp),
    (10, Header::Sctp),
    (11, Header::Transport),
    (12, Header::Ip),
    (13, Header::Ip6),
    (14, Header::Icmp6),
    (15, Header::Arp),
    (16, Header::Vlan),
    (17, Header::Ethernet),
    (18, Header::Vxlan),
    (19, Header::Geneve),
    (20, Header::Gre),
    (21, Header::Gretap),
];

/// The names of the extension headers of IPv6 by their numbers for `nft`, and their fields.
const IPV6_EXTENSIONS: [(u32, &str, u8); 8] = [
    (1, "hbh", 0),
    (2, "rt", 43),
    (3, "rt0", 43),
    (4, "rt2", 43),
    (5, "srh", 43),
    (6, "frag", 44),
    (7, "dst", 60),
    (8, "mh", 135),
];

/// A field that only a kind of routing header has.
const fn routing(name: &'static str, offset: u32, length: u32, data_type: DataType) -> HeaderField {
    HeaderField {
        name,
        offset,
        length,
        data_type,
    }
}

const RT0: &[HeaderField] = &[
    routing("reserved", 32, 32, DataType::Integer),
    routing("addr[1]", 64, 128, DataType::Ipv6Address),
    routing("addr[2]", 192, 128, DataType::Ipv6Address),
];

const RT2: &[HeaderField] = &[
    routing("reserved", 32, 32, DataType::Integer),
    routing("addr", 64, 128, DataType::Ipv6Address),
];

const SRH: &[HeaderField] = &[
    routing("last-entry", 32, 8, DataType::Integer),
    routing("flags", 40, 8, DataType::Integer),
    routing("tag", 48, 16, DataType::Integer),
    routing("sid[1]", 64, 128, DataType::Ipv6Address),
    routing("sid[2]", 192, 128, DataType::Ipv6Address),
];

fn header(number: u32) -> Option<Header> {
    let found = HEADERS.iter().find(|(named, _)| *named == number);
    found.map(|(_, header)| *header)
}

/// The fields of a header in the order of their numbers, which begin with 1. It is mostly that of the header.
fn numbered(header: Header) -> Vec<&'static HeaderField> {
    let names: &[&str] = match header {
        Header::Vlan => &["pcp", "dei", "dei", "id", "type"],
        Header::Igmp => &["type", "checksum", "mrt", "group"],
        Header::Vxlan => &["vni", "flags"],
        Header::Geneve => &["vni", "type"],
        Header::Gre => &["version", "flags", "protocol"],
        _ => return header.fields().iter().collect(),
    };
    let fields = header.fields();
    let find = |name: &&str| fields.iter().find(|field| field.name == *name);
    names.iter().filter_map(find).collect()
}

/// The fields of an extension header or option, with the number of the first one.
fn numbered_extension(
    kind: ExtensionHeaderKind,
    number: u32,
) -> Option<(&'static str, Vec<HeaderField>, u32)> {
    match kind {
        ExtensionHeaderKind::Ipv6 => {
            let (_, name, protocol) = IPV6_EXTENSIONS.iter().find(|(named, ..)| *named == number)?;
            let fields = match *name {
                "rt0" => RT0,
                "rt2" => RT2,
                "srh" => SRH,
                _ => extension(kind, *protocol)?.1,
            };
            Some((name, fields.to_vec(), 1))
        }
        ExtensionHeaderKind::TcpOption | ExtensionHeaderKind::SctpChunk => {
            let (name, fields) = extension(kind, u8::try_from(number).ok()?)?;
            Some((name, fields.to_vec(), 0))
        }
        ExtensionHeaderKind::Ipv4Option => {
            let (name, fields) = extension(kind, u8::try_from(number).ok()?)?;
            // An option without one of the fields has nothing at its number.
            let missing = routing("", 0, 0, DataType::Integer);
            let find = |name: &str| fields.iter().find(|field| field.name == name).copied();
            let fields = ["type", "length", "value", "ptr", "addr"];
            let fields = fields.map(|name| find(name).unwrap_or(missing));
            Some((name, fields.to_vec(), 1))
        }
        _ => None,
    }
}

impl TypeOf {
    /// A field of a header, as `nft` names both: `TypeOf::field("tcp", "dport")`; `None` for other names.
    #[must_use]
    pub fn field(header: &str, field: &str) -> Option<Self> {
        let (number, header) = HEADERS.iter().find(|(_, found)| found.name() == header)?;
        let fields = numbered(*header);
        let index = fields.iter().position(|found| found.name == field)?;
        let is_number = fields.get(index)?.data_type == DataType::Integer;
        Some(TypeOf::Field {
            header: *number,
            field: index as u32 + 1,
            length: is_number.then(|| fields.get(index).map_or(0, |field| field.length)),
            tunnel: None,
        })
    }

    /// A field of an extension header of IPv6 (`frag`, `id`), of an option of TCP (`maxseg`, `size`) or IPv4 (`rr`, `addr`), or of a chunk of
    /// SCTP (`data`, `tsn`), as `nft` names both; `None` for other names.
    #[must_use]
    pub fn extension(kind: ExtensionHeaderKind, header: &str, field: &str) -> Option<Self> {
        let named = |number: &u32| numbered_extension(kind, *number).is_some_and(|(name, ..)| name == header);
        let number = (0..=u32::from(u8::MAX)).find(named)?;
        let (_, fields, first) = numbered_extension(kind, number)?;
        let index = fields.iter().position(|found| found.name == field)?;
        Some(TypeOf::Extension {
            kind,
            number,
            field: index as u32 + first,
        })
    }

    /// The type of values, by which a set without `typeof` would be declared. A set has a concatenation of at most five.
    #[must_use]
    pub fn data_type(&self) -> Option<DataType> {
        self.view().map(|view| view.form.data_type)
    }

    /// The length of values in bytes; `None` for what has no notation.
    #[must_use]
    pub fn length(&self) -> Option<u32> {
        self.view().map(|view| view.loaded)
    }

    /// Whether values are in the host's byte order.
    pub(crate) fn is_host_byte_order(&self) -> bool {
        self.view().is_some_and(|view| view.form.is_host)
    }

    /// How it is written, and its values; `None` if `nft` would not read it.
    pub(super) fn view(&self) -> Option<View> {
        let prefix = |tunnel: Option<u32>| match tunnel {
            Some(tunnel) => header(tunnel).map(|tunnel| format!("{} ", tunnel.name())),
            None => Some(String::new()),
        };
        let named = |(text, form, length): (String, Form, u32)| {
            let mut view = View::new(text, form, length.saturating_mul(8));
            view.loaded = length;
            view
        };
        let view = match self {
            TypeOf::Field {
                header: number,
                field,
                length,
                tunnel,
            } => {
                let header = header(*number)?;
                let fields = numbered(header);
                let found = fields.get(field.checked_sub(1)? as usize)?;
                let length = length.filter(|length| *length > 0).unwrap_or(found.length);
                View::field(header, **found, length, &prefix(*tunnel)?)
            }
            TypeOf::Bits {
                base,
                offset,
                length,
                tunnel,
            } => {
                let prefix = prefix(*tunnel)?;
                if matches!(base, PayloadBase::Unknown(_)) {
                    return None;
                }
                View::new(format!("{prefix}@{base},{offset},{length}"), Form::raw(), *length)
            }
            TypeOf::Meta { key, tunnel } => {
                let (text, form, length) = field::meta(*key)?;
                named((format!("{}{text}", prefix(*tunnel)?), form, length))
            }
            TypeOf::ConnectionTracking { key, direction } => {
                named(field::connection(*key, *direction, TableFamily::Inet)?)
            }
            TypeOf::Extension { kind, number, field } => {
                let (name, fields, first) = numbered_extension(*kind, *number)?;
                let index = field.checked_sub(first)? as usize;
                let found = fields.get(index).filter(|field| field.length > 0)?;
                let prefix = match kind {
                    ExtensionHeaderKind::TcpOption => "tcp option ",
                    ExtensionHeaderKind::Ipv4Option => "ip option ",
                    ExtensionHeaderKind::SctpChunk => "sctp chunk ",
                    _ => "",
                };
                // The ranges of a selective acknowledgement have numbers.
                let range = match (*kind, *number, found.offset / 64) {
                    (ExtensionHeaderKind::TcpOption, 5, range @ 1..) => range.to_string(),
                    _ => String::new(),
                };
                let text = format!("{prefix}{name}{range} {}", found.name);
                let form = Form {
                    is_host: false,
                    names: super::operand::names(found.name),
                    ..Form::of(found.data_type)
                };
                View::new(text, form, found.length)
            }
            TypeOf::Route(key) => named(field::route(*key)?),
            TypeOf::Socket(key) => named(field::socket(*key, Some(0))?),
            TypeOf::OsFingerprint => named(("osf name".into(), Form::of(DataType::String), 16)),
            TypeOf::Fib { result, flags } => named(field::fib(*result, *flags)?),
            TypeOf::Xfrm {
                key,
                direction,
                number,
            } => named(field::xfrm(*key, *direction, *number)?),
            TypeOf::NumberGenerator {
                kind,
                modulus,
                offset,
            } => named((
                field::generator(*kind, *modulus, *offset)?,
                Form::host_number(),
                4,
            )),
            TypeOf::Hash {
                kind,
                modulus,
                offset,
                seed,
            } => named((
                field::symmetric_hash(*kind, *modulus, *seed, *offset)?,
                Form::host_number(),
                4,
            )),
            TypeOf::Queue => named(("queue".into(), Form::host_number(), 2)),
            TypeOf::Verdict => named(("verdict".into(), Form::raw(), 16)),
        };
        Some(view)
    }
}

/// As `nft` prints it; in brackets if `nft` does not read it.
impl fmt::Display for TypeOf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.view() {
            Some(view) => f.pad(&view.text),
            None => write!(f, "[ {self:?} ]"),
        }
    }
}

/// What a set is declared with.
pub(super) struct Declaration {
    /// The fields of keys.
    pub(super) key: Vec<View>,
    /// The fields of data.
    pub(super) data: Option<Vec<View>>,
}

/// `None` if `nft` lists the set with `type`: it has no such user data, or the lengths are not those of the keys and data.
pub(super) fn declaration(set: &Set) -> Option<Declaration> {
    let key = views(&set.key_type_of()?)?;
    if length(&key) != set.key_length {
        return None;
    }
    let data = match set.data {
        None | Some(MapData::Objects(_)) => None,
        Some(MapData::Verdicts) => Some(views(&set.data_type_of()?)?),
        Some(MapData::Values { length: of_data, .. }) => {
            let data = views(&set.data_type_of()?)?;
            let ends = if set.has_data_intervals() { 2 } else { 1 };
            if length(&data).saturating_mul(ends) != of_data {
                return None;
            }
            Some(data)
        }
    };
    Some(Declaration { key, data })
}

fn views(fields: &[TypeOf]) -> Option<Vec<View>> {
    fields.iter().map(TypeOf::view).collect()
}

/// The length of a key in bytes: the fields of a concatenation are padded.
fn length(views: &[View]) -> u32 {
    match views {
        [one] => one.loaded,
        views => views.iter().fold(0, |sum: u32, view| {
            sum.saturating_add(view.loaded.saturating_add(3) / 4 * 4)
        }),
    }
}

/// The forms of fields, with their lengths.
pub(super) fn forms(views: &[View]) -> Vec<Form> {
    let form = |view: &View| Form {
        length: view.loaded,
        ..view.form
    };
    views.iter().map(form).collect()
}

/// The fields as they are declared.
pub(super) fn text(views: &[View]) -> String {
    let texts: Vec<&str> = views.iter().map(|view| view.text.as_str()).collect();
    texts.join(" . ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_found_by_their_names() {
        let text = |header, field| TypeOf::field(header, field).unwrap().to_string();
        for (header, field) in [
            ("ip", "saddr"),
            ("tcp", "dport"),
            ("th", "sport"),
            ("vlan", "id"),
            ("igmp", "mrt"),
            ("gre", "version"),
            ("arp", "saddr ip"),
        ] {
            assert_eq!(text(header, field), format!("{header} {field}"));
        }
        assert_eq!(TypeOf::field("tcp", "nothing"), None);
        assert_eq!(TypeOf::field("ipx", "saddr"), None);
        let vlan = TypeOf::field("vlan", "id").unwrap();
        let TypeOf::Field { field, length, .. } = vlan else {
            panic!("{vlan:?}")
        };
        assert_eq!((field, length), (4, Some(12)));
        let option = |kind, header, field| TypeOf::extension(kind, header, field).unwrap();
        for (field, text) in [
            (
                option(ExtensionHeaderKind::Ipv6, "frag", "frag-off"),
                "frag frag-off",
            ),
            (option(ExtensionHeaderKind::Ipv6, "srh", "sid[1]"), "srh sid[1]"),
            (
                option(ExtensionHeaderKind::TcpOption, "maxseg", "size"),
                "tcp option maxseg size",
            ),
            (
                option(ExtensionHeaderKind::Ipv4Option, "ra", "value"),
                "ip option ra value",
            ),
            (
                option(ExtensionHeaderKind::SctpChunk, "data", "tsn"),
                "sctp chunk data tsn",
            ),
        ] {
            assert_eq!(field.to_string(), text);
        }
        assert_eq!(
            TypeOf::extension(ExtensionHeaderKind::Ipv4Option, "ra", "ptr"),
            None
        );
    }

    #[test]
    fn lengths_are_those_of_the_values() {
        let length = |header, field| TypeOf::field(header, field).unwrap().length();
        assert_eq!(length("ip6", "saddr"), Some(16));
        assert_eq!(length("vlan", "id"), Some(2));
        assert_eq!(length("ip", "dscp"), Some(1));
    }
}
