//! `-m conntrack` and `-m state`: the connection-tracking entry of the packet.

use std::fmt;
use std::str::FromStr;

use crate::condition::Condition;
use crate::error::Error;
use crate::network::{Network, PortRange};
use crate::protocol::Protocol;
use crate::wire::options::{Options, decimal, set_once};
use crate::wire::render::Printer;

/// Properties of the flow that a packet belongs to. At least one test is required.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ConntrackMatch {
    /// `--ctstate`
    pub state: Option<Condition<ConntrackStates>>,
    /// `--ctproto`: protocol of the flow.
    pub protocol: Option<Condition<Protocol>>,
    /// `--ctorigsrc`: source in the original direction.
    pub original_source: Option<Condition<Network>>,
    /// `--ctorigdst`: destination in the original direction.
    pub original_destination: Option<Condition<Network>>,
    /// `--ctreplsrc`: source in the reply direction.
    pub reply_source: Option<Condition<Network>>,
    /// `--ctrepldst`: destination in the reply direction.
    pub reply_destination: Option<Condition<Network>>,
    /// `--ctorigsrcport`
    pub original_source_ports: Option<Condition<PortRange>>,
    /// `--ctorigdstport`
    pub original_destination_ports: Option<Condition<PortRange>>,
    /// `--ctreplsrcport`
    pub reply_source_ports: Option<Condition<PortRange>>,
    /// `--ctrepldstport`
    pub reply_destination_ports: Option<Condition<PortRange>>,
    /// `--ctstatus`
    pub status: Option<Condition<ConntrackStatuses>>,
    /// `--ctexpire`: remaining lifetime of the flow.
    pub expire: Option<Condition<Expiry>>,
    /// `--ctdir`: direction of the packet in the flow.
    pub direction: Option<Direction>,
}

/// Remaining lifetime of a flow: an inclusive range of seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Expiry {
    /// Minimum in seconds.
    pub first: u32,
    /// Maximum in seconds; equal to `first` for a single value.
    pub last: u32,
}

impl fmt::Display for Expiry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last {
            write!(f, "{}", self.first)
        } else {
            write!(f, "{}:{}", self.first, self.last)
        }
    }
}

impl FromStr for Expiry {
    type Err = Error;

    /// `5`, `5:9`, `5:` or `:9`.
    fn from_str(text: &str) -> Result<Self, Error> {
        let (first, last) = text.split_once(':').unwrap_or((text, text));
        let range = text.contains(':');
        let first = if range && first.is_empty() {
            Some(0)
        } else {
            decimal(first)
        };
        let last = if range && last.is_empty() {
            Some(u32::MAX)
        } else {
            decimal(last)
        };
        let expiry = first.zip(last).filter(|(first, last)| first <= last);
        expiry
            .map(|(first, last)| Expiry { first, last })
            .ok_or_else(|| Error::invalid("ctexpire", text, "expected SECONDS or FIRST:LAST"))
    }
}

/// Direction of a packet in its flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Direction {
    /// The direction of the first packet.
    Original,
    /// The opposite direction.
    Reply,
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Direction::Original => "ORIGINAL",
            Direction::Reply => "REPLY",
        })
    }
}

impl FromStr for Direction {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        if text.eq_ignore_ascii_case("ORIGINAL") {
            Ok(Direction::Original)
        } else if text.eq_ignore_ascii_case("REPLY") {
            Ok(Direction::Reply)
        } else {
            Err(Error::invalid("direction", text, "expected ORIGINAL or REPLY"))
        }
    }
}

macro_rules! names {
    (
        $(#[$set_doc:meta])* $set:ident, $(#[$doc:meta])* $one:ident, $field:literal;
        $($(#[$variant_doc:meta])* $variant:ident = $name:literal,)*
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum $one {
            $($(#[$variant_doc])* $variant,)*
        }

        impl $one {
            const ALL: &[($one, &str)] = &[$(($one::$variant, $name),)*];

            fn position(self) -> u8 {
                // There are fewer than 16 variants.
                self as u8
            }
        }

        $(#[$set_doc])*
        ///
        /// Keeps the given order; the normal form has the order of the tools.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
        pub struct $set {
            // Positions of the names plus one, four bits each, the first in the lowest bits.
            order: u32,
        }

        impl $set {
            /// A set in the given order, without duplicates.
            pub fn new(names: impl IntoIterator<Item = $one>) -> Self {
                let mut set = $set::default();
                for name in names {
                    set.insert(name);
                }
                set
            }

            fn insert(&mut self, name: $one) -> bool {
                let absent = !self.contains(name);
                if absent {
                    let place = (32 - self.order.leading_zeros()).div_ceil(4) * 4;
                    self.order |= u32::from(name.position() + 1) << place;
                }
                absent
            }

            /// Whether the set contains `name`.
            pub fn contains(self, name: $one) -> bool {
                self.iter().any(|known| known == name)
            }

            /// The elements in order.
            pub fn iter(self) -> impl Iterator<Item = $one> {
                (0..8).filter_map(move |place| {
                    let position = (self.order >> (place * 4)) & 0xf;
                    let position = usize::try_from(position).ok()?.checked_sub(1)?;
                    $one::ALL.get(position).map(|(name, _)| *name)
                })
            }

            pub(super) fn normal_form(self) -> Self {
                $set::new($one::ALL.iter().map(|(name, _)| *name).filter(|name| self.contains(*name)))
            }
        }

        impl fmt::Display for $set {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                let mut separator = "";
                for one in self.iter() {
                    let name = $one::ALL.iter().find(|(known, _)| *known == one).map_or("", |(_, name)| name);
                    write!(f, "{separator}{name}")?;
                    separator = ",";
                }
                Ok(())
            }
        }

        impl FromStr for $set {
            type Err = Error;

            fn from_str(text: &str) -> Result<Self, Error> {
                let mut set = $set::default();
                for word in text.split(',') {
                    let known = $one::ALL.iter().find(|(_, name)| name.eq_ignore_ascii_case(word));
                    if !known.is_some_and(|(name, _)| set.insert(*name)) {
                        return Err(Error::invalid($field, text, "unknown or repeated name"));
                    }
                }
                Ok(set)
            }
        }
    };
}

names! {
    /// A set of states; the flow must be in one of them.
    ConntrackStates,
    /// State of a flow, in the order in which `iptables-save` prints them.
    ConntrackState, "ctstate";
    /// The packet belongs to no flow that can be tracked.
    Invalid = "INVALID",
    /// First packet of a flow.
    New = "NEW",
    /// First packet of a flow that another flow expected, or an ICMP error of a flow.
    Related = "RELATED",
    /// Packet of a flow seen in both directions.
    Established = "ESTABLISHED",
    /// Not tracked.
    Untracked = "UNTRACKED",
    /// Source translated.
    Snat = "SNAT",
    /// Destination translated.
    Dnat = "DNAT",
}

names! {
    /// A set of status flags; the flow must have one of them.
    ConntrackStatuses,
    /// Status flag of a flow, in the order in which `iptables-save` prints them.
    ConntrackStatus, "ctstatus";
    /// Expected by another flow.
    Expected = "EXPECTED",
    /// A reply was seen.
    SeenReply = "SEEN_REPLY",
    /// Not evicted early when the table is full.
    Assured = "ASSURED",
    /// The first packet has left the host.
    Confirmed = "CONFIRMED",
    /// No flag is set.
    None = "NONE",
}

impl ConntrackMatch {
    pub(super) fn read(options: &mut Options<'_, '_>) -> Option<Self> {
        let mut ct = ConntrackMatch::default();
        while let Some(flag) = options.flag() {
            match flag.name {
                "--ctstate" => set_once(&mut ct.state, flag.condition(options.value()?))?,
                "--ctproto" => set_once(&mut ct.protocol, flag.condition(options.value()?))?,
                "--ctorigsrc" => set_once(&mut ct.original_source, flag.condition(options.value()?))?,
                "--ctorigdst" => set_once(&mut ct.original_destination, flag.condition(options.value()?))?,
                "--ctreplsrc" => set_once(&mut ct.reply_source, flag.condition(options.value()?))?,
                "--ctrepldst" => set_once(&mut ct.reply_destination, flag.condition(options.value()?))?,
                "--ctorigsrcport" => {
                    set_once(&mut ct.original_source_ports, flag.condition(options.value()?))?
                }
                "--ctorigdstport" => set_once(
                    &mut ct.original_destination_ports,
                    flag.condition(options.value()?),
                )?,
                "--ctreplsrcport" => set_once(&mut ct.reply_source_ports, flag.condition(options.value()?))?,
                "--ctrepldstport" => {
                    set_once(&mut ct.reply_destination_ports, flag.condition(options.value()?))?
                }
                "--ctstatus" => set_once(&mut ct.status, flag.condition(options.value()?))?,
                "--ctexpire" => set_once(&mut ct.expire, flag.condition(options.value()?))?,
                "--ctdir" => {
                    flag.not_negated()?;
                    set_once(&mut ct.direction, options.value()?)?;
                }
                _ => {
                    options.put_back(&flag);
                    break;
                }
            }
        }
        Some(ct)
    }

    pub(super) fn print(&self, out: &mut Printer<'_>) {
        out.literal("-m conntrack");
        out.test("--ctstate", &self.state);
        out.test("--ctproto", &self.protocol);
        out.test("--ctorigsrc", &self.original_source);
        out.test("--ctorigdst", &self.original_destination);
        out.test("--ctreplsrc", &self.reply_source);
        out.test("--ctrepldst", &self.reply_destination);
        out.test("--ctorigsrcport", &self.original_source_ports);
        out.test("--ctorigdstport", &self.original_destination_ports);
        out.test("--ctreplsrcport", &self.reply_source_ports);
        out.test("--ctrepldstport", &self.reply_destination_ports);
        out.test("--ctstatus", &self.status);
        out.test("--ctexpire", &self.expire);
        out.option("--ctdir", &self.direction);
    }

    /// Lists in the order of the tools, the protocol as a number, single hosts without a mask.
    pub(super) fn normal_form(&self) -> Self {
        let network = |test: Option<Condition<Network>>| test.map(|test| test.map(Network::with_short_mask));
        ConntrackMatch {
            state: self.state.map(|test| test.map(ConntrackStates::normal_form)),
            protocol: self
                .protocol
                .map(|test| test.map(|protocol| Protocol::Number(protocol.number()))),
            original_source: network(self.original_source),
            original_destination: network(self.original_destination),
            reply_source: network(self.reply_source),
            reply_destination: network(self.reply_destination),
            status: self.status.map(|test| test.map(ConntrackStatuses::normal_form)),
            ..self.clone()
        }
    }
}

/// States of `-m state`: INVALID, NEW, RELATED, ESTABLISHED, UNTRACKED.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct StateMatch {
    /// The flow must be in one of these states.
    pub states: ConntrackStates,
}

impl StateMatch {
    pub(super) fn read(options: &mut Options<'_, '_>) -> Option<Condition<Self>> {
        let flag = options.flag()?;
        (flag.name == "--state").then_some(())?;
        Some(flag.condition(StateMatch {
            states: options.value()?,
        }))
    }

    pub(super) fn print(test: &Condition<Self>, out: &mut Printer<'_>) {
        out.literal("-m state");
        out.required("--state", test, |out, test| out.value(test.states));
    }

    pub(super) fn normal_form(self) -> Self {
        StateMatch {
            states: self.states.normal_form(),
        }
    }
}
