//! `-j CT`: how a flow is tracked.

use crate::text::{ConntrackName, EventList};
use crate::wire::options::{Options, decimal, set_flag_once, set_once};
use crate::wire::render::Printer;

/// How the flow of a packet is tracked (table raw).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ct {
    /// `--notrack`: not tracked.
    pub notrack: bool,
    /// `--helper`: name of the helper.
    pub helper: Option<ConntrackName>,
    /// `--timeout`: name of the timeout policy.
    pub timeout: Option<ConntrackName>,
    /// `--ctevents`: the events of the flow that are reported; `None` means all.
    pub events: Option<EventList>,
    /// `--expevents`: the events of expectations that are reported; `None` means all.
    pub expectation_events: Option<EventList>,
    /// `--zone`, `--zone-orig`, `--zone-reply`: the zone of the flow.
    pub zone: Option<(ZoneDirection, CtZone)>,
}

/// The direction of the flow that a zone applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ZoneDirection {
    /// `--zone`
    Both,
    /// `--zone-orig`
    Original,
    /// `--zone-reply`
    Reply,
}

/// A conntrack zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CtZone {
    /// The ID; 0 is the default zone.
    Id(u16),
    /// `mark`: the mark of the packet.
    Mark,
}

impl Ct {
    pub(super) fn read(options: &mut Options<'_, '_>) -> Option<Self> {
        let mut ct = Ct::default();
        while let Some(flag) = options.flag() {
            flag.not_negated()?;
            let direction = match flag.name {
                "--notrack" => {
                    set_flag_once(&mut ct.notrack)?;
                    continue;
                }
                "--helper" => {
                    set_once(&mut ct.helper, options.value()?)?;
                    continue;
                }
                "--timeout" => {
                    set_once(&mut ct.timeout, options.value()?)?;
                    continue;
                }
                "--ctevents" => {
                    set_once(&mut ct.events, options.value()?)?;
                    continue;
                }
                "--expevents" => {
                    set_once(&mut ct.expectation_events, options.value()?)?;
                    continue;
                }
                "--zone" => ZoneDirection::Both,
                "--zone-orig" => ZoneDirection::Original,
                "--zone-reply" => ZoneDirection::Reply,
                _ => return None,
            };
            let zone = match options.next()? {
                "mark" => CtZone::Mark,
                number => CtZone::Id(decimal(number)?),
            };
            set_once(&mut ct.zone, (direction, zone))?;
        }
        Some(ct)
    }

    /// Events in the order of the tools, without the default zone, which is not printed.
    pub(super) fn normal_form(&self) -> Self {
        Ct {
            events: self.events.as_ref().map(EventList::in_tool_order),
            zone: self.zone.filter(|(_, zone)| *zone != CtZone::Id(0)),
            ..self.clone()
        }
    }

    pub(super) fn print(&self, out: &mut Printer<'_>) {
        out.literal("-j CT");
        out.flag("--notrack", self.notrack);
        if let Some(helper) = &self.helper {
            out.literal("--helper");
            out.name(helper.as_str());
        }
        if let Some(timeout) = &self.timeout {
            out.literal("--timeout");
            out.name(timeout.as_str());
        }
        out.option("--ctevents", &self.events);
        out.option("--expevents", &self.expectation_events);
        if let Some((direction, zone)) = self.zone {
            out.literal(match direction {
                ZoneDirection::Both => "--zone",
                ZoneDirection::Original => "--zone-orig",
                ZoneDirection::Reply => "--zone-reply",
            });
            match zone {
                CtZone::Id(id) => out.value(id),
                CtZone::Mark => out.literal("mark"),
            }
        }
    }
}
