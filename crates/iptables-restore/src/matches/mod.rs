//! Matches: one type for each match of the tools.

mod addrtype;
mod conntrack;
mod hashlimit;
mod icmp;
mod ipvs;
mod limit;
mod mark;
mod multiport;
mod owner;
mod physdev;
mod recent;
mod set;
mod statistic;
mod transport;

pub use addrtype::{AddressType, AddressTypes, Addrtype, LimitInterface};
pub use conntrack::{
    ConntrackMatch, ConntrackState, ConntrackStates, ConntrackStatus, ConntrackStatuses, Direction, Expiry,
    StateMatch,
};
pub use hashlimit::{ByteUnit, Hashlimit, HashlimitBurst, HashlimitMode, HashlimitRate, HashlimitTest};
pub use icmp::{IcmpMatch, IcmpType, Icmpv6Match};
pub use ipvs::{IpvsMatch, IpvsMethod};
pub use limit::{Limit, Rate, RateUnit};
pub use mark::{ConnmarkMatch, MarkMatch};
pub use multiport::{Multiport, MultiportSide};
pub use owner::{IdRange, Owner};
pub use physdev::Physdev;
pub use recent::{Recent, RecentAction, RecentAddress};
pub use set::{Comparison, SetDirection, SetMatch, SetReference};
pub use statistic::{Probability, Statistic};
pub use transport::{SctpMatch, TcpFlag, TcpFlags, TcpFlagsTest, TcpMatch, UdpMatch};

use std::borrow::Cow;

use kernlink_base::Family;

use crate::argument::Argument;
use crate::condition::Condition;
use crate::error::Error;
use crate::network::{InterfacePattern, Network};
use crate::protocol::Protocol;
use crate::style::Style;
use crate::text::{Comment, SetName};
use crate::wire::options::Options;
use crate::wire::render::Printer;

/// A condition of a rule. The rule applies to a packet if all its matches match.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Match {
    /// `-s`: source address.
    #[doc(alias = "-s")]
    Source(Condition<Network>),
    /// `-d`: destination address.
    #[doc(alias = "-d")]
    Destination(Condition<Network>),
    /// `-i`: incoming interface.
    #[doc(alias = "-i")]
    InInterface(Condition<InterfacePattern>),
    /// `-o`: outgoing interface.
    #[doc(alias = "-o")]
    OutInterface(Condition<InterfacePattern>),
    /// `-p`: protocol.
    #[doc(alias = "-p")]
    Protocol(Condition<Protocol>),
    /// `-f`: second and further fragments (IPv4 only).
    #[doc(alias = "-f")]
    Fragment(Condition<()>),
    /// `-m comment`: a comment; matches every packet.
    Comment(Comment),
    /// `-m tcp`: ports and flags of TCP; requires `-p tcp`.
    Tcp(TcpMatch),
    /// `-m udp`: ports of UDP; requires `-p udp`.
    Udp(UdpMatch),
    /// `-m sctp`: ports of SCTP; requires `-p sctp`.
    Sctp(SctpMatch),
    /// `-m multiport`: up to 15 ports; requires a protocol with ports.
    Multiport(Condition<Multiport>),
    /// `-m set`: membership in an ipset.
    Set(Box<SetMatch>),
    /// `-m mark`: mark of the packet.
    Mark(Condition<MarkMatch>),
    /// `-m connmark`: mark of the flow.
    Connmark(Condition<ConnmarkMatch>),
    /// `-m conntrack`: state of the flow.
    Conntrack(Box<ConntrackMatch>),
    /// `-m state`: the older form of the state test.
    State(Condition<StateMatch>),
    /// `-m addrtype`: type of an address.
    Addrtype(Addrtype),
    /// `-m physdev`: port of a bridge.
    Physdev(Box<Physdev>),
    /// `-m ipvs`: properties of the IPVS connection.
    Ipvs(Box<IpvsMatch>),
    /// `-m statistic`: a fraction of the packets.
    Statistic(Condition<Statistic>),
    /// `-m limit`: a rate shared by all packets.
    Limit(Limit),
    /// `-m hashlimit`: a rate per address or port.
    Hashlimit(Box<Hashlimit>),
    /// `-m owner`: owner of the local socket.
    Owner(Owner),
    /// `-m icmp`: type and code of ICMP; requires `-p icmp`.
    Icmp(Condition<IcmpMatch>),
    /// `-m icmp6`: type and code of ICMPv6; requires `-p ipv6-icmp`.
    Icmpv6(Condition<Icmpv6Match>),
    /// `-m recent`: recently seen addresses.
    Recent(Box<Recent>),
    /// Arguments of a match without a type, as written, including `-m NAME`.
    Verbatim(Vec<Argument>),
}

impl Match {
    /// `-s network`.
    pub fn source(network: impl Into<Network>) -> Self {
        Match::Source(Condition::Is(network.into()))
    }

    /// `-d network`.
    pub fn destination(network: impl Into<Network>) -> Self {
        Match::Destination(Condition::Is(network.into()))
    }

    /// `-p protocol`.
    #[must_use]
    pub fn protocol(protocol: Protocol) -> Self {
        Match::Protocol(Condition::Is(protocol))
    }

    /// `-m comment --comment text`.
    ///
    /// # Errors
    ///
    /// As [`Comment::new`].
    pub fn comment(text: &str) -> Result<Self, Error> {
        Comment::new(text).map(Match::Comment)
    }

    /// `-m set --match-set name directions`.
    #[must_use]
    pub fn set(name: SetName, directions: &[SetDirection]) -> Self {
        Match::Set(Box::new(SetMatch::new(SetReference::new(name, directions))))
    }

    /// `-m mark --mark value/mask`; `None` for all bits.
    #[must_use]
    pub fn mark(value: u32, mask: Option<u32>) -> Self {
        Match::Mark(Condition::Is(MarkMatch { value, mask }))
    }

    /// `-m conntrack --ctstate states`.
    pub fn conntrack_states(states: impl IntoIterator<Item = ConntrackState>) -> Self {
        let state = Some(Condition::Is(ConntrackStates::new(states)));
        Match::Conntrack(Box::new(ConntrackMatch {
            state,
            ..ConntrackMatch::default()
        }))
    }

    /// `-m addrtype --dst-type kind`.
    #[must_use]
    pub fn destination_type(kind: AddressType) -> Self {
        let destination = Some(Condition::Is(AddressTypes::new([kind])));
        Match::Addrtype(Addrtype {
            destination,
            ..Addrtype::default()
        })
    }

    /// The match with its `!` added or removed. Matches of several tests are negated by their fields instead.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] for a match without a single test that can be negated.
    pub fn negated(self) -> Result<Self, Error> {
        fn negate<T>(condition: Condition<T>) -> Condition<T> {
            match condition {
                Condition::Is(value) => Condition::Not(value),
                Condition::Not(value) => Condition::Is(value),
            }
        }
        Ok(match self {
            Match::Source(test) => Match::Source(negate(test)),
            Match::Destination(test) => Match::Destination(negate(test)),
            Match::InInterface(test) => Match::InInterface(negate(test)),
            Match::OutInterface(test) => Match::OutInterface(negate(test)),
            Match::Protocol(test) => Match::Protocol(negate(test)),
            Match::Fragment(test) => Match::Fragment(negate(test)),
            Match::Multiport(test) => Match::Multiport(negate(test)),
            Match::Mark(test) => Match::Mark(negate(test)),
            Match::Connmark(test) => Match::Connmark(negate(test)),
            Match::State(test) => Match::State(negate(test)),
            Match::Statistic(test) => Match::Statistic(negate(test)),
            Match::Icmp(test) => Match::Icmp(negate(test)),
            Match::Icmpv6(test) => Match::Icmpv6(negate(test)),
            Match::Set(mut test) => {
                test.set = negate(test.set);
                Match::Set(test)
            }
            other => {
                let mut text = String::new();
                other.print(&mut Printer {
                    out: &mut text,
                    style: Style::SAVE,
                });
                return Err(Error::invalid(
                    "match",
                    text.trim(),
                    "the match has no single test that can be negated",
                ));
            }
        })
    }

    /// Parses the options after `-m name`; `None` if one of them has no type.
    pub(crate) fn read(name: &str, options: &mut Options<'_, '_>) -> Option<Self> {
        Some(match name {
            "comment" => {
                let flag = options.flag()?;
                flag.not_negated()?;
                (flag.name == "--comment").then_some(())?;
                Match::Comment(options.value()?)
            }
            "tcp" => Match::Tcp(TcpMatch::read(options)?),
            "udp" => Match::Udp(UdpMatch::read(options)?),
            "sctp" => Match::Sctp(SctpMatch::read(options)?),
            "multiport" => Match::Multiport(Multiport::read(options)?),
            "set" => Match::Set(Box::new(SetMatch::read(options)?)),
            "mark" => Match::Mark(MarkMatch::read(options)?),
            "connmark" => Match::Connmark(ConnmarkMatch::read(options)?),
            "conntrack" => Match::Conntrack(Box::new(ConntrackMatch::read(options)?)),
            "state" => Match::State(StateMatch::read(options)?),
            "addrtype" => Match::Addrtype(Addrtype::read(options)?),
            "physdev" => Match::Physdev(Box::new(Physdev::read(options)?)),
            "ipvs" => Match::Ipvs(Box::new(IpvsMatch::read(options)?)),
            "statistic" => Match::Statistic(Statistic::read(options)?),
            "limit" => Match::Limit(Limit::read(options)?),
            "hashlimit" => Match::Hashlimit(Box::new(Hashlimit::read(options)?)),
            "owner" => Match::Owner(Owner::read(options)?),
            "icmp" => Match::Icmp(IcmpMatch::read(options)?),
            "icmp6" | "icmpv6" => Match::Icmpv6(Icmpv6Match::read(options)?),
            "recent" => Match::Recent(Box::new(Recent::read(options)?)),
            _ => return None,
        })
    }

    pub(crate) fn print(&self, out: &mut Printer<'_>) {
        match self {
            Match::Source(test) => out.required("-s", test, |out, value| out.value(value)),
            Match::Destination(test) => out.required("-d", test, |out, value| out.value(value)),
            Match::InInterface(test) => out.required("-i", test, |out, value| out.name(value.as_str())),
            Match::OutInterface(test) => out.required("-o", test, |out, value| out.name(value.as_str())),
            Match::Protocol(test) => out.required("-p", test, |out, value| out.value(value)),
            Match::Fragment(test) => out.required("-f", test, |_, ()| ()),
            Match::Comment(comment) => {
                out.literal("-m comment --comment");
                out.text(comment.as_str());
            }
            Match::Tcp(tcp) => tcp.print(out),
            Match::Udp(udp) => udp.print(out),
            Match::Sctp(sctp) => sctp.print(out),
            Match::Multiport(test) => Multiport::print(test, out),
            Match::Set(set) => set.print(out),
            Match::Mark(test) => MarkMatch::print(test, out),
            Match::Connmark(test) => ConnmarkMatch::print(test, out),
            Match::Conntrack(conntrack) => conntrack.print(out),
            Match::State(test) => StateMatch::print(test, out),
            Match::Addrtype(addrtype) => addrtype.print(out),
            Match::Physdev(physdev) => physdev.print(out),
            Match::Ipvs(ipvs) => ipvs.print(out),
            Match::Statistic(test) => Statistic::print(test, out),
            Match::Limit(limit) => limit.print(out),
            Match::Hashlimit(hashlimit) => hashlimit.print(out),
            Match::Owner(owner) => owner.print(out),
            Match::Icmp(test) => IcmpMatch::print(test, out),
            Match::Icmpv6(test) => Icmpv6Match::print(test, out),
            Match::Recent(recent) => recent.print(out),
            Match::Verbatim(arguments) => out.verbatim(arguments),
        }
    }

    /// As `iptables-save` prints it; `None` for a match of all packets that is not printed.
    pub(crate) fn normal_form(&self, family: Family) -> Option<Cow<'_, Self>> {
        Some(Cow::Owned(match self {
            Match::Source(Condition::Is(network)) | Match::Destination(Condition::Is(network))
                if network.is_any() =>
            {
                return None;
            }
            Match::Source(test) => Match::Source(test.map(Network::normal_form)),
            Match::Destination(test) => Match::Destination(test.map(Network::normal_form)),
            Match::InInterface(Condition::Is(name)) | Match::OutInterface(Condition::Is(name))
                if name.as_str() == "+" =>
            {
                return None;
            }
            Match::Protocol(test) => {
                let test = test.map(Protocol::normal_form);
                if test == Condition::Is(Protocol::All) {
                    return None;
                }
                Match::Protocol(test)
            }
            Match::Tcp(tcp) => Match::Tcp(tcp.normal_form()),
            Match::Udp(udp) => Match::Udp(udp.normal_form()),
            Match::Mark(test) => Match::Mark(test.map(MarkMatch::normal_form)),
            Match::Connmark(test) => Match::Connmark(test.map(ConnmarkMatch::normal_form)),
            Match::Conntrack(conntrack) => Match::Conntrack(Box::new(conntrack.normal_form())),
            Match::Ipvs(ipvs) => Match::Ipvs(Box::new(ipvs.normal_form())),
            Match::Limit(limit) => Match::Limit(limit.normal_form()),
            Match::Hashlimit(hashlimit) => Match::Hashlimit(Box::new(hashlimit.normal_form(family))),
            Match::Recent(recent) => Match::Recent(Box::new(recent.normal_form(family))),
            Match::State(test) => Match::State(test.map(StateMatch::normal_form)),
            Match::Icmp(test) => Match::Icmp(test.map(IcmpMatch::normal_form)),
            other => return Some(Cow::Borrowed(other)),
        }))
    }
}
