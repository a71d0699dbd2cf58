//! Set types and their dimensions.

use std::fmt;
use std::str::FromStr;

use crate::name::TypeName;
use crate::set_family::SetFamily;

/// The type of a set: the method of storage and the dimensions of the entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum SetType {
    /// `bitmap:ip`: IPv4 addresses, or blocks of one size, from one range.
    BitmapIp,
    /// `bitmap:ip,mac`: IPv4 addresses from one range, each with its Ethernet address.
    BitmapIpMac,
    /// `bitmap:port`: port numbers from one range.
    BitmapPort,
    /// `hash:ip`: addresses, or blocks of one size.
    HashIp,
    /// `hash:mac`: Ethernet addresses.
    HashMac,
    /// `hash:ip,mac`: an address with an Ethernet address.
    HashIpMac,
    /// `hash:ip,mark`: an address with a packet mark.
    HashIpMark,
    /// `hash:ip,port`: an address with protocol and port.
    HashIpPort,
    /// `hash:ip,port,ip`: an address, protocol and port, and a second address.
    HashIpPortIp,
    /// `hash:ip,port,net`: an address, protocol and port, and a network.
    HashIpPortNet,
    /// `hash:net`: networks.
    HashNet,
    /// `hash:net,net`: a pair of networks.
    HashNetNet,
    /// `hash:net,port`: a network with protocol and port.
    HashNetPort,
    /// `hash:net,port,net`: a network, protocol and port, and a second network.
    HashNetPortNet,
    /// `hash:net,iface`: a network with an interface.
    HashNetIface,
    /// `list:set`: other sets, in order.
    ListSet,
    /// A type that this crate does not support. Its sets can be destroyed, flushed, renamed and swapped.
    Unknown(TypeName),
}

/// The kind of a dimension.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Dimension {
    /// An address.
    Ip,
    /// A network.
    Net,
    /// A port number; with a protocol except in `bitmap:port`.
    Port,
    /// An Ethernet address.
    Mac,
    /// A packet mark.
    Mark,
    /// An interface.
    Iface,
    /// Another set.
    Set,
}

impl SetType {
    /// All types that this crate supports.
    pub const ALL: &[SetType] = &[
        SetType::BitmapIp,
        SetType::BitmapIpMac,
        SetType::BitmapPort,
        SetType::HashIp,
        SetType::HashMac,
        SetType::HashIpMac,
        SetType::HashIpMark,
        SetType::HashIpPort,
        SetType::HashIpPortIp,
        SetType::HashIpPortNet,
        SetType::HashNet,
        SetType::HashNetNet,
        SetType::HashNetPort,
        SetType::HashNetPortNet,
        SetType::HashNetIface,
        SetType::ListSet,
    ];

    /// The kernel's name of the type.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        match self {
            SetType::Unknown(name) => name.as_bytes(),
            known => known.known_name().as_bytes(),
        }
    }

    /// The kinds of the dimensions of an entry, in order; empty for an unknown type.
    #[must_use]
    pub fn dimensions(&self) -> &'static [Dimension] {
        use Dimension::{Iface, Ip, Mac, Mark, Net, Port, Set};
        match self {
            SetType::BitmapIp | SetType::HashIp => &[Ip],
            SetType::BitmapIpMac | SetType::HashIpMac => &[Ip, Mac],
            SetType::BitmapPort => &[Port],
            SetType::HashMac => &[Mac],
            SetType::HashIpMark => &[Ip, Mark],
            SetType::HashIpPort => &[Ip, Port],
            SetType::HashIpPortIp => &[Ip, Port, Ip],
            SetType::HashIpPortNet => &[Ip, Port, Net],
            SetType::HashNet => &[Net],
            SetType::HashNetNet => &[Net, Net],
            SetType::HashNetPort => &[Net, Port],
            SetType::HashNetPortNet => &[Net, Port, Net],
            SetType::HashNetIface => &[Net, Iface],
            SetType::ListSet => &[Set],
            SetType::Unknown(_) => &[],
        }
    }

    /// The families that a set of this type can have; the first is the default of ipset(8).
    #[must_use]
    pub fn families(&self) -> &'static [SetFamily] {
        match self {
            SetType::BitmapIp | SetType::BitmapIpMac => &[SetFamily::Inet],
            SetType::BitmapPort | SetType::HashMac | SetType::ListSet => &[SetFamily::Unspecified],
            SetType::Unknown(_) => &[SetFamily::Unspecified, SetFamily::Inet, SetFamily::Inet6],
            _ => &[SetFamily::Inet, SetFamily::Inet6],
        }
    }

    /// Whether the type is a hash. All hashes have `hashsize` and `maxelem`, and the same error numbers from 4352 up.
    #[must_use]
    pub fn is_hash(&self) -> bool {
        self.known_name().starts_with("hash:")
    }

    /// Whether the type is a bitmap over a range.
    #[must_use]
    pub fn is_bitmap(&self) -> bool {
        self.known_name().starts_with("bitmap:")
    }

    pub(crate) fn known_name(&self) -> &'static str {
        match self {
            SetType::BitmapIp => "bitmap:ip",
            SetType::BitmapIpMac => "bitmap:ip,mac",
            SetType::BitmapPort => "bitmap:port",
            SetType::HashIp => "hash:ip",
            SetType::HashMac => "hash:mac",
            SetType::HashIpMac => "hash:ip,mac",
            SetType::HashIpMark => "hash:ip,mark",
            SetType::HashIpPort => "hash:ip,port",
            SetType::HashIpPortIp => "hash:ip,port,ip",
            SetType::HashIpPortNet => "hash:ip,port,net",
            SetType::HashNet => "hash:net",
            SetType::HashNetNet => "hash:net,net",
            SetType::HashNetPort => "hash:net,port",
            SetType::HashNetPortNet => "hash:net,port,net",
            SetType::HashNetIface => "hash:net,iface",
            SetType::ListSet => "list:set",
            SetType::Unknown(_) => "",
        }
    }
}

impl From<TypeName> for SetType {
    fn from(name: TypeName) -> Self {
        SetType::ALL
            .iter()
            .copied()
            .find(|known| name.as_bytes() == known.known_name().as_bytes())
            .unwrap_or(SetType::Unknown(name))
    }
}

impl fmt::Display for SetType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SetType::Unknown(name) => name.fmt(f),
            known => f.pad(known.known_name()),
        }
    }
}

impl FromStr for SetType {
    type Err = crate::name::NameError;

    /// Parses the kernel's name, or one of the old names that ipset(8) accepts: `iphash`, `nethash`, `ipporthash`,
    /// `ipportiphash`, `ipportnethash`, `setlist`, `ipmap`, `macipmap`, `portmap`.
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(match text {
            "ipmap" => SetType::BitmapIp,
            "macipmap" => SetType::BitmapIpMac,
            "portmap" => SetType::BitmapPort,
            "iphash" => SetType::HashIp,
            "nethash" => SetType::HashNet,
            "ipporthash" => SetType::HashIpPort,
            "ipportiphash" => SetType::HashIpPortIp,
            "ipportnethash" => SetType::HashIpPortNet,
            "setlist" => SetType::ListSet,
            _ => SetType::from(TypeName::new(text)?),
        })
    }
}

impl fmt::Display for Dimension {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Dimension::Ip => "ip",
            Dimension::Net => "net",
            Dimension::Port => "port",
            Dimension::Mac => "mac",
            Dimension::Mark => "mark",
            Dimension::Iface => "iface",
            Dimension::Set => "set",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_type_parses_from_its_name_and_the_name_lists_its_dimensions() {
        for &set_type in SetType::ALL {
            assert_eq!(set_type.to_string().parse(), Ok(set_type));
            assert_eq!(
                SetType::from(TypeName::from_bytes(set_type.as_bytes()).unwrap()),
                set_type
            );
            let dimensions: Vec<_> = set_type.dimensions().iter().map(Dimension::to_string).collect();
            assert_eq!(
                set_type.to_string().split_once(':').unwrap().1,
                dimensions.join(",")
            );
        }
    }

    #[test]
    fn an_unknown_type_keeps_its_name() {
        let set_type: SetType = "hash:ip,vlan".parse().unwrap();
        assert_eq!(set_type.to_string(), "hash:ip,vlan");
        assert_eq!(set_type.dimensions(), []);
    }
}
