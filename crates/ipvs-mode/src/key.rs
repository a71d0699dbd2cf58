//! The identity of a kernel object of IPVS mode of any kind.

use std::fmt;
use std::net::IpAddr;

use kernlink_dummylink::{AddressKey, LinkName};
use kernlink_engine::data_path::Class;
use kernlink_ipset::Entry;
use kernlink_ipvs::{RealServerKey, VirtualServerKey};
use kernlink_services::Family;

use super::drain;
use super::sets::SetId;

/// A kernel object of IPVS mode.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Key {
    /// A sysctl, by name.
    Sysctl(Box<str>),
    /// The IPVS timeouts.
    Timeouts,
    /// A dummy link.
    Link(LinkName),
    /// A set.
    Set(Family, SetId),
    /// The temporary set that a process left which ended while it replaced a set.
    TemporarySet(Family, SetId),
    /// An entry of a set.
    Entry(Family, SetId, Entry),
    /// The chains of a family.
    Rules(Family),
    /// A jump from a built-in chain to one of the chains of a family, by its position in [`jumps`](super::rules::jumps).
    Jump(Family, usize),
    /// A virtual server.
    VirtualServer(VirtualServerKey),
    /// A real server of a virtual server.
    RealServer(VirtualServerKey, RealServerKey),
    /// The set of the deadlines of a family, `KERNLINK-DRAIN`.
    DrainSet(Family),
    /// The deadline of the draining real servers of a virtual server at an address.
    Deadline(VirtualServerKey, IpAddr),
    /// An address of the dummy link.
    Address(AddressKey),
    /// The UDP flows of a family to owned frontends, in connection tracking.
    Flows(Family),
}

impl Key {
    /// What the object is. kube-proxy does not count a sync as successful if the link, a set or the rules could not be written.
    pub(super) fn class(&self) -> Class {
        let of_address = |address: IpAddr| Some(Family::of(address));
        let (kind, family, is_shared) = match self {
            Key::Sysctl(_) => ("sysctl", None, false),
            Key::Timeouts => ("timeouts", None, false),
            Key::Link(_) => ("link", None, true),
            Key::Set(family, _) => ("set", Some(*family), true),
            Key::TemporarySet(family, _) => ("temporary_set", Some(*family), false),
            Key::Entry(family, ..) => ("entry", Some(*family), false),
            Key::Rules(family) => ("rules", Some(*family), true),
            Key::Jump(family, _) => ("jump", Some(*family), true),
            Key::VirtualServer(key) => ("virtual_server", key.address().and_then(of_address), false),
            Key::RealServer(key, _) => ("real_server", key.address().and_then(of_address), false),
            Key::DrainSet(family) => ("drain_set", Some(*family), false),
            Key::Deadline(_, address) => ("deadline", of_address(*address), false),
            Key::Address(key) => ("address", of_address(key.address()), false),
            Key::Flows(family) => ("flows", Some(*family), false),
        };
        Class {
            kind,
            family,
            is_shared,
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Key::Sysctl(name) => write!(f, "sysctl {name}"),
            Key::Timeouts => f.write_str("IPVS timeouts"),
            Key::Link(name) => write!(f, "link {name}"),
            Key::Set(family, set) => write!(f, "set {}", set.text(*family)),
            Key::TemporarySet(family, set) => write!(f, "temporary set of {}", set.text(*family)),
            Key::Entry(family, set, entry) => write!(f, "entry {entry} of set {}", set.text(*family)),
            Key::Rules(family) => write!(f, "{family} rules"),
            Key::Jump(family, position) => write!(f, "{family} jump {position}"),
            Key::VirtualServer(key) => write!(f, "virtual server {key}"),
            Key::RealServer(server, key) => write!(f, "real server {key} of {server}"),
            Key::DrainSet(family) => write!(f, "set {}", drain::set_name(*family)),
            Key::Deadline(server, address) => write!(f, "deadline of {address} of {server}"),
            Key::Address(key) => write!(f, "address {key}"),
            Key::Flows(family) => write!(f, "{family} UDP flows"),
        }
    }
}
