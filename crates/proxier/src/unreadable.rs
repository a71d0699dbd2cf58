//! The events about parts of the kernel that could not be read.

use kernlink_iptables_restore::{Error, RefusedKind};
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
const ALL: [&str; 5] = [
    SETS_UNREADABLE,
    LINKS_UNREADABLE,
    SYSCTL_UNREADABLE,
    FLOWS_UNREADABLE,
    RULES_UNREADABLE,
];

/// The code of the event about tables that were not read because of an error.
#[must_use]
pub fn rules_code(error: &Error) -> &'static str {
    match error {
        Error::Refused {
            kind: RefusedKind::Unsupported,
            ..
        } => RULES_UNSUPPORTED,
        _ => RULES_UNREADABLE,
    }
}

/// Whether an event reports that a part of the kernel could not be read: a plan is then made without knowing what this part contains.
#[must_use]
pub fn is_unreadable(event: &Event) -> bool {
    matches!(&event.reason, Reason::DataPath { code, .. } if ALL.contains(code))
}

#[cfg(test)]
mod tests {
    use kernlink_iptables_restore::Refused;
    use kernlink_services::Family;

    use super::*;

    #[test]
    fn tables_that_the_kernel_does_not_have_are_known() {
        let refused = |kind| Error::Refused {
            tool: "ip6tables-save".into(),
            refused: Box::new(Refused::Whole(Family::Ipv6)),
            kind,
            text: String::new(),
            status: Some(3),
            applied: Vec::new(),
        };
        let is_unknown = |error: &Error| is_unreadable(&Event::host(rules_code(error), String::new()));
        assert!(!is_unknown(&refused(RefusedKind::Unsupported)));
        assert!(is_unknown(&refused(RefusedKind::PermissionDenied)));
        // Without the tool, another program may have written tables.
        assert!(is_unknown(&Error::custom(
            "read tables",
            "the tool is not installed"
        )));
    }
}
