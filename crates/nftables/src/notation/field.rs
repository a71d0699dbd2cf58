//! Fields that are not bits of the packet: metadata, connections, routes, sockets, tunnels.

use super::form::Form;
use crate::data_type::DataType;
use crate::expression::lengths::{ct_length, meta_length};
use crate::expression::{
    ConnectionTrackingKey, FibFlags, FibResult, HashKind, MetaKey, NumberGeneratorKind, OsFingerprint,
    OsFingerprintFlags, RouteKey, SocketKey, TunnelKey, XfrmKey,
};
use crate::table_family::TableFamily;

/// How a field is written, and its length in bytes.
type Named = (String, Form, u32);

/// Metadata of a packet.
pub(super) fn meta(key: MetaKey) -> Option<Named> {
    let form = match key {
        MetaKey::Protocol | MetaKey::InputBridgeVlanProtocol => Form::of(DataType::EtherType),
        MetaKey::Priority => Form::of(DataType::ClassId),
        MetaKey::Mark => Form::of(DataType::Mark),
        MetaKey::InputIndex | MetaKey::OutputIndex | MetaKey::InputSlaveIndex => {
            Form::of(DataType::InterfaceIndex)
        }
        MetaKey::InputName
        | MetaKey::OutputName
        | MetaKey::InputBridge
        | MetaKey::OutputBridge
        | MetaKey::InputKind
        | MetaKey::OutputKind
        | MetaKey::InputSlaveName => Form::of(DataType::InterfaceName),
        MetaKey::InputType | MetaKey::OutputType => Form::of(DataType::InterfaceType),
        MetaKey::SocketUser => Form::of(DataType::UserId),
        MetaKey::SocketGroup => Form::of(DataType::GroupId),
        MetaKey::RouteClass => Form::of(DataType::Realm),
        MetaKey::NetworkProtocol => Form::of(DataType::NetworkProtocol),
        MetaKey::TransportProtocol => Form::of(DataType::Protocol),
        MetaKey::PacketType => Form::of(DataType::PacketType),
        MetaKey::InputGroup | MetaKey::OutputGroup => Form::of(DataType::DeviceGroup),
        MetaKey::Random => Form::of(DataType::Integer),
        MetaKey::SecurityPath => Form::of(DataType::Boolean),
        MetaKey::Time => Form::of(DataType::TimeOfYear),
        MetaKey::Day => Form::of(DataType::DayOfWeek),
        MetaKey::Hour => Form::of(DataType::HourOfDay),
        MetaKey::Unknown(_) => return None,
        _ => Form::host_number(),
    };
    let is_qualified = !matches!(
        key,
        MetaKey::InputIndex
            | MetaKey::OutputIndex
            | MetaKey::InputName
            | MetaKey::OutputName
            | MetaKey::InputGroup
            | MetaKey::OutputGroup
    );
    let text = if is_qualified {
        format!("meta {key}")
    } else {
        key.to_string()
    };
    Some((text, form, meta_length(key)))
}

/// A property of a connection.
pub(super) fn connection(
    key: ConnectionTrackingKey,
    direction: Option<u8>,
    family: TableFamily,
) -> Option<Named> {
    let form = match (key, family) {
        (ConnectionTrackingKey::State, _) => Form::of(DataType::ConnectionState),
        (ConnectionTrackingKey::Status, _) => Form::of(DataType::ConnectionStatus),
        (ConnectionTrackingKey::Mark, _) => Form::of(DataType::Mark),
        (ConnectionTrackingKey::Direction, _) => Form::of(DataType::ConnectionDirection),
        (ConnectionTrackingKey::NetworkProtocol, _) => Form::of(DataType::NetworkProtocol),
        (ConnectionTrackingKey::Protocol, _) => Form::of(DataType::Protocol),
        (ConnectionTrackingKey::SourcePort | ConnectionTrackingKey::DestinationPort, _) => {
            Form::of(DataType::Service)
        }
        (ConnectionTrackingKey::SourceIp | ConnectionTrackingKey::DestinationIp, _)
        | (ConnectionTrackingKey::Source | ConnectionTrackingKey::Destination, TableFamily::Ip) => {
            Form::of(DataType::Ipv4Address)
        }
        (ConnectionTrackingKey::SourceIp6 | ConnectionTrackingKey::DestinationIp6, _)
        | (ConnectionTrackingKey::Source | ConnectionTrackingKey::Destination, TableFamily::Ip6) => {
            Form::of(DataType::Ipv6Address)
        }
        (ConnectionTrackingKey::Source | ConnectionTrackingKey::Destination, _)
        | (ConnectionTrackingKey::Unknown(_), _) => return None,
        (ConnectionTrackingKey::Expiration, _) => Form::of(DataType::Time),
        (ConnectionTrackingKey::Helper, _) => Form::of(DataType::String),
        (ConnectionTrackingKey::Labels, _) => Form::of(DataType::ConnectionLabel),
        (ConnectionTrackingKey::Id, _) => Form::of(DataType::Integer),
        (ConnectionTrackingKey::EventMask, _) => Form::of(DataType::ConnectionEvent),
        _ => Form::host_number(),
    };
    let family = match key {
        ConnectionTrackingKey::Source | ConnectionTrackingKey::Destination => match form.data_type {
            DataType::Ipv4Address => "ip ",
            _ => "ip6 ",
        },
        _ => "",
    };
    let text = match direction {
        None => format!("ct {family}{key}"),
        Some(0) => format!("ct original {family}{key}"),
        Some(1) => format!("ct reply {family}{key}"),
        Some(_) => return None,
    };
    let length = ct_length(key).or(form.data_type.length())?;
    Some((text, form, length))
}

/// A property of a route.
pub(super) fn route(key: RouteKey) -> Option<Named> {
    Some(match key {
        RouteKey::Class => ("rt classid".into(), Form::of(DataType::Realm), 4),
        RouteKey::NextHop => ("rt ip nexthop".into(), Form::of(DataType::Ipv4Address), 4),
        RouteKey::NextHop6 => ("rt ip6 nexthop".into(), Form::of(DataType::Ipv6Address), 16),
        RouteKey::MaximumSegment => ("rt mtu".into(), Form::host_number(), 2),
        RouteKey::Xfrm => ("rt ipsec".into(), Form::of(DataType::Boolean), 1),
        RouteKey::Unknown(_) => return None,
    })
}

/// A property of a socket.
pub(super) fn socket(key: SocketKey, level: Option<u32>) -> Option<Named> {
    Some(match key {
        SocketKey::Transparent | SocketKey::Wildcard => (format!("socket {key}"), Form::host_number(), 1),
        SocketKey::Mark => ("socket mark".into(), Form::of(DataType::Mark), 4),
        SocketKey::ControlGroup => (
            format!("socket cgroupv2 level {}", level?),
            Form {
                is_host: true,
                ..Form::of(DataType::ControlGroup)
            },
            8,
        ),
        SocketKey::Unknown(_) => return None,
    })
}

/// The operating system that a packet looks like.
pub(super) fn os_fingerprint(fingerprint: &OsFingerprint) -> Option<String> {
    let ttl = match fingerprint.ttl {
        0 => "",
        1 => "ttl loose ",
        2 => "ttl skip ",
        _ => return None,
    };
    let name = if fingerprint.flags.contains(OsFingerprintFlags::VERSION) {
        "version"
    } else {
        "name"
    };
    Some(format!("osf {ttl}{name}"))
}

/// A property of a tunnel.
pub(super) fn tunnel(key: TunnelKey) -> Option<Named> {
    Some(match key {
        TunnelKey::Path => ("tunnel path".into(), Form::of(DataType::Boolean), 1),
        TunnelKey::Id => ("tunnel id".into(), Form::host_number(), 4),
        TunnelKey::Unknown(_) => return None,
    })
}

/// A property of an IPsec state.
pub(super) fn xfrm(key: XfrmKey, direction: u8, number: u32) -> Option<Named> {
    let direction = match direction {
        0 => "in",
        1 => "out",
        _ => return None,
    };
    let number = if number > 0 {
        format!(" spnum {number}")
    } else {
        String::new()
    };
    let (form, length) = match key {
        XfrmKey::Destination | XfrmKey::Source => (Form::of(DataType::Ipv4Address), 4),
        XfrmKey::Destination6 | XfrmKey::Source6 => (Form::of(DataType::Ipv6Address), 16),
        XfrmKey::RequestId => (Form::host_number(), 4),
        XfrmKey::Spi => (Form::of(DataType::Integer), 4),
        XfrmKey::Unknown(_) => return None,
    };
    Some((format!("ipsec {direction}{number} {key}"), form, length))
}

/// A result of a route lookup.
pub(super) fn fib(result: FibResult, flags: FibFlags) -> Option<Named> {
    let names = [
        (FibFlags::SOURCE, "saddr"),
        (FibFlags::DESTINATION, "daddr"),
        (FibFlags::MARK, "mark"),
        (FibFlags::INPUT_INTERFACE, "iif"),
        (FibFlags::OUTPUT_INTERFACE, "oif"),
    ];
    let names = names.iter().filter(|(flag, _)| flags.contains(*flag));
    let names: Vec<&str> = names.map(|(_, name)| *name).collect();
    let is_presence = flags.contains(FibFlags::PRESENT);
    let (data_type, length) = match result {
        _ if is_presence => (DataType::Boolean, 1),
        FibResult::AddressType => (DataType::AddressType, 4),
        FibResult::OutputIndex => (DataType::InterfaceIndex, 4),
        FibResult::OutputName => (DataType::InterfaceName, 16),
        FibResult::Unknown(_) => return None,
    };
    let result = if is_presence {
        "check".to_owned()
    } else {
        result.to_string()
    };
    let text = format!("fib {} {result}", names.join(" . "));
    Some((text, Form::of(data_type), length))
}

/// A number.
pub(super) fn generator(kind: NumberGeneratorKind, modulus: u32, offset: u32) -> Option<String> {
    let kind = match kind {
        NumberGeneratorKind::Incremental => "inc",
        NumberGeneratorKind::Random => "random",
        NumberGeneratorKind::Unknown(_) => return None,
    };
    Some(format!("numgen {kind} mod {modulus}{}", self::offset(offset)))
}

/// The hash of addresses and ports. The other one is of what is in registers.
pub(super) fn symmetric_hash(kind: HashKind, modulus: u32, seed: Option<u32>, offset: u32) -> Option<String> {
    let seed = self::seed(seed);
    (kind == HashKind::Symmetric).then(|| format!("symhash mod {modulus}{seed}{}", self::offset(offset)))
}

pub(super) fn seed(seed: Option<u32>) -> String {
    seed.map_or_else(String::new, |seed| format!(" seed 0x{seed:x}"))
}

pub(super) fn offset(offset: u32) -> String {
    if offset > 0 {
        format!(" offset {offset}")
    } else {
        String::new()
    }
}
