//! Real servers: what answers.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use kernlink_base::Family;

use crate::forwarding::ForwardingMethod;
use crate::number::by_number;
use crate::uapi;

/// What tells one real server of a virtual server from another. Prints as `10.1.0.1:8080` or `[2001:db8::1]:80`.
///
/// The family may differ from the virtual server's only with [`ForwardingMethod::Tunnel`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RealServerKey {
    /// The address; unicast. Not an IPv4-mapped IPv6 address, which the kernel takes for no unicast address: use the IPv4
    /// address.
    #[doc(alias = "IPVS_DEST_ATTR_ADDR")]
    #[doc(alias = "IPVS_DEST_ATTR_ADDR_FAMILY")]
    pub address: IpAddr,
    /// The port; 0 under a virtual server by mark or with port 0 means the port the client asked for.
    #[doc(alias = "IPVS_DEST_ATTR_PORT")]
    pub port: u16,
}

impl RealServerKey {
    /// A real server at an address and port.
    pub fn new(address: impl Into<IpAddr>, port: u16) -> Self {
        Self {
            address: address.into(),
            port,
        }
    }

    /// The address family.
    pub fn family(&self) -> Family {
        Family::of(self.address)
    }
}

impl From<SocketAddr> for RealServerKey {
    /// The flow label and scope of an IPv6 socket address have no place in IPVS and are left out.
    fn from(socket: SocketAddr) -> Self {
        Self::new(socket.ip(), socket.port())
    }
}

impl fmt::Display for RealServerKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        SocketAddr::new(self.address, self.port).fmt(f)
    }
}

/// A real server and all its settings. Prints as `ipvsadm` options: `-r 10.1.0.1:8080 -m -w 1`.
#[doc(alias = "destination")]
#[doc(alias = "IPVS_CMD_ATTR_DEST")]
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct RealServer {
    /// Which real server it is; an update cannot change it.
    pub key: RealServerKey,
    /// How packets reach it.
    pub forwarding: ForwardingMethod,
    /// Its share of new connections; 0 drains it.
    pub weight: Weight,
    /// When it is too busy for more connections.
    pub thresholds: Thresholds,
    /// The encapsulation, read only with [`ForwardingMethod::Tunnel`] but kept with every method. Kernels before 5.3 know
    /// only the default.
    pub tunnel: Tunnel,
}

impl RealServer {
    /// A real server of weight 1 without thresholds, behind network address translation.
    pub fn new(key: impl Into<RealServerKey>) -> Self {
        Self {
            key: key.into(),
            forwarding: ForwardingMethod::Masquerade,
            weight: Weight::ONE,
            thresholds: Thresholds::NONE,
            tunnel: Tunnel::IPIP,
        }
    }

    /// The same with another forwarding method.
    pub fn with_forwarding(mut self, forwarding: ForwardingMethod) -> Self {
        self.forwarding = forwarding;
        self
    }

    /// The same with another weight.
    pub fn with_weight(mut self, weight: Weight) -> Self {
        self.weight = weight;
        self
    }

    /// The same with connection thresholds.
    pub fn with_thresholds(mut self, thresholds: Thresholds) -> Self {
        self.thresholds = thresholds;
        self
    }

    /// The same, reached through this tunnel: sets [`ForwardingMethod::Tunnel`] too.
    pub fn with_tunnel(mut self, tunnel: Tunnel) -> Self {
        self.forwarding = ForwardingMethod::Tunnel;
        self.tunnel = tunnel;
        self
    }
}

/// The share of new connections, relative to the other real servers of the virtual server: 0 to 2 147 483 647.
///
/// 0 is "draining": no new connections, while present ones go on (and persistence may still bring new ones, unless
/// `net.ipv4.vs.expire_quiescent_template` is on). It is never "absent".
#[doc(alias = "IPVS_DEST_ATTR_WEIGHT")]
#[doc(alias = "--weight")]
#[doc(alias = "-w")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Weight(u32);

impl Weight {
    /// No new connections.
    #[doc(alias = "quiescent")]
    pub const DRAINING: Self = Self(0);
    /// The same share as every other real server of weight 1.
    pub const ONE: Self = Self(1);
    /// The largest weight: the kernel keeps it in an `int`.
    pub const MAX: Self = Self(i32::MAX as u32);

    /// A weight.
    ///
    /// # Errors
    /// More than [`Weight::MAX`], which the kernel reads as negative and refuses.
    pub fn new(weight: u32) -> Result<Self, InvalidWeight> {
        if weight > Self::MAX.0 {
            Err(InvalidWeight { weight })
        } else {
            Ok(Self(weight))
        }
    }

    /// The number.
    pub fn get(self) -> u32 {
        self.0
    }

    /// Whether it is 0.
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
#[error(
    "weight {weight} is more than {}, the largest that the kernel's int holds",
    Weight::MAX
)]
pub struct InvalidWeight {
    /// The weight asked for.
    pub weight: u32,
}

/// When a real server gets no more connections, and when it gets them again. Connections are active ones, inactive ones
/// and persistence templates together.
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

    /// Stop at `upper` connections (0: never), go on below `lower` (0: at three quarters of `upper`).
    ///
    /// # Errors
    /// `lower` is above `upper`, or `upper` above [`Thresholds::MAX`].
    pub fn new(upper: u32, lower: u32) -> Result<Self, InvalidThresholds> {
        if upper > Self::MAX {
            return Err(InvalidThresholds::TooLarge { upper });
        }
        if lower > upper {
            return Err(InvalidThresholds::LowerAboveUpper { upper, lower });
        }
        Ok(Self { upper, lower })
    }

    /// The number of connections at which the real server gets no more; 0 is no limit.
    #[doc(alias = "IPVS_DEST_ATTR_U_THRESH")]
    #[doc(alias = "-x")]
    pub fn upper(self) -> u32 {
        self.upper
    }

    /// The number below which it gets connections again; 0 is three quarters of the upper one.
    #[doc(alias = "IPVS_DEST_ATTR_L_THRESH")]
    #[doc(alias = "-y")]
    pub fn lower(self) -> u32 {
        self.lower
    }
}

/// Thresholds that the kernel refuses.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidThresholds {
    /// The real server would never get connections again.
    #[error("lower threshold {lower} is above upper threshold {upper}")]
    LowerAboveUpper {
        /// The upper threshold asked for.
        upper: u32,
        /// The lower threshold asked for.
        lower: u32,
    },
    /// The kernel compares as `int`.
    #[error("upper threshold {upper} is more than {}", Thresholds::MAX)]
    TooLarge {
        /// The upper threshold asked for.
        upper: u32,
    },
}

/// How packets are wrapped for [`ForwardingMethod::Tunnel`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct Tunnel {
    /// The encapsulation.
    #[doc(alias = "IPVS_DEST_ATTR_TUN_TYPE")]
    #[doc(alias = "--tun-type")]
    pub kind: TunnelKind,
    /// The UDP port of [`TunnelKind::Gue`], which must not be 0; 0 for the others.
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

    /// Generic UDP encapsulation to a port, which must not be 0.
    pub fn gue(port: u16, flags: TunnelFlags) -> Self {
        Self {
            kind: TunnelKind::Gue,
            port,
            flags,
        }
    }

    /// Generic routing encapsulation.
    pub fn gre(flags: TunnelFlags) -> Self {
        Self {
            kind: TunnelKind::Gre,
            port: 0,
            flags,
        }
    }

    /// Any combination of settings. The kernel checks only that the port of GUE is not 0.
    pub fn new(kind: TunnelKind, port: u16, flags: TunnelFlags) -> Self {
        Self { kind, port, flags }
    }
}

impl Default for Tunnel {
    fn default() -> Self {
        Self::IPIP
    }
}

/// The encapsulation of a [`Tunnel`]. Two are equal if their kernel numbers are.
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
    /// A kind that this crate does not know; the kernel stores any. Build it with [`from_number`](Self::from_number).
    Unknown(u8),
}

by_number!(TunnelKind);

impl TunnelKind {
    /// The kind with the kernel's number.
    pub fn from_number(number: u8) -> Self {
        match number {
            uapi::IP_VS_CONN_F_TUNNEL_TYPE_IPIP => Self::Ipip,
            uapi::IP_VS_CONN_F_TUNNEL_TYPE_GUE => Self::Gue,
            uapi::IP_VS_CONN_F_TUNNEL_TYPE_GRE => Self::Gre,
            other => Self::Unknown(other),
        }
    }

    /// The kernel's number.
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
        /// With checksum.
        #[doc(alias = "IP_VS_TUNNEL_ENCAP_FLAG_CSUM")]
        #[doc(alias = "--tun-csum")]
        const CHECKSUM = uapi::IP_VS_TUNNEL_ENCAP_FLAG_CSUM;
        /// Remote checksum offload, for GUE.
        #[doc(alias = "IP_VS_TUNNEL_ENCAP_FLAG_REMCSUM")]
        #[doc(alias = "--tun-remcsum")]
        const REMOTE_CHECKSUM = uapi::IP_VS_TUNNEL_ENCAP_FLAG_REMCSUM;
        // Bits of later kernels are kept.
        const _ = !0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_the_kernel_refuses_cannot_be_made() {
        assert!(Weight::new(i32::MAX as u32).is_ok());
        assert!(Weight::new(1 << 31).is_err());
        assert!(Thresholds::new(1 << 31, 0).is_err());
        assert_eq!(
            Thresholds::new(10, 11).unwrap_err().to_string(),
            "lower threshold 11 is above upper threshold 10"
        );
        assert!(Thresholds::new(0, 0).is_ok());
    }

    #[test]
    fn a_number_is_one_value_however_it_was_made() {
        use crate::virtual_server::Protocol;
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
    fn kernel_numbers_go_both_ways() {
        for number in 0..=255 {
            assert_eq!(TunnelKind::from_number(number).number(), number);
        }
        for number in 0..8 {
            assert_eq!(ForwardingMethod::from_number(number).number(), number);
        }
    }
}
