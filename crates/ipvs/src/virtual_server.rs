//! Virtual servers.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZeroU32;
use std::time::Duration;

use kernlink_base::Family;

use crate::number::by_number;
use crate::scheduler::{PersistenceEngine, Scheduler, SchedulerFlags};

/// The transport protocol of a virtual server. Values with equal numbers are equal.
///
/// This is an enum and not [`kernlink_base::Protocol`], because IPVS schedules only these three protocols, and because the kernel's
/// attribute `IPVS_SVC_ATTR_PROTOCOL` has 16 bits, while an IP protocol number has 8.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub enum Protocol {
    /// TCP, number 6.
    #[doc(alias = "--tcp-service")]
    Tcp,
    /// UDP, number 17.
    #[doc(alias = "--udp-service")]
    Udp,
    /// SCTP, number 132.
    #[doc(alias = "--sctp-service")]
    Sctp,
    /// Another number. The kernel accepts such a virtual server but schedules no connections to it.
    /// [`from_number`](Self::from_number) returns this only for unknown numbers.
    Unknown(u16),
}

by_number!(Protocol);

impl Protocol {
    /// The protocol with this IP protocol number.
    #[must_use]
    pub fn from_number(number: u16) -> Self {
        match number {
            6 => Self::Tcp,
            17 => Self::Udp,
            132 => Self::Sctp,
            other => Self::Unknown(other),
        }
    }

    /// The IP protocol number.
    #[must_use]
    pub fn number(self) -> u16 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
            Self::Sctp => 132,
            Self::Unknown(number) => number,
        }
    }
}

impl From<kernlink_base::Protocol> for Protocol {
    fn from(protocol: kernlink_base::Protocol) -> Self {
        Self::from_number(protocol.0.into())
    }
}

impl TryFrom<Protocol> for kernlink_base::Protocol {
    type Error = std::num::TryFromIntError;

    /// # Errors
    /// The number is above 255, so it is not that of an IP protocol.
    fn try_from(protocol: Protocol) -> Result<Self, Self::Error> {
        u8::try_from(protocol.number()).map(kernlink_base::Protocol)
    }
}

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match Self::from_number(self.number()) {
            Self::Tcp => f.pad("TCP"),
            Self::Udp => f.pad("UDP"),
            Self::Sctp => f.pad("SCTP"),
            Self::Unknown(number) => write!(f, "IP protocol {number}"),
        }
    }
}

/// Identifies a virtual server. Prints as options of `ipvsadm`: `-t 10.0.0.1:80`, `-f 7`, `-f 7 -6`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum VirtualServerKey {
    /// By address, port and protocol.
    Address {
        /// The address that clients connect to.
        #[doc(alias = "IPVS_SVC_ATTR_ADDR")]
        address: IpAddr,
        /// The transport protocol.
        #[doc(alias = "IPVS_SVC_ATTR_PROTOCOL")]
        protocol: Protocol,
        /// The port. 0 is all ports of the address and requires persistence.
        #[doc(alias = "IPVS_SVC_ATTR_PORT")]
        port: u16,
    },
    /// By the firewall mark of the packets. The same mark can identify an IPv4 and an IPv6 virtual server.
    Mark {
        /// The family of the packets.
        #[doc(alias = "IPVS_SVC_ATTR_AF")]
        family: Family,
        /// The mark. Not 0, which the kernel stores as TCP `0.0.0.0:0`.
        #[doc(alias = "IPVS_SVC_ATTR_FWMARK")]
        #[doc(alias = "--fwmark-service")]
        mark: NonZeroU32,
    },
}

impl VirtualServerKey {
    /// The key of an address, port and protocol.
    pub fn new(address: impl Into<IpAddr>, port: u16, protocol: Protocol) -> Self {
        Self::Address {
            address: address.into(),
            port,
            protocol,
        }
    }

    /// The key of a TCP virtual server.
    pub fn tcp(address: impl Into<IpAddr>, port: u16) -> Self {
        Self::new(address, port, Protocol::Tcp)
    }

    /// The key of a UDP virtual server.
    pub fn udp(address: impl Into<IpAddr>, port: u16) -> Self {
        Self::new(address, port, Protocol::Udp)
    }

    /// The key of an SCTP virtual server.
    pub fn sctp(address: impl Into<IpAddr>, port: u16) -> Self {
        Self::new(address, port, Protocol::Sctp)
    }

    /// The key of a virtual server for packets with a firewall mark.
    #[must_use]
    pub fn mark(family: Family, mark: NonZeroU32) -> Self {
        Self::Mark { family, mark }
    }

    /// The address family.
    #[must_use]
    pub fn family(&self) -> Family {
        match self {
            Self::Address { address, .. } => Family::of(*address),
            Self::Mark { family, .. } => *family,
        }
    }

    /// The address; `None` if it is by mark.
    #[must_use]
    pub fn address(&self) -> Option<IpAddr> {
        match self {
            Self::Address { address, .. } => Some(*address),
            Self::Mark { .. } => None,
        }
    }

    /// The port; `None` if it is by mark.
    #[must_use]
    pub fn port(&self) -> Option<u16> {
        match self {
            Self::Address { port, .. } => Some(*port),
            Self::Mark { .. } => None,
        }
    }

    /// The protocol; `None` if it is by mark.
    #[must_use]
    pub fn protocol(&self) -> Option<Protocol> {
        match self {
            Self::Address { protocol, .. } => Some(*protocol),
            Self::Mark { .. } => None,
        }
    }
}

/// A virtual server and its configuration. Prints as a line of `ipvsadm -S -n`.
///
/// ```
/// use std::net::Ipv4Addr;
///
/// use kernlink_ipvs::{Persistence, Scheduler, VirtualServer, VirtualServerKey};
///
/// let web = VirtualServer::new(VirtualServerKey::tcp(Ipv4Addr::new(10, 96, 0, 10), 80), Scheduler::WRR)
///     .with_persistence(Persistence::from_seconds(10_800)?);
/// assert_eq!(web.to_string(), "-A -t 10.96.0.10:80 -s wrr -p 10800");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[doc(alias = "service")]
#[doc(alias = "IPVS_CMD_ATTR_SERVICE")]
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub struct VirtualServer {
    /// Identifies the virtual server; an update cannot change it.
    pub key: VirtualServerKey,
    /// Selects the real server of a new connection.
    pub scheduler: Scheduler,
    /// Flags of the scheduler; most schedulers have none.
    pub scheduler_flags: SchedulerFlags,
    /// One-packet scheduling: every UDP datagram is scheduled separately, without a connection entry.
    #[doc(alias = "IP_VS_SVC_F_ONEPACKET")]
    #[doc(alias = "--ops")]
    #[doc(alias = "-o")]
    pub one_packet: bool,
    /// Directs all connections of a client to one real server for some time; `None` is no persistence.
    pub persistence: Option<Persistence>,
    /// The module that provides the persistence key; `None` is the client's address.
    pub persistence_engine: Option<PersistenceEngine>,
}

impl VirtualServer {
    /// A virtual server without persistence, flags or persistence engine.
    #[must_use]
    pub fn new(key: VirtualServerKey, scheduler: Scheduler) -> Self {
        Self {
            key,
            scheduler,
            scheduler_flags: SchedulerFlags::empty(),
            one_packet: false,
            persistence: None,
            persistence_engine: None,
        }
    }

    /// Sets the flags of the scheduler.
    #[must_use]
    pub fn with_scheduler_flags(mut self, flags: SchedulerFlags) -> Self {
        self.scheduler_flags = flags;
        self
    }

    /// Enables one-packet scheduling.
    #[must_use]
    pub fn with_one_packet_scheduling(mut self) -> Self {
        self.one_packet = true;
        self
    }

    /// Enables persistence.
    #[must_use]
    pub fn with_persistence(mut self, persistence: Persistence) -> Self {
        self.persistence = Some(persistence);
        self
    }

    /// Sets the persistence engine.
    #[must_use]
    pub fn with_persistence_engine(mut self, engine: PersistenceEngine) -> Self {
        self.persistence_engine = Some(engine);
        self
    }
}

/// How long, and for which group of clients, connections are directed to the same real server.
#[doc(alias = "--persistent")]
#[doc(alias = "IP_VS_SVC_F_PERSISTENT")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Persistence {
    seconds: u32,
    granularity: Granularity,
}

impl Persistence {
    /// The longest timeout, in seconds: 49 days. The kernel stores it in jiffies in 32 bits, without a check for overflow. This
    /// value fits at 1000 jiffies per second, the maximum of the kernel's configuration.
    pub const MAX_SECONDS: u32 = u32::MAX / 1000;

    /// Persistence for each client address, 0 to [`MAX_SECONDS`](Self::MAX_SECONDS) seconds. With 0 a template ends with its last
    /// connection.
    ///
    /// # Errors
    /// The timeout is longer than [`MAX_SECONDS`](Self::MAX_SECONDS).
    pub fn from_seconds(seconds: u32) -> Result<Self, InvalidPersistence> {
        if seconds > Self::MAX_SECONDS {
            return Err(InvalidPersistence::TooLong {
                seconds: u64::from(seconds),
            });
        }
        Ok(Self::from_kernel(seconds, Granularity::ADDRESS))
    }

    /// Persistence for each client address. The timeout must be whole seconds.
    ///
    /// # Errors
    /// The timeout has a fraction of a second or is longer than [`MAX_SECONDS`](Self::MAX_SECONDS).
    pub fn new(timeout: Duration) -> Result<Self, InvalidPersistence> {
        if timeout.subsec_nanos() != 0 {
            return Err(InvalidPersistence::NotWholeSeconds { timeout });
        }
        u32::try_from(timeout.as_secs())
            .ok()
            .and_then(|seconds| Self::from_seconds(seconds).ok())
            .ok_or(InvalidPersistence::TooLong {
                seconds: timeout.as_secs(),
            })
    }

    /// A value of the kernel, without a check of the limit.
    pub(crate) fn from_kernel(seconds: u32, granularity: Granularity) -> Self {
        Self { seconds, granularity }
    }

    /// Sets the granularity.
    #[must_use]
    pub fn with_granularity(mut self, granularity: Granularity) -> Self {
        self.granularity = granularity;
        self
    }

    /// How long a persistence template is kept after the latest new connection of its client. It does not expire while it has
    /// connections.
    #[doc(alias = "IPVS_SVC_ATTR_TIMEOUT")]
    #[must_use]
    pub fn timeout(&self) -> Duration {
        Duration::from_secs(u64::from(self.seconds))
    }

    /// The timeout in seconds.
    #[must_use]
    pub fn seconds(&self) -> u32 {
        self.seconds
    }

    /// Which clients share a persistence template.
    #[must_use]
    pub fn granularity(&self) -> Granularity {
        self.granularity
    }
}

/// Which clients share a persistence template: those whose addresses are equal after a mask is applied.
#[doc(alias = "IPVS_SVC_ATTR_NETMASK")]
#[doc(alias = "--netmask")]
#[doc(alias = "-M")]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Granularity(Mask);

/// The whole address has only one representation, so that comparison works: no constructor returns `Ipv4(255.255.255.255)` or
/// `Ipv6(128)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Mask {
    Whole,
    Ipv4(Ipv4Addr),
    Ipv6(u8),
}

impl Granularity {
    /// Each client address separately, for both families.
    pub const ADDRESS: Self = Self(Mask::Whole);

    /// An IPv4 mask. Its bits need not be contiguous; with 0.0.0.0 all clients share one template.
    #[must_use]
    pub fn from_mask(mask: Ipv4Addr) -> Self {
        Self(if mask == Ipv4Addr::BROADCAST {
            Mask::Whole
        } else {
            Mask::Ipv4(mask)
        })
    }

    /// The number of leading bits of IPv6 addresses to compare, 1 to 128.
    ///
    /// # Errors
    /// The length is 0 or more than 128.
    pub fn from_prefix_length(length: u8) -> Result<Self, InvalidPersistence> {
        match length {
            1..=127 => Ok(Self(Mask::Ipv6(length))),
            128 => Ok(Self::ADDRESS),
            _ => Err(InvalidPersistence::PrefixLength { length }),
        }
    }

    /// The mask for IPv4 clients; `None` if this is a prefix length of IPv6.
    #[must_use]
    pub fn mask(&self) -> Option<Ipv4Addr> {
        match self.0 {
            Mask::Whole => Some(Ipv4Addr::BROADCAST),
            Mask::Ipv4(mask) => Some(mask),
            Mask::Ipv6(_) => None,
        }
    }

    /// The prefix length for IPv6 clients; `None` if this is a mask of IPv4.
    #[must_use]
    pub fn prefix_length(&self) -> Option<u8> {
        match self.0 {
            Mask::Whole => Some(128),
            Mask::Ipv4(_) => None,
            Mask::Ipv6(length) => Some(length),
        }
    }

    /// Whether each client address is separate.
    #[must_use]
    pub fn is_address(&self) -> bool {
        self.0 == Mask::Whole
    }
}

impl Default for Granularity {
    fn default() -> Self {
        Self::ADDRESS
    }
}

impl fmt::Debug for Granularity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Mask::Whole => f.write_str("Granularity(address)"),
            Mask::Ipv4(mask) => write!(f, "Granularity({mask})"),
            Mask::Ipv6(length) => write!(f, "Granularity(/{length})"),
        }
    }
}

/// Persistence that is not valid for the kernel.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidPersistence {
    /// The timeout has a fraction of a second.
    #[error("invalid persistence timeout {timeout:?}; valid: whole seconds")]
    NotWholeSeconds {
        /// The timeout.
        timeout: Duration,
    },
    /// The timeout is longer than [`Persistence::MAX_SECONDS`].
    #[error(
        "invalid persistence timeout of {seconds} seconds; valid: 0 to {}",
        Persistence::MAX_SECONDS
    )]
    TooLong {
        /// The timeout in seconds.
        seconds: u64,
    },
    /// The prefix length is 0 or greater than 128.
    #[error("invalid persistence prefix length {length}; valid: 1 to 128")]
    PrefixLength {
        /// The length.
        length: u8,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_whole_address_has_one_representation() {
        assert_eq!(Granularity::from_mask(Ipv4Addr::BROADCAST), Granularity::ADDRESS);
        assert_eq!(Granularity::from_prefix_length(128), Ok(Granularity::ADDRESS));
        assert_eq!(Granularity::ADDRESS.mask(), Some(Ipv4Addr::BROADCAST));
        assert_eq!(Granularity::ADDRESS.prefix_length(), Some(128));
    }

    #[test]
    fn persistence_that_the_kernel_would_store_differently_is_an_error() {
        assert!(Persistence::new(Duration::from_millis(1500)).is_err());
        assert!(Persistence::from_seconds(Persistence::MAX_SECONDS).is_ok());
        assert_eq!(
            Persistence::from_seconds(Persistence::MAX_SECONDS + 1)
                .unwrap_err()
                .to_string(),
            "invalid persistence timeout of 4294968 seconds; valid: 0 to 4294967"
        );
        assert!(Persistence::new(Duration::from_secs(1 << 40)).is_err());
        for length in [0, 129, 255] {
            assert!(Granularity::from_prefix_length(length).is_err(), "{length}");
        }
    }
}
