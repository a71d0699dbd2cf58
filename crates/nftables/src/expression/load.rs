//! Expressions that load or write a value.

use kernlink_netlink::{AttributeReader, AttributeWriter, Error};

use crate::expression::Expression;
use crate::register::Register;
use crate::uapi::{
    NFTA_EXTHDR_DREG, NFTA_EXTHDR_FLAGS, NFTA_EXTHDR_LEN, NFTA_EXTHDR_OFFSET, NFTA_EXTHDR_OP,
    NFTA_EXTHDR_SREG, NFTA_EXTHDR_TYPE,
};
use crate::verdict::{Data, Verdict};
use crate::wire::{Attributes, Field, MISSING, UNKNOWN, attributes, flags_field, open_enum};

attributes! {
    /// `immediate`: loads a constant, or decides about the packet if the register is [`Register::VERDICT`].
    Immediate {
        /// The register.
        destination: Register = NFTA_IMMEDIATE_DREG,
        /// What is loaded.
        data: Data = NFTA_IMMEDIATE_DATA,
    }
}

impl Immediate {
    /// Decides about the packet.
    #[must_use]
    pub fn verdict(verdict: Verdict) -> Self {
        Immediate::new(Register::VERDICT, verdict)
    }
}

open_enum! {
    /// The header that an offset is relative to.
    PayloadBase: u32 {
        /// The header of the link layer.
        Link = NFT_PAYLOAD_LL_HEADER "ll",
        /// The header of IPv4, IPv6 or ARP.
        Network = NFT_PAYLOAD_NETWORK_HEADER "nh",
        /// The header of TCP, UDP, ICMP, ...
        Transport = NFT_PAYLOAD_TRANSPORT_HEADER "th",
        /// The data after the header of TCP or UDP.
        Inner = NFT_PAYLOAD_INNER_HEADER "ih",
        /// The header of a tunnel, for [`Inner`].
        Tunnel = NFT_PAYLOAD_TUN_HEADER "tun",
    }
}

open_enum! {
    /// The checksum that changes with the written bytes.
    PayloadChecksum: u32 {
        /// None.
        None = NFT_PAYLOAD_CSUM_NONE "none",
        /// The 16 bits of IPv4, TCP and UDP.
        Inet = NFT_PAYLOAD_CSUM_INET "inet",
        /// The CRC32 of SCTP.
        Sctp = NFT_PAYLOAD_CSUM_SCTP "sctp",
    }
}

attributes! {
    /// `payload` that loads bytes of the packet. The rule ends if the packet does not have them.
    Payload {
        /// The first register.
        destination: Register = NFTA_PAYLOAD_DREG,
        /// The header.
        base: PayloadBase = NFTA_PAYLOAD_BASE,
        /// Offset in the header in bytes.
        offset: u32 = NFTA_PAYLOAD_OFFSET,
        /// Number of bytes.
        length: u32 = NFTA_PAYLOAD_LEN,
    }
}

attributes! {
    /// `payload` that writes bytes of the packet.
    PayloadSet {
        /// The first register.
        source: Register = NFTA_PAYLOAD_SREG,
        /// The header.
        base: PayloadBase = NFTA_PAYLOAD_BASE,
        /// Offset in the header in bytes.
        offset: u32 = NFTA_PAYLOAD_OFFSET,
        /// Number of bytes.
        length: u32 = NFTA_PAYLOAD_LEN,
        ;
        /// The checksum to update.
        with_checksum checksum: PayloadChecksum = NFTA_PAYLOAD_CSUM_TYPE,
        /// Offset of the checksum in the header in bytes.
        with_checksum_offset checksum_offset: u32 = NFTA_PAYLOAD_CSUM_OFFSET,
        /// `NFT_PAYLOAD_L4CSUM_PSEUDOHDR`: the bytes are part of the pseudo header of the transport layer's checksum.
        with_checksum_flags checksum_flags: u32 = NFTA_PAYLOAD_CSUM_FLAGS,
    }
}

open_enum! {
    /// Metadata of a packet.
    MetaKey: u32 {
        /// Length in bytes.
        Length = NFT_META_LEN "length",
        /// Protocol of the network layer, an Ethernet type.
        Protocol = NFT_META_PROTOCOL "protocol",
        /// Traffic class.
        Priority = NFT_META_PRIORITY "priority",
        /// The mark.
        Mark = NFT_META_MARK "mark",
        /// Index of the input device.
        InputIndex = NFT_META_IIF "iif",
        /// Index of the output device.
        OutputIndex = NFT_META_OIF "oif",
        /// Name of the input device.
        InputName = NFT_META_IIFNAME "iifname",
        /// Name of the output device.
        OutputName = NFT_META_OIFNAME "oifname",
        /// Hardware type of the input device.
        InputType = NFT_META_IFTYPE "iiftype",
        /// Hardware type of the output device.
        OutputType = NFT_META_OIFTYPE "oiftype",
        /// User of the local socket.
        SocketUser = NFT_META_SKUID "skuid",
        /// Group of the local socket.
        SocketGroup = NFT_META_SKGID "skgid",
        /// Whether the packet is traced.
        Trace = NFT_META_NFTRACE "nftrace",
        /// Realm of the route.
        RouteClass = NFT_META_RTCLASSID "rtclassid",
        /// Security mark.
        SecurityMark = NFT_META_SECMARK "secmark",
        /// Family of the packet (`NFPROTO_*`).
        NetworkProtocol = NFT_META_NFPROTO "nfproto",
        /// Protocol of the transport layer.
        TransportProtocol = NFT_META_L4PROTO "l4proto",
        /// Name of the bridge of the input device.
        InputBridge = NFT_META_BRI_IIFNAME "ibrname",
        /// Name of the bridge of the output device.
        OutputBridge = NFT_META_BRI_OIFNAME "obrname",
        /// Unicast, broadcast, multicast, ...
        PacketType = NFT_META_PKTTYPE "pkttype",
        /// Number of the CPU.
        Cpu = NFT_META_CPU "cpu",
        /// Group of the input device.
        InputGroup = NFT_META_IIFGROUP "iifgroup",
        /// Group of the output device.
        OutputGroup = NFT_META_OIFGROUP "oifgroup",
        /// Class of the control group of the local socket.
        ControlGroup = NFT_META_CGROUP "cgroup",
        /// A random number.
        Random = NFT_META_PRANDOM "random",
        /// Whether the packet was received through IPsec.
        SecurityPath = NFT_META_SECPATH "ipsec",
        /// Kind of the input device.
        InputKind = NFT_META_IIFKIND "iifkind",
        /// Kind of the output device.
        OutputKind = NFT_META_OIFKIND "oifkind",
        /// VLAN of the bridge port.
        InputBridgeVlan = NFT_META_BRI_IIFPVID "ibrpvid",
        /// VLAN protocol of the bridge.
        InputBridgeVlanProtocol = NFT_META_BRI_IIFVPROTO "ibrvproto",
        /// Time in nanoseconds since 1970.
        Time = NFT_META_TIME_NS "time",
        /// Day of the week; 0 is Sunday.
        Day = NFT_META_TIME_DAY "day",
        /// Second of the day.
        Hour = NFT_META_TIME_HOUR "hour",
        /// Index of the device that is a member of a VRF.
        InputSlaveIndex = NFT_META_SDIF "sdif",
        /// Name of the device that is a member of a VRF.
        InputSlaveName = NFT_META_SDIFNAME "sdifname",
        /// Whether a bridge passes the frame to the network layer.
        BridgeRoute = NFT_META_BRI_BROUTE "broute",
    }
}

attributes! {
    /// `meta` that loads.
    Meta {
        /// What is loaded.
        key: MetaKey = NFTA_META_KEY,
        /// The first register.
        destination: Register = NFTA_META_DREG,
    }
}

attributes! {
    /// `meta` that writes.
    MetaSet {
        /// What is written.
        key: MetaKey = NFTA_META_KEY,
        /// The first register.
        source: Register = NFTA_META_SREG,
    }
}

open_enum! {
    /// A property of a connection.
    ConnectionTrackingKey: u32 {
        /// State, as bits: invalid 1, established 2, related 4, new 8, untracked 64.
        State = NFT_CT_STATE "state",
        /// 0 for the original direction, 1 for replies.
        Direction = NFT_CT_DIRECTION "direction",
        /// Status, as bits (`IPS_*`): 0x10 is source NAT, 0x20 destination NAT.
        Status = NFT_CT_STATUS "status",
        /// The mark of the connection.
        Mark = NFT_CT_MARK "mark",
        /// Security mark.
        SecurityMark = NFT_CT_SECMARK "secmark",
        /// Time until the connection ends, in milliseconds.
        Expiration = NFT_CT_EXPIRATION "expiration",
        /// Name of the helper.
        Helper = NFT_CT_HELPER "helper",
        /// Family (`NFPROTO_*`).
        NetworkProtocol = NFT_CT_L3PROTOCOL "l3proto",
        /// Source address, of a length that depends on the family.
        Source = NFT_CT_SRC "saddr",
        /// Destination address.
        Destination = NFT_CT_DST "daddr",
        /// Protocol of the transport layer.
        Protocol = NFT_CT_PROTOCOL "protocol",
        /// Source port.
        SourcePort = NFT_CT_PROTO_SRC "proto-src",
        /// Destination port.
        DestinationPort = NFT_CT_PROTO_DST "proto-dst",
        /// Labels, 128 bits.
        Labels = NFT_CT_LABELS "label",
        /// Packets.
        Packets = NFT_CT_PKTS "packets",
        /// Bytes.
        Bytes = NFT_CT_BYTES "bytes",
        /// Bytes for each packet.
        AveragePacket = NFT_CT_AVGPKT "avgpkt",
        /// Zone.
        Zone = NFT_CT_ZONE "zone",
        /// Which events are sent.
        EventMask = NFT_CT_EVENTMASK "event",
        /// Source address of IPv4.
        SourceIp = NFT_CT_SRC_IP "ip saddr",
        /// Destination address of IPv4.
        DestinationIp = NFT_CT_DST_IP "ip daddr",
        /// Source address of IPv6.
        SourceIp6 = NFT_CT_SRC_IP6 "ip6 saddr",
        /// Destination address of IPv6.
        DestinationIp6 = NFT_CT_DST_IP6 "ip6 daddr",
        /// Id.
        Id = NFT_CT_ID "id",
    }
}

attributes! {
    /// `ct` that loads.
    ConnectionTracking {
        /// What is loaded.
        key: ConnectionTrackingKey = NFTA_CT_KEY,
        /// The first register.
        destination: Register = NFTA_CT_DREG,
        ;
        /// The direction, for the keys that have one: 0 original, 1 reply.
        with_direction direction: Option<u8> = NFTA_CT_DIRECTION,
    }
}

attributes! {
    /// `ct` that writes.
    ConnectionTrackingSet {
        /// What is written.
        key: ConnectionTrackingKey = NFTA_CT_KEY,
        /// The first register.
        source: Register = NFTA_CT_SREG,
        ;
        /// The direction, for the zone: 0 original, 1 reply.
        with_direction direction: Option<u8> = NFTA_CT_DIRECTION,
    }
}

open_enum! {
    /// Which headers or options are searched.
    ExtensionHeaderKind: u32 {
        /// Extension headers of IPv6.
        Ipv6 = NFT_EXTHDR_OP_IPV6 "exthdr",
        /// Options of TCP.
        TcpOption = NFT_EXTHDR_OP_TCPOPT "tcp option",
        /// Options of IPv4.
        Ipv4Option = NFT_EXTHDR_OP_IPV4 "ip option",
        /// Chunks of SCTP.
        SctpChunk = NFT_EXTHDR_OP_SCTP "sctp chunk",
        /// Options of DCCP.
        DccpOption = NFT_EXTHDR_OP_DCCP "dccp option",
    }
}

attributes! {
    /// `exthdr` that loads.
    ExtensionHeader {
        /// The first register.
        destination: Register = NFTA_EXTHDR_DREG,
        /// The number of the header or option.
        number: u8 = NFTA_EXTHDR_TYPE,
        ;
        /// Offset in the header or option in bytes.
        with_offset offset: u32 = NFTA_EXTHDR_OFFSET,
        /// Number of bytes.
        with_length length: u32 = NFTA_EXTHDR_LEN,
        /// 1 (`NFT_EXTHDR_F_PRESENT`): loads whether there is such a header or option.
        with_flags flags: u32 = NFTA_EXTHDR_FLAGS,
        /// Which headers or options.
        with_kind kind: ExtensionHeaderKind = NFTA_EXTHDR_OP,
    }
}

/// `exthdr` that writes a field of an option of TCP.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExtensionHeaderSet {
    /// The first register.
    pub source: Register,
    /// The number of the option.
    pub number: u8,
    /// Offset in the option in bytes.
    pub offset: u32,
    /// Number of bytes: 2 or 4.
    pub length: u32,
    /// Which options; only those of TCP can be written.
    pub kind: ExtensionHeaderKind,
}

impl ExtensionHeaderSet {
    /// Writes a field of an option of TCP.
    #[must_use]
    pub fn new(source: Register, number: u8, offset: u32, length: u32) -> Self {
        ExtensionHeaderSet {
            source,
            number,
            offset,
            length,
            kind: ExtensionHeaderKind::TcpOption,
        }
    }
}

/// `exthdr` that replaces an option of TCP by padding, `reset tcp option`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExtensionHeaderRemoval {
    /// The number of the option.
    pub number: u8,
    /// Which options; only those of TCP can be removed.
    pub kind: ExtensionHeaderKind,
}

impl ExtensionHeaderRemoval {
    /// Removes an option of TCP.
    #[must_use]
    pub fn new(number: u8) -> Self {
        ExtensionHeaderRemoval {
            number,
            kind: ExtensionHeaderKind::TcpOption,
        }
    }
}

/// All attributes of `exthdr`. The kernel returns also those that it refuses in a request.
#[derive(Debug, Default)]
struct ExtensionHeaderAttributes {
    destination: Option<Register>,
    source: Option<Register>,
    number: Option<u8>,
    offset: u32,
    length: u32,
    kind: ExtensionHeaderKind,
}

impl ExtensionHeaderAttributes {
    fn decode(attributes: AttributeReader<'_>) -> Result<Self, Error> {
        let mut all = ExtensionHeaderAttributes::default();
        for attribute in attributes {
            let attribute = attribute?;
            match attribute.kind() {
                NFTA_EXTHDR_DREG => all.destination = Field::read(&attribute)?,
                NFTA_EXTHDR_SREG => all.source = Field::read(&attribute)?,
                NFTA_EXTHDR_TYPE => all.number = Field::read(&attribute)?,
                NFTA_EXTHDR_OFFSET => all.offset = Field::read(&attribute)?,
                NFTA_EXTHDR_LEN => all.length = Field::read(&attribute)?,
                NFTA_EXTHDR_OP => all.kind = Field::read(&attribute)?,
                NFTA_EXTHDR_FLAGS if attribute.be_u32()? == 0 => {}
                _ => return Err(UNKNOWN),
            }
        }
        Ok(all)
    }
}

impl Attributes for ExtensionHeaderSet {
    fn encode(&self, writer: &mut AttributeWriter<'_>) {
        self.source.write(writer, NFTA_EXTHDR_SREG);
        self.number.write(writer, NFTA_EXTHDR_TYPE);
        self.offset.write(writer, NFTA_EXTHDR_OFFSET);
        self.length.write(writer, NFTA_EXTHDR_LEN);
        self.kind.write(writer, NFTA_EXTHDR_OP);
    }

    fn decode(attributes: AttributeReader<'_>) -> Result<Self, Error> {
        let all = ExtensionHeaderAttributes::decode(attributes)?;
        match (all.destination, all.source, all.number) {
            (None, Some(source), Some(number)) => Ok(ExtensionHeaderSet {
                source,
                number,
                offset: all.offset,
                length: all.length,
                kind: all.kind,
            }),
            _ => Err(MISSING),
        }
    }
}

impl Attributes for ExtensionHeaderRemoval {
    fn encode(&self, writer: &mut AttributeWriter<'_>) {
        self.number.write(writer, NFTA_EXTHDR_TYPE);
        self.kind.write(writer, NFTA_EXTHDR_OP);
    }

    fn decode(attributes: AttributeReader<'_>) -> Result<Self, Error> {
        let all = ExtensionHeaderAttributes::decode(attributes)?;
        match (all.destination, all.source, all.number, all.offset, all.length) {
            (None, None, Some(number), 0, 0) => Ok(ExtensionHeaderRemoval {
                number,
                kind: all.kind,
            }),
            _ => Err(UNKNOWN),
        }
    }
}

open_enum! {
    /// What a route lookup results in.
    FibResult: u32 {
        /// Index of the output device; 0 without a route.
        OutputIndex = NFT_FIB_RESULT_OIF "oif",
        /// Name of the output device.
        OutputName = NFT_FIB_RESULT_OIFNAME "oifname",
        /// Type of the address (`RTN_*`) in the host's byte order: 1 unicast, 2 local, 3 broadcast, 5 multicast.
        AddressType = NFT_FIB_RESULT_ADDRTYPE "type",
    }
}

bitflags::bitflags! {
    /// What is looked up.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct FibFlags: u32 {
        /// The source address.
        const SOURCE = crate::uapi::NFTA_FIB_F_SADDR;
        /// The destination address.
        const DESTINATION = crate::uapi::NFTA_FIB_F_DADDR;
        /// With the packet's mark.
        const MARK = crate::uapi::NFTA_FIB_F_MARK;
        /// Restricted to the input device.
        const INPUT_INTERFACE = crate::uapi::NFTA_FIB_F_IIF;
        /// Restricted to the output device.
        const OUTPUT_INTERFACE = crate::uapi::NFTA_FIB_F_OIF;
        /// Loads only whether there is a result.
        const PRESENT = crate::uapi::NFTA_FIB_F_PRESENT;
        const _ = !0;
    }
}

flags_field!(FibFlags);

attributes! {
    /// `fib`: a route lookup.
    Fib {
        /// The first register.
        destination: Register = NFTA_FIB_DREG,
        /// What is loaded.
        result: FibResult = NFTA_FIB_RESULT,
        /// What is looked up.
        flags: FibFlags = NFTA_FIB_FLAGS,
    }
}

open_enum! {
    /// A property of a route.
    RouteKey: u32 {
        /// Realm.
        Class = NFT_RT_CLASSID "classid",
        /// Next hop, IPv4.
        NextHop = NFT_RT_NEXTHOP4 "ip nexthop",
        /// Next hop, IPv6.
        NextHop6 = NFT_RT_NEXTHOP6 "ip6 nexthop",
        /// Maximum segment size of TCP.
        MaximumSegment = NFT_RT_TCPMSS "mtu",
        /// Whether IPsec is used.
        Xfrm = NFT_RT_XFRM "ipsec",
    }
}

attributes! {
    /// `rt`: a property of the packet's route.
    Route {
        /// What is loaded.
        key: RouteKey = NFTA_RT_KEY,
        /// The first register.
        destination: Register = NFTA_RT_DREG,
    }
}

open_enum! {
    /// A property of a local socket.
    SocketKey: u32 {
        /// Whether it is transparent.
        Transparent = NFT_SOCKET_TRANSPARENT "transparent",
        /// Its mark.
        Mark = NFT_SOCKET_MARK "mark",
        /// Whether it is bound to any address.
        Wildcard = NFT_SOCKET_WILDCARD "wildcard",
        /// The id of its control group.
        ControlGroup = NFT_SOCKET_CGROUPV2 "cgroupv2",
    }
}

attributes! {
    /// `socket`: a property of the local socket of the packet.
    Socket {
        /// What is loaded.
        key: SocketKey = NFTA_SOCKET_KEY,
        /// The first register.
        destination: Register = NFTA_SOCKET_DREG,
        ;
        /// The level of the control group.
        with_level level: Option<u32> = NFTA_SOCKET_LEVEL,
    }
}

bitflags::bitflags! {
    /// Flags of a fingerprint.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct OsFingerprintFlags: u32 {
        /// With the version of the operating system.
        const VERSION = crate::uapi::NFT_OSF_F_VERSION;
        const _ = !0;
    }
}

flags_field!(OsFingerprintFlags);

attributes! {
    /// `osf`: the operating system that a SYN packet looks like.
    OsFingerprint {
        /// The first register.
        destination: Register = NFTA_OSF_DREG,
        ;
        /// How the TTL is compared: 0 exactly, 1 less than that of the fingerprint, 2 not.
        with_ttl ttl: u8 = NFTA_OSF_TTL,
        /// Flags.
        with_flags flags: OsFingerprintFlags = NFTA_OSF_FLAGS,
    }
}

open_enum! {
    /// A property of a tunnel.
    TunnelKey: u32 {
        /// Whether the packet is of a tunnel.
        Path = NFT_TUNNEL_PATH "path",
        /// Id of the tunnel.
        Id = NFT_TUNNEL_ID "id",
    }
}

open_enum! {
    /// The direction of a tunnel.
    TunnelMode: u32 {
        /// Either.
        Any = NFT_TUNNEL_MODE_NONE "none",
        /// Received.
        Received = NFT_TUNNEL_MODE_RX "rx",
        /// Sent.
        Sent = NFT_TUNNEL_MODE_TX "tx",
    }
}

attributes! {
    /// `tunnel`: a property of the tunnel.
    Tunnel {
        /// What is loaded.
        key: TunnelKey = NFTA_TUNNEL_KEY,
        /// The first register.
        destination: Register = NFTA_TUNNEL_DREG,
        ;
        /// The direction.
        with_mode mode: TunnelMode = NFTA_TUNNEL_MODE,
    }
}

open_enum! {
    /// A property of an IPsec state.
    XfrmKey: u32 {
        /// Destination address, IPv4.
        Destination = NFT_XFRM_KEY_DADDR_IP4 "ip daddr",
        /// Destination address, IPv6.
        Destination6 = NFT_XFRM_KEY_DADDR_IP6 "ip6 daddr",
        /// Source address, IPv4.
        Source = NFT_XFRM_KEY_SADDR_IP4 "ip saddr",
        /// Source address, IPv6.
        Source6 = NFT_XFRM_KEY_SADDR_IP6 "ip6 saddr",
        /// Id of the request.
        RequestId = NFT_XFRM_KEY_REQID "reqid",
        /// Security parameter index.
        Spi = NFT_XFRM_KEY_SPI "spi",
    }
}

attributes! {
    /// `xfrm`: a property of the packet's IPsec state.
    Xfrm {
        /// What is loaded.
        key: XfrmKey = NFTA_XFRM_KEY,
        /// The first register.
        destination: Register = NFTA_XFRM_DREG,
        /// 0 for received packets, 1 for sent ones.
        direction: u8 = NFTA_XFRM_DIR,
        ;
        /// The number of the state in the list of the packet.
        with_number number: u32 = NFTA_XFRM_SPNUM,
    }
}

open_enum! {
    /// How numbers are chosen.
    NumberGeneratorKind: u32 {
        /// One after the other.
        Incremental = NFT_NG_INCREMENTAL "inc",
        /// Random.
        Random = NFT_NG_RANDOM "random",
    }
}

attributes! {
    /// `numgen`: a number from `offset` to `offset + modulus - 1`, in the host's byte order.
    NumberGenerator {
        /// The register.
        destination: Register = NFTA_NG_DREG,
        /// The number of different numbers. The kernel refuses 0 with `ERANGE`.
        modulus: u32 = NFTA_NG_MODULUS,
        /// How numbers are chosen.
        kind: NumberGeneratorKind = NFTA_NG_TYPE,
        ;
        /// The lowest number.
        with_offset offset: u32 = NFTA_NG_OFFSET,
    }
}

open_enum! {
    /// What is hashed.
    HashKind: u32 {
        /// Registers (`jhash`).
        Jenkins = NFT_HASH_JENKINS "jhash",
        /// Addresses and ports of the packet, the same for both directions (`symhash`).
        Symmetric = NFT_HASH_SYM "symhash",
    }
}

attributes! {
    /// `hash`: a hash from `offset` to `offset + modulus - 1`, in the host's byte order.
    Hash {
        /// The register.
        destination: Register = NFTA_HASH_DREG,
        /// The number of different hashes.
        modulus: u32 = NFTA_HASH_MODULUS,
        ;
        /// What is hashed.
        with_kind kind: HashKind = NFTA_HASH_TYPE,
        /// The first register of what is hashed.
        with_source source: Option<Register> = NFTA_HASH_SREG,
        /// Its length in bytes.
        with_length length: Option<u32> = NFTA_HASH_LEN,
        /// The seed; `None` for one that the kernel chooses.
        with_seed seed: Option<u32> = NFTA_HASH_SEED,
        /// The lowest hash.
        with_offset offset: u32 = NFTA_HASH_OFFSET,
    }
}

attributes! {
    /// `inner`: evaluates an expression on the packet inside of a tunnel (Linux 6.2).
    Inner {
        /// The number of the tunnel header; 0.
        number: u32 = NFTA_INNER_NUM,
        /// The kind of tunnel (`NFT_INNER_VXLAN`, `NFT_INNER_GENEVE`).
        kind: u32 = NFTA_INNER_TYPE,
        /// Which headers the tunnel has (`NFT_INNER_HDRSIZE`, `NFT_INNER_LL`, ...).
        flags: u32 = NFTA_INNER_FLAGS,
        /// Length of the header of the tunnel in bytes.
        header_length: u32 = NFTA_INNER_HDRSIZE,
        /// The expression: a payload or meta.
        expression: Box<Expression> = NFTA_INNER_EXPR,
    }
}
