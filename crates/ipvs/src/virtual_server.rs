//! Virtual servers: what clients connect to.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr};
use std::num::NonZeroU32;
use std::time::Duration;

use kernlink_base::Family;

use crate::number::by_number;
use crate::scheduler::{PersistenceEngine, Scheduler, SchedulerFlags};

/// A transport protocol. Two are equal if their numbers are.
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
    /// Another IP protocol. The kernel accepts a virtual server for it and balances nothing.
    /// [`from_number`](Self::from_number) makes it of unknown numbers only, so that it can be matched.
    Unknown(u16),
}

by_number!(Protocol);

impl Protocol {
    /// The protocol with this IP protocol number.
    pub fn from_number(number: u16) -> Self {
        match number {
            6 => Self::Tcp,
            17 => Self::Udp,
            132 => Self::Sctp,
            other => Self::Unknown(other),
        }
    }

    /// The IP protocol number.
    pub fn number(self) -> u16 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
            Self::Sctp => 132,
            Self::Unknown(number) => number,
        }
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

/// What tells one virtual server from another. Prints as in `ipvsadm`: `-t 10.0.0.1:80`, `-f 7`, `-f 7 -6`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum VirtualServerKey {
    /// By address, port and protocol.
    Address {
        /// The address clients connect to.
        #[doc(alias = "IPVS_SVC_ATTR_ADDR")]
        address: IpAddr,
        /// The transport protocol.
        #[doc(alias = "IPVS_SVC_ATTR_PROTOCOL")]
        protocol: Protocol,
        /// The port; 0 means every port of the address, which works only together with persistence.
        #[doc(alias = "IPVS_SVC_ATTR_PORT")]
        port: u16,
    },
    /// By the mark that a firewall rule gave the packet. One mark can name an IPv4 and an IPv6 virtual server.
    Mark {
        /// The family of the packets.
        #[doc(alias = "IPVS_SVC_ATTR_AF")]
        family: Family,
        /// The mark. Never 0: the kernel stores mark 0 as TCP `0.0.0.0:0`.
        #[doc(alias = "IPVS_SVC_ATTR_FWMARK")]
        #[doc(alias = "--fwmark-service")]
        mark: NonZeroU32,
    },
}

impl VirtualServerKey {
    /// A virtual server at an address, port and protocol.
    pub fn new(address: impl Into<IpAddr>, port: u16, protocol: Protocol) -> Self {
        Self::Address {
            address: address.into(),
            port,
            protocol,
        }
    }

    /// A TCP virtual server.
    pub fn tcp(address: impl Into<IpAddr>, port: u16) -> Self {
        Self::new(address, port, Protocol::Tcp)
    }

    /// A UDP virtual server.
    pub fn udp(address: impl Into<IpAddr>, port: u16) -> Self {
        Self::new(address, port, Protocol::Udp)
    }

    /// An SCTP virtual server.
    pub fn sctp(address: impl Into<IpAddr>, port: u16) -> Self {
        Self::new(address, port, Protocol::Sctp)
    }

    /// A virtual server for packets with a firewall mark.
    pub fn mark(family: Family, mark: NonZeroU32) -> Self {
        Self::Mark { family, mark }
    }

    /// The address family.
    pub fn family(&self) -> Family {
        match self {
            Self::Address { address, .. } => Family::of(*address),
            Self::Mark { family, .. } => *family,
        }
    }

    /// The address, if it is by address.
    pub fn address(&self) -> Option<IpAddr> {
        match self {
            Self::Address { address, .. } => Some(*address),
            Self::Mark { .. } => None,
        }
    }

    /// The port, if it is by address.
    pub fn port(&self) -> Option<u16> {
        match self {
            Self::Address { port, .. } => Some(*port),
            Self::Mark { .. } => None,
        }
    }

    /// The protocol, if it is by address.
    pub fn protocol(&self) -> Option<Protocol> {
        match self {
            Self::Address { protocol, .. } => Some(*protocol),
            Self::Mark { .. } => None,
        }
    }
}

/// A virtual server and all its settings. Prints as a line of `ipvsadm -S -n`.
///
/// ```
/// use kernlink_ipvs::{Persistence, Scheduler, VirtualServer, VirtualServerKey};
/// use std::net::Ipv4Addr;
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
    /// Which virtual server it is; an update cannot change it.
    pub key: VirtualServerKey,
    /// How a real server is picked.
    pub scheduler: Scheduler,
    /// Flags for the scheduler; empty for most.
    pub scheduler_flags: SchedulerFlags,
    /// Schedule every UDP datagram by itself, remembering no connection.
    #[doc(alias = "IP_VS_SVC_F_ONEPACKET")]
    #[doc(alias = "--ops")]
    #[doc(alias = "-o")]
    pub one_packet: bool,
    /// Send one client to one real server for a time; `None` turns persistence off.
    pub persistence: Option<Persistence>,
    /// The module that finds the persistence key; `None` is the client's address.
    pub persistence_engine: Option<PersistenceEngine>,
}

impl VirtualServer {
    /// A virtual server without persistence, flags or persistence engine.
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

    /// The same with flags for the scheduler.
    pub fn with_scheduler_flags(mut self, flags: SchedulerFlags) -> Self {
        self.scheduler_flags = flags;
        self
    }

    /// The same with every datagram scheduled by itself.
    pub fn with_one_packet_scheduling(mut self) -> Self {
        self.one_packet = true;
        self
    }

    /// The same with persistence.
    pub fn with_persistence(mut self, persistence: Persistence) -> Self {
        self.persistence = Some(persistence);
        self
    }

    /// The same with a persistence engine.
    pub fn with_persistence_engine(mut self, engine: PersistenceEngine) -> Self {
        self.persistence_engine = Some(engine);
        self
    }
}

/// How long, and for which group of clients, the first choice of a real server is kept.
#[doc(alias = "--persistent")]
#[doc(alias = "IP_VS_SVC_F_PERSISTENT")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Persistence {
    seconds: u32,
    granularity: Granularity,
}

impl Persistence {
    /// The longest time-out, in seconds: 49 days. The kernel counts it in jiffies in 32 bits and wraps without a word;
    /// this much fits at 1000 jiffies a second, the most a kernel is built with.
    pub const MAX_SECONDS: u32 = u32::MAX / 1000;

    /// Persistence of this many seconds for each client address: 0 to [`MAX_SECONDS`](Self::MAX_SECONDS). With 0 an
    /// entry ends with its last connection.
    ///
    /// # Errors
    /// More than [`MAX_SECONDS`](Self::MAX_SECONDS).
    pub fn from_seconds(seconds: u32) -> Result<Self, InvalidPersistence> {
        if seconds > Self::MAX_SECONDS {
            return Err(InvalidPersistence::TooLong {
                seconds: u64::from(seconds),
            });
        }
        Ok(Self::from_kernel(seconds, Granularity::ADDRESS))
    }

    /// Persistence of this time, which must be whole seconds, for each client address.
    ///
    /// # Errors
    /// The time has a fraction of a second or is longer than [`MAX_SECONDS`](Self::MAX_SECONDS).
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

    /// Whatever the kernel says, without the limit.
    pub(crate) fn from_kernel(seconds: u32, granularity: Granularity) -> Self {
        Self { seconds, granularity }
    }

    /// The same for groups of clients.
    pub fn with_granularity(mut self, granularity: Granularity) -> Self {
        self.granularity = granularity;
        self
    }

    /// How long after its last connection a client's choice is kept.
    #[doc(alias = "IPVS_SVC_ATTR_TIMEOUT")]
    pub fn timeout(&self) -> Duration {
        Duration::from_secs(u64::from(self.seconds))
    }

    /// The same in seconds.
    pub fn seconds(&self) -> u32 {
        self.seconds
    }

    /// Which clients count as one.
    pub fn granularity(&self) -> Granularity {
        self.granularity
    }
}

/// Which clients count as one for persistence: those whose addresses agree under a mask.
#[doc(alias = "IPVS_SVC_ATTR_NETMASK")]
#[doc(alias = "--netmask")]
#[doc(alias = "-M")]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Granularity(Mask);

/// The whole address has one form only, so that equal means equal: no constructor makes `Ipv4(255.255.255.255)` or
/// `Ipv6(128)`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Mask {
    Whole,
    Ipv4(Ipv4Addr),
    Ipv6(u8),
}

impl Granularity {
    /// Every client address by itself, of either family.
    pub const ADDRESS: Self = Self(Mask::Whole);

    /// IPv4 clients that agree under this mask. It may have holes; 0.0.0.0 puts all clients together.
    pub fn from_mask(mask: Ipv4Addr) -> Self {
        Self(if mask == Ipv4Addr::BROADCAST {
            Mask::Whole
        } else {
            Mask::Ipv4(mask)
        })
    }

    /// IPv6 clients that agree in this many leading bits, 1 to 128.
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
    pub fn mask(&self) -> Option<Ipv4Addr> {
        match self.0 {
            Mask::Whole => Some(Ipv4Addr::BROADCAST),
            Mask::Ipv4(mask) => Some(mask),
            Mask::Ipv6(_) => None,
        }
    }

    /// The prefix length for IPv6 clients; `None` if this is a mask of IPv4.
    pub fn prefix_length(&self) -> Option<u8> {
        match self.0 {
            Mask::Whole => Some(128),
            Mask::Ipv4(_) => None,
            Mask::Ipv6(length) => Some(length),
        }
    }

    /// Whether every address is by itself.
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

/// Persistence that the kernel could not keep as asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum InvalidPersistence {
    /// The kernel counts whole seconds.
    #[error("persistence time-out {timeout:?} is not a whole number of seconds")]
    NotWholeSeconds {
        /// The time asked for.
        timeout: Duration,
    },
    /// The kernel would wrap it.
    #[error(
        "persistence time-out of {seconds} seconds is more than {} seconds",
        Persistence::MAX_SECONDS
    )]
    TooLong {
        /// The time asked for, in seconds.
        seconds: u64,
    },
    /// The kernel takes 1 to 128.
    #[error("persistence prefix length {length} is not between 1 and 128")]
    PrefixLength {
        /// The length asked for.
        length: u8,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_address_has_one_form() {
        assert_eq!(Granularity::from_mask(Ipv4Addr::BROADCAST), Granularity::ADDRESS);
        assert_eq!(Granularity::from_prefix_length(128), Ok(Granularity::ADDRESS));
        assert_eq!(Granularity::ADDRESS.mask(), Some(Ipv4Addr::BROADCAST));
        assert_eq!(Granularity::ADDRESS.prefix_length(), Some(128));
    }

    #[test]
    fn persistence_that_would_change_on_its_way_is_refused() {
        assert!(Persistence::new(Duration::from_millis(1500)).is_err());
        assert!(Persistence::from_seconds(Persistence::MAX_SECONDS).is_ok());
        assert_eq!(
            Persistence::from_seconds(Persistence::MAX_SECONDS + 1)
                .unwrap_err()
                .to_string(),
            "persistence time-out of 4294968 seconds is more than 4294967 seconds"
        );
        assert!(Persistence::new(Duration::from_secs(1 << 40)).is_err());
        for length in [0, 129, 255] {
            assert!(Granularity::from_prefix_length(length).is_err(), "{length}");
        }
    }
}
