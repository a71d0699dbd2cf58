//! `-m addrtype`: the type of an address in the routing tables.

use std::fmt;
use std::str::FromStr;

use crate::condition::Condition;
use crate::error::Error;
use crate::wire::options::{Options, set_once};
use crate::wire::render::Printer;

/// Types of the source and destination address. At least one test is required.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Addrtype {
    /// `--src-type`
    pub source: Option<Condition<AddressTypes>>,
    /// `--dst-type`
    pub destination: Option<Condition<AddressTypes>>,
    /// `--limit-iface-in`, `--limit-iface-out`: only addresses of one interface are considered.
    pub limit_interface: Option<LimitInterface>,
}

/// The interface whose addresses are considered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LimitInterface {
    /// The incoming interface.
    In,
    /// The outgoing interface.
    Out,
}

/// A set of [`AddressType`]s, not empty.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AddressTypes(u16);

/// Type of an address. The number is its bit in `xt_addrtype_info_v1`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u16)]
#[doc(alias = "XT_ADDRTYPE_LOCAL")]
pub enum AddressType {
    /// Not specified (0.0.0.0).
    Unspec = 1 << 0,
    /// Unicast.
    Unicast = 1 << 1,
    /// An address of this host.
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
    /// A throw route: the lookup continues in another routing table.
    Throw = 1 << 9,
    /// A NAT route.
    Nat = 1 << 10,
    /// Resolved by an external process.
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
    /// A set of types.
    pub fn new(kinds: impl IntoIterator<Item = AddressType>) -> Self {
        AddressTypes(kinds.into_iter().fold(0, |bits, kind| bits | kind as u16))
    }

    /// Whether `kind` is in the set.
    #[must_use]
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
                .ok_or_else(|| Error::invalid("address type", text, "expected UNSPEC, UNICAST, LOCAL, BROADCAST, ANYCAST, MULTICAST, BLACKHOLE, UNREACHABLE, PROHIBIT, THROW, NAT or XRESOLVE, separated by commas"))?;
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
                "--src-type" => set_once(&mut addrtype.source, flag.condition(options.value()?))?,
                "--dst-type" => set_once(&mut addrtype.destination, flag.condition(options.value()?))?,
                "--limit-iface-in" => {
                    flag.not_negated()?;
                    set_once(&mut addrtype.limit_interface, LimitInterface::In)?;
                }
                "--limit-iface-out" => {
                    flag.not_negated()?;
                    set_once(&mut addrtype.limit_interface, LimitInterface::Out)?;
                }
                _ => {
                    options.put_back(&flag);
                    break;
                }
            }
        }
        Some(addrtype)
    }

    pub(super) fn print(&self, out: &mut Printer<'_>) {
        out.literal("-m addrtype");
        out.test("--src-type", &self.source);
        out.test("--dst-type", &self.destination);
        match self.limit_interface {
            Some(LimitInterface::In) => out.literal("--limit-iface-in"),
            Some(LimitInterface::Out) => out.literal("--limit-iface-out"),
            None => {}
        }
    }
}
