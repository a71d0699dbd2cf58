//! How a packet gets from the virtual server's host to the real server.

use crate::number::by_number;
use crate::uapi;

/// The packet-forwarding method of a real server. Two are equal if their kernel numbers are.
#[doc(alias = "IPVS_DEST_ATTR_FWD_METHOD")]
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub enum ForwardingMethod {
    /// Network address translation; the real server's answers must pass this host again. The only method that may
    /// change the port.
    #[doc(alias = "IP_VS_CONN_F_MASQ")]
    #[doc(alias = "NAT")]
    #[doc(alias = "-m")]
    #[default]
    Masquerade,
    /// Deliver on this host.
    #[doc(alias = "IP_VS_CONN_F_LOCALNODE")]
    Local,
    /// Encapsulate, as [`Tunnel`](crate::Tunnel) says; the real server answers the client itself.
    #[doc(alias = "IP_VS_CONN_F_TUNNEL")]
    #[doc(alias = "-i")]
    Tunnel,
    /// Change only the link-layer address; the real server answers the client itself.
    #[doc(alias = "IP_VS_CONN_F_DROUTE")]
    #[doc(alias = "gatewaying")]
    #[doc(alias = "DSR")]
    #[doc(alias = "-g")]
    DirectRoute,
    /// Send to the packet's own destination, past IPVS. Meant for transparent caches.
    #[doc(alias = "IP_VS_CONN_F_BYPASS")]
    Bypass,
    /// A method that this crate does not know: 5 to 7, as the kernel keeps three bits. A real server with a larger number is
    /// not sent.
    Unknown(u8),
}

by_number!(ForwardingMethod);

impl ForwardingMethod {
    /// The method with the kernel's number; only the three bits of `IP_VS_CONN_F_FWD_MASK` count.
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

    /// The same, as a variant with a name if it has one.
    pub(crate) fn named(self) -> Self {
        match self.number() {
            number @ ..=uapi::IP_VS_CONN_F_FWD_MASK => Self::from_number(number),
            _ => self,
        }
    }

    /// The kernel's number.
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
