//! `-m recent`: addresses seen lately.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use crate::condition::Condition;
use crate::family::Family;
use crate::network::PrintedAddress;
use crate::text::RecentName;
use crate::wire::options::{Options, decimal, once, once_flag};
use crate::wire::render::Printer;

/// A list of addresses with the times they were seen, and what is done with it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Recent {
    /// What is done; as a test it can be turned around.
    pub action: Condition<RecentAction>,
    /// `--seconds`: seen within so many seconds; at least 1.
    pub seconds: Option<u32>,
    /// `--reap`: forget addresses older than `seconds`.
    pub reap: bool,
    /// `--hitcount`: seen so many times.
    pub hit_count: Option<u32>,
    /// `--rttl`: the time to live must be that of the first packet.
    pub same_ttl: bool,
    /// `--name`: name of the list; none means `DEFAULT`.
    pub name: Option<RecentName>,
    /// `--mask`: bits of the address that count; none means all.
    pub mask: Option<IpAddr>,
    /// `--rsource`, `--rdest`: which address is looked up; none means the source.
    pub address: Option<RecentAddress>,
}

/// What is done with the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RecentAction {
    /// `--set`: note the address.
    Set,
    /// `--rcheck`: test whether it is noted.
    Check,
    /// `--update`: test, and note the time anew.
    Update,
    /// `--remove`: test, and forget it.
    Remove,
}

/// Which address is looked up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RecentAddress {
    /// `--rsource`
    Source,
    /// `--rdest`
    Destination,
}

impl Recent {
    /// The action on the list `DEFAULT`, by source.
    pub fn new(action: RecentAction) -> Self {
        Recent {
            action: Condition::Is(action),
            seconds: None,
            reap: false,
            hit_count: None,
            same_ttl: false,
            name: None,
            mask: None,
            address: None,
        }
    }

    pub(super) fn read(options: &mut Options<'_, '_>) -> Option<Self> {
        let mut recent = Recent::new(RecentAction::Set);
        let mut action = None;
        while let Some(flag) = options.flag() {
            match (flag.name, flag.negated) {
                ("--set", _) => once(&mut action, flag.sign(RecentAction::Set))?,
                ("--rcheck", _) => once(&mut action, flag.sign(RecentAction::Check))?,
                ("--update", _) => once(&mut action, flag.sign(RecentAction::Update))?,
                ("--remove", _) => once(&mut action, flag.sign(RecentAction::Remove))?,
                ("--seconds", false) => once(&mut recent.seconds, decimal(options.next()?)?)?,
                ("--reap", false) => once_flag(&mut recent.reap)?,
                ("--hitcount", false) => once(&mut recent.hit_count, decimal(options.next()?)?)?,
                ("--rttl", false) => once_flag(&mut recent.same_ttl)?,
                ("--name", false) => once(&mut recent.name, options.value()?)?,
                ("--mask", false) => once(&mut recent.mask, options.value()?)?,
                ("--rsource", false) => once(&mut recent.address, RecentAddress::Source)?,
                ("--rdest", false) => once(&mut recent.address, RecentAddress::Destination)?,
                _ => {
                    options.give_back(&flag);
                    break;
                }
            }
        }
        recent.action = action?;
        Some(recent)
    }

    pub(super) fn print(&self, out: &mut Printer<'_>) {
        out.word("-m recent");
        let option = match self.action.value() {
            RecentAction::Set => "--set",
            RecentAction::Check => "--rcheck",
            RecentAction::Update => "--update",
            RecentAction::Remove => "--remove",
        };
        out.required(option, &self.action, |_, _| ());
        out.option("--seconds", &self.seconds);
        out.flag("--reap", self.reap);
        out.option("--hitcount", &self.hit_count);
        out.flag("--rttl", self.same_ttl);
        if let Some(name) = &self.name {
            out.word("--name");
            out.name(name.as_str());
        }
        out.option("--mask", &self.mask.map(PrintedAddress));
        match self.address {
            Some(RecentAddress::Source) => out.word("--rsource"),
            Some(RecentAddress::Destination) => out.word("--rdest"),
            None => {}
        }
    }

    /// Everything written out, as the tools print it.
    pub(super) fn normal_form(&self, family: Family) -> Self {
        let whole = match family {
            Family::Ipv4 => IpAddr::V4(Ipv4Addr::BROADCAST),
            Family::Ipv6 => IpAddr::V6(Ipv6Addr::from_bits(u128::MAX)),
        };
        Recent {
            name: self.name.clone().or_else(|| RecentName::new("DEFAULT").ok()),
            mask: Some(self.mask.unwrap_or(whole)),
            address: Some(self.address.unwrap_or(RecentAddress::Source)),
            ..self.clone()
        }
    }
}
