//! `-m owner`: owner of the local socket a packet comes from.

use std::fmt;
use std::str::FromStr;

use crate::condition::Condition;
use crate::error::Error;
use crate::wire::options::{Options, decimal, once};
use crate::wire::render::Printer;

/// Owner of the socket; only for packets made on this host. At least one test is needed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Owner {
    /// `--socket-exists`
    pub socket_exists: Option<Condition<()>>,
    /// `--uid-owner`, as numbers. A name stays verbatim.
    pub user: Option<Condition<IdRange>>,
    /// `--gid-owner`, as numbers. A name stays verbatim.
    pub group: Option<Condition<IdRange>>,
    /// `--suppl-groups`: supplementary groups count too.
    pub supplementary: bool,
}

/// User or group numbers from `first` to `last`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct IdRange {
    /// Least.
    pub first: u32,
    /// Greatest; the same as `first` for a single one.
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
            .ok_or_else(|| Error::invalid("owner", text, "is not NUMBER or FIRST-LAST"))
    }
}

impl Owner {
    pub(super) fn read(options: &mut Options<'_, '_>) -> Option<Self> {
        let mut owner = Owner::default();
        while let Some(flag) = options.flag() {
            match flag.name {
                "--socket-exists" => once(&mut owner.socket_exists, flag.sign(()))?,
                "--uid-owner" => once(&mut owner.user, flag.sign(options.value()?))?,
                "--gid-owner" => once(&mut owner.group, flag.sign(options.value()?))?,
                "--suppl-groups" => {
                    flag.plain()?;
                    crate::wire::options::once_flag(&mut owner.supplementary)?;
                }
                _ => {
                    options.give_back(&flag);
                    break;
                }
            }
        }
        Some(owner)
    }

    pub(super) fn print(&self, out: &mut Printer<'_>) {
        out.word("-m owner");
        out.bare("--socket-exists", &self.socket_exists);
        out.test("--uid-owner", &self.user);
        out.test("--gid-owner", &self.group);
        out.flag("--suppl-groups", self.supplementary);
    }
}
