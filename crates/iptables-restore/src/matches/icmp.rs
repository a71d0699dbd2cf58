//! `-m icmp` and `-m icmp6`: type and code.

use std::fmt;

use crate::condition::Condition;
use crate::options::{Options, decimal};
use crate::render::Printer;

/// Type of a message, and its code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IcmpType {
    /// Every message (ICMP only).
    Any,
    /// This type, with any code.
    Type(u8),
    /// This type with this code.
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

/// Names the tools take, with the values they print for them.
///
/// Source: `icmp_codes` and `icmpv6_codes` in `libxtables/xtoptions.c`, iptables 1.8.9.
const ICMP_NAMES: [(&str, IcmpType); 13] = [
    ("any", IcmpType::Any),
    ("echo-reply", IcmpType::Type(0)),
    ("pong", IcmpType::Type(0)),
    ("destination-unreachable", IcmpType::Type(3)),
    ("fragmentation-needed", IcmpType::TypeCode(3, 4)),
    ("source-quench", IcmpType::Type(4)),
    ("redirect", IcmpType::Type(5)),
    ("echo-request", IcmpType::Type(8)),
    ("ping", IcmpType::Type(8)),
    ("router-advertisement", IcmpType::Type(9)),
    ("router-solicitation", IcmpType::Type(10)),
    ("time-exceeded", IcmpType::Type(11)),
    ("parameter-problem", IcmpType::Type(12)),
];

const ICMPV6_NAMES: [(&str, IcmpType); 14] = [
    ("destination-unreachable", IcmpType::Type(1)),
    ("packet-too-big", IcmpType::Type(2)),
    ("time-exceeded", IcmpType::Type(3)),
    ("parameter-problem", IcmpType::Type(4)),
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
];

fn read(text: &str, names: &[(&str, IcmpType)]) -> Option<IcmpType> {
    if let Some((_, known)) = names.iter().find(|(name, _)| *name == text) {
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
            /// Type and code looked for.
            pub kind: IcmpType,
        }

        impl $name {
            pub(super) fn read(options: &mut Options<'_, '_>) -> Option<Condition<Self>> {
                let flag = options.flag()?;
                (flag.name == $option).then_some(())?;
                Some(flag.sign($name { kind: read(options.next()?, &$names)? }))
            }

            pub(super) fn print(test: &Condition<Self>, out: &mut Printer<'_>) {
                out.word($module);
                out.required($option, test, |out, test| out.value(test.kind));
            }
        }
    };
}

icmp_match! {
    /// A message of ICMP.
    IcmpMatch, "-m icmp", "--icmp-type", ICMP_NAMES
}

icmp_match! {
    /// A message of ICMPv6.
    Icmpv6Match, "-m icmp6", "--icmpv6-type", ICMPV6_NAMES
}
