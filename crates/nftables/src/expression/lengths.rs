//! Lengths of what expressions load.

use crate::expression::{ConnectionTrackingKey, MetaKey};

/// The length of metadata in bytes.
pub(crate) fn meta_length(key: MetaKey) -> u32 {
    match key {
        MetaKey::NetworkProtocol
        | MetaKey::TransportProtocol
        | MetaKey::PacketType
        | MetaKey::Trace
        | MetaKey::SecurityPath
        | MetaKey::Day
        | MetaKey::BridgeRoute => 1,
        MetaKey::Protocol
        | MetaKey::InputType
        | MetaKey::OutputType
        | MetaKey::InputBridgeVlan
        | MetaKey::InputBridgeVlanProtocol => 2,
        MetaKey::Time => 8,
        MetaKey::InputName
        | MetaKey::OutputName
        | MetaKey::InputBridge
        | MetaKey::OutputBridge
        | MetaKey::InputKind
        | MetaKey::OutputKind
        | MetaKey::InputSlaveName => 16,
        _ => 4,
    }
}

/// The length of a property in bytes; `None` if it depends on the family.
pub(crate) fn ct_length(key: ConnectionTrackingKey) -> Option<u32> {
    Some(match key {
        ConnectionTrackingKey::Direction
        | ConnectionTrackingKey::NetworkProtocol
        | ConnectionTrackingKey::Protocol => 1,
        ConnectionTrackingKey::SourcePort
        | ConnectionTrackingKey::DestinationPort
        | ConnectionTrackingKey::Zone => 2,
        ConnectionTrackingKey::Packets
        | ConnectionTrackingKey::Bytes
        | ConnectionTrackingKey::AveragePacket => 8,
        ConnectionTrackingKey::Helper
        | ConnectionTrackingKey::Labels
        | ConnectionTrackingKey::SourceIp6
        | ConnectionTrackingKey::DestinationIp6 => 16,
        ConnectionTrackingKey::Source | ConnectionTrackingKey::Destination => return None,
        _ => 4,
    })
}
