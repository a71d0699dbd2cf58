//! States of tracked protocols.

use std::fmt;

macro_rules! states {
    ($(#[$doc:meta])* $type:ident { $($(#[$state_doc:meta])* $name:ident = $value:literal,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $type(pub u8);

        #[allow(missing_docs, reason = "the names are those of the protocol")]
        impl $type {
            $($(#[$state_doc])* pub const $name: $type = $type($value);)*

            /// The name of the state; `None` for an unknown number.
            pub fn name(self) -> Option<&'static str> {
                match self {
                    $($type::$name => Some(stringify!($name)),)*
                    _ => None,
                }
            }
        }

        impl fmt::Display for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self.name() {
                    Some(name) => f.pad(name),
                    None => fmt::Display::fmt(&self.0, f),
                }
            }
        }

        impl fmt::Debug for $type {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self.name() {
                    Some(name) => f.write_str(name),
                    None => write!(f, concat!(stringify!($type), "({})"), self.0),
                }
            }
        }
    };
}

states! {
    /// State of a TCP connection as the kernel tracks it
    /// ([`nf_conntrack_tcp.h`](https://github.com/torvalds/linux/blob/v6.18/include/uapi/linux/netfilter/nf_conntrack_tcp.h#L9)).
    #[doc(alias = "tcp_conntrack")]
    TcpState {
        NONE = 0, SYN_SENT = 1, SYN_RECV = 2, ESTABLISHED = 3, FIN_WAIT = 4, CLOSE_WAIT = 5,
        LAST_ACK = 6, TIME_WAIT = 7, CLOSE = 8,
        /// Both sides sent a SYN. Older kernels call the number LISTEN.
        SYN_SENT2 = 9,
    }
}

states! {
    /// State of an SCTP association as the kernel tracks it
    /// ([`nf_conntrack_sctp.h`](https://github.com/torvalds/linux/blob/v6.18/include/uapi/linux/netfilter/nf_conntrack_sctp.h#L8)).
    #[doc(alias = "sctp_conntrack")]
    SctpState {
        NONE = 0, CLOSED = 1, COOKIE_WAIT = 2, COOKIE_ECHOED = 3, ESTABLISHED = 4, SHUTDOWN_SENT = 5,
        SHUTDOWN_RECD = 6, SHUTDOWN_ACK_SENT = 7, HEARTBEAT_SENT = 8,
    }
}

states! {
    /// State of a DCCP connection as the kernel tracked it up to Linux 6.15.
    #[doc(alias = "ct_dccp_states")]
    DccpState {
        NONE = 0, REQUEST = 1, RESPOND = 2, PARTOPEN = 3, OPEN = 4, CLOSEREQ = 5, CLOSING = 6,
        TIMEWAIT = 7, IGNORE = 8, INVALID = 9,
    }
}

/// State of a connection of a protocol with states (`CTA_PROTOINFO`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ProtocolState {
    /// TCP.
    Tcp {
        /// State of the connection.
        state: TcpState,
        /// Window scale of the original and the reply direction, powers of two from 0 to 14.
        window_scale: [u8; 2],
        /// Flags of the original and the reply direction (`IP_CT_TCP_FLAG_*`): 1 window scaling,
        /// 2 selective acknowledgement, 4 close initiated, 8 be liberal, ...
        flags: [u8; 2],
    },
    /// SCTP.
    Sctp {
        /// State of the association.
        state: SctpState,
        /// Verification tags of the original and the reply direction.
        verification_tags: [u32; 2],
    },
    /// DCCP.
    Dccp {
        /// State of the connection.
        state: DccpState,
        /// The client: 0 is the source of the original direction, 1 the destination.
        role: u8,
        /// Sequence number of the handshake.
        handshake_sequence: u64,
    },
}

impl fmt::Display for ProtocolState {
    /// `state=ESTABLISHED wscale=7,8 flags=0x1,0x1`, `state=ESTABLISHED vtag=0x1,0x2`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            ProtocolState::Tcp {
                state,
                window_scale: [original, reply],
                flags: [original_flags, reply_flags],
            } => write!(
                f,
                "state={state} wscale={original},{reply} flags={original_flags:#x},{reply_flags:#x}"
            ),
            ProtocolState::Sctp {
                state,
                verification_tags: [original, reply],
            } => write!(f, "state={state} vtag={original:#x},{reply:#x}"),
            ProtocolState::Dccp {
                state,
                role,
                handshake_sequence,
            } => write!(f, "state={state} role={role} handshake={handshake_sequence}"),
        }
    }
}
