//! Types of values, as `nft` numbers them.

use std::fmt;

/// The type of a field of a key or of data, which `nft` needs to print values. The kernel does not read it.
///
/// The numbers are those of `nft`
/// ([`datatype.h`](https://git.netfilter.org/nftables/tree/include/datatype.h)); a type has 6 bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum DataType {
    /// Family of a packet (`NFPROTO_*`).
    NetworkProtocol,
    /// Bits.
    Bitmask,
    /// A number of any length.
    Integer,
    /// Text.
    String,
    /// Address of a link layer, of any length.
    LinkAddress,
    /// IPv4 address.
    Ipv4Address,
    /// IPv6 address.
    Ipv6Address,
    /// Ethernet address.
    EtherAddress,
    /// Protocol of an Ethernet frame.
    EtherType,
    /// Operation of ARP.
    ArpOperation,
    /// Protocol of the transport layer.
    Protocol,
    /// Port.
    Service,
    /// Type of an ICMP message.
    IcmpType,
    /// Flags of TCP.
    TcpFlags,
    /// Type of a DCCP packet.
    DccpPacketType,
    /// Type of a mobility header.
    MobilityType,
    /// A duration in milliseconds.
    Time,
    /// Mark of a packet or connection.
    Mark,
    /// Index of a device.
    InterfaceIndex,
    /// Hardware type of a device.
    InterfaceType,
    /// Realm of a route.
    Realm,
    /// Traffic class.
    ClassId,
    /// User.
    UserId,
    /// Group.
    GroupId,
    /// State of a connection.
    ConnectionState,
    /// Direction in a connection.
    ConnectionDirection,
    /// Status of a connection.
    ConnectionStatus,
    /// Type of an ICMPv6 message.
    Icmpv6Type,
    /// Labels of a connection.
    ConnectionLabel,
    /// Unicast, broadcast, multicast, ...
    PacketType,
    /// Code of an ICMP message.
    IcmpCode,
    /// Code of an ICMPv6 message.
    Icmpv6Code,
    /// Code of a reject in either family.
    IcmpxCode,
    /// Group of a device.
    DeviceGroup,
    /// Differentiated services code point.
    Dscp,
    /// Explicit congestion notification.
    Ecn,
    /// Type of an address in a route lookup.
    AddressType,
    /// Whether something exists.
    Boolean,
    /// Events of a connection.
    ConnectionEvent,
    /// Name of a device.
    InterfaceName,
    /// Type of an IGMP message.
    IgmpType,
    /// Date and time.
    TimeOfYear,
    /// Time of the day.
    HourOfDay,
    /// Day of the week.
    DayOfWeek,
    /// Control group.
    ControlGroup,
    /// Another number.
    Unknown(u8),
}

/// The number of bits of a type in a number for several types.
const BITS: u32 = 6;

const MASK: u32 = (1 << BITS) - 1;

impl DataType {
    /// The number for `nft`.
    #[must_use]
    pub fn number(self) -> u8 {
        match self {
            DataType::NetworkProtocol => 2,
            DataType::Bitmask => 3,
            DataType::Integer => 4,
            DataType::String => 5,
            DataType::LinkAddress => 6,
            DataType::Ipv4Address => 7,
            DataType::Ipv6Address => 8,
            DataType::EtherAddress => 9,
            DataType::EtherType => 10,
            DataType::ArpOperation => 11,
            DataType::Protocol => 12,
            DataType::Service => 13,
            DataType::IcmpType => 14,
            DataType::TcpFlags => 15,
            DataType::DccpPacketType => 16,
            DataType::MobilityType => 17,
            DataType::Time => 18,
            DataType::Mark => 19,
            DataType::InterfaceIndex => 20,
            DataType::InterfaceType => 21,
            DataType::Realm => 22,
            DataType::ClassId => 23,
            DataType::UserId => 24,
            DataType::GroupId => 25,
            DataType::ConnectionState => 26,
            DataType::ConnectionDirection => 27,
            DataType::ConnectionStatus => 28,
            DataType::Icmpv6Type => 29,
            DataType::ConnectionLabel => 30,
            DataType::PacketType => 31,
            DataType::IcmpCode => 32,
            DataType::Icmpv6Code => 33,
            DataType::IcmpxCode => 34,
            DataType::DeviceGroup => 35,
            DataType::Dscp => 36,
            DataType::Ecn => 37,
            DataType::AddressType => 38,
            DataType::Boolean => 39,
            DataType::ConnectionEvent => 40,
            DataType::InterfaceName => 41,
            DataType::IgmpType => 42,
            DataType::TimeOfYear => 43,
            DataType::HourOfDay => 44,
            DataType::DayOfWeek => 45,
            DataType::ControlGroup => 46,
            DataType::Unknown(number) => number & MASK as u8,
        }
    }

    /// The type of a number.
    #[must_use]
    pub fn from_number(number: u8) -> Self {
        match number {
            2 => DataType::NetworkProtocol,
            3 => DataType::Bitmask,
            4 => DataType::Integer,
            5 => DataType::String,
            6 => DataType::LinkAddress,
            7 => DataType::Ipv4Address,
            8 => DataType::Ipv6Address,
            9 => DataType::EtherAddress,
            10 => DataType::EtherType,
            11 => DataType::ArpOperation,
            12 => DataType::Protocol,
            13 => DataType::Service,
            14 => DataType::IcmpType,
            15 => DataType::TcpFlags,
            16 => DataType::DccpPacketType,
            17 => DataType::MobilityType,
            18 => DataType::Time,
            19 => DataType::Mark,
            20 => DataType::InterfaceIndex,
            21 => DataType::InterfaceType,
            22 => DataType::Realm,
            23 => DataType::ClassId,
            24 => DataType::UserId,
            25 => DataType::GroupId,
            26 => DataType::ConnectionState,
            27 => DataType::ConnectionDirection,
            28 => DataType::ConnectionStatus,
            29 => DataType::Icmpv6Type,
            30 => DataType::ConnectionLabel,
            31 => DataType::PacketType,
            32 => DataType::IcmpCode,
            33 => DataType::Icmpv6Code,
            34 => DataType::IcmpxCode,
            35 => DataType::DeviceGroup,
            36 => DataType::Dscp,
            37 => DataType::Ecn,
            38 => DataType::AddressType,
            39 => DataType::Boolean,
            40 => DataType::ConnectionEvent,
            41 => DataType::InterfaceName,
            42 => DataType::IgmpType,
            43 => DataType::TimeOfYear,
            44 => DataType::HourOfDay,
            45 => DataType::DayOfWeek,
            46 => DataType::ControlGroup,
            number => DataType::Unknown(number),
        }
    }

    /// The length in bytes; `None` if it is not always the same.
    #[must_use]
    pub fn length(self) -> Option<u32> {
        match self {
            DataType::NetworkProtocol
            | DataType::Protocol
            | DataType::IcmpType
            | DataType::TcpFlags
            | DataType::DccpPacketType
            | DataType::MobilityType
            | DataType::ConnectionDirection
            | DataType::Icmpv6Type
            | DataType::PacketType
            | DataType::IcmpCode
            | DataType::Icmpv6Code
            | DataType::IcmpxCode
            | DataType::Dscp
            | DataType::Ecn
            | DataType::Boolean
            | DataType::IgmpType
            | DataType::DayOfWeek => Some(1),
            DataType::Ipv4Address
            | DataType::Mark
            | DataType::InterfaceIndex
            | DataType::Realm
            | DataType::ClassId
            | DataType::UserId
            | DataType::GroupId
            | DataType::ConnectionState
            | DataType::ConnectionStatus
            | DataType::DeviceGroup
            | DataType::AddressType
            | DataType::ConnectionEvent => Some(4),
            DataType::Ipv6Address | DataType::ConnectionLabel | DataType::InterfaceName => Some(16),
            DataType::EtherAddress => Some(6),
            DataType::EtherType | DataType::ArpOperation | DataType::Service | DataType::InterfaceType => {
                Some(2)
            }
            DataType::Time | DataType::TimeOfYear | DataType::HourOfDay | DataType::ControlGroup => Some(8),
            DataType::Bitmask
            | DataType::Integer
            | DataType::String
            | DataType::LinkAddress
            | DataType::Unknown(_) => None,
        }
    }

    /// Whether values are in the host's byte order.
    #[must_use]
    pub fn is_host_byte_order(self) -> bool {
        matches!(
            self,
            DataType::NetworkProtocol
                | DataType::Bitmask
                | DataType::String
                | DataType::TcpFlags
                | DataType::Time
                | DataType::Mark
                | DataType::InterfaceIndex
                | DataType::InterfaceType
                | DataType::Realm
                | DataType::ClassId
                | DataType::UserId
                | DataType::GroupId
                | DataType::ConnectionState
                | DataType::ConnectionDirection
                | DataType::ConnectionStatus
                | DataType::ConnectionLabel
                | DataType::PacketType
                | DataType::DeviceGroup
                | DataType::AddressType
                | DataType::Boolean
                | DataType::ConnectionEvent
                | DataType::InterfaceName
                | DataType::TimeOfYear
                | DataType::HourOfDay
                | DataType::DayOfWeek
                | DataType::ControlGroup
        )
    }

    /// The name that `nft` prints.
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        Some(match self {
            DataType::NetworkProtocol => "nf_proto",
            DataType::Bitmask => "bitmask",
            DataType::Integer => "integer",
            DataType::String => "string",
            DataType::LinkAddress => "ll_addr",
            DataType::Ipv4Address => "ipv4_addr",
            DataType::Ipv6Address => "ipv6_addr",
            DataType::EtherAddress => "ether_addr",
            DataType::EtherType => "ether_type",
            DataType::ArpOperation => "arp_op",
            DataType::Protocol => "inet_proto",
            DataType::Service => "inet_service",
            DataType::IcmpType => "icmp_type",
            DataType::TcpFlags => "tcp_flag",
            DataType::DccpPacketType => "dccp_pkttype",
            DataType::MobilityType => "mh_type",
            DataType::Time => "time",
            DataType::Mark => "mark",
            DataType::InterfaceIndex => "iface_index",
            DataType::InterfaceType => "iface_type",
            DataType::Realm => "realm",
            DataType::ClassId => "classid",
            DataType::UserId => "uid",
            DataType::GroupId => "gid",
            DataType::ConnectionState => "ct_state",
            DataType::ConnectionDirection => "ct_dir",
            DataType::ConnectionStatus => "ct_status",
            DataType::Icmpv6Type => "icmpv6_type",
            DataType::ConnectionLabel => "ct_label",
            DataType::PacketType => "pkt_type",
            DataType::IcmpCode => "icmp_code",
            DataType::Icmpv6Code => "icmpv6_code",
            DataType::IcmpxCode => "icmpx_code",
            DataType::DeviceGroup => "devgroup",
            DataType::Dscp => "dscp",
            DataType::Ecn => "ecn",
            DataType::AddressType => "fib_addrtype",
            DataType::Boolean => "boolean",
            DataType::ConnectionEvent => "ct_event",
            DataType::InterfaceName => "ifname",
            DataType::IgmpType => "igmp_type",
            DataType::TimeOfYear => "time",
            DataType::HourOfDay => "hour",
            DataType::DayOfWeek => "day",
            DataType::ControlGroup => "cgroupsv2",
            DataType::Unknown(_) => return None,
        })
    }
}

impl fmt::Display for DataType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.pad(name),
            None => write!(f, "{}", self.number()),
        }
    }
}

/// The types of the fields of a key or of data: at most five, in one number.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DataTypes(u32);

impl DataTypes {
    /// These types. Those that do not fit, the first of more than five, are lost: `nft` then prints nothing useful, which has no effect
    /// on packets.
    #[must_use]
    pub fn new(types: &[DataType]) -> Self {
        let add = |number: u32, data_type: &DataType| number << BITS | u32::from(data_type.number());
        DataTypes(types.iter().fold(0, add))
    }

    /// The types of a number (`NFTA_SET_KEY_TYPE`, `NFTA_SET_DATA_TYPE`).
    #[must_use]
    pub fn from_number(number: u32) -> Self {
        DataTypes(number)
    }

    /// The number.
    #[must_use]
    pub fn number(self) -> u32 {
        self.0
    }

    /// The types in order.
    pub fn iter(self) -> impl Iterator<Item = DataType> {
        let count = (u32::BITS - self.0.leading_zeros()).div_ceil(BITS);
        (0..count)
            .rev()
            .map(move |index| DataType::from_number((self.0 >> (index * BITS) & MASK) as u8))
    }
}

impl fmt::Debug for DataTypes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// As `nft` prints it: `ipv4_addr . inet_service`.
impl fmt::Display for DataTypes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, data_type) in self.iter().enumerate() {
            if index > 0 {
                f.write_str(" . ")?;
            }
            data_type.fmt(f)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_6_bits_each() {
        let types = DataTypes::new(&[DataType::Ipv4Address, DataType::Protocol, DataType::Service]);
        assert_eq!(types.number(), 7 << 12 | 12 << 6 | 13);
        assert_eq!(types.to_string(), "ipv4_addr . inet_proto . inet_service");
        assert_eq!(DataTypes::from_number(0).iter().count(), 0);
        for number in 0..64 {
            assert_eq!(DataType::from_number(number).number(), number);
        }
    }
}
