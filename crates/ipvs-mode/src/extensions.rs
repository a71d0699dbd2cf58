//! Matches and targets of iptables that the rules of IPVS mode can do without.

use kernlink_netfilter::Extension;

/// Rules of external IPs do not apply to bridged packets. Without it they do.
pub(super) const PHYSDEV: Extension = Extension {
    name: "physdev",
    modules: ["xt_physdev"; 2],
    without: "other rules of table nat do not rewrite bridged packets to external IPs",
};

/// Recognises the connections of processes of this node to a load balancer that does not admit the node. Without it the original destination in
/// connection tracking does.
pub(super) const IPVS: Extension = Extension {
    name: "ipvs",
    modules: ["xt_ipvs"; 2],
    without: "processes of this node are kept from load balancers that do not admit them by the original destination of their connections",
};

/// Answers clients of virtual IPs without a virtual server. Without it `DROP` is used.
pub(super) const REJECT: Extension = Extension {
    name: "REJECT",
    modules: ["ipt_REJECT", "ip6t_REJECT"],
    without: "clients of ports of virtual IPs that no Service has get no answer",
};

/// All of them. Every other match and target is necessary.
pub(super) const ALL: [Extension; 3] = [PHYSDEV, IPVS, REJECT];

#[cfg(test)]
mod tests {
    use kernlink_iptables_restore::Error;
    use kernlink_services::Family;

    use super::*;

    #[test]
    fn an_extension_is_missing_if_the_message_of_a_refusal_names_it() {
        for (text, missing) in [
            (
                "Warning: Extension ipvs revision 0 not supported, missing kernel module?; iptables-restore: line 4 failed",
                &[IPVS][..],
            ),
            (
                "Warning: Extension physdev revision 0 not supported, missing kernel module?; Warning: Extension REJECT revision 0 not \
                 supported, missing kernel module?; line 9: RULE_APPEND failed (No such file or directory): rule in chain KUBE-SERVICES",
                &[PHYSDEV, REJECT],
            ),
            (
                "Couldn't load match `physdev':No such file or directory; ; Error occurred at line: 3",
                &[PHYSDEV],
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
            assert_eq!(
                Extension::missing(&ALL, &error).collect::<Vec<_>>(),
                missing,
                "{text}"
            );
        }
    }
}
