//! `-j CT`: how the flow will be tracked.

use crate::text::{ConntrackName, EventList};
use crate::wire::options::{Options, decimal, once, once_flag};
use crate::wire::render::Printer;

/// How the flow of a packet will be tracked (table raw).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct Ct {
    /// `--notrack`: not at all.
    pub notrack: bool,
    /// `--helper`: with this helper.
    pub helper: Option<ConntrackName>,
    /// `--timeout`: with this time-out policy.
    pub timeout: Option<ConntrackName>,
    /// `--ctevents`: only these events of the flow are told, as the tool names them, joined by commas.
    pub events: Option<EventList>,
    /// `--expevents`: only these events of expectations are told.
    pub expectation_events: Option<EventList>,
    /// `--zone`, `--zone-orig`, `--zone-reply`: the zone the flow is put in.
    pub zone: Option<(ZoneDirection, CtZone)>,
}

/// For which direction of the flow a zone holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ZoneDirection {
    /// `--zone`
    Both,
    /// `--zone-orig`
    Original,
    /// `--zone-reply`
    Reply,
}

/// A zone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CtZone {
    /// A number; 0 is the zone of flows that are in none.
    Id(u16),
    /// `mark`: the packet's mark.
    Mark,
}

impl Ct {
    pub(super) fn read(options: &mut Options<'_, '_>) -> Option<Self> {
        let mut ct = Ct::default();
        while let Some(flag) = options.flag() {
            flag.plain()?;
            let direction = match flag.name {
                "--notrack" => {
                    once_flag(&mut ct.notrack)?;
                    continue;
                }
                "--helper" => {
                    once(&mut ct.helper, options.value()?)?;
                    continue;
                }
                "--timeout" => {
                    once(&mut ct.timeout, options.value()?)?;
                    continue;
                }
                "--ctevents" => {
                    once(&mut ct.events, options.value()?)?;
                    continue;
                }
                "--expevents" => {
                    once(&mut ct.expectation_events, options.value()?)?;
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
            once(&mut ct.zone, (direction, zone))?;
        }
        Some(ct)
    }

    /// Events in the order of the tools; the zone of flows that are in none is not printed.
    pub(super) fn normal_form(&self) -> Self {
        Ct {
            events: self.events.as_ref().map(EventList::in_the_tools_order),
            zone: self.zone.filter(|(_, zone)| *zone != CtZone::Id(0)),
            ..self.clone()
        }
    }

    pub(super) fn print(&self, out: &mut Printer<'_>) {
        out.word("-j CT");
        out.flag("--notrack", self.notrack);
        if let Some(helper) = &self.helper {
            out.word("--helper");
            out.name(helper.as_str());
        }
        if let Some(timeout) = &self.timeout {
            out.word("--timeout");
            out.name(timeout.as_str());
        }
        out.option("--ctevents", &self.events);
        out.option("--expevents", &self.expectation_events);
        if let Some((direction, zone)) = self.zone {
            out.word(match direction {
                ZoneDirection::Both => "--zone",
                ZoneDirection::Original => "--zone-orig",
                ZoneDirection::Reply => "--zone-reply",
            });
            match zone {
                CtZone::Id(id) => out.value(id),
                CtZone::Mark => out.word("mark"),
            }
        }
    }
}
