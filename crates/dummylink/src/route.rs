//! Local routes: the other way to make an address the host's own.

use std::fmt;
use std::net::IpAddr;

use ipnet::IpNet;

/// A route that makes every address of a prefix local to the host, as if each lay on the link.
///
/// One route stands for any number of addresses, so a whole Service range costs one message. What
/// is different from addresses:
/// - The addresses are in no listing of addresses; nothing tells "in use" from "in the range".
///   The host answers for all of them, also for those that nobody serves: a packet to one meets a
///   closed port of the host instead of being routed on.
/// - IPv4: the link may be down. IPv6: the link must be up when the route is added (`ENETDOWN`
///   otherwise), and the route goes when the link is set down.
///
/// It lies in the table `local`, where the kernel keeps the routes of its own addresses.
#[doc(alias = "RTN_LOCAL")]
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LocalRoute {
    prefix: IpNet,
}

impl LocalRoute {
    /// A route for a prefix. Bits behind the prefix are cleared: `10.96.0.1/12` means
    /// `10.96.0.0/12`.
    pub fn new(prefix: IpNet) -> Self {
        LocalRoute {
            prefix: prefix.trunc(),
        }
    }

    /// The prefix, without bits behind it.
    pub fn prefix(&self) -> IpNet {
        self.prefix
    }

    /// Whether an address of the host lies in the prefix.
    pub fn contains(&self, address: IpAddr) -> bool {
        self.prefix.contains(&address)
    }
}

impl From<IpNet> for LocalRoute {
    fn from(prefix: IpNet) -> Self {
        Self::new(prefix)
    }
}

/// As `ip route add` takes it, without the link.
impl fmt::Display for LocalRoute {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "local {}", self.prefix)
    }
}
