//! Matches and targets of iptables that rules can do without. If the kernel or the tools lack one, all rules of the family would be refused.

use kernlink_iptables_restore::Error;
use kernlink_services::{Event, Family};

/// A match or target that some rules use, and without which they are written in another way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Extension {
    /// `-m physdev`: rules of external IPs do not apply to bridged packets. Without it they do.
    Physdev,
    /// `-m ipvs`: recognises the connections of processes of this node to a load balancer that does not admit the node. Without it the
    /// original destination in connection tracking does.
    Ipvs,
    /// `-j REJECT`: answers clients of virtual IPs without a virtual server. Without it `DROP` is used.
    Reject,
}

impl Extension {
    const ALL: [Self; 3] = [Extension::Physdev, Extension::Ipvs, Extension::Reject];

    /// The extensions that were missing when a restore was refused.
    pub(super) fn missing(error: &Error) -> impl Iterator<Item = Self> {
        let names: Vec<&str> = error.missing_extensions().collect();
        Self::ALL
            .into_iter()
            .filter(move |extension| names.contains(&extension.name()))
    }

    fn name(self) -> &'static str {
        match self {
            Extension::Physdev => "physdev",
            Extension::Ipvs => "ipvs",
            Extension::Reject => "REJECT",
        }
    }

    /// The event that the rules of a family do without it.
    pub(super) fn event(self, family: Family) -> Event {
        let (module, instead) = match (self, family) {
            (Extension::Physdev, _) => (
                "xt_physdev",
                "other rules of table nat do not rewrite bridged packets to external IPs",
            ),
            (Extension::Ipvs, _) => (
                "xt_ipvs",
                "processes of this node are kept from load balancers that do not admit them by the original destination of their connections",
            ),
            (Extension::Reject, Family::Ipv4) => ("ipt_REJECT", WITHOUT_REJECT),
            (Extension::Reject, Family::Ipv6) => ("ip6t_REJECT", WITHOUT_REJECT),
        };
        let name = self.name();
        let text = format!(
            "{family} rules do without the iptables extension {name}, which the kernel or the tools lack: {instead}; it is tried again at \
             the next start (`modprobe {module}` as root before)"
        );
        Event::host("ExtensionMissing", text)
    }
}

const WITHOUT_REJECT: &str = "clients of ports of virtual IPs that no Service has get no answer";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_extension_is_missing_if_the_message_of_a_refusal_names_it() {
        for (text, missing) in [
            (
                "Warning: Extension ipvs revision 0 not supported, missing kernel module?; iptables-restore: line 4 failed",
                &[Extension::Ipvs][..],
            ),
            (
                "Warning: Extension physdev revision 0 not supported, missing kernel module?; Warning: Extension REJECT revision 0 not \
                 supported, missing kernel module?; line 9: RULE_APPEND failed (No such file or directory): rule in chain KUBE-SERVICES",
                &[Extension::Physdev, Extension::Reject],
            ),
            (
                "Couldn't load match `physdev':No such file or directory; ; Error occurred at line: 3",
                &[Extension::Physdev],
            ),
            (
                "Set KUBE-CLUSTER-IP doesn't exist.; Error occurred at line: 4",
                &[],
            ),
        ] {
            let error = Error::Refused {
                tool: "iptables-restore".into(),
                refused: Box::new(kernlink_iptables_restore::Refused::Whole(Family::Ipv4)),
                kind: kernlink_iptables_restore::RefusedKind::Other,
                text: text.into(),
                status: Some(1),
                applied: Vec::new(),
            };
            assert_eq!(Extension::missing(&error).collect::<Vec<_>>(), missing, "{text}");
        }
    }
}
