//! Expressions that do something with the packet.

use crate::register::Register;
use crate::wire::{attributes, flags_field, open_enum};

open_enum! {
    /// Which addresses are translated.
    NatKind: u32 {
        /// The source.
        Source = NFT_NAT_SNAT "snat",
        /// The destination.
        Destination = NFT_NAT_DNAT "dnat",
    }
}

bitflags::bitflags! {
    /// Flags of address translation (`NF_NAT_RANGE_*`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct NatFlags: u32 {
        /// Addresses are given. The kernel sets it.
        const MAP_ADDRESSES = 1;
        /// Ports are given. The kernel sets it.
        const PORTS_SPECIFIED = 2;
        /// `random`: the port is a hash of the connection.
        const RANDOM = 4;
        /// `persistent`: a client always gets the same address.
        const PERSISTENT = 8;
        /// `fully-random`: the port is random.
        const FULLY_RANDOM = 16;
        /// The port is shifted.
        const PORT_OFFSET = 32;
        /// Networks are mapped to each other.
        const NETMAP = 64;
        const _ = !0;
    }
}

attributes! {
    /// `nat`: `snat` and `dnat`. The last expression of a rule, because it accepts the packet.
    Nat {
        /// Which addresses are translated.
        kind: NatKind = NFTA_NAT_TYPE,
        /// The family (`NFPROTO_IPV4` or `NFPROTO_IPV6`).
        family: u32 = NFTA_NAT_FAMILY,
        ;
        /// The register with the first address.
        with_address address: Option<Register> = NFTA_NAT_REG_ADDR_MIN,
        /// The register with the last address; `None`: the first one.
        with_last_address last_address: Option<Register> = NFTA_NAT_REG_ADDR_MAX,
        /// The register with the first port, in network byte order.
        with_port port: Option<Register> = NFTA_NAT_REG_PROTO_MIN,
        /// The register with the last port; `None`: the first one.
        with_last_port last_port: Option<Register> = NFTA_NAT_REG_PROTO_MAX,
        /// Flags.
        with_flags flags: NatFlags = NFTA_NAT_FLAGS,
    }
}

attributes! {
    /// `masq`: `masquerade`. Accepts the packet.
    Masquerade {
        ;
        /// Flags.
        with_flags flags: NatFlags = NFTA_MASQ_FLAGS,
        /// The register with the first port.
        with_port port: Option<Register> = NFTA_MASQ_REG_PROTO_MIN,
        /// The register with the last port.
        with_last_port last_port: Option<Register> = NFTA_MASQ_REG_PROTO_MAX,
    }
}

attributes! {
    /// `redir`: `redirect`. Accepts the packet.
    Redirect {
        ;
        /// The register with the first port.
        with_port port: Option<Register> = NFTA_REDIR_REG_PROTO_MIN,
        /// The register with the last port.
        with_last_port last_port: Option<Register> = NFTA_REDIR_REG_PROTO_MAX,
        /// Flags.
        with_flags flags: NatFlags = NFTA_REDIR_FLAGS,
    }
}

attributes! {
    /// `tproxy`: passes the packet to a local socket.
    Tproxy {
        /// The family (`NFPROTO_IPV4`, `NFPROTO_IPV6`, or `NFPROTO_UNSPEC`).
        family: u32 = NFTA_TPROXY_FAMILY,
        ;
        /// The register with the address.
        with_address address: Option<Register> = NFTA_TPROXY_REG_ADDR,
        /// The register with the port.
        with_port port: Option<Register> = NFTA_TPROXY_REG_PORT,
    }
}

attributes! {
    /// `dup`: sends a copy of the packet to an address, or out of a device.
    Duplicate {
        ;
        /// The register with the address.
        with_address address: Option<Register> = NFTA_DUP_SREG_ADDR,
        /// The register with the index of the device.
        with_device device: Option<Register> = NFTA_DUP_SREG_DEV,
    }
}

attributes! {
    /// `fwd`: sends the packet out of a device.
    Forward {
        /// The register with the index of the device.
        device: Register = NFTA_FWD_SREG_DEV,
        ;
        /// The register with the address of the neighbour.
        with_address address: Option<Register> = NFTA_FWD_SREG_ADDR,
        /// The family of the address.
        with_family family: Option<u32> = NFTA_FWD_NFPROTO,
    }
}

open_enum! {
    /// How a packet is rejected.
    RejectKind: u32 {
        /// With an ICMP or ICMPv6 message, whose code is that of the family.
        Icmp = NFT_REJECT_ICMP_UNREACH "icmp",
        /// With a reset of TCP.
        TcpReset = NFT_REJECT_TCP_RST "tcp reset",
        /// With an ICMP or ICMPv6 message, whose code is one of both families: 0 no route, 1 port unreachable, 2 host
        /// unreachable, 3 administratively prohibited.
        Icmpx = NFT_REJECT_ICMPX_UNREACH "icmpx",
    }
}

attributes! {
    /// `reject`: answers with an error and drops the packet.
    Reject {
        /// How the packet is rejected.
        kind: RejectKind = NFTA_REJECT_TYPE,
        ;
        /// The code of the message.
        with_code code: Option<u8> = NFTA_REJECT_ICMP_CODE,
    }
}

open_enum! {
    /// The severity of a log message.
    LogLevel: u32 {
        /// Emergency.
        Emergency = NFT_LOGLEVEL_EMERG "emerg",
        /// Alert.
        Alert = NFT_LOGLEVEL_ALERT "alert",
        /// Critical.
        Critical = NFT_LOGLEVEL_CRIT "crit",
        /// Error.
        Error = NFT_LOGLEVEL_ERR "err",
        /// Warning, the default of `nft`.
        Warning = NFT_LOGLEVEL_WARNING "warn",
        /// Notice.
        Notice = NFT_LOGLEVEL_NOTICE "notice",
        /// Information.
        Info = NFT_LOGLEVEL_INFO "info",
        /// Debugging.
        Debug = NFT_LOGLEVEL_DEBUG "debug",
        /// To the audit system.
        Audit = NFT_LOGLEVEL_AUDIT "audit",
    }
}

bitflags::bitflags! {
    /// What a log message contains (`NF_LOG_*`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct LogFlags: u32 {
        /// Sequence numbers of TCP.
        const TCP_SEQUENCE = 1;
        /// Options of TCP.
        const TCP_OPTIONS = 2;
        /// Options of IP.
        const IP_OPTIONS = 4;
        /// The user of the local socket.
        const USER = 8;
        /// Unused.
        const NFLOG = 16;
        /// Addresses of the link layer.
        const LINK_ADDRESSES = 32;
        const _ = !0;
    }
}

bitflags::bitflags! {
    /// Flags of a queue.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct QueueFlags: u16 {
        /// Packets are accepted while no program listens.
        const BYPASS = 1;
        /// The queue is chosen by the CPU.
        const CPU_FANOUT = 2;
        const _ = !0;
    }
}

bitflags::bitflags! {
    /// Options of TCP for connections through a synproxy (`NF_SYNPROXY_OPT_*`).
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct SynproxyFlags: u32 {
        /// Maximum segment size.
        const MAXIMUM_SEGMENT = 1;
        /// Window scaling.
        const WINDOW_SCALE = 2;
        /// Selective acknowledgements.
        const SACK = 4;
        /// Timestamps.
        const TIMESTAMP = 8;
        const _ = !0;
    }
}

flags_field!(NatFlags, LogFlags, QueueFlags, SynproxyFlags);

attributes! {
    /// `log`: to the kernel's log, or to a program that listens to a group.
    Log {
        ;
        /// The group; `None`: the kernel's log.
        with_group group: Option<u16> = NFTA_LOG_GROUP,
        /// Text at the beginning of the message.
        with_prefix prefix: Option<Box<str>> = NFTA_LOG_PREFIX,
        /// Bytes of the packet for the program.
        with_snap_length snap_length: Option<u32> = NFTA_LOG_SNAPLEN,
        /// Packets that are sent together.
        with_queue_threshold queue_threshold: Option<u16> = NFTA_LOG_QTHRESHOLD,
        /// The severity in the kernel's log.
        with_level level: Option<LogLevel> = NFTA_LOG_LEVEL,
        /// What the message contains.
        with_flags flags: LogFlags = NFTA_LOG_FLAGS,
    }
}

attributes! {
    /// `queue`: passes the packet to a program.
    Queue {
        ;
        /// The first queue.
        with_number number: Option<u16> = NFTA_QUEUE_NUM,
        /// The number of queues.
        with_total total: Option<u16> = NFTA_QUEUE_TOTAL,
        /// The register with the queue.
        with_source source: Option<Register> = NFTA_QUEUE_SREG_QNUM,
        /// Flags.
        with_flags flags: QueueFlags = NFTA_QUEUE_FLAGS,
    }
}

attributes! {
    /// `notrack`: the connection of the packet is not tracked.
    Notrack {
    }
}

attributes! {
    /// `flow_offload`: `flow add`.
    FlowOffload {
        /// The flowtable.
        flowtable: Box<str> = NFTA_FLOW_TABLE_NAME,
    }
}

attributes! {
    /// `synproxy`: answers SYN packets for the server.
    Synproxy {
        ;
        /// Maximum segment size of the server.
        with_maximum_segment maximum_segment: Option<u16> = NFTA_SYNPROXY_MSS,
        /// Window scale of the server.
        with_window_scale window_scale: Option<u8> = NFTA_SYNPROXY_WSCALE,
        /// Which options are used.
        with_flags flags: SynproxyFlags = NFTA_SYNPROXY_FLAGS,
    }
}
