//! `-m recent`: lists of recently seen addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use kernlink_base::Family;

use crate::condition::Condition;
use crate::network::PrintedAddress;
use crate::text::RecentName;
use crate::wire::options::{Options, decimal, set_flag_once, set_once};
use crate::wire::render::Printer;

/// A test of, or an action on, a list of addresses with the times at which they were seen.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Recent {
    /// The action, whose result can be negated.
    pub action: Condition<RecentAction>,
    /// `--seconds`: the address was seen within this number of seconds; at least 1.
    pub seconds: Option<u32>,
    /// `--reap`: remove addresses that are older than `seconds`.
    pub reap: bool,
    /// `--hitcount`: the address was seen at least this number of times.
    pub hit_count: Option<u32>,
    /// `--rttl`: the time to live must be that of the first packet.
    pub same_ttl: bool,
    /// `--name`: name of the list; `None` means `DEFAULT`.
    pub name: Option<RecentName>,
    /// `--mask`: compared bits of the address; `None` means all.
    pub mask: Option<IpAddr>,
    /// `--rsource`, `--rdest`: the address of the packet that is used; `None` means the source.
    pub address: Option<RecentAddress>,
}

/// An action on the list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RecentAction {
    /// `--set`: add the address.
    Set,
    /// `--rcheck`: test whether the list contains the address.
    Check,
    /// `--update`: test, and update the time.
    Update,
    /// `--remove`: test, and remove the address.
    Remove,
}

/// The address of the packet that is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RecentAddress {
    /// `--rsource`
    Source,
    /// `--rdest`
    Destination,
}

impl Recent {
    /// The action on the list `DEFAULT`, by source.
    #[must_use]
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
                ("--set", _) => set_once(&mut action, flag.condition(RecentAction::Set))?,
                ("--rcheck", _) => set_once(&mut action, flag.condition(RecentAction::Check))?,
                ("--update", _) => set_once(&mut action, flag.condition(RecentAction::Update))?,
                ("--remove", _) => set_once(&mut action, flag.condition(RecentAction::Remove))?,
                ("--seconds", false) => set_once(&mut recent.seconds, decimal(options.next()?)?)?,
                ("--reap", false) => set_flag_once(&mut recent.reap)?,
                ("--hitcount", false) => set_once(&mut recent.hit_count, decimal(options.next()?)?)?,
                ("--rttl", false) => set_flag_once(&mut recent.same_ttl)?,
                ("--name", false) => set_once(&mut recent.name, options.value()?)?,
                ("--mask", false) => set_once(&mut recent.mask, options.value()?)?,
                ("--rsource", false) => set_once(&mut recent.address, RecentAddress::Source)?,
                ("--rdest", false) => set_once(&mut recent.address, RecentAddress::Destination)?,
                _ => {
                    options.put_back(&flag);
                    break;
                }
            }
        }
        recent.action = action?;
        Some(recent)
    }

    pub(super) fn print(&self, out: &mut Printer<'_>) {
        out.literal("-m recent");
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
            out.literal("--name");
            out.name(name.as_str());
        }
        out.option("--mask", &self.mask.map(PrintedAddress));
        match self.address {
            Some(RecentAddress::Source) => out.literal("--rsource"),
            Some(RecentAddress::Destination) => out.literal("--rdest"),
            None => {}
        }
    }

    /// With all defaults, as the tools print it.
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
