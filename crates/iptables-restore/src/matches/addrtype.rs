//! `-m addrtype`: what kind of address the routing tables say it is.

use std::fmt;
use std::str::FromStr;

use crate::condition::Condition;
use crate::error::Error;
use crate::wire::options::{Options, once};
use crate::wire::render::Printer;

/// Kinds of the source and destination address. At least one test is needed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Addrtype {
    /// `--src-type`
    pub source: Option<Condition<AddressTypes>>,
    /// `--dst-type`
    pub destination: Option<Condition<AddressTypes>>,
    /// `--limit-iface-in`, `--limit-iface-out`: look only at the addresses of one interface.
    pub limit_interface: Option<LimitInterface>,
}

/// The interface whose addresses count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LimitInterface {
    /// The one the packet came in by.
    In,
    /// The one the packet leaves by.
    Out,
}

/// A set of [`AddressType`]s, not empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AddressTypes(u16);

/// Kind of an address. The number is its bit in `xt_addrtype_info_v1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
#[doc(alias = "XT_ADDRTYPE_LOCAL")]
pub enum AddressType {
    /// Not specified (0.0.0.0).
    Unspec = 1 << 0,
    /// Reached by a route.
    Unicast = 1 << 1,
    /// One of this host.
    Local = 1 << 2,
    /// Broadcast.
    Broadcast = 1 << 3,
    /// Anycast.
    Anycast = 1 << 4,
    /// Multicast.
    Multicast = 1 << 5,
    /// Black hole route.
    Blackhole = 1 << 6,
    /// Unreachable.
    Unreachable = 1 << 7,
    /// Prohibited.
    Prohibit = 1 << 8,
    /// Handed to another routing table.
    Throw = 1 << 9,
    /// Translated by a route.
    Nat = 1 << 10,
    /// Resolved by a process.
    Xresolve = 1 << 11,
}

const TYPES: [(AddressType, &str); 12] = [
    (AddressType::Unspec, "UNSPEC"),
    (AddressType::Unicast, "UNICAST"),
    (AddressType::Local, "LOCAL"),
    (AddressType::Broadcast, "BROADCAST"),
    (AddressType::Anycast, "ANYCAST"),
    (AddressType::Multicast, "MULTICAST"),
    (AddressType::Blackhole, "BLACKHOLE"),
    (AddressType::Unreachable, "UNREACHABLE"),
    (AddressType::Prohibit, "PROHIBIT"),
    (AddressType::Throw, "THROW"),
    (AddressType::Nat, "NAT"),
    (AddressType::Xresolve, "XRESOLVE"),
];

impl AddressTypes {
    /// These kinds.
    pub fn new(kinds: impl IntoIterator<Item = AddressType>) -> Self {
        AddressTypes(kinds.into_iter().fold(0, |bits, kind| bits | kind as u16))
    }

    /// Whether `kind` is in the set.
    pub fn contains(self, kind: AddressType) -> bool {
        self.0 & kind as u16 != 0
    }
}

impl fmt::Display for AddressTypes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut separator = "";
        for (kind, name) in TYPES {
            if self.contains(kind) {
                write!(f, "{separator}{name}")?;
                separator = ",";
            }
        }
        Ok(())
    }
}

impl FromStr for AddressTypes {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let mut types = AddressTypes(0);
        for word in text.split(',') {
            let known = TYPES.iter().find(|(_, name)| name.eq_ignore_ascii_case(word));
            let (kind, _) = known
                .ok_or_else(|| Error::invalid("address type", text, "names a kind that there is not"))?;
            types.0 |= *kind as u16;
        }
        Ok(types)
    }
}

impl Addrtype {
    pub(super) fn read(options: &mut Options<'_, '_>) -> Option<Self> {
        let mut addrtype = Addrtype::default();
        while let Some(flag) = options.flag() {
            match flag.name {
                "--src-type" => once(&mut addrtype.source, flag.sign(options.value()?))?,
                "--dst-type" => once(&mut addrtype.destination, flag.sign(options.value()?))?,
                "--limit-iface-in" => {
                    flag.plain()?;
                    once(&mut addrtype.limit_interface, LimitInterface::In)?;
                }
                "--limit-iface-out" => {
                    flag.plain()?;
                    once(&mut addrtype.limit_interface, LimitInterface::Out)?;
                }
                _ => {
                    options.give_back(&flag);
                    break;
                }
            }
        }
        Some(addrtype)
    }

    pub(super) fn print(&self, out: &mut Printer<'_>) {
        out.word("-m addrtype");
        out.test("--src-type", &self.source);
        out.test("--dst-type", &self.destination);
        match self.limit_interface {
            Some(LimitInterface::In) => out.word("--limit-iface-in"),
            Some(LimitInterface::Out) => out.word("--limit-iface-out"),
            None => {}
        }
    }
}
