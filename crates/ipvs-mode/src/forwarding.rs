//! Forwarding methods: how packets get from this node to an endpoint.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

use kernlink_services::ChosenEndpoint;

/// How packets of a frontend get to its endpoints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Forwarding {
    /// Addresses and ports are rewritten; replies pass this node. Works with every endpoint.
    #[doc(alias = "-m")]
    #[default]
    Masquerade,
    /// The packet goes to the host of the endpoint unchanged.
    #[doc(alias = "-g")]
    #[doc(alias = "DSR")]
    Direct,
    /// The packet goes to the host of the endpoint unchanged, inside another packet (IP in IP).
    #[doc(alias = "-i")]
    #[doc(alias = "IPIP")]
    Tunnel,
}

/// Why direct routing or a tunnel is not used, although it is configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum ForwardingObstacle {
    /// The endpoint listens on a different port than the frontend; only masquerading changes a port.
    OtherPort,
    /// The endpoint is on this node. The node has the virtual IP itself and drops replies that come from it.
    OnThisNode,
}

impl Forwarding {
    /// All methods.
    pub const ALL: &[Forwarding] = &[Forwarding::Masquerade, Forwarding::Direct, Forwarding::Tunnel];

    /// The value of the annotation.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Forwarding::Masquerade => "masquerade",
            Forwarding::Direct => "direct",
            Forwarding::Tunnel => "tunnel",
        }
    }

    /// Whether the packet keeps the client address and the virtual IP, so that the host of the endpoint replies to the client directly.
    #[must_use]
    pub fn keeps_addresses(self) -> bool {
        self != Forwarding::Masquerade
    }

    /// The first of these endpoints that a frontend with this port cannot reach by this method, and why. One such endpoint is enough for
    /// the whole frontend to be masqueraded: the rules decide by frontend whether packets are masqueraded.
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
        let mut all = Self::ALL.iter().copied();
        all.find(|method| method.as_str() == text)
            .ok_or(UnknownForwarding)
    }
}

/// A text that is not the name of a forwarding method.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown forwarding method; known: masquerade, direct, tunnel")]
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
