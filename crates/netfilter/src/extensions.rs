//! Matches and targets of iptables that rules can do without. If the kernel or the tools lack one, rules with it are refused.

use std::collections::BTreeSet;

use kernlink_iptables_restore::Error;
use kernlink_services::{Event, Family};

/// A match or target that some rules of a data path use, and without which they are written in another way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Extension {
    /// Its name in rules.
    pub name: &'static str,
    /// The kernel module, for IPv4 and for IPv6.
    pub modules: [&'static str; 2],
    /// What is different without it.
    pub without: &'static str,
}

impl Extension {
    /// Those of `known` that were missing when a restore was refused.
    pub fn missing(known: &[Self], error: &Error) -> impl Iterator<Item = Self> {
        let names: Vec<&str> = error.missing_extensions().collect();
        let known = known.iter().copied();
        known.filter(move |extension| names.contains(&extension.name))
    }

    /// The event that the rules of a family do without it.
    fn event(self, family: Family) -> Event {
        let Self {
            name,
            modules,
            without,
        } = self;
        let module = modules[family.index()];
        let text = format!(
            "{family} rules do without the iptables extension {name}, which the kernel or the tools lack: {without}; it is tried again at \
             the next start (`modprobe {module}` as root before)"
        );
        Event::host("ExtensionMissing", text)
    }
}

/// The extensions that a host lacks, by family, as refused restores of this process showed: rules do without them.
#[derive(Clone, Debug, Default)]
pub struct MissingExtensions([BTreeSet<Extension>; 2]);

impl MissingExtensions {
    /// Finds those of `known` that were missing when a restore of a family was refused. Returns whether one is new: then the rules can be
    /// written without it.
    pub fn find(&mut self, family: Family, known: &[Extension], error: &Error) -> bool {
        let missing = &mut self.0[family.index()];
        let before = missing.len();
        missing.extend(Extension::missing(known, error));
        missing.len() > before
    }

    /// Those of a family.
    #[must_use]
    pub fn of(&self, family: Family) -> &BTreeSet<Extension> {
        &self.0[family.index()]
    }

    /// One event for each, of these families.
    pub fn events(&self, families: impl Iterator<Item = Family>) -> Vec<Event> {
        let of_family = |family: Family| {
            let missing = self.of(family).iter();
            missing.map(move |extension| extension.event(family))
        };
        families.flat_map(of_family).collect()
    }

    /// All are tried again.
    pub fn clear(&mut self) {
        self.0 = Default::default();
    }
}
