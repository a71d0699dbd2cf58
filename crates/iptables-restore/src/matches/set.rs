//! `-m set`: membership in an ipset.

use std::fmt;

use crate::condition::Condition;
use crate::error::Error;
use crate::text::SetName;
use crate::uapi::IPSET_DIM_MAX;
use crate::wire::options::{Options, set_flag_once, set_once};
use crate::wire::render::Printer;

/// The side of the packet whose address or port is looked up in a dimension of the set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SetDirection {
    /// `src`
    Source,
    /// `dst`
    Destination,
}

/// A set and one direction for each of its dimensions.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SetReference {
    /// Name of the set, which must exist when the rule is loaded.
    pub name: SetName,
    /// Directions in the order of the set's dimensions: 1 to [`IPSET_DIM_MAX`].
    pub directions: Vec<SetDirection>,
}

impl SetReference {
    /// A reference to the set `name`.
    #[must_use]
    pub fn new(name: SetName, directions: &[SetDirection]) -> Self {
        SetReference {
            name,
            directions: directions.to_vec(),
        }
    }

    /// Parses `NAME DIRECTIONS`.
    pub(crate) fn read(options: &mut Options<'_, '_>) -> Option<Self> {
        let name = options.value()?;
        let directions: Option<Vec<_>> = options
            .next()?
            .split(',')
            .map(|word| match word {
                "src" => Some(SetDirection::Source),
                "dst" => Some(SetDirection::Destination),
                _ => None,
            })
            .collect();
        let directions = directions.filter(|directions| directions.len() <= IPSET_DIM_MAX)?;
        Some(SetReference { name, directions })
    }

    pub(crate) fn print(&self, out: &mut Printer<'_>) {
        out.name(self.name.as_str());
        let mut separator = ' ';
        for direction in &self.directions {
            out.out.push(separator);
            out.out.push_str(match direction {
                SetDirection::Source => "src",
                SetDirection::Destination => "dst",
            });
            separator = ',';
        }
    }
}

/// Membership in a set, and tests of the matching entry.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SetMatch {
    /// The set and the test for membership.
    pub set: Condition<SetReference>,
    /// `--return-nomatch`: an entry flagged `nomatch` matches.
    pub return_nomatch: bool,
    /// `! --update-counters`: do not update the counters of the entry.
    pub keep_counters: bool,
    /// `! --update-subcounters`: do not update the counters in member sets (list sets).
    pub keep_subcounters: bool,
    /// `--packets-eq`, `--packets-lt`, `--packets-gt`: test of the entry's packet counter.
    pub packets: Option<Comparison>,
    /// `--bytes-eq`, `--bytes-lt`, `--bytes-gt`: test of the entry's byte counter.
    pub bytes: Option<Comparison>,
}

/// A test of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Comparison {
    /// Equal.
    Equal(u64),
    /// Not equal: `!` before the option.
    NotEqual(u64),
    /// Less.
    Less(u64),
    /// Greater.
    Greater(u64),
}

impl SetMatch {
    /// Plain membership.
    #[must_use]
    pub fn new(set: SetReference) -> Self {
        SetMatch {
            set: Condition::Is(set),
            return_nomatch: false,
            keep_counters: false,
            keep_subcounters: false,
            packets: None,
            bytes: None,
        }
    }

    pub(super) fn read(options: &mut Options<'_, '_>) -> Option<Self> {
        let (mut set, mut packets, mut bytes) = (None, None, None);
        let (mut return_nomatch, mut keep_counters, mut keep_subcounters) = (false, false, false);
        while let Some(flag) = options.flag() {
            match (flag.name, flag.negated) {
                ("--match-set", _) => set_once(&mut set, flag.condition(SetReference::read(options)?))?,
                ("--return-nomatch", false) => set_flag_once(&mut return_nomatch)?,
                ("--update-counters", true) => set_flag_once(&mut keep_counters)?,
                ("--update-subcounters", true) => set_flag_once(&mut keep_subcounters)?,
                // The default.
                ("--update-counters" | "--update-subcounters", false) => {}
                ("--packets-eq", false) => set_once(&mut packets, Comparison::Equal(options.value()?))?,
                ("--packets-eq", true) => set_once(&mut packets, Comparison::NotEqual(options.value()?))?,
                ("--packets-lt", false) => set_once(&mut packets, Comparison::Less(options.value()?))?,
                ("--packets-gt", false) => set_once(&mut packets, Comparison::Greater(options.value()?))?,
                ("--bytes-eq", false) => set_once(&mut bytes, Comparison::Equal(options.value()?))?,
                ("--bytes-eq", true) => set_once(&mut bytes, Comparison::NotEqual(options.value()?))?,
                ("--bytes-lt", false) => set_once(&mut bytes, Comparison::Less(options.value()?))?,
                ("--bytes-gt", false) => set_once(&mut bytes, Comparison::Greater(options.value()?))?,
                _ => {
                    options.put_back(&flag);
                    break;
                }
            }
        }
        Some(SetMatch {
            set: set?,
            return_nomatch,
            keep_counters,
            keep_subcounters,
            packets,
            bytes,
        })
    }

    pub(super) fn print(&self, out: &mut Printer<'_>) {
        out.literal("-m set");
        out.required("--match-set", &self.set, |out, set| set.print(out));
        out.flag("--return-nomatch", self.return_nomatch);
        out.flag("! --update-counters", self.keep_counters);
        out.flag("! --update-subcounters", self.keep_subcounters);
        comparison(
            out,
            ["! --packets-eq", "--packets-eq", "--packets-lt", "--packets-gt"],
            self.packets,
        );
        comparison(
            out,
            ["! --bytes-eq", "--bytes-eq", "--bytes-lt", "--bytes-gt"],
            self.bytes,
        );
    }
}

fn comparison(out: &mut Printer<'_>, [ne, eq, lt, gt]: [&str; 4], comparison: Option<Comparison>) {
    let (option, value) = match comparison {
        Some(Comparison::NotEqual(value)) => (ne, value),
        Some(Comparison::Equal(value)) => (eq, value),
        Some(Comparison::Less(value)) => (lt, value),
        Some(Comparison::Greater(value)) => (gt, value),
        None => return,
    };
    out.literal(option);
    out.value(value);
}

impl fmt::Display for SetDirection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            SetDirection::Source => "src",
            SetDirection::Destination => "dst",
        })
    }
}

impl SetReference {
    /// Refuses a number of directions that no set has.
    pub(crate) fn check(&self) -> Result<(), Error> {
        if self.directions.is_empty() || self.directions.len() > IPSET_DIM_MAX {
            let reason = "expected 1 to 6 directions (IPSET_DIM_MAX)";
            return Err(Error::invalid("set directions", self.name.as_str(), reason));
        }
        Ok(())
    }
}
