//! Keys of addresses.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use ipnet::IpNet;

/// Identity of an address on a link: the address, its prefix length and its peer.
///
/// Ordered by address, IPv4 first. The same address may be on several links. On one link the kernel accepts
/// - an IPv6 address once, regardless of prefix length and peer;
/// - an IPv4 address several times, if the prefix lengths or the networks of the peers differ (without
///   a peer, the network of the address itself). It also compares the networks when an address is deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct AddressKey {
    address: IpAddr,
    prefix_length: u8,
    peer: Option<IpAddr>,
}

impl AddressKey {
    /// An address with a prefix length of at most 32 (IPv4) or 128 (IPv6).
    ///
    /// # Errors
    /// [`InvalidAddress`] if the prefix length is invalid, or the address is unspecified: the
    /// kernel accepts `0.0.0.0` and adds nothing.
    pub fn new(address: IpAddr, prefix_length: u8) -> Result<Self, InvalidAddress> {
        let refuse = |reason| {
            Err(InvalidAddress {
                text: format!("{address}/{prefix_length}").into(),
                reason,
            })
        };
        if prefix_length > host_prefix_length(address) {
            return refuse("the prefix length exceeds the address length");
        }
        if address.is_unspecified() {
            return refuse("the address is unspecified");
        }
        Ok(AddressKey {
            address,
            prefix_length,
            peer: None,
        })
    }

    /// Sets the peer, the address at the other end of the link. The prefix length then belongs to the peer. As
    /// `ip address add ADDRESS peer PEER/LENGTH`. A peer equal to the address means no peer.
    ///
    /// # Errors
    /// [`InvalidAddress`] if the peer is of the other family or unspecified.
    pub fn with_peer(self, peer: IpAddr) -> Result<Self, InvalidAddress> {
        let refuse = |reason| {
            Err(InvalidAddress {
                text: format!("{} peer {peer}/{}", self.address, self.prefix_length).into(),
                reason,
            })
        };
        if peer.is_ipv4() != self.address.is_ipv4() {
            return refuse("the peer is of another address family");
        }
        if peer.is_unspecified() {
            return refuse("the peer is unspecified");
        }
        Ok(AddressKey {
            peer: (peer != self.address).then_some(peer),
            ..self
        })
    }

    /// An address with prefix length 32 (IPv4) or 128 (IPv6).
    ///
    /// # Errors
    /// [`InvalidAddress`] for the unspecified address.
    pub fn host(address: IpAddr) -> Result<Self, InvalidAddress> {
        Self::new(address, host_prefix_length(address))
    }

    /// A key from the kernel, without checks.
    pub(crate) fn from_kernel(address: IpAddr, prefix_length: u8, remote: Option<IpAddr>) -> Self {
        AddressKey {
            address,
            prefix_length,
            peer: remote.filter(|remote| *remote != address),
        }
    }

    /// The address.
    #[must_use]
    pub fn address(&self) -> IpAddr {
        self.address
    }

    /// Length of the network prefix in bits: of the peer if there is one, otherwise of the address.
    #[must_use]
    pub fn prefix_length(&self) -> u8 {
        self.prefix_length
    }

    /// The address at the other end of a point-to-point link; `None` without a peer.
    #[doc(alias = "IFA_ADDRESS")]
    #[must_use]
    pub fn peer(&self) -> Option<IpAddr> {
        self.peer
    }

    /// The address that the prefix length belongs to (`IFA_ADDRESS`): the peer, or the address itself.
    pub(crate) fn remote(&self) -> IpAddr {
        self.peer.unwrap_or(self.address)
    }

    /// The network of the prefix. `None` if the kernel sent an invalid prefix length.
    pub(crate) fn network(&self) -> Option<IpNet> {
        IpNet::new(self.remote(), self.prefix_length)
            .ok()
            .map(|net| net.trunc())
    }

    /// Whether the kernel accepts only one of the two on a link, and deletes one if the other is to be
    /// deleted
    /// ([`__inet_insert_ifa`](https://github.com/torvalds/linux/blob/v6.12/net/ipv4/devinet.c),
    /// [`ipv6_add_addr`](https://github.com/torvalds/linux/blob/v6.12/net/ipv6/addrconf.c)).
    pub(crate) fn conflicts_with(&self, other: &AddressKey) -> bool {
        self.address == other.address
            && (self.address.is_ipv6()
                || (self.prefix_length == other.prefix_length && self.network() == other.network()))
    }
}

fn host_prefix_length(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// As the argument of `ip address`: `192.0.2.1/24`, `192.0.2.1 peer 192.0.2.2/32`.
impl fmt::Display for AddressKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.peer {
            Some(peer) => write!(f, "{} peer {peer}/{}", self.address, self.prefix_length),
            None => write!(f, "{}/{}", self.address, self.prefix_length),
        }
    }
}

impl FromStr for AddressKey {
    type Err = InvalidAddress;

    /// Parses `192.0.2.1/24`, `2001:db8::1/64`, `192.0.2.1 peer 192.0.2.2/32`, or an address without a prefix length,
    /// which is then 32 or 128.
    fn from_str(text: &str) -> Result<Self, InvalidAddress> {
        if let Some((address, remote)) = text.split_once(" peer ") {
            let invalid = |reason| InvalidAddress {
                text: text.into(),
                reason,
            };
            let address: IpAddr = address
                .parse()
                .map_err(|_| invalid("it does not start with an address"))?;
            let remote: AddressKey = remote.parse()?;
            let peer = remote.address;
            if remote.peer.is_some() {
                return Err(invalid("it contains two peers"));
            }
            if peer.is_ipv4() != address.is_ipv4() {
                return Err(invalid("the peer is of another address family"));
            }
            return AddressKey::new(address, remote.prefix_length)?.with_peer(peer);
        }
        let invalid = |reason| InvalidAddress {
            text: text.into(),
            reason,
        };
        let (address, length) = match text.split_once('/') {
            Some((address, length)) => (address, Some(length)),
            None => (text, None),
        };
        let address = address
            .parse()
            .map_err(|_| invalid("it does not start with an address"))?;
        match length {
            None => Self::host(address),
            Some(length) if length.bytes().all(|byte| byte.is_ascii_digit()) => {
                let length = length
                    .parse()
                    .map_err(|_| invalid("the prefix length is not a number from 0 to 128"))?;
                Self::new(address, length)
            }
            Some(_) => Err(invalid("the prefix length is not a number from 0 to 128")),
        }
    }
}

/// A text that is not an address with prefix length, or an address that a link cannot have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid link address {text:?}: {reason}")]
pub struct InvalidAddress {
    /// The text or address.
    pub text: Box<str>,
    /// Why it is invalid.
    pub reason: &'static str,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_printed_key_is_parsed_as_the_same_key() {
        for text in [
            "192.0.2.1/32",
            "10.1.2.3/0",
            "2001:db8::1/64",
            "::ffff:1.2.3.4/128",
            "10.1.0.1 peer 10.1.0.2/32",
            "fd00::1 peer fd00::2/64",
        ] {
            assert_eq!(text.parse::<AddressKey>().unwrap().to_string(), text);
        }
        assert_eq!("192.0.2.1".parse::<AddressKey>().unwrap().prefix_length(), 32);
        assert_eq!("::1".parse::<AddressKey>().unwrap().prefix_length(), 128);
    }

    #[test]
    fn a_peer_equal_to_the_address_means_no_peer() {
        let key: AddressKey = "10.1.0.1/32".parse().unwrap();
        assert_eq!(key.with_peer(key.address()), Ok(key));
        let error = key.with_peer("fd00::1".parse().unwrap()).unwrap_err();
        assert!(error.reason.contains("another address family"), "{error}");
    }

    #[test]
    fn an_invalid_key_is_refused_with_a_reason() {
        for (text, reason) in [
            ("192.0.2.1/33", "exceeds"),
            ("2001:db8::1/129", "exceeds"),
            ("192.0.2.1/256", "not a number"),
            ("192.0.2.1/+8", "not a number"),
            ("192.0.2.1/", "not a number"),
            ("0.0.0.0/32", "unspecified"),
            ("::/128", "unspecified"),
            ("10.0.0.1 peer fd00::1/128", "another address family"),
            ("10.0.0.1 peer 0.0.0.0/32", "unspecified"),
            ("10.0.0.1 peer 10.0.0.2 peer 10.0.0.3/32", "two peers"),
            ("10.0.0.1/32 peer 10.0.0.2/32", "start with an address"),
            ("kube", "start with an address"),
            ("", "start with an address"),
        ] {
            let error = text.parse::<AddressKey>().unwrap_err();
            assert!(error.reason.contains(reason), "{text}: {error}");
        }
    }
}
