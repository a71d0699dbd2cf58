//! How packets get from this node to an endpoint.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use kernlink_services::ChosenEndpoint;

/// How packets of a frontend get to its endpoints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Forwarding {
    /// Addresses and ports are rewritten; answers pass this node again. Works with every endpoint.
    #[doc(alias = "-m")]
    #[default]
    Masquerade,
    /// The packet goes to the endpoint's host as it is.
    #[doc(alias = "-g")]
    #[doc(alias = "DSR")]
    Direct,
    /// The packet goes to the endpoint's host as it is, inside another (IP in IP).
    #[doc(alias = "-i")]
    #[doc(alias = "IPIP")]
    Tunnel,
}

/// Why endpoints are not reached directly or by tunnel, although their Service asks for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum ForwardingObstacle {
    /// The endpoint listens on another port than the frontend, and nothing but masquerading changes a port.
    OtherPort,
    /// The endpoint is on this node, which has the virtual IP itself and so drops answers that come from it.
    OnThisNode,
}

impl Forwarding {
    /// All methods.
    pub const ALL: [Forwarding; 3] = [Forwarding::Masquerade, Forwarding::Direct, Forwarding::Tunnel];

    /// The word for it in an annotation.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Forwarding::Masquerade => "masquerade",
            Forwarding::Direct => "direct",
            Forwarding::Tunnel => "tunnel",
        }
    }

    /// Whether the client's and the virtual address stay in the packet, so that the endpoint's host has to answer by itself.
    #[must_use]
    pub fn keeps_addresses(self) -> bool {
        self != Forwarding::Masquerade
    }

    /// Which of these endpoints cannot be reached like this through a frontend of this port, and why. One is enough to have
    /// the whole frontend masqueraded: whether packets are marked for it is decided by frontend.
    pub(crate) fn obstacle(
        self,
        port: u16,
        endpoints: &[ChosenEndpoint],
    ) -> Option<(SocketAddr, ForwardingObstacle)> {
        if !self.keeps_addresses() {
            return None;
        }
        endpoints.iter().find_map(|endpoint| {
            let obstacle = if endpoint.port != port {
                ForwardingObstacle::OtherPort
            } else if endpoint.is_local {
                ForwardingObstacle::OnThisNode
            } else {
                return None;
            };
            Some((SocketAddr::new(endpoint.address, endpoint.port), obstacle))
        })
    }
}

impl FromStr for Forwarding {
    type Err = UnknownForwarding;

    fn from_str(text: &str) -> Result<Self, UnknownForwarding> {
        let mut all = Self::ALL.into_iter();
        all.find(|method| method.as_str() == text)
            .ok_or(UnknownForwarding)
    }
}

/// A word that names no way of forwarding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("must be masquerade, direct or tunnel")]
pub struct UnknownForwarding;

impl fmt::Display for Forwarding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Display for ForwardingObstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ForwardingObstacle::OtherPort => "listens on another port",
            ForwardingObstacle::OnThisNode => "is on this node",
        })
    }
}
