//! What a rule does with a packet: one type for each target of the tools.

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

use crate::chain::ChainName;
use crate::family::Family;
use crate::wire::options::Options;
use crate::wire::render::Printer;
use crate::wire::token::Word;

/// What happens to a packet that all matches of a rule let through.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Target {
    /// `-j ACCEPT`
    Accept,
    /// `-j DROP`
    Drop,
    /// `-j RETURN`: back to the calling chain, or to the policy.
    Return,
    /// `-j CHAIN`: on to another chain, and back after its end.
    Jump(ChainName),
    /// `-g CHAIN`: on to another chain; its end is that of this one.
    Goto(ChainName),
    /// `-j REJECT`: drop and tell the sender.
    Reject(Option<RejectWith>),
    /// `-j MARK`: change the packet's mark.
    Mark(MarkTarget),
    /// `-j CONNMARK`: change the flow's mark, or copy between it and the packet's.
    Connmark(ConnmarkTarget),
    /// `-j DNAT`: change the destination (table nat).
    Dnat(Box<Nat>),
    /// `-j SNAT`: change the source (table nat).
    Snat(Box<Nat>),
    /// `-j MASQUERADE`: the source becomes the address of the outgoing interface (table nat).
    Masquerade(Masquerade),
    /// `-j REDIRECT`: the destination becomes this host (table nat).
    Redirect(Redirect),
    /// `-j LOG`: a line in the kernel's log.
    Log(Box<Log>),
    /// `-j NFLOG`: a message to a logging process.
    Nflog(Box<Nflog>),
    /// `-j NOTRACK`: no connection tracking (table raw).
    Notrack,
    /// `-j CT`: how the flow will be tracked (table raw).
    Ct(Box<Ct>),
    /// `-j TPROXY`: to a local socket without changing the packet (table mangle).
    Tproxy(Box<Tproxy>),
    /// `-j SET`: change an ipset.
    Set(Box<SetTarget>),
    /// Words for which there is no type here, as they were written, `-j NAME` included.
    Verbatim(Vec<Word>),
}

impl Target {
    /// Reads what follows `-j`; `None` if there is anything in it without a type.
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

    /// The chain the rule refers to, if it does.
    pub fn chain(&self) -> Option<&ChainName> {
        match self {
            Target::Jump(chain) | Target::Goto(chain) => Some(chain),
            _ => None,
        }
    }

    pub(crate) fn print(&self, out: &mut Printer<'_>) {
        match self {
            Target::Accept => out.word("-j ACCEPT"),
            Target::Drop => out.word("-j DROP"),
            Target::Return => out.word("-j RETURN"),
            Target::Jump(chain) => {
                out.word("-j");
                out.word(chain.as_str());
            }
            Target::Goto(chain) => {
                out.word("-g");
                out.word(chain.as_str());
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
            Target::Notrack => out.word("-j NOTRACK"),
            Target::Ct(ct) => ct.print(out),
            Target::Tproxy(tproxy) => tproxy.print(out),
            Target::Set(set) => set.print(out),
            Target::Verbatim(words) => out.verbatim(words),
        }
    }

    /// As `iptables-save` would print it.
    pub(crate) fn normal_form(&self, family: Family) -> Self {
        match self {
            Target::Reject(with) => Target::Reject(Some(RejectWith::normal_form(*with, family))),
            Target::Mark(mark) => Target::Mark(mark.normal_form()),
            Target::Connmark(mark) => Target::Connmark(mark.normal_form()),
            Target::Log(log) => Target::Log(Box::new(log.normal_form())),
            Target::Nflog(log) => Target::Nflog(Box::new(log.normal_form())),
            Target::Ct(ct) => Target::Ct(Box::new(ct.normal_form())),
            Target::Tproxy(tproxy) => Target::Tproxy(Box::new(tproxy.normal_form(family))),
            other => other.clone(),
        }
    }
}
