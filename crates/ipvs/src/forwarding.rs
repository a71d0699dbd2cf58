//! Forwarding methods.

use crate::number::by_number;
use crate::uapi;

/// How the director forwards packets to a real server. Values with equal numbers are equal.
#[doc(alias = "IPVS_DEST_ATTR_FWD_METHOD")]
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub enum ForwardingMethod {
    /// Network address translation. The replies of the real server must be routed through this host. Only this method can change
    /// the port.
    #[doc(alias = "IP_VS_CONN_F_MASQ")]
    #[doc(alias = "NAT")]
    #[doc(alias = "-m")]
    #[default]
    Masquerade,
    /// Local delivery on this host.
    #[doc(alias = "IP_VS_CONN_F_LOCALNODE")]
    Local,
    /// Encapsulation, configured by [`Tunnel`](crate::Tunnel). The real server replies to the client directly.
    #[doc(alias = "IP_VS_CONN_F_TUNNEL")]
    #[doc(alias = "-i")]
    Tunnel,
    /// Only the link-layer address is changed. The real server replies to the client directly.
    #[doc(alias = "IP_VS_CONN_F_DROUTE")]
    #[doc(alias = "gatewaying")]
    #[doc(alias = "DSR")]
    #[doc(alias = "-g")]
    DirectRoute,
    /// The packet is sent to its original destination. For transparent caches.
    #[doc(alias = "IP_VS_CONN_F_BYPASS")]
    Bypass,
    /// Another method: 5 to 7, because the kernel uses three bits. A real server with a greater number is refused before it is
    /// sent.
    Unknown(u8),
}

by_number!(ForwardingMethod);

impl ForwardingMethod {
    /// The method with the kernel's number. Only the three bits of `IP_VS_CONN_F_FWD_MASK` are used.
    #[must_use]
    pub fn from_number(number: u32) -> Self {
        match number & uapi::IP_VS_CONN_F_FWD_MASK {
            uapi::IP_VS_CONN_F_MASQ => Self::Masquerade,
            uapi::IP_VS_CONN_F_LOCALNODE => Self::Local,
            uapi::IP_VS_CONN_F_TUNNEL => Self::Tunnel,
            uapi::IP_VS_CONN_F_DROUTE => Self::DirectRoute,
            uapi::IP_VS_CONN_F_BYPASS => Self::Bypass,
            // Three bits fit a byte.
            other => Self::Unknown(other as u8),
        }
    }

    /// The same value, never as `Unknown` with the number of another variant.
    pub(crate) fn named(self) -> Self {
        match self.number() {
            number @ ..=uapi::IP_VS_CONN_F_FWD_MASK => Self::from_number(number),
            _ => self,
        }
    }

    /// The kernel's number.
    #[must_use]
    pub fn number(self) -> u32 {
        match self {
            Self::Masquerade => uapi::IP_VS_CONN_F_MASQ,
            Self::Local => uapi::IP_VS_CONN_F_LOCALNODE,
            Self::Tunnel => uapi::IP_VS_CONN_F_TUNNEL,
            Self::DirectRoute => uapi::IP_VS_CONN_F_DROUTE,
            Self::Bypass => uapi::IP_VS_CONN_F_BYPASS,
            Self::Unknown(number) => u32::from(number),
        }
    }
}
