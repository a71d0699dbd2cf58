//! Frontend keys and their owners.

use std::fmt;
use std::net::{IpAddr, SocketAddr};

use kernlink_base::Family;

use super::slab::ServicePortId;
use crate::model::{Frontend, ServicePort};
use crate::source::Protocol;

/// Address, protocol and port that clients connect to. A key has exactly one owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FrontendKey {
    /// The address.
    pub address: IpAddr,
    /// The protocol.
    pub protocol: Protocol,
    /// The port; never 0.
    pub port: u16,
}

impl FrontendKey {
    /// The key of a frontend.
    #[must_use]
    pub fn of(frontend: &Frontend) -> Self {
        Self {
            address: frontend.address,
            protocol: frontend.protocol,
            port: frontend.port,
        }
    }

    /// The address family.
    #[must_use]
    pub fn family(&self) -> Family {
        Family::of(self.address)
    }
}

impl fmt::Display for FrontendKey {
    /// `10.96.0.1:443/TCP`, `[fd00::1]:443/TCP`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{}/{}",
            SocketAddr::new(self.address, self.port),
            self.protocol
        )
    }
}

/// A frontend key with the service port that owns it.
#[derive(Clone, Copy, Debug)]
pub struct ArbitratedFrontend<'a> {
    /// The key.
    pub key: FrontendKey,
    /// The id of the owner.
    pub id: ServicePortId,
    /// The service port that owns the key, with the endpoints that serve it.
    pub owner: &'a ServicePort,
}

impl<'a> ArbitratedFrontend<'a> {
    /// The frontends of the owner with this key; at least one. There are several if a Service has one address twice, for example as
    /// external IP and as load-balancer IP. They have the same policy and affinity.
    pub fn frontends(&self) -> impl Iterator<Item = &'a Frontend> + use<'a> {
        let key = self.key;
        let frontends = self.owner.frontends.iter();
        frontends.filter(move |frontend| FrontendKey::of(frontend) == key)
    }
}
