//! `-m hashlimit`: a rate per address or port.

use std::fmt;
use std::str::FromStr;

use kernlink_base::Family;

use crate::error::Error;
use crate::matches::Rate;
use crate::text::HashlimitName;
use crate::uapi::{XT_HASHLIMIT_BYTE_SHIFT, XT_HASHLIMIT_SCALE_V2};
use crate::wire::options::{Options, decimal, set_flag_once, set_once};
use crate::wire::render::Printer;

/// A token bucket for each group of packets.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Hashlimit {
    /// The rate, and whether packets within or above it match.
    pub test: HashlimitTest,
    /// `--hashlimit-burst`: size of a bucket, in packets, or in bytes for a rate in bytes; `None` means the default of the
    /// tool (5 packets).
    pub burst: Option<HashlimitBurst>,
    /// `--hashlimit-mode`: the fields that define a group, in the given order; empty for one common group.
    pub mode: Vec<HashlimitMode>,
    /// `--hashlimit-name`: name of the table in `/proc/net/ipt_hashlimit`.
    pub name: HashlimitName,
    /// `--hashlimit-htable-size`: buckets of the hash table; `None` means the kernel's choice.
    pub table_size: Option<u32>,
    /// `--hashlimit-htable-max`: maximum number of groups; `None` means the kernel's choice.
    pub table_max: Option<u32>,
    /// `--hashlimit-htable-gcinterval`: milliseconds between garbage collections; `None` means 1000.
    pub gc_interval: Option<u32>,
    /// `--hashlimit-htable-expire`: milliseconds until an idle group is removed; `None` depends on the rate.
    pub expire: Option<u32>,
    /// `--hashlimit-srcmask`: leading bits of the source address that define a group; `None` means all.
    pub source_prefix: Option<u8>,
    /// `--hashlimit-dstmask`: leading bits of the destination address that define a group; `None` means all.
    pub destination_prefix: Option<u8>,
    /// `--hashlimit-rate-match`: classify by rate, without a burst.
    pub rate_match: bool,
    /// `--hashlimit-rate-interval`: seconds over which the rate is measured; with `rate_match`.
    pub rate_interval: Option<u32>,
}

/// Which packets match.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HashlimitTest {
    /// `--hashlimit-upto`: packets within the rate.
    Upto(HashlimitRate),
    /// `--hashlimit-above`: packets above the rate.
    Above(HashlimitRate),
}

/// A rate in packets or in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HashlimitRate {
    /// Packets.
    Packets(Rate),
    /// Bytes per second, in units.
    Bytes(u32, ByteUnit),
}

/// Unit of a rate in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ByteUnit {
    /// `b`
    Byte,
    /// `kb`: 1024 bytes.
    Kilobyte,
    /// `mb`: 1024 × 1024 bytes.
    Megabyte,
}

impl ByteUnit {
    fn as_str(self) -> &'static str {
        match self {
            ByteUnit::Byte => "b",
            ByteUnit::Kilobyte => "kb",
            ByteUnit::Megabyte => "mb",
        }
    }

    fn bytes(self) -> u32 {
        match self {
            ByteUnit::Byte => 1,
            ByteUnit::Kilobyte => 1 << 10,
            ByteUnit::Megabyte => 1 << 20,
        }
    }

    fn read(text: &str) -> Option<(u32, Self)> {
        let digits = text.trim_end_matches(|c: char| !c.is_ascii_digit());
        let unit = match text.get(digits.len()..)? {
            "b" => ByteUnit::Byte,
            "kb" => ByteUnit::Kilobyte,
            "mb" => ByteUnit::Megabyte,
            _ => return None,
        };
        Some((decimal(digits)?, unit))
    }
}

/// Size of a bucket.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HashlimitBurst {
    /// Packets.
    Packets(u32),
    /// Bytes, in units.
    Bytes(u32, ByteUnit),
}

/// A field of the packet that defines groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum HashlimitMode {
    /// `srcip`
    SourceAddress,
    /// `srcport`
    SourcePort,
    /// `dstip`
    DestinationAddress,
    /// `dstport`
    DestinationPort,
}

/// In the order in which the tools print them.
const MODES: [(HashlimitMode, &str); 4] = [
    (HashlimitMode::SourceAddress, "srcip"),
    (HashlimitMode::SourcePort, "srcport"),
    (HashlimitMode::DestinationAddress, "dstip"),
    (HashlimitMode::DestinationPort, "dstport"),
];

impl fmt::Display for HashlimitRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HashlimitRate::Packets(rate) => rate.fmt(f),
            HashlimitRate::Bytes(amount, unit) => write!(f, "{amount}{}/s", unit.as_str()),
        }
    }
}

impl FromStr for HashlimitRate {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        match text.strip_suffix("/s").and_then(ByteUnit::read) {
            Some((amount, unit)) => Ok(HashlimitRate::Bytes(amount, unit)),
            None => text.parse().map(HashlimitRate::Packets),
        }
    }
}

impl fmt::Display for HashlimitBurst {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HashlimitBurst::Packets(packets) => packets.fmt(f),
            HashlimitBurst::Bytes(amount, unit) => write!(f, "{amount}{}", unit.as_str()),
        }
    }
}

impl FromStr for HashlimitBurst {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let bytes = ByteUnit::read(text).map(|(amount, unit)| HashlimitBurst::Bytes(amount, unit));
        bytes
            .or_else(|| decimal(text).map(HashlimitBurst::Packets))
            .ok_or_else(|| {
                Error::invalid(
                    "hashlimit burst",
                    text,
                    "expected a number of packets, or of bytes with unit b, kb or mb",
                )
            })
    }
}

impl Hashlimit {
    /// A rate for each group of `mode`, with the tool's defaults.
    #[must_use]
    pub fn new(name: HashlimitName, test: HashlimitTest, mode: &[HashlimitMode]) -> Self {
        Hashlimit {
            test,
            burst: None,
            mode: mode.to_vec(),
            name,
            table_size: None,
            table_max: None,
            gc_interval: None,
            expire: None,
            source_prefix: None,
            destination_prefix: None,
            rate_match: false,
            rate_interval: None,
        }
    }

    pub(super) fn read(options: &mut Options<'_, '_>) -> Option<Self> {
        let (mut test, mut name, mut mode) = (None, None, None);
        let (mut burst, mut rate_match, mut rate_interval) = (None, false, None);
        let (mut table_size, mut table_max, mut gc_interval, mut expire) = (None, None, None, None);
        let (mut source_prefix, mut destination_prefix) = (None, None);
        while let Some(flag) = options.flag() {
            match flag.name {
                "--hashlimit-upto" | "--hashlimit" => {
                    let rate = options.value()?;
                    let sided = if flag.negated {
                        HashlimitTest::Above(rate)
                    } else {
                        HashlimitTest::Upto(rate)
                    };
                    set_once(&mut test, sided)?;
                    continue;
                }
                "--hashlimit-above" => {
                    let rate = options.value()?;
                    let sided = if flag.negated {
                        HashlimitTest::Upto(rate)
                    } else {
                        HashlimitTest::Above(rate)
                    };
                    set_once(&mut test, sided)?;
                    continue;
                }
                "--hashlimit-burst" => set_once(&mut burst, options.value()?)?,
                "--hashlimit-mode" => {
                    let words = options.next()?.split(',');
                    let modes: Option<Vec<_>> = words
                        .map(|word| {
                            MODES
                                .iter()
                                .find(|(_, name)| *name == word)
                                .map(|(mode, _)| *mode)
                        })
                        .collect();
                    set_once(&mut mode, modes?)?;
                }
                "--hashlimit-name" => set_once(&mut name, options.value()?)?,
                "--hashlimit-htable-size" => set_once(&mut table_size, decimal(options.next()?)?)?,
                "--hashlimit-htable-max" => set_once(&mut table_max, decimal(options.next()?)?)?,
                "--hashlimit-htable-gcinterval" => set_once(&mut gc_interval, decimal(options.next()?)?)?,
                "--hashlimit-htable-expire" => set_once(&mut expire, decimal(options.next()?)?)?,
                "--hashlimit-srcmask" => set_once(&mut source_prefix, decimal(options.next()?)?)?,
                "--hashlimit-dstmask" => set_once(&mut destination_prefix, decimal(options.next()?)?)?,
                "--hashlimit-rate-match" => set_flag_once(&mut rate_match)?,
                "--hashlimit-rate-interval" => set_once(&mut rate_interval, decimal(options.next()?)?)?,
                _ => {
                    options.put_back(&flag);
                    break;
                }
            }
            flag.not_negated()?;
        }
        Some(Hashlimit {
            test: test?,
            burst,
            mode: mode.unwrap_or_default(),
            name: name?,
            table_size,
            table_max,
            gc_interval,
            expire,
            source_prefix,
            destination_prefix,
            rate_match,
            rate_interval,
        })
    }

    pub(super) fn print(&self, out: &mut Printer<'_>) {
        out.literal("-m hashlimit");
        match self.test {
            HashlimitTest::Upto(rate) => out.option("--hashlimit-upto", &Some(rate)),
            HashlimitTest::Above(rate) => out.option("--hashlimit-above", &Some(rate)),
        }
        out.option("--hashlimit-burst", &self.burst);
        let mut separator = " --hashlimit-mode ";
        for mode in &self.mode {
            out.out.push_str(separator);
            out.out.push_str(
                MODES
                    .iter()
                    .find(|(known, _)| known == mode)
                    .map_or("", |(_, name)| name),
            );
            separator = ",";
        }
        out.literal("--hashlimit-name");
        out.name(self.name.as_str());
        out.option("--hashlimit-htable-size", &self.table_size);
        out.option("--hashlimit-htable-max", &self.table_max);
        out.option("--hashlimit-htable-gcinterval", &self.gc_interval);
        out.option("--hashlimit-htable-expire", &self.expire);
        out.option("--hashlimit-srcmask", &self.source_prefix);
        out.option("--hashlimit-dstmask", &self.destination_prefix);
        out.flag("--hashlimit-rate-match", self.rate_match);
        out.option("--hashlimit-rate-interval", &self.rate_interval);
    }

    /// The rate rounded as the kernel stores it, the burst of a rate in packets written out, defaults left out.
    ///
    /// Source: `hashlimit_mt_check` and `hashlimit_mt_save` in `extensions/libxt_hashlimit.c`, iptables 1.8.9.
    pub(super) fn normal_form(&self, family: Family) -> Self {
        let mut normal = self.clone();
        let (HashlimitTest::Upto(rate) | HashlimitTest::Above(rate)) = &mut normal.test;
        // The default expiry of the written rate, and the expiry that the tools do not print.
        let (implied, unprinted);
        match rate {
            HashlimitRate::Packets(rate) => {
                let written = rate.per.seconds();
                implied = milliseconds(written);
                *rate = if self.rate_match {
                    normal.rate_interval = normal.rate_interval.or(u32::try_from(written).ok());
                    let period = XT_HASHLIMIT_SCALE_V2 * written / u64::from(rate.packets.max(1)) / written;
                    Rate::of_period(period, XT_HASHLIMIT_SCALE_V2).unwrap_or(*rate)
                } else {
                    rate.normal_form(XT_HASHLIMIT_SCALE_V2)
                };
                unprinted = milliseconds(rate.per.seconds());
                normal.burst = Some(HashlimitBurst::Packets(match self.burst {
                    None => 5,
                    Some(HashlimitBurst::Packets(packets)) => packets,
                    Some(HashlimitBurst::Bytes(amount, unit)) => amount.saturating_mul(unit.bytes()),
                }));
            }
            HashlimitRate::Bytes(amount, unit) => {
                let cost = Cost::of(u64::from(*amount) * u64::from(unit.bytes()));
                (*amount, *unit) = cost.printed();
                normal.burst = normal.burst.and_then(|burst| cost.printed_burst(burst));
                implied = Some(if self.burst.is_some() { 60_000 } else { 15_000 });
                unprinted = Some(if normal.burst.is_some() { 60_000 } else { 15_000 });
            }
        }
        normal.expire = normal
            .expire
            .or(implied)
            .filter(|expire| Some(*expire) != unprinted);
        normal.rate_interval = normal
            .rate_interval
            .filter(|interval| self.rate_match && *interval != 1);
        normal.mode = MODES
            .iter()
            .map(|(mode, _)| *mode)
            .filter(|mode| self.mode.contains(mode))
            .collect();
        let whole = Some(family.address_bits());
        normal.gc_interval = normal.gc_interval.filter(|interval| *interval != 1000);
        normal.table_size = normal.table_size.filter(|size| *size != 0);
        normal.table_max = normal.table_max.filter(|max| *max != 0);
        normal.source_prefix = normal.source_prefix.filter(|prefix| Some(*prefix) != whole);
        normal.destination_prefix = normal.destination_prefix.filter(|prefix| Some(*prefix) != whole);
        normal
    }
}

fn milliseconds(seconds: u64) -> Option<u32> {
    u32::try_from(seconds * 1000).ok()
}

/// A rate in bytes as the kernel stores it: the cost of 16 bytes, where 2^32 - 1 is the budget of a second. Rates that are rounded to
/// the same cost are printed as one of them.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Cost(u32);

impl Cost {
    fn of(bytes: u64) -> Self {
        // The tools refuse a rate without a cost as too high.
        Cost(
            u32::try_from(u64::from(u32::MAX) / ((bytes >> XT_HASHLIMIT_BYTE_SHIFT) + 1)).unwrap_or(u32::MAX),
        )
    }

    fn bytes(self) -> u64 {
        (u64::from(u32::MAX / self.0.max(1)).saturating_sub(1)) << XT_HASHLIMIT_BYTE_SHIFT
    }

    /// The rate in the largest unit that has this cost.
    fn printed(self) -> (u32, ByteUnit) {
        let bytes = self.bytes();
        let fits = |unit: &ByteUnit| {
            let size = u64::from(unit.bytes());
            bytes >= size && Cost::of(bytes / size * size) == self
        };
        in_unit(
            bytes,
            [ByteUnit::Megabyte, ByteUnit::Kilobyte].into_iter().find(fits),
        )
    }

    /// A burst is stored as a number of seconds, rounded up, and printed in the largest unit that is not greater than it.
    fn printed_burst(self, burst: HashlimitBurst) -> Option<HashlimitBurst> {
        let bytes = match burst {
            HashlimitBurst::Packets(bytes) => u64::from(bytes),
            HashlimitBurst::Bytes(amount, unit) => u64::from(amount) * u64::from(unit.bytes()),
        };
        // A rate of 0 has no burst: the tools crash.
        let rounded = bytes.div_ceil(self.bytes().max(1)) * self.bytes();
        let fits = |unit: &ByteUnit| rounded >= u64::from(unit.bytes());
        let (amount, unit) = in_unit(
            rounded,
            [ByteUnit::Megabyte, ByteUnit::Kilobyte].into_iter().find(fits),
        );
        (rounded > 0).then_some(HashlimitBurst::Bytes(amount, unit))
    }
}

fn in_unit(bytes: u64, unit: Option<ByteUnit>) -> (u32, ByteUnit) {
    let unit = unit.unwrap_or(ByteUnit::Byte);
    let amount = bytes / u64::from(unit.bytes());
    (u32::try_from(amount).unwrap_or(u32::MAX), unit)
}

#[cfg(test)]
mod tests {
    use crate::{Family, Rule};

    /// Pairs captured from iptables 1.8.9, equal in both variants.
    #[test]
    fn rates_in_bytes_are_rounded_as_the_kernel_rounds_them() {
        for (written, printed) in [
            ("--hashlimit-upto 1b/s", "--hashlimit-upto 0b/s"),
            ("--hashlimit-upto 16b/s", "--hashlimit-upto 16b/s"),
            ("--hashlimit-upto 100b/s", "--hashlimit-upto 96b/s"),
            ("--hashlimit-upto 1000b/s", "--hashlimit-upto 992b/s"),
            ("--hashlimit-upto 1024b/s", "--hashlimit-upto 1kb/s"),
            ("--hashlimit-upto 1000kb/s", "--hashlimit-upto 1000kb/s"),
            ("--hashlimit-upto 1000mb/s", "--hashlimit-upto 1008mb/s"),
            (
                "--hashlimit-above 1mb/s --hashlimit-burst 3000kb",
                "--hashlimit-above 1mb/s --hashlimit-burst 3mb",
            ),
        ] {
            let rule: Rule = format!("-m hashlimit {written} --hashlimit-name x")
                .parse()
                .unwrap();
            let normal = rule.normal_form(Family::Ipv4);
            assert_eq!(
                normal.to_string(),
                format!("-m hashlimit {printed} --hashlimit-name x")
            );
            assert_eq!(normal.normal_form(Family::Ipv4), normal);
        }
    }
}
