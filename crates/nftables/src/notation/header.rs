//! Headers of packets and their fields, as `nft` names them.

use crate::data_type::DataType;
use crate::expression::{ExtensionHeaderKind, PayloadBase};

/// A field of a header. Offset and length are in bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HeaderField {
    pub(super) name: &'static str,
    pub(super) offset: u32,
    pub(super) length: u32,
    pub(super) data_type: DataType,
}

/// A header that `nft` knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Header {
    /// What a table of the family `inet` has for the link layer: the family of a packet.
    Inet,
    /// What a table of the family `netdev` has for the link layer: the type of a frame.
    Netdev,
    Ethernet,
    Vlan,
    Arp,
    Ip,
    Ip6,
    Icmp,
    Icmp6,
    Igmp,
    Ah,
    Esp,
    Comp,
    Udp,
    UdpLite,
    /// The ports that most protocols of the transport layer begin with.
    Transport,
    Tcp,
    Dccp,
    Sctp,
    Gre,
    Gretap,
    Vxlan,
    Geneve,
    /// One that is not known here.
    Other,
}

macro_rules! fields {
    ($($name:literal $offset:literal $length:literal $data_type:ident,)*) => {
        &[$(HeaderField {
            name: $name,
            offset: $offset,
            length: $length,
            data_type: DataType::$data_type,
        },)*]
    };
}

const ETHERNET: &[HeaderField] = fields! {
    "daddr" 0 48 EtherAddress,
    "saddr" 48 48 EtherAddress,
    "type" 96 16 EtherType,
};

const VLAN: &[HeaderField] = fields! {
    "pcp" 0 3 Integer,
    "dei" 3 1 Integer,
    "id" 4 12 Integer,
    "type" 16 16 EtherType,
};

const ARP: &[HeaderField] = fields! {
    "htype" 0 16 Integer,
    "ptype" 16 16 EtherType,
    "hlen" 32 8 Integer,
    "plen" 40 8 Integer,
    "operation" 48 16 ArpOperation,
    "saddr ether" 64 48 EtherAddress,
    "saddr ip" 112 32 Ipv4Address,
    "daddr ether" 144 48 EtherAddress,
    "daddr ip" 192 32 Ipv4Address,
};

const IP: &[HeaderField] = fields! {
    "version" 0 4 Integer,
    "hdrlength" 4 4 Integer,
    "dscp" 8 6 Dscp,
    "ecn" 14 2 Ecn,
    "length" 16 16 Integer,
    "id" 32 16 Integer,
    "frag-off" 48 16 Integer,
    "ttl" 64 8 Integer,
    "protocol" 72 8 Protocol,
    "checksum" 80 16 Integer,
    "saddr" 96 32 Ipv4Address,
    "daddr" 128 32 Ipv4Address,
};

const IP6: &[HeaderField] = fields! {
    "version" 0 4 Integer,
    "dscp" 4 6 Dscp,
    "ecn" 10 2 Ecn,
    "flowlabel" 12 20 Integer,
    "length" 32 16 Integer,
    "nexthdr" 48 8 Protocol,
    "hoplimit" 56 8 Integer,
    "saddr" 64 128 Ipv6Address,
    "daddr" 192 128 Ipv6Address,
};

const ICMP: &[HeaderField] = fields! {
    "type" 0 8 IcmpType,
    "code" 8 8 Integer,
    "checksum" 16 16 Integer,
    "id" 32 16 Integer,
    "sequence" 48 16 Integer,
    "gateway" 32 32 Integer,
    "mtu" 48 16 Integer,
};

const ICMP6: &[HeaderField] = fields! {
    "type" 0 8 Icmpv6Type,
    "code" 8 8 Integer,
    "checksum" 16 16 Integer,
    "parameter-problem" 32 32 Integer,
    "mtu" 32 32 Integer,
    "id" 32 16 Integer,
    "sequence" 48 16 Integer,
    "max-delay" 32 16 Integer,
    "taddr" 64 128 Ipv6Address,
    "daddr" 192 128 Ipv6Address,
};

const IGMP: &[HeaderField] = fields! {
    "type" 0 8 IgmpType,
    "mrt" 8 8 Integer,
    "checksum" 16 16 Integer,
    "group" 32 32 Integer,
};

const AH: &[HeaderField] = fields! {
    "nexthdr" 0 8 Protocol,
    "hdrlength" 8 8 Integer,
    "reserved" 16 16 Integer,
    "spi" 32 32 Integer,
    "sequence" 64 32 Integer,
};

const ESP: &[HeaderField] = fields! {
    "spi" 0 32 Integer,
    "sequence" 32 32 Integer,
};

const COMP: &[HeaderField] = fields! {
    "nexthdr" 0 8 Protocol,
    "flags" 8 8 Bitmask,
    "cpi" 16 16 Integer,
};

const UDP: &[HeaderField] = fields! {
    "sport" 0 16 Service,
    "dport" 16 16 Service,
    "length" 32 16 Integer,
    "checksum" 48 16 Integer,
};

const TRANSPORT: &[HeaderField] = fields! {
    "sport" 0 16 Service,
    "dport" 16 16 Service,
};

const UDPLITE: &[HeaderField] = fields! {
    "sport" 0 16 Service,
    "dport" 16 16 Service,
    "csumcov" 32 16 Integer,
    "checksum" 48 16 Integer,
};

const TCP: &[HeaderField] = fields! {
    "sport" 0 16 Service,
    "dport" 16 16 Service,
    "sequence" 32 32 Integer,
    "ackseq" 64 32 Integer,
    "doff" 96 4 Integer,
    "reserved" 100 4 Integer,
    "flags" 104 8 TcpFlags,
    "window" 112 16 Integer,
    "checksum" 128 16 Integer,
    "urgptr" 144 16 Integer,
};

const DCCP: &[HeaderField] = fields! {
    "sport" 0 16 Service,
    "dport" 16 16 Service,
    "type" 67 4 DccpPacketType,
};

const SCTP: &[HeaderField] = fields! {
    "sport" 0 16 Service,
    "dport" 16 16 Service,
    "vtag" 32 32 Integer,
    "checksum" 64 32 Integer,
};

const GRE: &[HeaderField] = fields! {
    "flags" 0 5 Integer,
    "version" 13 3 Integer,
    "protocol" 16 16 EtherType,
};

const VXLAN: &[HeaderField] = fields! {
    "flags" 0 8 Bitmask,
    "vni" 32 24 Integer,
};

const GENEVE: &[HeaderField] = fields! {
    "type" 16 16 EtherType,
    "vni" 32 24 Integer,
};

impl Header {
    pub(super) fn name(self) -> &'static str {
        match self {
            Header::Inet => "inet",
            Header::Netdev => "netdev",
            Header::Ethernet => "ether",
            Header::Vlan => "vlan",
            Header::Arp => "arp",
            Header::Ip => "ip",
            Header::Ip6 => "ip6",
            Header::Icmp => "icmp",
            Header::Icmp6 => "icmpv6",
            Header::Igmp => "igmp",
            Header::Ah => "ah",
            Header::Esp => "esp",
            Header::Comp => "comp",
            Header::Udp => "udp",
            Header::UdpLite => "udplite",
            Header::Transport => "th",
            Header::Tcp => "tcp",
            Header::Dccp => "dccp",
            Header::Sctp => "sctp",
            Header::Gre => "gre",
            Header::Gretap => "gretap",
            Header::Vxlan => "vxlan",
            Header::Geneve => "geneve",
            Header::Other => "unknown",
        }
    }

    pub(super) fn fields(self) -> &'static [HeaderField] {
        match self {
            Header::Inet | Header::Netdev | Header::Gretap | Header::Other => &[],
            Header::Ethernet => ETHERNET,
            Header::Vlan => VLAN,
            Header::Arp => ARP,
            Header::Ip => IP,
            Header::Ip6 => IP6,
            Header::Icmp => ICMP,
            Header::Icmp6 => ICMP6,
            Header::Igmp => IGMP,
            Header::Ah => AH,
            Header::Esp => ESP,
            Header::Comp => COMP,
            Header::Udp => UDP,
            Header::UdpLite => UDPLITE,
            Header::Transport => TRANSPORT,
            Header::Tcp => TCP,
            Header::Dccp => DCCP,
            Header::Sctp => SCTP,
            Header::Gre => GRE,
            Header::Vxlan => VXLAN,
            Header::Geneve => GENEVE,
        }
    }

    /// The layer, as payload expressions name it.
    pub(super) fn base(self) -> PayloadBase {
        match self {
            Header::Inet | Header::Netdev | Header::Ethernet | Header::Vlan => PayloadBase::Link,
            Header::Arp | Header::Ip | Header::Ip6 => PayloadBase::Network,
            Header::Vxlan | Header::Geneve => PayloadBase::Inner,
            _ => PayloadBase::Transport,
        }
    }

    /// The length in bits of headers that another one of the same layer follows.
    pub(super) fn length(self) -> u32 {
        match self {
            Header::Ethernet => 112,
            Header::Vlan => 32,
            _ => 0,
        }
    }

    /// The header that a value of the protocol field says comes next.
    pub(super) fn next(self, value: u64) -> Option<Header> {
        match self {
            Header::Inet => match value {
                2 => Some(Header::Ip),
                10 => Some(Header::Ip6),
                _ => None,
            },
            Header::Netdev | Header::Ethernet | Header::Vlan => Header::of_ether_type(value),
            Header::Ip | Header::Ip6 => Header::of_protocol(value),
            Header::Ah | Header::Comp => match Header::of_protocol(value) {
                Some(Header::Icmp | Header::Icmp6 | Header::Igmp | Header::Gre) => None,
                next => next,
            },
            _ => None,
        }
    }

    pub(super) fn of_ether_type(value: u64) -> Option<Header> {
        match value {
            0x0800 => Some(Header::Ip),
            0x0806 => Some(Header::Arp),
            0x86dd => Some(Header::Ip6),
            0x8100 | 0x88a8 => Some(Header::Vlan),
            _ => None,
        }
    }

    pub(super) fn of_protocol(value: u64) -> Option<Header> {
        match value {
            1 => Some(Header::Icmp),
            2 => Some(Header::Igmp),
            6 => Some(Header::Tcp),
            17 => Some(Header::Udp),
            33 => Some(Header::Dccp),
            47 => Some(Header::Gre),
            50 => Some(Header::Esp),
            51 => Some(Header::Ah),
            58 => Some(Header::Icmp6),
            108 => Some(Header::Comp),
            132 => Some(Header::Sctp),
            136 => Some(Header::UdpLite),
            _ => None,
        }
    }

    /// The types of ICMP messages that have a field; empty for a field of all.
    pub(super) fn message_types(self, name: &str) -> &'static [u8] {
        match (self, name) {
            (Header::Icmp, "id" | "sequence") => &[8, 0],
            (Header::Icmp, "gateway") => &[5],
            (Header::Icmp, "mtu") => &[3],
            (Header::Icmp6, "parameter-problem") => &[4],
            (Header::Icmp6, "mtu") => &[2],
            (Header::Icmp6, "id" | "sequence") => &[128, 129],
            (Header::Icmp6, "max-delay") => &[130],
            (Header::Icmp6, "taddr") => &[130, 131, 132, 135, 136, 137],
            (Header::Icmp6, "daddr") => &[137],
            _ => &[],
        }
    }
}

impl HeaderField {
    /// Whether the value of the field says which header follows.
    pub(super) fn is_protocol(&self, header: Header) -> bool {
        matches!(
            (header, self.name),
            (Header::Ethernet | Header::Vlan, "type")
                | (Header::Ip, "protocol")
                | (Header::Ip6 | Header::Ah | Header::Comp, "nexthdr")
                | (Header::Icmp | Header::Icmp6, "type")
        )
    }
}

/// The name of an extension header or option, and its fields.
pub(super) fn extension(
    kind: ExtensionHeaderKind,
    number: u8,
) -> Option<(&'static str, &'static [HeaderField])> {
    const NEXT: &[HeaderField] = fields! {
        "nexthdr" 0 8 Protocol,
        "hdrlength" 8 8 Integer,
    };
    const ROUTING: &[HeaderField] = fields! {
        "nexthdr" 0 8 Protocol,
        "hdrlength" 8 8 Integer,
        "type" 16 8 Integer,
        "seg-left" 24 8 Integer,
    };
    const FRAGMENT: &[HeaderField] = fields! {
        "nexthdr" 0 8 Protocol,
        "reserved" 8 8 Integer,
        "frag-off" 16 13 Integer,
        "reserved2" 29 2 Integer,
        "more-fragments" 31 1 Integer,
        "id" 32 32 Integer,
    };
    const MOBILITY: &[HeaderField] = fields! {
        "nexthdr" 0 8 Protocol,
        "hdrlength" 8 8 Integer,
        "type" 16 8 MobilityType,
        "reserved" 24 8 Integer,
        "checksum" 32 16 Integer,
    };
    const KIND: &[HeaderField] = fields! {
        "kind" 0 8 Integer,
    };
    const KIND_LENGTH: &[HeaderField] = fields! {
        "kind" 0 8 Integer,
        "length" 8 8 Integer,
    };
    const SEGMENT: &[HeaderField] = fields! {
        "kind" 0 8 Integer,
        "length" 8 8 Integer,
        "size" 16 16 Integer,
    };
    const WINDOW: &[HeaderField] = fields! {
        "kind" 0 8 Integer,
        "length" 8 8 Integer,
        "count" 16 8 Integer,
    };
    const SACK: &[HeaderField] = fields! {
        "kind" 0 8 Integer,
        "length" 8 8 Integer,
        "left" 16 32 Integer,
        "right" 48 32 Integer,
        "left" 80 32 Integer,
        "right" 112 32 Integer,
        "left" 144 32 Integer,
        "right" 176 32 Integer,
        "left" 208 32 Integer,
        "right" 240 32 Integer,
    };
    const TIMESTAMP: &[HeaderField] = fields! {
        "kind" 0 8 Integer,
        "length" 8 8 Integer,
        "tsval" 16 32 Integer,
        "tsecr" 48 32 Integer,
    };
    const MULTIPATH: &[HeaderField] = fields! {
        "kind" 0 8 Integer,
        "length" 8 8 Integer,
        "subtype" 16 4 Integer,
    };
    const ROUTE: &[HeaderField] = fields! {
        "type" 0 8 Integer,
        "length" 8 8 Integer,
        "ptr" 16 8 Integer,
        "addr" 24 32 Integer,
    };
    const ALERT: &[HeaderField] = fields! {
        "type" 0 8 Integer,
        "length" 8 8 Integer,
        "value" 16 16 Integer,
    };
    Some(match (kind, number) {
        (ExtensionHeaderKind::Ipv6, 0) => ("hbh", NEXT),
        (ExtensionHeaderKind::Ipv6, 43) => ("rt", ROUTING),
        (ExtensionHeaderKind::Ipv6, 44) => ("frag", FRAGMENT),
        (ExtensionHeaderKind::Ipv6, 60) => ("dst", NEXT),
        (ExtensionHeaderKind::Ipv6, 135) => ("mh", MOBILITY),
        (ExtensionHeaderKind::TcpOption, 0) => ("eol", KIND),
        (ExtensionHeaderKind::TcpOption, 1) => ("nop", KIND),
        (ExtensionHeaderKind::TcpOption, 2) => ("maxseg", SEGMENT),
        (ExtensionHeaderKind::TcpOption, 3) => ("window", WINDOW),
        (ExtensionHeaderKind::TcpOption, 4) => ("sack-perm", KIND_LENGTH),
        (ExtensionHeaderKind::TcpOption, 5) => ("sack", SACK),
        (ExtensionHeaderKind::TcpOption, 8) => ("timestamp", TIMESTAMP),
        (ExtensionHeaderKind::TcpOption, 19) => ("md5sig", KIND_LENGTH),
        (ExtensionHeaderKind::TcpOption, 30) => ("mptcp", MULTIPATH),
        (ExtensionHeaderKind::TcpOption, 34) => ("fastopen", KIND_LENGTH),
        (ExtensionHeaderKind::Ipv4Option, 131) => ("lsrr", ROUTE),
        (ExtensionHeaderKind::Ipv4Option, 7) => ("rr", ROUTE),
        (ExtensionHeaderKind::Ipv4Option, 137) => ("ssrr", ROUTE),
        (ExtensionHeaderKind::Ipv4Option, 148) => ("ra", ALERT),
        (ExtensionHeaderKind::SctpChunk, number) => return chunk(number),
        _ => return None,
    })
}

/// A chunk of SCTP.
fn chunk(number: u8) -> Option<(&'static str, &'static [HeaderField])> {
    const COMMON: &[HeaderField] = fields! {
        "type" 0 8 Integer,
        "flags" 8 8 Integer,
        "length" 16 16 Integer,
    };
    const DATA: &[HeaderField] = fields! {
        "type" 0 8 Integer,
        "flags" 8 8 Integer,
        "length" 16 16 Integer,
        "tsn" 32 32 Integer,
        "stream" 64 16 Integer,
        "ssn" 80 16 Integer,
        "ppid" 96 32 Integer,
    };
    const INIT: &[HeaderField] = fields! {
        "type" 0 8 Integer,
        "flags" 8 8 Integer,
        "length" 16 16 Integer,
        "init-tag" 32 32 Integer,
        "a-rwnd" 64 32 Integer,
        "num-outbound-streams" 96 16 Integer,
        "num-inbound-streams" 112 16 Integer,
        "initial-tsn" 128 32 Integer,
    };
    const SACK: &[HeaderField] = fields! {
        "type" 0 8 Integer,
        "flags" 8 8 Integer,
        "length" 16 16 Integer,
        "cum-tsn-ack" 32 32 Integer,
        "a-rwnd" 64 32 Integer,
        "num-gap-ack-blocks" 96 16 Integer,
        "num-dup-tsns" 112 16 Integer,
    };
    const SHUTDOWN: &[HeaderField] = fields! {
        "type" 0 8 Integer,
        "flags" 8 8 Integer,
        "length" 16 16 Integer,
        "cum-tsn-ack" 32 32 Integer,
    };
    const ECN: &[HeaderField] = fields! {
        "type" 0 8 Integer,
        "flags" 8 8 Integer,
        "length" 16 16 Integer,
        "lowest-tsn" 32 32 Integer,
    };
    const CONFIGURATION: &[HeaderField] = fields! {
        "type" 0 8 Integer,
        "flags" 8 8 Integer,
        "length" 16 16 Integer,
        "seqno" 32 32 Integer,
    };
    const FORWARD: &[HeaderField] = fields! {
        "type" 0 8 Integer,
        "flags" 8 8 Integer,
        "length" 16 16 Integer,
        "new-cum-tsn" 32 32 Integer,
    };
    Some(match number {
        0 => ("data", DATA),
        1 => ("init", INIT),
        2 => ("init-ack", INIT),
        3 => ("sack", SACK),
        4 => ("heartbeat", COMMON),
        5 => ("heartbeat-ack", COMMON),
        6 => ("abort", COMMON),
        7 => ("shutdown", SHUTDOWN),
        8 => ("shutdown-ack", COMMON),
        9 => ("error", COMMON),
        10 => ("cookie-echo", COMMON),
        11 => ("cookie-ack", COMMON),
        12 => ("ecne", ECN),
        13 => ("cwr", ECN),
        14 => ("shutdown-complete", COMMON),
        128 => ("asconf-ack", CONFIGURATION),
        192 => ("forward-tsn", FORWARD),
        193 => ("asconf", CONFIGURATION),
        _ => return None,
    })
}

/// The fields of the kinds of routing headers, which have names of their own.
pub(super) fn routing(offset: u32, length: u32) -> Option<(&'static str, HeaderField)> {
    let field = |name, data_type| HeaderField {
        name,
        offset,
        length,
        data_type,
    };
    Some(match (offset, length) {
        (32, 8) => ("srh", field("last-entry", DataType::Integer)),
        (40, 8) => ("srh", field("flags", DataType::Integer)),
        (48, 16) => ("srh", field("tag", DataType::Integer)),
        (64, 128) => ("srh", field("sid[1]", DataType::Ipv6Address)),
        (192, 128) => ("srh", field("sid[2]", DataType::Ipv6Address)),
        _ => return None,
    })
}
