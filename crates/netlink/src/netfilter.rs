//! Message type and header of the netfilter subsystems
//! ([`nfnetlink.h`](https://github.com/torvalds/linux/blob/v6.12/include/uapi/linux/netfilter/nfnetlink.h)).

use crate::Error;

/// Connection tracking (`NFNL_SUBSYS_CTNETLINK`).
pub const NFNL_SUBSYS_CTNETLINK: u8 = 1;
/// Expectations of connection tracking (`NFNL_SUBSYS_CTNETLINK_EXP`).
pub const NFNL_SUBSYS_CTNETLINK_EXP: u8 = 2;
/// ipset (`NFNL_SUBSYS_IPSET`).
pub const NFNL_SUBSYS_IPSET: u8 = 6;
/// Accounting objects (`NFNL_SUBSYS_ACCT`).
pub const NFNL_SUBSYS_ACCT: u8 = 7;
/// nf_tables (`NFNL_SUBSYS_NFTABLES`).
pub const NFNL_SUBSYS_NFTABLES: u8 = 10;
/// Length of the header in bytes.
pub const HEADER_LENGTH: usize = 4;

/// The header that follows the netlink header of a netfilter message (`struct nfgenmsg`).
#[doc(alias = "nfgenmsg")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Address family (`AF_INET`, `AF_INET6`) or `AF_UNSPEC`.
    pub family: u8,
    /// Version; 0 (`NFNETLINK_V0`) in nearly all subsystems.
    pub version: u8,
    /// Resource; its meaning depends on the subsystem, usually 0.
    pub resource: u16,
}

impl Header {
    /// A header for this address family, version 0, resource 0.
    #[must_use]
    pub fn new(family: u8) -> Self {
        Header {
            family,
            version: 0,
            resource: 0,
        }
    }

    /// Encodes the header.
    #[must_use]
    pub fn to_bytes(self) -> [u8; HEADER_LENGTH] {
        let [r0, r1] = self.resource.to_be_bytes();
        [self.family, self.version, r0, r1]
    }

    /// Decodes the header at the start of a payload.
    pub fn from_bytes(payload: &[u8]) -> Result<Self, Error> {
        match *payload {
            [family, version, r0, r1, ..] => Ok(Header {
                family,
                version,
                resource: u16::from_be_bytes([r0, r1]),
            }),
            _ => Err(Error::Malformed {
                what: "netfilter message: shorter than its header",
            }),
        }
    }
}

/// The netlink message type of a subsystem's command.
#[must_use]
pub fn message_type(subsystem: u8, command: u8) -> u16 {
    u16::from_be_bytes([subsystem, command])
}

/// The command of a netlink message type.
#[must_use]
pub fn command(message_type: u16) -> u8 {
    let [_, command] = message_type.to_be_bytes();
    command
}
