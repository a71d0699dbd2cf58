//! The match of traffic from pods of this node.

use ipnet::IpNet;
use kernlink_host::{LocalDetection, LocalSource};
use kernlink_iptables_restore::{Condition, InterfacePattern, Match};
use kernlink_services::Family;

/// The match of traffic from pods of this node, or of all other traffic. `None` if it cannot be recognised in the family. `pod_cidr` is the
/// network of the pods of this node.
#[must_use]
pub fn local_match(
    detection: &LocalDetection,
    family: Family,
    pod_cidr: Option<IpNet>,
    is_local: bool,
) -> Option<Match> {
    fn condition<T>(value: T, is_local: bool) -> Condition<T> {
        if is_local {
            Condition::Is(value)
        } else {
            Condition::Not(value)
        }
    }
    // Names of interfaces are patterns: both types have the same limits.
    let interface = |pattern: &str| {
        let pattern = InterfacePattern::new(pattern).ok()?;
        Some(Match::InInterface(condition(pattern, is_local)))
    };
    match detection.source(family, pod_cidr)? {
        LocalSource::Network(net) => Some(Match::Source(condition(net.into(), is_local))),
        LocalSource::Interface(name) => interface(name.as_str()),
        LocalSource::InterfacePrefix(prefix) => interface(&format!("{prefix}+")),
    }
}

#[cfg(test)]
mod tests {
    use kernlink_iptables_restore::Rule;

    use super::*;

    #[test]
    fn each_valid_interface_is_a_pattern() {
        let printed = |detection: &LocalDetection, is_local| {
            let found = local_match(detection, Family::Ipv4, None, is_local).unwrap();
            Rule::new().with(found).to_string()
        };
        let characters = (0..=u8::MAX).map(char::from).chain(['ä', '\u{a0}', '網']);
        for character in characters {
            for name in [format!("{character}"), format!("a{character}b")] {
                if let Ok(detection) = LocalDetection::bridge_interface(&name) {
                    assert!(
                        local_match(&detection, Family::Ipv4, None, true).is_some(),
                        "{name}"
                    );
                }
                if let Ok(detection) = LocalDetection::interface_prefix(&name) {
                    assert!(
                        local_match(&detection, Family::Ipv4, None, true).is_some(),
                        "{name}"
                    );
                }
            }
        }
        let longest = LocalDetection::interface_prefix("fourteen-bytes").unwrap();
        assert_eq!(printed(&longest, true), "-i fourteen-bytes+");
        let bridge = LocalDetection::bridge_interface("fifteen-bytes-x").unwrap();
        assert_eq!(printed(&bridge, false), "! -i fifteen-bytes-x");
    }
}
