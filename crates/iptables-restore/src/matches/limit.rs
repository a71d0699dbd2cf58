//! `-m limit`: a rate shared by all packets.

use std::fmt;
use std::str::FromStr;

use crate::error::Error;
use crate::uapi::XT_LIMIT_SCALE;
use crate::wire::options::{Options, decimal, set_once};
use crate::wire::render::Printer;

/// A token bucket that all packets of the rule share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Limit {
    /// `--limit`: rate at which the bucket is filled.
    pub rate: Rate,
    /// `--limit-burst`: size of the bucket in packets; `None` means 5.
    pub burst: Option<u32>,
}

/// Packets per unit of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Rate {
    /// Packets; at least 1.
    pub packets: u32,
    /// The unit.
    pub per: RateUnit,
}

/// The unit of a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RateUnit {
    /// Second.
    Second,
    /// Minute.
    Minute,
    /// Hour.
    Hour,
    /// Day.
    Day,
}

/// Longest unit first, the order in which the tools search.
const UNITS: [(RateUnit, &str, u64); 4] = [
    (RateUnit::Day, "day", 86_400),
    (RateUnit::Hour, "hour", 3_600),
    (RateUnit::Minute, "min", 60),
    (RateUnit::Second, "sec", 1),
];

impl RateUnit {
    pub(super) fn seconds(self) -> u64 {
        UNITS
            .iter()
            .find(|(unit, ..)| *unit == self)
            .map_or(1, |(.., seconds)| *seconds)
    }
}

impl Rate {
    /// The rate rounded as the kernel stores it (time per packet, in `scale` units per second), in the longest unit that represents it
    /// exactly, as the tools print it.
    ///
    /// Source: `parse_rate` and `print_rate` in `extensions/libxt_limit.c`, iptables 1.8.9.
    pub(super) fn normal_form(self, scale: u64) -> Self {
        let period = scale * self.per.seconds() / u64::from(self.packets.max(1));
        // A rate that the tools refuse as too high is unchanged.
        Rate::of_period(period, scale).unwrap_or(self)
    }

    /// The rate of one packet every `period` units, `scale` of them per second, in the longest unit that represents it exactly; `None`
    /// for a period of 0.
    pub(super) fn of_period(period: u64, scale: u64) -> Option<Self> {
        if period == 0 {
            return None;
        }
        let mut chosen = UNITS.len() - 1;
        for (place, (.., seconds)) in UNITS.iter().enumerate().skip(1) {
            let unit = seconds * scale;
            if period > unit || unit / period < unit % period {
                chosen = place - 1;
                break;
            }
        }
        let (per, _, seconds) = UNITS.get(chosen)?;
        let packets = u32::try_from(seconds * scale / period).ok()?;
        Some(Rate { packets, per: *per })
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = UNITS
            .iter()
            .find(|(unit, ..)| *unit == self.per)
            .map_or("sec", |(_, name, _)| name);
        write!(f, "{}/{name}", self.packets)
    }
}

impl FromStr for Rate {
    type Err = Error;

    /// `3/sec`, `3/minute`, `3/h`, or `3` for a second.
    fn from_str(text: &str) -> Result<Self, Error> {
        let (packets, unit) = text.split_once('/').unwrap_or((text, "second"));
        let names = [
            (RateUnit::Second, "second"),
            (RateUnit::Minute, "minute"),
            (RateUnit::Hour, "hour"),
            (RateUnit::Day, "day"),
        ];
        let unit = unit.to_ascii_lowercase();
        let per = names
            .iter()
            .find(|(_, name)| !unit.is_empty() && name.starts_with(&unit));
        let packets = decimal(packets).filter(|packets| *packets > 0);
        match (packets, per) {
            (Some(packets), Some((per, _))) => Ok(Rate { packets, per: *per }),
            _ => Err(Error::invalid(
                "rate",
                text,
                "expected PACKETS/UNIT with unit sec, min, hour or day",
            )),
        }
    }
}

impl Limit {
    /// The default rate of the tools. Source: `extensions/libxt_limit.c`, iptables 1.8.9.
    const DEFAULT_RATE: Rate = Rate {
        packets: 3,
        per: RateUnit::Hour,
    };

    pub(super) fn read(options: &mut Options<'_, '_>) -> Option<Self> {
        let (mut rate, mut burst) = (None, None);
        while let Some(flag) = options.flag() {
            match (flag.name, flag.negated) {
                ("--limit", false) => set_once(&mut rate, options.value()?)?,
                ("--limit-burst", false) => set_once(&mut burst, decimal(options.next()?)?)?,
                _ => {
                    options.put_back(&flag);
                    break;
                }
            }
        }
        let rate = rate.unwrap_or(Self::DEFAULT_RATE);
        Some(Limit { rate, burst })
    }

    pub(super) fn print(&self, out: &mut Printer<'_>) {
        out.literal("-m limit");
        out.option("--limit", &Some(self.rate));
        out.option("--limit-burst", &self.burst);
    }

    pub(super) fn normal_form(self) -> Self {
        Limit {
            rate: self.rate.normal_form(XT_LIMIT_SCALE),
            burst: self.burst.filter(|burst| *burst != 5),
        }
    }
}
