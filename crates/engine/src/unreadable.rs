//! The events about parts of the kernel that could not be read.

use kernlink_services::{Event, Reason};

/// The code of the event that sets could not be read ([`Reason::DataPath`]).
pub const SETS_UNREADABLE: &str = "SetsUnreadable";
/// The code of the event that links or addresses could not be read.
pub const LINKS_UNREADABLE: &str = "LinksUnreadable";
/// The code of the event that a sysctl could not be read.
pub const SYSCTL_UNREADABLE: &str = "SysctlUnreadable";
/// The code of the event that tracked UDP flows could not be read.
pub const FLOWS_UNREADABLE: &str = "FlowsUnreadable";
/// The code of the event that the tables of a family could not be read.
pub const RULES_UNREADABLE: &str = "RulesUnreadable";
/// The code of the event that the kernel has no tables of a family: there is nothing to read.
pub const RULES_UNSUPPORTED: &str = "RulesUnsupported";
/// The code of the event that leftovers of another mode could not be read.
pub const LEFTOVERS_UNREADABLE: &str = "LeftoversUnreadable";
const ALL: [&str; 6] = [
    SETS_UNREADABLE,
    LINKS_UNREADABLE,
    SYSCTL_UNREADABLE,
    FLOWS_UNREADABLE,
    RULES_UNREADABLE,
    LEFTOVERS_UNREADABLE,
];

/// Whether an event reports that a part of the kernel could not be read: a plan is then made without knowing what this part contains.
#[must_use]
pub fn is_unreadable(event: &Event) -> bool {
    matches!(&event.reason, Reason::DataPath { code, .. } if ALL.contains(code))
}
