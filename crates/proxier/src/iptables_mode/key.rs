//! The identity of what one operation of iptables mode changes.

use std::fmt;

use kernlink_services::{Family, ObjectName};

use crate::data_path::Class;

/// What one operation changes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Key {
    /// A sysctl, by name.
    Sysctl(Box<str>),
    /// The fixed chains of a family, their rules that do not depend on Services, and the jumps to them.
    Fixed(Family),
    /// A jump of a family whose tables cannot be read, by its position.
    Jump(Family, usize),
    /// The chains and rules of a Service in a family.
    Service(Family, ObjectName),
    /// Chains and rules of a family that no Service needs, and that this process did not write.
    Leftovers(Family),
}

impl Key {
    pub(super) fn family(&self) -> Option<Family> {
        match self {
            Key::Sysctl(_) => None,
            Key::Fixed(family) | Key::Jump(family, _) | Key::Service(family, _) | Key::Leftovers(family) => {
                Some(*family)
            }
        }
    }
}

impl Key {
    pub(super) fn class(&self) -> Class {
        let (kind, is_shared) = match self {
            Key::Sysctl(_) => ("sysctl", false),
            Key::Fixed(_) => ("fixed_chains", true),
            Key::Jump(..) => ("jump", true),
            Key::Service(..) => ("service", false),
            Key::Leftovers(_) => ("leftovers", false),
        };
        Class {
            kind,
            family: self.family(),
            is_shared,
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Key::Sysctl(name) => write!(f, "sysctl {name}"),
            Key::Fixed(family) => write!(f, "{family} fixed chains"),
            Key::Jump(family, position) => write!(f, "{family} jump {position}"),
            Key::Service(family, name) => write!(f, "{family} chains of Service {name}"),
            Key::Leftovers(family) => write!(f, "{family} chains of former Services"),
        }
    }
}
