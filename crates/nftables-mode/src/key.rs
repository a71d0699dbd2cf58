//! The identity of what one operation of nftables mode changes.

use std::fmt;

use kernlink_engine::data_path::Class;
use kernlink_services::{Family, FrontendKey, ObjectName};

use crate::item::{ElementKey, Shared};
use crate::layout::Slot;

/// What one operation changes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Key {
    /// A sysctl, by name.
    Sysctl(Box<str>),
    /// The table of a family: its chains, its rules, and its sets without their elements.
    Table(Family),
    /// The switch of a family from one table to the one that replaces it.
    Switch(Family),
    /// The ownership of the table of a family: no other program can change it while this one has it.
    Owner(Family),
    /// The elements of a Service in a family.
    Service(Family, ObjectName),
    /// The elements of a frontend that no Service has and that this process did not write.
    Frontend(FrontendKey),
    /// An element that Services have in common, and that none has any more.
    Shared(Family, Shared),
    /// The networks that cluster IPs are allocated from.
    ServiceCidrs(Family),
    /// An element that another program added, changed or deleted. It is read again with its Service.
    Element(Family, ElementKey),
    /// All elements of a table of a family.
    Elements(Family, Slot),
    /// A table that is not needed any more: of an earlier process, or of kube-proxy's nftables mode.
    OldTable(Family, Box<str>),
    /// The stale UDP flows of a family.
    Flows(Family),
}

impl Key {
    pub(crate) fn class(&self) -> Class {
        let (kind, family, is_shared) = match self {
            Key::Sysctl(_) => ("sysctl", None, false),
            Key::Table(family) => ("table", Some(*family), true),
            Key::Switch(family) => ("switch", Some(*family), true),
            Key::Service(family, _) => ("service", Some(*family), false),
            Key::Frontend(key) => ("withdrawn_frontend", Some(key.family()), false),
            Key::Shared(family, _) => ("withdrawn_element", Some(*family), false),
            Key::ServiceCidrs(family) => ("service_cidrs", Some(*family), false),
            Key::Owner(family) => ("owner", Some(*family), false),
            Key::Element(family, _) => ("element", Some(*family), false),
            Key::Elements(family, _) => ("elements", Some(*family), true),
            Key::OldTable(family, _) => ("old_table", Some(*family), false),
            Key::Flows(family) => ("flows", Some(*family), false),
        };
        Class {
            kind,
            family,
            is_shared,
        }
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Key::Sysctl(name) => write!(f, "sysctl {name}"),
            Key::Table(family) => write!(f, "{family} table"),
            Key::Switch(family) => write!(f, "switch of the {family} table"),
            Key::Service(family, name) => write!(f, "{family} elements of Service {name}"),
            Key::Frontend(key) => write!(f, "elements of frontend {key}"),
            Key::Shared(family, element) => write!(f, "{family} element {element}"),
            Key::ServiceCidrs(family) => write!(f, "{family} networks of cluster IPs"),
            Key::Owner(family) => write!(f, "ownership of the {family} table"),
            Key::Element(family, element) => write!(f, "{family} element {element}"),
            Key::Elements(family, slot) => write!(f, "elements of the {family} table {}", slot.name()),
            Key::OldTable(family, name) => write!(f, "{family} table {name}"),
            Key::Flows(family) => write!(f, "stale {family} UDP flows"),
        }
    }
}
