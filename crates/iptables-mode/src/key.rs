//! The identity of what one operation of iptables mode changes.

use std::fmt;

use kernlink_engine::data_path::Class;
use kernlink_iptables_restore::ChainName;
use kernlink_services::{Family, ObjectName};

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
    /// The chains and rules of a Service in a family, with the rules of an earlier process that name it.
    Service(Family, ObjectName),
    /// The rules of frontends that another Service has now, and the chains that the previous one does not need any more. They serve until those of
    /// the new owner are written.
    Replaced(Family, ObjectName),
    /// The rule of `KUBE-FIREWALL` in a family whose tables cannot be read: the kubelet may have rules in this chain, so it is not emptied.
    Firewall(Family),
    /// Rules of a family that no Service needs, that this process did not write and that name no Service, in chains that stay or are emptied.
    Leftovers(Family),
    /// A chain that no Service needs any more. It is emptied with its Service or the [`Leftovers`](Key::Leftovers), and deleted by itself: the
    /// kernel refuses that while a foreign rule jumps to it.
    Chain(Family, ChainName),
    /// An accounting object, by name.
    Accounting(Box<str>),
    /// The stale UDP flows of a family.
    Flows(Family),
}

impl Key {
    /// What operations on a Service change.
    pub(super) fn of_service(family: Family, name: &ObjectName) -> [Self; 2] {
        [
            Key::Service(family, name.clone()),
            Key::Replaced(family, name.clone()),
        ]
    }

    pub(super) fn class(&self) -> Class {
        let (kind, family, is_shared) = match self {
            Key::Sysctl(_) => ("sysctl", None, false),
            Key::Fixed(family) => ("fixed_chains", Some(*family), true),
            Key::Jump(family, _) => ("jump", Some(*family), true),
            Key::Service(family, _) => ("service", Some(*family), false),
            Key::Replaced(family, _) => ("replaced_rules", Some(*family), false),
            Key::Firewall(family) => ("firewall", Some(*family), true),
            Key::Leftovers(family) => ("leftovers", Some(*family), false),
            Key::Chain(family, _) => ("withdrawn_chain", Some(*family), false),
            Key::Accounting(_) => ("accounting_object", None, false),
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
            Key::Fixed(family) => write!(f, "{family} fixed chains"),
            Key::Jump(family, position) => write!(f, "{family} jump {position}"),
            Key::Service(family, name) => write!(f, "{family} chains of Service {name}"),
            Key::Replaced(family, name) => write!(f, "{family} replaced rules of Service {name}"),
            Key::Firewall(family) => write!(f, "{family} rule of KUBE-FIREWALL"),
            Key::Leftovers(family) => write!(f, "{family} rules of withdrawn Services"),
            Key::Chain(family, name) => write!(f, "{family} chain {name}"),
            Key::Accounting(name) => write!(f, "accounting object {name}"),
            Key::Flows(family) => write!(f, "stale {family} UDP flows"),
        }
    }
}
