//! Real servers.

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::str::FromStr;

use kernlink_base::Family;

use crate::forwarding::ForwardingMethod;
use crate::number::by_number;
use crate::uapi;

/// The address and port that identify a real server of a virtual server. Prints as `10.1.0.1:8080` or `[2001:db8::1]:80`.
///
/// The family may differ from the virtual server's only with [`ForwardingMethod::Tunnel`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RealServerKey {
    /// A unicast address. Not an IPv4-mapped IPv6 address, which the kernel refuses: use the IPv4 address.
    #[doc(alias = "IPVS_DEST_ATTR_ADDR")]
    #[doc(alias = "IPVS_DEST_ATTR_ADDR_FAMILY")]
    pub address: IpAddr,
    /// The port. 0, for a virtual server by mark or with port 0, is the port that the client connects to.
    #[doc(alias = "IPVS_DEST_ATTR_PORT")]
    pub port: u16,
}

impl RealServerKey {
    /// The key of an address and a port.
    pub fn new(address: impl Into<IpAddr>, port: u16) -> Self {
        Self {
            address: address.into(),
            port,
        }
    }

    /// The address family.
    #[must_use]
    pub fn family(&self) -> Family {
        Family::of(self.address)
    }
}

impl From<SocketAddr> for RealServerKey {
    /// Flow label and scope of an IPv6 socket address are dropped: IPVS does not support them.
    fn from(socket: SocketAddr) -> Self {
        Self::new(socket.ip(), socket.port())
    }
}

impl FromStr for RealServerKey {
    type Err = ParseRealServerKeyError;

    /// Parses what `Display` prints: `10.1.0.1:8080`, `[2001:db8::1]:80`. An address with a scope is refused, because IPVS does not
    /// support scopes.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let is_valid = |socket: &SocketAddr| !matches!(socket, SocketAddr::V6(v6) if v6.scope_id() != 0);
        match text.parse().ok().filter(is_valid) {
            Some(socket) => Ok(Self::from(socket)),
            None => Err(ParseRealServerKeyError(text.into())),
        }
    }
}

/// A text that is not the notation of a [`RealServerKey`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid real server {0:?}; expected ADDRESS:PORT, IPv6 addresses in brackets and without a scope")]
pub struct ParseRealServerKeyError(Box<str>);

impl fmt::Display for RealServerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        SocketAddr::new(self.address, self.port).fmt(f)
    }
}

/// A real server and its configuration. Prints as `ipvsadm` options: `-r 10.1.0.1:8080 -m -w 1`.
#[doc(alias = "destination")]
#[doc(alias = "IPVS_CMD_ATTR_DEST")]
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct RealServer {
    /// Identifies the real server; an update cannot change it.
    pub key: RealServerKey,
    /// How packets are forwarded to it.
    pub forwarding: ForwardingMethod,
    /// Its share of new connections; 0 is none.
    pub weight: Weight,
    /// Connection counts at which it stops and resumes getting new connections.
    pub thresholds: Thresholds,
    /// The encapsulation. The kernel stores it with every forwarding method and uses it only with [`ForwardingMethod::Tunnel`].
    /// Kernels before 5.3 support only the default.
    pub tunnel: Tunnel,
}

impl RealServer {
    /// A real server with weight 1, without thresholds, with network address translation.
    pub fn new(key: impl Into<RealServerKey>) -> Self {
        Self {
            key: key.into(),
            forwarding: ForwardingMethod::Masquerade,
            weight: Weight::ONE,
            thresholds: Thresholds::NONE,
            tunnel: Tunnel::IPIP,
        }
    }

    /// Sets the forwarding method.
    #[must_use]
    pub fn with_forwarding(mut self, forwarding: ForwardingMethod) -> Self {
        self.forwarding = forwarding;
        self
    }

    /// Sets the weight.
    #[must_use]
    pub fn with_weight(mut self, weight: Weight) -> Self {
        self.weight = weight;
        self
    }

    /// Sets the connection thresholds.
    #[must_use]
    pub fn with_thresholds(mut self, thresholds: Thresholds) -> Self {
        self.thresholds = thresholds;
        self
    }

    /// Sets the tunnel, and [`ForwardingMethod::Tunnel`].
    #[must_use]
    pub fn with_tunnel(mut self, tunnel: Tunnel) -> Self {
        self.forwarding = ForwardingMethod::Tunnel;
        self.tunnel = tunnel;
        self
    }
}

/// The share of new connections, relative to the other real servers of the virtual server: 0 to 2 147 483 647.
///
/// A real server with weight 0 is draining: it gets no new connections and keeps the existing ones. Persistence templates still
/// direct new connections to it, unless `net.ipv4.vs.expire_quiescent_template` is on.
#[doc(alias = "IPVS_DEST_ATTR_WEIGHT")]
#[doc(alias = "--weight")]
#[doc(alias = "-w")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Weight(u32);

impl Weight {
    /// 0: no new connections.
    #[doc(alias = "quiescent")]
    pub const DRAINING: Self = Self(0);
    /// 1, the default.
    pub const ONE: Self = Self(1);
    /// The largest weight: the kernel stores it as an `int`.
    pub const MAX: Self = Self(i32::MAX as u32);

    /// A weight.
    ///
    /// # Errors
    /// The weight is greater than [`Weight::MAX`]. The kernel would refuse it as negative.
    pub fn new(weight: u32) -> Result<Self, InvalidWeight> {
        if weight > Self::MAX.0 {
            Err(InvalidWeight { weight })
        } else {
            Ok(Self(weight))
        }
    }

    /// The number.
    #[must_use]
    pub fn get(self) -> u32 {
        self.0
    }

    /// Whether it is 0.
    #[must_use]
    pub fn is_draining(self) -> bool {
        self == Self::DRAINING
    }
}

impl Default for Weight {
    fn default() -> Self {
        Self::ONE
    }
}

impl From<u16> for Weight {
    fn from(weight: u16) -> Self {
        Self(u32::from(weight))
    }
}

impl TryFrom<u32> for Weight {
    type Error = InvalidWeight;

    fn try_from(weight: u32) -> Result<Self, InvalidWeight> {
        Self::new(weight)
    }
}

impl fmt::Display for Weight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A weight above [`Weight::MAX`].
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid weight {weight}; valid: 0 to {}", Weight::MAX)]
pub struct InvalidWeight {
    /// The weight.
    pub weight: u32,
}

/// The connection counts at which a real server stops getting new connections and at which it resumes. They apply to the sum of
/// active connections, inactive connections and persistence templates.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Thresholds {
    upper: u32,
    lower: u32,
}

impl Thresholds {
    /// No limit.
    pub const NONE: Self = Self { upper: 0, lower: 0 };
    /// The largest threshold; the kernel compares them as `int`.
    pub const MAX: u32 = i32::MAX as u32;

    /// The real server stops at `upper` connections (0: never) and resumes below `lower` (0: below three quarters of `upper`).
    ///
    /// # Errors
    /// `lower` is greater than `upper`, or `upper` is greater than [`Thresholds::MAX`].
    pub fn new(upper: u32, lower: u32) -> Result<Self, InvalidThresholds> {
        if upper > Self::MAX {
            return Err(InvalidThresholds::TooLarge { upper });
        }
        if lower > upper {
            return Err(InvalidThresholds::LowerAboveUpper { upper, lower });
        }
        Ok(Self { upper, lower })
    }

    /// The number of connections at which the real server stops getting new ones; 0 is no limit.
    #[doc(alias = "IPVS_DEST_ATTR_U_THRESH")]
    #[doc(alias = "-x")]
    #[must_use]
    pub fn upper(self) -> u32 {
        self.upper
    }

    /// The number of connections below which it resumes; 0 is three quarters of the upper threshold.
    #[doc(alias = "IPVS_DEST_ATTR_L_THRESH")]
    #[doc(alias = "-y")]
    #[must_use]
    pub fn lower(self) -> u32 {
        self.lower
    }
}

/// Thresholds that are not valid for the kernel.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidThresholds {
    /// The lower threshold is greater than the upper one.
    #[error("invalid lower threshold {lower}; valid: 0 to the upper threshold {upper}")]
    LowerAboveUpper {
        /// The upper threshold.
        upper: u32,
        /// The lower threshold.
        lower: u32,
    },
    /// The upper threshold is greater than [`Thresholds::MAX`].
    #[error("invalid upper threshold {upper}; valid: 0 to {}", Thresholds::MAX)]
    TooLarge {
        /// The upper threshold.
        upper: u32,
    },
}

/// How packets are encapsulated for [`ForwardingMethod::Tunnel`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct Tunnel {
    /// The encapsulation.
    #[doc(alias = "IPVS_DEST_ATTR_TUN_TYPE")]
    #[doc(alias = "--tun-type")]
    pub kind: TunnelKind,
    /// The UDP port of [`TunnelKind::Gue`], 1 to 65535; 0 for the other kinds.
    #[doc(alias = "IPVS_DEST_ATTR_TUN_PORT")]
    #[doc(alias = "--tun-port")]
    pub port: u16,
    /// Checksums of [`TunnelKind::Gue`] and [`TunnelKind::Gre`]; empty is none.
    #[doc(alias = "IPVS_DEST_ATTR_TUN_FLAGS")]
    pub flags: TunnelFlags,
}

impl Tunnel {
    /// IP in IP, the default.
    pub const IPIP: Self = Self {
        kind: TunnelKind::Ipip,
        port: 0,
        flags: TunnelFlags::empty(),
    };

    /// Generic UDP encapsulation to a port from 1 to 65535.
    #[must_use]
    pub fn gue(port: u16, flags: TunnelFlags) -> Self {
        Self {
            kind: TunnelKind::Gue,
            port,
            flags,
        }
    }

    /// Generic routing encapsulation.
    #[must_use]
    pub fn gre(flags: TunnelFlags) -> Self {
        Self {
            kind: TunnelKind::Gre,
            port: 0,
            flags,
        }
    }

    /// Any combination. The kernel checks only that the port of GUE is not 0.
    #[must_use]
    pub fn new(kind: TunnelKind, port: u16, flags: TunnelFlags) -> Self {
        Self { kind, port, flags }
    }
}

impl Default for Tunnel {
    fn default() -> Self {
        Self::IPIP
    }
}

/// The encapsulation of a [`Tunnel`]. Values with equal numbers are equal.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub enum TunnelKind {
    /// IP in IP.
    #[doc(alias = "IP_VS_CONN_F_TUNNEL_TYPE_IPIP")]
    #[default]
    Ipip,
    /// Generic UDP encapsulation, since Linux 5.3.
    #[doc(alias = "IP_VS_CONN_F_TUNNEL_TYPE_GUE")]
    Gue,
    /// Generic routing encapsulation, since Linux 5.3.
    #[doc(alias = "IP_VS_CONN_F_TUNNEL_TYPE_GRE")]
    Gre,
    /// Another kind; the kernel stores any number. [`from_number`](Self::from_number) returns this only for unknown numbers.
    Unknown(u8),
}

by_number!(TunnelKind);

impl TunnelKind {
    /// The kind with the kernel's number.
    #[must_use]
    pub fn from_number(number: u8) -> Self {
        match number {
            uapi::IP_VS_CONN_F_TUNNEL_TYPE_IPIP => Self::Ipip,
            uapi::IP_VS_CONN_F_TUNNEL_TYPE_GUE => Self::Gue,
            uapi::IP_VS_CONN_F_TUNNEL_TYPE_GRE => Self::Gre,
            other => Self::Unknown(other),
        }
    }

    /// The kernel's number.
    #[must_use]
    pub fn number(self) -> u8 {
        match self {
            Self::Ipip => uapi::IP_VS_CONN_F_TUNNEL_TYPE_IPIP,
            Self::Gue => uapi::IP_VS_CONN_F_TUNNEL_TYPE_GUE,
            Self::Gre => uapi::IP_VS_CONN_F_TUNNEL_TYPE_GRE,
            Self::Unknown(number) => number,
        }
    }
}

bitflags::bitflags! {
    /// Checksums of the outer header of a [`Tunnel`]; empty is none.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
    pub struct TunnelFlags: u16 {
        /// The outer header has a checksum.
        #[doc(alias = "IP_VS_TUNNEL_ENCAP_FLAG_CSUM")]
        #[doc(alias = "--tun-csum")]
        const CHECKSUM = uapi::IP_VS_TUNNEL_ENCAP_FLAG_CSUM;
        /// Remote checksum offload, for GUE.
        #[doc(alias = "IP_VS_TUNNEL_ENCAP_FLAG_REMCSUM")]
        #[doc(alias = "--tun-remcsum")]
        const REMOTE_CHECKSUM = uapi::IP_VS_TUNNEL_ENCAP_FLAG_REMCSUM;
        // Bits of newer kernels are kept.
        const _ = !0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::virtual_server::Protocol;

    #[test]
    fn invalid_numbers_are_errors() {
        assert!(Weight::new(i32::MAX as u32).is_ok());
        assert!(Weight::new(1 << 31).is_err());
        assert!(Thresholds::new(1 << 31, 0).is_err());
        assert_eq!(
            Thresholds::new(10, 11).unwrap_err().to_string(),
            "invalid lower threshold 11; valid: 0 to the upper threshold 10"
        );
        assert!(Thresholds::new(0, 0).is_ok());
    }

    #[test]
    fn values_with_equal_numbers_are_equal() {
        assert_eq!(TunnelKind::Unknown(1), TunnelKind::Gue);
        assert_eq!(ForwardingMethod::Unknown(2), ForwardingMethod::Tunnel);
        assert_ne!(ForwardingMethod::Unknown(10), ForwardingMethod::Tunnel);
        assert_eq!(Protocol::Unknown(6), Protocol::Tcp);
        assert!(Protocol::Unknown(0) < Protocol::Tcp && Protocol::Tcp < Protocol::Unknown(7));
        let set = std::collections::HashSet::from([Protocol::Tcp]);
        assert!(set.contains(&Protocol::Unknown(6)));
        assert_eq!(Protocol::Unknown(6).to_string(), "TCP");
        let real = |method| RealServer::new(RealServerKey::new([10, 0, 0, 1], 80)).with_forwarding(method);
        assert_eq!(
            real(ForwardingMethod::Unknown(2)).to_string(),
            real(ForwardingMethod::Tunnel).to_string()
        );
    }

    #[test]
    fn a_value_of_a_number_has_this_number() {
        for number in 0..=255 {
            assert_eq!(TunnelKind::from_number(number).number(), number);
        }
        for number in 0..8 {
            assert_eq!(ForwardingMethod::from_number(number).number(), number);
        }
    }
}
