//! `-m icmp` and `-m icmp6`: type and code.

use std::fmt;

use crate::condition::Condition;
use crate::wire::options::{Options, decimal};
use crate::wire::render::Printer;

/// Type and code of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IcmpType {
    /// Any message (ICMP only).
    Any,
    /// A type with any code.
    Type(u8),
    /// A type and a code.
    TypeCode(u8, u8),
}

impl fmt::Display for IcmpType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            IcmpType::Any => f.write_str("any"),
            IcmpType::Type(kind) => write!(f, "{kind}"),
            IcmpType::TypeCode(kind, code) => write!(f, "{kind}/{code}"),
        }
    }
}

/// Names that the tools accept, with the values that they print instead.
///
/// Source: `icmp_codes` and `icmpv6_codes` in `libxtables/xtoptions.c`, iptables 1.8.9.
const ICMP_NAMES: &[(&str, IcmpType)] = &[
    ("any", IcmpType::Any),
    ("echo-reply", IcmpType::Type(0)),
    ("pong", IcmpType::Type(0)),
    ("destination-unreachable", IcmpType::Type(3)),
    ("network-unreachable", IcmpType::TypeCode(3, 0)),
    ("host-unreachable", IcmpType::TypeCode(3, 1)),
    ("protocol-unreachable", IcmpType::TypeCode(3, 2)),
    ("port-unreachable", IcmpType::TypeCode(3, 3)),
    ("fragmentation-needed", IcmpType::TypeCode(3, 4)),
    ("source-route-failed", IcmpType::TypeCode(3, 5)),
    ("network-unknown", IcmpType::TypeCode(3, 6)),
    ("host-unknown", IcmpType::TypeCode(3, 7)),
    ("network-prohibited", IcmpType::TypeCode(3, 9)),
    ("host-prohibited", IcmpType::TypeCode(3, 10)),
    ("TOS-network-unreachable", IcmpType::TypeCode(3, 11)),
    ("TOS-host-unreachable", IcmpType::TypeCode(3, 12)),
    ("communication-prohibited", IcmpType::TypeCode(3, 13)),
    ("host-precedence-violation", IcmpType::TypeCode(3, 14)),
    ("precedence-cutoff", IcmpType::TypeCode(3, 15)),
    ("source-quench", IcmpType::Type(4)),
    ("redirect", IcmpType::Type(5)),
    ("network-redirect", IcmpType::TypeCode(5, 0)),
    ("host-redirect", IcmpType::TypeCode(5, 1)),
    ("TOS-network-redirect", IcmpType::TypeCode(5, 2)),
    ("TOS-host-redirect", IcmpType::TypeCode(5, 3)),
    ("echo-request", IcmpType::Type(8)),
    ("ping", IcmpType::Type(8)),
    ("router-advertisement", IcmpType::Type(9)),
    ("router-solicitation", IcmpType::Type(10)),
    ("time-exceeded", IcmpType::Type(11)),
    ("ttl-exceeded", IcmpType::Type(11)),
    ("ttl-zero-during-transit", IcmpType::TypeCode(11, 0)),
    ("ttl-zero-during-reassembly", IcmpType::TypeCode(11, 1)),
    ("parameter-problem", IcmpType::Type(12)),
    ("ip-header-bad", IcmpType::TypeCode(12, 0)),
    ("required-option-missing", IcmpType::TypeCode(12, 1)),
    ("timestamp-request", IcmpType::Type(13)),
    ("timestamp-reply", IcmpType::Type(14)),
    ("address-mask-request", IcmpType::Type(17)),
    ("address-mask-reply", IcmpType::Type(18)),
];

const ICMPV6_NAMES: &[(&str, IcmpType)] = &[
    ("destination-unreachable", IcmpType::Type(1)),
    ("no-route", IcmpType::TypeCode(1, 0)),
    ("communication-prohibited", IcmpType::TypeCode(1, 1)),
    ("beyond-scope", IcmpType::TypeCode(1, 2)),
    ("address-unreachable", IcmpType::TypeCode(1, 3)),
    ("port-unreachable", IcmpType::TypeCode(1, 4)),
    ("failed-policy", IcmpType::TypeCode(1, 5)),
    ("reject-route", IcmpType::TypeCode(1, 6)),
    ("packet-too-big", IcmpType::Type(2)),
    ("time-exceeded", IcmpType::Type(3)),
    ("ttl-exceeded", IcmpType::Type(3)),
    ("ttl-zero-during-transit", IcmpType::TypeCode(3, 0)),
    ("ttl-zero-during-reassembly", IcmpType::TypeCode(3, 1)),
    ("parameter-problem", IcmpType::Type(4)),
    ("bad-header", IcmpType::TypeCode(4, 0)),
    ("unknown-header-type", IcmpType::TypeCode(4, 1)),
    ("unknown-option", IcmpType::TypeCode(4, 2)),
    ("echo-request", IcmpType::Type(128)),
    ("ping", IcmpType::Type(128)),
    ("echo-reply", IcmpType::Type(129)),
    ("pong", IcmpType::Type(129)),
    ("router-solicitation", IcmpType::Type(133)),
    ("router-advertisement", IcmpType::Type(134)),
    ("neighbour-solicitation", IcmpType::Type(135)),
    ("neighbor-solicitation", IcmpType::Type(135)),
    ("neighbour-advertisement", IcmpType::Type(136)),
    ("neighbor-advertisement", IcmpType::Type(136)),
    ("redirect", IcmpType::Type(137)),
];

fn read(text: &str, names: &[(&str, IcmpType)]) -> Option<IcmpType> {
    if let Some((_, known)) = names.iter().find(|(name, _)| name.eq_ignore_ascii_case(text)) {
        return Some(*known);
    }
    match text.split_once('/') {
        Some((kind, code)) => Some(IcmpType::TypeCode(decimal(kind)?, decimal(code)?)),
        None => Some(IcmpType::Type(decimal(text)?)),
    }
}

macro_rules! icmp_match {
    ($(#[$doc:meta])* $name:ident, $module:literal, $option:literal, $names:expr) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub struct $name {
            /// Type and code of the message.
            pub kind: IcmpType,
        }

        impl $name {
            pub(super) fn read(options: &mut Options<'_, '_>) -> Option<Condition<Self>> {
                let flag = options.flag()?;
                (flag.name == $option).then_some(())?;
                Some(flag.condition($name { kind: read(options.next()?, $names)? }))
            }

            pub(super) fn print(test: &Condition<Self>, out: &mut Printer<'_>) {
                out.literal($module);
                out.required($option, test, |out, test| out.value(test.kind));
            }
        }
    };
}

impl IcmpMatch {
    /// The tools store type 255 for any message.
    pub(super) fn normal_form(self) -> Self {
        match self.kind {
            IcmpType::Type(255) | IcmpType::TypeCode(255, _) => IcmpMatch { kind: IcmpType::Any },
            _ => self,
        }
    }
}

icmp_match! {
    /// An ICMP message.
    IcmpMatch, "-m icmp", "--icmp-type", ICMP_NAMES
}

icmp_match! {
    /// An ICMPv6 message.
    Icmpv6Match, "-m icmp6", "--icmpv6-type", ICMPV6_NAMES
}
