//! Local routes.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

/// A route of type `local`, which makes every address of a prefix local to the host, as if each was on the link.
///
/// One route covers any number of addresses, so a whole Service CIDR costs one message. Differences to adding each address:
/// - The addresses are not in any listing of addresses.
/// - The host answers for every address of the prefix, also for unused ones: a packet to one reaches a
///   closed port of the host instead of being forwarded.
/// - IPv4: the link may be down. IPv6: the link must be up when the route is added (`ENETDOWN`
///   otherwise), and the kernel deletes the route when the link is set down.
///
/// It is in the table `local`, together with the routes that the kernel adds for addresses.
#[doc(alias = "RTN_LOCAL")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LocalRoute {
    prefix: IpNet,
}

impl LocalRoute {
    /// A route for a prefix. Host bits are cleared: `10.96.0.1/12` is
    /// `10.96.0.0/12`.
    #[must_use]
    pub fn new(prefix: IpNet) -> Self {
        LocalRoute {
            prefix: prefix.trunc(),
        }
    }

    /// The prefix, without host bits.
    #[must_use]
    pub fn prefix(&self) -> IpNet {
        self.prefix
    }

    /// Whether an address is in the prefix.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        self.prefix.contains(&address)
    }
}

impl From<IpNet> for LocalRoute {
    fn from(prefix: IpNet) -> Self {
        Self::new(prefix)
    }
}

/// As the arguments of `ip route add`, without the link.
impl fmt::Display for LocalRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "local {}", self.prefix)
    }
}
