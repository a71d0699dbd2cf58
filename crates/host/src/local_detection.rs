//! How traffic from pods of this node is recognised.

use std::fmt;

use ipnet::IpNet;
use kernlink_services::Family;

/// How traffic from pods of this node is recognised; other traffic to a cluster IP is masqueraded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LocalDetection {
    /// By the network of all pods: the first one of each family. Without a network of a family, traffic of that family is not recognised.
    ClusterCidr(Vec<IpNet>),
    /// By the network of the pods of this node.
    NodeCidr,
    /// By the bridge that is the input interface.
    BridgeInterface(InterfaceName),
    /// By the first characters of the name of the input interface: at most 14 bytes.
    InterfacePrefix(InterfaceName),
}

/// What packets from pods of this node have in common, in one family.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LocalSource<'a> {
    /// Their source address is in this network.
    Network(IpNet),
    /// They arrive on this interface.
    Interface(&'a InterfaceName),
    /// They arrive on an interface whose name begins with this.
    InterfacePrefix(&'a InterfaceName),
}

impl LocalDetection {
    /// By the prefix of the name of the input interface.
    ///
    /// # Errors
    /// If no interface name can begin with `prefix`, or if it is longer than 14 bytes.
    pub fn interface_prefix(prefix: &str) -> Result<Self, InvalidInterface> {
        InterfaceName::check(prefix, InterfaceName::LIMIT - 1).map(LocalDetection::InterfacePrefix)
    }

    /// By the bridge that is the input interface.
    ///
    /// # Errors
    /// If no interface can have this name.
    pub fn bridge_interface(name: &str) -> Result<Self, InvalidInterface> {
        InterfaceName::new(name).map(LocalDetection::BridgeInterface)
    }

    /// What packets from pods of this node have in common. `pod_cidr` is the network of the pods of this node in the family. `None` if they
    /// cannot be recognised in the family.
    #[must_use]
    pub fn source(&self, family: Family, pod_cidr: Option<IpNet>) -> Option<LocalSource<'_>> {
        let network = |net: IpNet| LocalSource::Network(net.trunc());
        match self {
            LocalDetection::ClusterCidr(nets) => {
                let mut nets = nets.iter().copied();
                nets.find(|net| Family::of(net.addr()) == family).map(network)
            }
            LocalDetection::NodeCidr => pod_cidr.map(network),
            LocalDetection::BridgeInterface(name) => Some(LocalSource::Interface(name)),
            LocalDetection::InterfacePrefix(prefix) => Some(LocalSource::InterfacePrefix(prefix)),
        }
    }
}

/// The name of a network interface, or the beginning of one.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InterfaceName(Box<str>);

impl InterfaceName {
    /// The most bytes of a name: `IFNAMSIZ` less the closing NUL.
    pub const LIMIT: usize = 15;

    /// Checks a name.
    ///
    /// # Errors
    /// [`InvalidInterface`] if it has no or more than 15 bytes, is `!`, begins with `-`, or contains white space, a control character, `/` or
    /// a double quote.
    pub fn new(name: &str) -> Result<Self, InvalidInterface> {
        Self::check(name, Self::LIMIT)
    }

    fn check(name: &str, limit: usize) -> Result<Self, InvalidInterface> {
        let is_invalid = |c: char| c.is_whitespace() || c.is_control() || c == '/' || c == '"';
        let is_valid = !name.is_empty()
            && name.len() <= limit
            && name != "!"
            && !name.starts_with('-')
            && !name.contains(is_invalid);
        if is_valid {
            Ok(Self(name.into()))
        } else {
            Err(InvalidInterface {
                name: name.into(),
                limit,
            })
        }
    }

    /// The name.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for InterfaceName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A name that no interface has, or a prefix that no name begins with.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid interface `{}`; valid: 1 to {limit} bytes without white space, control characters, `/` and double quotes, not `!`, and not \
     beginning with `-`",
    name.escape_debug()
)]
#[non_exhaustive]
pub struct InvalidInterface {
    /// The name.
    pub name: Box<str>,
    /// The most bytes that are valid.
    pub limit: usize,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_invalid_interface_is_refused_with_what_is_valid() {
        for name in ["", "!", "-i", "a b", "a/b", "a\"b", "a\nb", "sixteen-bytes-xx"] {
            assert!(LocalDetection::bridge_interface(name).is_err(), "{name}");
        }
        assert!(LocalDetection::bridge_interface("fifteen-bytes-x").is_ok());
        assert!(LocalDetection::interface_prefix("fourteen-bytes").is_ok());
        let error = LocalDetection::interface_prefix("fifteen-bytes-x").unwrap_err();
        assert_eq!(
            error.to_string(),
            "invalid interface `fifteen-bytes-x`; valid: 1 to 14 bytes without white space, control characters, `/` and double quotes, not \
             `!`, and not beginning with `-`"
        );
    }

    #[test]
    fn the_network_of_a_family_is_the_first_one() {
        let nets = ["fd00::1/64", "10.244.1.2/16", "10.245.0.0/16"].map(|net| net.parse().unwrap());
        let detection = LocalDetection::ClusterCidr(nets.into());
        let of = |family| detection.source(family, None);
        let network = |net: &str| Some(LocalSource::Network(net.parse().unwrap()));
        assert_eq!(of(Family::Ipv4), network("10.244.0.0/16"));
        assert_eq!(of(Family::Ipv6), network("fd00::/64"));
        assert_eq!(LocalDetection::NodeCidr.source(Family::Ipv4, None), None);
    }
}
