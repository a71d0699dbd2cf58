//! Targets: one type for each target of the tools.

mod ct;
mod log;
mod mark;
mod nat;
mod reject;
mod set;
mod tproxy;

pub use ct::{Ct, CtZone, ZoneDirection};
pub use log::{Log, Nflog};
pub use mark::{ConnmarkTarget, MarkCopy, MarkShift, MarkTarget};
pub use nat::{Masquerade, Nat, NatAddresses, NatPorts, Redirect};
pub use reject::RejectWith;
pub use set::{SetAction, SetTarget};
pub use tproxy::Tproxy;

use std::borrow::Cow;

use kernlink_base::Family;

use crate::argument::Argument;
use crate::chain::ChainName;
use crate::wire::options::Options;
use crate::wire::render::Printer;

/// What happens to a packet that all matches of a rule match.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Target {
    /// `-j ACCEPT`
    Accept,
    /// `-j DROP`
    Drop,
    /// `-j RETURN`: continue in the calling chain, or with the policy.
    Return,
    /// `-j CHAIN`: continue in another chain, and return at its end.
    Jump(ChainName),
    /// `-g CHAIN`: continue in another chain, and return to the caller of this one at its end.
    Goto(ChainName),
    /// `-j REJECT`: drop the packet and send an error.
    Reject(Option<RejectWith>),
    /// `-j MARK`: change the packet's mark.
    Mark(MarkTarget),
    /// `-j CONNMARK`: change the flow's mark, or copy between it and the packet's.
    Connmark(ConnmarkTarget),
    /// `-j DNAT`: change the destination (table nat).
    Dnat(Box<Nat>),
    /// `-j SNAT`: change the source (table nat).
    Snat(Box<Nat>),
    /// `-j MASQUERADE`: change the source to the address of the outgoing interface (table nat).
    Masquerade(Masquerade),
    /// `-j REDIRECT`: change the destination to this host (table nat).
    Redirect(Redirect),
    /// `-j LOG`: log a line in the kernel log.
    Log(Box<Log>),
    /// `-j NFLOG`: send a message to a logging process.
    Nflog(Box<Nflog>),
    /// `-j NOTRACK`: no connection tracking (table raw).
    Notrack,
    /// `-j CT`: set how the flow is tracked (table raw).
    Ct(Box<Ct>),
    /// `-j TPROXY`: redirect to a local socket without changing the packet (table mangle).
    Tproxy(Box<Tproxy>),
    /// `-j SET`: change an ipset.
    Set(Box<SetTarget>),
    /// Arguments of a target without a type, as written, including `-j NAME`.
    Verbatim(Vec<Argument>),
}

impl Target {
    /// Parses the text after `-j`; `None` if an option has no type.
    pub(crate) fn read_jump(options: &mut Options<'_, '_>) -> Option<Self> {
        let name = options.next()?;
        Some(match name {
            "ACCEPT" => Target::Accept,
            "DROP" => Target::Drop,
            "RETURN" => Target::Return,
            "REJECT" => Target::Reject(RejectWith::read(options)?),
            "MARK" => Target::Mark(MarkTarget::read(options)?),
            "CONNMARK" => Target::Connmark(ConnmarkTarget::read(options)?),
            "DNAT" => Target::Dnat(Box::new(Nat::read("--to-destination", options)?)),
            "SNAT" => Target::Snat(Box::new(Nat::read("--to-source", options)?)),
            "MASQUERADE" => Target::Masquerade(Masquerade::read(options)?),
            "REDIRECT" => Target::Redirect(Redirect::read(options)?),
            "LOG" => Target::Log(Box::new(Log::read(options)?)),
            "NFLOG" => Target::Nflog(Box::new(Nflog::read(options)?)),
            "NOTRACK" => Target::Notrack,
            "CT" => Target::Ct(Box::new(Ct::read(options)?)),
            "TPROXY" => Target::Tproxy(Box::new(Tproxy::read(options)?)),
            "SET" => Target::Set(Box::new(SetTarget::read(options)?)),
            name => Target::Jump(ChainName::new(name).ok()?),
        })
    }

    /// The chain of a jump or goto.
    #[must_use]
    pub fn chain(&self) -> Option<&ChainName> {
        match self {
            Target::Jump(chain) | Target::Goto(chain) => Some(chain),
            _ => None,
        }
    }

    pub(crate) fn print(&self, out: &mut Printer<'_>) {
        match self {
            Target::Accept => out.literal("-j ACCEPT"),
            Target::Drop => out.literal("-j DROP"),
            Target::Return => out.literal("-j RETURN"),
            Target::Jump(chain) => {
                out.literal("-j");
                out.literal(chain.as_str());
            }
            Target::Goto(chain) => {
                out.literal("-g");
                out.literal(chain.as_str());
            }
            Target::Reject(with) => RejectWith::print(*with, out),
            Target::Mark(mark) => mark.print(out),
            Target::Connmark(mark) => mark.print(out),
            Target::Dnat(nat) => nat.print("-j DNAT --to-destination", out),
            Target::Snat(nat) => nat.print("-j SNAT --to-source", out),
            Target::Masquerade(masquerade) => masquerade.print(out),
            Target::Redirect(redirect) => redirect.print(out),
            Target::Log(log) => log.print(out),
            Target::Nflog(log) => log.print(out),
            Target::Notrack => out.literal("-j NOTRACK"),
            Target::Ct(ct) => ct.print(out),
            Target::Tproxy(tproxy) => tproxy.print(out),
            Target::Set(set) => set.print(out),
            Target::Verbatim(arguments) => out.verbatim(arguments),
        }
    }

    /// As `iptables-save` prints it.
    pub(crate) fn normal_form(&self, family: Family) -> Cow<'_, Self> {
        Cow::Owned(match self {
            Target::Reject(with) => Target::Reject(Some(RejectWith::normal_form(*with, family))),
            Target::Mark(mark) => Target::Mark(mark.normal_form()),
            Target::Connmark(mark) => Target::Connmark(mark.normal_form()),
            Target::Log(log) => Target::Log(Box::new(log.normal_form())),
            Target::Nflog(log) => Target::Nflog(Box::new(log.normal_form())),
            Target::Ct(ct) => Target::Ct(Box::new(ct.normal_form())),
            Target::Tproxy(tproxy) => Target::Tproxy(Box::new(tproxy.normal_form(family))),
            other => return Cow::Borrowed(other),
        })
    }
}
