//! `-m owner`: the owner of the local socket that sent a packet.

use std::fmt;
use std::str::FromStr;

use crate::condition::Condition;
use crate::error::Error;
use crate::wire::options::{Options, decimal, set_flag_once, set_once};
use crate::wire::render::Printer;

/// The owner of the sending socket; only for locally generated packets. At least one test is required.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Owner {
    /// `--socket-exists`
    pub socket_exists: Option<Condition<()>>,
    /// `--uid-owner` as numbers. A match with a name is kept verbatim.
    pub user: Option<Condition<IdRange>>,
    /// `--gid-owner` as numbers. A match with a name is kept verbatim.
    pub group: Option<Condition<IdRange>>,
    /// `--suppl-groups`: supplementary groups match too.
    pub supplementary: bool,
}

/// An inclusive range of user or group IDs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IdRange {
    /// Lowest ID.
    pub first: u32,
    /// Highest ID; equal to `first` for a single one.
    pub last: u32,
}

impl fmt::Display for IdRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.first == self.last {
            write!(f, "{}", self.first)
        } else {
            write!(f, "{}-{}", self.first, self.last)
        }
    }
}

impl FromStr for IdRange {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let range = decimal(first)
            .zip(decimal(last))
            .filter(|(first, last)| first <= last);
        range
            .map(|(first, last)| IdRange { first, last })
            .ok_or_else(|| Error::invalid("owner", text, "expected NUMBER or FIRST-LAST"))
    }
}

impl Owner {
    pub(super) fn read(options: &mut Options<'_, '_>) -> Option<Self> {
        let mut owner = Owner::default();
        while let Some(flag) = options.flag() {
            match flag.name {
                "--socket-exists" => set_once(&mut owner.socket_exists, flag.condition(()))?,
                "--uid-owner" => set_once(&mut owner.user, flag.condition(options.value()?))?,
                "--gid-owner" => set_once(&mut owner.group, flag.condition(options.value()?))?,
                "--suppl-groups" => {
                    flag.not_negated()?;
                    set_flag_once(&mut owner.supplementary)?;
                }
                _ => {
                    options.put_back(&flag);
                    break;
                }
            }
        }
        Some(owner)
    }

    pub(super) fn print(&self, out: &mut Printer<'_>) {
        out.literal("-m owner");
        out.bare("--socket-exists", &self.socket_exists);
        out.test("--uid-owner", &self.user);
        out.test("--gid-owner", &self.group);
        out.flag("--suppl-groups", self.supplementary);
    }
}
